"""B058: one overflowing batch is skipped, but it has poisoned the running statistics of every
batch norm, and evaluation gives NaN for ever.

Broken invariant: a skipped step leaves the whole model as it was, buffers too. With torch the
weights stay finite and `running_mean` is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import RECIPES, bits


class Ema(nn.Module):
    """A user's own statistic, written in place, and a constant table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(
                    x.float().transpose(0, 1).reshape(4, -1).mean(1), alpha=0.1
                )
                self.calls += 1
        return x


class Rebound(nn.Module):
    """A statistic that is not written in place: the name is bound to a new tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                now = x.float().transpose(0, 1).reshape(4, -1).mean(1)
                self.mean = 0.9 * self.mean + 0.1 * now
        return x


def stack(rank: int, norm: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank](3, 4, 1)
    return nn.Sequential(conv, norm())


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (8, 3)),
    "1d": (lambda: stack(1, lambda: nn.BatchNorm1d(4)), (8, 3, 5)),
    "2d": (lambda: stack(2, lambda: nn.BatchNorm2d(4)), (4, 3, 3, 3)),
    "3d": (lambda: stack(3, lambda: nn.BatchNorm3d(4)), (2, 3, 2, 2, 2)),
    "momentum None": (lambda: stack(1, lambda: nn.BatchNorm1d(4, momentum=None)), (8, 3, 5)),
    "no affine": (lambda: stack(1, lambda: nn.BatchNorm1d(4, affine=False)), (8, 3, 5)),
    "instance": (
        lambda: stack(1, lambda: nn.InstanceNorm1d(4, track_running_stats=True)),
        (8, 3, 5),
    ),
    "own": (lambda: stack(1, Ema), (8, 3, 5)),
    "both": (lambda: stack(1, lambda: nn.Sequential(nn.BatchNorm1d(4), Ema())), (8, 3, 5)),
    "rebound": (lambda: stack(1, Rebound), (8, 3, 5)),
}


def made(kind: str, recipe: str) -> tuple[Any, Any, tuple[int, ...]]:
    torch.manual_seed(0)
    build, shape = MODELS[kind]
    model = build()
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), recipe)
    return model, optimizer, shape


def batch(shape: tuple[int, ...], good: bool, seed: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x if good else torch.full_like(x, float("inf"))


def loss_of(model: Any, shape: tuple[int, ...], good: bool, seed: int = 0) -> torch.Tensor:
    loss: torch.Tensor = model(batch(shape, good, seed)).float().pow(2).mean()
    return loss


def buffers(model: nn.Module) -> Any:
    return bits(dict(model.named_buffers()))


def test_plain_torch_has_the_fault() -> None:
    torch.manual_seed(0)
    model = stack(1, lambda: nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, 1e6, 1.0):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            y = model(torch.randn(8, 3, 5) * factor)
        scaler.scale(y.float().pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert all(p.isfinite().all() for p in model.parameters())
    assert not model[1].running_mean.isfinite().all()  # type: ignore[index]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_skipped_step_leaves_the_buffers(recipe: str, kind: str) -> None:
    model, optimizer, shape = made(kind, recipe)
    before = bits(model.state_dict())
    for step, good in enumerate((False, True, False, False, True, False)):
        optimizer.zero_grad()
        optimizer.backward(loss_of(model, shape, good, step))
        assert optimizer.step().applied is good
        now = bits(model.state_dict())
        assert (now == before) is not good, step
        before = now
    model.eval()
    assert model(batch(shape, True, 9)).isfinite().all()


@pytest.mark.parametrize("kind", ["1d", "momentum None", "own", "rebound"])
def test_they_are_those_of_a_run_without_the_bad_batches(kind: str) -> None:
    ends = []
    for pattern in ((True, False, True, False, True), (True, True, True)):
        model, optimizer, shape = made(kind, "bf16")
        seed = 0
        for good in pattern:
            optimizer.zero_grad()
            optimizer.backward(loss_of(model, shape, good, seed))
            optimizer.step()
            seed += good
        ends.append(bits(model.state_dict()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("zero", ["before", "after forward", "at the end"])
@pytest.mark.parametrize("kind", ["1d", "own", "rebound"])
def test_a_bad_micro_batch_anywhere_in_the_window(kind: str, zero: str, bad: int) -> None:
    model, optimizer, shape = made(kind, "fp16")
    optimizer.backward(loss_of(model, shape, True))
    optimizer.step()
    if zero != "after forward":
        optimizer.zero_grad()
    before = bits(model.state_dict())
    for micro in range(3):
        loss = loss_of(model, shape, micro != bad, micro)
        if zero == "after forward" and micro == 0:
            optimizer.zero_grad()
        optimizer.backward(loss)
    assert not optimizer.step()
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize("kind", ["1d", "own"])
def test_two_forwards_for_one_backward(kind: str) -> None:
    model, optimizer, shape = made(kind, "bf16")
    before = bits(model.state_dict())
    loss = loss_of(model, shape, True) + loss_of(model, shape, False)
    optimizer.backward(loss)
    assert not optimizer.step()
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize("kind", ["1d", "own"])
def test_a_skip_of_a_forward_in_eval_does_not_turn_back_the_window_before(kind: str) -> None:
    """Frozen statistics: nothing was written in this window, so nothing may be put back."""
    model, optimizer, shape = made(kind, "bf16")
    optimizer.backward(loss_of(model, shape, True))
    assert optimizer.step()
    optimizer.zero_grad()
    model.eval()
    before = bits(model.state_dict())
    optimizer.backward(loss_of(model, shape, True) * float("inf"))
    assert not optimizer.step()
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize("kind", ["1d", "own", "rebound"])
def test_statistics_loaded_before_the_first_step_stay_loaded(kind: str) -> None:
    trained, optimizer, shape = made(kind, "bf16")
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.backward(loss_of(trained, shape, True))
        optimizer.step()
    saved = [trained.state_dict(), optimizer.state_dict()]
    for warm in (0, 1):
        model, optimizer, _ = made(kind, "bf16")
        for _ in range(warm):
            optimizer.backward(loss_of(model, shape, True))
            optimizer.step()
            optimizer.zero_grad()
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        optimizer.backward(loss_of(model, shape, False))
        assert not optimizer.step()
        assert bits(model.state_dict()) == bits(saved[0]), warm


@pytest.mark.parametrize("kind", ["1d", "both"])
def test_recalibration_between_the_steps_stays(kind: str) -> None:
    """A pass in training mode under no_grad is the user's own wish, and no part of the step."""
    model, optimizer, shape = made(kind, "bf16")
    optimizer.backward(loss_of(model, shape, True))
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        loss_of(model, shape, True, 5)
    before = bits(model.state_dict())
    optimizer.backward(loss_of(model, shape, False))
    assert not optimizer.step()
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize(
    ("recipe", "kind"), [("bf16", "1d"), ("fp16-mixed", "both"), ("fp16; 1: fp32", "own")]
)
def test_compiled(recipe: str, kind: str) -> None:
    torch._dynamo.reset()
    model, optimizer, shape = made(kind, recipe)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for step, good in enumerate((True, False, True, False)):
        before = bits(model.state_dict())
        optimizer.zero_grad()
        optimizer.backward(loss_of(compiled, shape, good, step))
        assert optimizer.step().applied is good
        assert (bits(model.state_dict()) == before) is not good


