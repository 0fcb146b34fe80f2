"""Find out in which layers a fine-tuned transformer memorises mislabelled examples.

After Dankers & Titov (2024), "Generalisation First, Memorisation Second?". Each command of the `mltools` program is a
function here, with what such work needs beside it; all is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_COMMANDS = (
    *("attribute", "centroid", "correlate", "decoy", "finetune", "generalise", "grads", "inspect", "mcog", "merge"),
    *("perturb", "plot", "prepare", "probe", "report", "retrain", "score", "shapley", "states", "swap", "windows"),
)
_ELSEWHERE = {
    "Results": "mltools.api",
    "read_rows": "mltools.api",
    "open_checkpoint": "mltools.model.checkpoint_loading",
    "Window": "mltools.layers",
    "all_windows": "mltools.layers",
    "parse_layers": "mltools.layers",
    "layer_scores": "mltools.analysis.layer_scores",
    "centre_of_gravity": "mltools.analysis.centre_of_gravity",
    "solve_additive": "mltools.analysis.additive",
    "MltoolsError": "mltools.errors",
}

__all__ = ["__version__", *_COMMANDS, *_ELSEWHERE]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _COMMANDS:
        found = import_module("mltools.api").command_function(name)
    elif name in _ELSEWHERE:
        found = getattr(import_module(_ELSEWHERE[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Name what is public."""
    return sorted(__all__)
