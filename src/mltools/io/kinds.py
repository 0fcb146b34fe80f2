"""The kinds of records that the tools put out, one frozen dataclass each.

A dataclass here is the schema: field names are column names, `column()` says what each holds. Undefined
is null. Tags (constant columns) follow the fields.
"""

import dataclasses
import re
from collections.abc import Collection
from dataclasses import MISSING, dataclass
from typing import Any


def column(doc: str, default: Any = MISSING, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare a field of a record: what it holds, its unit, when it is null, and the range of its numbers."""
    return dataclasses.field(metadata={"doc": doc, "low": low, "high": high}, default=default)


def amount(doc: str, default: Any = MISSING) -> Any:
    """Declare a field that is 0 or more."""
    return column(doc, default, low=0)


def fraction(doc: str, default: Any = MISSING) -> Any:
    """Declare a field that lies in 0-1."""
    return column(doc, default, low=0, high=1)


VALIDITY = {
    "baseline_noisy_accuracy": "the checkpoint's accuracy on all noisy rows against `label`, nothing changed; null if "
    "there are none, or if it has no head",
    "baseline_clean_accuracy": "the same on all clean rows, or on those that swap --clean-rows draws",
    "n_cut": "rows measured that are longer than --max-length, which were cut",
    "n_unlabelled": "rows without a label, which were left out",
    "valid": "false if what was measured shows that the experiment did not take place, as `valid_reason` says; null "
    "if unknown, as for a probe whose target is not noise",
    "valid_reason": "noisy_not_memorised (baseline_noisy_accuracy below --min-noisy-accuracy), "
    "clean_gives_noisy_labels (CLEAN gives the noisy label of more than half of the noisy rows) or clean_untrained "
    "(CLEAN's accuracy on clean rows below .9 of NOISY's); null unless `valid` is false",
}
"""What the columns say by which several kinds of records tell whether their experiment took place."""

CARRIED_VALIDITY = {
    "valid": "false if any input record's is, true if all are, null if that is unknown of some",
    "valid_reason": "why not valid; several are joined by commas",
}
"""The same of records that sum others up (`analysis.carried`)."""


ITEM_DIGEST = (
    "digest of the item of work, of `run` and the item's own options: the same wherever it is done; null where an open "
    "checkpoint was handed over"
)


THREADS = "threads that torch computed with, which decide the last digits; null in records of version 0.1"


class OfLayers:
    """A record about a model of L layers: `n_layers` is `layers`, which stays under that name one version more."""

    layers: int

    def __post_init__(self) -> None:
        """Give it the new name too."""
        object.__setattr__(self, "n_layers", self.layers)


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of `finetune`. Accuracies are fractions 0-1, measured in eval mode after the epoch."""

    tool: str = column("finetune")
    epoch: int = amount("epoch, from 1")
    epochs: int = amount("epochs of the whole run")
    step: int = amount("optimiser steps so far")
    learning_rate: float = amount("learning rate of the epoch's last step")
    loss: float = amount("mean training cross-entropy over the epoch, nats, dropout on")
    n_noisy: int = amount("noisy training rows")
    noisy_accuracy: float | None = fraction(
        "accuracy on noisy rows against the target; null if there are none, or if not measured this epoch "
        "(the training set is measured until `memorised` is reached, and after the last epoch)"
    )
    n_clean: int = amount("clean training rows")
    clean_accuracy: float | None = fraction("the same on clean rows")
    train_accuracy: float | None = fraction("the same on all training rows; null if not measured this epoch")
    train_macro_f1: float | None = fraction("macro-averaged F1 on all training rows; null if not measured")
    n_validation: int | None = amount("validation rows; null without --validation")
    validation_loss: float | None = amount("mean cross-entropy on validation rows, nats; null without")
    validation_accuracy: float | None = fraction("accuracy on validation rows; null without")
    validation_macro_f1: float | None = fraction("macro-averaged F1 on validation rows; null without")
    memorised: bool = column("whether the `memorised` criterion has been met by now, in this attempt")
    n_aux: int | None = amount("auxiliary training rows; null without --aux", None)
    aux_loss: float | None = amount("mean auxiliary cross-entropy over the epoch; null without --aux", None)
    aux_accuracy: float | None = fraction("accuracy on auxiliary training rows; null if not measured", None)
    validation_accuracy_normalised: float | None = column(
        "(validation_accuracy - r) / (1 - r), where r = 1 / classes is guessing's: 0 is no better, 1 all right (Table "
        "2); null without --validation",
        None,
        high=1,
    )
    attempt: int = amount("attempt of the run, from 1; each further one of --raise-lr has twice the rate", 1)
    memorised_epoch: int | None = amount("first epoch of the attempt that met the criterion; null before", None)
    kept: bool | None = column(
        "whether the checkpoint holds the model after this epoch: true in the last record alone, which is an earlier "
        "one once more where --raise-lr did best in an earlier attempt; null in records of the first version",
        None,
    )


@dataclass(frozen=True)
class WindowRecord(OfLayers):
    """One window of `swap` or `retrain`. Accuracies and errors are fractions 0-1."""

    tool: str = column("swap or retrain")
    start: int = amount("lowest layer of the window, from 1")
    end: int = amount("highest layer of the window, included")
    width: int = amount("number of layers in the window")
    layers: int = amount("number of layers of the model, L")
    window: str = column("the window as a layer list, e.g. 2-4 or 1,4,7-8")
    part: str = column("which tensors of a block: all, attn, mlp or norm")
    n_noisy: int = amount("noisy rows")
    noisy_accuracy: float = fraction("accuracy on noisy rows against `label`")
    memorisation_error: float = fraction("1 - noisy_accuracy")
    memorisation_error_scaled: float | None = amount(
        "memorisation_error divided by the full window's, so that all layers give 1; null until the full "
        "window is known, or where its error is 0"
    )
    n_clean: int = amount("clean rows measured: all, or those that --clean-rows draws (swap), held-out ones (retrain)")
    clean_accuracy: float | None = fraction("accuracy on those against `label`; null if there are none")
    reverted: float | None = fraction(
        "share of noisy rows now predicted as their original label; null where a noisy row does not say it"
    )
    n_train: int | None = amount("rows retrained on; null for swap", None)
    train_accuracy: float | None = fraction(
        "accuracy on the rows retrained on, at most 512 of them, drawn by (seed, id); null for swap", None
    )
    baseline_train_accuracy: float | None = fraction("NOISY's own accuracy on the same rows; null for swap", None)
    learnt: bool | None = column(
        "whether train_accuracy reaches .9 of baseline_train_accuracy: if not, the error is also that of a window "
        "that was not retrained; null for swap",
        None,
    )
    train_head: bool | None = column("whether what follows the last block was trained too; null for swap", None)
    run: str | None = column("digest of the settings and inputs that the windows of one sweep share", None)
    n_ties: int | None = amount(
        "rows whose two best logits differ by less than 1e-5, so that their prediction is not to be trusted", None
    )
    positions: str | None = column(
        "whose states CLEAN gave after the window: all, pooled (the pooled token's) or others; null for retrain", None
    )
    label_margin: float | None = column(
        "mean over noisy rows of logit(label) - logit(original_label), to 4 decimals; null where a noisy row does not "
        "say the latter, and in reduced precision",
        None,
    )
    label_margin_drop: float | None = column(
        "NOISY's label_margin, nothing changed, less the window's: how much of the memory the window holds, without a "
        "threshold; null as `label_margin`",
        None,
    )
    baseline_noisy_accuracy: float | None = fraction(VALIDITY["baseline_noisy_accuracy"], None)
    baseline_clean_accuracy: float | None = fraction(VALIDITY["baseline_clean_accuracy"], None)
    n_cut: int | None = amount(VALIDITY["n_cut"], None)
    n_unlabelled: int | None = amount(VALIDITY["n_unlabelled"], None)
    donor_noisy_reverted: float | None = fraction(
        "share of noisy rows that CLEAN, whole and with its own head, predicts as their original label; null for "
        "retrain, and where a noisy row does not say it",
        None,
    )
    donor_clean_accuracy: float | None = fraction("accuracy of CLEAN on clean rows; null for retrain", None)
    twins: bool | None = column(
        "false where provenance or embeddings show that CLEAN and NOISY differ in more than the labels (seed, rows, "
        "target, start), true where provenance shows that they do not; null where nothing shows it, for retrain, and "
        "with --donor-is other",
        None,
    )
    valid: bool | None = column(VALIDITY["valid"], None)
    valid_reason: str | None = column(VALIDITY["valid_reason"], None)
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)
    item_digest: str | None = column(ITEM_DIGEST, None)
    clean_accuracy_ci_low: float | None = fraction(
        "lower end of the 95 % Wilson interval of the accuracy on all clean rows, of which --clean-rows drew some; "
        "null where all were measured, and for retrain",
        None,
    )
    clean_accuracy_ci_high: float | None = fraction("upper end of it", None)
    threads: int | None = amount(THREADS, None)
    precision: str | None = column(
        "number type of the weights that rows were run with: fp32, or bf16, in which case those near a tie were run "
        "again in fp32; null for retrain",
        None,
    )
    n_rerun: int | None = amount(
        "rows that were run again in fp32 under this window, since the gap between their two best logits was below "
        "four times the largest error seen on a sample, or twice that of such rows; null in fp32, and for retrain",
        None,
    )


