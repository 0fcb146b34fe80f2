"""Every number that a command takes has one range, checked for the command line and Python callers alike."""

import math
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import COMMANDS, Cli
from mltools.errors import UsageError
from mltools.ranges import Range
from mltools.spec import Field, Flag, Operand, bare, flatten, value_at

FIELDS = [(command.spec, each) for command in COMMANDS.values() for each in flatten(command.spec.settings)]


def range_of(each: Field) -> Range | None:
    return each.mark.numbers if isinstance(each.mark, Flag) else None


NUMBERS = [(spec.settings, each) for spec, each in FIELDS if range_of(each) is not None]
NAMES = [f"{kind.__module__.rpartition('.')[2]}.{each.name}" for kind, each in NUMBERS]
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


def reads(each: Field) -> bool:
    """Whether its words are not read as a plain number."""
    return isinstance(each.mark, Flag) and (each.mark.parse is not None or each.mark.counts)


def test_every_number_has_a_range() -> None:
    numeric = [each for _, each in FIELDS if isinstance(each.mark, Flag) and is_number(each.kind)]
    lacking = [each.path for each in numeric if range_of(each) is None and not reads(each)]
    assert len(numeric) > 40 and not lacking


@pytest.mark.parametrize(("kind", "each"), NUMBERS, ids=NAMES)
@settings(max_examples=30)
@given(value=st.one_of(st.sampled_from(ODD), st.integers(-3, 3), st.integers(), st.floats()))
def test_number_in_its_range_or_a_usage_error_that_names_the_flag(kind: type[Any], each: Field, value: Any) -> None:
    numbers = range_of(each)
    assert numbers is not None
    given_ = (value,) if each.repeats else value
    if means(numbers, value):
        assert value_at(bare(kind, **{each.name: given_}), each.path) == given_
        return
    with pytest.raises(UsageError) as caught:
        bare(kind, **{each.name: given_})
    assert str(caught.value).startswith(f"{each.flag} {value}: write a ")


def test_what_was_released_lies_in_range() -> None:
    for command in COMMANDS.values():
        if not callable(command.spec.released):
            bare(command.spec.settings, **command.spec.released)


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
        "retrain /none /none --batch-size 0",
        "generalise /none --runs 0",
        "generalise /none --run 0",
        "probe /none --seeds 0",
        "probe /none --hidden-layers 0",
        "probe /none --select-after -1",
        "correlate /none --resamples -1",
        "score /none --truth 1 -k 0",
        "windows 0",
        "windows 3 --width 9",
    ],
)
def test_k6_numbers_are_checked_before_anything_is_read(cli: Cli, words: str) -> None:
    result = cli(*words.split(), "-q")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert "Traceback" not in result.err and "fault" not in result.err


# -- every option of every command ----------------------------------------------------------------------
JUNK = ["", " ", "-1", "0", "1", "2", "1.5", "1e999", "nan", "99999999999999999999", "1-2", "2-1", "a", "a,b", "a,,b"]
JUNK += ["a=1", "=", "a=nan", "true", "-", ".", "..", "/none/x", "x/", "x.parquet", "x.jsonl", "x.pdf", "é", "\x1b[2J"]
NAMED = [
    name for name in COMMANDS if any(isinstance(each.mark, Flag) for each in flatten(COMMANDS[name].spec.settings))
]


def flags_of(name: str) -> list[Field]:
    return [each for each in flatten(COMMANDS[name].spec.settings) if isinstance(each.mark, Flag) and not each.hidden]


def operands(name: str) -> list[str]:
    """What is given by position: the first choice, or something that is not there."""
    marks = [each for each in flatten(COMMANDS[name].spec.settings) if isinstance(each.mark, Operand)]
    return [each.choices[0] if each.choices else "3" if each.scalar is int else "/none" for each in marks]


def value_of(each: Field) -> st.SearchStrategy[str]:
    """Words for an option: those of its kind, at the ends of its range, and junk."""
    numbers = range_of(each)
    ends = [str(end) for end in (numbers.low, numbers.high) if numbers is not None] if numbers is not None else []
    return st.sampled_from([*ends, *each.choices, *JUNK]) | st.text(st.characters(codec="utf-8"), max_size=6)


@pytest.mark.parametrize("name", NAMED)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_k6_each_value_of_each_option_is_taken_or_refused_before_anything_loads(
    name: str, data: st.DataObject, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With inputs that are not there: a usage error (2), or what comes after all values were looked at (5)."""
    monkeypatch.chdir(tmp_path)
    each = data.draw(st.sampled_from(flags_of(name)), label="option")
    flag = each.mark.names[-1].partition("/")[0] if isinstance(each.mark, Flag) else ""
    counts = isinstance(each.mark, Flag) and each.mark.counts
    given_ = (
        [flag] if each.is_switch or counts else [flag, data.draw(value_of(each).filter(lambda word: "\0" not in word))]
    )
    done = cli(name, *operands(name), *given_)
    assert done.code in (0, 2, 3, 5) and "fault" not in done.err and "Traceback" not in done.err, (given_, done.err)
    assert not done.code or done.err.splitlines()[-1].startswith("mltools: "), done.err
    assert not list(tmp_path.iterdir())
