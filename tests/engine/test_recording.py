"""What a run in a pilot records of training, and that recording changes no number."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import narrowgate as ng
from engine.recorded import ended, net, train
from narrowgate.engine import recording, seeding
from narrowgate.engine.private import has_compiled
from narrowgate.plan import Plan
from narrowgate.records import layout, load_run, script
from records import asked
from tiny import GPT, ResNet

pytestmark = pytest.mark.usefixtures("no_run_is_left")


def test_the_pilots_recipe_is_taken_and_said(pilot: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked.folder(pilot, recipe="bf16(residual=fp32)")
    with caplog.at_level(logging.WARNING, "narrowgate"):
        model, _ = train("fp16")
    assert model[0].weight.dtype is torch.bfloat16
    said = "narrowgate: the pilot's recipe bf16(residual=fp32) is taken; the script's own is fp16"
    assert said in caplog.messages
    run = ended(pilot)
    assert run.plan is not None
    assert Plan.from_json(run.plan).recipe == "bf16(residual=fp32)"
    saved = json.loads((pilot / layout.PLAN).read_text())
    assert (run.plan_hash, len(saved["plans"])) == (saved["hash"], 1)


def test_every_step_is_recorded_with_its_loss(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    _, losses = train(None, steps=5)
    run = ended(pilot)
    assert run.steps.loss == tuple(losses)
    assert run.steps.step == (1, 2, 3, 4, 5)
    assert all(run.steps.applied)
    assert all(math.isfinite(norm) and norm > 0 for norm in run.steps.grad_norm)


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16", "bf16-mixed"])
def test_recording_changes_no_bit(
    pilot: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.folder(pilot, recipe=recipe)
    recorded, losses = train("bf16", steps=6)
    ended(pilot)
    monkeypatch.delenv(script.VARIABLE)
    plain, plain_losses = train(recipe, steps=6)
    assert losses == plain_losses
    for one, other in zip(recorded.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_without_a_pilot_nothing_is_written_or_hooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, _ = train("bf16")
    assert list(tmp_path.iterdir()) == []
    assert not model._forward_pre_hooks


def test_a_run_of_its_own_has_the_plan_and_the_steps_since_its_first_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, optimizer = ng.prepare(*net(), "bf16")
    for step in range(4):
        optimizer.zero_grad()
        optimizer.backward(model(torch.ones(2, 4)).mean())
        optimizer.step()
        if step == 1:
            ng.log(step=step, lr=0.1)
    ng.result(val_loss=1.0)
    (folder,) = (tmp_path / ".narrowgate" / "runs").iterdir()
    run = load_run(folder)
    assert run.steps.step == (3, 4)
    assert run.environment["torch"] == str(torch.__version__)
    assert run.plan is not None
    assert run.result is not None
    assert run.result.kinds["remainders"] > 0


def test_losses_of_micro_batches_are_summed_in_fp64(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    model, optimizer = ng.prepare(*net())
    parts = []
    for part in range(3):
        loss = model(torch.full((2, 4), 0.1 * part)).pow(2).mean() / 3
        optimizer.backward(loss)
        parts.append(loss.item())
        loss.data.mul_(1000)  # what a script does with its loss afterwards is its own matter
    optimizer.step()
    assert ended(pilot).steps.loss == (math.fsum(parts),)


def test_skips_scales_and_culprits_are_recorded(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp16(init=1024)")
    model, optimizer = ng.prepare(*net())
    for bad in (False, True, False):
        loss = model(torch.ones(2, 4)).mean() * (math.inf if bad else 1.0)
        optimizer.zero_grad()
        optimizer.backward(loss)
        optimizer.step()
    run = ended(pilot)
    assert run.steps.applied == (True, False, True)
    assert run.steps.loss_scale == (1024.0, 1024.0, 512.0)
    assert run.steps.reason == ("", "non-finite loss", "")
    assert run.steps.culprit[1] == "2.bias"
    assert [math.isfinite(loss) for loss in run.steps.loss] == [True, False, True]


def test_the_step_that_halts_training_is_recorded(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp16(init=1, floor=1)")
    model, optimizer = ng.prepare(*net())

    def train_on() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            optimizer.backward(model(torch.ones(2, 4)).mean() * math.inf)
            optimizer.step()

    with pytest.raises(ng.NumericsError):
        train_on()
    run = ended(pilot)
    assert len(run.steps) == 8
    assert not any(run.steps.applied)


def test_an_fp32_baselines_gradient_norm_is_taken_now_and_then(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp32")
    train(None, steps=34)
    norms = ended(pilot).steps.grad_norm
    assert [place for place, norm in enumerate(norms) if math.isfinite(norm)] == [0, 32]


# --- what is measured ----------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16", "bf16-mixed", "bf16(accumulate=fp32)"])
def test_bytes_by_kind_are_the_plans(pilot: Path, recipe: str) -> None:
    asked.folder(pilot, recipe=recipe)
    model = GPT()
    model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters()))
    optimizer.backward(model(torch.randint(31, (2, 16))).mean())
    optimizer.step()
    optimizer.zero_grad()
    run = ended(pilot)
    assert run.result is not None
    assert run.plan is not None
    totals = Plan.from_json(run.plan).totals()
    kinds = run.result.kinds
    assert kinds["parameters"] == totals["weights"]
    assert kinds["remainders"] == totals["remainders"]
    narrow = sum(p.numel() for p in model.parameters() if p.dtype == torch.bfloat16)
    summed = 4 * narrow if "accumulate" in recipe else 0
    assert kinds["gradients"] == totals["gradients"] + summed
    count = sum(p.numel() for p in model.parameters())
    assert 8 * count <= kinds["states"] <= 8 * count + 8 * len(list(model.parameters()))
    assert run.result.device == "cpu"
    assert run.result.peak_bytes > 0
    assert run.result.base_bytes > 2**20


def test_several_models_and_optimizers_are_numbered(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    (one, a), (two, b), (three, c) = net(0), net(1), net(2)
    (one, two), (a, b) = ng.prepare([one, two], [a, b])
    three, c = ng.prepare(three, c)
    a.backward(one(torch.ones(2, 4)).mean() + two(torch.ones(2, 4)).mean())
    for optimizer in (a, b):
        optimizer.step()
    c.backward(three(torch.ones(2, 4)).mean())
    c.step()
    run = ended(pilot)
    first = run.steps.optimizer[0]
    assert run.steps.optimizer == (first, first + 1, first + 2)
    saved = json.loads((pilot / layout.PLAN).read_text())
    assert len(saved["plans"]) == 3


def test_a_second_run_of_the_process_is_told_of_its_own_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = []
    for width in (8, 16):
        model = nn.Linear(4, width)
        model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16")
        kept.append((model, optimizer))
        for _ in range(2):
            ng.log(a=1)
            optimizer.backward(model(torch.ones(2, 4)).mean())
            optimizer.step()
        ng.result(val_loss=1.0)
    ng.log(a=2)
    kept[0][1].step()  # the first model goes on, in a third run
    ng.result(val_loss=1.0)
    runs = [load_run(path) for path in (tmp_path / ".narrowgate" / "runs").iterdir()]
    found = sorted(
        (r.request.created, r.steps.optimizer, r.result.kinds["parameters"]) for r in runs
    )
    assert [row[1:] for row in found] == [((0, 0), 80), ((0, 0), 160), ((0,), 80)]


def test_a_recorded_model_pickles_copies_and_is_given_back(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    torch.manual_seed(0)
    model = ResNet()
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model._forward_pre_hooks
    pickle.loads(pickle.dumps(model))
    copied, _ = copy.deepcopy((model, optimizer))
    copied(torch.randn(2, 3, 8, 8))
    model, _ = ng.restore(model, optimizer)
    assert not model._forward_pre_hooks


def test_the_pilots_seed_is_taken_by_every_generator(
    pilot: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    import numpy as np

    asked.folder(pilot, seed=7)
    monkeypatch.setattr(seeding, "_first", {})
    with torch.random.fork_rng(devices=[]), caplog.at_level(logging.WARNING, "narrowgate"):
        assert ng.seed(0) == 7
        drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
        assert ng.seed(0) == 7
        assert drawn == (random.random(), float(np.random.rand()), float(torch.rand(())))
        # one for each epoch stays one for each epoch
        epochs = [ng.seed(epoch) for epoch in range(3)]
        assert len(set(epochs)) == 3
        assert epochs[0] == 7
        assert float(torch.rand(())) != drawn[2]
    assert set(caplog.messages) == {"narrowgate: the pilot's seed 7 is taken"}


@pytest.mark.parametrize("number", [-1, 2**32, 1.0, True, "3", None])
def test_a_seed_that_is_none_is_refused(number: object) -> None:
    with pytest.raises(ng.RunError, match="the seed is"):
        ng.seed(number)


def test_a_rank_that_does_not_record_takes_the_pilots_recipe_too(
    pilot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.folder(pilot, recipe="fp16")
    monkeypatch.setenv("RANK", "1")
    model, _ = train("bf16")
    assert model[0].weight.dtype is torch.float16
    assert sorted(path.name for path in pilot.iterdir()) == [layout.REQUEST]


@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_optimizers_that_share_a_backward_count_one_step_in_every_recipe(
    pilot: Path, recipe: str
) -> None:
    asked.folder(pilot, recipe=recipe)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    model, (one, two) = ng.prepare(model, halves)
    for _ in range(3):
        one.backward(model(torch.ones(2, 4)).mean())
        one.step()
        two.step()
        one.zero_grad()
        two.zero_grad()
    for optimizer in (one, two):  # and each on its own loss, as in a GAN
        optimizer.backward(model(torch.ones(2, 4)).mean())
        optimizer.step()
        one.zero_grad()
        two.zero_grad()
    steps = ended(pilot).steps
    first = steps.optimizer[0]
    assert steps.optimizer == (first, first + 1) * 4
    assert steps.step == (1, 1, 2, 2, 3, 3, 4, 5)


@pytest.mark.parametrize(
    ("recipe", "use", "took_effect"),
    [
        ("bf16-mixed", "forward", True),
        ("bf16-mixed", "method", False),
        ("bf16-mixed", "autocast", True),
        ("bf16", "method", True),
        ("fp32", "method", True),
    ],
)
def test_a_recipe_whose_region_was_never_entered_took_no_effect(
    pilot: Path, recipe: str, use: str, took_effect: bool
) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.to(self.net.weight.dtype)).mean()

    asked.folder(pilot, recipe=recipe)
    model = Wrapped()
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.ones(2, 4)
    if use == "forward":
        loss = model(x).mean()
    elif use == "method":
        loss = model.training_step(x)
    else:
        with ng.autocast(model):
            loss = model.training_step(x)
    optimizer.backward(loss)
    optimizer.step()
    result = ended(pilot).result
    assert result is not None
    # a test before this one may have compiled something, which hides what is called
    assert result.took_effect is (took_effect or has_compiled())


def test_what_peaked_before_prepare_is_no_peak_of_training(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp32")
    before = torch.ones(64 * 2**20)  # 256 MiB, gone before there is a model
    del before
    train(None)
    result = ended(pilot).result
    assert result is not None
    assert result.peak_bytes < 128 * 2**20


def test_a_peak_that_cannot_be_told_from_an_earlier_one_is_not_known(
    pilot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.folder(pilot, recipe="fp32")
    monkeypatch.setattr(recording, "reset_peak", lambda: False)
    monkeypatch.setattr(recording, "memory_bytes", lambda: (10**9, 5 * 10**9))
    train(None)
    result = ended(pilot).result
    assert result is not None
    assert (result.peak_bytes, result.base_bytes) == (0, 0)
