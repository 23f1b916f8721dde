"""The op `split_master`: FP32 -> 16-bit half and 16-bit remainder.

What is true here: the half is the weight that the model computes with, the remainder is what the
optimizer keeps beside it, and `join_master` puts the master together again. See `reference` for
the formulas and their proofs of size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from narrowgate.errors import OpError, nearest
from narrowgate.ops import _checks, _library
from narrowgate.ops._limits import HALF_OF
from narrowgate.ops.split_master import native, reference

__all__ = ["samples", "split_master"]

_NAME = "split_master"


def _check(master: Tensor, format: str) -> None:  # noqa: A002
    if format not in HALF_OF:
        raise OpError(
            f"{_NAME}: format is {format!r}; allowed: {', '.join(HALF_OF)}",
            hint=nearest(str(format), HALF_OF),
        )
    _checks.tensor(_NAME, "master", master, (torch.float32,))


def _fake(master: Tensor, format: str) -> tuple[Tensor, Tensor]:  # noqa: A002
    _check(master, format)
    half = torch.empty_like(master, dtype=HALF_OF[format])
    return half, torch.empty_like(half, dtype=torch.int16)


_library.define(
    _NAME, "(Tensor master, str format) -> (Tensor, Tensor)", reference.split_master, _fake
)
_library.override(_NAME, native.split_master, reference.split_master)
_library.override_cuda(_NAME, reference.split_master)


def split_master(master: Tensor, format: str) -> tuple[Tensor, Tensor]:  # noqa: A002
    """Split an FP32 master into the 16-bit half used by the model and a 16-bit remainder.

    Args:
        master: The exact weights; any strides.
        format: ``"bf16"`` or ``"fp16"``, the format of the half.

    Returns:
        half: The master rounded to nearest: bf16 ties away, fp16 ties to even.
        remainder: What `join_master` needs to give the master back.

    Raises:
        OpError: Another data type, layout or format, or a tensor without data.

    Shapes:
        master any float32 -> half the same, bfloat16 or float16; remainder the same, int16.
        Dense strides are kept; others become contiguous.

    Units:
        4 bytes/param in, 2 + 2 bytes/param out.

    Numerics:
        bf16: lossless for every pattern but NaN, whose payload is dropped; a finite master of
        |w| >= 0x7F7F8000 has an Inf half. fp16: exact for 2^-16 <= |w| < 65,520, within 2^-40
        below; at and above 65,520 the half is Inf, the remainder 0, and the master is lost.

    Example:
        >>> half, remainder = split_master(torch.tensor([1.001]), "bf16")
        >>> half.item(), remainder.item(), hex(remainder.item() & 0xFFFF)
        (1.0, 8389, '0x20c5')
    """
    _check(master, format)
    _checks.not_meta(_NAME, "master", master)
    with torch.no_grad():
        half, remainder = torch.ops.narrowgate.split_master.default(master, format)
    return half, remainder


def samples() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Give arguments for opcheck, tests and benchmarks: finite, every layout that is allowed."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(3, 5, generator=generator)
    image = torch.randn(2, 3, 4, 4, generator=generator).to(memory_format=torch.channels_last)
    inputs = [plain, plain[:, ::2], image, torch.zeros(0), torch.tensor(-0.0)]
    return [((master, name), {}) for master in inputs for name in HALF_OF]
