"""Masters follow an FP32-master reference bit for bit; the reference is NumPy, written apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import narrowgate as ng

F32 = np.float32


class NumpyAdamW:
    """AdamW on an FP32 master, one FP32 rounding per operation."""

    def __init__(
        self, master: np.ndarray, *, lr: float, wd: float, b1: float, b2: float, eps: float
    ):
        self.w, self.m, self.v = master.copy(), np.zeros_like(master), np.zeros_like(master)
        self.lr, self.wd, self.b1, self.b2, self.eps, self.t = lr, wd, b1, b2, eps, 0

    def step(self, g: np.ndarray) -> None:
        self.t += 1
        self.m = self.m * F32(self.b1) + g * F32(1 - self.b1)
        self.v = self.v * F32(self.b2) + (g * g) * F32(1 - self.b2)
        root = np.sqrt(1 - self.b2**self.t)
        denominator = np.sqrt(self.v) / F32(root) + F32(self.eps)
        decayed = self.w * F32(1 - self.lr * self.wd)
        self.w = decayed - (self.m / denominator) * F32(self.lr / (1 - self.b1**self.t))


def gradients(shape: tuple[int, ...], dtype: torch.dtype, steps: int) -> list[torch.Tensor]:
    """Gradients over many binades, as the format holds them."""
    generator = torch.Generator().manual_seed(7)
    out = []
    for _ in range(steps):
        spread = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(
            -12, 3, shape, generator=generator
        )
        out.append(spread.to(dtype))
    return out


@pytest.mark.parametrize(("recipe", "dtype"), [("bf16", torch.bfloat16), ("bf16-mixed", None)])
def test_adamw_masters_equal_an_fp32_reference_after_50_steps_exact(recipe, dtype) -> None:
    layer = nn.Linear(33, 17)
    settings = {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
    start = layer.weight.detach().numpy().copy()
    layer, optimizer = ng.prepare(layer, torch.optim.AdamW(layer.parameters(), **settings), recipe)
    reference = NumpyAdamW(start, lr=3e-3, wd=0.1, b1=0.9, b2=0.95, eps=1e-8)
    for gradient in gradients((17, 33), dtype or torch.float32, 50):
        layer.weight.grad = gradient
        layer.bias.grad = torch.zeros_like(layer.bias)
        assert optimizer.step().applied
        reference.step(gradient.float().numpy())
    master = ng.full_precision_state_dict(layer, optimizer)["weight"]
    assert np.array_equal(master.numpy().view(np.uint32), reference.w.view(np.uint32))
    state = optimizer.state[layer.weight]
    assert np.array_equal(state["exp_avg"].numpy().view(np.uint32), reference.m.view(np.uint32))
    assert np.array_equal(state["exp_avg_sq"].numpy().view(np.uint32), reference.v.view(np.uint32))
    assert state["step"] == 50


def test_fp16_half_is_torchs_own_cast_of_its_master() -> None:
    layer = nn.Linear(33, 17)
    layer, optimizer = ng.prepare(layer, torch.optim.AdamW(layer.parameters(), lr=1e-3), "fp16")
    for gradient in gradients((17, 33), torch.float16, 20):
        optimizer.backward((layer.weight * gradient).sum())
        optimizer.step()
        optimizer.zero_grad()
    master = ng.full_precision_state_dict(layer, optimizer)["weight"]
    assert torch.equal(master.half(), layer.weight.detach())
    assert not torch.equal(master, layer.weight.detach().float())


def test_frozen_parameters_have_neither_remainder_nor_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters())
    model, optimizer = ng.prepare(model, optimizer, "bf16")
    optimizer.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    assert model[0].weight.dtype == torch.bfloat16
    saved = optimizer.state_dict()["state"]
    assert sorted(saved) == [0, 1]
    assert set(saved[0]) == {"step", "exp_avg", "exp_avg_sq", "master_lo", "master_check"}


def test_no_master_loses_the_updates_that_a_master_keeps() -> None:
    moved = {}
    for recipe in ("bf16", "bf16(master=none)"):
        layer = nn.Linear(4, 4, bias=False)
        nn.init.ones_(layer.weight)
        layer, optimizer = ng.prepare(layer, torch.optim.SGD(layer.parameters(), lr=1e-4), recipe)
        for _ in range(100):
            layer.weight.grad = torch.ones_like(layer.weight)
            optimizer.step()
        moved[recipe] = float(ng.full_precision_state_dict(layer, optimizer)["weight"][0, 0])
    assert moved["bf16(master=none)"] == 1.0
    assert moved["bf16"] == pytest.approx(0.99, abs=100 * 2**-24)  # one rounding per step at most
