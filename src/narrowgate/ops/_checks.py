"""What the wrappers and the fake kernels refuse.

What is true here: a kernel trusts its arguments (a C kernel would read past the end of a wrong
one), so each wrapper checks them first, in eager mode as under tracing. A check costs a few
attribute reads, touches no data, and so never waits for a device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from narrowgate.errors import OpError

__all__ = [
    "GRADIENTS",
    "HALVES",
    "dense",
    "float32",
    "interval",
    "is_dense",
    "not_meta",
    "refuse",
    "same_device",
    "same_layout",
    "same_length",
    "same_place",
    "scalar",
    "tensor",
]

HALVES = (torch.bfloat16, torch.float16)
"""Formats of the upper half of a split master."""

GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)
"""Formats of the gradients that an update reads."""


def float32(value: float) -> float:
    """Round a Python float to the nearest FP32 value, ties to even; overflow gives Inf."""
    return ctypes.c_float(value).value


def names(dtypes: Collection[torch.dtype]) -> str:
    """Name data types for a message: ``float32, bfloat16``."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def refuse(op: str, what: str, got: str, allowed: str, hint: str) -> NoReturn:
    """Raise an OpError in the project's form: what, got, allowed, hint."""
    raise OpError(f"{op}: {what} is {got}; allowed: {allowed}", hint=hint)


def tensor(op: str, name: str, value: Tensor, dtypes: Collection[torch.dtype]) -> None:
    """Refuse what is no strided tensor of one of the data types."""
    if not isinstance(value, Tensor):
        refuse(
            op,
            name,
            f"a {type(value).__name__}",
            f"a tensor of {names(dtypes)}",
            "wrap numbers with torch.tensor(...)",
        )
    if value.layout is not torch.strided:
        refuse(
            op,
            name,
            f"a tensor of layout {str(value.layout).removeprefix('torch.')}",
            "strided",
            "make it dense with .to_dense(); an embedding gives dense gradients with sparse=False",
        )
    if value.dtype not in dtypes:
        refuse(
            op,
            name,
            f"{names([value.dtype])} of shape {tuple(value.shape)}",
            names(dtypes),
            "convert it before the call: the op never converts silently",
        )


def not_meta(op: str, name: str, value: Tensor) -> None:
    """Refuse a tensor without data. Only wrappers ask: the fake kernel is there to serve these."""
    if value.device.type == "meta":
        refuse(
            op,
            name,
            f"on device meta, shape {tuple(value.shape)}",
            "a device that holds data",
            "materialise it first, for example with module.to_empty(device=...)",
        )


def is_dense(value: Tensor) -> bool:
    """Tell whether the elements fill one piece of memory without gaps or overlaps."""
    if value.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def dense(op: str, name: str, value: Tensor) -> None:
    """Refuse a tensor with gaps or overlaps; channels_last and transposed ones are dense."""
    if not is_dense(value):
        refuse(
            op,
            name,
            f"strided {tuple(value.stride())} for shape {tuple(value.shape)}",
            "strides without gaps or overlaps",
            "pass a tensor that owns its memory, for example value.clone()",
        )


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors of one shape have their elements in the same order in memory."""
    if a.stride() == b.stride():
        return True
    return all(
        size == 1 or one == other
        for size, one, other in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def same_device(op: str, name: str, value: Tensor, like: Tensor, like_name: str) -> None:
    """Refuse a tensor on another device than `like`."""
    if value.device != like.device:
        refuse(
            op,
            name,
            f"on {value.device}",
            f"{like.device}, the device of {like_name}",
            f"move it with .to({str(like.device)!r})",
        )


def same_place(
    op: str, name: str, value: Tensor, like: Tensor, like_name: str, *, strides: bool
) -> None:
    """Refuse a tensor of another shape, device or (if `strides`) memory order than `like`."""
    if value.shape != like.shape:
        refuse(
            op,
            name,
            f"of shape {tuple(value.shape)}",
            f"{tuple(like.shape)}, the shape of {like_name}",
            "the lists go by position: check their order",
        )
    same_device(op, name, value, like, like_name)
    if strides and not same_layout(value, like):
        refuse(
            op,
            name,
            f"strided {tuple(value.stride())}",
            f"{tuple(like.stride())}, the strides of {like_name}",
            f"make it with torch.empty_like({like_name}, memory_format=torch.preserve_format)",
        )


def same_length(op: str, **lists: Sequence[Tensor]) -> None:
    """Refuse lists of unequal lengths; the first one sets the length."""
    (first, head), *rest = lists.items()
    for name, values in rest:
        if len(values) != len(head):
            refuse(
                op,
                name,
                f"a list of {len(values)}",
                f"{len(head)}, the length of {first}",
                "the lists go by position, one entry per parameter",
            )


def scalar(op: str, name: str, value: Tensor, like: Tensor | None, like_name: str) -> None:
    """Refuse what is no FP32 tensor without dimensions on the device of `like`."""
    tensor(op, name, value, (torch.float32,))
    if value.dim() != 0:
        refuse(
            op,
            name,
            f"of shape {tuple(value.shape)}",
            "(), a tensor without dimensions",
            "make it with torch.tensor(1.0)",
        )
    if like is not None:
        same_device(op, name, value, like, like_name)


def interval(op: str, name: str, value: float, *, below: float = math.inf) -> None:
    """Refuse a number outside [0, below), NaN included."""
    if not 0.0 <= value < below:
        refuse(
            op,
            name,
            repr(value),
            f"0 <= {name} < {below}",
            "check the optimizer's settings and the schedule that changes them",
        )
