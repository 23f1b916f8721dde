"""CPU autocast made to treat each operator as CUDA's does, so that a recipe means one thing.

Torch's list for the CPU leaves softmax, sums, norms, exponentials, ... in 16 bits, which CUDA's
runs in FP32, and leaves matrix-vector products and recurrent cells alone, which CUDA's runs in 16
bits. Here each missing operator gets a kernel at the AutocastCPU key: it casts its arguments by its
policy and calls the operator again with autocast left out. Autograd records the casts, as with
torch's own kernels. Outside ``torch.autocast("cpu")`` that key is not reached.

Two things are narrower than in torch's C++: casts of weights are not cached for the operators added
here, and an argument in the *other* 16-bit format is cast where C++ raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from narrowgate.engine.cpu import autocast_table as table
from narrowgate.engine.cpu.registry import Kernel
from narrowgate.engine.private import (
    argument_defaults,
    register_kernel,
    registered_at,
    without_autocast_cpu,
)

__all__ = ["missing", "register"]


def missing() -> frozenset[str]:
    """Name the operators that get a kernel: CUDA autocast has them, the CPU's lacks or differs.

    Names that the installed torch does not list for CUDA are left out.
    """
    listed = table.LOWER | table.FP32 | table.SET_DTYPE | table.PROMOTE | set(table.APPEND_DTYPE)
    here = {name.removeprefix("aten::") for name in registered_at("AutocastCUDA")}
    return frozenset((listed & here) - table.STOCK)


def register(library: Library) -> None:
    """Register a kernel for each of :func:`missing` at the AutocastCPU key.

    Args:
        library: The handle that owns them.
    """
    for name in sorted(missing()):
        register_kernel(library, name, _kernel(name), "AutocastCPU")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _eligible(x: Tensor) -> bool:
    """Whether autocast touches this tensor: floating, on the CPU, not FP64."""
    return x.is_floating_point() and x.is_cpu and x.dtype is not torch.float64


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    if isinstance(arg, Tensor):
        return arg.to(dtype) if _eligible(arg) else arg
    if isinstance(arg, (list, tuple)):
        return [_cast(a, dtype) for a in arg]
    return arg


def _recast(op: Callable[..., Any], choose: Callable[[Sequence[Any]], torch.dtype]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast_cpu():
            dtype = choose((*args, *kwargs.values()))
            return op(
                *(_cast(a, dtype) for a in args),
                **{key: _cast(value, dtype) for key, value in kwargs.items()},
            )

    return kernel


def _fp32(_: Sequence[Any]) -> torch.dtype:
    return torch.float32


def _lower(_: Sequence[Any]) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _widest(args: Sequence[Any]) -> torch.dtype:
    flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,))]
    if any(isinstance(t, Tensor) and t.is_cpu and t.dtype is torch.float32 for t in flat):
        return torch.float32
    return torch.get_autocast_dtype("cpu")


def _set_dtype(op: Any) -> Kernel:
    arguments = argument_defaults(op)
    place = list(arguments).index("dtype") - 1  # Among the arguments after the first.
    positional = not arguments["dtype"][0]

    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with without_autocast_cpu():
            if positional and len(args) > place:
                kwargs["dtype"], args = args[place], args[:place]
            if kwargs.get("dtype") is None and _eligible(x):
                kwargs["dtype"] = torch.float32
            return op(x, *args, **kwargs)

    return kernel


def _append_dtype(op: Any, with_dtype: Any) -> Kernel:
    defaults = [default for _, default in argument_defaults(op).values()][1:]

    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with without_autocast_cpu():
            if not _eligible(x):
                return op(x, *args, **kwargs)
            filled = (*args, *defaults[len(args) :])
            return with_dtype(x, *filled, dtype=torch.float32)

    return kernel


def _kernel(name: str) -> Kernel:
    op = _overload(name)
    if name in table.FP32:
        return _recast(op, _fp32)
    if name in table.LOWER:
        return _recast(op, _lower)
    if name in table.PROMOTE:
        return _recast(op, _widest)
    if name in table.SET_DTYPE:
        return _set_dtype(op)
    return _append_dtype(op, _overload(table.APPEND_DTYPE[name]))
