"""fp32 arithmetic on Python floats, and the checks of the loss-scale records.

What is true here: the policies may not import the formats, so fp32's limits stand here once more;
a test compares them. A value is *an fp32 number* if rounding it to fp32 does not change it.
"""

from __future__ import annotations

import math
import struct

from narrowgate.errors import LossScaleError, NarrowgateError, RecipeError

__all__ = ["FP32_MAX", "FP32_MIN", "check_count", "check_factor", "check_scale", "to_fp32"]

FP32_MIN = 2.0**-149
"""The smallest positive fp32 number, 2^(emin - mantissa_bits) with emin -126."""

FP32_MAX = (2 - 2.0**-23) * 2.0**127
"""The largest finite fp32 number, (2 - 2^-mantissa_bits) * 2^emax."""


def to_fp32(value: float) -> float:
    """Round to fp32: to nearest with ties to even, past the largest number to Inf.

    Args:
        value: Any float.

    Returns:
        A float that holds an fp32 number, an infinity or NaN.

    Example:
        >>> to_fp32(1 + 2**-24), to_fp32(2.0**128)
        (1.0, inf)
    """
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:  # how struct reports a finite value that rounds to Inf
        return math.copysign(math.inf, value)


def check_scale(name: str, value: float) -> None:
    """Refuse a loss scale that is no positive finite fp32 number.

    Args:
        name: The field, for the message.
        value: What was given.

    Raises:
        LossScaleError: It is not.
    """
    if not _is_number(value) or not FP32_MIN <= value <= FP32_MAX:
        raise LossScaleError(
            f"loss scale: {name}={value!r} is no positive finite number; allowed: "
            f"{FP32_MIN!r} to {FP32_MAX!r}",
            hint="65536.0 is the usual start; loss_scale=off trains without one",
        )
    _check_fp32(name, value, LossScaleError)


def check_factor(name: str, value: float, *, above: float, below: float) -> None:
    """Refuse a factor outside an open interval, or that is no fp32 number.

    Args:
        name: The field, for the message.
        value: What was given.
        above: The factor must be larger than this.
        below: The factor must be smaller than this.

    Raises:
        RecipeError: It is not.
    """
    if not _is_number(value) or not above < value < below:
        raise RecipeError(
            f"loss scale: {name}={value!r}; allowed: numbers above {above!r} and below {below!r}",
            hint="growth=2.0 and backoff=0.5 are usual; powers of two round nothing",
        )
    _check_fp32(name, value, RecipeError)


def check_count(
    name: str, value: int, error: type[NarrowgateError], *, low: int, high: int | None = None
) -> None:
    """Refuse a counter that is no integer of the allowed range.

    Args:
        name: The field, for the message.
        value: What was given.
        error: The class of the error.
        low: The smallest allowed value.
        high: The largest allowed value; None: none.

    Raises:
        NarrowgateError: It is not; of the class given.
    """
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < low or (high is not None and value > high):
        allowed = f">= {low}" if high is None else f"from {low} to {high}"
        raise error(
            f"loss scale: {name}={value!r}; allowed: integers {allowed}",
            hint=f"{name} counts optimizer steps",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_fp32(name: str, value: float, error: type[NarrowgateError]) -> None:
    if to_fp32(value) != value:
        raise error(
            f"loss scale: {name}={value!r} is no fp32 number, and the scale is computed in fp32",
            hint=f"the nearest is {to_fp32(value)!r}; powers of two are exact",
        )
