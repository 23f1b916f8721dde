"""Training that test_resume.py runs in processes of its own: a part, a save, a load, the rest."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import narrowgate as ng
from tiny import GPT, ResNet, image_loss, text_loss

RECIPES = ("bf16", "fp16", "bf16-mixed", "fp16-mixed", "fp32")
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
}


def build(recipe: str, optimizer: str):
    """A GPT and a residual network with batch norms, under one optimizer."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"text": GPT(), "image": ResNet()})
    return ng.prepare(model, OPTIMIZERS[optimizer](model.parameters()), recipe, clip_norm=1.0)


def train(model, optimizer, scheduler, steps: int) -> list[bool]:
    """Some steps; now and then a loss that overflows fp16; always the generators' next numbers."""
    applied = []
    for _ in range(steps):
        seed = int(torch.randint(0, 1000, ()))
        spike = 1e9 if random.random() < 0.2 and "fp16" in str(optimizer) else 1.0
        optimizer.zero_grad()
        with ng.autocast(model):
            loss = text_loss(model["text"], seed) + image_loss(model["image"], seed)
        optimizer.backward(loss * spike)
        applied.append(optimizer.step().applied)
        scheduler.step()
    return applied


def tensors(model, optimizer) -> dict[str, torch.Tensor]:
    """Everything that a step changes."""
    out = {k: v.clone() for k, v in ng.full_precision_state_dict(model, optimizer).items()}
    for number, state in optimizer.state_dict()["state"].items():
        out |= {f"{number}.{k}": v.clone().contiguous() for k, v in state.items()}
    return out


def main(mode: str, folder: Path) -> None:
    """Run `whole` (30 steps, saving after 15) or `rest` (load, 15 steps)."""
    torch.set_num_threads(1)
    for recipe in RECIPES:
        for name in OPTIMIZERS:
            place = folder / f"{recipe}-{name}"
            model, optimizer = build(recipe, name)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.8)
            random.seed(1)
            torch.manual_seed(1)
            if mode == "whole":
                skips = train(model, optimizer, scheduler, 15).count(False)
                ng.save_checkpoint(place, model, optimizer, scheduler=scheduler.state_dict())
                (place / "skips").write_text(str(skips))
            else:
                extra = ng.load_checkpoint(place, model, optimizer)
                scheduler.load_state_dict(extra["scheduler"])
            train(model, optimizer, scheduler, 15)
            save_file(tensors(model, optimizer), place / f"{mode}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
