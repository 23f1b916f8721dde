"""16-bit matrix products, convolutions and attention on a CPU without 16-bit units.

Each kernel widens its 16-bit operands to FP32, calls the FP32 kernel which torch has for the
operator, and rounds the result once. That is what torch's own 16-bit kernels promise (sum in FP32,
round once), at the speed of the FP32 ones: stock kernels without hardware behind them are 3 to 100
times slower.

Only calls in which every floating tensor has the same 16-bit dtype are taken. Anything else (FP32,
FP64, integers, complex, and mixtures, which torch refuses) goes to the original kernel untouched,
for the price of one Python call. Autograd sits above this key and does not notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from narrowgate.engine.cpu.registry import Build, Kernel, Lookup, Wide

__all__ = ["TABLE", "additive", "additive_inplace", "additive_out", "store", "wide_like"]

Scalar = int | float | complex | bool


def store(result: Tensor, out: Tensor) -> Tensor:
    """Round ``result`` into ``out``, which gets its shape.

    Args:
        result: What an ``out=`` kernel wrote into an FP32 tensor shaped like ``out``. If that was
            the wrong shape, the kernel has resized it, with torch's own warning.
        out: The 16-bit tensor the caller gave.

    Returns:
        ``out``.
    """
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def wide_like(out: Tensor) -> Tensor:
    """Make an uninitialised FP32 tensor for an ``out=`` kernel to write into."""
    return torch.empty_like(out, dtype=torch.float32)


def pair(name: str) -> Build:
    """Build the kernel of a product of two tensors: ``op(a, b)``.

    Args:
        name: The operator.

    Returns:
        Its builder.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(name)

        def kernel(keys: Any, a: Tensor, b: Tensor) -> Any:
            dtype = a.dtype
            if dtype in wide and b.dtype is dtype:
                return call(keys, a.float(), b.float()).to(dtype)
            return call(keys, a, b)

        return kernel

    return build


def pair_out(name: str) -> Build:
    """Build the ``out=`` form of :func:`pair`.

    Args:
        name: The operator, without ``.out``.

    Returns:
        The builder of ``name.out``.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(f"{name}.out")

        def kernel(keys: Any, a: Tensor, b: Tensor, *, out: Tensor) -> Any:
            dtype = a.dtype
            if dtype in wide and b.dtype is dtype and out.dtype is dtype:
                return store(call(keys, a.float(), b.float(), out=wide_like(out)), out)
            return call(keys, a, b, out=out)

        return kernel

    return build


def additive(name: str) -> Build:
    """Build the kernel of ``beta * c + alpha * product(a, b)``.

    Args:
        name: The operator.

    Returns:
        Its builder.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(name)

        def kernel(
            keys: Any, c: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
        ) -> Any:
            dtype = a.dtype
            if dtype in wide and b.dtype is dtype and c.dtype is dtype:
                wider = (c.float(), a.float(), b.float())
                return call(keys, *wider, beta=beta, alpha=alpha).to(dtype)
            return call(keys, c, a, b, beta=beta, alpha=alpha)

        return kernel

    return build


def additive_inplace(name: str) -> Build:
    """Build the in-place form of :func:`additive`, rounded once into ``c``.

    Args:
        name: The operator, without the trailing underscore.

    Returns:
        The builder of ``name_``.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(f"{name}_")

        def kernel(
            keys: Any, c: Tensor, a: Tensor, b: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
        ) -> Any:
            dtype = a.dtype
            if dtype in wide and b.dtype is dtype and c.dtype is dtype:
                wider = c.float()
                call(keys, wider, a.float(), b.float(), beta=beta, alpha=alpha)
                return c.copy_(wider)
            return call(keys, c, a, b, beta=beta, alpha=alpha)

        return kernel

    return build


def additive_out(name: str) -> Build:
    """Build the ``out=`` form of :func:`additive`.

    Args:
        name: The operator, without ``.out``.

    Returns:
        The builder of ``name.out``.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(f"{name}.out")

        def kernel(
            keys: Any,
            c: Tensor,
            a: Tensor,
            b: Tensor,
            *,
            beta: Scalar = 1,
            alpha: Scalar = 1,
            out: Tensor,
        ) -> Any:
            dtype = a.dtype
            if dtype in wide and b.dtype is dtype and c.dtype is dtype and out.dtype is dtype:
                wider = (c.float(), a.float(), b.float())
                result = call(keys, *wider, beta=beta, alpha=alpha, out=wide_like(out))
                return store(result, out)
            return call(keys, c, a, b, beta=beta, alpha=alpha, out=out)

        return kernel

    return build


