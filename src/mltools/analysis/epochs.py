"""Which epoch of a run of `finetune` counts: the one that the checkpoint holds, and never a mean over epochs."""

from collections.abc import Iterator

from mltools import console
from mltools.io.groups import Groups
from mltools.io.records import Record, Records


class _Run:
    """The epochs of one run: those that count, as far as read."""

    def __init__(self, *_: object) -> None:
        self.rank: tuple[bool, int, int] = (False, 0, 0)
        self.last: list[Record] = []

    def read(self, record: Record) -> None:
        """Keep the record if no other is nearer to what the checkpoint holds; equals are another run's."""
        values = record.values
        attempt = record.get("attempt", int) if values.get("attempt") is not None else 1
        kept = values.get("kept") is True
        rank = (kept, 0, 0) if kept else (False, attempt, record.get("epoch", int))
        if rank > self.rank:
            self.rank, self.last = rank, []
        if rank == self.rank:
            self.last.append(record)


class LastEpochs:
    """Takes the epochs out of records, and gives for each run (tool and tags) those that count."""

    def __init__(self) -> None:
        """Start without any."""
        self._runs = Groups(None, _Run)

    def take(self, records: Records) -> Records:
        """Take up records with the same columns if they are of epochs, and give those that are not.

        A tag `epoch` does not make records epochs.
        """
        if not (len(records) and {"epoch", "epochs", "learning_rate"} <= records.values[0].keys()):
            return records
        own, others = records.parted("epoch")
        for run, part in self._runs.runs(own):
            for record in own[part]:
                run.read(record)
        return others

    def last(self) -> Iterator[Records]:
        """Give the epochs that count, each alone, and say which are of runs that have not ended."""
        every = [record for run in self._runs for record in run.last]
        begun = [record for record in every if not _has_ended(record)]
        if begun:
            epoch = f"{begun[0].values['epoch']} of {begun[0].values['epochs']}"
            more = f", and so of {len(begun) - 1} more" if len(begun) > 1 else ""
            console.warn(f"{begun[0].place}: epoch {epoch} is the last of its run, which has not ended{more}")
        for record in every:
            yield Records(record.source, [record.line], [record.values])


def _has_ended(record: Record) -> bool:
    """Whether a run ended with this epoch; those of the first version do not say `kept`, and trained every epoch."""
    kept = record.values.get("kept")
    return bool(kept) if kept is not None else record.values["epoch"] == record.values["epochs"]
