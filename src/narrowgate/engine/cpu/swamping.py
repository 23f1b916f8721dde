"""CPU operators which sum 16-bit values in 16 bits, made to sum in FP32 and round once.

Torch's kernels for these keep the running sum in the tensor's own format, on every processor, with
16-bit units or without: 4,096 ones add up to 256 or 512 in bf16. They are LayerNorm's weight and
bias gradients (also with FP32 weights), the gradients of embeddings, of indexing, of overlapping
windows and of padding, indexed additions, segment sums, and the scalar result of ``nll_loss``.

Each kernel here widens the 16-bit tensors, calls torch's FP32 kernel and rounds once. Which
operators are listed is not a matter of opinion: :mod:`narrowgate.engine.audits` adds up ones
through each candidate, and the list is what fails there, with the siblings that share the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from narrowgate.engine.cpu.kernels import (
    Scalar,
    additive,
    additive_inplace,
    additive_out,
    store,
    wide_like,
)
from narrowgate.engine.cpu.registry import Build, Kernel, Lookup, Wide

__all__ = ["TABLE"]


def _uniform(args: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether all floating tensors among ``args`` have this dtype; torch refuses other mixtures."""
    return all(
        a.dtype is dtype
        for a in args
        if isinstance(a, Tensor) and (a.is_floating_point() or a.is_complex())
    )


def _widen(arg: Any, dtype: torch.dtype) -> Any:
    return arg.float() if isinstance(arg, Tensor) and arg.dtype is dtype else arg


def _round(result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, Tensor):
        return result.to(dtype)
    return tuple(None if r is None else r.to(dtype) for r in result)


def functional(name: str) -> Build:
    """Build the kernel of an operator that writes into none of its arguments.

    Args:
        name: The operator; its first argument is a floating tensor, and its floating results have
            that tensor's dtype.

    Returns:
        Its builder.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(name)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            dtype = args[0].dtype
            if dtype in wide and _uniform(args, dtype):
                wider = [_widen(a, dtype) for a in args]
                return _round(call(keys, *wider, **kwargs), dtype)
            return call(keys, *args, **kwargs)

        return kernel

    return build


def functional_out(name: str) -> Build:
    """Build the ``out=`` form of :func:`functional`, for an operator with one result.

    Args:
        name: The operator, without ``.out``.

    Returns:
        The builder of ``name.out``.
    """

    def build(lookup: Lookup, wide: Wide) -> Kernel:
        call = lookup(f"{name}.out")

        def kernel(keys: Any, *args: Any, out: Tensor, **kwargs: Any) -> Any:
            dtype = args[0].dtype
            if dtype in wide and out.dtype is dtype and _uniform(args, dtype):
                wider = [_widen(a, dtype) for a in args]
                return store(call(keys, *wider, **kwargs, out=wide_like(out)), out)
            return call(keys, *args, **kwargs, out=out)

        return kernel

    return build


def _layer_norm_backward(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("native_layer_norm_backward")

    def kernel(
        keys: Any,
        grad: Tensor,
        x: Tensor,
        shape: Sequence[int],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        output_mask: Sequence[bool],
    ) -> Any:
        dtype = x.dtype
        affine = next((p.dtype for p in (weight, bias) if p is not None), dtype)
        if dtype in wide and grad.dtype is dtype and affine in (dtype, torch.float32):
            grads = call(
                keys,
                grad.float(),
                x.float(),
                shape,
                mean.float(),
                rstd.float(),
                None if weight is None else weight.float(),
                None if bias is None else bias.float(),
                output_mask,
            )
            dtypes = (dtype, affine, affine)
            return tuple(None if g is None else g.to(d) for g, d in zip(grads, dtypes, strict=True))
        return call(keys, grad, x, shape, mean, rstd, weight, bias, output_mask)

    return kernel


def _index_put(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("_index_put_impl_")

    def kernel(
        keys: Any,
        x: Tensor,
        indices: Sequence[Tensor | None],
        values: Tensor,
        accumulate: bool = False,
        unsafe: bool = False,
    ) -> Any:
        if accumulate and x.dtype in wide and values.dtype is x.dtype:
            wider = x.float()
            call(keys, wider, indices, values.float(), accumulate, unsafe)
            return x.copy_(wider)
        return call(keys, x, indices, values, accumulate, unsafe)

    return kernel


def _put(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("put_")

    def kernel(
        keys: Any, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
    ) -> Any:
        if accumulate and x.dtype in wide and source.dtype is x.dtype:
            wider = x.float()
            call(keys, wider, index, source.float(), accumulate)
            return x.copy_(wider)
        return call(keys, x, index, source, accumulate)

    return kernel


def _index_add(lookup: Lookup, wide: Wide) -> Kernel:
    call = lookup("index_add_")

    def kernel(
        keys: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Scalar = 1
    ) -> Any:
        if x.dtype in wide and source.dtype is x.dtype:
            wider = x.float()
            call(keys, wider, dim, index, source.float(), alpha=alpha)
            return x.copy_(wider)
        return call(keys, x, dim, index, source, alpha=alpha)

    return kernel


_FUNCTIONAL = (
    "_adaptive_avg_pool2d_backward",
    "_embedding_bag_dense_backward",
    "adaptive_max_pool2d_backward",
    "avg_pool2d_backward",
    "col2im",
    "embedding_dense_backward",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "index_add",
    "max_pool2d_with_indices_backward",
    "nll_loss2d_forward",
    "nll_loss_forward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "replication_pad1d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
    "segment_reduce",
    "unfold_backward",
)

TABLE: Mapping[str, Build] = MappingProxyType(
    {
        **{name: functional(name) for name in _FUNCTIONAL},
        **{f"{name}.out": functional_out(name) for name in ("col2im", "index_add")},
        "_index_put_impl_": _index_put,
        "addbmm": additive("addbmm"),
        "addbmm.out": additive_out("addbmm"),
        "addbmm_": additive_inplace("addbmm"),
        "index_add_": _index_add,
        "native_layer_norm_backward": _layer_norm_backward,
        "put_": _put,
    }
)
"""Operators whose CPU kernels sum in 16 bits, and their builders."""
