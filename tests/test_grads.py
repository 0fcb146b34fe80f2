"""grads: conformance with the released code, exactness under batching, parts, and what it refuses."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from conftest import CONFORMANCE, Cli, marked, settle, toy_rows, write_jsonl
from mltools.commands.grads import Settings as GradsSettings
from mltools.commands.grads.gradients import Gradients, _set_aside, tensor_sums
from mltools.commands.grads.work import Tensors, choose_rows, find_tensors, grads, records, scores
from mltools.errors import CheckpointError, RowsError, TrainingError, exit_status
from mltools.io.examples import Examples, read_examples
from mltools.io.kinds import GradRecord
from mltools.model.checkpoint_loading import open_checkpoint
from mltools.model.validity import Validity
from mltools.spec import bare

Tiny = Callable[..., Path]
CASES = ("bert-questions", "neox-questions")
PRESETS = {"paper": "grads_cross_entropy", "released-code": "grads_label_logit"}


def column(found: list[GradRecord], name: str) -> list[float]:
    return [getattr(record, name) for record in found]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("preset", PRESETS)
def test_conformance(case: str, preset: str) -> None:
    """Both objectives, and all variants: L1 and L2, with and without clean rows, either checkpoint."""
    folder = CONFORMANCE / case
    expected = json.loads((folder / "expected.json").read_text())
    values = expected[PRESETS[preset]]
    found = list(
        grads(
            str(folder / "memorised"),
            read_examples(folder / "noisy.jsonl"),
            settle("grads", preset, max_length=64),
            frozen=str(folder / "frozen"),
            clean_ids=expected["grads_clean_ids"],
        )
    )
    names = {"memorised": "", "frozen": "frozen_"}
    groups = {"noisy_only": "noisy", "minus_clean": "difference"}
    for checkpoint, prefix in names.items():
        for variant, group in groups.items():
            for norm in ("l1", "l2"):
                assert column(found, f"{norm}_{prefix}{group}") == pytest.approx(
                    values[f"{checkpoint}_{norm}_{variant}"], rel=1e-4
                ), (checkpoint, norm, variant)
    assert column(found, "score") == pytest.approx(values["score_l1_minus_clean_over_frozen_sum1"], rel=1e-4)


def golden() -> dict[str, Any]:
    post: dict[str, Any] = json.loads((CONFORMANCE / "golden.json").read_text())["gradient_post"]
    return post


def golden_sums(post: dict[str, Any], checkpoint: str) -> Gradients:
    tensors = {
        group: {name: torch.tensor(values) for name, values in post[checkpoint][group].items()}
        for group in ("noisy", "clean")
    }
    difference = {name: tensors["noisy"][name] - tensors["clean"][name] for name in tensors["noisy"]}
    return Gradients(tensor_sums(tensors["noisy"]), tensor_sums(tensors["clean"]), tensor_sums(difference))


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("minus_clean", [True, False])
@pytest.mark.parametrize("over_frozen", [True, False])
def test_released_post_processing(norm: str, minus_clean: bool, over_frozen: bool) -> None:
    """The eight post-processings of Appendix E, on gradients that the released functions were given."""
    post = golden()
    config = settle("grads", "released-code", norm=norm, noisy_only=not minus_clean)
    layers = {name: int(name.split(".")[3]) + 1 for name in post["M"]["noisy"] if ".layers." in name}
    kept = [name for name in layers if not any(word in name for word in config.leave_out)]
    tensors = Tensors(layers, {"all": kept}, 4)
    rows = (np.arange(3), np.arange(3))
    validity = Validity(1.0, 1.0, True, None)
    frozen = golden_sums(post, "frozen") if over_frozen else None
    found = list(records(tensors, golden_sums(post, "M"), frozen, rows, config, validity))
    expected = post["out"][f"{norm},subtract_clean={minus_clean},normalise_frozen={over_frozen}"]
    assert column(found, "score") == pytest.approx(expected, rel=1e-6)
    name = f"score_{norm}_{'difference' if minus_clean else 'noisy'}{'_over_frozen' if over_frozen else ''}"
    assert column(found, name) == column(found, "score")


def plain_mean(folder: Path, examples: Examples, rows: list[int], objective: str) -> dict[str, torch.Tensor]:
    """The mean gradient as one would write it down: stock model, a row at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for row in rows:
        inputs = tokenizer(examples.fields[row][0], return_tensors="pt", return_token_type_ids=False)
        label = model.config.label2id[examples.labels[row]]
        logits = model(**inputs).logits[0]
        value = logits.log_softmax(0)[label] if objective == "loss" else logits[label]
        (value / len(rows)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "architecture",
    [
        "bert",
        "gpt2",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("deberta-v2", "modernbert", "opt", "gpt_neo", "qwen2")),
    ],
)
@pytest.mark.parametrize("objective", ["loss", "logit"])
def test_b17_equals_a_loop_over_rows(
    architecture: str, objective: str, tiny: Tiny, noisy_rows: Path, tmp_path: Path
) -> None:
    folder, examples = tiny(architecture, 1), read_examples(noisy_rows)
    config = settle("grads", "paper", objective=objective)
    found = list(grads(str(folder), examples, config, save=tmp_path / "gradients.safetensors"))
    saved = load_file(tmp_path / "gradients.safetensors")
    noisy, clean = choose_rows(examples, config)
    assert clean is not None
    totals = dict.fromkeys(range(1, 5), 0.0)
    plain = {
        group: plain_mean(folder, examples, rows.tolist(), objective)
        for group, rows in (("noisy", noisy), ("clean", clean))
    }
    stack = open_checkpoint(str(folder)).stack
    for key, tensor in saved.items():
        group, _, name = key.partition("/")
        assert (tensor - plain[group][name]).abs().max() < 2e-6 * max(1.0, float(plain[group][name].abs().max()))
        if group == "noisy":
            layer = stack.layer_of(name)
            assert layer is not None
            totals[layer] += float((plain["noisy"][name] - plain["clean"][name]).abs().sum())
    assert len(saved) == 2 * len(list(stack.modules.parameters()))
    assert column(found, "l1_difference") == pytest.approx(list(totals.values()), rel=1e-4)


