"""B006: a checkpoint without the scaler's state resumes at the initial scale, and loses the steps
which it takes to come down again.

Broken invariant: a resumed run is bit-equal to the uninterrupted one, and a checkpoint that
cannot do that is refused. In torch no part can notice that `scaler.state_dict()` was not saved.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import RECIPES, Weight, bits, memory

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-7),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-7, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
}


def fresh(make: Any, recipe: str) -> tuple[Any, Any]:
    model = Weight([1.0, 0.3])
    return ng.prepare(model, make(model.parameters()), recipe)


def train(model: Any, optimizer: Any, steps: int) -> list[tuple[bool, float]]:
    log = []
    for _ in range(steps):
        optimizer.zero_grad()
        # the true gradient of 4096 overflows fp16 from a scale of 16 upward
        optimizer.backward((model(torch.tensor([[1.0, 0.7]])) * 4096).sum())
        result = optimizer.step()
        log.append((result.applied, result.loss_scale))
    return log


def test_plain_torch_has_the_fault() -> None:
    model = Weight([1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    applied = []
    for scaler in (torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")):  # "resumed" without
        applied.append(0)
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                y = model(torch.ones(1, 1))
            scaler.scale((y.float() * 4096).sum()).backward()
            before = model.weight.item()
            scaler.step(optimizer)
            scaler.update()
            applied[-1] += model.weight.item() != before
    assert applied == [7, 7]


COMBINATIONS = [
    *(("fp16", name) for name in OPTIMIZERS),
    *((recipe, "adamw") for recipe in RECIPES if recipe != "fp16"),
    ("fp16(interval=5)", "momentum"),
    ("fp16-mixed(preset=deepspeed)", "rmsprop"),
]


@pytest.mark.parametrize(("recipe", "name"), COMBINATIONS)
@pytest.mark.parametrize("way", ["checkpoint", "state_dict"])
def test_a_resumed_run_is_the_uninterrupted_one(
    recipe: str, name: str, way: str, tmp_path: Path
) -> None:
    make = OPTIMIZERS[name]
    model, optimizer = fresh(make, recipe)
    # 18: in the middle of the skips' aftermath, and in the middle of an interval of 5
    train(model, optimizer, 18)
    other, resumed = fresh(make, recipe)
    if way == "checkpoint":
        ng.save_checkpoint(tmp_path, model, optimizer)
        ng.load_checkpoint(tmp_path, other, resumed)
    else:
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "both.pt")
        saved = torch.load(tmp_path / "both.pt", weights_only=True)
        other.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
    assert memory(other, resumed) == memory(model, optimizer)
    log = train(model, optimizer, 22)
    assert train(other, resumed, 22) == log
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())
    assert memory(other, resumed) == memory(model, optimizer)
    if recipe in ("fp16", "fp16-mixed"):
        assert all(applied for applied, _ in log)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_state_without_the_scaler_is_refused_whole(recipe: str) -> None:
    plain = Weight([1.0, 0.3])
    plain_optimizer = torch.optim.AdamW(plain.parameters())
    plain(torch.ones(1, 2)).sum().backward()
    plain_optimizer.step()
    model, optimizer = fresh(OPTIMIZERS["adamw"], recipe)
    train(model, optimizer, 15)
    before = bits(optimizer.state_dict())
    with pytest.raises(ng.CheckpointError, match="no loss-scale state and no masters") as caught:
        optimizer.load_state_dict(plain_optimizer.state_dict())
    assert recipe in str(caught.value)
    assert "prepare()" in str(caught.value)
    assert bits(optimizer.state_dict()) == before
    # and the same where it was thrown away later
    stripped = copy.deepcopy(optimizer.state_dict())
    del stripped["param_groups"][0]["narrowgate"]
    with pytest.raises(ng.CheckpointError, match="no loss-scale state"):
        optimizer.load_state_dict(stripped)
    assert bits(optimizer.state_dict()) == before
