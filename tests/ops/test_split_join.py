"""split_master and join_master: what they promise of every FP32 pattern.

The claims, as in their definitions: bf16 gives every pattern back, and its half is the nearest
with ties away; fp16 gives w' back, whose distance from w is 0 from 2^-16 on and at most 2^-40
below, and its half is what torch makes of the joined master; splitting that again changes nothing.
Oracles: ml_dtypes and NumPy's float64.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops._blocks import BLOCK
from ops import oracles

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
INF, NAN = 0x7F800000, 0x7FC00000
FIRST_TOO_LARGE = {"bf16": 0x7F7F8000, "fp16": 0x477FF000}  # 65,520 = 0x477FF000
LOW = np.arange(1 << 16, dtype=np.uint32)
MANTISSAS = np.arange(1 << 23, dtype=np.uint32)


def masters(u: np.ndarray, device: str = "cpu") -> Tensor:
    """FP32 tensor of given bit patterns."""
    return torch.from_numpy(u.view(np.int32)).view(torch.float32).to(device)


def check_bf16(u: np.ndarray) -> None:
    """Every claim for bf16, on non-NaN patterns."""
    x = masters(u)
    half, remainder = ops.split_master(x, "bf16")
    joined = ops.join_master(half, remainder)
    assert torch.equal(joined.view(torch.int32), x.view(torch.int32))
    # Ties away differs from ties to even exactly where the low 16 bits are a tie below an even
    # code, and there by one code.
    even = u.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    with_ties = even + ((u & 0x1FFFF) == 0x8000).astype(np.uint16)
    assert np.array_equal(oracles.bits(half), with_ties)


def check_fp16(u: np.ndarray) -> None:
    """Every claim for fp16, on patterns of magnitudes below 65,520."""
    w = u.view(np.float32)
    half, remainder = ops.split_master(masters(u), "fp16")
    joined = ops.join_master(half, remainder)
    codes, remainders = oracles.split_fp16(w)
    assert np.array_equal(oracles.bits(half), codes)
    assert np.array_equal(remainder.numpy(), remainders)
    assert np.abs(remainders.astype(np.int32)).max(initial=0) <= 1 << 14
    assert np.array_equal(oracles.bits(joined), oracles.on_grid(w).view(np.uint32))
    error = np.abs(w.astype(np.float64) - joined.numpy().astype(np.float64))
    assert (error <= np.where(np.abs(w) < 2.0**-16, 2.0**-40, 0.0)).all()
    assert np.array_equal(oracles.bits(half), oracles.bits(joined.half()))
    again, remainder_again = ops.split_master(joined, "fp16")
    assert np.array_equal(oracles.bits(again), oracles.bits(half))
    assert torch.equal(remainder_again, remainder)


def test_bf16_is_lossless_for_every_low_half_at_every_exponent_exact() -> None:
    """2^9 signs and exponents x 8 upper mantissas x 2^16 low halves, but for NaN."""
    for sign_and_exponent in range(1 << 9):
        highs = (sign_and_exponent << 7) + np.array(
            [0, 1, 2, 0x3F, 0x40, 0x55, 0x7E, 0x7F], np.uint32
        )
        u = ((highs << 16)[:, None] | LOW).reshape(-1)
        check_bf16(u[(u & 0x7FFFFFFF) <= INF])


@pytest.mark.parametrize("exponent", [0, 127, 254])
def test_bf16_is_lossless_for_every_mantissa_exact(exponent: int) -> None:
    """All 2^23 mantissas: subnormal, in the middle, and where halves become Inf."""
    check_bf16(MANTISSAS | np.uint32(exponent << 23))


@pytest.mark.slow
@pytest.mark.parametrize("sign", [0, 1])
def test_bf16_is_lossless_for_every_pattern_exact(sign: int) -> None:
    """All 2^32 patterns but NaN."""
    for exponent in range(255):
        check_bf16(MANTISSAS | np.uint32(sign << 31 | exponent << 23))
    check_bf16(np.array([sign << 31 | INF], dtype=np.uint32))


def below_limit(u: np.ndarray) -> np.ndarray:
    """The patterns that fp16 can hold."""
    return u[(u & 0x7FFFFFFF) < FIRST_TOO_LARGE["fp16"]]


def test_fp16_keeps_its_error_at_every_exponent_exact() -> None:
    """Every sign and exponent x 2^12 upper mantissas x the 2 lowest bits, and ties of both steps.

    13 bits fall off a normal significand, so its ties are mantissas that end in 0x1000.
    """
    upper = np.arange(1 << 12, dtype=np.uint32) << 11
    mantissas = np.unique(
        np.concatenate([upper | low for low in (0, 1, 0x3FF, 0x400, 0x401, 0x7FE, 0x7FF)])
    ).astype(np.uint32)
    for sign_and_exponent in range(1 << 9):
        u = below_limit(mantissas | np.uint32(sign_and_exponent << 23))
        if u.size:
            check_fp16(u)


@pytest.mark.parametrize("exponent", [110, 142])
def test_fp16_keeps_its_error_for_every_mantissa_exact(exponent: int) -> None:
    """All 2^23 mantissas of the last binade on the grid, and of the last that fits."""
    check_fp16(below_limit(MANTISSAS | np.uint32(exponent << 23)))


@pytest.mark.slow
@pytest.mark.parametrize("sign", [0, 1])
def test_fp16_keeps_its_error_for_every_pattern_exact(sign: int) -> None:
    """All finite patterns that fp16 can hold."""
    for exponent in range(143):
        check_fp16(below_limit(MANTISSAS | np.uint32(sign << 31 | exponent << 23)))


# name, format, FP32 pattern -> half, remainder (16 bits), pattern joined; None: NaN, by class
CASES = [
    ("zero", "bf16", 0x00000000, 0x0000, 0x0000, 0x00000000),
    ("negative_zero", "bf16", 0x80000000, 0x8000, 0x0000, 0x80000000),
    ("tie_goes_away_from_even", "bf16", 0x3F808000, 0x3F81, 0x8000, 0x3F808000),
    ("just_below_the_tie", "bf16", 0x3F807FFF, 0x3F80, 0x7FFF, 0x3F807FFF),
    ("smallest_subnormal", "bf16", 0x00000001, 0x0000, 0x0001, 0x00000001),
    ("largest_with_a_finite_half", "bf16", 0x7F7F7FFF, 0x7F7F, 0x7FFF, 0x7F7F7FFF),
    ("finite_with_an_inf_half", "bf16", 0x7F7F8000, 0x7F80, 0x8000, 0x7F7F8000),
    ("largest_finite", "bf16", 0xFF7FFFFF, 0xFF80, 0xFFFF, 0xFF7FFFFF),
    ("inf", "bf16", 0x7F800000, 0x7F80, 0x0000, 0x7F800000),
    ("nan", "bf16", 0x7FC00000, 0x7FC0, 0x0000, None),
    ("nan_whose_half_would_be_inf", "bf16", 0x7F800001, 0x7FC0, 0x0000, None),
    ("nan_whose_half_would_be_zero", "bf16", 0x7FFF8000, 0x7FC0, 0x0000, None),
    ("nan_whose_bits_are_all_ones", "bf16", 0xFFFFFFFF, 0x7FC0, 0x0000, None),
    ("zero", "fp16", 0x00000000, 0x0000, 0x0000, 0x00000000),
    ("negative_zero", "fp16", 0x80000000, 0x8000, 0x0000, 0x80000000),
    # 1 + 2^-11 is the tie between 1 and 1 + 2^-10; q = 2^-25, so the remainder is 2^14.
    ("tie_to_even", "fp16", 0x3F801000, 0x3C00, 0x4000, 0x3F801000),
    # 2 - 2^-11 is a tie and goes up to 2, where q = 2^-24: -2^-11 / 2^-24 = -2^13.
    ("up_into_the_next_binade", "fp16", 0x3FFFF000, 0x4000, 0xE000, 0x3FFFF000),
    # -2^-39 is one step of the grid and of the remainder, and its half is -0.
    ("tiny_negative_keeps_its_sign", "fp16", 0xAC000000, 0x8000, 0x0001, 0xAC000000),
    # 2^-40 is the tie between 0 and 2^-39 (odd): to 0; 1.5 * 2^-39 = 3 * 2^-40: to 2 (even).
    ("tie_on_the_grid_to_zero", "fp16", 0xAB800000, 0x8000, 0x0000, 0x80000000),
    ("tie_on_the_grid_to_even", "fp16", 0x2C400000, 0x0000, 0x0002, 0x2C800000),
    # 2^-25 is the tie between 0 and fp16's 2^-24: to 0, 2^-25 / 2^-39 = 2^14 beside it.
    ("tie_below_the_smallest_half", "fp16", 0x33000000, 0x0000, 0x4000, 0x33000000),
    ("smallest_subnormal", "fp16", 0x00000001, 0x0000, 0x0000, 0x00000000),
    # 2^-14 - 2^-37 rounds up to 2^-14, the first normal half; -2^-37 / 2^-39 = -4.
    ("up_into_the_normals", "fp16", 0x387FFFFE, 0x0400, 0xFFFC, 0x387FFFFE),
    # 65,520 - 2^-8: 65,504 and (16 - 2^-8) / 2^-10 = 16,380.
    ("largest_with_a_finite_half", "fp16", 0x477FEFFF, 0x7BFF, 0x3FFC, 0x477FEFFF),
    ("first_too_large", "fp16", 0xC77FF000, 0xFC00, 0x0000, 0xFF800000),
    # 2^18 and 1e30: exponents that would reach fp16's sign if they were not cut off.
    ("far_too_large_keeps_its_sign", "fp16", 0x48800000, 0x7C00, 0x0000, 0x7F800000),
    ("huge_keeps_its_sign", "fp16", 0x7149F2CA, 0x7C00, 0x0000, 0x7F800000),
    ("largest_finite", "fp16", 0x7F7FFFFF, 0x7C00, 0x0000, 0x7F800000),
    ("inf", "fp16", 0xFF800000, 0xFC00, 0x0000, 0xFF800000),
    ("nan", "fp16", 0xFFC00000, 0x7E00, 0x0000, None),
    ("nan_with_a_small_payload", "fp16", 0x7F800001, 0x7E00, 0x0000, None),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[0]}")
def test_named_case_exact(case: tuple[str, str, int, int, int, int | None], device: str) -> None:
    """Codes worked out by hand, also between neighbours."""
    _, name, pattern, code, rest, back = case
    x = masters(np.array([0x3F800000, pattern, 0xC0490FDB], dtype=np.uint32), device)
    half, remainder = ops.split_master(x, name)
    joined = ops.join_master(half, remainder)
    assert oracles.bits(half)[1] == code
    assert int(remainder[1]) & 0xFFFF == rest
    if back is None:
        assert torch.isnan(joined[1])
    else:
        assert oracles.bits(joined)[1] == back
    assert torch.equal(joined[::2], x[::2])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_largest_master_is_the_last_with_a_finite_half_exact(name: str) -> None:
    """The limit splits to a finite half, the next FP32 value to Inf, on both sides of zero."""
    limit = np.float32(ops.largest_master(name))
    beyond = np.nextafter(limit, np.float32(np.inf))
    assert beyond.view(np.uint32) == FIRST_TOO_LARGE[name]
    half, _ = ops.split_master(torch.tensor([limit, beyond, -limit, -beyond]), name)
    assert half.isinf().tolist() == [False, True, False, True]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_block_boundary_changes_nothing_exact(name: str, device: str) -> None:
    """More elements than one block: the same codes as one at a time."""
    x = torch.randn(BLOCK + 3, generator=torch.Generator().manual_seed(0)).to(device)
    half, remainder = ops.split_master(x, name)
    joined = ops.join_master(half, remainder)
    for i in (0, BLOCK - 1, BLOCK, BLOCK + 2):
        one, rest = ops.split_master(x[i], name)
        assert torch.equal(half[i], one)
        assert torch.equal(remainder[i], rest)
    assert float((joined - x).abs().max()) <= (2.0**-40 if name == "fp16" else 0.0)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_any_strides_exact(name: str) -> None:
    """Dense strides are kept, others become contiguous; the values do not depend on them."""
    plain = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    half, remainder = ops.split_master(plain, name)
    channels_last = plain.to(memory_format=torch.channels_last)
    for x in (channels_last, plain.transpose(1, 3), plain[:, :, ::2], plain[:1].expand(6, 3, 4, 5)):
        h, r = ops.split_master(x, name)
        want_h, want_r = ops.split_master(x.contiguous(), name)
        assert torch.equal(h, want_h)
        assert torch.equal(r, want_r)
        assert h.stride() == r.stride() == torch.empty_like(x).stride()
        mixed = ops.join_master(h, r.contiguous())
        assert torch.equal(mixed, ops.join_master(want_h, want_r))
        assert mixed.stride() == h.stride()
    strided = ops.join_master(half[:, ::2], remainder[:, ::2])
    assert torch.equal(strided, ops.join_master(half, remainder)[:, ::2])


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_scalar_shapes(shape: tuple[int, ...]) -> None:
    """No elements, or no dimensions."""
    x = torch.full(shape, -0.1)
    for name in ("bf16", "fp16"):
        half, remainder = ops.split_master(x, name)
        assert half.shape == remainder.shape == x.shape
        assert torch.equal(ops.join_master(half, remainder), x)


def test_results_need_no_gradient() -> None:
    """A parameter that requires grad gives results that do not, without a warning."""
    half, remainder = ops.split_master(torch.nn.Parameter(torch.ones(3)), "bf16")
    assert not half.requires_grad
    assert not ops.join_master(torch.nn.Parameter(half), remainder).requires_grad
