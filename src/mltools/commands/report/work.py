"""Sort records by kind, draw each kind, and write the page."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from itertools import groupby
from typing import Any

from mltools.analysis.centre_of_gravity import mcog
from mltools.commands.report.page import Page
from mltools.drawing.figure import check_matplotlib, draw_svg
from mltools.drawing.grouped import Asked
from mltools.errors import MltoolsError, RowsError
from mltools.io.atomic import atomic_file
from mltools.io.kinds import record_kinds
from mltools.io.records import Records
from mltools.io.stdout import to_stdout, write_stdout
from mltools.io.writer import as_row
from mltools.run import Run
from mltools.sinks import TextSink

KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "start": ("Windows", "window", ("heatmap", "maxima")),
    "noisy_mean": ("Centroid analysis", "centroid", ("centroid",)),
    "event": ("Events", "event", ("events",)),
    "m_cog": ("Centres of gravity", "cog", ("events",)),
    "correlation": ("Correlations", "correlation", ("matrix",)),
    "mean_reciprocal_rank": ("Accuracy where the layers are known", "score", ("score",)),
    "f1": ("Probes", "probe", ("probe",)),
    "score": ("Layer scores", "layer", ("layers",)),
    "learning_rate": ("Training", "epoch", ()),
}
"""Title, name and pictures of the records that have a column; the first that they have counts."""
WEIGHED = ("window", "layer", "probe")
MOST_PANELS = 24


def run(run: Run) -> Iterator[str]:
    """Yield the page."""
    check_matplotlib()
    kinds: dict[str, list[Records]] = {}
    for block in run.records():
        for part in block.by_columns():
            for key, own in _by_kind(part):
                kinds.setdefault(key, []).append(own)
    if not kinds:
        raise RowsError("no records came in")
    page = Page(run.provenance)
    for key, parts in sorted(kinds.items(), key=lambda item: [*KINDS, ""].index(item[0])):
        title, name, pictures = KINDS.get(key, ("Other records", "other", ()))
        page.section(title)
        for picture in pictures:
            _draw(page, picture, parts, run.settings.by)
        if name in WEIGHED:
            _try(page, "centres of gravity", lambda parts=parts: _weigh(page, parts, run.settings.by))  # type: ignore[misc]
        page.table([record.values for part in parts for record in part])
    if page.invalid:
        reasons = ", ".join(sorted(page.reasons)) or "no reason given"
        message = f"invalid ({reasons}): {page.invalid} of {page.records} records have valid=false"
        run.invalid(message, strict=run.settings.strict, marks="the page marks them")
    yield page.text()


def _by_kind(records: Records) -> Iterator[tuple[str, Records]]:
    """Sort records with the same columns by kind; in a table of several, each has the columns of all, as nulls."""
    found = [next((column for column in KINDS if values.get(column) is not None), "") for values in records.values]
    kinds = set(found) - {""}
    if len(kinds) <= 1:
        yield next((column for column in KINDS if column in records.values[0]), ""), records
        return
    start = 0
    for key, same in groupby(found):
        stop = start + len(list(same))
        yield key, _without_foreign(records[start:stop], key)
        start = stop


def _without_foreign(records: Records, key: str) -> Records:
    """Leave out the columns that none of some records has a value in, and that are not of their kind."""
    own = {field.name for field in fields(record_kinds()[KINDS[key][1]])} if key else set()
    names = [name for name in records.values[0] if name in own or any(row[name] is not None for row in records.values)]
    return Records(records.source, records.lines, [{name: row[name] for name in names} for row in records.values])


def _draw(page: Page, picture: str, parts: Sequence[Records], by: Sequence[str] | None) -> None:
    def draw() -> None:
        panels = import_module(f"mltools.drawing.{picture}").panels(iter(parts), Asked(by))
        more = f"{MOST_PANELS} of {len(panels)} panels; mltools plot {picture} draws all" * (len(panels) > MOST_PANELS)
        page.picture(picture, draw_svg(panels[:MOST_PANELS]), more)

    _try(page, picture, draw)


def _weigh(page: Page, parts: Sequence[Records], by: Sequence[str] | None) -> None:
    page.table([as_row(found) for found in mcog(iter(parts), by)], "Centres of gravity")


def _try(page: Page, what: str, make: Callable[[], None]) -> None:
    """Make a part of the page; where records do not give it, say why instead."""
    try:
        make()
    except MltoolsError as error:
        page.lacks(what, str(error))


class PageSink(TextSink):
    """Takes the page: for stdout, or a file that appears whole."""

    def __init__(self, run: Run) -> None:
        """Write where the run's -o says."""
        super().__init__(run)
        self._run, self._out = run, run.get("out")

    def write(self, page: str) -> None:
        """Write the page."""
        self.n += 1
        if to_stdout(self._out):
            write_stdout(page.encode())
            return
        with atomic_file(self._out, replace=self._run.force) as temporary:
            temporary.write_text(page, encoding="utf-8")


sink = PageSink


def in_python(pages: list[Any]) -> str:
    """Give the page that a Python call made; nothing of one that is in its file."""
    return "".join(pages)
