"""Layer scores of window or layer records, as `mcog` makes them: bars, or lines of one panel (Figures 5, 18, 21)."""

from collections.abc import Iterable, Sequence

from mltools.analysis.carried import Carried
from mltools.analysis.centre_of_gravity import centre_of_gravity, score_spread
from mltools.analysis.layer_scores import LayerScores
from mltools.drawing.grouped import Asked, marked, overlaid, read_groups, title, validity, without
from mltools.drawing.panels import Bars, Line, Lines, Panel
from mltools.io.groups import Group
from mltools.io.records import Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make bars a group; with `overlay`, groups that differ only in it become lines of one panel.

    Where runs are averaged, the spread is the sample standard deviation of their scores.

    Raises:
        RowsError: as in `mcog`.
        UsageError: a group without the column `overlay`.
    """
    groups = read_groups(records, asked)
    name = asked.values[0] if len(asked.values) == 1 else "score"
    if asked.overlay is None:
        return [_bars(group, name) for group in groups]
    lines: dict[Group, list[tuple[Line, Carried]]] = {}
    for group in groups:
        line = _line(marked(overlaid(group.key, asked.overlay), group.carried), group)
        lines.setdefault(without(group.key, asked.overlay), []).append((line, group.carried))
    return [_together(key, name, *zip(*its, strict=True)) for key, its in lines.items()]


def _bars(group: LayerScores, name: str) -> Bars:
    scores = group.scores()
    said = {"key": group.key, **validity(group.carried)}
    return Bars(title(group.key), name, _numbers(scores), scores, _centre(scores), score_spread(group), **said)


def _line(name: str, group: LayerScores) -> Line:
    scores, spread = group.scores(), score_spread(group)
    if spread is None:
        return Line(name, list(scores))
    both = list(zip(scores, spread, strict=True))
    return Line(name, list(scores), [score - sd for score, sd in both], [score + sd for score, sd in both])


def _together(key: Group, name: str, lines: Sequence[Line], carried: Sequence[Carried]) -> Lines:
    numbers = _numbers(max((line.values for line in lines), key=len))
    band = "± SD" if any(line.low for line in lines) else ""
    return Lines(title(key), name, numbers, list(lines), band=band, key=key, **validity(Carried().join(carried)))


def _numbers(values: Sequence[object]) -> list[int]:
    return list(range(1, len(values) + 1))


def _centre(scores: Sequence[float]) -> float | None:
    try:
        return centre_of_gravity(scores)
    except ValueError:  # negative scores: the bars alone say so
        return None
