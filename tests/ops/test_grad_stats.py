"""grad_stats: the norm against exact sums, the verdict on every kind of value."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops._blocks import BLOCK

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def exact_norm(grad: Tensor) -> float:
    """The norm, from a sum of exact squares that is rounded once, then rooted."""
    return math.sqrt(math.fsum(v * v for v in grad.double().flatten().tolist()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, BLOCK + 4465])
def test_norm_is_within_its_bound(dtype: torch.dtype, count: int, device: str) -> None:
    """Squares of 24-bit values are exact in float64, and each passes at most d additions.

    266,609 squares are 261 sums, and those are one: d = 10 + 10, so the sum is off by at most
    (1 + 2^-53)^20 - 1 < 2.23e-15 and the norm by half that, plus one rounding each for the two
    roots here: 1.12e-15 + 2.3e-16.
    """
    generator = torch.Generator().manual_seed(count)
    scales = torch.exp2(torch.randint(-20, 12, (count,), generator=generator))
    grad = (torch.randn(count, generator=generator) * scales).to(dtype)
    stats = ops.grad_stats([grad.to(device)]).cpu()
    norm, expected = math.sqrt(stats[0, 0]), exact_norm(grad)
    assert abs(norm - expected) <= 1.4e-15 * expected
    assert stats[0, 1] == grad.double().abs().max()
    assert stats[0, 2] == 0


def test_ones_are_counted_exact() -> None:
    """A running sum in the gradient's own format would stop at 256, 2,048 or 2^24."""
    grads = [torch.ones((1 << 24) + 1).bfloat16(), torch.ones(5000).half()]
    assert ops.grad_stats(grads)[:, 0].tolist() == [2**24 + 1, 5000]


def test_squares_neither_overflow_nor_vanish_exact() -> None:
    """The ends of FP32: 2^127 squared is beyond FP32, 2^-149 squared far below it."""
    grads = [torch.full((3,), 2.0**127), torch.full((3,), 2.0**-149)]
    assert ops.grad_stats(grads).tolist() == [
        [3 * 2.0**254, 2.0**127, 0.0],
        [3 * 2.0**-298, 2.0**-149, 0.0],
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, BLOCK + 1])
def test_one_bad_element_is_seen(dtype: torch.dtype, place: int, device: str) -> None:
    """Inf of either sign and NaN, anywhere in two blocks; NaN wins over Inf."""
    grads = []
    for values in ((math.inf,), (-math.inf,), (math.nan,), (math.nan, math.inf)):
        grad = torch.zeros(BLOCK + 3, dtype=dtype, device=device)
        grad[place] = values[0]
        grad[-1] = values[-1]
        grads.append(grad)
    stats = ops.grad_stats([*grads, torch.zeros(3, device=device)]).cpu()
    assert stats[:, 2].tolist() == [1, 1, 1, 1, 0]
    assert stats[:2, 1].tolist() == [math.inf, math.inf]
    assert stats[2:4, 1].isnan().all()
    assert not stats[:4, 0].isfinite().any()
    assert stats[4].tolist() == [0, 0, 0]


def test_strides_and_empty_exact() -> None:
    """The same numbers for every layout; zeros, of positive sign, for nothing and for -0."""
    grad = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    views = [grad[:, ::2], grad[:, ::2].transpose(0, 2), grad[:1].expand(5, 6, 8)]
    stats = ops.grad_stats(views)
    for row, view in zip(stats, views, strict=True):
        values = view.double().flatten().tolist()
        # 8-bit significands of like size: every partial sum fits float64, so any order is exact.
        assert Fraction(row[0].item()) == sum(Fraction(v) ** 2 for v in values)
        assert row[1] == max(map(abs, values))
    nothing = ops.grad_stats([torch.zeros(0), torch.zeros(2, 0).half(), -torch.zeros(3)])
    assert nothing.tolist() == [[0.0, 0.0, 0.0]] * 3
    assert not nothing.signbit().any()
    assert ops.grad_stats([]).shape == (0, 3)
