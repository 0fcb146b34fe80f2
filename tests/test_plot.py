"""plot: what text shows, pictures that are the same bytes each time, panels that hold the right numbers, messages."""

import importlib.util
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.text import Text

from conftest import CONFORMANCE, Cli, write_jsonl
from mltools.drawing import centroid, events, heatmap, matrix, maxima, probe, scatter, score
from mltools.drawing import layers as layer_bars
from mltools.drawing.figure import FigureStyle, make_figure, matplotlib_settings
from mltools.drawing.grouped import Asked
from mltools.drawing.panels import Bars, Columns, Grid, Lines, Marks, Panel, Points
from mltools.drawing.text import TextStyle, draw_text, is_dark
from mltools.errors import RowsError, UsageError
from mltools.io.records import Records, read_records

GOLDEN: dict[str, Any] = json.loads((CONFORMANCE / "golden.json").read_text())["heatmap"]
Rows = list[dict[str, Any]]
File = Callable[[Rows], Path]


def windows(errors: dict[tuple[int, int], float], n_layers: int, tool: str = "swap", **tags: Any) -> Rows:
    return [
        {
            "tool": tool,
            "start": a,
            "end": b,
            "width": b - a + 1,
            "layers": n_layers,
            "memorisation_error": error,
            **tags,
        }
        for (a, b), error in errors.items()
    ]


def layers(scores: Sequence[float], tool: str = "grads", **tags: Any) -> Rows:
    return [
        {"tool": tool, "layer": layer, "layers": len(scores), "score": score, **tags}
        for layer, score in enumerate(scores, start=1)
    ]


SMALL = windows({(1, 1): 0.0, (2, 2): 0.1, (3, 3): 0.2, (1, 2): 0.4, (2, 3): 0.8, (1, 3): 1.0}, 3, dataset="toy")


def probes(target: str, f1: Sequence[float], **tags: Any) -> Rows:
    return [
        {
            "tool": "probe",
            "layer": layer,
            "layers": len(f1) - 1,
            "score": None,
            "target": target,
            "probe": "mlp",
            "f1": value,
            "f1_sd": 0.2,
            "f1_noisy": None if target == "noise" else value / 2,
            "f1_noisy_sd": None,
            "f1_clean": None if target == "noise" else value,
            "f1_clean_sd": 0.5,
            **tags,
        }
        for layer, value in enumerate(f1)
    ]


def centroids(noisy: Sequence[float | None], pair: str | None = None, **tags: Any) -> Rows:
    statistics = ("mean", "p12_5", "p25", "p50", "p75", "p87_5")
    return [
        {
            "tool": "centroid",
            "layer": layer,
            "layers": len(noisy),
            "assigned_label": pair,
            "original_label": pair,
            **{f"assigned_{name}": 0.0 for name in statistics},
            **{f"original_{name}": 1.0 for name in statistics},
            **{f"noisy_{name}": value for name in statistics},
            "reason": None,
            **tags,
        }
        for layer, value in enumerate(noisy, start=1)
    ]


def event(name: str, layer: float | None, pair: str | None = None, **tags: Any) -> dict[str, Any]:
    labels = {"assigned_label": pair, "original_label": pair}
    return {"tool": "centroid", "event": name, "layer": layer, "layers": 6, **labels, "reason": None, **tags}


def pair(a: str, b: str, correlation: float | None, **tags: Any) -> dict[str, Any]:
    series = {"tool": "correlate", "a": a, "b": b, "pivot": "tool", "value": "m_cog", "method": "spearman"}
    return {**series, "n": 12, "n_dropped": 0, "correlation": correlation, **tags}


def judged(tool: str, k: int, accuracy: float, n: int = 10, **tags: Any) -> dict[str, Any]:
    numbers = {"accuracy": accuracy, "ci_low": 0.0, "ci_high": 1.0, "chance": 0.25, "n_groups": n}
    return {"tool": tool, "k": k, **numbers, "mean_reciprocal_rank": 0.5, "chance_reciprocal_rank": 0.5, **tags}


EVENTS = [event("crossing", 2, dataset="toy"), event("initiation", 5, dataset="toy")]
EACH_KIND: dict[str, Rows] = {
    "heatmap": SMALL,
    "layers": layers([0.1, 0.3, 0.2]),
    "probe": [*probes("noise", [0.1, 0.2, 0.4]), *probes("label", [0.2, 0.6, 0.9])],
    "centroid": centroids([0.9, 0.4, 0.1]),
    "events": EVENTS,
    "matrix": [pair("swap", "retrain", 0.97), pair("swap", "grads", -0.25), pair("retrain", "grads", None)],
    "score": [judged("swap", 1, 1.0), judged("swap", 2, 0.9), judged("grads", 1, 0.5)],
    "maxima": [*SMALL, *windows({(1, 1): 0.4, (2, 2): 0.3, (3, 3): 0.2}, 3, "retrain", dataset="toy")],
    "scatter": [*EVENTS, event("crossing", 3, dataset="other"), event("initiation", 4, dataset="other")],
}
OPTIONS = {"scatter": ("--value", "crossing,initiation")}


@pytest.fixture
def file(tmp_path: Path) -> File:
    return lambda rows: write_jsonl(tmp_path / "records.jsonl", rows)


