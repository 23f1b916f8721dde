"""Statistics of gradients in C++: what kernel.cpp is given."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import compact
from narrowgate.ops._native.weights import pointer
from narrowgate.ops.grad_stats.reference import BRANCHES

__all__ = ["grad_stats"]

_ARGUMENTS = (ctypes.c_int64, *[ctypes.c_void_p] * 8, ctypes.c_int32)


def grad_stats(grads: list[Tensor]) -> Tensor:
    """Serve `narrowgate.ops.grad_stats` on a CPU."""
    rows = [compact(grad) for grad in grads]
    table = torch.zeros(len(rows), 3, dtype=torch.float64)
    counts = _native.sizes(rows)
    chunks = sum(-(-count // BRANCHES) for count in counts)
    units = sum(-(-count // _native.UNIT) for count in counts)
    sums = torch.empty(chunks, dtype=torch.float64)
    largest = torch.empty(units, dtype=torch.int64)
    grad_arrays = (_native.addresses(rows), _native.formats_of(rows))
    firsts = (_native.room(len(rows) + 1), _native.room(len(rows) + 1))
    _native.kernel("grad_stats", *_ARGUMENTS)(
        len(rows),
        *map(pointer, (counts, *grad_arrays, *firsts)),
        sums.data_ptr(),
        largest.data_ptr(),
        table.data_ptr(),
        torch.get_num_threads(),
    )
    return table
