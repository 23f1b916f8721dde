"""Gradients that are sums over many rows: LayerNorm's, an embedding's, an index's.

What is true here: weights, inputs and incoming gradients are numbers of the 16-bit format, so that
FP32 is given exactly the same ones, and what differs is the summing and the last rounding. Torch's
own CPU kernels sum these in 16 bits; the repaired ones sum in FP32 and round once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from models import DTYPES
from torch import nn

from narrowgate.engine import cpu

__all__ = ["SumRow", "compare_sums", "kernels"]


@contextmanager
def kernels(repaired: bool) -> Iterator[None]:
    """Have torch's own CPU kernels within, or the repaired ones; afterwards torch's own.

    Args:
        repaired: Which.
    """
    cpu.uninstall()
    if repaired:
        cpu.install()
    try:
        yield
    finally:
        cpu.uninstall()


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRow:
    """A gradient which is a sum over many rows, against the same sum in FP32.

    Attributes:
        name: What is summed.
        compute: ``bf16`` or ``fp16``.
        roundings: The largest distance from FP32's, in units of one rounding of the result's
            format (half an ulp), with torch's kernels and with the repaired ones.
    """

    name: str
    compute: str
    roundings: tuple[float, float]


class _Indexed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 32))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.weight[rows]


def compare_sums(num_rows: int = 4096) -> list[SumRow]:
    """Compare LayerNorm's, an embedding's and an index's gradients in 16 bits with FP32's.

    Weights, inputs and incoming gradients are numbers of the 16-bit format, so that FP32 is given
    exactly the same ones, and what differs is the summing and the last rounding.

    Args:
        num_rows: How many rows are summed.

    Returns:
        A row for each case and format.
    """
    torch.manual_seed(0)
    index = torch.randint(64, (num_rows,))
    x = torch.randn(num_rows, 32)
    upstream = torch.randn(num_rows, 32).abs()
    cases = {
        "LayerNorm": (nn.LayerNorm(32), x),
        "embedding": (nn.Embedding(64, 32), index),
        "index": (_Indexed(), index),
    }
    rows = []
    for name, (module, given) in cases.items():
        for compute, dtype in DTYPES.items():
            halves = copy.deepcopy(module)
            if not isinstance(module, nn.LayerNorm):  # whose weights stay FP32 in every recipe
                halves = halves.to(dtype)
            inputs = given.to(dtype) if given.is_floating_point() else given
            wide_inputs = inputs.float() if inputs.is_floating_point() else inputs
            given_grad = upstream.to(dtype)
            reference = _sum_gradient(copy.deepcopy(halves).float(), wide_inputs, given_grad)
            distances = []
            for repaired in (False, True):
                with kernels(repaired):
                    found = _sum_gradient(copy.deepcopy(halves), inputs, given_grad)
                distances.append(((found - reference).abs() / _half_ulp(reference, dtype)).max())
            rows.append(
                SumRow(
                    name=name,
                    compute=compute,
                    roundings=(distances[0].item(), distances[1].item()),
                )
            )
    return rows


def _half_ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Give how far one rounding to nearest moves each value at most, in a 16-bit format."""
    info = torch.finfo(dtype)
    exponents = torch.frexp(values).exponent - 1
    half_ulp = torch.ldexp(torch.full_like(values, info.eps / 2), exponents)
    subnormal = info.smallest_normal * info.eps / 2
    return torch.where(values == 0, torch.zeros_like(values), half_ulp).clamp(min=subnormal)


def _sum_gradient(module: nn.Module, inputs: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    output = module(inputs)
    output.backward(upstream.to(output.dtype))
    return torch.cat([p.grad.float().flatten() for p in module.parameters() if p.grad is not None])
