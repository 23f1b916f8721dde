"""What triton's compiler makes of every kernel for sm_80, sm_90 and sm_100, without a GPU.

The claims, for each form in which a wrapper launches a kernel: no register is spilled; not more
registers than leave room for enough threads; whole blocks of aligned memory move 16 bytes at a
time, all of them; every operation is rounded by itself, to nearest-even, subnormal numbers kept.
"""

from __future__ import annotations

import importlib
import itertools
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from narrowgate.ops import _native

if platform.system() != "Linux" or platform.machine() != "x86_64":
    pytest.skip("triton has no wheel for this platform", allow_module_level=True)

import triton

from ops.triton_forms import CAPABILITIES, Compiled, Form, compiled, record

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HALVES = DTYPES[1:3]

# Most registers per thread. With R of them 65,536 / R threads share a processor: 64 leave it 1,024,
# each of which has 16 to 64 bytes under way, and memory needs about 32 KiB a processor to be busy.
REGISTERS = {
    "split_kernel": 56,
    "join_kernel": 40,
    "checksum_kernel": 64,
    "chunks_kernel": 64,
    "level_kernel": 80,  # a warp per program, and few programs
}
FP64_REGISTERS = 96
"""Of chunks_kernel on float64 gradients, whose values take two registers each."""


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: nothing here depends on the version."""
    return _native.PLAIN


@pytest.fixture(autouse=True, scope="module")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled out of the home folder."""
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


def _calls(name: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of every format, in memory that is aligned and in memory that is not."""
    for start in (0, 1):
        masters = torch.zeros(9)[start:]
        if name == "split_master":
            yield from ((masters, half) for half in ("bf16", "fp16"))
        elif name == "join_master":
            remainders = torch.zeros(9, dtype=torch.int16)[start:]
            yield from ((torch.zeros(9, dtype=dtype)[start:], remainders) for dtype in HALVES)
        elif name == "half_checksum":
            yield ([torch.zeros(9, dtype=torch.bfloat16)[start:]],)
        else:
            long = torch.zeros(1 << 21)  # two levels of sums
            yield ([*(torch.zeros(9, dtype=dtype)[start:] for dtype in DTYPES), long],)


def forms() -> list[Form]:
    """Every form in which a kernel is launched."""
    found: dict[Form, None] = {}
    for name in ("split_master", "join_master", "half_checksum", "grad_stats"):
        wrapper: Callable[..., Any] = getattr(
            importlib.import_module(f"narrowgate.ops.{name}.triton"), name
        )
        for args in _calls(name):
            found |= dict.fromkeys(record(lambda w=wrapper, a=args: w(*a)))
    return list(found)


FORMS = forms()
every_form = pytest.mark.parametrize("form", FORMS, ids=str)
every_capability = pytest.mark.parametrize("capability", CAPABILITIES)


def wide_bytes(form: Form) -> tuple[int, int]:
    """Bytes that a program must load and store 16 at a time: those of a whole block."""
    constants = dict(form.constants)
    if not constants.get("ALIGNED", False):
        return 0, 0
    name = form.kernel.fn.__name__
    if name in ("split_kernel", "join_kernel"):
        return 4 * constants["BLOCK"], 4 * constants["BLOCK"]
    if name == "checksum_kernel":
        return 2 * constants["CODES"], 0
    itemsize = constants["DTYPE"].primitive_bitwidth // 8
    return itemsize * constants["CHUNKS"] * constants["BRANCHES"], 0


def test_every_kernel_has_a_form() -> None:
    """Of each, aligned and not; nothing is left out of this file by mistake."""
    assert {form.kernel.fn.__name__ for form in FORMS} == set(REGISTERS)
    pairs = itertools.product(REGISTERS.keys() - {"level_kernel"}, (True, False))
    found = {(form.kernel.fn.__name__, dict(form.constants).get("ALIGNED")) for form in FORMS}
    assert set(pairs) <= found
    folder = Path(_native.__file__).parents[1]
    launched = sum(path.read_text().count("@bits.launched") for path in folder.rglob("triton.py"))
    assert launched == len(REGISTERS)


@every_capability
@every_form
def test_no_register_is_spilled_and_enough_are_left(form: Form, capability: int) -> None:
    """Nothing on the stack; registers within the limit of the kernel."""
    made = compiled(form, capability)
    assert made.stack_bytes == 0
    limit = REGISTERS[form.kernel.fn.__name__]
    if dict(form.constants).get("FORMAT") == _native.FORMAT[torch.float64]:
        limit = FP64_REGISTERS
    assert made.registers <= limit


@every_capability
@every_form
def test_whole_blocks_move_16_bytes_at_a_time_exact(form: Form, capability: int) -> None:
    """All bytes of a block, no less; a table's numbers and ends of tensors are read one by one."""
    made = compiled(form, capability)
    assert (made.wide_bytes("ld"), made.wide_bytes("st")) == wide_bytes(form)


@every_capability
def test_a_chunk_is_folded_within_its_warp(capability: int) -> None:
    """Only the largest magnitude of each warp goes through shared memory, 8 bytes for each."""
    for form in FORMS:
        constants = dict(form.constants)
        if form.kernel.fn.__name__ == "level_kernel" or (
            form.kernel.fn.__name__ == "chunks_kernel" and constants["ALIGNED"]
        ):
            assert compiled(form, capability).shared_bytes <= 8 * 4


@every_capability
@every_form
def test_every_operation_is_rounded_by_itself_to_nearest(form: Form, capability: int) -> None:
    """No fused product and sum, nothing approximate, no subnormal flushed, no other rounding."""
    made = compiled(form, capability)
    assert made.instructions("fma") == set()
    floats = {
        word
        for start in ("add", "sub", "mul", "div", "sqrt", "rcp", "cvt", "ex2", "rsqrt")
        for word in made.instructions(start)
        if word.endswith(("f32", "f64", "f16", "bf16")) or ".f" in word
    }
    rounded = {w for w in floats if w.split(".")[0] in ("add", "sub", "mul", "div", "sqrt", "rcp")}
    assert all(word.split(".")[1] in ("rn", "f32", "f64") for word in rounded), floats
    for word in ("approx", "full", "ftz", "sat"):
        assert not any(word in found.split(".") for found in floats), floats


def test_the_reading_of_code_sees_what_it_must() -> None:
    """Accesses of every width, under a condition and without, and instructions by their start."""
    lines = (
        "\tld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];",
        "\t@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];",
        "\tld.global.L1::evict_last.v2.b64 { %rd1, %rd2 }, [ %rd1 + 0 ];",
        "\tld.global.b64 { %rd1 }, [ %rd1 + 0 ];",
        "\tst.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };",
        "\tfma.rn.f32 \t%f1, %f2, %f3, %f4;",
    )
    made = Compiled(ptx="\n".join(lines), registers=1, stack_bytes=0, shared_bytes=0, threads=10)
    assert (made.wide_bytes("ld"), made.wide_bytes("st")) == (320, 160)
    assert made.instructions("fma") == {"fma.rn.f32"}


def test_a_kernel_that_would_depend_on_its_arguments_is_refused() -> None:
    """Triton's own habit is to compile anew where a size is a multiple of 16."""
    kernel = triton.jit(_kernel)
    with pytest.raises(AssertionError, match="x makes forms that no test covers"):
        record(lambda: kernel[(1,)](torch.zeros(16)))


def _kernel(x: Tensor) -> None:
    """Do nothing."""
