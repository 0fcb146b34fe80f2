"""`mltools score`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from mltools.errors import UsageError
from mltools.layers import parse_layers
from mltools.options import LayerValues, OutputOptions, Per, RecordsOperand, Strict, parse_names
from mltools.spec import CommandSpec, Flag


def _parse_numbers(text: str) -> tuple[int, ...]:
    names = parse_names(text)
    if not all(name.isdigit() and int(name) > 0 for name in names):
        raise UsageError(f'-k "{text}": write numbers from 1, e.g. 1,2')
    return tuple(dict.fromkeys(int(name) for name in names))


@dataclass(frozen=True)
class Settings:
    """Judge layer scores where the layers of memorisation are known.

    Reads window or layer records, scores the layers of each group (tool and tags) as mcog does, and writes one
    record for each tool and k: the mean share of the k best layers that are known ones (accuracy@k) with its 95 %
    interval over groups and its chance level, and the mean reciprocal rank; the share of the scores that the known
    layers have, and how far the centre of gravity is from them. Equal scores share their places.
    """

    records: RecordsOperand = ()
    truth: Annotated[
        str, Flag("--truth", metavar="LIST|COL", help="The known layers, e.g. 6-7, or the tag that holds them.")
    ] = ""
    k: Annotated[
        tuple[int, ...],
        Flag(
            "-k", metavar="N[,N]", parse=_parse_numbers, default="1,2", help="How many of the best layers to look at."
        ),
    ] = (1, 2)
    value: LayerValues = ()
    solved: Annotated[
        bool, Flag("--solved", help="Score windows by the additive solution, as m_cog_solved, not by window means.")
    ] = False
    per: Per = ()
    strict: Strict = False
    output: OutputOptions = OutputOptions()


def _check(settings: Settings, given: Collection[str]) -> None:
    if not settings.truth:
        raise UsageError("which layers are right? give --truth, e.g. --truth 6-7")
    if settings.truth[:1].isdigit():
        parse_layers(settings.truth)


SPEC = CommandSpec(
    Settings,
    heading="Summarise",
    rank=30,
    examples=(
        "mltools score swap.jsonl grads.jsonl --truth 3-4",
        "cat control-*.jsonl | mltools score --truth planted --per model -k 1,2,3",
        "mltools score grads.jsonl --truth 3-4 --value score_l1_noisy,score_l1_difference",
        "mltools score swap.jsonl --truth 3 --value label_margin_drop --solved",
    ),
    counted="records",
    check=_check,
    writes=("score",),
)
