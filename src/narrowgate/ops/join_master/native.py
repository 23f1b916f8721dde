"""Join halves and remainders in C++: what kernel.cpp is given."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import compact, in_layout_of

__all__ = ["join_master"]

_ARGUMENTS = (*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32)


def join_master(half: Tensor, remainder: Tensor) -> Tensor:
    """Serve `narrowgate.ops.join_master` on a CPU."""
    master = torch.empty_like(half, dtype=torch.float32)
    dense, low = compact(half), in_layout_of(remainder, master)
    _native.kernel("join_master", *_ARGUMENTS)(
        dense.data_ptr(),
        low.data_ptr(),
        master.data_ptr(),
        dense.numel(),
        _native.FORMAT[half.dtype],
        torch.get_num_threads(),
    )
    return master