@dataclass(frozen=True)
class WorkRecord(OfLayers):
    """One work item, which one call can do alone, that --dry-run lists instead of doing it. See docs/costs.md."""

    tool: str = column("the tool that would run")
    item: str = column("the options that make the command do this item alone; empty if it is all one item")
    layers: int = amount("number of layers of the model, L")
    rows: int = amount("rows")
    tokens_per_row: float | None = amount("mean length of a row in tokens; null where no model is run")
    steps: int = amount("optimiser steps")
    applications: int = amount("forward layer applications: one block on one row is 1")
    operations: float = amount("floating-point operations, of backward passes too")
    seconds: float = amount("operations over the rate of matrix products measured here")
    bytes: int = amount("memory that weights, gradients, moments and kept states take; a batch comes on top")
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)
    item_digest: str | None = column(ITEM_DIGEST, None)
    command: str | None = column("the command line that does this item alone; null in Python", None)


@dataclass(frozen=True)
class GradRecord(OfLayers):
    """One layer of `grads`: norms of mean gradients, and the scores made of them (Appendix E).

    A norm is over the tensors of the block that `part` names. `noisy` and `clean` are the gradients of the two
    groups of rows, `difference` is noisy less clean, tensor by tensor, before the norm; `frozen_*` is the same of
    the --frozen checkpoint. A score is a norm, or its quotient by the frozen one, divided by the sum over layers.
    """

    tool: str = column("grads")
    layer: int = amount("layer, from 1")
    layers: int = amount("number of layers, L")
    score: float | None = amount("the score chosen by the options, over layers of sum 1; null where undefined")
    part: str = column("which tensors of a block: all, attn, mlp or norm")
    objective: str = column("what is differentiated: loss (minus the mean cross-entropy), logit (the label's, mean)")
    norm: str = column("the norm that `score` and the columns by part are of: l1 or l2")
    n_noisy: int = amount("noisy rows")
    n_clean: int | None = amount("clean rows; null with --noisy-only, as all that is of clean rows")
    l1_noisy: float = amount("L1 norm, noisy rows")
    l1_clean: float | None = amount("L1 norm, clean rows")
    l1_difference: float | None = amount("L1 norm, noisy less clean")
    l1_frozen_noisy: float | None = amount("L1 norm, noisy rows, frozen checkpoint; null without --frozen")
    l1_frozen_clean: float | None = amount("L1 norm, clean rows, frozen checkpoint")
    l1_frozen_difference: float | None = amount("L1 norm, noisy less clean, frozen checkpoint")
    l2_noisy: float = amount("L2 norm, noisy rows")
    l2_clean: float | None = amount("L2 norm, clean rows")
    l2_difference: float | None = amount("L2 norm, noisy less clean")
    l2_frozen_noisy: float | None = amount("L2 norm, noisy rows, frozen checkpoint; null without --frozen")
    l2_frozen_clean: float | None = amount("L2 norm, clean rows, frozen checkpoint")
    l2_frozen_difference: float | None = amount("L2 norm, noisy less clean, frozen checkpoint")
    score_l1_noisy: float | None = amount("score of l1_noisy")
    score_l1_difference: float | None = amount("score of l1_difference")
    score_l1_noisy_over_frozen: float | None = amount("score of l1_noisy / l1_frozen_noisy")
    score_l1_difference_over_frozen: float | None = amount("score of l1_difference / l1_frozen_difference")
    score_l2_noisy: float | None = amount("score of l2_noisy")
    score_l2_difference: float | None = amount("score of l2_difference")
    score_l2_noisy_over_frozen: float | None = amount("score of l2_noisy / l2_frozen_noisy")
    score_l2_difference_over_frozen: float | None = amount("score of l2_difference / l2_frozen_difference")
    norm_attn: float | None = amount(
        "norm of the attention's tensors, of the gradient that `score` is of; null where "
        "the architecture does not show the parts"
    )
    norm_mlp: float | None = amount("the same, the tensors that are neither attention nor norms")
    norm_norm: float | None = amount("the same, the normalisation layers' tensors")
    score_attn: float | None = amount("`score` as --part attn gives it")
    score_mlp: float | None = amount("`score` as --part mlp gives it")
    score_norm: float | None = amount("`score` as --part norm gives it")
    baseline_noisy_accuracy: float | None = fraction(VALIDITY["baseline_noisy_accuracy"], None)
    baseline_clean_accuracy: float | None = fraction(VALIDITY["baseline_clean_accuracy"], None)
    n_cut: int | None = amount(VALIDITY["n_cut"], None)
    n_unlabelled: int | None = amount(VALIDITY["n_unlabelled"], None)
    valid: bool | None = column(VALIDITY["valid"], None)
    valid_reason: str | None = column(VALIDITY["valid_reason"], None)
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True, kw_only=True)
class OfMargin(OfLayers):
    """A record about what a layer contributes to the drop of `label_margin` when all blocks become CLEAN's."""

    tool: str = column("attribute or shapley")
    layer: int = amount("layer, from 1")
    layers: int = amount("number of layers, L")
    score: float = amount("`contribution`, or 0 if that is negative")
    contribution: float = column("mean over noisy rows of the layer's part in their drop; may be negative")
    n_noisy: int = amount("noisy rows")
    label_margin: float = column("mean over noisy rows of NOISY's logit(label) - logit(original_label)")
    label_margin_drop: float = column(
        "that less the same with all of CLEAN's blocks: what the contributions of all layers sum to"
    )
    baseline_noisy_accuracy: float | None = fraction(VALIDITY["baseline_noisy_accuracy"])
    baseline_clean_accuracy: float | None = fraction(VALIDITY["baseline_clean_accuracy"])
    n_cut: int | None = amount(VALIDITY["n_cut"])
    n_unlabelled: int | None = amount(VALIDITY["n_unlabelled"])
    donor_noisy_reverted: float | None = fraction(
        "share of noisy rows that CLEAN, whole and with its own head, predicts as their original label; null with "
        "--donor-is other"
    )
    donor_clean_accuracy: float | None = fraction("accuracy of CLEAN on clean rows; null with --donor-is other")
    twins: bool | None = column("whether CLEAN and NOISY differ in the labels alone, as in window records")
    valid: bool | None = column(VALIDITY["valid"])
    valid_reason: str | None = column(VALIDITY["valid_reason"])
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True, kw_only=True)
class AttributionRecord(OfMargin):
    """One layer of `attribute`, or one tensor of it (--by tensor): its part in the path integral."""

    tensor: str | None = column("name of the tensor within its block; null without --by tensor", None)
    gap: float = amount(
        "share of the drop by which the sum of all contributions misses it: the error bar of the integration"
    )
    gap_max: float = amount("the largest gap of a row, as a share of its drop or of the mean |drop|, if that is more")
    nodes: int = amount("nodes of the integration, to begin with")
    nodes_max: int = amount("most nodes that a row needed")
    n_refined: int = amount("noisy rows for which the nodes were doubled, since their gap exceeded --gap")


