"""What a case of the swamping audit is: one operator and the answer that it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ADDENDS", "Case", "Make", "case", "grad", "ones", "signs", "zeros_index"]

ADDENDS = 2**14
"""Ones added up per case: a power of two, so that the sum is exact in bf16 and fp16."""

Make = Callable[..., Tensor]
"""``make(*shape, value=1.0)``: a filled tensor of the device and dtype under audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator, what it must give, and how far the roundings may move that.

    Attributes:
        name: ``op``, or ``op/of what`` for a gradient; unique.
        run: Builds the inputs with a :data:`Make` and returns the values to judge.
        expected: The exact answer, the same for every returned value.
        magnitude: What a rounding is relative to; ``|expected|`` unless that is zero.
        roundings: How often the value is rounded to 16 bits on the way: once, unless the operator
            passes a 16-bit tensor from one kernel to another.
    """

    name: str
    run: Callable[[Make], Tensor]
    expected: float
    magnitude: float
    roundings: int = 1


def case(
    name: str,
    run: Callable[[Make], Tensor],
    expected: float,
    *,
    magnitude: float | None = None,
    roundings: int = 1,
) -> Case:
    """Make a case whose magnitude is that of its answer unless given.

    Args:
        name: As in :class:`Case`.
        run: As in :class:`Case`.
        expected: As in :class:`Case`.
        magnitude: As in :class:`Case`; None means ``|expected|``.
        roundings: As in :class:`Case`.

    Returns:
        The case.
    """
    return Case(
        name=name,
        run=run,
        expected=float(expected),
        magnitude=abs(float(expected)) if magnitude is None else magnitude,
        roundings=roundings,
    )


def ones(make: Make, *shape: int) -> Tensor:
    """Make a leaf of ones that requires a gradient."""
    return make(*shape).requires_grad_()


def zeros_index(like: Tensor, *shape: int) -> Tensor:
    """Make an int64 tensor of zeros beside ``like``: every read or write goes to element 0."""
    return torch.zeros(shape, dtype=torch.int64, device=like.device)


def grad(output: Tensor, leaf: Tensor, seed: Tensor | None = None) -> Tensor:
    """Give the gradient of ``output`` with respect to ``leaf`` for a seed, of ones unless given."""
    (gradient,) = torch.autograd.grad(
        output, leaf, torch.ones_like(output) if seed is None else seed
    )
    return gradient


def signs(make: Make, *shape: int) -> Tensor:
    """Make +1 and -1 in turn along the last axis: mean 0 and variance 1, both exactly."""
    x = make(*shape)
    x[..., 1::2] = -1.0
    return x
