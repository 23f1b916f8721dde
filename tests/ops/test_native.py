"""The C++ kernels beside the definitions: every body, every bit, on what is hard for a kernel.

What is true here: the definition in plain torch is the oracle, and is itself held to NumPy by the
other files. Inputs are random bits, so NaN, Inf and subnormal numbers are everywhere; NaN is equal
by class. Sizes go around tiles, units, rows of the tree and vectors of any width.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from narrowgate import ops
from narrowgate.errors import OpError
from narrowgate.ops import _native
from narrowgate.ops.grad_stats.reference import BRANCHES

pytestmark = pytest.mark.skipif(
    _native.loaded.library is None, reason=f"no C++ kernels: {_native.loaded.why}"
)

BODIES = _native.versions()[1:] or ["C++"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE = 512
SIZES = [
    *range(70),
    *(edge + d for edge in (TILE, BRANCHES, _native.UNIT) for d in (-1, 0, 1)),
    _native.UNIT + TILE + 17,
]


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: here each test names its versions."""
    return _native.PLAIN


def any_bits(size: int, dtype: torch.dtype, seed: int) -> Tensor:
    """A tensor of random bits; of FP32, every other one a number of usual size."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.float64:
        return torch.randint(-(1 << 62), 1 << 62, (size,), generator=generator).mul_(2).view(dtype)
    wide = torch.randint(-(1 << 31), 1 << 31, (size,), generator=generator)
    if dtype is not torch.float32:
        return wide.to(torch.int16).view(dtype)
    found = wide.to(torch.int32).view(dtype)
    found[::2] = torch.randn(found[::2].shape, generator=generator)
    return found


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, NaN by class; integers as they are."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    code = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    equal = a.contiguous().view(code) == b.contiguous().view(code)
    return bool((equal | (a.isnan() & b.isnan())).all())


def check(name: str, body: str, args: Any, kwargs: dict[str, Any], threads: int = 1) -> None:
    """Compare results and everything that was changed in place with the definition's."""
    outcomes = []
    for version, count in ((_native.PLAIN, 1), (body, threads)):
        given = copy.deepcopy(args)
        torch.set_num_threads(count)
        try:
            with _native.serve(version):
                result = getattr(ops, name)(*given, **kwargs)
        finally:
            torch.set_num_threads(1)
        outcomes.append(pytree.tree_leaves((result, given)))
    pairs = zip(*outcomes, strict=True)
    wrong = [i for i, (a, b) in enumerate(pairs) if isinstance(a, Tensor) and not same(a, b)]
    assert wrong == [], f"{name} in {body}: leaves {wrong} of the results and arguments differ"


