"""half_checksum: equal to integer arithmetic, and sensitive to what it must tell apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops._blocks import BLOCK
from ops import oracles

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def halves(count: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Any bit patterns, NaNs among them."""
    generator = torch.Generator().manual_seed(count)
    codes = torch.randint(-(1 << 15), 1 << 15, (count,), generator=generator, dtype=torch.int16)
    return codes.view(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_python_integers_exact(dtype: torch.dtype, device: str) -> None:
    """Every remainder of four, and either side of a block."""
    tensors = [halves(n, dtype) for n in (0, 1, 2, 3, 4, 5, BLOCK - 1, BLOCK, BLOCK + 1)]
    found = ops.half_checksum([tensor.to(device) for tensor in tensors])
    assert found.tolist() == [oracles.checksum(oracles.bits(t).tolist()) for t in tensors]


def test_every_change_of_one_code_is_seen_exact() -> None:
    """All 65,536 codes in each place of a word, and in the last, incomplete word: all differ."""
    codes = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16)
    for place in range(6):
        rows = halves(6, torch.float16).repeat(1 << 16, 1)
        rows[:, place] = codes
        assert len(set(ops.half_checksum(list(rows[::16])).tolist())) == 1 << 12


def test_order_length_and_sign_of_zero_are_seen() -> None:
    """A swap of neighbours, of words and of blocks; zeros at the end; -0 for 0."""
    base = halves(2 * BLOCK + 9)
    changed = []
    for a, b in ((0, 1), (0, 4), (3, BLOCK + 3), (1, 2 * BLOCK + 1)):
        other = base.view(torch.int16).clone()
        other[[a, b]] = other[[b, a]]
        changed.append(other.view(torch.bfloat16))
    zeros = [torch.zeros(n).bfloat16() for n in range(9)]
    all_of_them = [base, *changed, *zeros, -torch.zeros(4).bfloat16()]
    assert len(set(ops.half_checksum(all_of_them).tolist())) == len(all_of_them)


def test_strides_shape_and_alignment_do_not_matter_exact() -> None:
    """The logical order counts: a transposed view equals its contiguous copy."""
    base = halves(120)
    shaped = base.view(2, 3, 4, 5)
    assert ops.half_checksum([base, shaped]).unique().numel() == 1
    for view in (shaped.transpose(1, 3), shaped[:, :, ::2], shaped[0, 1, 1:], base[1:], base[3:]):
        a, b = ops.half_checksum([view, view.clone(memory_format=torch.contiguous_format)])
        assert a == b
    last = shaped.to(memory_format=torch.channels_last)
    assert ops.half_checksum([last])[0] == ops.half_checksum([base])[0]
    assert ops.half_checksum([]).shape == (0,)
