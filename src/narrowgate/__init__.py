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
    "ConfigError",
    "FormatError",
    "LedgerError",
    "LossScaleError",
    "NarrowgateError",
    "NumericsError",
    "OpError",
    "PilotError",
    "Plan",
    "PrepareError",
    "PreparedOptimizer",
    "Recipe",
    "RecipeError",
    "RunError",
    "StepError",
    "StepRecord",
    "StepResult",
    "autocast",
    "full_precision_state_dict",
    "load_checkpoint",
    "log",
    "parse",
    "prepare",
    "restore",
    "result",
    "save_checkpoint",
    "seed",
]

_HOME = {
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "FormatError": "errors",
    "LedgerError": "errors",
    "LossScaleError": "errors",
    "NarrowgateError": "errors",
    "NumericsError": "errors",
    "OpError": "errors",
    "PilotError": "errors",
    "Plan": "plan",
    "PrepareError": "errors",
    "PreparedOptimizer": "engine.optimizer",
    "Recipe": "plan",
    "RecipeError": "errors",
    "RunError": "errors",
    "StepError": "errors",
    "StepRecord": "records",
    "StepResult": "engine.result",
    "autocast": "engine.swap",
    "full_precision_state_dict": "engine.prepare",
    "load_checkpoint": "engine.checkpoint",
    "log": "records.script",
    "parse": "plan",
    "prepare": "engine.prepare",
    "restore": "engine.prepare",
    "result": "records.script",
    "save_checkpoint": "engine.checkpoint",
    "seed": "engine.seeding",
}

if TYPE_CHECKING:
    from narrowgate.engine.checkpoint import load_checkpoint, save_checkpoint
    from narrowgate.engine.optimizer import PreparedOptimizer
    from narrowgate.engine.prepare import full_precision_state_dict, prepare, restore
    from narrowgate.engine.result import StepResult
    from narrowgate.engine.seeding import seed
    from narrowgate.engine.swap import autocast
    from narrowgate.errors import (
        CheckpointError,
        ConfigError,
        FormatError,
        LedgerError,
        LossScaleError,
        NarrowgateError,
        NumericsError,
        OpError,
        PilotError,
        PrepareError,
        RecipeError,
        RunError,
        StepError,
    )
    from narrowgate.plan import Plan, Recipe, parse
    from narrowgate.records import StepRecord
    from narrowgate.records.script import log, result


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'narrowgate' has no attribute {name!r}")
    value = getattr(import_module(f"narrowgate.{_HOME[name]}"), name)
    globals()[name] = value  # the next time it is simply there
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
