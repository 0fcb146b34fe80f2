"""Dropout while a model is trained: on in what is trained, and in what is frozen only with `--frozen-dropout`."""

from collections.abc import Iterable

from torch import nn


def train_mode(modules: Iterable[tuple[nn.Module, bool]], *, frozen_dropout: bool) -> None:
    """Turn dropout on or off in modules, one after the other, so that the first may be what holds the others.

    Args:
        modules: each with whether it is trained.
        frozen_dropout: whether dropout stays on in those that are not.
    """
    for module, is_trained in modules:
        module.train(is_trained or frozen_dropout)