@pytest.mark.parametrize("batch_size", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 48))])
def test_batches_change_nothing(batch_size: int, tiny: Tiny, noisy_rows: Path) -> None:
    examples = read_examples(noisy_rows)
    whole, cut = (
        list(grads(str(tiny("bert", 1)), examples, settle("grads", "paper", batch_size=size)))
        for size in (None, batch_size)
    )
    for name in ("l1_noisy", "l1_clean", "l1_difference", "l2_difference", "score"):
        assert column(cut, name) == pytest.approx(column(whole, name), rel=1e-5)


def test_row_order_changes_nothing(tiny: Tiny, tmp_path: Path, noisy_rows: Path) -> None:
    backwards = write_jsonl(tmp_path / "rows.jsonl", toy_rows()[::-1])
    chosen = []
    for path in (noisy_rows, backwards):
        examples = read_examples(path)
        clean = choose_rows(examples, bare(GradsSettings))[1]
        assert clean is not None
        chosen.append({examples.ids[i] for i in clean})
    assert chosen[0] == chosen[1]
    one, other = (list(grads(str(tiny("bert", 1)), read_examples(path))) for path in (noisy_rows, backwards))
    assert column(one, "score") == pytest.approx(column(other, "score"), rel=1e-5)


def test_clean_rows_are_as_many_and_drawn_by_seed(noisy_rows: Path) -> None:
    examples = read_examples(noisy_rows)
    draws = []
    for seed in (1, 1, 2):
        noisy, clean = choose_rows(examples, bare(GradsSettings, seed=seed))
        assert clean is not None and len(clean) == len(noisy) == sum(examples.noisy) == len(set(clean.tolist()))
        assert not any(examples.noisy[i] for i in clean)
        draws.append(clean.tolist())
    assert draws[0] == draws[1] != draws[2]
    assert choose_rows(examples, bare(GradsSettings, noisy_only=True))[1] is None