@dataclass(frozen=True, kw_only=True)
class ShapleyRecord(OfMargin):
    """One layer of `shapley`: its mean contribution over the orders in which layers can be swapped."""

    exact: bool = column("whether all sets of layers were measured; else orders were drawn")
    n_samples: int | None = amount("pairs of an order and its reverse that were drawn; null where exact")
    standard_error: float | None = amount("of `contribution`, over these pairs; null where exact")
    ci_low: float | None = column("lower end of the 95 % interval of `contribution`; null where exact")
    ci_high: float | None = column("upper end of it")
    made_from: str | None = column("digest of the settings and inputs; what --resume goes on with has the same", None)
    threads: int | None = amount(THREADS, None)


@dataclass(frozen=True)
class ProbeRecord(OfLayers):
    """One layer of `probe` for one target. F1s are fractions 0-1 on held-out test rows, means over probe seeds.

    F1 is that of the noisy class for the target `noise`, else macro-averaged over the classes that occur among
    the rows measured or the predictions for them.
    """

    tool: str = column("probe")
    layer: int = amount("layer, from 1; 0 is the embeddings")
    layers: int = amount("number of layers, L")
    score: float | None = amount(
        "gain in f1 over the layer below (layer 1: over `baseline_f1`), 0 if it falls; null for layer 0"
    )
    target: str = column("what was predicted: noise, label or original_label")
    probe: str = column("mlp or linear")
    f1: float = fraction("mean F1 on all test rows")
    f1_sd: float | None = amount("sample standard deviation over seeds; null for one seed")
    f1_noisy: float | None = fraction("mean F1 on noisy test rows, over the seeds that have some; null if none has")
    f1_noisy_sd: float | None = amount("its standard deviation; null for fewer than two seeds")
    f1_clean: float | None = fraction(
        "mean F1 on clean test rows; null for the target noise, which has none of its class"
    )
    f1_clean_sd: float | None = amount("its standard deviation; null for fewer than two seeds")
    baseline_f1: float = fraction("the mean F1 that layer 1 is scored against: --baseline's layer 1, else layer 0")
    f1_by_seed: list[float] = fraction("f1 of each probe seed")
    f1_noisy_by_seed: list[float | None] = fraction("f1_noisy of each probe seed; null where its test rows have none")
    f1_clean_by_seed: list[float | None] = fraction("f1_clean of each probe seed; null where undefined")
    seeds: list[int] = column("the probe seeds")
    n_train: int = amount("rows the probe was trained on")
    n_validation: int = amount("rows its best epoch was chosen on")
    n_test: int = amount("rows it was measured on")
    baseline_noisy_accuracy: float | None = fraction(VALIDITY["baseline_noisy_accuracy"], None)
    baseline_clean_accuracy: float | None = fraction(VALIDITY["baseline_clean_accuracy"], None)
    valid: bool | None = column(VALIDITY["valid"], None)
    valid_reason: str | None = column(VALIDITY["valid_reason"], None)
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True)
class CentroidRecord(OfLayers):
    """One layer of `centroid` for an ordered pair of classes, or for all pairs together (§5).

    Values are projections: 0 at the centroid of the assigned class, 1 at that of the original class, whose
    means are over clean rows. Three groups of rows: clean ones of the assigned class, clean ones of the original
    class, and noisy ones that have the assigned label and had the original. `p12_5` is the 12.5th percentile.
    """

    tool: str = column("centroid")
    layer: int = amount("layer, from 1")
    layers: int = amount("number of layers, L")
    assigned_label: str | None = column("the label that the noisy rows were given; null for all pairs together")
    original_label: str | None = column("the label that they had; null for all pairs together")
    n_assigned: int = amount("clean rows of the assigned class; for all pairs together, summed over pairs")
    n_original: int = amount("clean rows of the original class; for all pairs together, summed over pairs")
    n_noisy: int = amount("noisy rows of the pair; for all pairs together, all of them")
    distance: float | None = amount("Euclidean distance of the two centroids; null for all pairs together")
    assigned_mean: float | None = column("mean projection of the assigned class; null where `reason` says why")
    assigned_p12_5: float | None = column("12.5th percentile of the assigned class")
    assigned_p25: float | None = column("25th percentile of the assigned class")
    assigned_p50: float | None = column("median of the assigned class")
    assigned_p75: float | None = column("75th percentile of the assigned class")
    assigned_p87_5: float | None = column("87.5th percentile of the assigned class")
    original_mean: float | None = column("mean projection of the original class; null where `reason` says why")
    original_p12_5: float | None = column("12.5th percentile of the original class")
    original_p25: float | None = column("25th percentile of the original class")
    original_p50: float | None = column("median of the original class")
    original_p75: float | None = column("75th percentile of the original class")
    original_p87_5: float | None = column("87.5th percentile of the original class")
    noisy_mean: float | None = column("mean projection of the noisy rows; null where `reason` says why")
    noisy_p12_5: float | None = column("12.5th percentile of the noisy rows")
    noisy_p25: float | None = column("25th percentile of the noisy rows")
    noisy_p50: float | None = column("median of the noisy rows")
    noisy_p75: float | None = column("75th percentile of the noisy rows")
    noisy_p87_5: float | None = column("87.5th percentile of the noisy rows")
    reason: str | None = column("why values are null; null where none is")
    baseline_noisy_accuracy: float | None = fraction(VALIDITY["baseline_noisy_accuracy"], None)
    baseline_clean_accuracy: float | None = fraction(VALIDITY["baseline_clean_accuracy"], None)
    valid: bool | None = column("null: states do not judge it", None)
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True)
class EventRecord(OfLayers):
    """The layer at which something first happens, by `centroid --events` or `probe --events` (§5, Figure 12).

    centroid: `crossing`, noisy rows come nearer to the assigned class; `initiation`, the classes stay apart.
    probe: `memorisation>>generalisation`, noisy rows' labels are predicted better than their original ones;
    `90 % F1`, clean rows are classified.
    """

    tool: str = column("centroid or probe")
    event: str = column("crossing or initiation; memorisation>>generalisation or 90 % F1")
    layer: int | None = amount("the layer, from 1 (probe: 0 is the embeddings); null if it never happens")
    layers: int = amount("number of layers, L")
    assigned_label: str | None = column("the pair's assigned label; null for all pairs together, and for probe")
    original_label: str | None = column("the pair's original label; null for all pairs together, and for probe")
    reason: str | None = column("why `layer` is null; null where it is not")
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True)
class LayerRecord(OfLayers):
    """A layer's score by any tool: what `mcog`, `score` and `correlate` read."""

    tool: str = column("the tool that scored")
    layer: int = amount("layer, from 1")
    layers: int = amount("number of layers, L")
    score: float | None = amount("the tool's score of the layer, 0 or more; null where undefined")
    valid: bool | None = column(CARRIED_VALIDITY["valid"], None)
    valid_reason: str | None = column(CARRIED_VALIDITY["valid_reason"], None)
    widths: str | None = column("widths of the windows that the score is made of; null where of none", None)
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True)
class CogRecord(OfLayers):
    """Memorisation centre of gravity of one group (§4.1)."""

    tool: str = column("the tool whose records were weighed")
    layers: int = amount("number of layers, L")
    m_cog: float | None = column(
        "sum of layer x weight over sum of weights, layers from 1; lies in 1..L; null where `reason` says why", low=1
    )
    weights: list[float] | None = amount(
        "weight of each layer 1..L, not scaled to sum 1; where runs of retrain are averaged, each run's errors are "
        "first divided by its full window's; null where there are none, as `reason` says, and of averages (--over)"
    )
    n_records: int = amount("records that the weights came from")
    reason: str | None = column("why `m_cog` is null; null where it is not", None)
    valid: bool | None = column(CARRIED_VALIDITY["valid"], None)
    valid_reason: str | None = column(CARRIED_VALIDITY["valid_reason"], None)
    widths: str | None = column(
        "widths of the windows weighed, as a layer list; 1-L is a full sweep; null where there are no windows, and "
        "where `weights` are null",
        None,
    )
    m_cog_solved: float | None = column(
        "the same of the additive solution's weights, which say what each layer alone adds to a window's error; null "
        "where `solved_reason` says why",
        None,
        low=1,
    )
    offset: float | None = amount(
        "the additive solution's error of a window whatever its layers; null without one", None
    )
    residual: float | None = amount(
        "root mean square, over the windows, of error less the additive solution's; null without one", None
    )
    solved_reason: str | None = column("why `m_cog_solved` is null; null where it is not", None)
    n_runs: int | None = amount("runs averaged window by window (--by), or centres averaged (--over)", None)
    m_cog_sd: float | None = amount(
        "sample standard deviation of the runs' own centres; null for one, and where a run has none", None
    )
    clean_error: float | None = fraction(
        "1 - clean_accuracy, mean over the windows (footnote 6); null where a window does not know it", None
    )
    max_single_layer: float | None = column(
        "largest error, or --value, of a window of one layer (Figure 4); null where a layer has no such window", None
    )
    n_layers: int | None = amount("number of layers of the model, L, as `layers`", None)


