"""docs/paper.md: every figure and table of the paper is made by its commands, one number of each worked out apart.

Records are small and made here. The oracle below borrows nothing from the code: plain sums, and ranks by counting.
"""

import json
import random
import re
import shlex
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from conftest import Cli, write_jsonl

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
FIGURES = {f"Figure {n}" for n in range(1, 22)} | {f"Table {n}" for n in range(1, 5)} | {"Footnote 6"}
MODELS, TASKS, L, DEEP = ("BERT", "OPT", "Pythia"), ("wic", "rte", "sst2", "trec"), 4, 6
VARIANTS = [
    f"score_{norm}_{kind}{over}"
    for norm in ("l1", "l2")
    for kind in ("noisy", "difference")
    for over in ("", "_over_frozen")
]
Rows = list[dict[str, Any]]


# -- records -------------------------------------------------------------------------------------------
def sweep(tool: str, rng: random.Random, n_layers: int = L, **tags: Any) -> Rows:
    return [
        {
            **{"tool": tool, "start": a, "end": b, "width": b - a + 1, "layers": n_layers, "part": "all"},
            **{"memorisation_error": rng.uniform(0.1, 1) * (b - a + 1) / n_layers, "memorisation_error_scaled": None},
            **{"clean_accuracy": rng.uniform(0.97, 1), "valid": True, "valid_reason": None, **tags},
        }
        for a in range(1, n_layers + 1)
        for b in range(a, n_layers + 1)
    ]


def of_layers(tool: str, rng: random.Random, **tags: Any) -> Rows:
    columns = ["score", *(VARIANTS if tool == "grads" else [])]
    rows = [
        {"tool": tool, "layer": i, "layers": L, **{name: rng.random() for name in columns}} for i in range(1, L + 1)
    ]
    kind = (
        {"part": "all", "objective": "loss", "norm": "l1"} if tool == "grads" else {"target": "noise", "probe": "mlp"}
    )
    f1 = {"f1": 0.0, "f1_sd": 0.02, "f1_noisy": 0.5, "f1_noisy_sd": 0.01, "f1_clean": None, "f1_clean_sd": None}
    return [
        {**row, **kind, **({**f1, "f1": rng.random(), "f1_noisy": rng.random()} if tool == "probe" else {}), **tags}
        for row in rows
    ]


def projections(rng: random.Random, **tags: Any) -> Rows:
    parts = ("mean", "p12_5", "p87_5")
    return [
        {
            **{"tool": "centroid", "layer": i, "layers": L, "assigned_label": None, "original_label": None},
            **{f"{name}_{part}": at for name, at in (("assigned", 0.0), ("original", 1.0)) for part in parts},
            **{f"noisy_{part}": rng.random() for part in parts},
            **tags,
        }
        for i in range(1, L + 1)
    ]


def happenings(tool: str, names: Sequence[str], rng: random.Random, n_layers: int = L, **tags: Any) -> Rows:
    row = {"tool": tool, "layers": n_layers, "assigned_label": None, "original_label": None, "reason": None}
    return [{**row, "event": name, "layer": rng.randint(1, n_layers), **tags} for name in names]


def training(rng: random.Random, **tags: Any) -> Rows:
    row = {"tool": "finetune", "epochs": 3, "step": 1, "learning_rate": 1e-5, "loss": 1.0, "attempt": 1}
    return [
        {**row, "epoch": i, "kept": i == 3, "validation_accuracy_normalised": rng.random(), **tags} for i in (1, 2, 3)
    ]


