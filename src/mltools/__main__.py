"""`python -m mltools`, and the installed `mltools` program."""

import gc
import os
import sys


def run() -> None:
    """Run the program on the process's arguments and end with its exit status."""
    hold_streams()
    try:
        from mltools.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    status = main()
    gc.freeze()  # else the collector looks through all of torch on the way out, which takes most of a second
    sys.exit(status)


def hold_streams() -> None:
    """Give closed standard streams a descriptor of the wrong direction, so that no file we open takes their place."""
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


if __name__ == "__main__":
    run()
