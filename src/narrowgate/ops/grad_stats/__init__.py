"""The op `grad_stats`: what one look at the gradients tells about their size and health.

What is true here: nothing waits for the device; clipping, the verdict on the step and the culprit
are all read from the one small table that comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from narrowgate.ops import _checks, _library
from narrowgate.ops.grad_stats import native, reference

__all__ = ["grad_stats", "samples"]

_NAME = "grad_stats"
_DTYPES = (*_checks.GRADIENTS, torch.float64)


def _check(grads: Sequence[Tensor], *, meta: bool) -> None:
    for i, grad in enumerate(grads):
        _checks.tensor(_NAME, f"grads[{i}]", grad, _DTYPES)
        if not meta:
            _checks.not_meta(_NAME, f"grads[{i}]", grad)
        _checks.same_device(_NAME, f"grads[{i}]", grad, grads[0], "grads[0]")


def _fake(grads: list[Tensor]) -> Tensor:
    _check(grads, meta=True)
    return torch.empty(len(grads), 3, dtype=torch.float64, device=grads[0].device)


_library.define(_NAME, "(Tensor[] grads) -> Tensor", reference.grad_stats, _fake)
_library.override(_NAME, native.grad_stats, reference.grad_stats)
_library.override_cuda(_NAME, reference.grad_stats)


def grad_stats(grads: Sequence[Tensor]) -> Tensor:
    """Sum the squares of each gradient, find its largest magnitude, and test that it is finite.

    Args:
        grads: Gradients as stored, scaled or not; formats may be mixed, any strides.

    Returns:
        One row per gradient: sum of squares; largest |g|, NaN if any element is NaN, else Inf if
        any is; 1.0 if any element is non-finite, else 0.0. An empty gradient gives zeros; an
        empty list a table without rows, on the CPU.

    Raises:
        OpError: Another data type or layout, several devices, or tensors without data.

    Shapes:
        n tensors of any shape, float32, bfloat16, float16 or float64 -> (n, 3) float64.

    Units:
        Of the gradients: true gradients times the loss scale.

    Numerics:
        The norm, the root of a sum, is within 2.3e-15 relative of exact for up to 2^40 elements of
        fp32, bf16 or fp16, and cannot overflow. The order of the sum is that of memory, and fixed:
        the same bits on any number of threads. The largest |g| is exact. The squares of float64
        gradients are rounded, and overflow above 1.3e154.

    Example:
        >>> grad_stats([torch.tensor([3.0, -4.0]), torch.tensor([1.0, torch.inf])])
        tensor([[25.,  4.,  0.],
                [inf, inf,  1.]], dtype=torch.float64)
    """
    listed = list(grads)
    _check(listed, meta=False)
    if not listed:
        return torch.empty(0, 3, dtype=torch.float64)
    with torch.no_grad():
        table: Tensor = torch.ops.narrowgate.grad_stats.default(listed)
    return table


def samples() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Give arguments for opcheck, tests and benchmarks: finite, mixed formats, every layout."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(7, 300, generator=generator)
    mixed = [plain, plain.T.to(torch.bfloat16), plain[:, ::3].half(), plain.double()[::2, ::2]]
    return [((mixed,), {}), (([torch.zeros(0), torch.tensor(-0.0)],), {})]