def test_parts_side_by_side(tiny: Tiny, noisy_rows: Path) -> None:
    """L1 norms of the parts add up to the block's, squares of L2 norms too; a part's score is that of --part."""
    examples, folder = read_examples(noisy_rows), str(tiny("opt", 1))
    for norm in ("l1", "l2"):
        power = 1 if norm == "l1" else 2
        for record in grads(folder, examples, settle("grads", "paper", norm=norm)):
            parts = [record.norm_attn, record.norm_mlp, record.norm_norm]
            assert all(part is not None and part > 0 for part in parts)
            total = sum(part**power for part in parts if part is not None)
            assert total == pytest.approx(getattr(record, f"{norm}_difference") ** power, rel=1e-9)
    whole = list(grads(folder, examples))
    for part in ("attn", "mlp", "norm"):
        alone = list(grads(folder, examples, settle("grads", "paper", part=part)))
        assert column(alone, "score") == column(whole, f"score_{part}")
        assert column(alone, "l1_difference") == column(whole, f"norm_{part}")


def test_opt_norms_are_in_the_default_and_out_in_the_released_preset(tiny: Tiny, noisy_rows: Path) -> None:
    """The released name filter drops final_layer_norm of every layer of OPT (released-code 2.2, point 17)."""
    folder = str(tiny("opt", 1))
    checkpoint = open_checkpoint(folder)
    default = set(find_tensors(checkpoint, bare(GradsSettings)).parts["all"])
    released = set(find_tensors(checkpoint, settle("grads", "released-code")).parts["all"])
    dropped = {f"model.decoder.layers.{i}.final_layer_norm.{kind}" for i in range(4) for kind in ("weight", "bias")}
    assert dropped <= default and default - released == dropped
    examples = read_examples(noisy_rows)
    full = list(grads(folder, examples, settle("grads", "released-code", leave_out=())))
    less = list(grads(folder, examples, settle("grads", "released-code")))
    for more, fewer in zip(full, less, strict=True):
        assert more.l1_noisy > fewer.l1_noisy
        assert more.norm_norm is not None and fewer.norm_norm is not None and more.norm_norm > fewer.norm_norm
        assert more.norm_attn == fewer.norm_attn


@pytest.mark.parametrize("architecture", ["bert", "gpt_neox", "llama"])
def test_released_preset_drops_nothing_else(architecture: str, tiny: Tiny) -> None:
    checkpoint = open_checkpoint(str(tiny(architecture, 1)))
    default, released = (find_tensors(checkpoint, settle("grads", p)).parts["all"] for p in PRESETS)
    assert default == released


def test_scores_sum_to_one_and_undefined_is_null() -> None:
    assert scores([1.0, 3.0]) == [0.25, 0.75]
    assert scores([1.0, 3.0], [1.0, 1.5]) == pytest.approx([1 / 3, 2 / 3])
    assert scores([0.0, 0.0]) is None
    assert scores([1.0, 2.0], [0.0, 1.0]) is None
    assert scores(None) is None


def test_a_gradient_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(TrainingError, match="the gradient of w is not finite"):
        tensor_sums({"w": torch.tensor([1.0, math.inf])})
    with pytest.raises(TrainingError, match="the gradient of w is not finite"):
        tensor_sums({"w": torch.tensor([math.nan])})
    with pytest.raises(TrainingError, match="the gradient of w is not finite, or too large to square"):
        tensor_sums({"w": torch.full((3, 16), 1e25)})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_k10_gradients_set_aside_on_a_full_disk() -> None:
    """The library's own error says no more than how many bytes it wrote."""
    weight = torch.nn.Parameter(torch.ones(100, 100))
    weight.grad = torch.ones(100, 100)
    with pytest.raises(OSError) as raised:
        _set_aside({"weight": weight}, Path("/dev/full"))
    assert exit_status(raised.value) == 6


