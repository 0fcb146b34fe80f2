"""`python -m mltools`, and the installed `mltools` program."""

import atexit
import contextlib
import os
import sys


def run() -> None:
    """Run the program on the process's arguments and end with its exit status."""
    statuses: list[int] = []
    atexit.register(end, statuses)  # the first registered is the last to run
    hold_streams()
    try:
        from mltools.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    statuses.append(main())
    sys.exit(statuses[0])


def end(statuses: list[int]) -> None:
    """End the process without the interpreter's teardown, once there is a status and all else that ends has ended.

    Teardown closes what is left of generators and readers after their modules are gone, which prints, and it looks
    through all of torch, which takes most of a second.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    for status in statuses:
        os._exit(status)


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
