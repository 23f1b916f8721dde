"""B043: with bf16 moments the second moment never decays: bf16(0.999) is 1, and v stays as it is.

Broken invariant: coefficients and moments are FP32 or wider. torch's Adam on bf16 weights has v =
1 still after 5,000 steps without gradient, where 0.999^5000 = 0.0067 is right.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import SPLIT, Weight, give

STEPS = 64

#: Optimizer, the state, and its decay per step without gradient.
MOMENTS: dict[str, tuple[Any, str, float]] = {
    "adam v": (lambda p: torch.optim.Adam(p, lr=1e-4, eps=1e-3), "exp_avg_sq", 0.999),
    "adamw v": (lambda p: torch.optim.AdamW(p, lr=1e-4, eps=1e-3), "exp_avg_sq", 0.999),
    "adamw m": (lambda p: torch.optim.AdamW(p, lr=1e-4, betas=(0.998, 0.999)), "exp_avg", 0.998),
    "sgd": (lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.998), "momentum_buffer", 0.998),
    "nadam v": (lambda p: torch.optim.NAdam(p, lr=1e-4), "exp_avg_sq", 0.999),
    "rmsprop v": (lambda p: torch.optim.RMSprop(p, lr=1e-4, alpha=0.998), "square_avg", 0.998),
    "adamax u": (lambda p: torch.optim.Adamax(p, lr=1e-4), "exp_inf", 0.999),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_torch_has_the_fault(dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    optimizer = torch.optim.Adam([weight], lr=1e-4, eps=1e-3)
    for step in range(STEPS + 1):
        weight.grad = torch.full_like(weight, 1.0 if step == 0 else 0.0)
        optimizer.step()
        if step == 0:
            optimizer.state[weight]["exp_avg_sq"].fill_(1.0)
    assert (optimizer.state[weight]["exp_avg_sq"].item() == 1.0) is (dtype is torch.bfloat16)


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        *((recipe, kind) for recipe in SPLIT for kind in MOMENTS),
        ("bf16-mixed", "adamw v"),
        ("fp16-mixed", "rmsprop v"),
    ],
)
def test_moments_decay_as_in_fp32(recipe: str, kind: str) -> None:
    make, name, decay = MOMENTS[kind]
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, make(model.parameters()), recipe)
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        give(optimizer, model, 0.25 if step == 0 else 0.0)
        assert optimizer.step()
        if step == 0:
            optimizer.state[model.weight][name].fill_(1.0)
    state = optimizer.state[model.weight][name]
    assert state.dtype is torch.float32
    # The coefficient is off by half an FP32 ulp below 1 (2^-25), and each product by as much of
    # its value (2^-24): to first order the errors add up.
    assert abs(state.item() / decay**STEPS - 1) <= STEPS * (2.0**-25 + 2.0**-24)
