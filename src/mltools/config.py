"""The settings of each tool: one frozen dataclass a command, whose defaults are the tool's defaults.

Two presets (DESIGN §4): `paper`, the text of the paper and, where it is silent, what was run; and
`released-code`, what the authors' scripts did. `RELEASED` of a class holds the switches that differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from mltools.ranges import Count, OptionalCount, Positive, Range, Seed, Share, Size, whole

Preset = Literal["paper", "released-code"]
Target = Literal["label", "original_label"]
ProbeTarget = Literal["noise", "label", "original_label"]
Crossing = Literal["first", "last", "stable"]
Part = Literal["all", "attn", "mlp", "norm"]
PARTS: tuple[Part, ...] = ("all", "attn", "mlp", "norm")
C = TypeVar("C", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """What every tool's settings share."""

    RELEASED: ClassVar[Mapping[str, Any]] = {}
    preset: Preset = "paper"

    def __post_init__(self) -> None:
        """Check every number against the range of its field, whoever gives it.

        Raises:
            UsageError: a number outside its range, or not finite.
        """
        for name, numbers in ranges_of(type(self)).items():
            numbers.check(flag_of(name), getattr(self, name))


FLAGS = {"learning_rate": "--lr", "aux_learning_rate": "--aux-lr", "n_seeds": "--seeds", "k": "-k"}
"""The flags that are not named as their fields."""


def flag_of(name: str) -> str:
    """Name the flag of a setting."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def ranges_of(kind: type[Settings]) -> dict[str, Range]:
    """Give the range of each number among the settings of a tool, by its field."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: [item for item in get_args(hint)[1:] if isinstance(item, Range)] for name, hint in hints.items()}
    return {name: numbers[0] for name, numbers in found.items() if numbers}


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
    rate: Share = 0.15
    seed: Seed = 1
    draw: Literal["hash", "python"] = "hash"
    stream: bool = False
    classes: tuple[str, ...] | None = None
    top_classes: Annotated[int | None, whole(2)] = None
    split_from: OptionalCount = None


@dataclass(frozen=True)
class PrepareConfig(Settings):
    """Settings of `prepare`."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"draw": "python", "labels": "numbers", "carry_over": True}
    split: Literal["train", "validation", "test", "pool"] = "train"
    seed: Seed = 1
    draw: Literal["hash", "python"] = "hash"
    labels: Literal["names", "numbers"] = "names"
    top_classes: Annotated[int | None, whole(2)] = None
    carry_over: bool = False


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """What every training of a whole model is set by (released-code §1.4)."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"clip_scope": "all", "frozen_dropout": True}
    seed: Seed = 1
    freeze: str = "embeddings"
    learning_rate: Size = 1e-5
    epochs: Annotated[int, whole(1, 1_000_000)] = 50
    batch_size: Count = 8
    micro_batch: OptionalCount = None
    warmup: Share = 0.1
    weight_decay: Size = 0.01
    clip: Positive = 1.0
    clip_scope: Literal["trainable", "all"] = "trainable"
    frozen_dropout: bool = False
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    max_length: Annotated[int, whole(2, 1_000_000)] = 512


@dataclass(frozen=True)
class FinetuneConfig(TrainingConfig):
    """Settings of `finetune`. Defaults are what was run (released-code §1.4)."""

    RELEASED: ClassVar[Mapping[str, Any]] = {**TrainingConfig.RELEASED, "memorised_metric": "macro-f1"}
    target: Target = "label"
    aux_learning_rate: Size = 5e-6
    raise_rate: bool = False
    memorised_at: Share = 0.993
    memorised_metric: Literal["accuracy", "macro-f1"] = "accuracy"
    evaluate: Literal["memorised", "always", "last"] = "memorised"


@dataclass(frozen=True)
class GeneraliseConfig(TrainingConfig):
    """Settings of `generalise`. Defaults are what was run (released-code §1.10)."""

    learning_rate: Size = 3e-5
    epochs: Annotated[int, whole(1, 1_000_000)] = 10


@dataclass(frozen=True)
class SwapConfig(Settings):
    """Settings of `swap`."""

    part: Part = "all"
    batch_size: OptionalCount = None
    max_length: Annotated[int, whole(2, 1_000_000)] = 512


@dataclass(frozen=True)
class RetrainConfig(Settings):
    """Settings of `retrain`. Defaults are what was run (released-code §1.6)."""

    RELEASED: ClassVar[Mapping[str, Any]] = {"clip_scope": "all", "frozen_dropout": True}
    part: Part = "all"
    seed: Seed = 1
    train_head: bool = True
    learning_rate: Size = 3e-5
    epochs: Annotated[int, whole(1, 1_000_000)] = 5
    batch_size: Count = 8
    micro_batch: OptionalCount = None
    warmup: Share = 0.1
    weight_decay: Size = 0.01
    clip: Positive = 1.0
    clip_scope: Literal["trainable", "all"] = "trainable"
    frozen_dropout: bool = False
    max_length: Annotated[int, whole(2, 1_000_000)] = 512


@dataclass(frozen=True)
class GradsConfig(Settings):
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
    seed: Seed = 1
    batch_size: OptionalCount = None
    max_length: Annotated[int, whole(2, 1_000_000)] = 512


@dataclass(frozen=True)
class StatesConfig(Settings):
    """Settings of `states`."""

    dtype: Literal["float32", "float16"] = "float32"
    position: Literal["auto", "first", "last"] = "auto"
    raw_last: bool = False
    batch_size: OptionalCount = None
    max_length: Annotated[int, whole(2, 1_000_000)] = 512


@dataclass(frozen=True)
class ProbeConfig(Settings):
    """Settings of `probe`. Defaults are what was run (released-code §1.8), with the paper's one hidden layer.

    `select_after`: only epochs after that many are candidates for the best one.
    """

    RELEASED: ClassVar[Mapping[str, Any]] = {"hidden_layers": 2, "allow_absent": True}
    targets: tuple[ProbeTarget, ...] = ("noise",)
    probe: Literal["mlp", "linear"] = "mlp"
    seed: Seed = 1
    n_seeds: Annotated[int, whole(1, 10_000)] = 5
    hidden_layers: Annotated[int, whole(1, 100)] = 1
    hidden_width: Annotated[int, whole(1, 100_000)] = 128
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.1
    epochs: Annotated[int, whole(1, 1_000_000)] = 100
    select_after: Annotated[int, whole(0)] = 26
    batch_size: Count = 32
    learning_rate: Size = 2e-4
    weight_decay: Size = 1e-5
    noisy_weight: Annotated[float, Range(0, 1, above=True, below=True)] = 0.67
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
    k: Annotated[tuple[int, ...], whole(1)] = (1, 2)
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
    seed: Seed = 1
    resamples: Annotated[int, whole(0, 10_000_000)] = 2000

    @property
    def series(self) -> str | None:
        """The column whose values are the series; None where several `value`s are."""
        return self.pivot or ("tool" if len(self.value) == 1 else None)
