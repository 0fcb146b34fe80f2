"""Judge layer scores where the answer is known: accuracy@k and reciprocal rank (§3.2, Figure 2). Needs no torch.

Layers of equal score are treated alike: a measure is its mean over all orders in which they could stand.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

from mltools.analysis.additive import solve_additive
from mltools.analysis.carried import Carried
from mltools.analysis.centre_of_gravity import centre_of_gravity
from mltools.analysis.layer_scores import LayerScores
from mltools.analysis.score_records import read_layer_scores_each
from mltools.analysis.statistics import wilson
from mltools.commands.score import Settings
from mltools.errors import RowsError, UsageError
from mltools.io.kinds import ScoreRecord
from mltools.io.records import Records
from mltools.layers import parse_layers
from mltools.run import Run


@dataclass
class _Judged:
    """What was found for the groups that one record sums up; `accuracy` and `chance` by k."""

    accuracy: dict[int, list[float]] = field(default_factory=dict)
    chance: list[float] = field(default_factory=list)
    rank: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    centre_error: list[float] = field(default_factory=list)
    chance_rank: list[float] = field(default_factory=list)
    carried: Carried = field(default_factory=Carried)


def score(records: Iterable[Records], settings: Settings) -> Iterator[tuple[ScoreRecord, dict[str, Any]]]:
    """Judge each group of window or layer records (its tool and tags), and sum up over groups.

    Args:
        records: blocks of records of any tools; layer scores are made as in `mcog`.
        settings: the known layers (a layer list, or the column that holds one), each k, and the columns to sum up
            by, besides `tool`.

    Yields:
        (record, columns summed up by) for each k, tools in order of appearance.

    Raises:
        RowsError: as `mcog`; a column that is missing; known layers outside 1..L; fewer than k layers.
    """
    totals: dict[tuple[tuple[str, Any], ...], _Judged] = {}
    named = ("tool", *settings.per, *(["value"] if settings.value else []))
    for group in read_layer_scores_each(records, values=settings.value):
        columns = {name: _tag(group, name) for name in named}
        total = totals.setdefault(tuple(columns.items()), _Judged())
        _judge(group, settings, total)
    for key, total in totals.items():
        tags = dict(key)
        tool = str(tags.pop("tool"))
        for k in settings.k:
            yield _record(tool, k, total), tags


def _judge(group: LayerScores, settings: Settings, total: _Judged) -> None:
    truth = _known_layers(group, settings.truth)
    scores, n_layers = _solved(group) if settings.solved else group.scores(), group.n_layers
    for k in settings.k:
        if k > n_layers:
            raise RowsError(f"{group.first.place}: {n_layers} layers, of which {k} cannot be the best; lower -k")
        total.accuracy.setdefault(k, []).append(accuracy_at(scores, truth, k))
    total.carried.join([group.carried])
    total.chance.append(len(truth) / n_layers)
    total.rank.append(reciprocal_rank(scores, truth))
    total.chance_rank.append(reciprocal_rank([0.0] * n_layers, truth))
    weights = [max(score, 0.0) for score in scores]
    centre = centre_of_gravity(weights)
    if centre is not None:
        total.share.append(sum(weights[layer - 1] for layer in truth) / sum(weights))
        total.centre_error.append(abs(centre - sum(truth) / len(truth)))


def _solved(group: LayerScores) -> Sequence[float]:
    found = solve_additive(group.values(), group.n_layers) if group.kind == "window" else None
    if found is None or found.weights is None:
        why = found.reason if found is not None else "layer records hold no windows; leave out --solved"
        raise RowsError(f"{group.first.place}: {why}")
    return found.weights


def _tag(group: LayerScores, name: str) -> Any:
    if name not in group.tags:
        found = ", ".join(group.tags)
        raise RowsError(f'{group.first.place}: no tag "{name}" (found: {found})')
    return group.tags[name]


def _known_layers(group: LayerScores, truth: str) -> tuple[int, ...]:
    text = truth if truth[:1].isdigit() else str(_tag(group, truth))
    try:
        return parse_layers(text, group.n_layers)
    except UsageError as error:
        raise RowsError(f"{group.first.place}: known layers: {error}") from None


def _record(tool: str, k: int, total: _Judged) -> ScoreRecord:
    n = len(total.rank)
    accuracy = sum(total.accuracy[k]) / n
    low, high = wilson(accuracy, n)
    return ScoreRecord(
        tool=tool,
        k=k,
        n_groups=n,
        accuracy=accuracy,
        ci_low=low,
        ci_high=high,
        chance=sum(total.chance) / n,
        mean_reciprocal_rank=sum(total.rank) / n,
        chance_reciprocal_rank=sum(total.chance_rank) / n,
        share=_mean(total.share),
        centre_error=_mean(total.centre_error),
        valid=total.carried.valid,
        valid_reason=total.carried.valid_reason,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def accuracy_at(scores: Sequence[float], truth: Sequence[int], k: int) -> float:
    """Give the share of the k best layers that are in `truth`, the mean over orders of equal layers.

    Args:
        scores: of layers 1..L; larger is better.
        truth: the known layers, each once.
        k: 1..L.
    """
    hits, left = 0.0, k
    for size, known in _ties(scores, truth):
        taken = min(size, left)
        hits += taken * known / size
        left -= taken
    return hits / k


def reciprocal_rank(scores: Sequence[float], truth: Sequence[int]) -> float:
    """Give 1 / rank of the best layer in `truth`, the mean over orders of equal layers; else as `accuracy_at`."""
    before = 0
    for size, known in _ties(scores, truth):
        if known:
            # The first of the known ones stands at `place` of its tie where all others stand behind it.
            orders = ((place, comb(size - place, known - 1)) for place in range(1, size - known + 2))
            return sum(ways / (before + place) for place, ways in orders) / comb(size, known)
        before += size
    return 0.0


def _ties(scores: Sequence[float], truth: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield, from the best score down, how many layers have it and how many of those are known."""
    rounded = [float(f"{score:.12g}") for score in scores]  # sums of the same numbers in another order are equal
    for value in sorted(set(rounded), reverse=True):
        layers = [layer for layer, score in enumerate(rounded, start=1) if score == value]
        yield len(layers), len(set(layers) & set(truth))


def run(run: Run) -> Iterator[tuple[ScoreRecord, dict[str, Any]]]:
    """Judge the records given."""
    yield from run.carried(score(run.records(), run.settings))
