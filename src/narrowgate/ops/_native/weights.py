"""The lists that every optimizer kernel takes, as C reads them.

What is true here: `Weights` has the fields of NarrowgateWeights in weights.h, in its order. The
arrays behind its pointers live as long as the `Call` that made them.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import in_layout_of
from narrowgate.ops._limits import HALF_OF, largest_master

__all__ = ["Call", "Weights", "mark_changed", "pointer"]

_LIMITS = {dtype: largest_master(name) for name, dtype in HALF_OF.items()}
_LIMITS[torch.float32] = torch.finfo(torch.float32).max


class Weights(ctypes.Structure):
    """NarrowgateWeights of weights.h."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("counts", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("remainders", ctypes.c_void_p),
        ("grads", ctypes.c_void_p),
        ("grad_formats", ctypes.c_void_p),
        ("first_units", ctypes.c_void_p),
        ("saturated", ctypes.c_void_p),
        ("format", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("grad_mult", ctypes.c_float),
        ("limit", ctypes.c_float),
    )


def pointer(values: array[int] | array[float]) -> int:
    """Give the address of an array's first number."""
    return values.buffer_info()[0]


class Call:
    """One call of an optimizer kernel; holds what its pointers point to.

    Args:
        params: At least one, dense.
        remainders: Beside 16-bit parameters.
        grads: Any strides; those that differ from their parameter's are copied.
        grad_mult: Multiplies every gradient.
        maximize: Whether to go up the gradient: -(g * x) and g * (-x) are the same bits.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        remainders: Sequence[Tensor],
        grads: Sequence[Tensor],
        grad_mult: Tensor,
        maximize: bool,
    ) -> None:
        self._grads = [in_layout_of(grad, param) for grad, param in zip(grads, params, strict=True)]
        self.saturated = torch.zeros(len(params), dtype=torch.int64)
        self._arrays = [
            _native.sizes(params),
            _native.addresses(params),
            _native.addresses(remainders),
            _native.addresses(self._grads),
            _native.formats_of(self._grads),
            _native.room(len(params) + 1),
        ]
        factor = grad_mult.item()  # in host memory, as all that these kernels are given
        self.weights = Weights(
            len(params),
            *map(pointer, self._arrays),
            self.saturated.data_ptr(),
            _native.FORMAT[params[0].dtype],
            torch.get_num_threads(),
            -factor if maximize else factor,
            _LIMITS[params[0].dtype],
        )


def mark_changed(*lists: Sequence[Tensor]) -> None:
    """Count up the versions of tensors that a kernel changed: torch does not see it happen."""
    torch.autograd.graph.increment_version([tensor for tensors in lists for tensor in tensors])
