"""narrowgate: mixed-precision training for PyTorch, with proof.

The public names are here and load what they need when they are first used, so that
``import narrowgate`` costs nothing and the commands never import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "FormatError",
    "LossScaleError",
    "NarrowgateError",
    "NumericsError",
    "OpError",
    "Plan",
    "PrepareError",
    "PreparedOptimizer",
    "Recipe",
    "RecipeError",
    "StepError",
    "StepRecord",
    "StepResult",
    "autocast",
    "full_precision_state_dict",
    "load_checkpoint",
    "parse",
    "prepare",
    "restore",
    "save_checkpoint",
]

_HOME = {
    "CheckpointError": "errors",
    "FormatError": "errors",
    "LossScaleError": "errors",
    "NarrowgateError": "errors",
    "NumericsError": "errors",
    "OpError": "errors",
    "Plan": "plan",
    "PrepareError": "errors",
    "PreparedOptimizer": "engine.optimizer",
    "Recipe": "plan",
    "RecipeError": "errors",
    "StepError": "errors",
    "StepRecord": "records",
    "StepResult": "engine.result",
    "autocast": "engine.swap",
    "full_precision_state_dict": "engine.prepare",
    "load_checkpoint": "engine.checkpoint",
    "parse": "plan",
    "prepare": "engine.prepare",
    "restore": "engine.prepare",
    "save_checkpoint": "engine.checkpoint",
}

if TYPE_CHECKING:
    from narrowgate.engine.checkpoint import load_checkpoint, save_checkpoint
    from narrowgate.engine.optimizer import PreparedOptimizer
    from narrowgate.engine.prepare import full_precision_state_dict, prepare, restore
    from narrowgate.engine.result import StepResult
    from narrowgate.engine.swap import autocast
    from narrowgate.errors import (
        CheckpointError,
        FormatError,
        LossScaleError,
        NarrowgateError,
        NumericsError,
        OpError,
        PrepareError,
        RecipeError,
        StepError,
    )
    from narrowgate.plan import Plan, Recipe, parse
    from narrowgate.records import StepRecord


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'narrowgate' has no attribute {name!r}")
    return getattr(import_module(f"narrowgate.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
