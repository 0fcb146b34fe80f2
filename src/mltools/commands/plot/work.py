"""Turn records into panels: the paper's figures without any drawing. Needs no torch, no matplotlib.

`plot_text` draws panels as text, `plot_figure` as pictures. Layers count from 1 in every panel; 0 is the embeddings.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from mltools.analysis.carried import Carried
from mltools.analysis.layer_scores import centre_of_gravity
from mltools.analysis.measured import Measured, measure
from mltools.commands.plot.figure import check_matplotlib, draw_figure
from mltools.commands.plot.panels import Bars, Grid, Line, Lines, Marks, Panel
from mltools.commands.plot.text import TextStyle, draw_text
from mltools.console import printable
from mltools.errors import RowsError, UsageError
from mltools.io.groups import Cells, Group, Groups
from mltools.io.records import Record, Records
from mltools.io.stdout import write_stdout
from mltools.layers import window_means
from mltools.run import Run
from mltools.sinks import stdout_colors, to_stdout

Point = tuple[float, float, float]
"""A value and the ends of the band around it."""


def heatmap(
    records: Iterable[Records], by: Sequence[str] | None = None, value: str = "memorisation_error"
) -> list[Panel]:
    """Make the window matrix of each group of window records (Figure 3).

    Row w, column l: the mean of `value` over the windows of width w that hold layer l.

    Args:
        records: window records, in any order.
        by: as in `mcog`.
        value: the column to show.

    Raises:
        RowsError: other records, or windows that are missing or come twice.
    """
    return [_window_matrix(group, value) for group in measure(records, by, value)]


def _window_matrix(group: Measured, value: str) -> Grid:
    group.first.get("start", int)
    try:
        means = window_means(group.values(), group.n_layers)
    except UsageError as error:
        raise RowsError(f"{group.first.place}: {error}") from None
    widths = sorted({width for width, _ in means})
    numbers = range(1, group.n_layers + 1)
    return Grid(
        title=title(group.key),
        value_name=f"mean {value.replace('_', ' ')}{' scaled' * group.was_scaled}",
        row_axis="width",
        rows=[str(width) for width in widths],
        column_axis="layer",
        columns=[str(layer) for layer in numbers],
        cells=[[means[width, layer] for layer in numbers] for width in widths],
        **_validity(group.carried),
    )


def _validity(carried: Carried) -> dict[str, Any]:
    return {"valid": carried.valid, "valid_reason": carried.valid_reason}


def layers(records: Iterable[Records], by: Sequence[str] | None = None, overlay: str | None = None) -> list[Panel]:
    """Draw the layer scores of each group of window or layer records, scored as in `mcog` (Figure 5).

    Args:
        records: window or layer records of any tool.
        by: as in `mcog`.
        overlay: `tool` or a tag: groups that differ only in it become lines of one panel, instead of a panel
            of bars each.

    Raises:
        RowsError: as in `mcog`.
        UsageError: no group has the tag `overlay`.
    """
    groups = measure(records, by)
    if overlay is None:
        return list(map(_bars, groups))
    lines: dict[Group, list[tuple[Line, Carried]]] = {}
    for group in groups:
        if overlay not in group.tags:
            raise UsageError(f'--overlay {overlay}: no such tag in "{title(group.key)}"')
        rest = tuple(item for item in group.key if item[0] != overlay)
        name = _row_mark(printable(str(group.tags[overlay])), group.carried)
        lines.setdefault(rest, []).append((Line(name, list(group.scores())), group.carried))
    return [_overlaid(key, *zip(*its, strict=True)) for key, its in lines.items()]


def _bars(group: Measured) -> Bars:
    values = group.scores()
    return Bars(title(group.key), "score", _numbers(values), values, _centre(values), **_validity(group.carried))


def _overlaid(key: Group, lines: Sequence[Line], carried: Sequence[Carried]) -> Lines:
    numbers = _numbers(max((line.values for line in lines), key=len))
    return Lines(title(key), "score", numbers, list(lines), **_validity(Carried().join(carried)))


def _row_mark(name: str, carried: Carried) -> str:
    """Mark the name of what is not valid, among others that are."""
    return f"{name} (invalid)" if carried.valid is False else name


def _numbers(values: Sequence[object]) -> list[int]:
    return list(range(1, len(values) + 1))


def _centre(scores: Sequence[float]) -> float | None:
    try:
        return centre_of_gravity(scores)
    except ValueError:  # negative scores: the bars alone say so
        return None


def probe(records: Iterable[Records], by: Sequence[str] | None = None) -> list[Panel]:
    """Draw the F1 of probes layer by layer, a line a target and set of rows (Figures 5 and 14); bands are ± one SD.

    Args:
        records: of `probe`.
        by: the columns that make panels; runs in one panel are averaged. Default: all tags.

    Raises:
        RowsError: other records, or without `by` a target and layer that comes twice.
    """
    groups = _grouped(records, by, merged="target").items()
    return [_curves(key, members, _probe_points, "F1", averaged=by is not None) for key, members in groups]


def _probe_points(record: Record) -> Iterator[tuple[str, Point | None]]:
    target = record.get("target", str)
    for column, rows in (("f1", "all"), ("f1_noisy", "noisy"), ("f1_clean", "clean")):
        if (target == "noise") != (rows == "all") or (target == "label" and rows == "clean"):
            continue
        mean, deviation = record.get(column, (float, int, type(None))), record.values.get(f"{column}_sd") or 0.0
        band = (max(mean - deviation, 0.0), min(mean + deviation, 1.0)) if mean is not None else None
        yield printable(f"{target}, {rows} rows"), band and (mean, *band)


def centroid(records: Iterable[Records], by: Sequence[str] | None = None) -> list[Panel]:
    """Draw where clean and noisy rows lie between two classes, layer by layer (Figures 10, 11 and 15).

    Lines are means, bands the central 75 %. All class pairs together, unless `by` names `assigned_label`.

    Args:
        records: of `centroid`.
        by: as in `probe`.

    Raises:
        RowsError: other records, or without `by` a layer that comes twice.
    """
    paired = "assigned_label" in (by or ())
    kept = (block.where("assigned_label", lambda label: (label is not None) == paired) for block in _parts(records))
    groups = _grouped(kept, by).items()
    name = "projection (0: assigned class, 1: original)"
    return [_curves(key, members, _centroid_points, name, averaged=by is not None, mark=0.5) for key, members in groups]


def _centroid_points(record: Record) -> Iterator[tuple[str, Point | None]]:
    for group, name in (("assigned", "assigned class"), ("original", "original class"), ("noisy", "noisy rows")):
        columns = (f"{group}_mean", f"{group}_p12_5", f"{group}_p87_5")
        mean, low, high = (record.get(column, (float, int, type(None))) for column in columns)
        yield name, None if mean is None else (mean, low, high)


def _curves(
    key: Group,
    members: Sequence[Record],
    points: Callable[[Record], Iterator[tuple[str, Point | None]]],
    value_name: str,
    *,
    averaged: bool,
    mark: float | None = None,
) -> Lines:
    """Collect the points of some records into lines, averaging those of the same line and layer."""
    curves: dict[str, Cells[tuple[int, int]]] = {}
    for record in members:
        layer = record.get("layer", int)
        for name, point in points(record):
            if point is None:
                continue
            again = curves.setdefault(name, Cells()).enter([(layer, i) for i in range(3)], point, repeats=averaged)
            if again is not None:
                raise RowsError(
                    f"{record.place}: layer {layer} of {name} again in the same group; tag runs apart or average --by"
                )
    numbers = sorted({record.values["layer"] for record in members})
    lines = []
    for name, cells in curves.items():
        means = cells.means()
        values, low, high = ([means.get((layer, i)) for layer in numbers] for i in range(3))
        lines.append(Line(name, values, low, high))
    return Lines(title(key), value_name, numbers, lines, mark, **_validity(_carried(members)))


def events(records: Iterable[Records], by: Sequence[str] | None = None) -> list[Panel]:
    """Mark the layers of events and centres of gravity, a row a group (Figures 6, 7, 12, 17, 19 and 20).

    Args:
        records: of `centroid --events`, `probe --events` and `mcog`; those of one pair of classes do not count.
        by: the columns that make rows; the layers of a row are averaged. Default: all tags.

    Raises:
        RowsError: other records, or without `by` an event that comes twice.
    """
    kept = (block.where("assigned_label", lambda label: label is None) for block in _parts(records))
    groups = _grouped(kept, by)
    rows: dict[str, dict[str, list[float]]] = {}
    carried: dict[str, Carried] = {}
    for key, members in groups.items():
        name = _row_name(key)
        _collect_events(members, rows.setdefault(name, {}), averaged=by is not None)
        carried.setdefault(name, Carried()).join([_carried(members)])
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    layers = [[_mean(row.get(name)) for name in series] for row in rows.values()]
    lowest = min((layer for row in layers for layer in row if layer is not None), default=1)
    deepest = max(record.get("layers", int) for members in groups.values() for record in members)
    return [
        Marks(
            title="",
            axis=list(range(0 if lowest < 1 else 1, deepest + 1)),
            rows=[_row_mark(name, carried[name]) for name in rows],
            series=series,
            layers=layers,
            spread=[[_deviation(row.get(name)) for name in series] for row in rows.values()],
            **_validity(Carried().join(carried.values())),
        )
    ]


def _collect_events(records: Sequence[Record], row: dict[str, list[float]], *, averaged: bool) -> None:
    """Add the layers of some events to a row, by name; undefined ones only name the event."""
    for record in records:
        name, layer = _event(record)
        if name in row and not averaged:
            raise RowsError(f"{record.place}: {name} again in the same group; tag runs apart or average --by")
        row.setdefault(name, []).extend([] if layer is None else [layer])


def _row_name(key: Group) -> str:
    tags = tuple(item for item in key if item[0] not in ("tool", "part", "target"))
    return printable(str(tags[0][1])) if len(tags) == 1 else title(tags)


def _event(record: Record) -> tuple[str, float | None]:
    if record.values.get("event") is not None:
        return printable(record.get("event", str)), record.get("layer", (int, float, type(None)))
    return printable(f"{record.get('tool', str)} M-CoG"), record.get("m_cog", (int, float, type(None)))


def _mean(numbers: Sequence[float] | None) -> float | None:
    return fmean(numbers) if numbers else None


def _deviation(numbers: Sequence[float] | None) -> float | None:
    return stdev(numbers) if numbers and len(numbers) > 1 else None


def matrix(records: Iterable[Records], by: Sequence[str] | None = None) -> list[Panel]:
    """Make the matrix of correlations of each table (Figures 8 and 9).

    Args:
        records: of `correlate`.
        by: the columns that make panels. Default: all tags.

    Raises:
        RowsError: other records, or a pair that comes twice.
    """
    panels: list[Panel] = []
    for key, members in _grouped(records, by).items():
        tables: dict[tuple[str, str], list[Record]] = {}
        for record in members:
            tables.setdefault((record.get("method", str), record.get("value", str)), []).append(record)
        for (method, value), table in tables.items():
            tags = tuple(item for item in key if item[0] != "tool")
            panels.append(_correlations(printable(f"{value} {title(tags)}".strip()), f"{method} correlation", table))
    return panels


def _correlations(name: str, value_name: str, records: Sequence[Record]) -> Grid:
    pairs: dict[tuple[str, str], float | None] = {}
    for record in records:
        a, b = record.get("a", str), record.get("b", str)
        if (a, b) in pairs:
            raise RowsError(f"{record.place}: {a} and {b} again in the same table; tag tables apart or choose --by")
        pairs[a, b] = pairs[b, a] = record.get("correlation", (float, int, type(None)))
    names = list(dict.fromkeys(a for pair in pairs for a in pair))
    cells = [[1.0 if a == b else pairs.get((a, b)) for b in names] for a in names]
    shown = list(map(printable, names))
    carried = _validity(_carried(records))
    return Grid(name, printable(value_name), "", shown, "", shown, cells, low=-1.0, unit="signed", **carried)


def _carried(records: Iterable[Record]) -> Carried:
    carried = Carried()
    for record in records:
        carried.read(Records(record.source, [record.line], [record.values]))
    return carried


@dataclass(eq=False)
class _Members:
    key: Group
    records: list[Record]


def _grouped(
    records: Iterable[Records], by: Sequence[str] | None, merged: str | None = None
) -> dict[Group, list[Record]]:
    """Collect the records of each group; groups that differ only in the column `merged` are one."""
    groups = Groups(by, lambda key, _: _Members(key, []))
    for part in _parts(records):
        for group, run in groups.runs(part):
            group.records.extend(part[run])
    collected: dict[Group, list[Record]] = {}
    for group in groups:
        collected.setdefault(tuple(item for item in group.key if item[0] != merged), []).extend(group.records)
    if not collected:
        raise RowsError("no records came in")
    return collected


def _parts(records: Iterable[Records]) -> Iterator[Records]:
    """Split blocks of records where their columns change."""
    return (part for block in records for part in block.by_columns())


def title(key: Group) -> str:
    """Name a group: its tool, then its tags; `part=all` goes without saying."""
    tags: dict[str, Any] = {name: value for name, value in key if (name, value) != ("part", "all")}
    tool = str(tags.pop("tool", ""))
    return printable(" ".join([tool, *(f"{name}={value}" for name, value in tags.items())]).strip())


def run(run: Run) -> Iterator[Panel]:
    """Make the panels of the records given."""
    yield from run.carried(_panels(run), "panels")


def _panels(run: Run) -> Iterator[Panel]:
    settings, records = run.settings, run.records()
    if settings.kind == "heatmap":
        yield from heatmap(records, settings.by, settings.value or "memorisation_error")
    elif settings.kind == "layers":
        yield from layers(records, settings.by, settings.overlay)
    else:
        draw = {"probe": probe, "centroid": centroid, "events": events, "matrix": matrix}
        yield from draw[settings.kind](records, settings.by)


class PanelSink:
    """Takes panels, and draws them all together: as text on stdout, or as a picture."""

    def __init__(self, run: Run) -> None:
        """Draw where the run's -o says.

        Raises:
            UsageError, NotFoundError: a picture of an unknown format, or without matplotlib.
        """
        self._run, self._out = run, run.get("out")
        self._panels: list[Panel] = []
        self.n = 0
        if not to_stdout(self._out):
            check_matplotlib()

    def __enter__(self) -> "PanelSink":
        return self

    def write(self, panel: Panel) -> None:
        """Keep a panel."""
        self._panels.append(panel)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        if not to_stdout(self._out):
            draw_figure(self._panels, self._out, self._run.provenance, replace=self._run.force)
            self._run.report(panels=len(self._panels))
            return
        encoding = sys.stdout.encoding or "ascii"
        style = TextStyle(stdout_colors(), ascii_only="utf" not in encoding.lower())
        write_stdout(draw_text(self._panels, style).encode(encoding, "replace"))


sink = PanelSink


def in_python(panels: list[Panel]) -> str:
    """Give what a Python call drew, as text; nothing of a picture, which is in its file."""
    return draw_text(panels, TextStyle(0, ascii_only=False)) if panels else ""
