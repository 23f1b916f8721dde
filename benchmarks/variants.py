"""One way to train a model in this process: plain FP32, torch.autocast, or one of our recipes.

What is true here: the first two touch nothing of narrowgate's, so that torch's own kernels are what
they are measured with. Each step clears the gradients, makes them, and updates with AdamW.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import SavedBytes, count_live, saved_bytes
from models import DTYPES, Task
from torch import nn
from traffic import TrafficCounter

import narrowgate as ng
from narrowgate.engine import cpu

__all__ = ["Variant"]


class Variant:
    """One way to train, in this process.

    Args:
        name: ``plain`` (FP32), ``autocast-bf16``, ``autocast-fp16``, or a recipe.
        task: Model and batch.
    """

    def __init__(self, name: str, task: Task) -> None:
        self.task = task
        self.model: nn.Module = task.model
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.optimizer: torch.optim.Optimizer = optimizer
        compute = name.removeprefix("autocast-")
        self._dtype = DTYPES[compute] if compute != name else None
        self._scaler = torch.amp.GradScaler("cpu", enabled=self._dtype is torch.float16)
        self._backward: Callable[[torch.Tensor], None] | None = None
        if name != "plain" and self._dtype is None:
            self.model, prepared = ng.prepare(self.model, optimizer, name)
            self.optimizer, self._backward = prepared, prepared.backward

    def forward_backward(self) -> None:
        """Clear the gradients, and make them anew."""
        self.optimizer.zero_grad()
        if self._backward is not None:
            self._backward(self.task.loss(self.model))
            return
        if self._dtype is None:
            loss = self.task.loss(self.model)
        else:
            with torch.autocast("cpu", self._dtype):
                loss = self.task.loss(self.model)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Make the optimizer's step."""
        if self._backward is not None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()

    def step(self) -> dict[str, float]:
        """Make a step.

        Returns:
            Seconds of forward and backward, and of the update; how many cores they had.
        """
        used = time.process_time()
        begin = time.perf_counter()
        self.forward_backward()
        middle = time.perf_counter()
        self.update()
        end = time.perf_counter()
        return {
            "gradients": middle - begin,
            "update": end - middle,
            "cores": (time.process_time() - used) / (end - begin),
        }

    def count(self) -> dict[str, Any]:
        """Make a step, and count its bytes and operations.

        Returns:
            Bytes by kind, and the traffic of forward and backward.
        """
        counter = TrafficCounter(cpu.widened())
        saved: SavedBytes
        used = time.process_time()
        begin = time.perf_counter()
        with saved_bytes() as saved, counter:
            self.forward_backward()
        kept = saved.total(self.model)
        middle = time.perf_counter()
        self.update()
        end = time.perf_counter()
        live = count_live(self.model, self.optimizer)
        return {
            "gradients": middle - begin,
            "update": end - middle,
            "cores": (time.process_time() - used) / (end - begin),
            "saved": kept,
            **{f"{kind}_bytes": size for kind, size in dataclasses.asdict(live).items()},
            "live": live.total + kept,
            "traffic": dataclasses.asdict(counter.traffic),
        }
