"""Stochastic rounding: exactly unbiased, over all random inputs."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import pairwise

import gfloat
import numpy as np
import pytest
from gfloat import RoundMode

from formats.oracles import GFLOAT, NARROW, SIGNED, finite_values, rounding_inputs, same_values
from narrowgate.errors import FormatError
from narrowgate.formats import FORMATS, Format, encode, get, quantum, round_value


def mean_of(value: float | Fraction, spec: Format, width: int) -> Fraction:
    """Average the results over every random input, exactly."""
    results = [
        round_value(value, spec, saturate=False, rounding="stochastic", random_bits=bits,
                    random_width=width)
        for bits in range(1 << width)
    ]  # fmt: skip
    return sum(map(Fraction, results), Fraction(0)) / (1 << width)


@pytest.mark.parametrize("name", [n for n in NARROW if n in SIGNED])
def test_mean_is_exact_between_all_neighbours(name: str) -> None:
    # Subnormal neighbours and both signs are among them. Fractions in eighths, three random bits.
    f, width = FORMATS[name], 3
    values = finite_values(f)
    for low, high in pairwise(values):
        for eighths in range(8):
            value = Fraction(low) + (Fraction(high) - Fraction(low)) * eighths / 8
            assert mean_of(value, f, width) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", 1.0 + 3 * 2.0**-23),
        ("bf16", -(1.0 + 2.0**-9)),
        ("bf16", 2.0**-133 + 12345 * 2.0**-149),  # subnormal in bf16, as it is in fp32
        ("fp16", 2.0**-24 * (5 + 12345 / 65536)),  # subnormal in fp16, normal in fp32
    ],
)
def test_mean_is_exact_over_all_16_bit_random_inputs(name: str, value: float) -> None:
    f = FORMATS[name]
    # The fraction is a multiple of 2^-16, so 16 random bits lose nothing of it.
    assert (Fraction(value) / quantum(value, f) * 2**16).denominator == 1
    assert mean_of(value, f, 16) == Fraction(value)


def test_with_too_few_bits_the_share_is_rounded_down() -> None:
    # 1 + 0.7 quantum with 3 bits: floor(0.7 * 8) = 5 of 8 go up, a bias of less than 1/8 quantum.
    f = get("e4m3")
    value = 1 + Fraction(7, 10) * quantum(1.0, f)
    assert mean_of(value, f, 3) == 1 + Fraction(5, 8) * quantum(1.0, f)


def test_bf16_equals_the_integer_formula_of_kernels() -> None:
    f = get("bf16")
    x = rounding_inputs(f, np.float32)
    x = x[np.isfinite(x)]
    noise = np.random.default_rng(3).integers(0, 1 << 16, x.size, dtype=np.uint32)
    theirs = (x.view(np.uint32) + noise >> np.uint32(16)).tolist()
    ours = [
        encode(v, f, saturate=False, rounding="stochastic", random_bits=r, random_width=16)
        for v, r in zip(x.tolist(), noise.tolist(), strict=True)
    ]
    assert ours == theirs


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", SIGNED)
def test_stochastic_equals_gfloat(name: str, saturate: bool) -> None:
    f = FORMATS[name]
    saturate = saturate or not f.has_nan  # gfloat raises where we always saturate
    x = rounding_inputs(f, np.float32).astype(np.float64)
    # gfloat's "fastest" variant adds the random bits to the exact fraction and truncates, as we
    # do; in float64, where the sum of a 24-bit value's fraction and 8 bits may round: inputs whose
    # fraction has more than 40 bits are left to the exact tests above.
    x = np.array(
        [v for v in x.tolist() if not math.isfinite(v) or abs(v) >= f.min_subnormal * 2**-16]
    )
    noise = np.random.default_rng(4).integers(0, 256, x.size)
    theirs = gfloat.round_ndarray(GFLOAT[name], x, RoundMode.StochasticFastest, saturate, noise, 8)
    ours = [
        round_value(v, f, saturate=saturate, rounding="stochastic", random_bits=r, random_width=8)
        for v, r in zip(x.tolist(), noise.tolist(), strict=True)
    ]
    assert same_values(ours, theirs) == []


@pytest.mark.parametrize("name", FORMATS)
def test_values_of_the_format_never_move(name: str) -> None:
    f = FORMATS[name]
    draw = random.Random(5)
    for value in (f.min_subnormal, f.min_normal, 1.0, f.max_finite):
        for bits in (0, 255, draw.randrange(256)):
            kept = round_value(value, f, saturate=False, rounding="stochastic", random_bits=bits,
                               random_width=8)  # fmt: skip
            assert kept == value


def test_between_the_largest_value_and_the_next_the_draw_decides_about_overflow() -> None:
    # 464 is halfway between 448 and 480, the first point past the end of e4m3: with 4 bits 8 of 16
    # draws round up, and overflow. Saturating gives 448 then, which is biased: stated in encode.
    f = get("e4m3")
    draws = [
        [round_value(464.0, f, saturate=saturate, rounding="stochastic", random_bits=r,
                     random_width=4) for r in range(16)]
        for saturate in (False, True)
    ]  # fmt: skip
    assert same_values(draws[0], np.array([448.0] * 8 + [math.nan] * 8)) == []
    assert draws[1] == [448.0] * 16
    # From 480 on every draw overflows.
    for r in range(16):
        assert f.is_nan(encode(480.0, f, saturate=False, rounding="stochastic", random_bits=r,
                               random_width=4))  # fmt: skip


def test_the_largest_fp32_in_bf16_overflows_for_65535_of_65536_draws() -> None:
    f, value = get("bf16"), FORMATS["fp32"].max_finite
    assert encode(value, f, saturate=False, rounding="stochastic", random_bits=0,
                  random_width=16) == f.max_code  # fmt: skip
    assert encode(value, f, saturate=False, rounding="stochastic", random_bits=1,
                  random_width=16) == f.inf_code  # fmt: skip


def test_nan_and_inf_stay_what_they_are_for_every_draw() -> None:
    # Adding random bits to the code of a NaN can give Inf or -0; testing NaN first prevents it.
    f = get("bf16")
    for r in (0, 1, 0xFFFF):
        for value, code in ((math.nan, f.nan_code), (math.inf, f.inf_code)):
            assert encode(value, f, saturate=False, rounding="stochastic", random_bits=r,
                          random_width=16) == code  # fmt: skip


@pytest.mark.parametrize(("bits", "width"), [(None, 8), (0, None), (256, 8), (-1, 8), (0, 0)])
def test_missing_or_too_large_random_bits_are_refused(bits: int | None, width: int | None) -> None:
    with pytest.raises(FormatError) as error:
        encode(1.0, get("bf16"), saturate=True, rounding="stochastic", random_bits=bits,
               random_width=width)  # fmt: skip
    assert str(error.value) == (
        "stochastic rounding needs random_width >= 1 and 0 <= random_bits < 2^random_width, got "
        f"random_bits={bits}, random_width={width}\n\n"
        "hint: draw random_bits = random.getrandbits(random_width)"
    )


def test_random_bits_without_use_are_refused() -> None:
    with pytest.raises(
        FormatError, match="rounding 'nearest' uses no random bits, got random_bits=3"
    ):
        encode(1.0, get("bf16"), saturate=True, random_bits=3, random_width=8)
