"""Tags: constant columns that --tag puts into every record."""

import math
import re
from collections.abc import Collection, Sequence

from mltools.errors import UsageError
from mltools.ranges import EXACT

TagValue = str | int | float | bool
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def parse_tags(tags: Sequence[str], taken: Collection[str] = ()) -> dict[str, TagValue]:
    """Read `--tag KEY=VALUE`s. What is written as a JSON number is one, so that 1e-3 is 0.001; true and false are such.

    All else is text: also what is in double quotes ('v="1.10"'), and whole numbers that a float could not hold.

    Args:
        tags: as given.
        taken: the columns of the records to be written, which no tag can be named as.

    Raises:
        UsageError: no KEY=VALUE, a key that is taken or comes twice, or a value that is no finite number or not UTF-8.
    """
    result: dict[str, TagValue] = {}
    for tag in tags:
        key, equals, text = tag.partition("=")
        if not equals or not key.strip():
            raise UsageError(f'--tag "{tag}": write KEY=VALUE')
        if key in result:
            raise UsageError(f'--tag "{key}" comes twice; a record has one value in a column')
        if key in taken:
            raise UsageError(f'--tag "{key}" is a column of the records already; choose another name')
        if any("\ud800" <= character <= "\udfff" for character in tag):
            raise UsageError(f'--tag "{tag}": not UTF-8')
        result[key] = _tag_value(key, text)
    return result


def _tag_value(key: str, text: str) -> TagValue:
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise UsageError(f"--tag {key}={text}: not a finite number; for text, write it as '{key}=\"{text}\"'")
    form = JSON_NUMBER.fullmatch(text)
    if form is None or ((whole := form[2] is None and form[3] is None) and abs(int(text)) > EXACT):
        return text
    return int(text) if whole else number
