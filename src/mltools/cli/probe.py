"""`mltools probe`."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mltools import console, options
from mltools.cli import job
from mltools.cli.app import command
from mltools.cli.states import open_input
from mltools.config import ProbeConfig, StatesConfig, choices, resolve
from mltools.errors import UsageError
from mltools.io.columns import Columns
from mltools.io.source import Source

if TYPE_CHECKING:
    from mltools.io.states import States

TARGETS = ("noise", "label", "original_label")


@command(
    "probe",
    "mltools probe states.safetensors --epochs 30 > probe.jsonl",
    "mltools probe states.safetensors --target noise,label --probe linear --allow-absent > linear.jsonl",
    writes=("probe", "event", "work"),
)
def probe(
    states: options.StatesArg = None,
    rows: options.RowsOfStates = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="NAME[,NAME]", help="noise, label, original_label. [default: noise]"),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="STATES", help="States of the same rows by the pre-trained model."),
    ] = None,
    events: Annotated[
        bool, typer.Option("--events", help="Write the layers where labels win over original ones, and of 90 % F1.")
    ] = False,
    probe: Annotated[
        str | None,
        options.choice(
            "--probe",
            choices(ProbeConfig, "probe"),
            metavar="KIND",
            help="mlp, or linear (scikit-learn). [default: mlp]",
        ),
    ] = None,
    hidden_layers: Annotated[
        int | None, typer.Option("--hidden-layers", metavar="N", min=1, help="Hidden layers of a probe. [default: 1]")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", metavar="N", min=1, help="Epochs. [default: 100]")] = None,
    select_after: Annotated[
        int | None,
        typer.Option(
            "--select-after",
            metavar="N",
            min=0,
            help="Choose the best epoch after N, else take the last. [default: 26]",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", metavar="R", help="AdamW's learning rate. [default: 2e-4]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", metavar="N", min=1, help="Probe seeds, from --seed up. [default: 5]")
    ] = None,
    allow_absent: Annotated[
        bool | None,
        typer.Option("--allow-absent", help="Let classes be absent from a split; F1 is that of the others."),
    ] = None,
    min_noisy_accuracy: options.MinNoisyAccuracy = None,
    strict: options.Strict = False,
    seed: options.Seed = None,
    preset: options.PresetOpt = "paper",
    text: options.Text = None,
    label: options.LabelOpt = None,
    separator: options.Separator = None,
    label_type: options.LabelTypeOpt = "auto",
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    blocks: options.Blocks = None,
    dry_run: options.DryRun = False,
    tag: options.Tag = None,
    out: options.Out = None,
    force: options.Force = False,
    provenance: options.ProvenanceFile = None,
) -> None:
    """Train probes that tell noisy rows from clean ones, layer by layer.

    Reads states (or takes them from CHECKPOINT and ROWS), trains a small classifier on each layer for each of 5 seeds,
    all at once, and writes a record a layer: F1 on all, noisy and clean test rows, and the score, which is the gain in
    F1 over the layer below. Layer 1 is compared with layer 1 of --baseline, else with the embeddings, layer 0.
    """
    names = options.parse_names(target)
    for name in names or ():
        options.one_of("--target", name, TARGETS)
    if names and len(set(names)) < len(names):
        raise UsageError(f'--target "{target}" names one twice')
    if events and (names or baseline):
        raise UsageError("--events compares label with original_label: leave --target and --baseline out")
    config = resolve(
        ProbeConfig,
        preset,
        targets=("label", "original_label") if events else names,
        probe=probe,
        min_noisy_accuracy=min_noisy_accuracy,
        hidden_layers=hidden_layers,
        epochs=epochs,
        select_after=select_after,
        learning_rate=learning_rate,
        n_seeds=seeds,
        allow_absent=allow_absent,
        seed=seed,
    )
    task = job.Job("probe", config, out=out, force=force, tag=tag, provenance=provenance)
    columns = job.columns(text, label, separator, label_type)
    if dry_run and rows is not None and states is not None:
        _plan_from_rows(task, config, states, Source(rows), columns, max_length, blocks, device, threads)
        return
    source = open_input(
        task,
        states,
        rows,
        columns,
        max_length=max_length,
        batch_size=batch_size,
        device=device,
        threads=threads,
        blocks=blocks,
    )
    with source as opened, _baseline(task, baseline) as below, task.records() as writer:
        from mltools.model.cost import shape_of_states
        from mltools.model.device import set_threads
        from mltools.tools import probe as tool

        if dry_run:
            shape = shape_of_states(opened.layers, opened.width)
            task.plan(shape, tool.plan(shape, len(opened), len(opened.rows.names), config), device, threads)
            return
        set_threads(threads, config.hidden_width)
        place = job.device_for(device)
        found = (
            tool.events(opened, config, device=place, progress=_progress)
            if events
            else tool.probe(opened, config, baseline=below, device=place, progress=_progress, strict=strict)
        )
        for record in found:
            writer.write(record)
    probes = len(config.targets) * config.n_seeds * (opened.layers + 1)
    task.finish(rows=len(opened), layers=opened.layers, targets=",".join(config.targets), probes=probes)


def _plan_from_rows(
    task: job.Job,
    config: ProbeConfig,
    checkpoint: str,
    rows: Source,
    columns: Columns,
    max_length: int | None,
    blocks: str | None,
    device: str,
    threads: int | None,
) -> None:
    from mltools.io.examples import read_examples
    from mltools.tools.probe import plan

    examples = read_examples(rows, columns)
    shape = job.shape_of(checkpoint, examples, max_length or StatesConfig.max_length, blocks)
    task.plan(shape, plan(shape, len(examples), len(examples.vocabulary()), config), device, threads)


@contextlib.contextmanager
def _baseline(task: job.Job, path: str | None) -> "Iterator[States | None]":
    from mltools.io.states import open_states

    if path is None:
        yield None
        return
    task.check_input(path)
    with open_states(Source(path)) as opened:
        task.used("baseline", opened.source)
        yield opened


def _progress(epochs: Iterator[int], total: int) -> Iterator[int]:
    return console.track(epochs, total, "probe", "epochs")
