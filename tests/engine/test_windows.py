"""Windows, marks and verdicts: what belongs together, and what a step may go by."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import narrowgate as ng
from engine.net import sgd, step
from narrowgate.engine.marks import Marks


def test_a_skip_of_one_optimizer_costs_the_other_none() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    (maker, judge), (one, other) = ng.prepare(
        [maker, judge], [sgd(maker, lr=0.01), sgd(judge, lr=0.01)], "fp16(init=8)"
    )
    x, applied, scales = torch.randn(8, 4), [], []
    for turn in range(4):
        other.zero_grad()
        other.backward(judge(maker(x).detach()).pow(2).mean())
        first = other.step()
        one.zero_grad()
        one.backward(judge(maker(x)).pow(2).mean() * (1e9 if turn == 1 else 1))
        second = one.step()
        applied.append((first.applied, second.applied))
        scales.append((first.loss_scale, second.loss_scale))
    assert applied == [(True, True), (True, False), (True, True), (True, True)]
    assert scales == [(8, 8), (8, 8), (4, 4), (4, 4)]


@pytest.mark.parametrize("clear", ["ours", "ours in place", "model", "model in place"])
@pytest.mark.parametrize(
    "recipe", ["bf16", "bf16(accumulate=fp32)", "fp16(init=8)", "fp16(init=8, accumulate=fp32)"]
)
def test_alternating_optimizers_clear_their_own_gradients(recipe, clear) -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    (maker, judge), (one, other) = ng.prepare(
        [maker, judge], [sgd(maker, lr=0.0), sgd(judge, lr=0.0)], recipe
    )

    def zero(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        who = optimizer if clear.startswith("ours") else model
        who.zero_grad(set_to_none="in place" not in clear)

    x, told = torch.randn(8, 4), []
    for _ in range(3):
        zero(judge, other)
        other.backward(judge(maker(x).detach()).pow(2).mean())
        first = other.step().grad_norm
        zero(maker, one)
        one.backward(judge(maker(x)).pow(2).mean())
        told.append((first, one.step().grad_norm))
    assert told[0] == told[1] == told[2]  # nothing moves, so nothing may grow


def test_gradients_that_are_kept_move_with_the_scale() -> None:
    one, other = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    for model in (one, other):
        nn.init.zeros_(model.weight)
    (one, other), (first, second) = ng.prepare(
        [one, other], [sgd(one, lr=1.0), sgd(other, lr=1.0)], "fp16(init=8, interval=1)"
    )
    first.backward(one.weight.float().sum() / 4)  # made with a scale of 8
    second.backward(other.weight.float().sum() / 4)
    second.step()  # clean: the scale goes to 16
    second.zero_grad()
    second.backward(other.weight.float().sum() / 4)  # made with 16, beside what one keeps
    assert float(first.param_groups[0]["narrowgate"]["machine"][0]) == 16
    first.step()
    assert ng.full_precision_state_dict(one, [first, second])["weight"].tolist() == [[-0.25, -0.25]]


def test_a_state_loaded_in_the_middle_of_a_window_ends_it() -> None:
    model = nn.Linear(4, 2)
    model, optimizer = ng.prepare(model, sgd(model), "fp16(init=64, accumulate=fp32)")
    step(model, optimizer)
    optimizer.zero_grad()
    weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    optimizer.backward(model(torch.ones(1, 4)).sum())
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    assert optimizer._session._sums == {}
    model.zero_grad()
    assert step(model, optimizer, torch.ones(1, 4)).applied


def test_a_skip_between_a_forward_and_its_backward_leaves_the_graph_alone() -> None:
    maker = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    judge = nn.Linear(4, 1)
    (maker, judge), (one, other) = ng.prepare(
        [maker, judge], [sgd(maker, lr=0.01), sgd(judge, lr=0.01)], "fp16(init=8)"
    )
    before = maker[1].running_mean.clone()
    fake = maker(torch.randn(8, 4))
    other.backward(judge(fake.detach()).mean() * float("inf"))
    assert not other.step()  # puts the statistics back
    assert torch.equal(maker[1].running_mean, before)
    other.zero_grad()
    one.zero_grad()
    one.backward(judge(fake).mean())
    assert one.step()


def test_a_mark_does_not_take_a_new_gradient_for_the_old_one() -> None:
    parameter = nn.Parameter(torch.zeros(1000))
    reused = 0
    for _ in range(50):
        old = torch.zeros(1000)
        marked, place = Marks([(parameter, old)]), id(old)
        assert marked.match(parameter, old)
        del old
        new = torch.zeros(1000)
        reused += id(new) == place
        assert not marked.match(parameter, new)
        del new
    assert reused  # else this test has shown nothing


@pytest.mark.parametrize("bad", [0, 1])
def test_the_verdict_sees_every_new_gradient(bad) -> None:
    models = [nn.Linear(8, 8, bias=False) for _ in range(2)]
    models, optimizers = ng.prepare(models, [sgd(m) for m in models], "bf16")
    for turn in range(30):
        for model in models:  # by hand, so that nothing but the marks can tell old from new
            model.weight.grad = None
        for number, model in enumerate(models):
            value = float("inf") if turn % 3 == 1 and number == bad else 1.0
            model.weight.grad = torch.full((8, 8), value, dtype=torch.bfloat16)
        assert [o.step().applied for o in optimizers] == [turn % 3 != 1] * 2


def test_gradients_made_after_the_verdict_are_judged_too() -> None:
    one, other = nn.Linear(4, 1), nn.Linear(4, 1)
    (one, other), (first, second) = ng.prepare([one, other], [sgd(one), sgd(other)], "bf16")
    one(torch.ones(2, 4)).sum().backward()  # with a scale of 1, a plain backward is right
    assert first.step()
    (other(torch.ones(2, 4)).sum() * float("inf")).backward()
    assert not second.step()


def test_a_verdict_that_left_gradients_out_is_not_followed_for_them() -> None:
    one, other = nn.Linear(4, 1), nn.Linear(4, 1)
    (one, other), (first, second) = ng.prepare([one, other], [sgd(one), sgd(other)], "bf16")
    first.backward(one(torch.ones(2, 4)).sum() * float("inf"))
    assert not first.step()  # its gradients stay: nobody clears them
    second.backward(other(torch.ones(2, 4)).sum())
    assert second.step()  # judged without those of the first
    assert not first.step()
    assert torch.isfinite(one.weight).all()
