#!/usr/bin/env python3
"""Write docs/licences.md: what is installed with mltools, what asks for it, and its licence.

python scripts/licences.py           writes the page
python scripts/licences.py --check   ends with status 1 where it differs

Packages are those of constraints.txt that mltools and its `plot` extra need, as installed here.
"""

import re
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/licences.md"
PROJECT, EXTRAS = "mltools", ("", "plot")
LONGEST = 80  # characters; a longer "name" of a licence is its text
HEAD = """# Licences

mltools itself is under the MIT licence. It copies no code from the packages below; pip installs them beside it, each
under its own licence, as the package's own metadata name it. `plot` asks for matplotlib; everything else is always
installed. The CUDA build of torch, which pip takes on Linux, brings NVIDIA's libraries too, under NVIDIA's own terms.

`scripts/licences.py` writes this page from what `constraints.txt` pins.

| package | asked for by | licence |
|---|---|---|
"""


def pinned() -> set[str]:
    """Give the packages that constraints.txt names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}


def needs(name: str, extras: tuple[str, ...] = ("",)) -> set[str]:
    """Give what a package asks for on this system."""
    found = (Requirement(text) for text in distribution(name).requires or ())
    return {
        canonicalize_name(requirement.name)
        for requirement in found
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    }


def askers() -> dict[str, set[str]]:
    """Give each package that is installed with mltools, and those that ask for it."""
    known = pinned()
    asked: dict[str, set[str]] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(PROJECT, EXTRAS)]
    while waiting:
        asker, extras = waiting.pop()
        for name in needs(asker, extras) & known:
            if name not in asked:
                waiting.append((name, ("",)))
            asked.setdefault(name, set()).add(asker)
    return asked


def licence(package: Distribution) -> str:
    """Give the licence as the package's metadata name it: the expression, the name, or the classifiers."""
    metadata = package.metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    named = "".join(metadata.get_all("License") or [])
    if named and "\n" not in named and len(named) <= LONGEST and not named.startswith("Copyright"):
        return named
    classifiers = metadata.get_all("Classifier") or []
    names = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    return ", ".join(names) or "not named"


def page() -> str:
    """Give the text of the page."""
    rows = [
        f"| {name} | {', '.join(sorted(by, key=lambda asker: (asker != PROJECT, asker)))} | "
        f"{re.sub(r'[|]', ' ', licence(distribution(name)))} |\n"
        for name, by in sorted(askers().items())
    ]
    return HEAD + "".join(rows)


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write("docs/licences.md differs; run scripts/licences.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
