"""swap: conformance with the released code, laws, cost, and what it refuses."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from conftest import CONFORMANCE, Cli, marked, toy_rows, write_jsonl
from mltools.commands.swap.predictions import SwapResult
from mltools.commands.swap.work import swap
from mltools.errors import CheckpointError
from mltools.io.examples import NO_NOISY, read_examples
from mltools.layers import Window, all_windows
from mltools.model.checkpoint import Checkpoint
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.inference import predict
from mltools.model.window_tree import window_logits

Tiny = Callable[..., Path]


@pytest.mark.parametrize("case", ["bert-questions", "neox-questions"])
def test_conformance(case: str, cli: Cli, tmp_path: Path) -> None:
    """Accuracies, predictions, layer errors and M-CoG of the released code, for every window."""
    folder = CONFORMANCE / case
    expected = json.loads((folder / "expected.json").read_text())
    per_row = tmp_path / "rows.parquet"
    result = cli("swap", folder / "noisy", folder / "clean", folder / "noisy.jsonl", "--per-row", per_row)
    assert result.code == 0, result.err
    frame = pl.read_parquet(per_row).filter(pl.col("noisy")).sort("id")
    assert len(result.records) == len(expected["swap"]) == 10
    for record, case_ in zip(result.records, expected["swap"], strict=True):
        assert (record["start"], record["end"]) == (case_["first_layer"], case_["last_layer"])
        assert record["noisy_accuracy"] == pytest.approx(case_["noisy_accuracy"], abs=1e-12)
        assert record["clean_accuracy"] == pytest.approx(case_["clean_accuracy"], abs=1e-12)
        predicted = frame.filter(pl.col("window") == record["window"])["predicted"].to_list()
        names = [expected["labels"][i] if isinstance(i, int) else i for i in case_["noisy_predictions"]]
        assert predicted == names
    records = write_jsonl(tmp_path / "swap.jsonl", result.records)
    m_cog = cli("mcog", records).records[0]
    assert m_cog["m_cog"] == pytest.approx(expected["swap_mcog"], abs=1e-9)
    assert m_cog["weights"] == pytest.approx(expected["swap_layer_error"], abs=1e-9)


@pytest.mark.parametrize("case", ["bert-questions", "neox-questions"])
@pytest.mark.parametrize("checkpoint", ["noisy", "clean", "memorised", "frozen"])
def test_conformance_logits(case: str, checkpoint: str) -> None:
    folder = CONFORMANCE / case
    expected = json.loads((folder / "expected.json").read_text())["logits"][checkpoint]
    opened = open_checkpoint(str(folder / checkpoint))
    encoded = opened.encode(read_examples(folder / "noisy.jsonl"), 64)
    logits = predict(opened.runner, encoded, np.arange(len(encoded)), None)
    assert np.abs(logits - np.array(expected)).max() < 5e-6


@pytest.mark.parametrize("layers", [1, 2, 4, 6])
def test_applications_are_the_least(layers: int, tiny: Tiny, noisy_rows: Path) -> None:
    """DESIGN §6: L(L+1)(L+2)/6 + L layer applications a row for all windows, and L for CLEAN whole."""
    base, donor = (open_checkpoint(str(tiny("bert", seed, num_hidden_layers=layers))) for seed in (1, 2))
    result = SwapResult()
    records = list(swap(base, donor, read_examples(noisy_rows), result=result))
    assert len(records) == layers * (layers + 1) // 2
    assert result.applications == 48 * (layers * (layers + 1) * (layers + 2) // 6 + 2 * layers)


@pytest.mark.parametrize("room", [1 << 32, 0])
def test_k10_records_come_as_the_walk_proceeds(
    room: int, tiny: Tiny, noisy_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass a first layer, at no cost where recorded passes are kept; else few, which add a tenth at most."""
    monkeypatch.setattr("mltools.model.passes.MOST_KEPT", room)
    base, donor = (open_checkpoint(str(tiny("bert", seed, num_hidden_layers=7))) for seed in (1, 2))
    rows, result, seen, when = read_examples(noisy_rows), SwapResult(), [0], list[int]()

    def progress(items: Iterator[Any], total: int, *_: object) -> Iterator[Any]:
        for item in items:
            seen[0] += 1
            yield item
        assert seen[0] == total

    for record in swap(base, donor, rows, progress=progress, result=result):
        when.append((seen[0] - 1) // 48 if record.start < 7 else 99)
    least = 7 * 8 * 9 // 6 + 14
    if room:
        assert when == sorted(when) and {*when} >= {0, 1, 2, 3, 4, 5} and result.applications == 48 * least
    else:
        assert when[0] == 0 and 1 in when and least < result.applications / 48 <= 1.1 * least + 7


def test_reverted_is_of_noisy_rows_and_scaled_of_the_full_window(tmp_path: Path, cli: Cli) -> None:
    """Both worked out from the predictions row by row."""
    folder, per_row = CONFORMANCE / "bert-questions", tmp_path / "rows.parquet"
    records = cli("swap", folder / "noisy", folder / "clean", folder / "noisy.jsonl", "--per-row", per_row).records
    rows = {row["id"]: row for row in map(json.loads, (folder / "noisy.jsonl").read_text().splitlines())}
    frame = pl.read_parquet(per_row)
    full = next(r["memorisation_error"] for r in records if r["width"] == r["layers"])
    assert 0 < full < 1
    differs = False
    for record in records:
        found = frame.filter(pl.col("window") == record["window"]).select("id", "predicted").rows()
        back = {key: predicted == rows[key]["original_label"] for key, predicted in found}
        noisy = [is_back for key, is_back in back.items() if rows[key]["noisy"]]
        assert record["reverted"] == pytest.approx(sum(noisy) / len(noisy))
        assert record["memorisation_error_scaled"] == pytest.approx(record["memorisation_error"] / full)
        differs |= len(back) > len(noisy) and abs(sum(back.values()) / len(back) - record["reverted"]) > 0.01
    assert differs


def test_single_window_costs_no_more_than_it_needs(tiny: Tiny, noisy_rows: Path) -> None:
    base, donor = open_checkpoint(str(tiny("bert", 1))), open_checkpoint(str(tiny("bert", 2)))
    result = SwapResult()
    list(swap(base, donor, read_examples(noisy_rows), [Window((2, 3))], result=result))
    assert result.applications == 48 * (4 + 3 + 4 + 4)  # NOISY, the window, the full window, CLEAN


def test_swapping_a_model_with_itself_changes_nothing(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    records = cli("swap", tiny("bert", 1), tiny("bert", 1), noisy_rows).records
    assert len({(r["noisy_accuracy"], r["clean_accuracy"], r["reverted"]) for r in records}) == 1


def test_the_margin_is_the_gap_of_the_two_best_logits(tiny: Tiny, noisy_rows: Path) -> None:
    model, rows, result = open_checkpoint(str(tiny("bert", 1))), read_examples(noisy_rows), SwapResult()
    list(swap(model, model, rows, [Window((2,))], result=result))
    logits = predict(model.runner, model.encode(rows, 64), np.arange(len(rows)), None)
    second, best = np.sort(logits, axis=1)[:, -2:].T
    assert np.allclose(result.margin[0], best - second, atol=1e-5)


def test_swapping_all_gives_the_donors_blocks(tiny: Tiny, noisy_rows: Path) -> None:
    """The full window is the donor's blocks under NOISY's embeddings and head."""
    base, donor = open_checkpoint(str(tiny("bert", 1))), open_checkpoint(str(tiny("bert", 2)))
    encoded = base.encode(read_examples(noisy_rows), 64)
    batch = encoded.batch(np.arange(8), base.runner.device)
    _, logits = next(window_logits(base, donor, batch, [Window((1, 2, 3, 4))]))
    with torch.no_grad():
        for name, parameter in base.model.named_parameters():
            if not isinstance(base.parts[name], int):
                dict(donor.model.named_parameters())[name].copy_(parameter)
        whole = donor.runner.forward(batch)
    assert torch.allclose(logits, whole, atol=1e-6)


@pytest.fixture(scope="module")
def llamas(tiny: Tiny) -> tuple[Checkpoint, Checkpoint]:
    base, donor = (open_checkpoint(str(tiny("llama", seed))) for seed in (1, 2))
    return base, donor


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sets(st.integers(1, 4), min_size=1), min_size=1, max_size=4, unique_by=tuple))
def test_any_set_of_layers_equals_alone(
    llamas: tuple[Checkpoint, Checkpoint], noisy_rows: Path, sets: list[set[int]]
) -> None:
    """Windows walked together, contiguous or not, give the logits they give alone."""
    base, donor = llamas
    batch = base.encode(read_examples(noisy_rows), 64).batch(np.arange(6), base.runner.device)
    windows = [Window(tuple(sorted(layers))) for layers in sets]
    together = dict(window_logits(base, donor, batch, windows))
    for index, window in enumerate(windows):
        _, alone = next(window_logits(base, donor, batch, [window]))
        assert torch.allclose(together[index], alone, atol=1e-6)


