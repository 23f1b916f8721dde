"""The largest master that a 16-bit half can hold.

What is true here: the limit is the FP32 value just below the format's overflow threshold, the
midpoint between its largest finite value and the next one. The midpoint itself overflows by either
rule: ties away, because it is a tie; ties to even, because the largest value is odd.
"""

from __future__ import annotations

import struct

import torch

from narrowgate import formats
from narrowgate.errors import OpError, nearest

__all__ = ["HALF_OF", "largest_master", "largest_master_bits"]

HALF_OF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The half's data type, by the name of its format."""


def largest_master_bits(name: str) -> int:
    """Give the FP32 bit pattern of `largest_master`."""
    (bits,) = struct.unpack("<i", struct.pack("<f", formats.get(name).overflow_threshold))
    return int(bits) - 1


def largest_master(format: str) -> float:  # noqa: A002 - the word of the vocabulary
    """Give the largest FP32 magnitude whose 16-bit half is finite.

    Args:
        format: ``"bf16"`` or ``"fp16"``, the format of the half.

    Returns:
        The limit; larger masters cannot be held by a parameter of that format.

    Raises:
        OpError: Another format.

    Example:
        >>> largest_master("fp16"), largest_master("bf16") == 2.0**127 * (2 - 2**-8 - 2**-23)
        (65519.99609375, True)
    """
    if format not in HALF_OF:
        raise OpError(
            f"largest_master: format is {format!r}; allowed: {', '.join(HALF_OF)}",
            hint=nearest(str(format), HALF_OF),
        )
    (value,) = struct.unpack("<f", struct.pack("<i", largest_master_bits(format)))
    return float(value)
