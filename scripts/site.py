#!/usr/bin/env python3
"""Build the static site from README.md, docs/ and examples/: `site.py [FOLDER]` (default: build/site).

Needs the `docs` extra. A dead link or anchor ends it with status 1.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("README.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "LICENSE", "docs", "examples")


def gather(folder: Path) -> None:
    """Copy what the site shows to a folder, each file where it is in the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)


def main(arguments: list[str]) -> int:
    site = Path(arguments[0]).resolve() if arguments else ROOT / "build/site"
    gather(ROOT / "build/pages")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(site)]
    return subprocess.run(words, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