@dataclass(frozen=True)
class ScoreRecord:
    """How well a tool's layer scores find the layers in which memorisation is known to be (§3.2, Figure 2)."""

    tool: str = column("the tool whose layer scores were judged")
    k: int = amount("how many of the best layers were looked at")
    n_groups: int = amount("groups of records (sweeps) judged; the numbers below are means over them")
    accuracy: float = fraction(
        "accuracy@k: share of the k best layers that are known layers; layers of equal score share their places evenly"
    )
    ci_low: float = fraction("lower end of the 95 % Wilson interval of `accuracy` over groups")
    ci_high: float = fraction("upper end of it")
    chance: float = fraction("what `accuracy` would be in a random order: known layers / layers")
    mean_reciprocal_rank: float = fraction("1 / rank of the best known layer; the same for every k")
    chance_reciprocal_rank: float = fraction("what it would be in a random order")
    share: float | None = fraction(
        "share of the layer scores that the known layers have, negative scores counting 0; the same for every k; null "
        "where no layer of any group scores above 0",
        None,
    )
    centre_error: float | None = amount(
        "distance in layers of the scores' centre of gravity from the mean of the known layers; null as `share`", None
    )
    valid: bool | None = column(CARRIED_VALIDITY["valid"], None)
    valid_reason: str | None = column(CARRIED_VALIDITY["valid_reason"], None)


