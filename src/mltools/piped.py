"""Windows that come from stdin bit by bit, served as they come: `--layers -` of swap and retrain."""

import sys
from collections.abc import Iterator
from typing import Any

from mltools.errors import UsageError
from mltools.layers import Window, parse_layers

PIPED = ("-",)
"""What --layers is where windows come from stdin, a line each."""


def check_piped(settings: Any) -> None:
    """See that --layers - goes together with the other settings.

    Raises:
        UsageError: other windows beside it, rows from stdin too, or a list of all windows asked for.
    """
    if "-" not in settings.layers:
        return
    if settings.layers != PIPED:
        raise UsageError("--layers - takes the windows from stdin: name no others beside it")
    if not settings.rows or "-" in settings.rows:
        raise UsageError("--layers - and the rows cannot both come from stdin: name a file of rows")
    if settings.share.shard is not None or settings.share.dry_run:
        raise UsageError("--layers - takes windows as they come, there is no list of them: no --shard, no --dry-run")


def piped_windows(n_layers: int) -> Iterator[list[Window]]:
    """Yield each window that comes on stdin, alone, when its line is there.

    Raises:
        UsageError: a line that is no layer list.
    """
    for line in sys.stdin:
        if text := line.strip():
            yield [Window(parse_layers(text, n_layers))]
