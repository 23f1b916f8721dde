"""The tree of errors, and how a hint is printed.

    NarrowgateError (ValueError)
    ├── RecipeError        a recipe string, key or value that means nothing
    ├── PrepareError       a model or an optimizer that cannot be prepared as asked
    ├── FormatError        a value or a tensor that a number format cannot hold
    ├── LossScaleError     a loss scale that is no positive finite number
    ├── StepError          a step or a backward in an order that would give a wrong update
    ├── NumericsError      training that cannot go on: every step is non-finite
    ├── CheckpointError    a checkpoint that is torn, foreign or incomplete
    ├── OpError            a tensor of the wrong dtype, layout, device or size given to an op
    ├── RunError           a run folder, or a value logged into it, that cannot be used
    ├── ConfigError        a narrowgate.toml that says too little, too much or nonsense
    ├── PilotError         a pilot that cannot be run, or whose runs cannot be compared
    └── LedgerError        a ledger that was changed, or a decision that it does not allow

A message says what was wrong, the value got, what is allowed, and where; then a blank line and
``hint: ...`` with the way out. ``assert`` is kept for our own bugs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
    "PrepareError",
    "RecipeError",
    "RunError",
    "StepError",
    "nearest",
]


class NarrowgateError(ValueError):
    """A mistake that the user can mend; the root of all errors raised on purpose.

    Args:
        message: What was wrong, the value got, the allowed values, and where.
        hint: The way out, printed after a blank line. None prints no hint.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\n\nhint: {hint}")


class RecipeError(NarrowgateError):
    """A recipe string, key or value that means nothing."""


class PrepareError(NarrowgateError):
    """A model or an optimizer that cannot be prepared as asked."""


class FormatError(NarrowgateError):
    """A value or a tensor that a number format cannot hold."""


class LossScaleError(NarrowgateError):
    """A loss scale that is no positive finite number."""


class StepError(NarrowgateError):
    """A step or a backward in an order that would give a wrong update."""


class NumericsError(NarrowgateError):
    """Training that cannot go on: every step is non-finite."""


class CheckpointError(NarrowgateError):
    """A checkpoint that is torn, foreign or incomplete."""


class OpError(NarrowgateError):
    """A tensor of the wrong dtype, layout, device or size given to an op."""


class RunError(NarrowgateError):
    """A run folder, or a value logged into it, that cannot be used."""


class ConfigError(NarrowgateError):
    """A narrowgate.toml that says too little, too much or nonsense."""


class PilotError(NarrowgateError):
    """A pilot that cannot be run, or whose runs cannot be compared."""


class LedgerError(NarrowgateError):
    """A ledger that was changed, or a decision that it does not allow."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Name the allowed word which looks most like the one got, for a hint.

    Args:
        word: What the user typed.
        allowed: The words that would have been right.

    Returns:
        ``"did you mean 'x'?"``, or ``"allowed: a, b, c"`` when nothing is close.

    Example:
        >>> nearest("bf61", ["bf16", "fp16", "fp32"])
        "did you mean 'bf16'?"
    """
    words = list(allowed)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "allowed: " + ", ".join(words)
