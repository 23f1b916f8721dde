"""The ops on a GPU: the definitions' bits, no wait, and the bytes they must move; part of gpu.py.

What is compared: each op served by its Triton kernel, against its definition in plain torch, on the
same GPU and on the CPU, over its samples and over random bits in long tensors. NaN is equal by
class.

What must be moved, in bytes a parameter, against the rate R at which the same GPU copies an FP32
tensor in the same run, a read and a written byte counting alike:

    split_master, bf16 or fp16   read 4, written 2 + 2: 8
    join_master                  read 2 + 2, written 4: 8
    half_checksum                read 2
    grad_stats, FP32             read 4; bf16: 2

Prediction, written down before any run: split and join take their bytes / R, within 1.1; checksum
and statistics read only, which a GPU does a little faster than it copies, and pay for 64-bit
integer products and FP64 sums: within 1.3 on a GPU for servers. On one for desktops, whose FP64 is
a 64th of its FP32, grad_stats does two FP64 operations an element and is bound by them.

None of this has run on a GPU yet: it was written on a machine without one, where `--device cpu`
rehearses it on the C++ kernels.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rows import Measure
from torch import Tensor
from torch.utils import _pytree as pytree

from narrowgate import ops
from narrowgate.ops import _native, _triton

__all__ = ["NAMES", "conform", "measure_ops", "waiting_ops"]

NAMES = ("grad_stats", "half_checksum", "join_master", "split_master")
"""The ops that have a Triton kernel."""

Call = tuple[str, list[Any], dict[str, Any]]
"""Name, arguments and keyword arguments of an op."""


def _any_bits(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator)
    return wide.to(torch.int32 if dtype.itemsize == 4 else torch.int16).view(dtype)


def calls() -> Iterator[Call]:
    """Give the samples of every op, and long tensors of random bits, on the CPU."""
    for name in NAMES:
        for args, kwargs in importlib.import_module(f"narrowgate.ops.{name}").samples():
            yield name, list(args), kwargs
    sizes = (1, 1023, 1024, 1025, (1 << 20) + 5, 3_000_001)
    kinds = itertools.cycle((torch.float32, torch.bfloat16, torch.float16))
    grads = [_any_bits(n, next(kinds), n) for n in sizes for _ in range(3)]
    halves = [grad for grad in grads if grad.dtype is not torch.float32]
    yield "grad_stats", [grads + [grad[1:] for grad in grads]], {}
    finite = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in sizes]
    yield "grad_stats", [[x.to(dtype) for x in finite for dtype in (torch.float64, x.dtype)]], {}
    yield "half_checksum", [halves + [half[1:] for half in halves]], {}
    for half in halves:
        yield "join_master", [half, _any_bits(half.numel(), torch.float16, 1).view(torch.int16)], {}
    for name, grad in itertools.product(("bf16", "fp16"), grads):
        if grad.dtype is torch.float32:
            yield "split_master", [grad, name], {}


def _moved(tree: Any, device: str) -> Any:
    return pytree.tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, tree)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    with _triton.plain(), _native.serve(_native.PLAIN):
        yield


def _outcome(call: Call, device: str) -> list[Tensor]:
    name, args, kwargs = _moved(copy.deepcopy(call), device)
    result = getattr(ops, name)(*args, **kwargs)
    leaves = pytree.tree_leaves((result, args))
    return [leaf.cpu() for leaf in leaves if isinstance(leaf, Tensor)]


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    code = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    equal = a.contiguous().view(code) == b.contiguous().view(code)
    return bool((equal | (a.isnan() & b.isnan())).all())


def conform(device: str) -> list[str]:
    """Compare what serves on a device with the definitions there and on the CPU.

    Args:
        device: Where.

    Returns:
        What differs, empty if nothing does.
    """
    wrong = []
    for number, call in enumerate(calls()):
        got = _outcome(call, device)
        for place in dict.fromkeys((device, "cpu")):
            with _plain():
                want = _outcome(call, place)
            leaves = [i for i, pair in enumerate(zip(got, want, strict=True)) if not _same(*pair)]
            if leaves:
                wrong.append(f"{call[0]}, call {number}: leaves {leaves} differ from {place}'s")
    return wrong


def waiting_ops(device: str) -> list[str]:
    """Call every op under torch's alarm for host synchronisation.

    Args:
        device: ``cuda``; elsewhere there is nothing to wait for.

    Returns:
        The ops that made the host wait, and where.
    """
    wrong = []
    for name in NAMES:
        given = importlib.import_module(f"narrowgate.ops.{name}").samples()
        prepared = [_moved(call, device) for call in given]
        try:
            for args, kwargs in prepared:
                getattr(ops, name)(*args, **kwargs)  # compiled here
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("error")
                getattr(ops, name)(*args, **kwargs)
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
        except RuntimeError as error:
            wrong.append(f"{name}: {error}")
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    return wrong


def _seconds(step: Callable[[], Any], device: str) -> float:
    if device != "cuda":
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    step()
    end_event.record()
    end_event.synchronize()
    return begin_event.elapsed_time(end_event) / 1e3


def cut(count: int) -> list[int]:
    """Cut parameters into 50 small tensors and 50 that hold the rest, as a model does."""
    small = [64 << i % 5 for i in range(50)]
    large = (count - sum(small)) // 50 // 16 * 16
    return [size for pair in zip(small, [large] * 50, strict=True) for size in pair]


def measure_ops(device: str, count: int, rounds: int) -> list[Measure]:
    """Time each op beside its bytes at copy bandwidth, and beside its definition; interleaved.

    Args:
        device: Where.
        count: Parameters in all.
        rounds: Timed rounds, after one that compiles.

    Returns:
        The measures: medians, and ratios of medians.
    """
    sizes = cut(count)
    total = sum(sizes)
    long = torch.randn(total, device=device)
    other = torch.empty_like(long)
    parts: Sequence[Tensor] = long.split(sizes)
    halves = [part.bfloat16() for part in parts]
    half, remainder = ops.split_master(long, "bf16")
    half_fp16, remainder_fp16 = ops.split_master(long, "fp16")
    steps: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy": (8, lambda: other.copy_(long)),
        "split_master, bf16": (8, lambda: ops.split_master(long, "bf16")),
        "split_master, fp16": (8, lambda: ops.split_master(long, "fp16")),
        "join_master, bf16": (8, lambda: ops.join_master(half, remainder)),
        "join_master, fp16": (8, lambda: ops.join_master(half_fp16, remainder_fp16)),
        "half_checksum": (2, lambda: ops.half_checksum(halves)),
        "grad_stats, fp32": (4, lambda: ops.grad_stats(parts)),
        "grad_stats, bf16": (2, lambda: ops.grad_stats(halves)),
        "torch's norms, fp32": (4, lambda: torch.nn.utils.get_total_norm(list(parts))),
    }
    found: dict[str, list[float]] = {name: [] for name in steps}
    plain: dict[str, list[float]] = {name: [] for name in steps if name.split(",")[0] in NAMES}
    for number in range(-1, rounds):
        for name, (_, step) in steps.items():
            taken = _seconds(step, device)
            if number >= 0:
                found[name].append(taken)
        if number == 0:
            with _plain():
                for name, taken_plain in plain.items():
                    steps[name][1]()
                    taken_plain.append(_seconds(steps[name][1], device))
    middle = {name: statistics.median(taken) for name, taken in found.items()}
    rate = 8 * total / middle["copy"]
    measures = [
        Measure(name="ops/copy", value=rate / 1e9, unit="GB/s, read and written", ratio=None)
    ]
    for name, (per_parameter, _) in steps.items():
        if name == "copy":
            continue
        took = middle[name]
        at_copy = per_parameter * total / rate
        row = f"ops/{name} / its {per_parameter} bytes"
        measures.append(Measure(name=row, value=took * 1e3, unit="ms", ratio=took / at_copy))
        if name in plain:
            row, ratio = f"ops/{name}, plain torch / it", plain[name][0] / took
            measures.append(Measure(name=row, value=plain[name][0] * 1e3, unit="ms", ratio=ratio))
    return measures
