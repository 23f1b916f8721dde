"""Triton kernels under triton's interpreter, bit for bit beside the definitions.

Not collected by itself: `test_triton_interpreter.py` runs it in a process of its own, since triton
decides on import whether kernels are compiled or interpreted.

What is true here: wrappers, tables, indices, masks and arithmetic are those of a GPU; NumPy takes
the place of the machine. Inputs are random bits, so NaN, Inf and subnormal numbers are everywhere;
NaN is equal by class. Where a test is about values and not about edges, one program takes them all:
the interpreter spends its time on programs, not on elements.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from narrowgate.ops import _native
from narrowgate.ops._triton import tables
from narrowgate.ops.grad_stats import triton as grad_stats
from narrowgate.ops.grad_stats.reference import BRANCHES
from narrowgate.ops.half_checksum import triton as half_checksum
from narrowgate.ops.join_master import triton as join_master
from narrowgate.ops.split_master import triton as split_master
from ops.test_native import any_bits, same

# NumPy warns of NaN and Inf, which are here on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CODES = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
OPS = ("grad_stats", "half_checksum", "join_master", "split_master")


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: here each test names its versions."""
    return _native.PLAIN


def check(name: str, args: Any, kwargs: dict[str, Any] | None = None) -> None:
    """Compare results and everything that was changed in place with the definition's."""
    outcomes = []
    for module in ("reference", "triton"):
        function = getattr(importlib.import_module(f"narrowgate.ops.{name}.{module}"), name)
        given = copy.deepcopy(args)
        outcomes.append(pytree.tree_leaves((function(*given, **kwargs or {}), given)))
    pairs = list(zip(*outcomes, strict=True))
    tensors = [(i, a, b) for i, (a, b) in enumerate(pairs) if isinstance(a, torch.Tensor)]
    wrong = [i for i, a, b in tensors if a.stride() != b.stride() or not same(a, b)]
    assert wrong == [], f"{name}: leaves {wrong} of the results and arguments differ"


def samples() -> list[Any]:
    """Every sample of every op that has a kernel."""
    found = []
    for name in OPS:
        given = importlib.import_module(f"narrowgate.ops.{name}").samples()
        found += [pytest.param(name, i, id=f"{name}-{i}") for i in range(len(given))]
    return found


@pytest.mark.parametrize(("name", "i"), samples())
def test_every_sample_exact(name: str, i: int) -> None:
    """Every format, layout and setting that an op takes."""
    args, kwargs = importlib.import_module(f"narrowgate.ops.{name}").samples()[i]
    check(name, list(args), kwargs)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_split_around_every_tie_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each upper half beside the ties of both roundings; among them +-0, Inf, NaN, the limits."""
    monkeypatch.setattr(split_master, "BLOCK", 1 << 17)
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    for low in (0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        check("split_master", [(upper | low).view(torch.float32), name])
    check("split_master", [any_bits(1 << 17, torch.float32, 0), name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_join_of_every_code_exact(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 65,536 codes beside remainders of every size, those among them that no split makes."""
    monkeypatch.setattr(join_master, "BLOCK", 1 << 16)
    for remainder in (0, 1, -1, 1 << 14, -(1 << 14), (1 << 15) - 1, -(1 << 15)):
        check("join_master", [CODES.view(dtype), torch.full_like(CODES, remainder)])
    check("join_master", [CODES.view(dtype), any_bits(1 << 16, torch.float16, 0).view(torch.int16)])


def test_edges_of_blocks_and_odd_addresses_exact() -> None:
    """No element, one, either side of a block; memory that no wide load may touch."""
    for size in (0, 1, 2, split_master.BLOCK - 1, split_master.BLOCK, split_master.BLOCK + 1):
        for name in ("bf16", "fp16"):
            masters = any_bits(size + 1, torch.float32, size)
            for master in (masters[:size], masters[1:]):
                check("split_master", [master, name])
                half, rest = importlib.import_module(
                    "narrowgate.ops.split_master.reference"
                ).split_master(master, name)
                check("join_master", [half, rest])


def test_checksum_of_every_length_of_a_last_word_exact() -> None:
    """Every remainder of four, either side of a block; aligned and not; both formats."""
    edge = half_checksum.CODES
    sizes = (0, 1, 2, 3, 4, 5, edge - 1, edge, edge + 1, 2 * edge)
    halves = [any_bits(size, dtype, size) for size in sizes for dtype in DTYPES[1:3]]
    halves += [any_bits(size + 1, torch.float16, size)[1:] for size in sizes]
    check("half_checksum", [halves])


@pytest.mark.parametrize("dtype", DTYPES)
def test_grad_stats_to_the_last_bit_exact(dtype: torch.dtype) -> None:
    """Sums, which their order decides, and verdicts, on finite numbers and on any bits."""
    edge = grad_stats.CHUNKS * BRANCHES
    sizes = (0, 1, 2, BRANCHES - 1, BRANCHES, BRANCHES + 1, edge - 1, edge, edge + 1, 2 * edge)
    generator = torch.Generator().manual_seed(1)
    finite = [torch.randn(size, generator=generator).exp().to(dtype) for size in sizes]
    odd = [grad[1:] for grad in finite[4:7]]
    check("grad_stats", [finite + odd + [any_bits(size, dtype, size) for size in sizes]])


def test_grad_stats_of_every_code_exact() -> None:
    """All 65,536 codes of both formats, each as a gradient of its own in its turn."""
    for dtype in DTYPES[1:3]:
        codes = CODES.view(dtype)
        check("grad_stats", [[codes, codes[codes.isfinite()], codes[codes.isnan()]]])
        check("grad_stats", [[codes[i : i + 1] for i in range(0, 1 << 16, 1021)]])


def test_grad_stats_of_three_levels_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 1,024 squared: the sums of sums are summed once more."""
    monkeypatch.setattr(grad_stats, "CHUNKS", 1 << 9)
    long = torch.randn(BRANCHES**2 + 5, generator=torch.Generator().manual_seed(0))
    check("grad_stats", [[long, long[:7], long.bfloat16()]])


def test_a_cut_finds_every_block_of_every_tensor_exact() -> None:
    """Empty tensors before, between and after; beside Python's own loop."""
    for counts in ((5, 0, 7, 4, 0), (0, 0, 9), (1,), (8, 8), (3, 0, 0, 12)):
        cut = tables.cut(counts, 4, CPU)
        expected = [(i, at) for i, n in enumerate(counts) for at in range(0, n, 4)]
        starts = [4 * (b - int(cut.firsts[r])) for b, r in enumerate(cut.rows.tolist())]
        assert list(zip(cut.rows.tolist(), starts, strict=True)) == expected
        assert cut.blocks == len(expected)
        assert cut.counts.tolist() == list(counts)


def test_columns_hold_every_64_bit_number_exact() -> None:
    """Addresses beyond 2^53 would lose bits in a float; equal columns are written once."""
    numbers = [0, 1, -1, (1 << 53) + 1, (1 << 62) + 3, -(1 << 63), (1 << 63) - 1]
    numbers += [(1 << 60) + i for i in range(200)]
    column = tables.column(numbers, CPU)
    assert column.tolist() == numbers
    assert tables.column(numbers, CPU) is column
