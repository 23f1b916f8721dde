"""The exact scalar rounding oracle.

What is true here: a value is taken as a ratio of integers, and only integers are compared, so
nothing is rounded but the result, once. A Python float (64 bits) or a Fraction is never brought to
fp32 on the way. The order of decisions is fixed:

1. NaN gives NaN, before anything can saturate it; a format without NaN refuses it.
2. A finite value is rounded on the format's grid, continued above its largest value with the same
   number of mantissa bits.
3. If the result lies above the largest value, that is an overflow. Toward zero there is none.
4. An overflow, and Inf likewise, gives the largest value when saturating; otherwise Inf if the
   format has it, else NaN. A format with neither (e2m1, e3m2, e2m3) always saturates.

e8m0 has neither sign nor zero. A value below its smallest, zero included, becomes the smallest,
2^-127: that is the scale of an all-zero MX block. A negative value becomes NaN, saturating or
not: a scale must not lose a sign in silence.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from narrowgate.errors import FormatError
from narrowgate.formats.spec import Format, decode

__all__ = ["Rounding", "encode", "quantum", "round_value"]

Rounding = Literal["nearest", "zero", "stochastic"]
"""``nearest``: ties to the even mantissa, and to the larger magnitude where there is no mantissa
(e8m0; IEEE 754-2019, 4.3.1). ``zero``: truncation. ``stochastic``: by the random bits given."""


def encode(
    value: float | Fraction,
    spec: Format,
    *,
    saturate: bool,
    rounding: Rounding = "nearest",
    random_bits: int | None = None,
    random_width: int | None = None,
) -> int:
    """Round a value to a format and give the code, exactly.

    Args:
        value: Any float or Fraction; -0.0, infinities and NaN included.
        spec: The format.
        saturate: Whether an overflow and Inf become the largest value. Without effect in a
            format that has neither Inf nor NaN: those always saturate.
        rounding: How a value between two neighbours is decided.
        random_bits: For ``stochastic`` only: an integer in 0 .. 2^random_width - 1.
        random_width: For ``stochastic`` only: how many random bits there are.

    Returns:
        The stored code. NaN is always ``spec.nan_code``. A result of zero keeps its sign where
        the format has -0.

    Raises:
        FormatError: NaN for a format without NaN; a value of another type; random bits missing,
            out of range, or given to a rounding that uses none.

    Numerics:
        Stochastic rounding adds ``random_bits / 2^random_width`` of a quantum to the magnitude
        and truncates. A value at the fraction f between its neighbours thus rounds away from zero
        for exactly floor(f * 2^random_width) of the 2^random_width random inputs: unbiased, for
        normal and subnormal results alike, exactly when f is a multiple of 2^-random_width, and
        otherwise too small in magnitude by less than 2^-random_width of a quantum. Between the
        largest value and the next point of the continued grid the rounding is stochastic as
        anywhere, and rounding up is an overflow: the mean is then not kept. For bf16 from fp32
        with 16 random bits this is ``(bits + random_bits) & 0xFFFF0000``.

    Example:
        >>> from narrowgate.formats import get
        >>> hex(encode(464.0, get("e4m3"), saturate=False))
        '0x7e'
        >>> hex(encode(464.1, get("e4m3"), saturate=False))
        '0x7f'
    """
    if isinstance(value, bool) or not isinstance(value, (float, int, Fraction)):
        raise FormatError(
            f"cannot round {value!r} of type {type(value).__name__} to {spec.name}; "
            "allowed: float, int, Fraction",
            hint="convert with float(), which is exact for every NumPy and torch scalar format",
        )
    noise = _noise(rounding, random_bits, random_width)
    if isinstance(value, float) and math.isnan(value):
        if spec.nan_code is None:
            raise FormatError(
                f"NaN has no code in {spec.name}, whose {1 << spec.bits} codes are all finite",
                hint="test for NaN before converting; a block format carries it in the scale",
            )
        return spec.nan_code
    negative = value < 0 or (value == 0 and math.copysign(1.0, value) < 0)
    if negative and value != 0 and not spec.signed:
        assert spec.nan_code is not None, "Format refuses to be unsigned and without NaN"
        return spec.nan_code
    sign = spec.sign_mask if negative else 0
    if isinstance(value, float) and math.isinf(value):
        return _overflow(spec, sign, saturate)
    numerator, denominator = _ratio(value)
    magnitude = _round_magnitude(numerator, denominator, spec, rounding, noise)
    if magnitude << spec.padding_bits > spec.max_code:
        # IEEE 754-2019, 7.4: an overflow rounded toward zero delivers the largest finite value.
        return _overflow(spec, sign, saturate or rounding == "zero")
    if magnitude == 0 and not spec.has_negative_zero:
        return 0
    return magnitude << spec.padding_bits | sign


def round_value(
    value: float | Fraction,
    spec: Format,
    *,
    saturate: bool,
    rounding: Rounding = "nearest",
    random_bits: int | None = None,
    random_width: int | None = None,
) -> float:
    """Round a value to a format and give the value, exactly.

    Args:
        value: As for `encode`.
        spec: The format.
        saturate: As for `encode`.
        rounding: As for `encode`.
        random_bits: As for `encode`.
        random_width: As for `encode`.

    Returns:
        ``decode(encode(value, ...), spec)``.

    Raises:
        FormatError: As for `encode`.

    Example:
        >>> from narrowgate.formats import get
        >>> round_value(2.5, get("e2m1"), saturate=True)
        2.0
        >>> round_value(0.3, get("bf16"), saturate=False, rounding="zero")
        0.298828125
    """
    code = encode(
        value,
        spec,
        saturate=saturate,
        rounding=rounding,
        random_bits=random_bits,
        random_width=random_width,
    )
    return decode(code, spec)


def quantum(value: float | Fraction, spec: Format) -> Fraction:
    """Give the spacing of a format's grid at a value: one unit in the last place.

    Args:
        value: A finite value; its sign is ignored. Above the largest value the grid goes on.
        spec: The format.

    Returns:
        2^(max(floor(log2 abs(value)), emin) - mantissa_bits): the distance from abs(value),
        truncated to the grid, to the next larger magnitude.

    Raises:
        FormatError: The value is NaN or infinite.

    Example:
        >>> from narrowgate.formats import get
        >>> quantum(448.0, get("e4m3")), quantum(0.0, get("e4m3"))
        (Fraction(32, 1), Fraction(1, 512))
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise FormatError(
            f"no spacing of {spec.name} at {value!r}; allowed: finite values",
            hint="test for NaN and Inf first",
        )
    exponent = _binade(*_ratio(value), spec)
    return Fraction(2) ** (exponent - spec.mantissa_bits)


