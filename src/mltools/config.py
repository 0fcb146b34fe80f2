"""The settings of each tool: one frozen dataclass a command, whose defaults are the tool's defaults.

Two presets (DESIGN §4): `paper`, the text of the paper and, where it is silent, what was run; and
`released-code`, what the authors' scripts did. `RELEASED` of a class holds the switches that differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

Preset = Literal["paper", "released-code"]
Target = Literal["label", "original_label"]
ProbeTarget = Literal["noise", "label", "original_label"]
Donor = Literal["clean", "other"]
Crossing = Literal["first", "last", "stable"]
Part = Literal["all", "attn", "mlp", "norm"]
PARTS: tuple[Part, ...] = ("all", "attn", "mlp", "norm")
C = TypeVar("C", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """What every tool's settings share."""

    RELEASED: ClassVar[Mapping[str, Any]] = {}
    preset: Preset = "paper"


def choices(kind: type[Settings], name: str) -> tuple[str, ...]:
    """Give the words that a setting can be."""
    return get_args(get_type_hints(kind)[name])


def resolve(kind: type[C], preset: str, **given: Any) -> C:
    """Build settings: the options that were given (not None), else the preset's, else the defaults."""
    released = dict(kind.RELEASED) if preset == "released-code" else {}
    chosen = {name: value for name, value in given.items() if value is not None}
    unknown = chosen.keys() - {field.name for field in fields(kind)}
    assert not unknown, f"{kind.__name__} has no {unknown}"
    return kind(**{**released, **chosen, "preset": preset})


@dataclass(frozen=True)
class PerturbConfig(Settings):
    """Settings of `perturb`."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"draw": "python"}
    rate: float = 0.15
    seed: int = 1
    draw: Literal["hash", "python"] = "hash"
    stream: bool = False
    classes: tuple[str, ...] | None = None
    top_classes: int | None = None
    split_from: int | None = None


@dataclass(frozen=True)
class PrepareConfig(Settings):
    """Settings of `prepare`."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"draw": "python", "labels": "numbers", "carry_over": True}
    split: Literal["train", "validation", "test", "pool"] = "train"
    seed: int = 1
    draw: Literal["hash", "python"] = "hash"
    labels: Literal["names", "numbers"] = "names"
    top_classes: int | None = None
    carry_over: bool = False


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """What every training of a whole model is set by (released-code §1.4)."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"clip_scope": "all", "frozen_dropout": True}
    seed: int = 1
    freeze: str = "embeddings"
    learning_rate: float = 1e-5
    epochs: int = 50
    batch_size: int = 8
    micro_batch: int | None = None
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    clip_scope: Literal["trainable", "all"] = "trainable"
    frozen_dropout: bool = False
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    max_length: int = 512


@dataclass(frozen=True)
class FinetuneConfig(TrainingConfig):
    """Settings of `finetune`. Defaults are what was run (released-code §1.4)."""

    RELEASED: ClassVar[Mapping[str, Any]] = {**TrainingConfig.RELEASED, "memorised_metric": "macro-f1"}
    target: Target = "label"
    aux_learning_rate: float = 5e-6
    raise_rate: bool = False
    memorised_at: float = 0.993
    memorised_metric: Literal["accuracy", "macro-f1"] = "accuracy"
    evaluate: Literal["memorised", "always", "last"] = "memorised"


@dataclass(frozen=True)
class GeneraliseConfig(TrainingConfig):
    """Settings of `generalise`. Defaults are what was run (released-code §1.10)."""

    learning_rate: float = 3e-5
    epochs: int = 10


@dataclass(frozen=True)
class ValidityConfig(Settings):
    """What the experiment behind a number must show (`model.validity`): it decides the records' `valid`."""

    min_noisy_accuracy: float = 0.9


@dataclass(frozen=True)
class SwapConfig(ValidityConfig):
    """Settings of `swap`."""

    donor_is: Donor = "clean"
    part: Part = "all"
    batch_size: int | None = None
    max_length: int = 512


@dataclass(frozen=True)
class RetrainConfig(ValidityConfig):
    """Settings of `retrain`. Defaults are what was run (released-code §1.6)."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"clip_scope": "all", "frozen_dropout": True}
    part: Part = "all"
    seed: int = 1
    train_head: bool = True
    learning_rate: float = 3e-5
    epochs: int = 5
    batch_size: int = 8
    micro_batch: int | None = None
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    clip_scope: Literal["trainable", "all"] = "trainable"
    frozen_dropout: bool = False
    max_length: int = 512


@dataclass(frozen=True)
class GradsConfig(ValidityConfig):
    """Settings of `grads`."""

    RELEASED: ClassVar[Mapping[str, Any]] = {
        "objective": "logit",
        "leave_out": ("embed", "final", "wte", "wpe", "ln_f", "pooler", "classifier"),
    }
    objective: Literal["loss", "logit"] = "loss"
    norm: Literal["l1", "l2"] = "l1"
    part: Part = "all"
    noisy_only: bool = False
    leave_out: tuple[str, ...] = ()
    seed: int = 1
    batch_size: int | None = None
    max_length: int = 512


@dataclass(frozen=True)
class StatesConfig(Settings):
    """Settings of `states`."""

    dtype: Literal["float32", "float16"] = "float32"
    position: Literal["auto", "first", "last"] = "auto"
    raw_last: bool = False
    batch_size: int | None = None
    max_length: int = 512


@dataclass(frozen=True)
class ProbeConfig(ValidityConfig):
    """Settings of `probe`. Defaults are what was run (released-code §1.8), with the paper's one hidden layer.

    `select_after`: only epochs after that many are candidates for the best one.
    """

    RELEASED: ClassVar[Mapping[str, Any]] = {"hidden_layers": 2, "allow_absent": True}
    targets: tuple[ProbeTarget, ...] = ("noise",)
    probe: Literal["mlp", "linear"] = "mlp"
    seed: int = 1
    n_seeds: int = 5
    hidden_layers: int = 1
    hidden_width: int = 128
    dropout: float = 0.1
    epochs: int = 100
    select_after: int = 26
    batch_size: int = 32
    learning_rate: float = 2e-4
    weight_decay: float = 1e-5
    noisy_weight: float = 0.67
    allow_absent: bool = False


@dataclass(frozen=True)
class CentroidConfig(Settings):
    """Settings of `centroid`."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"crossing": "last"}
    crossing: Crossing = "first"


@dataclass(frozen=True)
class ScoreConfig(Settings):
    """Settings of `score`."""

    truth: str = ""
    k: tuple[int, ...] = (1, 2)
    per: tuple[str, ...] = ()


@dataclass(frozen=True)
class CorrelateConfig(Settings):
    """Settings of `correlate`. `on` None means tool and tags, less the pivot."""

    value: tuple[str, ...] = ("m_cog",)
    pivot: str | None = None
    on: tuple[str, ...] | None = None
    per: tuple[str, ...] = ()
    pool: bool = False
    scale: Literal["none", "minmax"] = "none"
    method: Literal["spearman", "pearson", "kendall"] = "spearman"
    seed: int = 1
    resamples: int = 2000

    @property
    def series(self) -> str | None:
        """The column whose values are the series; None where several `value`s are."""
        return self.pivot or ("tool" if len(self.value) == 1 else None)