# -- text ---------------------------------------------------------------------------------------------
TEXTS = {
    "heatmap": """\
swap dataset=toy
      layer
width    1    2    3
    1    0   10 ░░20
    2 ▒▒40 ▓▓60 ██80
    3 █100 █100 █100
      mean memorisation error in %:  0 ░25 ▒50 ▓75 █100
""",
    "layers": """\
grads, M-CoG 2.17
layer    score
    1   0.1000 █████████████▍
    2   0.3000 ████████████████████████████████████████
    3   0.2000 ██████████████████████████▋
""",
    "probe": """\
probe
                  layer
                    0   1   2
  noise, all rows ░10 ▒20 █40
label, noisy rows ░10 ▓30 █45
                  F1 in %:  0 ░11 ▒22 ▓34 █45
""",
    "centroid": """\
centroid
               layer
                  1    2    3
assigned class    0    0    0
original class █100 █100 █100
    noisy rows ██90 ▒▒40   10
               projection (0: assigned class, 1: original) in %:  0 ░25 ▒50 ▓75 █100
""",
    "events": """\
    layer
      1   2   3   4   5   6
toy   .   A   .   .   B   .  A 2.00  B 5.00
A crossing
B initiation
""",
    "matrix": """\
m_cog
            swap  retrain    grads
   swap ████1.00 ████0.97 ░░░-0.25
retrain ████0.97 ████1.00        -
  grads ░░░-0.25        - ████1.00
        spearman correlation: █-1.00 ▒-0.50  0.00 ▒0.50 █1.00
""",
    "score": """\
      accuracy@k in %, 95 % interval; chance
 swap k = 1 100.0 72-100  25 ████████████████████
      k = 2  90.0  60-98  25 ██████████████████
grads k = 1  50.0  24-76  25 ██████████
      k = 2     -
""",
    "maxima": """\
           largest memorisation error of one layer
     swap                                      0.2
  retrain                                      0.4
""",
    "scatter": """\
       crossing  initiation
  toy         2           5
other         3           4
""",
}


@pytest.mark.parametrize("kind", EACH_KIND)
def test_each_kind_as_text(cli: Cli, file: File, kind: str) -> None:
    result = cli("plot", kind, file(EACH_KIND[kind]), *OPTIONS.get(kind, ()))
    assert (result.code, result.out) == (0, TEXTS[kind])
    text = "".join(json.dumps(row) + "\n" for row in EACH_KIND[kind])
    assert cli("plot", kind, "-o", "-", *OPTIONS.get(kind, ()), stdin=text).out == TEXTS[kind]


@pytest.mark.parametrize("kind", EACH_KIND)
def test_parquet_is_drawn_as_jsonl_is(cli: Cli, tmp_path: Path, kind: str) -> None:
    pl.DataFrame(EACH_KIND[kind], infer_schema_length=None).write_parquet(tmp_path / "records.parquet")
    assert cli("plot", kind, tmp_path / "records.parquet", *OPTIONS.get(kind, ())).out == TEXTS[kind]


