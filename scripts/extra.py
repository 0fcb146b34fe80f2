#!/usr/bin/env python3
"""Print the requirements of an extra as pyproject.toml has them, one a line: `extra.py docs`."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def requirements(extra: str) -> list[str]:
    """Give an extra's requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"][extra])


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