@dataclass(frozen=True)
class HalfRecord:
    """One row under one half split of `generalise`: what a model trained on half of the rows says of it."""

    tool: str = column("generalise")
    split: int = amount("number of the half split, from 1 (--run)")
    id: int | str = column("id of the row")
    noisy: bool = column("whether the row's label was perturbed")
    inside: bool = column("whether the row was in the half trained on")
    probability: float = fraction("probability of the row's label")
    correct: bool = column("whether the label was the most probable class")
    classes: int = amount("number of classes, C")
    run: str | None = column("digest of the settings and inputs that all splits share", None)
    item_digest: str | None = column(ITEM_DIGEST, None)


@dataclass(frozen=True)
class GeneralisationRecord:
    """One row over all half splits (§6, released-code §1.10)."""

    tool: str = column("generalise")
    id: int | str = column("id of the row")
    noisy: bool = column("whether the row's label was perturbed")
    n_in: int = amount("splits that trained on the row")
    n_out: int = amount("splits that held it out")
    generalisation: float | None = fraction("mean probability of its label when held out; null if it never was")
    training_memorisation: float | None = column(
        "share of splits with the row inside that classify it as its label, less the same outside; null if it was "
        "never inside or never outside",
        low=-1,
        high=1,
    )


@dataclass(frozen=True)
class GeneralisationScoreRecord:
    """The generalisation score of a task: a share of its rows (§6)."""

    tool: str = column("generalise")
    generalisation_score: float | None = fraction("the score of `definition`; null if no row was ever held out")
    noisy_score: float | None = fraction("the same share of the noisy rows; null if there are none")
    clean_score: float | None = fraction("the same share of the clean rows; null if there are none")
    chance: float = fraction("1 / classes")
    classes: int = amount("number of classes, C")
    n_rows: int = amount("rows that count: those held out at least once")
    n_left_out: int = amount("rows that were never held out")
    n_splits: int = amount("half splits")
    definition: str = column("what the score is, in words, since the released code lacks this step")