def test_without_unicode_the_digits_stay(cli: Cli, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = heatmap.panels(read_records([file(SMALL)]))
    text = draw_text(panels, TextStyle(ascii_only=True))
    assert text.isascii()
    assert re.findall(r"\d+", text) == re.findall(r"\d+", TEXTS["heatmap"])
    assert draw_text(layer_bars.panels(read_records([file(layers([1.0]))])), TextStyle(ascii_only=True)).endswith(
        "#" * 40 + "\n"
    )


@pytest.mark.parametrize("colors", [256, 16_777_216])
def test_colours_leave_the_numbers_readable(file: File, colors: Any) -> None:
    panels = heatmap.panels(read_records([file(SMALL)]))
    text = draw_text(panels, TextStyle(colors))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain.split() == re.sub("[░▒▓█]", " ", TEXTS["heatmap"]).split()
    assert text.count("\x1b[0m") == 9 + 5  # each cell, and each step of the scale


@pytest.mark.parametrize("rgb", [(0.0, 0.0, 0.0), (0.27, 0.0, 0.33), (0.7, 0.1, 0.1)])
def test_dark_colours_carry_white_ink(rgb: tuple[float, float, float]) -> None:
    assert is_dark(*rgb)
    assert not is_dark(*(1 - part for part in rgb))


def test_colour_is_for_terminals_only(cli: Cli, file: File) -> None:
    assert "\x1b" not in cli("plot", "heatmap", file(SMALL)).out


# -- panels -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tool", "key"), [("swap", "acc_noisy"), ("retrain", "retrain_acc_noisy")])
def test_the_matrix_is_the_released_heat_map(file: File, tool: str, key: str) -> None:
    full = GOLDEN[key][GOLDEN["windows"].index([0, 11])]
    rows = [
        {**row, "memorisation_error_scaled": row["memorisation_error"] / (1 - full)}
        for row in windows(
            {(a + 1, b + 1): 1 - value for (a, b), value in zip(GOLDEN["windows"], GOLDEN[key], strict=True)}, 12, tool
        )
    ]
    column = "memorisation_error" if tool == "swap" else "memorisation_error_scaled"
    (grid,) = heatmap.panels(read_records([file(rows)]), Asked(values=[column]))
    assert isinstance(grid, Grid)
    assert (grid.rows, grid.columns) == ([str(i) for i in range(1, 13)],) * 2
    for found, expected in zip(grid.cells, GOLDEN[f"{tool}_heatmap"], strict=True):
        assert found == pytest.approx(expected, abs=1e-12)


def test_groups_become_panels_or_lines(file: File) -> None:
    rows = [row for tool in ("swap", "grads") for task in "ab" for row in layers([1.0, 3.0], tool, dataset=task)]
    bars = layer_bars.panels(read_records([file(rows)]))
    assert [panel.title for panel in bars] == ["swap dataset=a", "swap dataset=b", "grads dataset=a", "grads dataset=b"]
    assert all(isinstance(panel, Bars) and panel.centre == 1.75 for panel in bars)
    lines = layer_bars.panels(read_records([file(rows)]), Asked(overlay="dataset"))
    assert [panel.title for panel in lines] == ["swap", "grads"]
    assert all(isinstance(panel, Lines) and [line.name for line in panel.lines] == ["a", "b"] for panel in lines)


def test_layers_of_models_of_other_depth_share_a_panel(file: File) -> None:
    rows = [*layers([1.0, 2.0], model="small"), *layers([1.0, 2.0, 3.0, 4.0], model="large")]
    (panel,) = layer_bars.panels(read_records([file(rows)]), Asked(overlay="model"))
    assert isinstance(panel, Lines)
    assert panel.layers == [1, 2, 3, 4]
    assert draw_text([panel]).splitlines()[3].split() == ["small", "░1", "▒2", "-", "-"]


def test_bands_are_those_of_the_records(file: File) -> None:
    (panel,) = probe.panels(read_records([file([*probes("noise", [0.1, 0.9]), *probes("original_label", [0.2, 0.4])])]))
    assert isinstance(panel, Lines)
    noise, noisy, clean = panel.lines
    assert (panel.layers, noise.name) == ([0, 1], "noise, all rows")
    assert (noise.values, noise.low, noise.high) == ([0.1, 0.9], [0.0, pytest.approx(0.7)], [pytest.approx(0.3), 1.0])
    assert (noisy.name, noisy.values, noisy.low) == ("original_label, noisy rows", [0.1, 0.2], [0.1, 0.2])
    assert (clean.name, clean.values) == ("original_label, clean rows", [0.2, 0.4])


def test_runs_are_averaged_by_and_undefined_points_left_out(file: File) -> None:
    rows = [*centroids([0.8, None], seed=1), *centroids([0.6, 0.2], seed=2)]
    (panel,) = centroid.panels(read_records([file(rows)]), Asked(by=["tool"]))
    assert isinstance(panel, Lines)
    assert panel.lines[2].values == [pytest.approx(0.7), 0.2]
    assert panel.mark == 0.5


def test_class_pairs_are_drawn_where_they_are_asked_for(file: File) -> None:
    path = file([*centroids([0.9], "HUM"), *centroids([0.5])])
    (pooled,) = centroid.panels(read_records([path]))
    (paired,) = centroid.panels(read_records([path]), Asked(by=["assigned_label"]))
    assert isinstance(pooled, Lines) and isinstance(paired, Lines)
    assert (pooled.lines[2].values, paired.lines[2].values) == ([0.5], [0.9])
    assert paired.title == "centroid assigned_label=HUM"


def test_events_and_centres_of_gravity_are_rows_of_one_panel(file: File) -> None:
    rows = [
        *(event("crossing", layer, dataset="a", model=model) for layer, model in ((2, "m"), (4, "n"), (None, "o"))),
        event("crossing", 1, "HUM", dataset="a", model="m"),  # of one pair of classes: does not count
        {"tool": "swap", "layers": 6, "m_cog": 2.5, "weights": [1.0], "n_records": 6, "dataset": "b", "model": "m"},
    ]
    (panel,) = events.panels(read_records([file(rows)]), Asked(by=["dataset"]))
    assert isinstance(panel, Marks)
    assert (panel.rows, panel.series, panel.axis) == (["a", "b"], ["crossing", "swap M-CoG"], [1, 2, 3, 4, 5, 6])
    assert panel.layers == [[3.0, None], [None, 2.5]]
    assert panel.spread == [[pytest.approx(2**0.5), None], [None, None]]
    (each,) = events.panels(read_records([file(rows)]))
    assert isinstance(each, Marks)
    assert each.rows == ["dataset=a model=m", "dataset=a model=n", "dataset=a model=o", "dataset=b model=m"]


def test_events_at_the_embeddings_are_shown(cli: Cli, file: File, tmp_path: Path) -> None:
    path = file([event("90 % F1", 0, dataset="toy"), event("crossing", 3, dataset="toy")])
    assert cli("plot", "events", path).out.splitlines()[1:3] == [
        "      0   1   2   3   4   5   6",
        "toy   A   .   .   B   .   .   .  A 0.00  B 3.00",
    ]
    assert cli("plot", "events", path, "-o", tmp_path / "figure.svg").code == 0
    assert "layer (0: embeddings)" in (tmp_path / "figure.svg").read_text()


def test_names_send_no_commands_to_a_terminal(cli: Cli, file: File, tmp_path: Path) -> None:
    tag = "\x1b]0;title\x07$x_$"
    for kind, rows in EACH_KIND.items():
        named = [{**row, "dataset": tag} for row in (EVENTS if kind == "scatter" else rows)]
        result = cli("plot", kind, file(named), *OPTIONS.get(kind, ()))
        assert result.code == 0
        assert "\x1b" not in result.out and ("\\x1b]0;title\\x07$x_$" in result.out or kind in ("score", "maxima"))
        options = ("-o", tmp_path / f"{kind}.svg", *OPTIONS.get(kind, ()))
        assert cli("plot", kind, file(named), *options).code == 0


def test_correlate_feeds_matrix(cli: Cli) -> None:
    rows = [
        {"tool": tool, "layers": 12, "m_cog": 5 + sign * i, "dataset": task}
        for tool, sign in (("a", 1), ("b", -1), ("c", 1))
        for i, task in enumerate("wxyz")
    ]
    correlations = cli("correlate", stdin="".join(json.dumps(row) + "\n" for row in rows)).out
    text = cli("plot", "matrix", stdin=correlations).out
    assert [line.split()[1:] for line in re.sub("[░▒▓█]", "", text).splitlines()[2:5]] == [
        ["1.00", "-1.00", "1.00"],
        ["-1.00", "1.00", "-1.00"],
        ["1.00", "-1.00", "1.00"],
    ]


# -- what is not valid, scaled errors -------------------------------------------------------------------
INVALID = {"valid": False, "valid_reason": "noisy_not_memorised"}


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_panel_of_invalid_records_is_marked_in_text_and_picture(
    cli: Cli, file: File, tmp_path: Path, kind: str
) -> None:
    rows = EACH_KIND[kind]
    path = file([rows[0] | INVALID, *({**row, "valid": True, "valid_reason": None} for row in rows[1:])])
    options = OPTIONS.get(kind, ())
    result = cli("plot", kind, path, *options)
    assert "[INVALID: noisy_not_memorised]" in result.out.splitlines()[0]
    assert result.err.count("invalid (noisy_not_memorised): 1 of 1 panels") == 1
    figure = tmp_path / "figure.svg"
    assert cli("plot", kind, path, "-o", figure, "--strict", *options).code == 1
    assert figure.exists() and "[INVALID:" in figure.read_text()
    assert "INVALID" not in cli("plot", kind, file(rows), *options).out


def test_of_lines_and_rows_together_those_that_are_invalid_are_named(cli: Cli, file: File) -> None:
    rows = [*layers([1.0, 2.0], dataset="a"), *({**row, **INVALID} for row in layers([1.0, 2.0], dataset="b"))]
    text = cli("plot", "layers", file(rows), "--overlay", "dataset").out
    assert "b (invalid)" in text and "a (invalid)" not in text
    cogs = [{"tool": "swap", "layers": 2, "m_cog": 1.5, "dataset": "a"}]
    cogs.append({**cogs[0], "dataset": "b", **INVALID})
    text = cli("plot", "events", file([*cogs, event("crossing", 1, dataset="b")])).out
    assert "b (invalid)" in text and "a (invalid)" not in text
    assert [line.split()[0] for line in text.splitlines()[3:5]] == ["a", "b"]  # one row, whatever tool is not valid


def test_scaled_errors_that_a_loop_left_null_are_filled_from_the_full_window(cli: Cli, file: File) -> None:
    alone = [
        {**row, "memorisation_error_scaled": None, "run": "1", "seed": seed}
        for seed, factor in ((1, 1.0), (2, 0.5))
        for row in windows({(1, 1): 0.2 * factor, (2, 2): 0.1 * factor, (1, 2): 0.4 * factor}, 2, "retrain")
    ]
    arguments = ("plot", "heatmap", "--value", "memorisation_error_scaled")
    for by in ((), ("--by", "tool")):
        result = cli(*arguments, *by, file(alone))
        assert result.code == 0
        assert re.findall(r"\d+", result.out.splitlines()[3]) == ["1", "50", "25"]
    (grid,) = heatmap.panels(read_records([file(alone)]), Asked(by=["tool"]))
    assert isinstance(grid, Grid)
    assert grid.value_name == "mean memorisation error scaled" and grid.cells[0] == pytest.approx([0.5, 0.25])
    missing = cli(*arguments, file([row for row in alone if row["width"] == 1]))
    assert (missing.code, missing.err.split(": ", 2)[2]) == (
        3,
        '"memorisation_error_scaled" is unknown: the full window of its sweep is not among the records\n',
    )


# -- pictures -----------------------------------------------------------------------------------------
def png_texts(data: bytes) -> dict[str, str]:
    """The text chunks of a PNG, after checking that it is whole."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    texts, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + body)
        if kind in (b"tEXt", b"iTXt"):
            key, _, text = body.partition(b"\0")
            texts[key.decode()] = text.lstrip(b"\0").decode()
        place += 12 + length
    return texts


@pytest.mark.parametrize("kind", EACH_KIND)
def test_each_kind_as_a_picture_says_how_it_was_made(cli: Cli, file: File, tmp_path: Path, kind: str) -> None:
    path = file(EACH_KIND[kind])
    result = cli("plot", kind, path, "-o", tmp_path / "figure.png", *OPTIONS.get(kind, ()))
    assert (result.code, result.out) == (0, "")
    made = json.loads(png_texts((tmp_path / "figure.png").read_bytes())["mltools"])
    assert (made["tool"], made["settings"]["kind"]) == ("plot", kind)
    assert list(made["inputs"]) == [str(path)]


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_same_records_give_the_same_bytes(cli: Cli, file: File, tmp_path: Path, suffix: str) -> None:
    path = file([*probes("noise", [0.1, 0.2]), *probes("label", [0.2, 0.6])])
    figures = []
    for name in ("first", "second"):
        assert cli("plot", "probe", path, "-q", "-o", tmp_path / f"{name}.{suffix}").code == 0
        figures.append((tmp_path / f"{name}.{suffix}").read_bytes())
    assert figures[0] == figures[1]
    assert b"CreationDate" not in figures[0] and b"<dc:date>" not in figures[0]
    assert b"plot" in figures[0]


def test_many_panels_and_long_names_fit(cli: Cli, file: File, tmp_path: Path) -> None:
    rows = [
        row
        for i in range(4)
        for row in layers([1.0, 2.0] * 12, dataset=f"a data set of some name {i}", model="one/with-a-long-name")
    ]
    assert cli("plot", "layers", file(rows), "-o", tmp_path / "figure.png").code == 0


def test_an_old_picture_is_kept(cli: Cli, file: File, tmp_path: Path) -> None:
    figure = tmp_path / "figure.svg"
    figure.write_text("old")
    refused = cli("plot", "heatmap", file(SMALL), "-o", figure)
    assert (refused.code, figure.read_text()) == (2, "old")
    assert refused.err == f"mltools: {figure} exists; overwrite it with --force, or choose another path\n"
    assert cli("plot", "heatmap", file(SMALL), "-o", figure, "--force").code == 0
    assert figure.read_text().startswith("<?xml")


def test_without_matplotlib_pictures_are_refused_and_text_is_not(
    cli: Cli, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    result = cli("plot", "heatmap", file(SMALL), "-o", tmp_path / "figure.png")
    assert result.code == 5
    assert result.err == 'mltools: pictures need matplotlib: pip install "mltools[plot]"; without -o, plot draws text\n'
    assert cli("plot", "heatmap", file(SMALL)).out == TEXTS["heatmap"]


# -- pictures for papers -------------------------------------------------------------------------------
def boxes(figure: Any) -> dict[str, Any]:
    """The boxes of all texts and legends of a figure that is drawn, by what they say."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    hidden = [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in ticks_outside(axis)]
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in hidden]
    return {f"{text.get_text()!r} {id(text)}": text.get_window_extent(renderer) for text in texts}


