"""Checksums in C++: what kernel.cpp is given."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._native.weights import pointer

__all__ = ["half_checksum"]

_ARGUMENTS = (ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int32)


def half_checksum(halves: list[Tensor]) -> Tensor:
    """Serve `narrowgate.ops.half_checksum` on a CPU."""
    rows = [half.contiguous() for half in halves]
    checksums = torch.zeros(len(rows), dtype=torch.int64)
    counts, codes = _native.sizes(rows), _native.addresses(rows)
    first_units = _native.room(len(rows) + 1)
    _native.kernel("half_checksum", *_ARGUMENTS)(
        len(rows),
        *map(pointer, (counts, codes, first_units)),
        checksums.data_ptr(),
        torch.get_num_threads(),
    )
    return checksums