def records() -> dict[str, Rows]:
    """All files of records by name."""
    rng = random.Random(2024)
    files: dict[str, Rows] = {}
    probed = ("memorisation>>generalisation", "90 % F1")
    for model in MODELS:
        for task in TASKS:
            name, tags = f"{model}-{task}", dict[str, Any](model=model, dataset=task)
            for tool in ("swap", "retrain"):
                files[f"{tool}-{name}"] = sweep(tool, rng, **tags)
            for tool in ("grads", "probe"):
                files[f"{tool}-{name}"] = of_layers(tool, rng, **tags)
            for planted in ("1-2", "3-4"):
                known = dict[str, Any](tags, planted=planted)
                for tool in ("swap", "retrain"):
                    files[f"control-{tool}-{name}-{planted}"] = sweep(tool, rng, **known)
                for tool in ("grads", "probe"):
                    files[f"control-{tool}-{name}-{planted}"] = of_layers(tool, rng, **known)
            files[f"centroid-{name}"] = projections(rng, **tags)
            files[f"mixed-{name}"] = [
                row for half in ("bottom", "top") for row in projections(rng, swapped=half, **tags)
            ]
            files[f"events-{name}"] = happenings("centroid", ("crossing", "initiation"), rng, setup="multi", **tags)
            files[f"label-events-{name}"] = happenings("probe", probed, rng, **tags)
            own = {"chance": 0.5, "classes": 2, "n_rows": 9, "n_left_out": 0, "n_splits": 30, "definition": ""}
            score = {"generalisation_score": rng.random(), "noisy_score": None, "clean_score": None}
            files[f"generalisation-{name}"] = [{"tool": "generalise", **score, **own, **tags}]
            files[f"epochs-{name}"] = training(rng, **tags)
            labels = [
                {**row, "target": target, "f1_clean": 0.4}
                for target in ("label", "original_label")
                for row in of_layers("probe", rng, **tags)
            ]
            files[f"label-probe-{name}"] = labels
            files[f"binary-swap-{name}"] = [
                row for kind in ("multi", "binary") for row in sweep("swap", rng, setup=kind, **tags)
            ]
            files[f"binary-events-{name}"] = happenings(
                "centroid", ("crossing", "initiation"), rng, setup="binary", **tags
            )
    for task in TASKS:
        deep = dict[str, Any](model="OPT-1.3B", dataset=task)
        files[f"large-swap-{task}"] = sweep("swap", rng, DEEP, **deep)
        files[f"large-events-{task}"] = happenings(
            "centroid", ("crossing", "initiation"), rng, DEEP, setup="multi", **deep
        )
    files["sst2"] = [{"sentence": f"film {i}", "label": i % 2} for i in range(40)]
    return files


# -- the oracle ----------------------------------------------------------------------------------------
def window_mean(rows: Rows, width: int, layer: int, column: str = "memorisation_error") -> float:
    return fmean(r[column] for r in rows if r["width"] == width and r["start"] <= layer <= r["end"])


def scores(rows: Rows, column: str = "score") -> list[float]:
    rows = sorted(rows, key=lambda row: row.get("layer", 0))
    if "layer" in rows[0]:
        return [row[column] for row in rows]
    n = rows[0]["layers"]
    return [fmean(window_mean(rows, width, layer) for width in range(1, n + 1)) for layer in range(1, n + 1)]


def centre(weights: Sequence[float]) -> float:
    return sum(i * w for i, w in enumerate(weights, start=1)) / sum(weights)


def ranked(numbers: Sequence[float]) -> list[float]:
    return [sum(x < y for x in numbers) + (sum(x == y for x in numbers) + 1) / 2 for y in numbers]


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    a, b = ranked(x), ranked(y)
    a, b = [v - fmean(a) for v in a], [v - fmean(b) for v in b]
    spread: float = (sum(v * v for v in a) * sum(v * v for v in b)) ** 0.5
    return sum(p * q for p, q in zip(a, b, strict=True)) / spread


def best(values: Sequence[float], k: int) -> set[int]:
    return set(sorted(range(1, len(values) + 1), key=lambda i: -values[i - 1])[:k])


def accuracy(values: Sequence[float], planted: str, k: int) -> float:
    low, high = map(int, planted.split("-"))
    return len(best(values, k) & set(range(low, high + 1))) / k