def ticks_outside(axis: Any) -> list[Any]:
    """Names of ticks that are not drawn, being beyond the axis or no outer ones."""
    low, high = sorted(axis.get_view_interval())
    drawn = axis.get_tick_params().get("labelbottom", axis.get_tick_params().get("labelleft", True))
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [
        label for tick in ticks for label in (tick.label1, tick.label2) if not (drawn and low <= tick.get_loc() <= high)
    ]


TASKS = ("wic", "rte", "mrpc", "a task with a very long name", "emotion", "implicithate", "stormfront")
MODELS = ("BERT", "OPT", "GPT-N", "EleutherAI/pythia-160m-deduped")
TAGS = [{"dataset": task, "model": model} for task in TASKS for model in MODELS]
MANY: dict[str, tuple[Rows, Asked, FigureStyle]] = {
    "legend": (
        [row for tags in TAGS for row in layers([0.1, 0.3, 0.2] * 4, **tags)],
        Asked(overlay="dataset"),
        FigureStyle(width=3.3),
    ),
    "facets": (
        [row for tags in TAGS[:12] for row in layers([0.1, 0.3, 0.2] * 4, **tags)],
        Asked(),
        FigureStyle(("model", "dataset"), 6.8, 6),
    ),
    "grids": (
        [row for tags in TAGS[:8] for row in [{**each, **tags} for each in SMALL]],
        Asked(),
        FigureStyle(("model", "dataset"), 6.8, 7),
    ),
    "row of grids": (
        [{**each, "dataset": task} for task in TASKS[:4] for each in SMALL],
        Asked(),
        FigureStyle(("dataset",), 6.8),
    ),
    "events": (
        [event(name, 3 + i % 3, **tags) for i, tags in enumerate(TAGS) for name in ("crossing", "initiation")],
        Asked(by=["dataset"], overlay="model"),
        FigureStyle(width=3.3),
    ),
    "maxima": (
        [row for tags in TAGS for row in [{**each, **tags} for each in SMALL]],
        Asked(overlay="dataset"),
        FigureStyle(width=3.3),
    ),
    "wrapped": (
        [row for tags in TAGS for row in centroids([0.9, 0.4, 0.1], **tags)],
        Asked(by=["dataset"]),
        FigureStyle(("dataset",), 5),
    ),
}
LONG = [f"{name} and words, or_a_name_without_any_blank_in_it" for name in "abcd"]
MANY["matrix of long names"] = (
    [
        {"tool": "correlate", "method": "spearman", "value": "m_cog", "a": a, "b": b, "correlation": 0.5}
        for a, b in combinations(LONG, 2)
    ],
    Asked(),
    FigureStyle(width=3.3),
)
MANY["rows of long names"] = (
    [event("crossing", 3, dataset=one, model=other) for one in LONG for other in LONG],
    Asked(),
    FigureStyle(),
)
PICTURES = {
    "matrix of long names": matrix,
    "rows of long names": events,
    "legend": layer_bars,
    "facets": layer_bars,
    "grids": heatmap,
    "row of grids": heatmap,
    "events": events,
    "maxima": maxima,
    "wrapped": centroid,
}


