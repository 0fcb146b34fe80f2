"""Every number that a command takes has one range, checked for the command line and Python callers alike."""

import math
import sys
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Cli
from mltools import config
from mltools.cli.app import COMMANDS
from mltools.config import Settings, flag_of, ranges_of
from mltools.errors import UsageError
from mltools.ranges import Range

KINDS: list[type[Settings]] = [
    kind for kind in vars(config).values() if isinstance(kind, type) and issubclass(kind, Settings)
]
NUMBERS = [(kind, name) for kind in KINDS for name in ranges_of(kind)]
NAMES = [f"{kind.__name__}.{name}" for kind, name in NUMBERS]
ODD = (math.nan, math.inf, -math.inf, -1, -0.5, -1e-300, 1 << 63, 10**400, 1e308, True, "1", 0, 0.5, 1, 1.5, 2)


def is_number(hint: Any) -> bool:
    """Whether a hint is of int, float, either or None, or a tuple of one."""
    parts = set(get_args(hint) or (hint,)) - {type(None), ...}
    return bool(parts) and parts <= {int, float}


def means(numbers: Range, value: Any) -> bool:
    """What the range says, by other means than its own."""
    if type(value) not in (int, float) or (numbers.whole and type(value) is not int):
        return False
    if value != value or not -sys.float_info.max <= value <= sys.float_info.max:
        return False
    if value == numbers.low or value == numbers.high:
        return not (numbers.above if value == numbers.low else numbers.below)
    return bool(sorted([numbers.low, value, numbers.high])[1] == value)


def test_every_number_has_a_range() -> None:
    hints = {kind: get_type_hints(kind) for kind in KINDS}
    numeric = {(kind, f.name) for kind in KINDS for f in fields(kind) if is_number(hints[kind][f.name])}
    assert numeric == set(NUMBERS) and len(KINDS) > 10


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=NAMES)
@settings(max_examples=30)
@given(value=st.one_of(st.sampled_from(ODD), st.integers(-3, 3), st.integers(), st.floats()))
def test_number_in_its_range_or_a_usage_error_that_names_the_flag(kind: type[Settings], name: str, value: Any) -> None:
    several = "tuple" in str(get_type_hints(kind)[name])
    given_ = {name: (value,) if several else value}
    if means(ranges_of(kind)[name], value):
        assert getattr(kind(**given_), name) == given_[name]
        return
    with pytest.raises(UsageError) as caught:
        kind(**given_)
    assert str(caught.value).startswith(f"{flag_of(name)} {value}: write a ")


def test_defaults_and_what_was_released_lie_in_range() -> None:
    for kind in KINDS:
        kind(**{**kind.RELEASED, "preset": "released-code"})


@pytest.mark.parametrize(
    "words",
    [
        "perturb --rate 15",
        "perturb --rate nan",
        "perturb --seed -1",
        "perturb --top-classes 1",
        "finetune /none -o out --lr nan",
        "finetune /none -o out --lr -1",
        "finetune /none -o out --aux /none --aux-lr inf",
        "finetune /none -o out --clip 0",
        "finetune /none -o out --clip -1",
        "finetune /none -o out --warmup 2",
        "finetune /none -o out --weight-decay nan",
        "finetune /none -o out --memorised-at nan",
        "finetune /none -o out --epochs 0",
        "finetune /none -o out --epochs 99999999999999999999",
        "finetune /none -o out --micro-batch 0",
        "finetune /none -o out --max-length 1",
        "swap /none /none --threads 10000",
        "swap /none /none --threads 0",
        "swap /none /none --batch-size 0",
        "swap /none /none --batch-size ²",
        "retrain /none /none --batch-size 0",
        "generalise /none --runs 0",
        "generalise /none --run 0",
        "probe /none --seeds 0",
        "probe /none --hidden-layers 0",
        "probe /none --select-after -1",
        "correlate /none --resamples -1",
        "score /none --truth 1 -k 0",
        "score /none --truth 1 -k 2,²",
        "windows 0",
        "windows 3 --width 9",
    ],
)
def test_k6_numbers_are_checked_before_anything_is_read(cli: Cli, words: str) -> None:
    result = cli(*words.split(), "-q")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert "Traceback" not in result.err and "fault" not in result.err


def test_options_say_no_range_of_their_own() -> None:
    """Ranges stand in the settings: typer's own min and max would be a second place."""
    for command in COMMANDS.values():
        for hint in get_type_hints(command.function, include_extras=True).values():
            for info in get_args(hint)[1:]:
                assert getattr(info, "min", None) is None and getattr(info, "max", None) is None, command.name
