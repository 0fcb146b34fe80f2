"""Which rows get a wrong label, and which one: by a keyed hash of (seed, id), or as the released code drew."""

import random
from collections.abc import Sequence
from decimal import Decimal
from math import floor

import numpy as np
from numpy.typing import NDArray

from mltools.commands.perturb import Settings
from mltools.commands.perturb.transition import Transition
from mltools.hashing import keyed_hashes
from mltools.io.columns import Label, RowId

Draw = dict[int, Label]
"""New labels of noisy rows, by position."""
ROWS, LABELS = "perturb rows", "perturb labels"


def _positions(labels: Sequence[Label | None], classes: Sequence[Label]) -> dict[Label, NDArray[np.int64]]:
    """Give each class's rows."""
    code = {label: i for i, label in enumerate((*classes, None))}
    codes = np.fromiter(map(code.__getitem__, labels), np.int64, len(labels))
    return {label: np.flatnonzero(codes == code[label]) for label in classes}


def draw_hash(
    ids: Sequence[RowId], labels: Sequence[Label | None], classes: Sequence[Label], settings: Settings
) -> Draw:
    """Change, in each class, the rows whose hash ranks lowest; another hash picks the label."""
    ranks = keyed_hashes(ids, ROWS, settings.seed)
    draw: Draw = {}
    for label, members in _positions(labels, classes).items():
        n = floor(Decimal(str(settings.rate)) * len(members))
        chosen = members[_lowest(ranks[members], n)].tolist()
        choices = keyed_hashes([ids[index] for index in chosen], LABELS, settings.seed).tolist()
        others = [c for c in classes if c != label]
        draw.update((index, others[choice % len(others)]) for index, choice in zip(chosen, choices, strict=True))
    return draw


def draw_rates(ids: Sequence[RowId], labels: Sequence[Label | None], rates: Transition, seed: int) -> Draw:
    """Change floor(rate x size) rows of each class to each label: those that rank lowest, dealt out by another hash."""
    ranks = keyed_hashes(ids, ROWS, seed)
    draw: Draw = {}
    for label, members in _positions(labels, [*rates]).items():
        news = [to for to in sorted(rates[label]) for _ in range(floor(rates[label][to] * len(members)))]
        chosen = members[_lowest(ranks[members], len(news))]
        dealt = chosen[keyed_hashes([ids[index] for index in chosen], LABELS, seed).argsort(kind="stable")]
        draw.update(zip(dealt.tolist(), news, strict=True))
    return draw


def _lowest(ranks: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
    """Give the positions of the n lowest numbers; of equal ones those that stand first."""
    if not n:
        return np.empty(0, np.int64)
    lowest = np.flatnonzero(ranks <= np.partition(ranks, n - 1)[n - 1])
    return lowest[ranks[lowest].argsort(kind="stable")[:n]]


def draw_python(
    ids: Sequence[RowId], labels: Sequence[Label | None], classes: Sequence[Label], settings: Settings
) -> Draw:
    """Draw as the released code does: Python's generator, class by class, then labels in row order."""
    generator = random.Random(settings.seed)
    if settings.split_from is not None:
        generator.shuffle(list(range(settings.split_from)))
    chosen: set[int] = set()
    for members in _positions(labels, classes).values():
        positions = members.tolist()
        generator.shuffle(positions)
        chosen.update(positions[: int(settings.rate * len(positions))])
    return {index: generator.choice([c for c in classes if c != labels[index]]) for index in sorted(chosen)}