class Answers:
    """What each section's number must be, from the records alone."""

    def __init__(self, files: Mapping[str, Rows]) -> None:
        self.files = files
        self.cells = [(model, task) for model in MODELS for task in TASKS]

    def cog(self, name: str) -> float:
        return centre(scores(self.files[name]))

    def event(self, name: str, event: str = "crossing") -> float:
        return float(next(row["layer"] for row in self.files[name] if row["event"] == event))

    def mean_cog(self, model: str, task: str) -> float:
        return fmean(self.cog(f"{tool}-{model}-{task}") for tool in ("swap", "retrain", "grads", "probe"))

    def control(self, tool: str, column: str, k: int, model: str = "*") -> float:
        found = []
        for name, rows in self.files.items():
            if name.startswith(f"control-{tool}-") and model in ("*", rows[0]["model"]):
                found.append(accuracy(scores(rows, column), rows[0]["planted"], k))
        return fmean(found)

    def over(self, x: Callable[[str, str], float], y: Callable[[str, str], float], *models: str) -> float:
        cells = [(model, task) for model, task in self.cells if not models or model in models]
        return spearman([x(*cell) for cell in cells], [y(*cell) for cell in cells])


def only(rows: Rows, **wanted: Any) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return found


def cell(text: str, line: int, column: int) -> float:
    """A number of a drawing as text; in percent there."""
    return float(re.findall(r"-?\d+", text.splitlines()[line])[column]) / 100


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., Path]) -> Mapping[str, Rows]:
    monkeypatch.chdir(tmp_path)
    files = records()
    for name, rows in files.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    Path("model").symlink_to(tiny("bert"))
    return files


@pytest.mark.parametrize("pictures", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_figure_and_table_is_made_and_holds_its_number(
    cli: Cli, made: Mapping[str, Rows], pictures: bool
) -> None:
    """Without `pictures` they are drawn as text, which is quick; all numbers are compared either way."""
    sections = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.M)[1:]
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    assert set(found) == FIGURES
    for name, text in found.items():
        lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S)).splitlines()
        assert bool(lines) == (name != "Figure 1")
        for line in lines:
            run(cli, line if pictures else re.sub(r" (-o|--width|--font-size|--facet) \S+", "", line))
        for picture in re.findall(r"-o (\S+\.svg)", text):
            assert not pictures or "</svg>" in Path(picture).read_text()
    check(Answers(made), lambda path: [json.loads(line) for line in Path(path).read_text().splitlines()])