def test_a_submodule_called_by_itself_is_guarded_too() -> None:
    model, optimizer, shape = made("1d", "bf16")
    optimizer.backward(loss_of(model, shape, True))
    assert optimizer.step()
    optimizer.zero_grad()
    before = bits(model.state_dict())
    with ng.autocast(model):
        y = model[1](model[0](batch(shape, False, 0)))
    optimizer.backward(y.float().pow(2).mean())
    assert not optimizer.step()
    assert bits(model.state_dict()) == before


def test_every_model_of_a_call_is_put_back() -> None:
    one, two = stack(1, lambda: nn.BatchNorm1d(4)), stack(1, lambda: nn.BatchNorm1d(4))
    inners = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (one, two)]
    models, optimizers = ng.prepare([one, two], inners, "bf16")
    before = [bits(m.state_dict()) for m in models]
    shape = (8, 3, 5)
    optimizers[0].backward(loss_of(models[0], shape, True) + loss_of(models[1], shape, False))
    assert [bool(o.step()) for o in optimizers] == [False, False]
    assert [bits(m.state_dict()) for m in models] == before


@pytest.mark.parametrize("first", ["eval", "no backward"])
def test_the_watch_lasts_until_a_training_forward(first: str) -> None:
    """A step that saw no forward in training says nothing about which buffers a forward writes."""
    model, optimizer, shape = made("own", "bf16")
    if first == "eval":
        model.eval()
        optimizer.backward(loss_of(model, shape, True))
    assert optimizer.step()
    optimizer.zero_grad()
    model.train()
    before = bits(model.state_dict())
    optimizer.backward(loss_of(model, shape, False))
    assert not optimizer.step()
    assert bits(model.state_dict()) == before
