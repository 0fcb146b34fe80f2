"""The one tree of errors meant for people, and the exit status each ends the program with.

Only these (and plain operating-system errors) become a one-line message; anything else is a bug and
says so. The statuses are those of DESIGN: 1 failed while running, 2 usage, 3 rows invalid,
4 checkpoint unusable, 5 not found or offline, 6 out of memory or disk, 75 stopped at an item's edge by --time-left.
"""

import errno
import re

OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|os error 12|out of memory|failed to map segment|std::bad_alloc"
    r"|can't start new thread|failed to create thread|ALLOC_FAILED|cannot allocate|could not create a primitive"
)
"""What errors say that are no MemoryError, when memory is short: of torch, safetensors, the loader of libraries, …"""


def lacks_memory(error: BaseException | None) -> bool:
    """Say whether an error comes of too little memory, on the device or off it."""
    if error is None:
        return False
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or OUT_OF_MEMORY.search(str(error)) is not None or lacks_memory(error.__cause__)


def brief(error: BaseException, most: int = 120) -> str:
    """Give the words of a library's error in one line, cut short; the name of its kind if it has none."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]


class MltoolsError(Exception):
    """Something went wrong that a person can mend; `str(error)` is the whole message."""

    exit_code = 1


class TrainingError(MltoolsError):
    """Training cannot go on, for example after a non-finite loss."""


class InvalidError(MltoolsError):
    """With --strict: the experiment behind the records did not take place (`model.validity`)."""


class UsageError(MltoolsError):
    """An option or argument that cannot be meant, or an output that already exists."""

    exit_code = 2


class RowsError(MltoolsError):
    """Rows or records that do not hold what the tool needs; says `file:line`."""

    exit_code = 3


class CheckpointError(MltoolsError):
    """A checkpoint that cannot be used: missing weights, pickles, no block list, shapes that differ."""

    exit_code = 4


class NotFoundError(MltoolsError):
    """A file, folder or hub repository that is not there, or cannot be reached."""

    exit_code = 5


class ResourceError(MltoolsError):
    """Memory or disk ran out."""

    exit_code = 6


class TimeLeftError(MltoolsError):
    """The time of --time-left is over and items are left: start the command again (EX_TEMPFAIL)."""

    exit_code = 75


OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


def exit_status(error: BaseException) -> int:
    """Give the status that an error ends the program with."""
    match error:
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case MltoolsError():
            return ResourceError.exit_code if lacks_memory(error.__context__) else error.exit_code
        case BrokenPipeError():
            return 0
    if lacks_memory(error) or getattr(error, "errno", None) in OUT_OF_SPACE or lacks_space(error):
        return ResourceError.exit_code
    return NotFoundError.exit_code if isinstance(error, FileNotFoundError) else 1


def lacks_space(error: BaseException) -> bool:
    """Say whether an error comes of a full disk, by its words."""
    return any(said in str(error) for said in ("No space left", "os error 28", "os error 27"))