def run(cli: Cli, line: str) -> None:
    """Run a command line as a shell would: words, globs, and stdout to a file."""
    command, _, target = line.partition(" > ")
    program, *words = shlex.split(command)
    expanded = [each for word in words for each in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    result = cli(*expanded)
    assert program == "mltools" and result.code == 0, (line, result.err)
    if target:
        Path(target.strip()).write_text(result.out)


def check(answers: Answers, read: Callable[[str], Rows]) -> None:
    """Compare one number of each section."""
    files, cog, event = answers.files, answers.cog, answers.event
    assert len(read("rows.jsonl")) == 40  # Table 1
    # Figure 2: left, middle, right
    assert only(read("score.jsonl"), tool="grads", k=1)["accuracy"] == pytest.approx(
        answers.control("grads", "score", 1)
    )
    own = [rows for name, rows in files.items() if name.startswith("control-swap") and rows[0]["dataset"] == "rte"]
    expected = fmean(accuracy(scores(rows), rows[0]["planted"], 2) for rows in own)
    assert only(read("score-dataset.jsonl"), tool="swap", dataset="rte", k=2)["accuracy"] == pytest.approx(expected)
    expected = answers.control("probe", "score", 1, "OPT")
    assert only(read("score-model.jsonl"), tool="probe", model="OPT", k=1)["accuracy"] == pytest.approx(expected)
    # Figure 3, footnote 6, Figure 4
    rows = files["swap-OPT-rte"]
    assert cell(Path("figure-3.txt").read_text(), 4, 2) == pytest.approx(window_mean(rows, 2, 2), abs=0.005)
    clean = 1 - fmean(row["clean_accuracy"] for row in rows)
    assert only(read("mcog-swap.jsonl"), model="OPT", dataset="rte")["clean_error"] == pytest.approx(clean)
    largest = max(row["memorisation_error"] for row in files["retrain-BERT-wic"] if row["width"] == 1)
    found = only(read("figure-4.jsonl"), tool="retrain", model="BERT", dataset="wic")["max_single_layer"]
    assert found == pytest.approx(largest)
    # Figures 5, 13
    found = only(read("figure-5.jsonl"), dataset="trec", layer=3)["score"]
    assert found == pytest.approx(scores(files["swap-OPT-trec"])[2])
    found = only(read("figure-13.jsonl"), dataset="trec", model="Pythia", layer=2)["score"]
    assert found == files["grads-Pythia-trec"][1]["score"]
    # Figure 6 and the mean of all pairs
    assert only(read("mcog-retrain.jsonl"), model="OPT", dataset="wic")["m_cog"] == pytest.approx(
        cog("retrain-OPT-wic")
    )
    by_model = [[cog(f"retrain-{model}-{task}") for task in TASKS] for model in MODELS]
    pairs = [spearman(by_model[i], by_model[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert only(read("figure-6.jsonl"))["correlation"] == pytest.approx(fmean(pairs))
    # Figure 7
    numbers = [cog(f"grads-{model}-rte") for model in MODELS]
    left = only(read("figure-7-left.jsonl"), tool="grads", dataset="rte")
    assert (left["m_cog"], left["m_cog_sd"]) == pytest.approx((fmean(numbers), stdev(numbers)))
    right = only(read("figure-7-right.jsonl"), model="OPT", dataset="sst2")
    assert (right["m_cog"], right["n_runs"]) == (pytest.approx(answers.mean_cog("OPT", "sst2")), 4)
    # Figures 8, 9
    pair = only(read("figure-8-left.jsonl"), a="grads", b="swap")
    assert pair["correlation"] == pytest.approx(
        answers.over(lambda m, t: cog(f"grads-{m}-{t}"), lambda m, t: cog(f"swap-{m}-{t}"))
    )
    assert (pair["n_clusters"], pair["p"]) == (4, None)
    keys = [(tool, task) for tool in ("swap", "retrain", "grads", "probe") for task in TASKS]
    series = [[cog(f"{tool}-{model}-{task}") for tool, task in keys] for model in ("BERT", "OPT")]
    assert only(read("figure-8-right.jsonl"), a="BERT", b="OPT")["correlation"] == pytest.approx(spearman(*series))
    layers = [
        [score for m, t in answers.cells for score in scores(files[f"{tool}-{m}-{t}"])] for tool in ("probe", "swap")
    ]
    assert only(read("figure-9-left.jsonl"), a="probe", b="swap")["correlation"] == pytest.approx(spearman(*layers))
    scaled = []
    for model in ("BERT", "OPT"):
        own_layers = []
        for tool in ("swap", "retrain", "grads", "probe"):
            flat = [score for task in TASKS for score in scores(files[f"{tool}-{model}-{task}"])]
            own_layers += [(score - min(flat)) / (max(flat) - min(flat)) for score in flat]
        scaled.append(own_layers)
    assert only(read("figure-9-right.jsonl"), a="BERT", b="OPT")["correlation"] == pytest.approx(spearman(*scaled))
    # Figures 10, 11, 15: the noisy rows' mean at a layer
    for path, name, line in (
        ("figure-10", "centroid-OPT-trec", 5),
        ("figure-15", "centroid-BERT-wic", 5),
        ("figure-11", "mixed-OPT-rte", 5),
    ):
        assert cell(Path(f"{path}.txt").read_text(), line, 1) == pytest.approx(files[name][1]["noisy_mean"], abs=0.005)
    # Figure 12, Table 2
    crossing = lambda m, t: event(f"events-{m}-{t}")  # noqa: E731
    probed = lambda m, t: event(f"label-events-{m}-{t}", "memorisation>>generalisation")  # noqa: E731
    assert only(read("figure-12.jsonl"))["correlation"] == pytest.approx(answers.over(crossing, probed))
    general = lambda m, t: files[f"generalisation-{m}-{t}"][0]["generalisation_score"]  # noqa: E731
    assert only(read("table-2.jsonl"))["correlation"] == pytest.approx(answers.over(crossing, general))
    found = only(read("table-2-models.jsonl"), model="OPT")["correlation"]
    assert found == pytest.approx(answers.over(crossing, general, "OPT"))
    last = lambda m, t: files[f"epochs-{m}-{t}"][-1]["validation_accuracy_normalised"]  # noqa: E731
    assert only(read("table-2-validation.jsonl"))["correlation"] == pytest.approx(answers.over(answers.mean_cog, last))
    found = only(read("table-2-validation-models.jsonl"), model="BERT")["correlation"]
    assert found == pytest.approx(answers.over(answers.mean_cog, last, "BERT"))
    # Table 3: numbers of a weights file, counted from its header
    weights = Path("model/model.safetensors").read_bytes()
    header = json.loads(weights[8 : 8 + struct.unpack("<Q", weights[:8])[0]])
    counted = (
        sum(
            part["data_offsets"][1] - part["data_offsets"][0] for name, part in header.items() if name != "__metadata__"
        )
        // 4
    )
    assert only(read("table-3.jsonl"))["weights"] == counted
    # Figures 14, 16, 17, 18
    assert cell(Path("figure-14.txt").read_text(), 3, 1) == pytest.approx(
        files["label-probe-OPT-rte"][1]["f1_noisy"], abs=0.005
    )
    found_mean = window_mean(files["large-swap-wic"], 3, 5)
    assert cell(Path("figure-16.txt").read_text(), 5, 5) == pytest.approx(found_mean, abs=0.005)
    deep = spearman([event(f"events-OPT-{t}") for t in TASKS], [event(f"large-events-{t}") for t in TASKS])
    assert only(read("figure-17.jsonl"))["correlation"] == pytest.approx(deep)
    deep = spearman([cog(f"swap-OPT-{t}") for t in TASKS], [cog(f"large-swap-{t}") for t in TASKS])
    assert only(read("figure-18.jsonl"))["correlation"] == pytest.approx(deep)
    # Figures 19, 20: binary less multi
    half = len(files["binary-swap-OPT-wic"]) // 2
    gaps = [
        centre(scores(files[f"binary-swap-{m}-{t}"][half:])) - centre(scores(files[f"binary-swap-{m}-{t}"][:half]))
        for m, t in answers.cells
    ]
    pair = only(read("figure-19.jsonl"), a="binary", b="multi")
    assert (pair["mean_difference"], pair["mean_absolute_difference"]) == pytest.approx(
        (fmean(gaps), fmean(map(abs, gaps)))
    )
    gaps = [event(f"binary-events-{m}-{t}") - event(f"events-{m}-{t}") for m, t in answers.cells]
    assert only(read("figure-20.jsonl"))["mean_difference"] == pytest.approx(fmean(gaps))
    # Figure 21, Table 4
    found = only(read("figure-21.jsonl"), dataset="rte", planted="3-4", layer=4)["score"]
    assert found == files["control-grads-BERT-rte-3-4"][3]["score_l1_noisy"]
    for variant in VARIANTS:
        found = only(read("table-4.jsonl"), model="Pythia", value=variant)["accuracy"]
        assert found == pytest.approx(answers.control("grads", variant, 2, "Pythia"))
