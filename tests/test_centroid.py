"""centroid: conformance with the released code, laws of projections, events, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from conftest import CONFORMANCE, Cli
from mltools.commands.centroid import CrossingName as Crossing
from mltools.commands.centroid.projections import STATISTICS, statistics
from mltools.commands.centroid.work import centroid, crossing, events, initiation
from mltools.io.kinds import CentroidRecord, EventRecord
from mltools.io.source import Source
from mltools.io.states import open_states

Floats = NDArray[np.float64]


def save_states(path: Path, hidden: Floats, label: Any, original: Any) -> Path:
    tensors: dict[str, NDArray[Any]] = {
        "hidden_states": np.asarray(hidden, dtype=np.float32),
        "label": np.asarray(label, dtype=np.int64),
        "original_label": np.asarray(original, dtype=np.int64),
    }
    save_file(tensors, path)
    return path


def records_of(path: Path) -> list[CentroidRecord]:
    with open_states(Source(path)) as states:
        return list(centroid(states))


def events_of(path: Path) -> list[EventRecord]:
    with open_states(Source(path)) as states:
        return list(events(states))


def random_rows(seed: int, n: int = 90, classes: int = 3, layers: int = 4, width: int = 6) -> tuple[Floats, Any, Any]:
    """Random states with classes apart, a fifth of the rows noisy."""
    generator = np.random.default_rng(seed)
    original = generator.integers(0, classes, n)
    original[: 3 * classes] = np.repeat(np.arange(classes), 3)
    label = original.copy()
    noisy = np.arange(n) >= 0.8 * n
    label[noisy] = (original[noisy] + generator.integers(1, classes, noisy.sum())) % classes
    middles = generator.normal(size=(classes, width)) * 2
    return middles[original][:, None] + generator.normal(size=(n, layers + 1, width)), label, original


@pytest.mark.parametrize("case", ["bert-questions", "neox-questions"])
def test_conformance(case: str, cli: Cli, tmp_path: Path) -> None:
    """Projections, means and percentiles of the released code for every pair, layer and noisy row."""
    folder = CONFORMANCE / case
    expected = json.loads((folder / "expected.json").read_text())["centroid"]
    per_row = tmp_path / "rows.parquet"
    result = cli("centroid", folder / "noisy", folder / "noisy.jsonl", "--per-row", per_row)
    assert result.code == 0, result.err
    rows = pl.read_parquet(per_row)
    records = {(r["assigned_label"], r["original_label"], r["layer"]): r for r in result.records}
    assert len(records) == 4 * (5 * 4 + 1) and len(expected) == 52
    for pair in expected:
        key = (pair["assigned_label"], pair["original_label"], pair["layer"])
        record = records[key]
        noisy = rows.filter(noisy=True, label=key[0], other_label=key[1], layer=key[2])
        found = {str(row_id): value for row_id, value in noisy.select("id", "projection").iter_rows()}
        assert found == pytest.approx(pair["noisy"], abs=2e-5)
        assert record["noisy_mean"] == pytest.approx(np.mean(list(pair["noisy"].values())), abs=2e-5)
        assert record["n_noisy"] == len(pair["noisy"])
        for group in ("assigned", "original"):
            assert record[f"{group}_mean"] == pytest.approx(pair[f"{group}_clean_mean"], abs=1e-9)
            low_high = [record[f"{group}_p12_5"], record[f"{group}_p87_5"]]
            assert low_high == pytest.approx(pair[f"{group}_clean_p12_5_p87_5"], abs=2e-5)


def golden_curves(seed: int) -> tuple[Floats, Floats, Floats]:
    """Noisy mean, 87.5th percentile of class 1, 12.5th of class 2, by layer, for one of the three golden seeds."""
    golden = json.loads((CONFORMANCE / "golden.json").read_text())["centroid_events"]
    curves = []
    for name, column in (("noisy", "mean"), ("class1", "p87_5"), ("class2", "p12_5")):
        layers, values = np.array(golden[f"layers_{name}"]), np.array(golden[f"dist_{name}"])
        part = slice(seed * len(layers) // 3, (seed + 1) * len(layers) // 3)
        curves.append(statistics(values[part], layers[part], 12)[:, STATISTICS.index(column)])
    return curves[0], curves[1], curves[2]


def test_conformance_events() -> None:
    """Crossing and initiation of the released notebook, mean over its three seeds."""
    golden = json.loads((CONFORMANCE / "golden.json").read_text())
    found = []
    for seed in range(3):
        noisy, high, low = golden_curves(seed)
        found.append((crossing(noisy.tolist(), "last"), initiation(high.tolist(), low.tolist())))
    assert np.mean(np.array(found, dtype=float), axis=0).tolist() == pytest.approx(golden["centroid_events"]["events"])


def test_conformance_last_crossing() -> None:
    golden = json.loads((CONFORMANCE / "golden.json").read_text())["centroid_events_last_crossing"]
    means, high = golden["noisy_means"], golden["class1"]
    assert [crossing(means, "last"), initiation(high, [1 - x for x in high])] == golden["events"]
    assert crossing(means, "first") == 1 and crossing(means, "stable") == 5


@pytest.mark.parametrize(
    ("means", "first", "last", "stable"),
    [
        ([0.9, 0.6, 0.4, 0.2], 3, 3, 3),
        ([0.4, 0.3], 1, 1, 1),
        ([0.9, 0.5, 0.4], 3, None, 3),  # the released rule wants a fall from above 0.5 to below in one layer
        ([0.9, 0.4, 0.6, 0.6], 2, 2, None),
        ([0.9, 0.8], None, None, None),
        ([float("nan"), 0.4], 2, None, 2),
    ],
)
def test_crossings(means: list[float], first: int | None, last: int | None, stable: int | None) -> None:
    ways: tuple[Crossing, ...] = ("first", "last", "stable")
    assert [crossing(means, how) for how in ways] == [first, last, stable]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_statistics_are_numpys(items: list[tuple[int, float]]) -> None:
    groups, values = np.array([g for g, _ in items]), np.array([v for _, v in items])
    found = statistics(values, groups, 6)
    for group in range(6):
        members = values[groups == group]
        if len(members):
            expected = [members.mean(), *np.percentile(members, [12.5, 25, 50, 75, 87.5])]
            assert found[group] == pytest.approx(expected, abs=1e-12)
        else:
            assert np.isnan(found[group]).all()


def reference(hidden: Floats, label: Any, original: Any, layer: int, a: int, b: int) -> dict[str, Floats]:
    """A pair's projections as the paper words them, a pair and a row at a time."""
    x = np.asarray(hidden[:, layer], dtype=np.float32).astype(np.float64)
    clean = label == original
    first, second = x[clean & (label == a)].mean(axis=0), x[clean & (label == b)].mean(axis=0)
    line = second - first
    members = {
        "assigned": clean & (label == a),
        "original": clean & (label == b),
        "noisy": (label == a) & (original == b),
    }
    return {name: np.array([(row - first) @ line / (line @ line) for row in x[keep]]) for name, keep in members.items()}


