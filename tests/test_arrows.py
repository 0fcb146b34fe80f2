"""Arrows point down only: no module imports from a floor above its own, at its top or inside a function."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "mltools"
FLOORS = (
    *(
        "errors",
        "ranges",
        "tags",
        "console",
        "signals",
        "processes",
        "layers",
        "io",
        "hashing",
        "shards",
        "piped",
        "sweep",
        "schemas",
        "analysis",
    ),
    *("spec", "options", "model", "run", "sinks", "drawing", "commands", "cli", "api", "__init__", "__main__"),
)
"""The packages and modules of mltools, from the ground up."""


def imported(path: Path) -> Iterator[str]:
    """Name the modules of mltools that a file imports, wherever in it, first part only."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "mltools":
            names = [alias.name for alias in node.names if not alias.name.startswith("__")]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mltools."):
            names = [node.module.split(".")[1]]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("mltools.")]
        yield from names


def test_arrows_point_down() -> None:
    arrows = 0
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for name in imported(path):
            arrows += 1
            assert FLOORS.index(name) <= FLOORS.index(own), f"{path.relative_to(ROOT)} imports {name}"
    assert arrows > 400


def test_commands_do_not_lean_on_each_other() -> None:
    for path in (ROOT / "commands").rglob("*.py"):
        own = path.relative_to(ROOT / "commands").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mltools.commands."):
                assert (node.module or "").split(".")[2] == own, path
