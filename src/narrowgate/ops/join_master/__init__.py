"""The op `join_master`: 16-bit half and 16-bit remainder -> FP32.

What is true here: it undoes `split_master` exactly; the format is the half's data type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from narrowgate.ops import _checks, _library
from narrowgate.ops.join_master import native, reference
from narrowgate.ops.split_master import samples as split_samples
from narrowgate.ops.split_master import split_master

__all__ = ["join_master", "samples"]

_NAME = "join_master"


def _check(half: Tensor, remainder: Tensor) -> None:
    _checks.tensor(_NAME, "half", half, _checks.HALVES)
    _checks.tensor(_NAME, "remainder", remainder, (torch.int16,))
    _checks.same_place(_NAME, "remainder", remainder, half, "half", strides=False)


def _fake(half: Tensor, remainder: Tensor) -> Tensor:
    _check(half, remainder)
    return torch.empty_like(half, dtype=torch.float32)


_library.define(_NAME, "(Tensor half, Tensor remainder) -> Tensor", reference.join_master, _fake)
_library.override(_NAME, native.join_master, reference.join_master)
_library.override_cuda(_NAME, reference.join_master)


def join_master(half: Tensor, remainder: Tensor) -> Tensor:
    """Put the FP32 master together again.

    Args:
        half: The parameter; any strides.
        remainder: What `split_master` or an update put beside it; any strides.

    Returns:
        The master.

    Raises:
        OpError: Another data type or layout, unequal shapes or devices, or tensors without data.

    Shapes:
        half any bfloat16 or float16, remainder the same int16 -> the same float32. The half's
        dense strides are kept; others become contiguous.

    Units:
        2 + 2 bytes/param in, 4 bytes/param out.

    Numerics:
        Exact on what `split_master` and the updates produce. A non-finite half gives a non-finite
        master, except a bf16 half of Inf beside a negative remainder: the finite masters of
        0x7F7F8000 and more, which bf16 rounds to Inf, come back as they were.

    Example:
        >>> join_master(*split_master(torch.tensor([1.001]), "fp16")) == torch.tensor([1.001])
        tensor([True])
    """
    _check(half, remainder)
    _checks.not_meta(_NAME, "half", half)
    with torch.no_grad():
        master: Tensor = torch.ops.narrowgate.join_master.default(half, remainder)
    return master


def samples() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Give arguments for opcheck, tests and benchmarks: the splits of `split_master`'s samples."""
    return [(split_master(*args), {}) for args, _ in split_samples()]
