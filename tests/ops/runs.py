"""Runs of an optimizer op beside its oracle, shared by the tests of AdamW and SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops._blocks import BLOCK
from ops import oracles

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = ((BLOCK + 5,), (3, 5, 4, 4), (7,), (), (0,))
"""More than one block; channels_last; a few; one; none."""


@dataclass(slots=True, kw_only=True)
class Lists:
    """What an optimizer op takes."""

    params: list[Tensor]
    remainders: list[Tensor]
    zeros: Callable[[], list[Tensor]]

    def masters(self) -> list[Tensor]:
        """The masters, joined if split."""
        if not self.remainders:
            return self.params
        pairs = zip(self.params, self.remainders, strict=True)
        return [ops.join_master(half, remainder) for half, remainder in pairs]


def masters(seed: int) -> list[Tensor]:
    """Masters like a network's, among them ±0, values below fp16's grid and large ones."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape in SHAPES:
        w = torch.randn(shape, generator=generator) * 0.1
        if w.dim() == 4:
            w = w.to(memory_format=torch.channels_last)
        found.append(w)
    special = [0.0, -0.0, 2.0**-30, -(2.0**-41), 1e-7, 60000.0, 1.0]
    found[2].copy_(torch.tensor(special))
    return found


def lists(name: str, seed: int = 0) -> Lists:
    """Parameters in a format, from the same masters each time."""
    ws = masters(seed)
    pairs = [] if name == "fp32" else [ops.split_master(w, name) for w in ws]
    return Lists(
        params=[pair[0] for pair in pairs] if pairs else [w.clone() for w in ws],
        remainders=[pair[1] for pair in pairs],
        zeros=lambda: [torch.zeros_like(w) for w in ws],
    )


def gradients(seed: int, steps: int) -> Iterator[list[Tensor]]:
    """Gradients of mixed formats and strides, the channels_last weight's contiguous."""
    generator = torch.Generator().manual_seed(1000 + seed)
    dtypes = (torch.float16, torch.float32, torch.bfloat16, torch.float32, torch.bfloat16)
    for _ in range(steps):
        yield [
            (torch.randn(shape, generator=generator) * 2).to(dtype)
            for shape, dtype in zip(SHAPES, dtypes, strict=True)
        ]


def check_masters(got: list[Tensor], want: list[np.ndarray]) -> None:
    """Masters equal to the bit, NaN by class."""
    for i, (tensor, array) in enumerate(zip(got, want, strict=True)):
        a, b = oracles.bits(tensor), array.view(np.uint32)
        same = (a == b) | (np.isnan(array) & np.isnan(a.view(np.float32)))
        assert same.all(), f"params[{i}]: {(~same).sum()} of {same.size} masters differ"


def state_of(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of the bytes, to see that nothing changed."""
    return [t.detach().clone().contiguous().reshape(-1).view(torch.uint8) for t in tensors]
