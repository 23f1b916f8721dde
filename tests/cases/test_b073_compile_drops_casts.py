"""B073: torch.compile removes casts, and a master split that rests on them loses its remainder.

Reported: inside one compiled graph a value that is narrowed and widened again keeps its FP32 bits,
so `x - x.bfloat16().float()` is 0 and the low half of a split is gone; and a round trip tested in
that same graph passes all the same.

What is right: split and join give the same codes compiled and eager, as registered ops and with
their definitions inlined, in separate graphs and in one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops.join_master.reference import JOIN_ROOMS, join_bits
from narrowgate.ops.split_master.reference import SPLIT_ROOMS, split_bits

pytestmark = pytest.mark.filterwarnings(
    # torch 2.13 warns of itself while inductor is imported.
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
)
HALVES = (torch.bfloat16, torch.float16)
NAMES = ("bf16", "fp16")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

Codes = list[tuple[Tensor, Tensor]]


def op_split(x: Tensor) -> Codes:
    """Both formats by the registered op."""
    return [ops.split_master(x, name) for name in NAMES]


def op_join(codes: Codes) -> list[Tensor]:
    """Both formats by the registered op."""
    return [ops.join_master(half, remainder) for half, remainder in codes]


def inlined_split(x: Tensor) -> Codes:
    """Both formats by the definition, which a compiler sees through; codes as int16."""
    found = []
    for half in HALVES:
        room = torch.empty(SPLIT_ROOMS, x.numel(), dtype=torch.int32, device=x.device)
        high, low = split_bits(x.view(torch.int32), half, room)
        found.append((high.to(torch.int16), low.to(torch.int16)))
    return found


def inlined_join(codes: Codes) -> list[Tensor]:
    """Both formats by the definition."""
    found = []
    for half, (high, low) in zip(HALVES, codes, strict=True):
        room = torch.empty(JOIN_ROOMS, high.numel(), dtype=torch.int32, device=high.device)
        out = torch.empty(high.numel(), device=high.device)
        join_bits(high, low, half, room, out)
        found.append(out)
    return found


def patterns(device: str) -> Tensor:
    """FP32 bit patterns of every exponent and sign, NaNs, Infs and halves' limits among them."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randint(0, 1 << 23, (1 << 14,), generator=generator, dtype=torch.int32)
    mantissas[::7] &= ~0xFFF  # ties of either format
    exponents = torch.arange(1 << 14, dtype=torch.int32) % 512
    limits = [0x477FEFFF, 0x477FF000, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0x7FFFFFFF, 1, 0]
    return (
        torch.cat([exponents << 23 | mantissas, torch.tensor(limits, dtype=torch.int32)])
        .view(torch.float32)
        .to(device)
    )


def bits(values: object) -> list[Tensor]:
    """Tensors as integers, so that NaNs compare too."""
    widths = {2: torch.int16, 4: torch.int32}
    return [
        value.view(widths[value.element_size()])
        for value in torch.utils._pytree.tree_leaves(values)
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("split", "join"),
    [
        pytest.param(op_split, op_join, id="op"),
        # A minute of a C++ compiler; the engine never inlines the definitions.
        pytest.param(inlined_split, inlined_join, id="inlined", marks=pytest.mark.slow),
    ],
)
def test_codes_and_masters_are_the_same_compiled_exact(
    split: Callable[[Tensor], Codes], join: Callable[[Codes], list[Tensor]], device: str
) -> None:
    """Codes of the compiled split, masters of the compiled join, and both in one graph."""
    torch.compiler.reset()
    x = patterns(device)
    codes = split(x)
    masters = join(codes)
    finite = x.isfinite()
    assert torch.equal(bits(masters)[0][finite], x.view(torch.int32)[finite])

    split_alone = torch.compile(split, fullgraph=True)(x)
    join_alone = torch.compile(join, fullgraph=True)(codes)

    def both(value: Tensor) -> tuple[Codes, list[Tensor]]:
        made = split(value)
        return made, join(made)

    together = torch.compile(both, fullgraph=True)(x)
    for want, got in (
        (codes, split_alone),
        (masters, join_alone),
        ((codes, masters), together),
        (masters, join(split_alone)),
    ):
        assert all(map(torch.equal, bits(want), bits(got)))
    assert all(bool((low != 0).any()) for _, low in split_alone)