def test_command(cli: Cli, tiny: Tiny, noisy_rows: Path, tmp_path: Path) -> None:
    """Records, the summary, and the saved gradients with how they were made."""
    save = tmp_path / "gradients.safetensors"
    arguments = ("grads", tiny("bert", 1), noisy_rows, "--frozen", tiny("bert", 2), "--tag", "seed=3")
    result = cli(*arguments, "--save", save)
    assert result.code == 0, result.err
    assert [record["layer"] for record in result.records] == [1, 2, 3, 4]
    assert sum(record["score"] for record in result.records) == pytest.approx(1)
    assert {record["seed"] for record in result.records} == {3}
    assert all(value is not None for record in result.records for value in record.values())
    assert result.err.splitlines()[-1].startswith(
        "grads: layers=4 noisy=10 clean=10 objective=loss norm=l1 seed=1 preset=paper"
    )
    m_cog = cli("mcog", stdin=result.out).records[0]["m_cog"]
    assert m_cog == pytest.approx(sum(record["layer"] * record["score"] for record in result.records))
    assert cli(*arguments).out == result.out
    assert cli(*arguments, "--save", save).code == 2


def test_noisy_only(cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli("grads", tiny("bert", 1), noisy_rows, "--noisy-only", "--norm", "l2")
    assert result.code == 0, result.err
    norms = [record["l2_noisy"] for record in result.records]
    for record in result.records:
        assert record["score"] == pytest.approx(record["l2_noisy"] / sum(norms)) == record["score_l2_noisy"]
        assert record["n_clean"] is record["l1_clean"] is record["l1_difference"] is record["l1_frozen_noisy"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "los"), '--objective "los": choose loss or logit; did you mean loss?'),
        (("--norm", "l3"), '--norm "l3": choose l1 or l2'),
        (("--part", "mpl"), '--part "mpl": choose all, attn, mlp or norm; did you mean mlp?'),
    ],
)
def test_usage(options: tuple[str, str], message: str, cli: Cli, tiny: Tiny, noisy_rows: Path) -> None:
    result = cli("grads", tiny("bert", 1), noisy_rows, *options)
    assert result.code == 2
    assert result.err.startswith(f"mltools: {message}")


def test_rows_that_cannot_be_used(tiny: Tiny, tmp_path: Path, cli: Cli) -> None:
    few = write_jsonl(tmp_path / "few.jsonl", marked(toy_rows(10), lambda i: i > 3))
    result = cli("grads", tiny("bert", 1), few)
    assert (result.code, result.out) == (3, "")
    assert "4 clean rows are fewer than the 6 noisy ones that they are compared with" in result.err
    assert cli("grads", tiny("bert", 1), few, "--noisy-only").code == 0
    none = write_jsonl(tmp_path / "none.jsonl", marked(toy_rows(10), lambda _: False))
    assert "no noisy rows" in cli("grads", tiny("bert", 1), none).err
    with pytest.raises(RowsError, match=r"few\.jsonl: no clean row has the id 9"):
        choose_rows(read_examples(few), bare(GradsSettings), [9])


def test_checkpoints_that_cannot_be_used(tiny: Tiny, noisy_rows: Path, cli: Cli) -> None:
    result = cli("grads", tiny("bert", 1), noisy_rows, "--frozen", tiny("electra", 1))
    assert result.code == 4 and "differ in" in result.err
    with pytest.raises(CheckpointError, match=r"no tensor of layer 1 is left \(--part all, --leave-out bert\)"):
        find_tensors(open_checkpoint(str(tiny("bert", 1))), bare(GradsSettings, leave_out=("bert",)))


def test_b17_a_lost_row_is_an_error(tiny: Tiny, noisy_rows: Path) -> None:
    """If what shows progress stops short, no number comes out."""
    examples = read_examples(noisy_rows)
    with pytest.raises(AssertionError, match="rows were used"):
        list(grads(str(tiny("bert", 1)), examples, progress=lambda rows, total: iter([next(rows)])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu(tiny: Tiny, noisy_rows: Path) -> None:
    examples = read_examples(noisy_rows)
    gpu, cpu = (list(grads(str(tiny("bert", 1)), examples, device=torch.device(device))) for device in ("cuda", "cpu"))
    assert column(gpu, "score") == pytest.approx(column(cpu, "score"), rel=1e-3)
