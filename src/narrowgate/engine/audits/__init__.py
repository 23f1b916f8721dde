"""The swamping audit: which kernels sum 16-bit values in 16 bits.

A running sum of ones kept in bf16 stops at 256 and in fp16 at 2,048, since 256 + 1 and 2,048 + 1
round back. So every case here adds up :data:`ADDENDS` ones (or an equally plain series) through one
operator, forward or backward, and knows the right answer exactly: a kernel which accumulates in
FP32 and rounds once gives it, one which accumulates in 16 bits misses it by a factor of 2 to 64.

The cases know nothing of a device: the tests run them on the CPU before and after
:func:`narrowgate.engine.cpu.install`, and the GPU script runs them on ``cuda``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from narrowgate.engine.audits import backward, forward
from narrowgate.engine.audits.case import ADDENDS, Case

__all__ = ["ADDENDS", "CASES", "Case", "Finding", "audit", "run_case"]

CASES: Mapping[str, Case] = MappingProxyType(
    {case.name: case for case in (*forward.cases(), *backward.cases())}
)
"""Every case by its name; a name with a slash is a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one case gave.

    Attributes:
        name: The case.
        dtype: The 16-bit format under audit.
        expected: The exact answer.
        worst: The value given that lies farthest from it; None where the operator does not exist.
        right: Whether every value lies within the case's roundings of the exact answer.
        refused: The device's words where it has no kernel for this format, else None.
    """

    name: str
    dtype: torch.dtype
    expected: float
    worst: float | None
    right: bool
    refused: str | None = None


def run_case(case: Case, device: torch.device | str, dtype: torch.dtype) -> Finding:
    """Run one case and judge it.

    Args:
        case: The case.
        device: Where to run it.
        dtype: bf16 or fp16.

    Returns:
        The finding. An operator without a kernel for this format is refused and not wrong.
    """

    def make(*shape: int, value: float = 1.0) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    try:
        with warnings.catch_warnings():
            # Some operators announce that they are in beta; that is not what is audited.
            warnings.simplefilter("ignore")
            values = case.run(make).detach().double().flatten()
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        return Finding(
            name=case.name,
            dtype=dtype,
            expected=case.expected,
            worst=None,
            right=True,
            refused=str(error),
        )
    distance = (values - case.expected).abs().nan_to_num(nan=float("inf"))
    # One rounding to nearest moves a value by at most half an ulp: eps / 2 of its magnitude.
    bound = case.roundings * torch.finfo(dtype).eps / 2 * case.magnitude
    return Finding(
        name=case.name,
        dtype=dtype,
        expected=case.expected,
        worst=values[distance.argmax()].item(),
        right=bool((distance <= bound).all()),
    )


def audit(device: torch.device | str, dtype: torch.dtype) -> Iterator[Finding]:
    """Run every case.

    Args:
        device: Where to run them.
        dtype: bf16 or fp16.

    Yields:
        One finding per case, in a fixed order.
    """
    for case in CASES.values():
        yield run_case(case, device, dtype)
