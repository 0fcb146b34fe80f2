"""Trying a model out without leaving a trace in it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def untouched(*models: nn.Module) -> Iterator[None]:
    """Put back, at the end, whatever passes change in models besides their weights.

    That is buffers, modules that a forward pass exchanges for others (attention that goes by the length of the rows),
    train or eval mode, hooks and other attributes, configurations, and the state of torch's generator on the CPU.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(same_form(*models))
        for module in (module for model in models for module in model.modules()):
            for buffer in module._buffers.values():
                if buffer is not None and not buffer.is_meta:
                    stack.callback(_refill, buffer, buffer.detach().clone())
        yield


@contextlib.contextmanager
def same_form(*models: nn.Module) -> Iterator[None]:
    """Put back, at the end, the modules and attributes of models and of their configurations."""
    modules = [module for model in models for module in model.modules()]
    with contextlib.ExitStack() as stack:
        for owner in (*modules, *_configurations(modules)):
            stack.callback(_put_back, owner, dict(vars(owner)), _tables(owner))
        yield


def form(model: nn.Module) -> dict[str, Any]:
    """Give what tells one form of a model from another: the classes of its modules, and their plain attributes."""
    return {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        for key, value in (("", type(module)), *vars(module).items())
        if isinstance(value, type | str | int | float | bool)
    }


def _configurations(modules: list[nn.Module]) -> list[Any]:
    """List every configuration that modules hold, and those within them, once each."""
    found: dict[int, Any] = {}
    waiting = [vars(module).get("config") for module in modules]
    while waiting:
        config = waiting.pop()
        if hasattr(config, "to_dict") and id(config) not in found:
            found[id(config)] = config
            waiting.extend(vars(config).values())
    return list(found.values())


def _tables(owner: Any) -> dict[str, dict[Any, Any]]:
    """Copy an object's dictionaries (submodules, buffers, hooks), but not its weights: those on disk come and go."""
    return {key: dict(value) for key, value in vars(owner).items() if isinstance(value, dict) and key != "_parameters"}


def _put_back(owner: Any, attributes: dict[str, Any], tables: dict[str, dict[Any, Any]]) -> None:
    vars(owner).clear()
    vars(owner).update(attributes)
    for key, entries in tables.items():
        attributes[key].clear()
        attributes[key].update(entries)


@torch.no_grad()
def _refill(buffer: torch.Tensor, values: torch.Tensor) -> None:
    if not torch.equal(buffer, values):
        buffer.copy_(values)