@dataclass(frozen=True)
class CorrelationRecord:
    """How two series agree over the keys that both have a value for (Table 2, Figures 8 and 9)."""

    tool: str = column("correlate")
    a: str = column("one series: a value of the pivot column, a value's name, or both; with --mean all, by commas")
    b: str = column("the other; with --mean `each other`")
    pivot: str | None = column("the column whose values are the series; null where the values' names are")
    value: str = column("what was correlated, e.g. m_cog or score")
    method: str = column("spearman, pearson or kendall")
    n: int = amount("pairs of numbers: keys with a value in both series")
    n_dropped: int = amount("keys with a value in one series only, or an undefined one")
    correlation: float | None = column("the coefficient; null where `reason` says why", low=-1, high=1)
    p: float | None = fraction(
        "two-sided p value; null as `correlation`, with --mean, and with --cluster, as keys of one cluster are not "
        "independent"
    )
    p_method: str | None = column("permutation (all orders, n up to 8) or asymptotic")
    p_adjusted: float | None = fraction("p after Benjamini and Hochberg over all records of the run")
    ci_low: float | None = column("lower end of the 95 % interval; null as `correlation`", low=-1, high=1)
    ci_high: float | None = column("upper end of it", low=-1, high=1)
    ci_method: str | None = column(
        "bootstrap (percentiles), fisher (z, n above 600), or bootstrap of clusters; null below 3 clusters"
    )
    reason: str | None = column("why numbers are null: n<3, or a is constant, or b is constant")
    mean_difference: float | None = column("mean of a - b; null where n is 0, and with --mean", None)
    mean_absolute_difference: float | None = amount("mean of |a - b|; null likewise", None)
    n_clusters: int | None = amount("clusters that the interval draws (--cluster); null without", None)
    n_pairs: int | None = amount("pairs of series that `correlation` is the mean over (--mean); null without", None)
    valid: bool | None = column(CARRIED_VALIDITY["valid"], None)
    valid_reason: str | None = column(CARRIED_VALIDITY["valid_reason"], None)


