"""Installing and uninstalling: nothing at import, nothing twice, nothing left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from narrowgate.engine import cpu
from narrowgate.engine.cpu import islands, kernels, swamping
from narrowgate.engine.private import registered_at

HALVES = frozenset({torch.bfloat16, torch.float16})


def tables() -> dict[str, str]:
    """The dispatcher's entry, as text, of each operator that is touched."""
    names = {*kernels.TABLE, *swamping.TABLE, *islands.missing()}
    return {name: torch._C._dispatch_dump(f"aten::{name}") for name in names}


def numbers() -> list[Tensor]:
    """What stock torch gives where the kernels would give something else."""
    torch.manual_seed(1)
    a = torch.randn(64, 300).half()
    x = torch.randn(300, 2).half()
    w = torch.ones(2).half().requires_grad_()
    torch.nn.functional.layer_norm(x, (2,), w).sum().backward()
    assert w.grad is not None
    index = torch.zeros(2000, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        soft = a.softmax(-1)
    return [
        a @ a.t(),
        torch.zeros(1).half().index_add(0, index, torch.ones(2000).half() * 3),
        w.grad,
        soft,
    ]


@pytest.mark.usefixtures("stock")
def test_uninstall_leaves_the_dispatcher_and_every_bit_as_they_were() -> None:
    before, wanted, keys = tables(), numbers(), registered_at("AutocastCPU")
    for _ in range(2):
        cpu.install(widen=HALVES)
        assert cpu.installed()
        assert not any(tables()[name] == before[name] for name in before)
        changed = numbers()
        assert [torch.equal(a, b) for a, b in zip(changed, wanted, strict=True)][1:] == [False] * 3
        cpu.uninstall()
        assert not cpu.installed()
        assert tables() == before
        assert registered_at("AutocastCPU") == keys
        assert all(map(torch.equal, numbers(), wanted))


@pytest.mark.usefixtures("stock")
def test_uninstall_gives_stock_back_after_an_error_inside_a_kernel() -> None:
    before, wanted = tables(), numbers()
    cpu.install(widen=HALVES)
    for broken in (
        lambda: torch.ones(2, 3).half() @ torch.ones(2, 3).half(),
        lambda: torch.zeros(1).half().index_add(0, torch.tensor([7]), torch.ones(1).half()),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            broken()
    cpu.uninstall()
    assert tables() == before
    assert all(map(torch.equal, numbers(), wanted))


@pytest.mark.usefixtures("stock")
def test_a_second_install_and_a_second_uninstall_change_nothing() -> None:
    cpu.install()
    once = tables()
    cpu.install()
    assert tables() == once
    cpu.uninstall()
    cpu.uninstall()
    assert not cpu.installed()


@pytest.mark.usefixtures("stock")
def test_by_default_formats_without_units_are_widened() -> None:
    cpu.install()
    assert cpu.widened() == HALVES - cpu.native_dtypes()
    cpu.install(widen=[torch.float16])
    assert cpu.widened() == {torch.float16}
    cpu.install()
    assert cpu.widened() == {torch.float16}
    cpu.install(widen=[])
    assert cpu.widened() == frozenset()
    assert cpu.installed()
    cpu.uninstall()
    assert cpu.widened() == frozenset()


@pytest.mark.usefixtures("stock")
def test_the_tag_of_cached_graphs_changes_and_comes_back() -> None:
    with torch.compiler.config.patch(cache_key_tag="theirs"):
        cpu.install(widen=HALVES)
        tag = torch.compiler.config.cache_key_tag
        assert tag.startswith("theirs+narrowgate")
        cpu.install(widen=[])
        assert torch.compiler.config.cache_key_tag == tag
        cpu.uninstall()
        assert torch.compiler.config.cache_key_tag == "theirs"


@pytest.mark.usefixtures("stock")
def test_an_install_that_fails_midway_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables()

    def fail(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(islands, "register", fail)
    with pytest.raises(MemoryError):
        cpu.install(widen=HALVES)
    assert not cpu.installed()
    assert tables() == before


def test_importing_registers_nothing_and_installing_is_silent_even_if_warnings_are_errors() -> None:
    script = """
import torch
before = torch._C._dispatch_dump("aten::mm")
from narrowgate.engine import cpu
assert torch._C._dispatch_dump("aten::mm") == before
assert not cpu.installed()
cpu.install(widen=[torch.bfloat16, torch.float16])
assert torch._C._dispatch_dump("aten::mm") != before
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
