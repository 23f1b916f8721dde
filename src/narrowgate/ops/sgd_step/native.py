"""One SGD step in C++: what kernel.cpp is given."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._checks import float32
from narrowgate.ops._native.weights import Call, Weights, mark_changed, pointer

__all__ = ["sgd_step"]

_NO_MOMENTUM, _PLAIN, _NESTEROV = range(3)  # kernel.cpp, enum Momentum


class _Sgd(ctypes.Structure):
    """NarrowgateSgd of kernel.cpp."""

    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("lr", ctypes.c_float),
        ("momentum", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("mode", ctypes.c_int32),
        ("decays", ctypes.c_int32),
    )


_ARGUMENTS = (ctypes.POINTER(Weights), ctypes.POINTER(_Sgd))


def sgd_step(
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    grad_mult: Tensor,
    skip: Tensor,
) -> Tensor:
    """Serve `narrowgate.ops.sgd_step` on a CPU."""
    if skip.item() != 0:
        return torch.zeros(len(params), dtype=torch.int64)
    mode = _NO_MOMENTUM
    if momentum:
        mode = _NESTEROV if nesterov else _PLAIN
    buffers = _native.addresses(momentum_buffers)
    settings = _Sgd(
        pointer(buffers),
        float32(lr),
        float32(momentum),
        float32(weight_decay),
        mode,
        bool(weight_decay),
    )
    call = Call(params, remainders, grads, grad_mult, maximize)
    _native.kernel("sgd_step", *_ARGUMENTS)(ctypes.byref(call.weights), ctypes.byref(settings))
    mark_changed(params, remainders, momentum_buffers)
    return call.saturated
