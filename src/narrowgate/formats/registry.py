"""The formats by name.

What is true here: one spelling per format. Names follow the OCP specifications: ``e4m3`` is the
OCP format (largest value 448, no Inf), which PyTorch and ml_dtypes spell ``e4m3fn``; the IEEE-like
format of the same widths (largest value 240, with Inf) is ``e4m3_ieee`` here. The libraries'
spellings are accepted by `get` and never printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from narrowgate.errors import FormatError, nearest
from narrowgate.formats.spec import Format

__all__ = ["ALIASES", "FORMATS", "get"]

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            # IEEE 754-2019 binary32 and binary16; bf16 is the upper half of binary32, and tf32
            # its upper 19 bits.
            Format(name="fp32", exponent_bits=8, mantissa_bits=23, bias=127, nan="ieee"),
            Format(
                name="tf32",
                exponent_bits=8,
                mantissa_bits=10,
                bias=127,
                nan="ieee",
                padding_bits=13,
            ),
            Format(name="bf16", exponent_bits=8, mantissa_bits=7, bias=127, nan="ieee"),
            Format(name="fp16", exponent_bits=5, mantissa_bits=10, bias=15, nan="ieee"),
            # OCP OFP8 v1.0.
            Format(name="e5m2", exponent_bits=5, mantissa_bits=2, bias=15, nan="ieee"),
            Format(name="e4m3", exponent_bits=4, mantissa_bits=3, bias=7, nan="all_ones"),
            # What e4m3 would be with IEEE's special values; ml_dtypes calls this one float8_e4m3.
            Format(name="e4m3_ieee", exponent_bits=4, mantissa_bits=3, bias=7, nan="ieee"),
            # Graphcore's and AMD's: bias one higher than IEEE's, -0 spent on the only NaN.
            Format(name="e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, nan="negative_zero"),
            Format(name="e5m2fnuz", exponent_bits=5, mantissa_bits=2, bias=16, nan="negative_zero"),
            # OCP MX v1.0: the scale, and the element formats below 8 bits.
            Format(
                name="e8m0",
                exponent_bits=8,
                mantissa_bits=0,
                bias=127,
                nan="all_ones",
                signed=False,
                has_zero=False,
            ),
            Format(name="e2m1", exponent_bits=2, mantissa_bits=1, bias=1, nan="none"),
            Format(name="e3m2", exponent_bits=3, mantissa_bits=2, bias=3, nan="none"),
            Format(name="e2m3", exponent_bits=2, mantissa_bits=3, bias=1, nan="none"),
        )
    }
)
"""Every scalar format, by canonical name."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "e4m3fn": "e4m3",
        "e8m0fnu": "e8m0",
        "e2m1fn": "e2m1",
        "e3m2fn": "e3m2",
        "e2m3fn": "e2m3",
    }
)
"""PyTorch's and ml_dtypes' spellings of OCP formats, and the canonical names."""


def get(name: str) -> Format:
    """Look a format up by its canonical name or by an alias.

    Args:
        name: A key of `FORMATS` or of `ALIASES`.

    Returns:
        The format; its ``name`` is the canonical one.

    Raises:
        FormatError: The name is not known; the hint names the nearest.

    Example:
        >>> get("e4m3fn").name, get("e4m3fn").max_finite
        ('e4m3', 448.0)
    """
    found = FORMATS.get(ALIASES.get(name, name))
    if found is None:
        raise FormatError(
            f"unknown number format {name!r}; known: {', '.join(FORMATS)}",
            hint=nearest(name, [*FORMATS, *ALIASES]),
        )
    return found
