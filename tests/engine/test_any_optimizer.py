"""Every optimizer of torch is itself on FP32 parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import bits

F32 = 2.0**-24  # half an ulp of 1 in FP32


ANY: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD dampened": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.1),
    "SGD tensor lr": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.01)),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW amsgrad foreach": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "AdamW amsgrad fused": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, fused=True),
    "AdamW amsgrad loop": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=False),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01, weight_decay=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.01),
}


def test_no_optimizer_of_torch_is_forgotten() -> None:
    known = {name.split()[0] for name in ANY}
    there = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    # LBFGS needs a closure and is refused; SparseAdam takes sparse gradients only
    assert there - known == {"Optimizer", "LBFGS", "SparseAdam"}


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed", "fp16"])
def test_any_optimizer_is_itself_on_fp32_parameters(recipe: str, name: str) -> None:
    torch.manual_seed(1)
    values = [torch.randn(4, 6), torch.randn(3, 4)]
    if recipe == "fp16":  # masters are exact from 2^-16 on, multiples of 2^-39: keep clear of it
        values = [v.sign() * (v.abs() + 0.5) for v in values]
    model: Any = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False))
    plain = [nn.Parameter(v.clone()) for v in values]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
    reference = ANY[name](plain)
    model, optimizer = ng.prepare(model, ANY[name](model.parameters()), recipe)
    dtype = torch.float16 if recipe == "fp16" else torch.bfloat16
    for turn_number in range(5):
        given = [(torch.randn(v.shape) * 2.0**-4).to(dtype).float() for v in values]
        optimizer.zero_grad()
        loss = sum((p.float() * g).sum() for p, g in zip(model.parameters(), given, strict=True))
        optimizer.backward(loss)
        assert optimizer.step(), turn_number
        for parameter, g in zip(plain, given, strict=True):
            parameter.grad = g
        reference.step()
        got = list(ng.full_precision_state_dict(model, optimizer).values())
        assert bits(got) == bits([p.data for p in plain]), turn_number
    states = [{k: v for k, v in s.items() if k not in OURS} for s in optimizer.state.values()]
    assert bits([s for s in states if s]) == bits([dict(s) for s in reference.state.values() if s])


#: what narrowgate keeps beside an optimizer's own state
OURS = ("master_lo", "master_check")
