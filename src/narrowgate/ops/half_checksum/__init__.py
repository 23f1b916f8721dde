"""The op `half_checksum`: tells whether a half is the one that its remainder belongs to.

What is true here: a remainder says nothing without its half, and a half of another step joined
with it gives weights that look right and are not. So a checksum of each half is kept beside its
remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from narrowgate.ops import _checks, _library
from narrowgate.ops.half_checksum import native, reference

__all__ = ["half_checksum", "samples"]

_NAME = "half_checksum"


def _check(halves: Sequence[Tensor], *, meta: bool) -> None:
    for i, half in enumerate(halves):
        _checks.tensor(_NAME, f"halves[{i}]", half, _checks.HALVES)
        if not meta:
            _checks.not_meta(_NAME, f"halves[{i}]", half)
        _checks.same_device(_NAME, f"halves[{i}]", half, halves[0], "halves[0]")


def _fake(halves: list[Tensor]) -> Tensor:
    _check(halves, meta=True)
    return torch.empty(len(halves), dtype=torch.int64, device=halves[0].device)


_library.define(_NAME, "(Tensor[] halves) -> Tensor", reference.half_checksum, _fake)
_library.override(_NAME, native.half_checksum, reference.half_checksum)
_library.override_cuda(_NAME, reference.half_checksum)


def half_checksum(halves: Sequence[Tensor]) -> Tensor:
    """Checksum the bits of each 16-bit tensor, position by position.

    Args:
        halves: Parameters; formats may be mixed, any strides.

    Returns:
        One checksum per tensor; none for an empty list, on the CPU.

    Raises:
        OpError: Another data type or layout, several devices, or tensors without data.

    Shapes:
        n tensors of any shape, bfloat16 or float16 -> (n,) int64.

    Units:
        Reads 2 bytes/param.

    Numerics:
        Bits, not values: -0 differs from 0. The order is the logical one, so strides do not
        matter, nor does the shape; nor the data type, if the bits are equal. The same on every
        device. A change within four neighbouring codes of one 64-bit word is always seen.

    Example:
        >>> a, b = half_checksum([torch.zeros(3).half(), torch.zeros(4).half()]).tolist()
        >>> a == b
        False
    """
    listed = list(halves)
    _check(listed, meta=False)
    if not listed:
        return torch.empty(0, dtype=torch.int64)
    with torch.no_grad():
        checksums: Tensor = torch.ops.narrowgate.half_checksum.default(listed)
    return checksums


def samples() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Give arguments for opcheck, tests and benchmarks: both formats, every layout, odd sizes."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(7, 301, generator=generator)
    mixed = [plain.half(), plain.bfloat16().T, plain.half()[:, ::2], torch.zeros(0).half()]
    return [((mixed,), {})]
