"""Lists of tensors as tables that a kernel reads: one launch for a list, whatever its length.

What is true here: a table is a column of 64-bit integers per argument (addresses, sizes), one row
per tensor, on the device. Its numbers travel in the arguments of torch's own fill kernels, by
value: no copy from host memory, so nothing waits, and a CUDA graph can replay it with nothing on
the host kept alive. Columns are remembered by their content and stream: in a training loop only
those whose addresses change are written again. Within a capture nothing remembered is used, since
a graph outlives it.

A list is cut into blocks of one size; a program finds its tensor in `Cut.rows`, by its number.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["OPTIONS", "Cut", "addresses", "column", "cut", "groups", "is_aligned", "on"]

OPTIONS: dict[str, Any] = {
    "num_warps": 4,
    "num_stages": 1,
    "enable_fp_fusion": False,
    "sanitize_overflow": False,
}
"""Of every launch. Fixed, so that a kernel has one form: fusing a product and a sum would round
once where the definitions round twice; integers wrap, and that is no fault."""

WIDE_BYTES = 16
"""What a thread loads at once where a tensor's address allows it."""

_MOST = 1024
"""Columns that are remembered: 8 bytes a tensor each, and a training step uses about ten."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A list of tensors, cut into blocks.

    Args:
        blocks: How many in all: the programs of a launch.
        rows: (blocks,) int32: the row of each block's tensor.
        firsts: (n,) int64: the number of each tensor's first block.
        counts: (n,) int64: elements of each tensor.
    """

    blocks: int
    rows: Tensor
    firsts: Tensor
    counts: Tensor


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the current one, which is where triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _stream(device: torch.device) -> int | None:
    """Tell streams apart; None while one captures a graph. The device is the current one."""
    if device.type != "cuda":  # triton's interpreter
        return 0
    if torch.cuda.is_current_stream_capturing():
        return None
    return int(torch.cuda.current_stream().cuda_stream)


def _write(values: tuple[int, ...], device: torch.device) -> Tensor:
    written = torch.zeros(len(values), dtype=torch.int64, device=device)
    if values:
        # About a hundred numbers in the arguments of one launch.
        torch._foreach_add_(list(written.unbind()), list(values))
    return written


@functools.lru_cache(maxsize=_MOST)
def _remembered(values: tuple[int, ...], device: torch.device, stream: int) -> Tensor:
    return _write(values, device)


def column(values: Sequence[int], device: torch.device) -> Tensor:
    """Put numbers on the device, which must be the current one, without waiting for it.

    Args:
        values: int64.
        device: Where.

    Returns:
        (n,) int64, shared with other callers: not to be written.
    """
    stream = _stream(device)
    numbers = tuple(values)
    if stream is None:
        return _write(numbers, device)
    return _remembered(numbers, device, stream)


def addresses(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Put the addresses of tensors' data into a column."""
    return column([tensor.data_ptr() for tensor in tensors], device)


def _cut(counts: tuple[int, ...], size: int, device: torch.device) -> Cut:
    firsts = [0, *itertools.accumulate(-(-count // size) for count in counts)]
    blocks = firsts.pop()
    starts = column(firsts, device)
    # The last row that starts at or before a block: empty tensors start where the next one does.
    numbers = torch.arange(blocks, device=device)
    rows = torch.searchsorted(starts, numbers, right=True, out_int32=True).sub_(1)
    return Cut(blocks=blocks, rows=rows, firsts=starts, counts=column(counts, device))


@functools.lru_cache(maxsize=_MOST)
def _remembered_cut(counts: tuple[int, ...], size: int, device: torch.device, stream: int) -> Cut:
    return _cut(counts, size, device)


def cut(counts: Sequence[int], size: int, device: torch.device) -> Cut:
    """Cut tensors into blocks of `size` elements, the last of each shorter.

    Args:
        counts: Elements per tensor, at least one tensor.
        size: Elements per block.
        device: Where the tables go; the current one.

    Returns:
        The tables, shared with other callers.
    """
    stream = _stream(device)
    numbers = tuple(counts)
    if stream is None:
        return _cut(numbers, size, device)
    return _remembered_cut(numbers, size, device, stream)


def is_aligned(*tensors: Tensor) -> bool:
    """Tell whether wide loads and stores may start where the tensors do."""
    return all(tensor.data_ptr() % WIDE_BYTES == 0 for tensor in tensors)


def groups(keys: Sequence[Key]) -> dict[Key, list[int]]:
    """Give the positions of equal keys: one launch serves those alike in formats and alignment."""
    found: dict[Key, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return found
