"""Small trainings that are recorded, as a pilot has them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import narrowgate as ng
from narrowgate.records import Run, load_run, script


def net(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(recipe: str | None, steps: int = 4, seed: int = 0) -> tuple[nn.Module, list[float]]:
    model, optimizer = ng.prepare(*net(seed), recipe)
    data = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(16, 4, generator=data)).pow(2).mean()
        optimizer.zero_grad()
        optimizer.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def ended(folder: Path) -> Run:
    ng.result(val_loss=1.0)
    script.close()
    return load_run(folder)


def given(run: Run) -> list[tuple[int | None, int | None]]:
    """The checksums of whole numbers and of floats, step by step."""
    return list(zip(run.steps.data, run.steps.floats, strict=True))
