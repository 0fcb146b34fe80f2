"""`python -m mltools`, and the installed `mltools` program."""

import sys

from mltools.cli import main


def run() -> None:
    """Run the program on the process's arguments and end with its exit status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
