"""Numbers as they come from a training loop: plain ones, tensors and arrays of any dtype.

Everything is taken to FP64 before it is summed or averaged, so a running sum of 16-bit losses does
not stop at 256 times its summand. torch and NumPy are known by what their values can do, and are
never imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from narrowgate.errors import RunError

__all__ = ["plain", "read", "read_all", "take", "take_all", "total"]

_FLOAT = {float}


def take(name: str, value: Any) -> Any:
    """Take a value as it is now: a number at once, a tensor as a copy that is read later.

    Args:
        name: What it is called, for the error.
        value: A number, or a tensor or array of real numbers; of more than one element the mean is
            taken in FP64, of none it is NaN.

    Returns:
        A float, or an FP64 tensor of no dimension that shares nothing with the value.

    Raises:
        RunError: It is no real number.
    """
    if type(value) is float:
        return value
    if hasattr(value, "detach") and hasattr(value, "double") and not value.is_complex():
        return value.detach().double().mean()  # `mean` copies; nothing is waited for
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind is not None and kind in "biufV":  # NumPy's; V is what ml_dtypes' formats are
        wide = value.astype("float64")
        return float(wide.mean()) if wide.size else math.nan
    return plain(name, value)


def take_all(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take each of several values; floats, which most are, without a look at each.

    Args:
        values: The values by name.

    Raises:
        RunError: One is no real number.
    """
    if set(map(type, values.values())) == _FLOAT:
        return values
    return {name: take(name, value) for name, value in values.items()}


def read_all(values: Mapping[str, Any]) -> Mapping[str, float]:
    """Read what `take_all` gave.

    Args:
        values: Numbers, or tensors of no dimension, by name.
    """
    if set(map(type, values.values())) == _FLOAT:
        return values
    return {name: read(value) for name, value in values.items()}


def plain(name: str, value: Any) -> float:
    """Read a plain number, or refuse what is none.

    Args:
        name: What it is called, for the error.
        value: What was given.

    Raises:
        RunError: It is no real number.
    """
    kind = getattr(value, "dtype", type(value).__name__)
    if not isinstance(value, (str, bytes)) and "complex" not in str(kind):
        try:
            return float(value)
        except OverflowError:
            raise RunError(
                f"{name} is a whole number of {len(str(value))} digits; FP64 ends at 1.8e308",
                hint="give its logarithm",
            ) from None
        except (TypeError, ValueError):
            pass
    raise RunError(
        f"{name} is {value!r:.80}, of type {kind}; real numbers are recorded",
        hint="give a float, an int, or a tensor or array of real numbers",
    )


def read(value: Any) -> float:
    """Read what `take` gave; a tensor on a device is waited for.

    Args:
        value: A number, or a tensor of no dimension.
    """
    return value if isinstance(value, float) else float(value.tolist())


def total(tensors: Sequence[Any]) -> float | None:
    """Sum tensors of any shape and dtype in FP64, rounding once where all is finite.

    Args:
        tensors: The tensors.

    Returns:
        The sum; None of none.
    """
    if not tensors:
        return None
    values: list[float] = []
    for tensor in tensors:
        values += tensor.double().flatten().tolist()
    if all(math.isfinite(value) for value in values):
        try:
            return math.fsum(values)
        except OverflowError:
            return math.inf if sum(values) > 0 else -math.inf
    return sum(values)
