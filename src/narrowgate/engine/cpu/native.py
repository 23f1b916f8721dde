"""Which 16-bit formats this processor multiplies natively: the flags decide, a probe checks.

oneDNN knows from the processor's flags whether it has bf16 or fp16 matrix kernels. Where it has,
stock kernels are faster than FP32 and are left alone; where it has not, they are 3 to 100 times
slower. The probe measures that, but does not decide: under load, with more than one thread, such a
measurement can be off by an order of magnitude in either direction. ``narrowgate doctor`` prints
both, so that a disagreement is seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from narrowgate.engine.private import native_bf16, native_fp16

__all__ = ["HALVES", "ProbeRow", "native_dtypes", "probe"]

HALVES: frozenset[torch.dtype] = frozenset({torch.bfloat16, torch.float16})
"""The 16-bit floating formats."""

_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """How long one operation takes in a 16-bit format, against FP32.

    Attributes:
        operation: The operation and the layout of its operands, ``mm A @ B.T``.
        dtype: The 16-bit format.
        ratio: Time in that format / time in FP32, single-thread, the least of five runs each.
    """

    operation: str
    dtype: torch.dtype
    ratio: float


def native_dtypes() -> frozenset[torch.dtype]:
    """Name the 16-bit formats for which oneDNN has kernels on this processor.

    Returns:
        A subset of bf16 and fp16; empty where torch was built without oneDNN.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return frozenset()
    flags = {torch.bfloat16: native_bf16, torch.float16: native_fp16}
    return frozenset(dtype for dtype, supported in flags.items() if supported())


def _conv_backward(x: Tensor, w: Tensor) -> object:
    return torch.ops.aten.convolution_backward(
        x, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )


def _attention_backward(x: Tensor) -> object:
    q = x.requires_grad_()
    return torch.autograd.grad(F.scaled_dot_product_attention(q, q, q, is_causal=True).sum(), q)


_OPERATIONS: Mapping[str, tuple[tuple[tuple[int, ...], ...], Callable[..., object]]] = (
    MappingProxyType(
        {
            "mm A @ B": (((256, 256), (256, 256)), lambda a, b: a @ b),
            "mm A @ B.T": (((256, 256), (256, 256)), lambda a, b: a @ b.t()),
            "mm A.T @ B": (((256, 256), (256, 256)), lambda a, b: a.t() @ b),
            "addmm": (((256,), (256, 256), (256, 256)), torch.addmm),
            "bmm": (((8, 128, 64), (8, 64, 128)), torch.bmm),
            "convolution": (
                ((4, 16, 16, 16), (16, 16, 3, 3)),
                lambda x, w: F.conv2d(x, w, padding=1),
            ),
            "convolution backward": (((4, 16, 16, 16), (16, 16, 3, 3)), _conv_backward),
            "attention": (
                ((2, 4, 128, 64),),
                lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
            ),
            "attention both ways": (((2, 4, 128, 64),), _attention_backward),
        }
    )
)


def probe() -> tuple[ProbeRow, ...]:
    """Time 16-bit operations against FP32 with the kernels now in effect, on one thread.

    Meant for ``narrowgate doctor``, in a process of its own, before anything is installed. The
    thread count is put back, also after an error.

    Returns:
        One row per operation and 16-bit format, operations in a fixed order.

    Units:
        Ratios of seconds; above 1 the 16-bit format is slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for operation, (shapes, run) in _OPERATIONS.items():
            seconds = {
                dtype: _least_seconds(run, [torch.ones(s, dtype=dtype) for s in shapes])
                for dtype in (torch.float32, torch.bfloat16, torch.float16)
            }
            rows += [
                ProbeRow(
                    operation=operation, dtype=dtype, ratio=seconds[dtype] / seconds[torch.float32]
                )
                for dtype in (torch.bfloat16, torch.float16)
            ]
    finally:
        torch.set_num_threads(threads)
    return tuple(rows)


def _least_seconds(run: Callable[..., object], operands: list[Tensor]) -> float:
    run(*operands)
    least = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        run(*operands)
        least = min(least, time.perf_counter() - begin)
    return least