@dataclass(frozen=True)
class PartOfCheckpoint:
    """The weights of one layer, of the embeddings, or of the head."""

    layer: int | None = column("layer, from 1; 0 is the embeddings, null the head")
    weights: int = column("how many numbers")
    attn: int | None = column("of these in attention; null outside the layers, or where the blocks do not show it")
    mlp: int | None = column("of these neither in attention nor in norms")
    norm: int | None = column("of these in normalisation layers")
    l2: float | None = column("L2 norm of all of them; null if one is not finite")
    largest: float | None = column("largest absolute value; null if one is not finite")
    not_finite: int = column("how many are NaN or infinite")


@dataclass(frozen=True)
class CheckpointRecord:
    """What `inspect CHECKPOINT` finds."""

    tool: str = column("inspect")
    path: str = column("the checkpoint, as given")
    model_class: str = column("class that transformers loads it as")
    block_path: str = column("module path of the blocks, the prefix of their weights' names")
    block_class: str = column("class of the blocks")
    layers: int = column("number of layers, L")
    width: int = column("width of the hidden states")
    head: bool = column("whether there is a classification head")
    class_names: list[str] = column("the classes, in the order of the logits")
    pooled_position: str | None = column("what the head reads: first or last position, or all; null if unknown")
    weights: int = column("how many numbers, the head's included if there is one")
    weights_type: str = column("type that they are stored in")
    tokens: int = column("size of the tokenizer's vocabulary")
    longest: int | None = column("longest row in tokens that model and tokenizer take; null if none is said")
    faults: list[str] = column("what makes it unusable: weights missing, not expected, or not finite")
    parts: list[PartOfCheckpoint] = column("embeddings, layers, head")
    provenance: dict[str, Any] | None = column("how mltools made it; null if it did not")
    step: int | None = amount("steps trained, by Trainer's trainer_state.json; null without", None)
    best_metric: float | None = column("best metric so far, by the same; null if it names none", None)


