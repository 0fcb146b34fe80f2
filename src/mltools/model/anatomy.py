"""Where the blocks of a model are, and which part of it a parameter belongs to. No model names (DESIGN §5).

The block stack is the one `nn.ModuleList` whose length is `num_hidden_layers` and whose items share a
class; its module path is the prefix of its weights. What runs before the first block is `embeddings`, what
runs after the last is `head`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mltools.errors import CheckpointError, UsageError
from mltools.layers import parse_layers

EMBEDDINGS: Literal["embeddings"] = "embeddings"
HEAD: Literal["head"] = "head"
Part = int | Literal["embeddings", "head"]
POOLER: Literal["pooler"] = "pooler"
Frozen = Part | Literal["pooler"]
"""What a `--freeze` list names: parts, or the pooler, which is within the head."""
BlockPart = Literal["attn", "mlp", "norm"]
BLOCK_PARTS: tuple[BlockPart, ...] = ("attn", "mlp", "norm")


@dataclass(frozen=True)
class BlockStack:
    """The blocks of a model: module path, and the modules in order (layer l is `modules[l - 1]`).

    `repeated` says that one module is several layers, as in ALBERT.
    """

    path: str
    modules: nn.ModuleList
    repeated: bool = False

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def shares(self) -> bool:
        """Whether layers share weights, so that none can be changed alone."""
        own = sum(1 for block in self.modules for _ in block.parameters())
        return own > sum(1 for _ in self.modules.parameters())

    def layer_of(self, name: str) -> int | None:
        """Give the layer (from 1) that a parameter or module name belongs to; None outside the stack.

        Of a module that is several layers, it is the first of them.
        """
        prefix = self.path + "."
        number = name[len(prefix) :].split(".", 1)[0] if name.startswith(prefix) else ""
        if not number.isdigit():
            return None
        return int(number) * len(self) // len(set(self.modules)) + 1 if self.repeated else int(number) + 1


def find_blocks(model: nn.Module, n_layers: int | None, path: str | None = None) -> BlockStack:
    """Find the block stack of a model.

    Args:
        model: the model.
        n_layers: `num_hidden_layers` of its configuration, where it has one.
        path: the module path of the stack (`--blocks`), where the model does not decide.

    Raises:
        CheckpointError: no stack (shared or no blocks) or several (encoder and decoder); names the candidates.
        UsageError: `path` is no module list of the model.
    """
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    if path is not None and path not in lists:
        raise UsageError(f"--blocks {path}: no such module list (there are: {', '.join(lists) or 'none'})")
    _check_whole_layers(lists, n_layers)
    if path is not None:
        return BlockStack(path, lists[path])
    same_class = {name: m for name, m in lists.items() if len({type(item) for item in m}) == 1}
    found = {name: m for name, m in same_class.items() if len(m) == n_layers}
    found = found or {name: m for name, m in lists.items() if len(m) == n_layers}  # blocks of several kinds
    outermost = {n: m for n, m in found.items() if not any(n.startswith(o + ".") for o in found if o != n)}
    if len(outermost) == 1:
        return BlockStack(*next(iter(outermost.items())))
    outer = {n: m for n, m in same_class.items() if not any(n.startswith(o + ".") for o in same_class if o != n)}
    if len(outer) == 1 and n_layers is None:
        return BlockStack(*next(iter(outer.items())))
    outer = {n: m for n, m in outer.items() if not isinstance(m[0], nn.ModuleList)}
    if len(outer) == 1 and n_layers and n_layers % len(next(iter(outer.values()))) == 0:
        name, groups = next(iter(outer.items()))
        return BlockStack(name, nn.ModuleList(groups[i * len(groups) // n_layers] for i in range(n_layers)), True)
    named = ", ".join(f"{name} ({len(m)})" for name, m in (outermost or same_class).items()) or "none"
    if outermost:
        raise CheckpointError(f"more than one list of {n_layers} blocks: {named}; choose with --blocks PATH")
    if same_class and not outer:
        raise CheckpointError(
            f"its {n_layers} layers lie in lists of lists ({named}), so there is no one list of blocks"
        )
    raise CheckpointError(
        f"no list of {n_layers} blocks, one for each layer (module lists: {named}); choose one with --blocks PATH"
    )


def _check_whole_layers(lists: Mapping[str, nn.ModuleList], n_layers: int | None) -> None:
    """Refuse a model that has a list of each kind of sublayer, its norms among them: no list has whole layers."""
    for norms in (name for name, modules in lists.items() if len(modules) == n_layers and _is_norm(modules[0])):
        parent = norms.rpartition(".")[0]
        beside = [n for n, m in lists.items() if n.rpartition(".")[0] == parent and len(m) == n_layers]
        if len(beside) > 1:
            raise CheckpointError(
                f"a layer is spread over {len(beside)} module lists ({', '.join(beside)}), so there is no block that "
                "could be changed or scored alone"
            )


def call_order(model: nn.Module, stack: BlockStack, forward: Callable[[], Tensor]) -> tuple[set[str], set[str]]:
    """Name the modules outside the stack that one forward pass calls before the first block, and after the last.

    Args:
        model: the model.
        stack: its blocks.
        forward: runs the model once on any input.
    """
    before: set[str] = set()
    after: set[str] = set()
    state = {"layer": 0}

    def enter(*_: object) -> None:
        state["layer"] += 1

    def leave(*_: object) -> None:
        state["layer"] += state["layer"] == len(stack)

    def visit(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if state["layer"] == 0:
                before.add(name)
            elif state["layer"] > len(stack):
                after.add(name)

        return hook

    blocks = dict.fromkeys(stack.modules)  # once each, though layers may share one
    hooks = [m.register_forward_pre_hook(enter) for m in blocks] + [m.register_forward_hook(leave) for m in blocks]
    hooks += [
        m.register_forward_pre_hook(visit(name)) for name, m in model.named_modules() if stack.layer_of(name) is None
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return before, after


def find_parts(model: nn.Module, stack: BlockStack, forward: Callable[[], Tensor]) -> dict[str, Part]:
    """Tell for every parameter whether it is of the embeddings, of a layer, or of the head.

    One forward pass shows what is called before the first block and what after the last. A parameter that is not
    called as a module (a bare weight; the relative positions that DeBERTa hands to its blocks) is of the head if the
    logits depend on it with the states after the last block held fixed, else of the embeddings.

    Args:
        model: the model.
        stack: its blocks.
        forward: runs the model once on any input, and gives logits.
    """
    before, after = call_order(model, stack, forward)
    outside = {n: p for n, p in model.named_parameters() if stack.layer_of(n) is None}
    bare = {n: p for n, p in outside.items() if n.rpartition(".")[0] not in before | after}
    used_after = _used_after(model, stack, bare, forward) if bare else set()
    parts: dict[str, Part] = {}
    for name, _ in model.named_parameters():
        owner = name.rpartition(".")[0]
        if name not in outside:
            parts[name] = cast(int, stack.layer_of(name))
        elif name in bare:
            parts[name] = HEAD if name in used_after else EMBEDDINGS
        else:
            parts[name] = EMBEDDINGS if owner in before else HEAD
    return parts


def _used_after(
    model: nn.Module, stack: BlockStack, parameters: dict[str, nn.Parameter], forward: Callable[[], Tensor]
) -> set[str]:
    """Name those of the parameters that the logits depend on if the states after the last block are held fixed."""

    def hold(_: nn.Module, __: object, output: object) -> object:
        return with_states(output, first_tensor(output).detach())

    handle = stack.modules[-1].register_forward_hook(hold)
    try:
        with torch.enable_grad():
            gradients = torch.autograd.grad(forward().sum(), list(parameters.values()), allow_unused=True)
    except AssertionError as error:  # what a model of reversible layers raises
        raise CheckpointError(
            f"{type(model).__name__} gives gradients in training mode only, so which of its weights come after the "
            "blocks cannot be told"
        ) from error
    finally:
        handle.remove()
    return {name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None}


def block_parts(stack: BlockStack) -> dict[str, BlockPart] | None:
    """Tell for every parameter of the blocks whether it is of attention (`attn`), of a norm, or of the rest (`mlp`).

    A norm is a module called so whose weights are vectors, wherever in the block it is; attention is what else the
    outermost module called so holds.

    Returns:
        Parameter name to part, or None if the blocks do not show it: some block has no attention, no norm or
        nothing besides.
    """
    parts: dict[str, BlockPart] = {}
    for number, block in enumerate(stack.modules):
        attention = [name for name, m in block.named_modules() if name and "attention" in type(m).__name__.lower()]
        norms = {name for name, m in block.named_modules() if _is_norm(m)}
        found: dict[str, BlockPart] = {}
        for name, _ in block.named_parameters():
            inside = any(name.startswith(path + ".") for path in attention)
            found[name] = "norm" if name.rpartition(".")[0] in norms else "attn" if inside else "mlp"
        if set(found.values()) != set(BLOCK_PARTS):
            return None
        parts.update({f"{stack.path}.{number}.{name}": part for name, part in found.items()})
    return parts


def _is_norm(module: nn.Module) -> bool:
    weights = list(module.parameters())
    return bool(weights) and "norm" in type(module).__name__.lower() and all(w.dim() == 1 for w in weights)


def select_part(stack: BlockStack, part: str) -> frozenset[str]:
    """Name the parameters of the blocks that `--part` means: all, or those of attn, mlp or norm.

    Raises:
        CheckpointError: the architecture does not show which are which.
    """
    if part == "all":
        return frozenset(f"{stack.path}.{name}" for name, _ in stack.modules.named_parameters())
    parts = block_parts(stack)
    if parts is None:
        raise CheckpointError(
            f"--part {part}: the blocks ({type(stack.modules[0]).__name__}) do not show which of their weights are "
            "attention, norms and the rest; only --part all can be had"
        )
    return frozenset(name for name, own in parts.items() if own == part)


def parse_freeze(text: str, n_layers: int) -> frozenset[Frozen]:
    """Read a `--freeze` list: `embeddings`, `pooler`, `head`, `all-layers`, `none` and layer lists, by commas.

    `all-layers` holds the embeddings too, as the released frozen baseline does: nothing then moves below the head.

    Raises:
        UsageError: a word that is none of these, or a layer outside 1..L.
    """
    words: dict[str, tuple[Frozen, ...]] = {
        "none": (),
        EMBEDDINGS: (EMBEDDINGS,),
        POOLER: (POOLER,),
        HEAD: (HEAD,),
        "all-layers": (EMBEDDINGS, *range(1, n_layers + 1)),
    }
    frozen: set[Frozen] = set()
    for item in text.replace(" ", "").split(","):
        if item not in words and not item[:1].isdigit():
            raise UsageError(f'--freeze "{item}": write {", ".join(words)} or a layer list')
        frozen.update(words[item] if item in words else parse_layers(item, n_layers))
    return frozenset(frozen)


def pooler_weights(model: nn.Module, parts: dict[str, Part]) -> frozenset[str]:
    """Name the weights of the base model's own layers after its last block, norms not counted: BERT's pooler."""
    body = f"{model.base_model_prefix}."
    modules = {name: module for name, module in model.named_modules() if name.startswith(body)}
    return frozenset(
        f"{name}.{own}"
        for name, module in modules.items()
        if not _is_norm(module)
        for own, _ in module.named_parameters(recurse=False)
        if parts[f"{name}.{own}"] == HEAD
    )


def first_tensor(output: object) -> Tensor:
    """Take the hidden states out of what a block returned: a tensor, or a tuple, list or mapping that starts with one.

    Raises:
        CheckpointError: anything else.
    """
    values = tuple(output.values()) if isinstance(output, Mapping) else output
    result = values[0] if isinstance(values, tuple | list) and values else values
    if not isinstance(result, Tensor):
        raise CheckpointError(f"a block returned {type(result).__name__}, not hidden states")
    return result


def with_states(output: Any, states: Any) -> Any:
    """Give what a block returned with other hidden states in it."""
    if isinstance(output, Mapping):
        return {**output, next(iter(output)): states}
    if hasattr(output, "_replace"):
        return output._replace(**{output._fields[0]: states})
    return type(output)((states, *output[1:])) if isinstance(output, tuple | list) else states