def _ratio(value: float | Fraction) -> tuple[int, int]:
    """Give abs(value), which is finite, as integers; exact for floats too."""
    numerator, denominator = value.as_integer_ratio()
    return abs(numerator), denominator


def _binade(numerator: int, denominator: int, spec: Format) -> int:
    """Exponent of the binade of a ratio >= 0, not below the smallest normal one."""
    if numerator == 0:
        return spec.emin
    # Bit lengths place the ratio within (2^(guess-1), 2^(guess+1)); one comparison decides.
    guess = numerator.bit_length() - denominator.bit_length()
    left, right = numerator << max(-guess, 0), denominator << max(guess, 0)
    return max(guess if left >= right else guess - 1, spec.emin)


def _round_magnitude(
    numerator: int, denominator: int, spec: Format, rounding: Rounding, noise: tuple[int, int]
) -> int:
    """Round a ratio >= 0 to a packed code (no sign, no padding) of the continued grid."""
    exponent = _binade(numerator, denominator, spec)
    shift = spec.mantissa_bits - exponent
    divisor = denominator << max(-shift, 0)
    significand, rest = divmod(numerator << max(shift, 0), divisor)
    if rounding == "nearest":
        significand += 2 * rest > divisor or (2 * rest == divisor and significand & 1 == 1)
    elif rounding == "stochastic":
        bits, width = noise
        significand += (rest << width) + bits * divisor >= divisor << width
    # Codes grow with values, so a carry out of the significand lands in the next binade by itself.
    code = (exponent - spec.emin << spec.mantissa_bits) + significand
    if spec.has_zero:
        return code
    return max(code - (1 << spec.mantissa_bits), 0)


def _overflow(spec: Format, sign: int, saturate: bool) -> int:
    if saturate or not spec.has_nan:
        return spec.max_code | sign
    if spec.inf_code is not None:
        return spec.inf_code | sign
    assert spec.nan_code is not None
    return spec.nan_code


def _noise(rounding: Rounding, bits: int | None, width: int | None) -> tuple[int, int]:
    """Check the random bits against the rounding, and give (bits, width)."""
    if rounding not in ("nearest", "zero", "stochastic"):
        raise FormatError(
            f"unknown rounding {rounding!r}; allowed: nearest, zero, stochastic",
            hint="'nearest' is to nearest with ties to even",
        )
    if rounding != "stochastic":
        if bits is not None or width is not None:
            raise FormatError(
                f"rounding {rounding!r} uses no random bits, got random_bits={bits}, "
                f"random_width={width}",
                hint="leave both out, or use rounding='stochastic'",
            )
        return 0, 0
    if bits is None or width is None or width < 1 or not 0 <= bits < 1 << width:
        raise FormatError(
            f"stochastic rounding needs random_width >= 1 and 0 <= random_bits < 2^random_width, "
            f"got random_bits={bits}, random_width={width}",
            hint="draw random_bits = random.getrandbits(random_width)",
        )
    return bits, width