def test_every_statistic_of_every_pair(tmp_path: Path) -> None:
    hidden, label, original = random_rows(0)
    hidden[..., 0] += 1000  # as the outlier dimensions of real models
    found = records_of(save_states(tmp_path / "s", hidden, label, original))
    pooled: dict[tuple[int, str], list[Floats]] = {}
    for record in found:
        if record.assigned_label is None:
            continue
        pair = int(record.assigned_label), int(record.original_label or 0)
        for name, values in reference(hidden, label, original, record.layer, *pair).items():
            pooled.setdefault((record.layer, name), []).append(values)
            assert getattr(record, f"n_{name}") == len(values)
            expected = [values.mean(), *np.percentile(values, [12.5, 25, 50, 75, 87.5])] if len(values) else [None] * 6
            assert [getattr(record, f"{name}_{column}") for column in STATISTICS] == pytest.approx(expected, abs=1e-6)
    for record in (record for record in found if record.assigned_label is None):
        for name in ("assigned", "original", "noisy"):
            values = np.concatenate(pooled[record.layer, name])
            expected = [values.mean(), *np.percentile(values, [12.5, 25, 50, 75, 87.5])]
            assert [getattr(record, f"{name}_{column}") for column in STATISTICS] == pytest.approx(expected, abs=1e-6)
    assert len(found) == 4 * (3 * 2 + 1)


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_laws(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Centroids project to 0 and 1, pooled original mirrors pooled assigned, moving the space changes nothing."""
    folder = tmp_path_factory.mktemp("laws")
    hidden, label, original = random_rows(seed)
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(6, 6)))
    moved = 3.7 * hidden @ rotation + generator.normal(size=6)
    order = generator.permutation(len(label))
    spaces = {
        "s": (hidden, label, original),
        "moved": (moved, label, original),
        "shuffled": (hidden[order], label[order], original[order]),
    }
    found = {name: records_of(save_states(folder / name, *space)) for name, space in spaces.items()}
    columns = [f"{group}_{name}" for group in ("assigned", "original", "noisy") for name in STATISTICS]
    for record, *others in zip(*found.values(), strict=True):
        assert record.assigned_mean == pytest.approx(0, abs=1e-9)
        assert record.original_mean == pytest.approx(1, abs=1e-9)
        for other in others:
            for column in columns:
                assert getattr(other, column) == pytest.approx(getattr(record, column), abs=2e-5)
        if record.assigned_label is None:
            mirrored = [1 - getattr(record, f"assigned_{name}") for name in ("p87_5", "p75", "p50", "p25", "p12_5")]
            assert [getattr(record, f"original_{name}") for name in STATISTICS[1:]] == pytest.approx(mirrored)


def drifting(layers: int = 4) -> tuple[Floats, Any, Any]:
    """Two classes that move apart layer by layer, and noisy rows that move from the one to the other."""
    label, original = np.repeat([0, 1, 0], 20), np.repeat([0, 1, 1], 20)
    spread = np.tile(np.linspace(-1, 1, 20), 3)
    hidden = np.zeros((60, layers + 1, 2))
    for layer in range(layers + 1):
        place = original * layer - 1.0 * (label != original) * layer * max(0, layer - 1) / (layers - 1)
        hidden[:, layer, 0] = place + spread
    return hidden, label, original


def test_events(cli: Cli, tmp_path: Path) -> None:
    """Noisy rows stand at 1, 2/3, 1/3, 0 of the way; class spread 1.5 fits between the classes from layer 2 on."""
    path = save_states(tmp_path / "s.safetensors", *drifting())
    result = cli("centroid", path, "--events")
    assert result.code == 0, result.err
    found = {(r["assigned_label"], r["event"]): (r["layer"], r["reason"]) for r in result.records}
    assert len(result.records) == 6
    assert found["0", "crossing"] == (3, None) and found["0", "initiation"] == (2, None)
    assert found[None, "crossing"] == (3, None) and found[None, "initiation"] == (2, None)
    assert found["1", "crossing"] == (None, "no noisy rows of this pair") and found["1", "initiation"] == (2, None)


def test_b52_events_that_do_not_happen(tmp_path: Path) -> None:
    hidden, label, original = drifting()
    stay = hidden[:, :1] + original[:, None, None] * np.array([0.5, 0.0])  # one overlapping layer, nobody moves
    found = events_of(save_states(tmp_path / "s", np.repeat(stay, 3, axis=1), label, original))
    assert [(e.event, e.layer, e.reason) for e in found if e.assigned_label is None] == [
        ("crossing", None, "the noisy mean does not cross 0.5"),
        ("initiation", None, "the classes overlap at the last layer"),
    ]


def test_pairs_without_numbers(cli: Cli, tmp_path: Path) -> None:
    """Too few clean rows, no noisy rows, or centroids that coincide: null, and why; the others stay as they are."""
    hidden, label, original = random_rows(1)
    extra = np.append(label, [3, 0]), np.append(original, [3, 3])  # class 3: one clean row, and one noisy from it
    states = np.concatenate([hidden, hidden[:2]])
    plain = records_of(save_states(tmp_path / "plain", hidden, label, original))
    result = cli("centroid", save_states(tmp_path / "s", states, *extra))
    assert result.code == 0, result.err
    by_pair = {(r["layer"], r["assigned_label"], r["original_label"]): r for r in result.records}
    odd = by_pair[1, "0", "3"]
    assert odd["reason"] == "3 has 1 clean rows; a centroid needs 2"
    assert odd["n_noisy"] == 1 and all(odd[f"{g}_mean"] is None for g in ("assigned", "original", "noisy"))
    for record in plain:
        same = by_pair[record.layer, record.assigned_label, record.original_label]
        assert same["noisy_mean"] == pytest.approx(record.noisy_mean, abs=1e-9)
    enough = np.append(label, [3, 3, 0]), np.append(original, [3, 3, 3])
    found = records_of(save_states(tmp_path / "two", np.concatenate([hidden, hidden[:3]]), *enough))
    assert all(r.noisy_mean is not None for r in found if (r.assigned_label, r.original_label) == ("0", "3"))
    hidden[:, 2] = 1.0
    records = records_of(save_states(tmp_path / "flat", hidden, label, original))
    assert {r.reason for r in records if r.layer == 2} == {
        "the two centroids coincide",
        "no pair of classes has noisy rows and two centroids",
    }
    assert {r.noisy_mean for r in records if r.layer == 2} == {None}
    crossings = [e for e in events_of(tmp_path / "flat") if e.event == "crossing"]
    assert all(e.layer is not None or e.reason for e in crossings)


def test_refused(cli: Cli, tmp_path: Path) -> None:
    hidden, label, original = random_rows(2)
    noisy = label != original
    for rows, message in (
        ((hidden, original, original), "no noisy rows; name the column of right labels"),
        ((hidden[noisy], label[noisy], original[noisy]), "every row is noisy"),
        ((hidden, 0 * label, 0 * label), "one class only (0); centroids need two"),
    ):
        result = cli("centroid", save_states(tmp_path / "s", *rows))
        assert result.code == 3 and message in result.err and result.out == ""
    lost = {"hidden_states": hidden.astype(np.float32), "label": label, "noisy": noisy}
    save_file(lost, tmp_path / "lost")
    result = cli("centroid", tmp_path / "lost")
    assert result.code == 3 and f"{noisy.sum()} noisy rows have no other original_label" in result.err
    assert cli("centroid", tmp_path / "s", "--crossing", "sometimes").code == 2
    assert cli("centroid", tmp_path / "s", "--per-row", tmp_path / "rows.csv").code == 2


def test_per_row(cli: Cli, tmp_path: Path) -> None:
    """A clean row stands on the lines to every other class, a noisy one on the line it came along."""
    hidden, label, original = random_rows(3)
    path = save_states(tmp_path / "s", hidden, label, original)
    assert cli("centroid", path, "--per-row", tmp_path / "rows.parquet", "--events").code == 0
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert len(rows) == 4 * ((label == original).sum() * 2 + (label != original).sum())
    for a, b in ((0, 1), (2, 0)):
        expected = reference(hidden, label, original, 3, a, b)
        chosen = rows.filter(layer=3, label=str(a), other_label=str(b))
        for noisy, group in ((False, "assigned"), (True, "noisy")):
            assert chosen.filter(noisy=noisy)["projection"].to_list() == pytest.approx(expected[group], abs=1e-6)
    assert "centroid" in pl.read_parquet_metadata(tmp_path / "rows.parquet")["mltools"]


def test_swapped_bottom_keeps_noisy_rows_where_they_were(cli: Cli, tmp_path: Path) -> None:
    """Figure 11: with the bottom layers from the clean model, noisy rows do not move to the class they were given."""
    folder = CONFORMANCE / "neox-questions"
    mixed = tmp_path / "mixed"
    rows = folder / "noisy.jsonl"
    assert cli("swap", folder / "noisy", folder / "clean", rows, "--layers", "1-2", "--write", mixed).code == 0
    ends = {}
    for name, checkpoint in (("noisy", folder / "noisy"), ("mixed", mixed)):
        found = cli("centroid", checkpoint, rows).records
        ends[name] = next(r for r in found if r["layer"] == 4 and r["assigned_label"] is None)["noisy_mean"]
    assert ends["noisy"] < 0.1 < 0.5 < ends["mixed"]