@pytest.mark.parametrize("name", MANY)
def test_nothing_is_cut_and_legends_hide_nothing(file: File, name: str) -> None:
    rows, asked, style = MANY[name]
    with matplotlib_settings(style):
        figure = make_figure(PICTURES[name].panels(read_records([file(rows)]), asked), style)
        found = boxes(figure)
    assert style.width in (None, figure.get_figwidth())
    page = figure.bbox
    for text, box in found.items():
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, text
        assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, text
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert bool(figure.legends) == (name in ("legend", "events", "maxima", "wrapped", "rows of long names"))


def test_facets_share_scales_and_one_colour_bar(file: File) -> None:
    rows, asked, style = MANY["grids"]
    with matplotlib_settings(style):
        figure = make_figure(heatmap.panels(read_records([file(rows)]), asked), style)
    assert len(figure.axes) == 8 + 1  # two tasks, four models, one colour bar
    uneven = [*layers([1.0, 2.0], dataset="a", model="m"), *layers([3.0, 9.0, 1.0], dataset="b", model="m")]
    style = FigureStyle(("model", "dataset"))
    with matplotlib_settings(style):
        figure = make_figure(layer_bars.panels(read_records([file(uneven)])), style)
    one, other = figure.axes
    assert (one.get_ylim(), one.get_xlim()) == (other.get_ylim(), other.get_xlim()) and one.get_ylim()[1] > 9
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == ["a", "b"]


def test_facets_that_do_not_say_where_are_refused(cli: Cli, file: File, tmp_path: Path) -> None:
    rows = [*layers([1.0, 2.0], dataset="a", seed=1), *layers([1.0, 2.0], dataset="a", seed=2)]
    figure = ("-o", tmp_path / "figure.svg")
    for given, message in (
        ("dataset", "--facet dataset: several panels in one place (grads dataset=a seed=2)"),
        ("model", "--facet model: a panel has no such tag (tool, dataset, seed)"),
        ("a,b,c", '--facet "a,b,c": write ROWS,COLUMNS, two different columns, or one'),
    ):
        result = cli("plot", "layers", file(rows), "--facet", given, *figure)
        assert (result.code, result.err) == (2, f"mltools: {message}\n")
    assert "--facet is for pictures" in cli("plot", "layers", file(rows), "--facet", "seed").err
    assert "write a length of 1 to 100 inches" in cli("plot", "layers", file(rows), "--width", "3", *figure).err
    assert "--facet is for heatmap, layers" in cli("plot", "score", "--facet", "tool", *figure, stdin="").err


def test_width_font_size_and_dots(cli: Cli, file: File, tmp_path: Path) -> None:
    path = file(layers([1.0, 2.0]))
    options = ("--width", "84mm", "--font-size", "7", "--dpi", "100")
    assert cli("plot", "layers", path, *options, "-o", tmp_path / "a.png").code == 0
    assert struct.unpack(">I", (tmp_path / "a.png").read_bytes()[16:20])[0] == int(84 / 25.4 * 100)
    assert cli("plot", "layers", path, *options, "-o", tmp_path / "a.svg").code == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert ">layer</text>" in drawn and "7px" in drawn  # text stays text


