"""One AdamW or Adam step in C++: what kernel.cpp is given."""

from __future__ import annotations

import ctypes
from array import array

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._checks import float32
from narrowgate.ops._native.weights import Call, Weights, mark_changed, pointer
from narrowgate.ops.adamw_step.reference import correction

__all__ = ["adamw_step"]

_NO_DECAY, _OF_WEIGHT, _OF_GRADIENT = range(3)  # kernel.cpp, enum Decay


class _AdamW(ctypes.Structure):
    """NarrowgateAdamW of kernel.cpp."""

    _fields_ = (
        ("exp_avgs", ctypes.c_void_p),
        ("exp_avg_sqs", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("advanced", ctypes.c_void_p),
        ("roots", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("keep_m", ctypes.c_float),
        ("take_m", ctypes.c_float),
        ("keep_v", ctypes.c_float),
        ("take_v", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("mode", ctypes.c_int32),
    )


_ARGUMENTS = (ctypes.POINTER(Weights), ctypes.POINTER(_AdamW))


def adamw_step(
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    grad_mult: Tensor,
    skip: Tensor,
) -> Tensor:
    """Serve `narrowgate.ops.adamw_step` on a CPU."""
    if skip.item() != 0:
        return torch.zeros(len(params), dtype=torch.int64)
    # In FP32, as in the definition, where a count of 2^24 stays as it is.
    counts: list[float] = torch.stack(steps).add_(1).tolist()
    known = {t: correction(t, lr, beta1, beta2) for t in set(counts)}
    arrays: list[array[int] | array[float]] = [
        _native.addresses(exp_avgs),
        _native.addresses(exp_avg_sqs),
        _native.addresses(steps),
        _native.numbers(counts),
        _native.numbers([known[t].root for t in counts]),
        _native.numbers([known[t].size for t in counts]),
    ]
    decay, mode = 1.0, _NO_DECAY
    if weight_decay:
        decay = float32(1.0 - lr * weight_decay) if decoupled else float32(weight_decay)
        mode = _OF_WEIGHT if decoupled else _OF_GRADIENT
    settings = _AdamW(
        *map(pointer, arrays),
        float32(beta1),
        float32(1.0 - beta1),
        float32(beta2),
        float32(1.0 - beta2),
        float32(eps),
        decay,
        mode,
    )
    call = Call(params, remainders, grads, grad_mult, maximize)
    _native.kernel("adamw_step", *_ARGUMENTS)(ctypes.byref(call.weights), ctypes.byref(settings))
    mark_changed(params, remainders, exp_avgs, exp_avg_sqs, steps)
    return call.saturated
