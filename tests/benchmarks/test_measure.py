from __future__ import annotations

import measure
import pytest
import torch
from torch import nn

import narrowgate as ng


def test_saved_bytes_counts_each_storage_once_and_no_parameter() -> None:
    w = nn.Linear(8, 8, bias=False)
    x = torch.randn(4, 8)
    with measure.saved_bytes() as saved:
        y = w(x)  # keeps x and the weight
        z = (y * y).view(2, 16)  # keeps y, twice
        z.exp().sum().backward()  # keeps what it gives
    assert saved.total(w) == 4 * (x.numel() + y.numel() + z.numel())


def test_counting_leaves_the_gradients_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
    x = torch.randn(3, 4)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with measure.saved_bytes():
        model(x).sum().backward()
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, grad)


def test_live_bytes_of_a_plain_model_with_adamw() -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    live = measure.count_live(model, optimizer)
    numel = 5 * 3 + 3
    # states: two moments, and a step count of 4 bytes for each of the two parameters
    assert live == measure.LiveBytes(
        parameters=4 * numel, remainders=0, gradients=4 * numel, states=8 * numel + 2 * 4
    )
    assert live.total == 16 * numel + 8


@pytest.mark.parametrize("recipe", ["bf16", "fp16(loss_scale=64)"])
def test_live_bytes_of_a_split_master(recipe: str) -> None:
    model = nn.Linear(5, 3)
    model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters()), recipe)
    optimizer.backward(model(torch.ones(1, 5)).sum())
    assert optimizer.step()
    live = measure.count_live(model, optimizer)
    numel = 5 * 3 + 3
    # beside each remainder stands the checksum of its half, 8 bytes
    assert live == measure.LiveBytes(
        parameters=2 * numel,
        remainders=2 * numel + 2 * 8,
        gradients=2 * numel,
        states=8 * numel + 2 * 4,
    )


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert measure.count_live(model, optimizer).parameters == 4 * 16