@pytest.mark.parametrize(
    "architecture", ["bert", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("opt", "roberta"))]
)
def test_b02_padding_side_batch_size_and_order_do_not_matter(
    architecture: str, cli: Cli, tiny: Tiny, tmp_path: Path
) -> None:
    shuffled = toy_rows(20)
    noisy_rows = write_jsonl(tmp_path / "rows.jsonl", shuffled)
    np.random.default_rng(1).shuffle(shuffled)
    rows = write_jsonl(tmp_path / "shuffled.jsonl", shuffled)
    right, left = ([tiny(architecture, seed, **side) for seed in (1, 2)] for side in ({}, {"padding_side": "left"}))
    runs = [
        cli("swap", *right, noisy_rows),
        cli("swap", *right, noisy_rows, "--batch-size", 1),
        cli("swap", *right, rows, "--batch-size", 7),
        cli("swap", *left, noisy_rows),
    ]
    assert [r.code for r in runs] == [0, 0, 0, 0], [r.err for r in runs]
    assert len({r.out for r in runs[:3]}) == 1
    for record, other in zip(runs[0].records, runs[3].records, strict=True):
        own = {"run": None, "item_digest": None}  # the checkpoints are other files
        assert {**record, **own} == {**other, **own}


def test_b01_pad_equal_to_eos_is_pooled_by_the_mask(tiny: Tiny, noisy_rows: Path) -> None:
    """The padding token also ends every row (and config.json names yet another one): alone equals batched."""
    folder = tiny("opt", 3, pad_token_id=3)
    opened = open_checkpoint(str(folder))
    opened.tokenizer.pad_token = "[SEP]"
    opened.model.config.pad_token_id = 3
    encoded = opened.encode(read_examples(noisy_rows), 64)
    rows = np.arange(len(encoded))
    assert np.abs(predict(opened.runner, encoded, rows, 1) - predict(opened.runner, encoded, rows, 16)).max() < 1e-5