@dataclass(frozen=True)
class DifferenceRecord:
    """One layer (or embeddings, or head) of `inspect A B`."""

    tool: str = column("inspect")
    path: str = column("checkpoint A, as given")
    other: str = column("checkpoint B, as given")
    layer: int | None = column("layer, from 1; 0 is the embeddings, null the head")
    layers: int = column("number of layers, L")
    distance: float | None = column(
        "L2 norm of B - A over that of A, all tensors together; null if A is 0, or a number is not finite"
    )
    cosine: float | None = column("cosine of A and B, all tensors as one vector; null if either is 0, or not finite")
    equal: list[str] = column("tensors that are equal to the bit")
    different: list[str] = column("tensors that are not")
    unmatched: list[str] = column("tensors that only one has, or that have other shapes; they do not count above")
    score: float | None = amount(
        "L2 norm of B - A, all tensors of the layer together, as the other tools score layers; null outside 1..L, and "
        "where a number is not finite",
        None,
    )
    not_finite: int | None = amount("how many numbers of A's matched tensors are NaN or infinite", None)
    other_not_finite: int | None = amount("the same of B's", None)


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of `inspect FILE.safetensors`, or of two such files, A and B. Norms are in float64."""

    tool: str = column("inspect")
    path: str = column("the file A, as given")
    other: str | None = column("the file B, as given; null for one file, as all that compares")
    tensor: str = column("name")
    layer: int | None = amount("layer, from 1, by the first number in the name; null for embeddings and head")
    layers: int | None = amount("number of layers, L, by the names; null if they have none")
    dtype: str = column("type as safetensors names it, e.g. F32, BF16, F8_E4M3")
    shape: list[int] = amount("shape")
    parameters: int = amount("how many numbers")
    l2: float | None = amount(
        "L2 norm; null, as all below, if a number is not finite, if only B has it, or for types below a byte", None
    )
    largest: float | None = amount("largest absolute value", None)
    not_finite: int | None = amount("how many are NaN or infinite", None)
    n_nan: int | None = amount("how many are NaN", None)
    unmatched: bool | None = column("whether only one file has it, or B another shape", None)
    equal: bool | None = column("whether type and numbers are the same", None)
    other_not_finite: int | None = amount("how many of B's numbers are NaN or infinite", None)
    difference: float | None = amount("L2 norm of B - A; null, as all below, if a number of A or B is not finite", None)
    distance: float | None = amount("the same over that of A; null if A is 0", None)
    largest_difference: float | None = amount("largest absolute value of B - A", None)


@dataclass(frozen=True)
class FileRecord:
    """What `inspect FILE` finds."""

    tool: str = column("inspect")
    path: str = column("the file, as given")
    kind: str = column("rows, records, states, gradients, unfinished run, weights, tensors or provenance")
    n: int = column("how many rows, records or tensors")
    columns: dict[str, str] = column("column to types of its values; tensor to type and shape")
    contents: dict[str, Any] = column("what is worth knowing of what is inside, by kind")
    provenance: dict[str, Any] | None = column("how mltools made it; null where the file does not say")


_learnt: dict[str, type[Any]] = {}


def kind_name(kind: type[Any]) -> str:
    """Name a kind of record: WindowRecord is `window`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__.removesuffix("Record")).lower()


def learn_kind(kind: type[Any]) -> None:
    """Take up a kind of record that a command declares in its own module.

    Raises:
        TypeError: there is another kind of that name.
    """
    found = record_kinds().get(kind_name(kind), kind)
    if found is not kind:
        raise TypeError(f"two kinds of record are named {kind_name(kind)}: {found} and {kind}")
    _learnt[kind_name(kind)] = kind


def record_kinds() -> dict[str, type[Any]]:
    """Name every kind of record: those of this module, and those learnt."""
    own = (kind for name, kind in globals().items() if name.endswith("Record"))
    return {**{kind_name(kind): kind for kind in own}, **_learnt}


def known_columns() -> frozenset[str]:
    """Name every column that some record kind declares: whatever else a record holds is a tag."""
    return frozenset(field.name for kind in record_kinds().values() for field in dataclasses.fields(kind))


def declared_columns(columns: Collection[str]) -> frozenset[str]:
    """Name the columns that a record's kind declares, judged by the columns that it has; all others are tags.

    Kinds that it is whole of count (in Parquet, records of several kinds have the columns of all), and those that
    it has most columns of (another version's records may lack some).
    """
    kinds = [dataclasses.fields(kind) for kind in record_kinds().values()]
    shared = [sum(field.name in columns for field in fields) for fields in kinds]
    whole = [all(field.name in columns for field in fields if field.default is MISSING) for fields in kinds]
    return frozenset(
        field.name
        for fields, n, is_whole in zip(kinds, shared, whole, strict=True)
        if is_whole or n == max(shared)
        for field in fields
    )
