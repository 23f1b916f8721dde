"""Split FP32 masters in C++: what kernel.cpp is given."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import compact
from narrowgate.ops._limits import HALF_OF

__all__ = ["split_master"]

_ARGUMENTS = (*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32)


def split_master(master: Tensor, format: str) -> tuple[Tensor, Tensor]:  # noqa: A002
    """Serve `narrowgate.ops.split_master` on a CPU."""
    half = torch.empty_like(master, dtype=HALF_OF[format])
    remainder = torch.empty_like(half, dtype=torch.int16)
    dense = compact(master)
    _native.kernel("split_master", *_ARGUMENTS)(
        dense.data_ptr(),
        half.data_ptr(),
        remainder.data_ptr(),
        dense.numel(),
        _native.FORMAT[half.dtype],
        torch.get_num_threads(),
    )
    return half, remainder
