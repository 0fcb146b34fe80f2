#!/usr/bin/env python3
"""Say where two wheels differ, with status 1: `same_wheels.py ONE OTHER`."""

import sys
from zipfile import ZipFile


def contents(path: str) -> dict[str, int]:
    """Give each file of a wheel and its checksum."""
    with ZipFile(path) as wheel:
        return {file.filename: file.CRC for file in wheel.infolist()}


def main(one: str, other: str) -> int:
    first, second = contents(one), contents(other)
    differ = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
    for name in differ:
        sys.stderr.write(f"{name}: differs between {one} and {other}\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
