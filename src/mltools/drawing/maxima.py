"""The largest error when one layer is changed, a dot a group (Figure 4)."""

from collections.abc import Iterable

from mltools.analysis.carried import Carried
from mltools.drawing.grouped import Asked, marked, overlaid, read_groups, short_names, validity, without
from mltools.drawing.panels import Dot, Panel, Points
from mltools.errors import RowsError
from mltools.io.records import Records


def panels(records: Iterable[Records], asked: Asked = Asked()) -> list[Panel]:
    """Make one panel of window records; with `overlay`, groups that differ only in it are dots over one name.

    Raises:
        RowsError: other records, or a group that lacks a window of one layer.
        UsageError: a group without the column `overlay`.
    """
    groups = read_groups(records, asked)
    keys = [without(group.key, asked.overlay) for group in groups]
    names = short_names(keys)
    if not asked.overlay:
        names = [marked(name, group.carried) for name, group in zip(names, groups, strict=True)]
    categories = list(dict.fromkeys(names))
    dots = []
    for name, group in zip(names, groups, strict=True):
        largest = group.max_single_layer
        if largest is None:
            reason = group.lacking or "not each layer has a window of its own in its group; run --width 1"
            raise RowsError(f"{group.first.place}: {reason}")
        series = marked(overlaid(group.key, asked.overlay), group.carried) if asked.overlay else ""
        dots.append(Dot(series, float(categories.index(name)), largest))
    value = asked.values[0] if asked.values else "memorisation error"
    said = validity(Carried().join(group.carried for group in groups))
    return [Points("", "", f"largest {value.replace('_', ' ')} of one layer", dots, categories, **said)]
