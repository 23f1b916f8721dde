"""B009: a fused optimizer is called on skipped steps too and skips inside, so whatever counts
calls (hooks, step counters, schedulers) counts steps that did not happen.

Broken invariant: there is one source of truth for a skip, and parameters, moments and step counts
are as before. torch's hooks fire 3 times for one applied fused step, once for the plain
optimizer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import SWEEP, Weight, masters, memory

VARIANTS: dict[str, Any] = {
    f"{kind.__name__} {flags}": lambda p, kind=kind, flags=flags: kind(
        p,
        lr=0.1,
        weight_decay=0.1,
        **({"momentum": 0.9} if kind is torch.optim.SGD else {}),
        **flags,
    )
    for kind in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
    for flags in ({}, {"fused": True}, {"foreach": True}, {"foreach": False})
}
VARIANTS["Adagrad fused"] = lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True)
VARIANTS["AdamW amsgrad fused"] = lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True)
VARIANTS["AdamW tensor lr"] = lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), fused=True)


@pytest.mark.parametrize("fused", [False, True])
def test_plain_torch_has_the_fault(fused: bool) -> None:
    model = Weight([1.0, 1.0, 1.0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for bad in (False, True, True):
        optimizer.zero_grad()
        scaler.scale((model.weight * (float("inf") if bad else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(calls) == (3 if fused else 1)
    assert float(optimizer.state[model.weight]["step"]) == 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("recipe", SWEEP)
def test_a_skip_changes_nothing_and_is_told(recipe: str, variant: str) -> None:
    torch.manual_seed(0)
    model = Weight([1.0, 1.0, 1.0])
    model, optimizer = ng.prepare(model, VARIANTS[variant](model.parameters()), recipe)
    results = []
    for bad in (False, True, True, False, True):
        before = memory(model, optimizer)
        optimizer.zero_grad()
        loss = model.weight.float() * torch.tensor([0.25, float("inf") if bad else 0.5, 0.125])
        optimizer.backward(loss.sum())
        result = optimizer.step()
        results.append(bool(result))
        assert result is optimizer.last_result
        assert (memory(model, optimizer) == before) is bad
        assert result.attempted == len(results)
        if bad:
            assert result.reason in ("non-finite loss", "non-finite gradient")
            assert result.culprit == "weight"
    assert results == [True, False, False, True, False]
    for state in optimizer.state.values():
        if "step" in state:
            assert float(state["step"]) == 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_skipped_first_step_leaves_no_trace_in_the_second(variant: str) -> None:
    """States may be made by a skipped step, as zeros; the run must not feel it."""
    ends = []
    for skips in (0, 3):
        model = Weight([1.0, 1.0, 1.0])
        model, optimizer = ng.prepare(model, VARIANTS[variant](model.parameters()), "bf16")
        for step in range(skips + 2):
            optimizer.zero_grad()
            optimizer.backward(
                (model.weight.float() * (float("nan") if step < skips else 0.3)).sum()
            )
            optimizer.step()
        ends.append(memory(model, optimizer))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("recipe", SWEEP)
def test_fused_and_plain_end_at_the_same_bits(recipe: str) -> None:
    ends = []
    for flags in ({}, {"fused": True}, {"foreach": True}):
        model = Weight([1.0, 0.5, -3.0])
        inner = torch.optim.AdamW(model.parameters(), lr=0.1, **flags)
        model, optimizer = ng.prepare(model, inner, recipe)
        for bad in (False, True, False, False):
            optimizer.zero_grad()
            loss = model.weight.float() * torch.tensor([1.0, float("nan") if bad else 0.3, 0.1])
            optimizer.backward(loss.sum())
            optimizer.step()
        ends.append(masters(model, optimizer)["weight"])
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
