"""Trial."""
from collections.abc import Iterator
from typing import Any
from mltools.run import Run
from mltools.tools.swap import SwapResult, plan, write_per_row
from mltools.tools.swap import swap
from mltools.config import SwapConfig
from mltools.windows import parse_windows

def items(run: Run) -> Any:
    return plan(run.shape, parse_windows(run.get("layers"), run.shape.n_layers))

def run(run: Run) -> Iterator[Any]:
    settings = run.settings
    noisy, clean = run.model("noisy").open(), run.model("clean").open()
    windows = parse_windows(settings.layers, noisy.n_layers)
    result = SwapResult.empty()
    config = SwapConfig(part=settings.part, batch_size=settings.batches.batch_size, max_length=settings.data.max_length)
    yield from swap(noisy, clean, run.rows, windows, config, run.track, result, done=run.earlier, run=run.digest)
    if settings.per_row is not None:
        write_per_row(settings.per_row, result, run.rows, run.made_by("per_row"))
    run.report(windows=len(windows), rows=result.rows, layers=result.layers, applications=result.applications,
        applications_per_row=result.applications / result.rows if result.rows else None)