# -- spread, overlays, dots ----------------------------------------------------------------------------
def test_runs_averaged_show_their_spread(cli: Cli, file: File) -> None:
    rows = [*layers([1.0, 3.0], seed=1), *layers([3.0, 3.0], seed=2)]
    (bars,) = layer_bars.panels(read_records([file(rows)]), Asked(by=["tool"]))
    assert isinstance(bars, Bars)
    assert (bars.values, bars.spread) == ([2.0, 3.0], [pytest.approx(2**0.5), 0.0])
    assert "    1   2.0000 ±1.4142 " in cli("plot", "layers", file(rows), "--by", "tool").out
    (lines,) = layer_bars.panels(read_records([file(rows)]), Asked(by=["tool"], overlay="tool"))
    assert isinstance(lines, Lines) and lines.lines[0].high == [pytest.approx(2 + 2**0.5), 3.0]
    retrained = [
        {**row, "seed": seed}
        for seed, full in ((1, 1.0), (2, 0.5))
        for row in windows({(1, 1): 0.2 * full, (2, 2): 0.4 * full, (1, 2): full}, 2, "retrain")
    ]
    (scaled,) = layer_bars.panels(read_records([file(retrained)]), Asked(by=["tool"]))
    assert isinstance(scaled, Bars) and scaled.spread == pytest.approx([0.0, 0.0])  # the same once scaled


def test_probes_of_several_tasks_share_a_panel(file: File) -> None:
    rows = [*probes("noise", [0.1, 0.2], dataset="a"), *probes("noise", [0.3, 0.4], dataset="b")]
    (panel,) = probe.panels(read_records([file(rows)]), Asked(overlay="dataset"))
    assert isinstance(panel, Lines)
    assert [(line.name, line.values) for line in panel.lines] == [("a", [0.1, 0.2]), ("b", [0.3, 0.4])]


def test_models_are_series_of_centres(file: File) -> None:
    rows = [
        {"tool": "retrain", "layers": 6, "m_cog": 2.0 + i + j, "dataset": task, "model": model}
        for i, task in enumerate("ab")
        for j, model in enumerate("mn")
    ]
    (panel,) = events.panels(read_records([file(rows)]), Asked(overlay="model"))
    assert isinstance(panel, Marks)
    assert (panel.rows, panel.series, panel.layers) == (["a", "b"], ["m", "n"], [[2.0, 3.0], [3.0, 4.0]])


def test_dots_are_means_with_spreads_and_a_pivot_makes_axes(file: File) -> None:
    rows = [
        {"tool": "swap", "layers": 6, "m_cog": 3.0 + i + shift, "dataset": task, "model": model, "setup": setup}
        for i, task in enumerate("ab")
        for model, shift in (("m", 0.0), ("n", 2.0))
        for setup in ("multi", "binary")
    ]
    (panel,) = scatter.panels(read_records([file(rows)]), Asked(["dataset"], ["mcog"], pivot="setup"))
    assert isinstance(panel, Points) and panel.diagonal
    assert (panel.x_name, panel.y_name) == ("multi", "binary")
    assert [(dot.series, dot.x, dot.y) for dot in panel.dots] == [("a", 4.0, 4.0), ("b", 5.0, 5.0)]
    assert all(dot.x_sd == dot.y_sd == pytest.approx(2**0.5) for dot in panel.dots)
    (plain,) = scatter.panels(read_records([file(rows)]), Asked(None, ["mcog"], "dataset", "setup"))
    assert isinstance(plain, Points) and [dot.series for dot in plain.dots] == ["a", "a", "b", "b"]
    for asked in (
        Asked(values=["mcog"]),
        Asked(values=["mcog", "layers"], pivot="setup"),
        Asked(values=["mcog"], pivot="model"),
    ):
        with pytest.raises((UsageError, RowsError), match=r"scatter needs|again for"):
            scatter.panels(read_records([file([*rows, {**rows[0], "model": "o"}])]), asked)


def test_scores_of_several_tools_are_pooled_by_their_weight(file: File) -> None:
    rows = [
        judged("swap", 1, 1.0, 30, model="a"),
        judged("grads", 1, 0.5, 10, model="a"),
        judged("swap", 1, 0.0, model="b"),
    ]
    (panel,) = score.panels(read_records([file(rows)]), Asked(by=["model"]))
    assert isinstance(panel, Columns)
    assert (panel.names, panel.values) == (["a", "b"], [[pytest.approx(35 / 40)], [0.0]])