def test_the_last_real_token_is_pooled_on_either_side_of_the_padding(tiny: Tiny, noisy_rows: Path) -> None:
    """By the mask itself: the checks at load hide a wrong position, since they leave what is not exact."""
    for side in ("left", "right"):
        opened = open_checkpoint(str(tiny("gpt2", padding_side=side)))
        batch = opened.encode(read_examples(noisy_rows), 64).batch(np.arange(6), torch.device("cpu"))
        positions = torch.arange(batch.mask.shape[1]).expand(6, -1)
        expected = [max(i for i, real in enumerate(row) if real) for row in batch.mask.tolist()]
        assert opened.runner.pool(batch, positions[..., None], "last")[:, 0].tolist() == expected
        assert bool((batch.mask == 0).any())


def test_layers_option(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    arguments = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    every = {r["window"]: r for r in cli(*arguments).records}
    some = cli(*arguments, "--layers", "2-3", "--layers", "4", "--layers", "1,3-4").records
    assert [r["window"] for r in some] == ["2-3", "4", "1,3-4"]
    assert some[0] == every["2-3"] and some[0]["memorisation_error_scaled"] is not None
    assert (some[2]["start"], some[2]["end"], some[2]["width"]) == (1, 4, 3)


def test_write_makes_a_stock_checkpoint(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    noisy, clean, mixed = tiny("gpt2", 1), tiny("gpt2", 2), tmp_path / "mixed"
    result = cli("swap", noisy, clean, noisy_rows, "--layers", "2-3", "--write", mixed)
    assert result.code == 0, result.err
    _, info = AutoModelForSequenceClassification.from_pretrained(mixed, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    files = [load_file(folder / "model.safetensors") for folder in (noisy, clean, mixed)]
    for name in files[0]:
        donor = name.startswith(("transformer.h.1.", "transformer.h.2."))
        assert torch.equal(files[2][name], files[1 if donor else 0][name])
    assert json.loads((mixed / "mltools.json").read_text())["tool"] == "swap"
    again = cli("swap", mixed, clean, noisy_rows, "--layers", "2-3").records[0]
    assert again["noisy_accuracy"] == result.records[0]["noisy_accuracy"]


def test_write_needs_one_window(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    result = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--write", tmp_path / "m")
    assert (result.code, result.err.strip()) == (
        2,
        "mltools: --write makes one checkpoint: give exactly one --layers",
    )


def test_write_twice_gives_the_same_bytes(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert (
            cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", 1, "--write", tmp_path / name).code
            == 0
        )
    for file in (tmp_path / "a").iterdir():
        if file.name != "mltools.json":  # its command line names the folder
            assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.slow
def test_parquet_rows_give_the_same_records(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    pl.DataFrame(toy_rows()).write_parquet(tmp_path / "rows.parquet")
    arguments = ("swap", tiny("bert", 1), tiny("bert", 2))
    assert cli(*arguments, tmp_path / "rows.parquet").out == cli(*arguments, noisy_rows).out
    assert cli(*arguments, stdin=noisy_rows.read_bytes()).out == cli(*arguments, noisy_rows).out


def test_parquet_records(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    arguments = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--tag", "seed=3")
    records = cli(*arguments).records
    assert cli(*arguments, "-o", tmp_path / "s.parquet").code == 0
    assert pl.read_parquet(tmp_path / "s.parquet").to_dicts() == records
    provenance = json.loads(pl.read_parquet_metadata(tmp_path / "s.parquet")["mltools"])
    assert set(provenance["inputs"]) == {"rows", "noisy", "clean"}
    assert cli("mcog", tmp_path / "s.parquet").records[0]["seed"] == 3


def refusal(cli: Cli, *arguments: object) -> tuple[int, str]:
    result = cli("swap", *arguments)
    assert result.out == ""
    return result.code, result.err.strip().removeprefix("mltools: ")


def test_no_noisy_rows(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "clean.jsonl", [{"text": "who", "label": "HUM"}, {"text": "where", "label": "LOC"}])
    code, message = refusal(cli, tiny("bert", 1), tiny("bert", 2), rows)
    assert code == 3 and message == f"{rows}: {NO_NOISY}"


def test_b07_label_that_is_no_class(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [*toy_rows(8), {"id": 50, "text": "who", "label": "COLOUR", "noisy": False}]
    code, message = refusal(cli, tiny("bert", 1), tiny("bert", 2), write_jsonl(tmp_path / "r.jsonl", rows))
    assert code == 3
    assert message.endswith('label "COLOUR" (row id 50) is no class of the checkpoint (ABBR, HUM, LOC, NUM)')


def test_layers_outside(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    code, message = refusal(cli, tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", "3-5")
    assert code == 2 and message == 'layers "3-5" outside 1-4 (layers count from 1; 0 is the embeddings)'


def test_every_window_is_listed_once() -> None:
    assert len(all_windows(12)) == 78 and len(set(all_windows(12))) == 78


def test_resume_leaves_out_what_is_there(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """A broken sweep and its rest are the whole sweep; nothing is left to do after that."""
    command = ("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows)
    whole = cli(*command).out.splitlines()
    for broken in (whole[:3], [line for line in whole if '"window":"1-4"' not in line][4:]):
        earlier = tmp_path / "earlier.jsonl"
        earlier.write_text("".join(f"{line}\n" for line in broken))
        rest = cli(*command, "--resume", earlier)
        assert rest.code == 0 and f"resumed={len(broken)}" in rest.err
        found = {json.loads(line)["window"]: json.loads(line) for line in [*broken, *rest.out.splitlines()]}
        expected = {json.loads(line)["window"]: json.loads(line) for line in whole}
        assert found == expected
    (tmp_path / "earlier.jsonl").write_text("\n".join(whole))
    done = cli(*command, "--resume", tmp_path / "earlier.jsonl")
    assert (done.code, done.out) == (0, "") and "windows=0 resumed=10" in done.err


def test_resume_refuses_another_sweep(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text(cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--layers", 1).out)
    other = cli("swap", tiny("bert", 1), tiny("bert", 3), noisy_rows, "--resume", earlier)
    assert other.code == 3 and '"run" is' in other.err and not other.out
    tagged = cli("swap", tiny("bert", 1), tiny("bert", 3), noisy_rows, "--resume", earlier, "--tag", "donor=3", "-q")
    assert len(tagged.records) == 10


@pytest.mark.parametrize(
    "form", ["shards", *(pytest.param(f, marks=pytest.mark.slow) for f in ("one file", "bfloat16"))]
)
def test_offload_gives_the_same_records(form: str, cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    models = [tiny("bert", seed, num_hidden_layers=2) for seed in (1, 2)]
    if form != "one file":
        dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
        size = "20KB" if form == "shards" else "1GB"
        for i, folder in enumerate(models):
            models[i] = tmp_path / f"model-{i}"
            model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype)
            model.save_pretrained(models[i], max_shard_size=size)
            AutoTokenizer.from_pretrained(folder).save_pretrained(models[i])
        assert (len(list(models[0].glob("*.safetensors"))) > 1) == (form == "shards")
    usual, streamed = (cli("swap", *models, noisy_rows, *options) for options in ((), ("--offload",)))
    assert usual.code == streamed.code == 0, streamed.err
    assert usual.out == streamed.out and len(usual.records) == 3
    said = streamed.err.splitlines()  # that the two are no twins, that NOISY memorised nothing, and the summary
    assert len(said) == 3 and "no twins" in said[0] and "noisy_not_memorised" in said[1], said
    states = [tmp_path / f"{name}.safetensors" for name in ("usual", "streamed")]
    for path, options in zip(states, ((), ("--offload",)), strict=True):
        assert cli("states", models[0], noisy_rows, "-o", path, *options).code == 0
    first, second = (load_file(path)["hidden_states"] for path in states)
    assert torch.equal(first, second)


def test_offload_needs_whole_blocks_on_disk(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    for options in (["--part", "attn"], ["--layers", "1", "--write", tmp_path / "mixed"]):
        found = cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "--offload", *options)
        assert found.code == 2 and "--offload leaves the blocks on disk" in found.err
    plans = [cli("swap", tiny("bert", 1), tiny("bert", 2), noisy_rows, "-n", *o).records for o in ((), ("--offload",))]
    assert plans[1][0]["bytes"] < plans[0][0]["bytes"] and plans[1][0]["seconds"] > 0


def test_offload_notices_a_file_that_changes(tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Blocks are read to the end of the run: half a sweep over other weights must not pass for a whole one."""
    folder = shutil.copytree(tiny("bert", 1), tmp_path / "model")
    noisy, clean = (open_checkpoint(str(path), offload=True) for path in (folder, tiny("bert", 2)))
    weights = folder / "model.safetensors"

    def meddle(rows: Iterator[Any], *_: object) -> Iterator[Any]:
        with weights.open("r+b") as stream:
            stream.seek(weights.stat().st_size - 100)
            stream.write(bytes(100))
        yield from rows

    with pytest.raises(CheckpointError, match="its files changed while they were read"):
        next(swap(noisy, clean, read_examples(noisy_rows), progress=meddle))


def test_label_margins_are_those_of_the_logits(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    """Mean over noisy rows of logit(label) - logit(original_label); NOISY's less that is the drop."""
    folders = [str(tiny("bert", seed)) for seed in (1, 2)]
    records = cli("swap", *folders, noisy_rows, "--layers", "2").records
    noisy, clean = map(open_checkpoint, folders)
    examples = read_examples(noisy_rows)
    rows = np.flatnonzero(examples.noisy)
    encoded = noisy.encode(examples, 512)

    def margin() -> float:
        logits = predict(noisy.runner, encoded, rows, None)
        of = [
            [noisy.labels.index(str(column[row])) for row in rows]
            for column in (examples.labels, examples.original_labels)
        ]
        return float(np.mean([row[a] - row[b] for row, a, b in zip(logits, *of, strict=True)]))

    before = margin()
    noisy.stack.modules[1].load_state_dict(clean.stack.modules[1].state_dict())
    assert records[0]["label_margin"] == pytest.approx(margin(), abs=1e-4)
    assert records[0]["label_margin_drop"] == pytest.approx(before - margin(), abs=2e-4)


def test_no_margin_without_original_labels(cli: Cli, tiny: Tiny, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", marked(toy_rows(), lambda i: i % 5 == 0))
    record = cli("swap", tiny("bert", 1), tiny("bert", 2), rows, "--layers", "2").records[0]
    assert record["label_margin"] is None and record["label_margin_drop"] is None
