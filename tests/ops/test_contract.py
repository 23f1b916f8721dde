"""The op contract: one schema, a fake kernel, declared mutation, no aliases, compiles whole."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.library import opcheck
from torch.utils import _pytree as pytree

from narrowgate import ops
from narrowgate.errors import OpError
from narrowgate.ops import _native, _triton

MUTATED = {
    "adamw_step": {"params", "remainders", "exp_avgs", "exp_avg_sqs", "steps"},
    "grad_stats": set(),
    "half_checksum": set(),
    "join_master": set(),
    "sgd_step": {"params", "remainders", "momentum_buffers"},
    "split_master": set(),
}
WITH_TRITON = {"grad_stats", "half_checksum", "join_master", "split_master"}
Sample = tuple[tuple[Any, ...], dict[str, Any]]


def overload(name: str) -> Any:
    """The registered op itself, below the wrapper."""
    return getattr(torch.ops.narrowgate, name).default


def samples() -> list[Any]:
    """Every sample of every op."""
    found = []
    for name in sorted(MUTATED):
        given: list[Sample] = importlib.import_module(f"narrowgate.ops.{name}").samples()
        found += [pytest.param(name, i, id=f"{name}-{i}") for i in range(len(given))]
    return found


def sample(name: str, i: int) -> Sample:
    """A fresh copy of one sample."""
    given: Sample = importlib.import_module(f"narrowgate.ops.{name}").samples()[i]
    return given


def test_every_op_has_a_status(version: str) -> None:
    """What doctor prints: on the CPU C++, on a GPU Triton, the definition elsewhere; and why."""
    rows = [(row.op, row.device, row.version) for row in ops.status()]
    cpu = _native.PLAIN if _native.loaded.library is None else version
    triton = f"Triton {_triton.found().version}" if _triton.found().version else _native.PLAIN
    on_cuda = {name: triton if name in WITH_TRITON else _native.PLAIN for name in MUTATED}
    assert rows == [
        (name, *pair)
        for name in sorted(MUTATED)
        for pair in (("cpu", cpu), ("cuda", on_cuda[name]), ("other", _native.PLAIN))
    ]
    assert all(row.why for row in ops.status())


@pytest.mark.parametrize("name", sorted(MUTATED))
def test_mutation_is_declared(name: str) -> None:
    """Exactly what the docstrings say is changed in place is declared so."""
    arguments = overload(name)._schema.arguments
    assert {
        argument.name
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    } == MUTATED[name]


@pytest.mark.parametrize(("name", "i"), samples())
def test_opcheck(name: str, i: int) -> None:
    """Schema, autograd registration, fake kernel, and AOT tracing with dynamic shapes."""
    args, kwargs = sample(name, i)
    opcheck(overload(name), args, kwargs)


@pytest.mark.parametrize(("name", "i"), samples())
def test_results_alias_nothing(name: str, i: int) -> None:
    """No result shares memory with an argument or with another result."""
    args, kwargs = sample(name, i)
    results = pytree.tree_leaves(getattr(ops, name)(*args, **kwargs))
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    addresses = [t.untyped_storage().data_ptr() for t in [*tensors, *results] if t.numel()]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("name", sorted(MUTATED))
def test_compiles_whole_and_equals_eager_exact(name: str) -> None:
    """The wrapper, checks included, without a graph break; every result and every mutation.

    aot_eager runs the traced graph as it is. What inductor may do to one is in
    cases/test_b073_compile_drops_casts.py.
    """
    torch.compiler.reset()
    op = getattr(ops, name)
    compiled = torch.compile(
        lambda args, kwargs: op(*args, **kwargs), fullgraph=True, backend="aot_eager"
    )
    for i in (0, len(importlib.import_module(f"narrowgate.ops.{name}").samples()) - 1):
        eager, traced = sample(name, i), sample(name, i)
        want = pytree.tree_leaves((op(*eager[0], **eager[1]), eager))
        got = pytree.tree_leaves((compiled(*traced), traced))
        for a, b in zip(want, got, strict=True):
            if isinstance(a, torch.Tensor):
                assert a.dtype is b.dtype
                assert a.stride() == b.stride()
                assert torch.equal(a, b)


def test_the_fake_kernel_checks_too() -> None:
    """Under tracing the same mistakes are refused, without data; meta tensors are its business."""
    half = torch.empty(2, 3, dtype=torch.bfloat16, device="meta")
    remainder = torch.empty(2, 3, dtype=torch.int16, device="meta")
    joined = torch.ops.narrowgate.join_master(half, remainder)
    assert (joined.shape, joined.dtype) == ((2, 3), torch.float32)
    with pytest.raises(OpError, match="remainder is int32"):
        torch.ops.narrowgate.join_master(half, remainder.int())
    on_meta = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), sample("adamw_step", 0))
    args, kwargs = on_meta
    assert overload("adamw_step")(*args, **kwargs).shape == (len(args[0]),)
    with pytest.raises(OpError, match="beta1"):
        overload("adamw_step")(*args, **kwargs | {"beta1": 1.0})
