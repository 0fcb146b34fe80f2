"""What a maintainer leans on agrees with itself: citation, hosted CI, commit hooks, licences, bounds, the site."""

import gzip
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from mltools import __version__

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = " ".join((ROOT / "README.md").read_text().split())


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    """The packages of a list of requirements."""
    return {canonical(re.split(r"[^\w.-]", text)[0]) for text in requirements}


def targets() -> set[str]:
    """The targets that the Makefile offers."""
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    return set(line.split())


def recipe(target: str) -> str:
    """The commands of a target, as make prints them without running any."""
    words = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def steps() -> list[dict[str, Any]]:
    """All steps of the hosted CI."""
    return [step for job in load(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"]]


def test_citation() -> None:
    """The software is this version; the paper is the one that README names."""
    citation = load("CITATION.cff")
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])
    paper = citation["preferred-citation"]
    assert paper["title"] in README and paper["url"] in README
    assert " & ".join(author["family-names"] for author in paper["authors"]) + f" ({paper['year']})" in README
    assert paper["collection-title"] in README
    assert paper["url"].endswith(paper["identifiers"][0]["value"].removeprefix("arXiv:"))
    assert PROJECT["urls"]["Paper"] == paper["url"]


def test_what_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`([\w./-]+/(?:[\w-]+\.\w+)?)`", text.replace("NAME", "swap")):
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "src/mltools")), path
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets()
    (table,) = re.findall(r"\| change \|.*?\n\n", text, flags=re.S)
    for name in " ".join(re.findall(r"`([a-z_ ]+)` \| \d", table)).split():
        assert name in {"make", *targets()} or (ROOT / f"tests/test_{name}.py").exists(), name


def test_hosted_ci_runs_only_targets() -> None:
    runs = [step["run"] for step in steps() if "run" in step]
    assert {"make test", "make lint", "make wheel", "make smoke", "make lowest", "make highest", "make mutants"} <= set(
        runs
    )
    for run in runs:
        assert run.startswith("make ") and run.removeprefix("make ") in targets(), run


def test_every_target_has_a_recipe() -> None:
    for target in targets():
        assert recipe(target).strip(), target


def test_hooks_are_the_steps_of_lint() -> None:
    hooks = [hook["entry"] for repository in load(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    lint = recipe("lint")
    for hook in hooks:
        assert hook in lint, hook
    for tool in ("ruff format", "ruff check", "mypy", "gen.py", "licences.py"):
        assert any(tool in hook for hook in hooks), tool


def test_licences_name_every_dependency() -> None:
    page = (ROOT / "docs/licences.md").read_text()
    rows = dict(re.findall(r"^\| (\S+) \| [^|]+ \| ([^|]+) \|$", page, flags=re.M))
    assert names(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["plot"]) <= set(rows)
    assert "not named" not in rows.values()


def test_constraints_pin_all_that_is_installed() -> None:
    """Each dependency, direct or not, has one exact version within the bounds."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {canonical(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines)
    rows = re.findall(r"^\| ([a-z]\S*) \|", (ROOT / "docs/licences.md").read_text(), flags=re.M)
    assert set(rows) - {"package"} <= set(pins)
    wanted = (
        PROJECT["dependencies"] + PROJECT["optional-dependencies"]["plot"] + PROJECT["optional-dependencies"]["dev"]
    )
    assert names(wanted) - {"mltools"} <= set(pins)
    for name in ("torch", "transformers"):
        (bound,) = [re.findall(r"<(\d+)\.(\d+)$", text) for text in PROJECT["dependencies"] if names([text]) == {name}]
        major, minor = pins[name].split(".")[:2]
        assert (int(major), int(minor) + 1) == tuple(map(int, bound[0])), f"{name} ends after what is tested"


@pytest.mark.parametrize("given", [gzip.compress(b"a")])
def test_a_parameter_of_bytes_is_named_by_its_parameter(given: bytes, request: pytest.FixtureRequest) -> None:
    """What a compressor writes holds the time: two workers named one test differently, and the run was refused."""
    assert request.node.name.endswith("[given]")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install '.[docs]'")
def test_site_has_no_dead_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/site.py", tmp_path / "site"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {"index.html", "docs/index.html", "docs/tutorial.html", "docs/commands/swap.html"} <= {
        path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.html")
    }