def _convolution(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("convolution")

    def kernel(keys: Any, x: Tensor, w: Tensor, bias: Tensor | None, *geometry: Any) -> Any:
        dtype = x.dtype
        if dtype in wide and w.dtype is dtype and (bias is None or bias.dtype is dtype):
            b = None if bias is None else bias.float()
            return call(keys, x.float(), w.float(), b, *geometry).to(dtype)
        return call(keys, x, w, bias, *geometry)

    return kernel


def _convolution_backward(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("convolution_backward")

    def kernel(keys: Any, grad: Tensor, x: Tensor, w: Tensor, *geometry: Any) -> Any:
        dtype = x.dtype
        if dtype in wide and w.dtype is dtype and grad.dtype is dtype:
            grads = call(keys, grad.float(), x.float(), w.float(), *geometry)
            return tuple(None if g is None else g.to(dtype) for g in grads)
        return call(keys, grad, x, w, *geometry)

    return kernel


def _attention(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("_scaled_dot_product_flash_attention_for_cpu")

    def kernel(
        keys: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        dtype = q.dtype
        if dtype in wide and k.dtype is dtype and v.dtype is dtype and _mask_fits(attn_mask, dtype):
            mask = None if attn_mask is None else attn_mask.float()
            output, logsumexp = call(
                keys,
                q.float(),
                k.float(),
                v.float(),
                dropout_p,
                is_causal,
                attn_mask=mask,
                scale=scale,
            )
            # The stock kernel keeps the log-sum-exp in FP32 for 16-bit inputs too.
            return output.to(dtype), logsumexp
        return call(keys, q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)

    return kernel


def _attention_backward(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("_scaled_dot_product_flash_attention_for_cpu_backward")

    def kernel(
        keys: Any,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        output: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        dtype = q.dtype
        same = grad.dtype is dtype and k.dtype is dtype and v.dtype is dtype
        if dtype in wide and same and output.dtype is dtype and _mask_fits(attn_mask, dtype):
            mask = None if attn_mask is None else attn_mask.float()
            tensors = (grad.float(), q.float(), k.float(), v.float(), output.float(), logsumexp)
            grads = call(keys, *tensors, dropout_p, is_causal, attn_mask=mask, scale=scale)
            return tuple(g.to(dtype) for g in grads)
        return call(
            keys,
            grad,
            q,
            k,
            v,
            output,
            logsumexp,
            dropout_p,
            is_causal,
            attn_mask=attn_mask,
            scale=scale,
        )

    return kernel


def _mask_fits(mask: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether the stock kernel takes this mask beside queries of ``dtype``."""
    return mask is None or mask.dtype is dtype or mask.dtype is torch.float32


TABLE: Mapping[str, Build] = MappingProxyType(
    {
        **{name: pair(name) for name in ("mm", "bmm", "mv", "dot", "vdot")},
        **{f"{name}.out": pair_out(name) for name in ("mm", "bmm")},
        **{name: additive(name) for name in ("addmm", "baddbmm", "addmv", "addr")},
        **{f"{name}_": additive_inplace(name) for name in ("addmm", "baddbmm", "addmv")},
        **{f"{name}.out": additive_out(name) for name in ("addmm", "baddbmm", "addmv", "addr")},
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    }
)
"""Operators whose 16-bit CPU kernels are slow without 16-bit units, and their builders."""