# -- what it refuses ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "rows", "code", "message"),
    [
        (
            ("heatmp",),
            SMALL,
            2,
            'KIND "heatmp": choose heatmap, layers, probe, centroid, events, matrix, score, maxima or scatter; did you '
            "mean heatmap?",
        ),
        (("heatmap",), [], 3, "no records came in"),
        (("matrix",), [], 3, "no records came in"),
        (
            ("heatmap", "-o", "figure.gif"),
            SMALL,
            2,
            "-o figure.gif: the name of such a file ends in .pdf, .png or .svg",
        ),
        (("matrix", "--value", "x"), SMALL, 2, "--value is for heatmap, layers, maxima, scatter, not for matrix"),
        (
            ("heatmap", "--overlay", "x"),
            SMALL,
            2,
            "--overlay is for layers, probe, events, maxima, scatter, not for heatmap",
        ),
        (("layers", "--overlay", "x"), layers([1.0]), 2, '--overlay x: no such tag in "grads"'),
        (
            ("heatmap", "--value", "reverted"),
            SMALL,
            3,
            'stdin:1: no "reverted" (found: tool, start, end, width, layers, memorisation_error, dataset)',
        ),
        (("heatmap",), layers([1.0]), 3, 'stdin:1: no "memorisation_error" (found: tool, layer, layers, score)'),
        (
            ("heatmap",),
            SMALL[:-2],
            3,
            "stdin:1: 1 of 2 windows of width 2 are missing (first: 2-3); run them, or leave width 2 out",
        ),
        (
            ("centroid",),
            [*centroids([0.5]), *centroids([0.5])],
            3,
            "stdin:2: layer 1 of assigned class again in the same group; tag runs apart or average --by",
        ),
        (
            ("events",),
            [EVENTS[0], EVENTS[0]],
            3,
            "stdin:2: crossing again in the same group; tag runs apart or average --by",
        ),
        (
            ("matrix",),
            [pair("a", "b", 1.0), pair("b", "a", 1.0)],
            3,
            "stdin:2: b and a again in the same table; tag tables apart or choose --by",
        ),
        (("probe",), centroids([0.5])[:1], 3, None),
        (("centroid",), probes("noise", [0.5]), 3, None),
        (("events",), layers([1.0]), 3, 'stdin:1: no "m_cog" (found: tool, layer, layers, score)'),
    ],
)
def test_messages(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    rows: Rows,
    code: int,
    message: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("plot", *arguments, stdin="".join(json.dumps(row) + "\n" for row in rows))
    assert (result.code, result.out) == (code, "")
    if message is None:
        assert re.fullmatch(r'mltools: stdin:1: no "\w+" \(found: .*\)\n', result.err)
    else:
        assert result.err == f"mltools: {message}\n"


def test_letters_that_no_font_has_are_said_once(
    cli: Cli, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were boxes in silence. A font that is installed and has them is taken; SVG leaves them to its reader."""
    import matplotlib

    rows = file([*layers([1.0, 2.0], dataset="の"), *layers([2.0, 1.0], dataset="のの")])
    fonts: list[str] = []
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: fonts)

    def notes(name: str) -> list[str]:
        result = cli("plot", "layers", rows, "-o", tmp_path / name, "--force")
        assert result.code == 0
        return [line for line in result.err.splitlines() if "font" in line]

    (note,) = notes("lacks.png")
    assert note.startswith("mltools: note: no font here has の, so that boxes") and "install one" in note
    assert not notes("text.svg") and "の" in (tmp_path / "text.svg").read_text()
    fonts.append(f"{matplotlib.get_data_path()}/fonts/ttf/STIXGeneral.ttf")
    assert not notes("has.png")
    assert (tmp_path / "has.png").read_bytes() != (tmp_path / "lacks.png").read_bytes()


def test_a_heat_map_of_margins_is_in_their_unit_on_one_scale(cli: Cli, file: File) -> None:
    """Logits were written in percent, and all above 1 had one colour."""
    rows = [{**row, "label_margin_drop": 6 * row["memorisation_error"] - 1} for row in SMALL]
    more = [{**row, "dataset": "other", "label_margin_drop": 9.0} for row in SMALL]
    asked = Asked(values=["label_margin_drop"])
    one, other = (grid for grid in heatmap.panels(read_records([file(rows + more)]), asked) if isinstance(grid, Grid))
    assert (one.unit, one.low, one.high) == (other.unit, other.low, other.high) == ("any", -1.0, 9.0)
    assert "mean label margin drop:" in cli("plot", "heatmap", file(rows), "--value", "label_margin_drop").out
    (grid,) = heatmap.panels(read_records([file(SMALL)]))
    assert isinstance(grid, Grid) and (grid.unit, grid.low, grid.high) == ("share", 0.0, 1.0)
    scaled = [{**row, "memorisation_error_scaled": 1.5 * row["memorisation_error"]} for row in SMALL]
    (grid,) = heatmap.panels(read_records([file(scaled)]), Asked(values=["memorisation_error_scaled"]))
    assert isinstance(grid, Grid) and (grid.unit, grid.high) == ("share", 1.5)


def test_many_series_are_named_by_letters(cli: Cli, file: File) -> None:
    """The 60th was a character that commands a terminal; the columns ran into one another."""
    out = cli(
        "plot", "events", file([event("crossing", 3, model=f"m{i}") for i in range(70)]), "--overlay", "model"
    ).out
    assert re.search(r"^BR m69$", out, re.MULTILINE) and all(c.isprintable() or c == "\n" for c in out)
    assert re.search(r" Y,Z,AA,AB,", out.replace("W,X,", " ")) and " BR 3.00" in out


@pytest.mark.parametrize("kind", ["probe", "events", "scatter"])
def test_layers_of_models_of_other_depths_are_not_averaged(cli: Cli, file: File, kind: str) -> None:
    """Layer 6 of 12 is no layer 6 of 6: mcog refuses such means too."""
    shallow, deep = event("crossing", 3, model="s"), {**event("crossing", 9, model="d"), "layers": 12}
    both = [*[shallow, deep], *[{**row, "event": "initiation"} for row in (shallow, deep)]]
    rows = (
        [*probes("noise", [0.5, 0.6], model="s"), *probes("noise", [0.5] * 4, model="d")] if kind == "probe" else both
    )
    values = ("--value", "crossing,initiation") if kind == "scatter" else ()
    result = cli("plot", kind, file(rows), *values, "--by", "tool")
    depths = "1 and 3" if kind == "probe" else "6 and 12"
    assert result.code == 3 and f"layers of models with {depths} layers would be averaged" in result.err
    assert cli("plot", kind, file(rows), *values, "--by", "model").code == 0


def test_means_that_leave_undefined_numbers_out_say_so(cli: Cli, file: File) -> None:
    rows = [event("crossing", layer, model=str(i)) for i, layer in enumerate((2, 4, None))]
    result = cli("plot", "events", file(rows), "--by", "tool")
    assert "A 3.00±1.41" in result.out
    assert "note: crossing: 1 of 3 numbers are undefined, so that the mean is of the others\n" in result.err
    assert "undefined" not in cli("plot", "events", file(rows)).err
    curves = [*centroids([0.1, None], model="a"), *centroids([0.1, 0.2], model="b")]
    assert "noisy rows, layer 2: 1 of 2 numbers" in cli("plot", "centroid", file(curves), "--by", "tool").err


def test_groups_with_other_tags_of_one_value_are_told_apart(file: File) -> None:
    rows = [{**row, "model": "x"} for row in SMALL] + [{**row, "variant": "x"} for row in SMALL]
    (panel,) = maxima.panels(read_records([file(rows)]))
    assert isinstance(panel, Points) and panel.categories is not None
    assert [name.split()[-1] for name in panel.categories] == ["model=x", "variant=x"]
    runs = [{**row, "seed": seed} for seed in (1, 2) for row in SMALL[seed - 1 :]]
    with pytest.raises(RowsError, match="window 1 has 1 records in its group, window 2 has 2"):
        maxima.panels(read_records([file(runs)]), Asked(by=["dataset"]))


def test_scores_of_other_tools_have_scales_of_their_own(file: File) -> None:
    """Gradients' shares lay flat below the errors of windows. Where a neighbour's scale differs, both have numbers."""
    rows = [row for model in "ab" for row in (*layers([0.1, 0.2], model=model), *layers([9.0, 8.0], "x", model=model))]
    for facet, numbered in ((("tool", "model"), (True, False)), (("model", "tool"), (True, True))):
        style = FigureStyle(facet)
        with matplotlib_settings(style):
            figure = make_figure(layer_bars.panels(read_records([file(rows)])), style)
            figure.draw_without_rendering()
        ends = {axes.get_ylim()[1] > 1: axes.get_ylim() for axes in figure.axes}
        assert len(ends) == len({axes.get_ylim() for axes in figure.axes}) == 2
        spots = [axes.get_subplotspec() for axes in figure.axes]
        for axes, spot in zip(figure.axes, spots, strict=True):
            shown = any(label.get_visible() and label.get_text() for label in axes.get_yticklabels())
            assert spot is not None and shown == numbered[spot.colspan.start], facet


def test_pictures_say_what_bars_and_bands_are(file: File) -> None:
    def names(panels: Sequence[Panel]) -> set[str]:
        with matplotlib_settings(FigureStyle()):
            (axes,) = make_figure(panels).axes
        return {axes.get_xlabel(), axes.get_ylabel().replace("\n", " ")}

    def read(rows: Rows) -> Iterator[Records]:
        return read_records([file(rows)])

    runs = [row for seed in (1, 2) for row in layers([seed, 2.0], dataset="a", seed=seed)]
    assert names(layer_bars.panels(read(runs), Asked(by=["dataset"]))) == {"layer", "score (± SD)"}
    assert names(layer_bars.panels(read(runs), Asked(by=["dataset"], overlay="dataset"))) == {"layer", "score (± SD)"}
    assert names(layer_bars.panels(read(layers([1.0, 2.0])))) == {"layer", "score"}
    crossings = [event("crossing", layer, model=str(layer)) for layer in (1, 5)]
    assert "layer (± SD)" in names(events.panels(read(crossings), Asked(by=["tool"])))
    assert "layer" in names(events.panels(read(crossings)))
    assert "F1 (± SD)" in names(probe.panels(read(probes("noise", [0.5, 0.6]))))
    assert "accuracy@k (95 % intervals, chance dashed)" in names(score.panels(read([judged("swap", 1, 0.5)])))


def test_means_of_correlations_are_of_no_pair(cli: Cli, file: File) -> None:
    """They were drawn as a pair, with ones in the diagonal."""
    means = pair("bert,opt", "each other", 0.5, n_pairs=1)
    result = cli("plot", "matrix", file([means]))
    assert result.code == 3 and "only means over every two series" in result.err
    pairs = [pair("bert", "opt", 0.25)]
    assert cli("plot", "matrix", file([*pairs, means])).out == cli("plot", "matrix", file(pairs)).out


def test_groups_that_are_not_drawn_are_counted(cli: Cli, file: File) -> None:
    rows = [event(name, 3, model=model) for model in "ab" for name in ("crossing", "initiation")]
    result = cli("plot", "scatter", file([*rows, event("crossing", 3, model="c")]), "--value", "crossing,initiation")
    assert "note: 1 of 3 groups lack crossing or initiation and are not drawn (first: c)\n" in result.err
    assert "not drawn" not in cli("plot", "scatter", file(rows), "--value", "crossing,initiation").err


def test_what_is_undefined_or_below_zero_looks_so(cli: Cli, file: File) -> None:
    """A correlation that is undefined was as white as one of 0; a bar below 0 in text looked like one above."""
    with matplotlib_settings(FigureStyle()):
        panels = matrix.panels(read_records([file([pair("a", "b", 0.0), pair("a", "c", None), pair("b", "c", 0.5)])]))
        axes, *_ = make_figure(panels).axes
    image = axes.collections[0]
    array = image.get_array()
    assert array is not None and np.ma.getmaskarray(array).sum() == 2
    zero, under = image.to_rgba(np.zeros(1))[0][:3], axes.get_facecolor()[:3]
    assert abs(float(sum(zero)) - sum(under)) > 0.5
    out = cli("plot", "layers", file(layers([1.0, -0.5]))).out.splitlines()
    assert set(out[2].split()[-1]) == {"█"} and set(out[3].split()[-1]) == {"░"} and len(out[3].split()[-1]) == 20


@pytest.mark.parametrize("kind", ["heatmap", "events", "score", "scatter", "matrix"])
def test_names_of_wide_letters_keep_tables_straight(cli: Cli, file: File, kind: str) -> None:
    def text(one: str, other: str) -> list[str]:
        rows: Rows = {
            "heatmap": layers([1.0, 2.0], dataset=one) + layers([2.0, 1.0], dataset=other),
            "events": [event(name, 3, model=model) for model in (one, other) for name in ("crossing", "initiation")],
            "score": [judged("swap", 1, 0.5, dataset=one), judged("swap", 1, 0.25, dataset=other)],
            "scatter": [event(name, 3, model=model) for model in (one, other) for name in ("crossing", "initiation")],
            "matrix": [pair(one, other, 0.5)],
        }[kind]
        name = "layers" if kind == "heatmap" else kind
        more = {"heatmap": ("--overlay", "dataset"), "scatter": ("--value", "crossing,initiation")}.get(kind, ())
        return cli("plot", name, file(rows), *more).out.replace(one, "#" * 4).replace(other, "!!!").splitlines()

    assert text("情感", "abc") == text("wxyz", "abc")
