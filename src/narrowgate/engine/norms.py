"""Norms that sum in FP32 and keep their input for backward in the format in which it came.

torch's 16-bit CPU kernels of layer and group norm do so by themselves, given FP32 scale and shift.
Elsewhere, and for the RMS norm everywhere, the input is widened first; autograd would then keep the
widened copy, twice the bytes. These functions keep the 16-bit input and widen it again in backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["group_norm", "layer_norm", "rms_norm"]

Tensor = torch.Tensor
Shape = tuple[int, ...]


class _LayerNorm(torch.autograd.Function):
    """Layer norm by torch's FP32 kernels, both ways."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y, mean, rstd = torch.ops.aten.native_layer_norm(x.float(), shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.shape = shape
        out: Tensor = y.to(x.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], weight is not None, bias is not None]
        dx, dw, db = torch.ops.aten.native_layer_norm_backward(
            gradient.float(), x.float(), ctx.shape, mean, rstd, weight, bias, wanted
        )
        return (None if dx is None else dx.to(x.dtype)), None, dw, db, None


class _GroupNorm(torch.autograd.Function):
    """Group norm by torch's FP32 kernels, both ways."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        rows, channels = x.shape[0], x.shape[1]
        inner = x[0, 0].numel() if rows and channels else 0
        sizes = (rows, channels, inner, groups)
        wide = x.float().contiguous()
        y, mean, rstd = torch.ops.aten.native_group_norm(wide, weight, bias, *sizes, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.sizes, ctx.has_bias = sizes, bias is not None
        out: Tensor = y.to(x.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], weight is not None, ctx.has_bias]
        dx, dw, db = torch.ops.aten.native_group_norm_backward(
            gradient.float().contiguous(), x.float().contiguous(), mean, rstd, weight,
            *ctx.sizes, wanted,
        )  # fmt: skip
        return (None if dx is None else dx.to(x.dtype)), None, dw, db, None


class _RMSNorm(torch.autograd.Function):
    """RMS norm: x / sqrt(mean(x^2) + eps), times the weight (Zhang and Sennrich 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, eps: float) -> Tensor:
        wide = x.float()
        ctx.over = tuple(range(-len(shape), 0))
        rstd = torch.rsqrt((wide * wide).mean(ctx.over, keepdim=True) + eps)
        y = wide * rstd
        ctx.save_for_backward(x, weight, rstd)
        return (y if weight is None else y * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        wide, normed = gradient.float(), x.float() * rstd
        dw = None
        if weight is not None:
            rows = tuple(range(x.dim() - weight.dim()))
            dw = (wide * normed).sum(rows) if rows else wide * normed
            wide = wide * weight
        along = (wide * normed).mean(ctx.over, keepdim=True)
        return ((wide - normed * along) * rstd).to(x.dtype), None, dw, None


def layer_norm(
    x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise over the last dimensions.

    Args:
        x: Any floating format.
        shape: The last dimensions.
        weight: FP32 scale, or None.
        bias: FP32 shift, or None.
        eps: Added to the variance.

    Returns:
        The normed values in the format of ``x``.
    """
    if x.dtype == torch.float32 or x.device.type == "cpu":
        return F.layer_norm(x, shape, weight, bias, eps)
    out: Tensor = _LayerNorm.apply(x, shape, weight, bias, eps)  # type: ignore[no-untyped-call]
    return out


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise over groups of channels.

    Args:
        x: ``(N, C, *)``, any floating format.
        groups: Number of groups.
        weight: FP32 scale ``(C,)``, or None.
        bias: FP32 shift ``(C,)``, or None.
        eps: Added to the variance.

    Returns:
        The normed values in the format of ``x``.
    """
    if x.dtype == torch.float32 or x.device.type == "cpu":
        return F.group_norm(x, groups, weight, bias, eps)
    out: Tensor = _GroupNorm.apply(x, groups, weight, bias, eps)  # type: ignore[no-untyped-call]
    return out


def rms_norm(x: Tensor, shape: Shape, weight: Tensor | None, eps: float | None) -> Tensor:
    """Divide by the root of the mean square over the last dimensions.

    Args:
        x: Any floating format.
        shape: The last dimensions.
        weight: FP32 scale, or None.
        eps: Added to the mean square; None is FP32's epsilon.

    Returns:
        The normed values in the format of ``x``.
    """
    if x.dtype == torch.float32:
        return F.rms_norm(x, shape, weight, eps)
    added = torch.finfo(torch.float32).eps if eps is None else eps
    out: Tensor = _RMSNorm.apply(x, shape, weight, added)  # type: ignore[no-untyped-call]
    return out
