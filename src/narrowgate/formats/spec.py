"""The scalar number formats as data.

What is true here: a format is six parameters, and every limit (largest value, smallest value,
codes of Inf and NaN, the magnitude at which rounding overflows) is a property computed from them,
so that no other module holds a ``448.0``. A *code* is the integer stored in memory, sign bit on
top; bits which a format leaves unused (tf32, stored in 32 bits) are zero at the bottom. The value
of a code with exponent field ``E`` and mantissa field ``M`` is

    (-1)^s * 2^(1 - bias - mantissa_bits) * M                                 if E == 0, has_zero
    (-1)^s * 2^(E - bias - mantissa_bits) * (2^mantissa_bits + M)             else

unless the code is an Inf or a NaN. Every finite value of every format here is exact in a Python
float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from narrowgate.errors import FormatError

__all__ = ["Format", "NanCodes", "codes", "decode"]

NanCodes = Literal["ieee", "all_ones", "negative_zero", "none"]
"""Where the NaNs are: ``ieee``: the top exponent field holds Inf (mantissa 0) and NaNs (all
others); ``all_ones``: exponent and mantissa all ones, either sign, and no Inf; ``negative_zero``:
the code of -0, and neither Inf nor -0; ``none``: every code is a finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point format.

    Args:
        name: The canonical name, as in `FORMATS`.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Width of the mantissa field, without the implicit leading bit.
        bias: What is subtracted from the exponent field.
        nan: Which codes are NaN, and thereby whether there is an Inf and a -0.
        signed: Whether there is a sign bit.
        has_zero: Whether exponent field 0 holds zero and the subnormals. False (e8m0): field 0 is
            a normal binade, and zero does not exist.
        padding_bits: Unused low bits of the stored code (tf32: 13).

    Raises:
        FormatError: Fields that contradict each other, such as IEEE's NaNs without a mantissa.

    Example:
        >>> e5m2 = Format(name="e5m2", exponent_bits=5, mantissa_bits=2, bias=15, nan="ieee")
        >>> e5m2.max_finite, hex(e5m2.max_code), hex(e5m2.inf_code)
        (57344.0, '0x7b', '0x7c')
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    nan: NanCodes
    signed: bool = True
    has_zero: bool = True
    padding_bits: int = 0

    def __post_init__(self) -> None:
        """Refuse fields that contradict each other."""
        wrong = None
        if self.exponent_bits < 1 or self.mantissa_bits < 0 or self.padding_bits < 0:
            wrong = "needs exponent_bits >= 1, mantissa_bits >= 0 and padding_bits >= 0"
        elif self.nan == "ieee" and self.mantissa_bits == 0:
            wrong = "has no code for nan='ieee' beside Inf without a mantissa"
        elif not self.signed and self.nan in ("negative_zero", "none"):
            wrong = f"is unsigned, and nan={self.nan!r} leaves no code for a negative value"
        if wrong is not None:
            raise FormatError(f"format {self.name!r} {wrong}: got {self}", hint="see NanCodes")

    @property
    def bits(self) -> int:
        """Bits that carry information: sign + exponent + mantissa (tf32: 19)."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def storage_bits(self) -> int:
        """Bits of one stored code: `bits` + padding (tf32: 32; two e2m1 share a byte: 4)."""
        return self.bits + self.padding_bits

    @property
    def sign_mask(self) -> int:
        """The sign bit of a code: 2^(storage_bits - 1), or 0 in an unsigned format."""
        return 1 << (self.storage_bits - 1) if self.signed else 0

    @property
    def has_inf(self) -> bool:
        """Whether the format has infinities: exactly when its NaNs are laid out as IEEE's."""
        return self.nan == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether any code is NaN. Without one, conversion always saturates."""
        return self.nan != "none"

    @property
    def has_negative_zero(self) -> bool:
        """Whether -0 exists: signed, with a zero, and its code not spent on NaN."""
        return self.signed and self.has_zero and self.nan != "negative_zero"

    @property
    def max_code(self) -> int:
        """Code of the largest finite value: the last positive code that is no Inf and no NaN.

        ``ieee``: the one before ``(2^exponent_bits - 1) << mantissa_bits`` (Inf); ``all_ones``:
        the last but one; otherwise the last.
        """
        fields = self.exponent_bits + self.mantissa_bits
        if self.nan == "ieee":
            packed = ((1 << self.exponent_bits) - 1 << self.mantissa_bits) - 1
        elif self.nan == "all_ones":
            packed = (1 << fields) - 2
        else:
            packed = (1 << fields) - 1
        return packed << self.padding_bits

    @property
    def inf_code(self) -> int | None:
        """Code of +Inf: all ones in the exponent field, mantissa 0. None without Inf."""
        if not self.has_inf:
            return None
        return (1 << self.exponent_bits) - 1 << (self.mantissa_bits + self.padding_bits)

    @property
    def nan_code(self) -> int | None:
        """The NaN which `rounding.encode` returns; None without NaN.

        ``ieee``: positive and quiet (top mantissa bit); ``all_ones``: the positive one;
        ``negative_zero``: the only one. Compare NaN by class: libraries differ in sign and
        payload.
        """
        if self.nan == "ieee":
            ones = (1 << self.exponent_bits) - 1 << self.mantissa_bits
            return (ones | 1 << (self.mantissa_bits - 1)) << self.padding_bits
        if self.nan == "all_ones":
            return (1 << (self.exponent_bits + self.mantissa_bits)) - 1 << self.padding_bits
        return self.sign_mask if self.nan == "negative_zero" else None

    @property
    def nan_count(self) -> int:
        """How many codes are NaN.

        ``ieee``: 2^mantissa_bits - 1 per sign; ``all_ones``: 1 per sign; ``negative_zero``: 1.
        """
        if self.nan == "negative_zero":
            return 1
        per_sign = {"ieee": (1 << self.mantissa_bits) - 1, "all_ones": 1, "none": 0}[self.nan]
        return per_sign * (2 if self.signed else 1)

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value: 1 - bias, or -bias if field 0 is normal too."""
        return self.has_zero - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value: the exponent field of `max_code`, less the bias.

        This is the ``emax`` which the OCP MX scale rule subtracts.
        """
        return (self.max_code >> (self.mantissa_bits + self.padding_bits)) - self.bias

    @property
    def max_finite(self) -> float:
        """The largest finite value: (1 + M / 2^mantissa_bits) * 2^emax, M from `max_code`."""
        return decode(self.max_code, self)

    @property
    def min_normal(self) -> float:
        """The smallest normal value: 2^emin."""
        return math.ldexp(1.0, self.emin)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive value: 2^(emin - mantissa_bits).

        A format without subnormals (e8m0) has no smaller value than its `min_normal`.
        """
        return math.ldexp(1.0, self.emin - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value: 2^-mantissa_bits."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def overflow_threshold(self) -> float:
        """The midpoint between the largest value and the next one, were there a next one.

        max_finite + 2^(emax - mantissa_bits - 1). Rounding to nearest overflows above it, and at
        it if `overflows_at_threshold`.
        """
        return self.max_finite + math.ldexp(1.0, self.emax - self.mantissa_bits - 1)

    @property
    def overflows_at_threshold(self) -> bool:
        """Whether the tie at `overflow_threshold` rounds away from the largest value.

        Ties go to the even mantissa, so this is whether the mantissa of `max_code` is odd. With
        no mantissa bits at all (e8m0) both neighbours are odd and the larger one is taken
        (IEEE 754-2019, 4.3.1).
        """
        return self.mantissa_bits == 0 or bool(self.max_code >> self.padding_bits & 1)

    @property
    def max_exact_integer(self) -> int:
        """The largest n such that every integer from 1 to n is a value of the format.

        2^(mantissa_bits + 1), after which odd integers fall between values; less in a format
        whose largest value comes earlier (e2m3: 7).
        """
        return min(1 << (self.mantissa_bits + 1), math.floor(self.max_finite))

    def is_nan(self, code: int) -> bool:
        """Tell whether a code is one of the format's NaNs.

        Args:
            code: A stored code.

        Returns:
            True for NaN; False for finite values and Inf.
        """
        magnitude = code & ~self.sign_mask
        if self.nan == "negative_zero":
            return code == self.sign_mask
        if self.inf_code is not None:
            return magnitude > self.inf_code
        return magnitude > self.max_code

    def is_inf(self, code: int) -> bool:
        """Tell whether a code is +Inf or -Inf.

        Args:
            code: A stored code.

        Returns:
            True for an infinity; False for finite values and NaN.
        """
        return self.inf_code is not None and code & ~self.sign_mask == self.inf_code


def decode(code: int, spec: Format) -> float:
    """Give the value of a stored code, exactly.

    Args:
        code: 0 to 2^storage_bits - 1, padding bits zero.
        spec: The format.

    Returns:
        The value; -0.0, infinities and NaN included.

    Raises:
        FormatError: The code has more bits than the format stores, or sets padding bits.

    Example:
        >>> from narrowgate.formats import get
        >>> decode(0x7E, get("e4m3")), decode(0x01, get("e2m1"))
        (448.0, 0.5)
    """
    if not 0 <= code < 1 << spec.storage_bits or code & ((1 << spec.padding_bits) - 1):
        raise FormatError(
            f"{code:#x} is no code of {spec.name}: allowed are 0x0 to "
            f"{(1 << spec.bits) - 1 << spec.padding_bits:#x} in steps of {1 << spec.padding_bits}",
            hint="mask the stored word to the width of the format first",
        )
    if spec.is_nan(code):
        return math.nan
    sign = -1.0 if code & spec.sign_mask else 1.0
    if spec.is_inf(code):
        return sign * math.inf
    packed = (code & ~spec.sign_mask) >> spec.padding_bits
    field, mantissa = divmod(packed, 1 << spec.mantissa_bits)
    if field == 0 and spec.has_zero:
        return sign * math.ldexp(mantissa, spec.emin - spec.mantissa_bits)
    significand = (1 << spec.mantissa_bits) + mantissa
    return sign * math.ldexp(significand, field - spec.bias - spec.mantissa_bits)


def codes(spec: Format) -> range:
    """List every code of a format of at most 16 stored bits, in increasing order.

    Args:
        spec: The format.

    Returns:
        ``range(2^storage_bits)``.

    Raises:
        FormatError: The format is stored in more than 16 bits.

    Example:
        >>> from narrowgate.formats import get
        >>> [decode(code, get("e2m1")) for code in codes(get("e2m1"))][:8]
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    """
    if spec.storage_bits > 16:
        raise FormatError(
            f"{spec.name} is stored in {spec.storage_bits} bits; codes() lists formats of at most "
            "16 bits",
            hint="sample codes of wider formats instead, with a bias towards the limits",
        )
    return range(1 << spec.storage_bits)