def weights(dtype: torch.dtype, sizes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and remainders of any bits; beside fp16 also remainders that no split makes."""
    params = [any_bits(size, dtype, i) for i, size in enumerate(sizes)]
    if dtype is torch.float32:
        return params, []
    return params, [any_bits(size, torch.float16, 99 + i).view(torch.int16) for i, size in
                    enumerate(sizes)]  # fmt: skip


def gradients(sizes: list[int]) -> list[Tensor]:
    """Gradients of any bits, formats in turn."""
    kinds = itertools.cycle(DTYPES)
    return [any_bits(size, next(kinds), 1000 + i) for i, size in enumerate(sizes)]


def scalars(mult: float) -> dict[str, Tensor]:
    """What comes from the device."""
    return {"grad_mult": torch.tensor(mult), "skip": torch.tensor(0.0)}


ADAMW = {
    "none": {"weight_decay": 0.0, "decoupled": True, "maximize": False},
    "decoupled": {"weight_decay": 0.1, "decoupled": True, "maximize": True},
    "l2": {"weight_decay": 0.1, "decoupled": False, "maximize": False},
}
SGD = {
    "plain": {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": True},
    "decay": {"momentum": 0.0, "weight_decay": 0.1, "nesterov": False, "maximize": False},
    "momentum": {"momentum": 0.9, "weight_decay": 0.0, "nesterov": False, "maximize": False},
    "nesterov": {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "maximize": True},
}


def adamw(dtype: torch.dtype, sizes: list[int], mult: float, mode: str) -> tuple[Any, Any]:
    """Arguments of adamw_step: second moments of any magnitude, NaN among them, never negative."""
    params, remainders = weights(dtype, sizes)
    firsts = [any_bits(size, torch.float32, 2000 + i) for i, size in enumerate(sizes)]
    seconds = [any_bits(size, torch.float32, 3000 + i).abs() for i, size in enumerate(sizes)]
    steps = [torch.tensor(float(i % 5)) for i in range(len(sizes))]
    settings = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    lists = [params, remainders, gradients(sizes), firsts, seconds, steps]
    return lists, settings | ADAMW[mode] | scalars(mult)


def sgd(dtype: torch.dtype, sizes: list[int], mult: float, mode: str) -> tuple[Any, Any]:
    """Arguments of sgd_step."""
    params, remainders = weights(dtype, sizes)
    buffers = []
    if SGD[mode]["momentum"]:
        buffers = [any_bits(size, torch.float32, 2000 + i) for i, size in enumerate(sizes)]
    return [params, remainders, gradients(sizes), buffers], {"lr": 0.3} | SGD[mode] | scalars(mult)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("mode", ADAMW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_adamw_equals_its_definition_exact(dtype: torch.dtype, mode: str, body: str) -> None:
    """Any bits in weights, gradients and moments; every size; ordinary and odd multipliers."""
    for mult in (0.37, 2.0**-140, 3e38, float("inf"), float("nan"), 0.0):
        sizes = SIZES if mult == 0.37 else [600, 0, 5]
        check("adamw_step", body, *adamw(dtype, sizes, mult, mode), threads=2)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("mode", SGD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sgd_equals_its_definition_exact(dtype: torch.dtype, mode: str, body: str) -> None:
    """The same for SGD."""
    for mult in (0.37, 2.0**-140, 3e38, float("inf"), float("nan"), 0.0):
        sizes = SIZES if mult == 0.37 else [600, 0, 5]
        check("sgd_step", body, *sgd(dtype, sizes, mult, mode), threads=2)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_code_is_widened_and_joined_exact(dtype: torch.dtype, body: str) -> None:
    """All 65,536 codes as gradients, and as halves beside remainders of every size."""
    codes = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    lists = [[torch.zeros(1 << 16)], [], [codes.view(dtype)], []]
    check("sgd_step", body, lists, {"lr": 1.0} | SGD["plain"] | scalars(1.0))
    check("grad_stats", body, [[codes.view(dtype)[i : i + 1] for i in range(0, 1 << 16, 7)]], {})
    for remainder in (0, 1, -1, 1 << 14, -(1 << 14), (1 << 15) - 1, -(1 << 15)):
        check("join_master", body, [codes.view(dtype), torch.full_like(codes, remainder)], {})
        # Beside a gradient of 0: read and written again, within the limit.
        halves, rest = [codes.view(dtype)], [torch.full_like(codes, remainder)]
        lists = [halves, rest, [torch.zeros(1 << 16)], []]
        check("sgd_step", body, lists, {"lr": 1.0} | SGD["plain"] | scalars(1.0))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_split_equals_its_definition_exact(name: str, body: str) -> None:
    """Random bits of every exponent, and around each tie of both roundings; every size."""
    for size in SIZES:
        check("split_master", body, [any_bits(size, torch.float32, size), name], {}, threads=2)
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    for low in (0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        check("split_master", body, [(upper | low).view(torch.float32), name], {})


@pytest.mark.parametrize("body", BODIES)
def test_grad_stats_equals_its_definition_exact(body: str) -> None:
    """Sums to the last bit, which is what their order decides; verdicts on every kind of value."""
    finite = [
        torch.randn(size, generator=torch.Generator().manual_seed(size)).exp().to(dtype)
        for size in SIZES
        for dtype in (*DTYPES, torch.float64)
    ]
    check("grad_stats", body, [finite], {}, threads=2)
    wild = [any_bits(size, dtype, size) for size in SIZES for dtype in (*DTYPES, torch.float64)]
    check("grad_stats", body, [wild], {}, threads=2)
    # Three levels of the tree, the last of them two sums.
    long = torch.randn(BRANCHES**2 + 5, generator=torch.Generator().manual_seed(0))
    check("grad_stats", body, [[long, long.bfloat16()]], {}, threads=2)


@pytest.mark.parametrize("body", BODIES)
def test_half_checksum_equals_its_definition_exact(body: str) -> None:
    """Every remainder of four, either side of a unit."""
    halves = [any_bits(size, dtype, size) for size in SIZES for dtype in DTYPES[1:]]
    check("half_checksum", body, [halves], {}, threads=2)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("threads", [2, 3, 7, 64])
def test_the_number_of_threads_changes_no_bit(threads: int, body: str) -> None:
    """More threads than cores, than tensors, than units."""
    sizes = [5 * _native.UNIT + 3, 1, _native.UNIT, 0, 2 * _native.UNIT - 1, 7]
    check("adamw_step", body, *adamw(torch.bfloat16, sizes, 0.5, "decoupled"), threads=threads)
    check("sgd_step", body, *sgd(torch.float16, sizes, 0.5, "momentum"), threads=threads)
    grads = gradients(sizes)
    check("grad_stats", body, [grads], {}, threads=threads)
    check("grad_stats", body, [[torch.randn(9 * _native.UNIT + 1)]], {}, threads=threads)
    check("half_checksum", body, [[grads[0].bfloat16(), grads[4].half()]], {}, threads=threads)
    check("split_master", body, [any_bits(sizes[0], torch.float32, 5), "fp16"], {}, threads=threads)


@pytest.mark.parametrize("body", BODIES)
def test_alignment_does_not_matter_exact(body: str) -> None:
    """Memory that starts one byte after a multiple of any element's size."""

    def shifted(value: Tensor) -> Tensor:
        raw = bytearray(1) + value.contiguous().view(torch.uint8).numpy().tobytes()
        return torch.frombuffer(raw, dtype=value.dtype, offset=1)

    args, settings = adamw(torch.bfloat16, [700, 33], 0.5, "decoupled")
    aligned, moved = copy.deepcopy(args), [[*map(shifted, values)] for values in args[:5]]
    moved.append(copy.deepcopy(args[5]))
    assert moved[3][0].data_ptr() % 4 == 1
    with _native.serve(body):
        ops.adamw_step(*aligned, **settings)
        ops.adamw_step(*moved, **settings)
        leaves = zip(*(pytree.tree_leaves(lists) for lists in (aligned, moved)), strict=True)
        assert all(same(a, b) for a, b in leaves)
        for grads in ([torch.randn(1500)], [torch.randn(1500).half()], [torch.randn(9).double()]):
            assert torch.equal(ops.grad_stats(grads), ops.grad_stats([*map(shifted, grads)]))
        half, rest = args[0][0], args[1][0]
        assert torch.equal(ops.half_checksum([half]), ops.half_checksum([shifted(half)]))
        joined = ops.join_master(shifted(half), shifted(rest))
        assert same(joined, ops.join_master(half, rest))
        for a, b in zip(ops.split_master(shifted(joined), "bf16"),
                        ops.split_master(joined, "bf16"), strict=True):  # fmt: skip
            assert same(a, b)


@pytest.mark.parametrize("body", BODIES)
def test_a_skipped_step_changes_nothing(body: str) -> None:
    """Neither a bit, nor a version counter, which would tell autograd of a change."""
    for name, (args, settings) in {
        "adamw_step": adamw(torch.float16, [40, 3], 1.0, "l2"),
        "sgd_step": sgd(torch.bfloat16, [40, 3], 1.0, "nesterov"),
    }.items():
        before = copy.deepcopy(args)
        versions = [leaf._version for leaf in pytree.tree_leaves(args)]
        with _native.serve(body):
            counts = getattr(ops, name)(*args, **settings | {"skip": torch.tensor(1.0)})
        assert counts.tolist() == [0, 0]
        leaves = pytree.tree_leaves(args)
        pairs = zip(leaves, pytree.tree_leaves(before), strict=True)
        assert all(same(a, b) for a, b in pairs)
        assert versions == [leaf._version for leaf in leaves]


@pytest.mark.parametrize("body", BODIES)
def test_tensors_of_inference_mode_are_updated(body: str) -> None:
    """They have no version to count up, and need none."""
    with torch.inference_mode(), _native.serve(body):
        w = torch.ones(3)
        settings = {"lr": 0.5} | SGD["decay"] | {"weight_decay": 0.0} | scalars(1.0)
        ops.sgd_step([w], [], [torch.ones(3)], [], **settings)
        assert w.tolist() == [0.5, 0.5, 0.5]


def test_an_unknown_version_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(OpError, match="allowed: plain torch, C\\+\\+ baseline"), _native.serve("x"):
        pass


@pytest.mark.slow
def test_sizes_past_two_to_the_31st() -> None:
    """Elements beyond a 32-bit index, in 4 GiB of zeros that are never written, so never there."""
    count = (1 << 31) + 1025
    try:
        grad = torch.empty(count, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("this machine lends no 4 GiB of address space")
    grad[-1], grad[1 << 31] = 3.0, -4.0
    (total, largest, bad), *_ = ops.grad_stats([grad]).tolist()
    assert (total, largest, bad) == (25.0, 4.0, 0.0)
    changed = ops.half_checksum([grad])
    grad[-1] = 3.5
    assert not torch.equal(ops.half_checksum([grad]), changed)
