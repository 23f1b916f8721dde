"""Steps that would give a wrong update are refused; right ones are left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import SCALED, SWEEP, bits
from engine.net import Net, X, adamw, everything, made, message, step


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize(
    ("loss", "got"),
    [(3, "int"), (1.5, "float"), (None, "NoneType"), ([torch.ones(())], "list")]
    + [(torch.ones((), dtype=d), str(d)) for d in (torch.int64, torch.bool, torch.complex64)],
)
def test_a_loss_that_is_none(recipe: str, loss: Any, got: str) -> None:
    model, optimizer = made(recipe)
    assert message(ng.StepError, lambda: optimizer.backward(loss)) == (
        f"backward() takes a floating-point loss tensor; got {got}\n\n"
        "hint: call optimizer.backward(loss) once for each loss"
    )
    assert step(model, optimizer)


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("bad", ["not scalar", "no grad", "frozen", "raises in forward"])
def test_a_backward_that_torch_refuses_leaves_a_clean_window(recipe: str, bad: str) -> None:
    model, optimizer = made(recipe)
    other, reference = made(recipe)
    step(model, optimizer), step(other, reference)
    optimizer.zero_grad()
    if bad == "raises in forward":
        handle = model[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(X)
        handle.remove()
        assert not torch.is_autocast_enabled("cpu")
    else:
        loss = model(X) * float("inf")
        loss = loss if bad == "not scalar" else loss.mean().detach()
        with pytest.raises(RuntimeError):
            optimizer.backward(loss)
    assert step(model, optimizer).grad_norm == step(other, reference).grad_norm
    assert everything(model, optimizer) == everything(other, reference)


@pytest.mark.parametrize("recipe", SWEEP)
def test_a_step_without_gradients_moves_nothing(recipe: str) -> None:
    model, optimizer = made(recipe)
    before = bits(model.state_dict())
    result = optimizer.step()
    assert result.applied
    assert result.grad_norm == 0.0
    assert bits(model.state_dict()) == before
    assert step(model, optimizer)


FOREIGN = (
    "there are gradients, but none were made by optimizer.backward(loss); they would be divided by "
    "the loss scale although they were not, or not only, multiplied by it\n\nhint: replace "
    "loss.backward() by optimizer.backward(loss), and clip_grad_norm_ or other changes of .grad by "
    "prepare(clip_norm=...) or optimizer.step(max_norm=...); optimizers that share a loss go into "
    "one prepare() call"
)


@pytest.mark.parametrize("recipe", SCALED)
@pytest.mark.parametrize("lr", [0.0, 0.01])
def test_a_plain_backward_is_refused_where_the_loss_is_scaled(recipe: str, lr: float) -> None:
    model, optimizer = made(recipe)
    optimizer.param_groups[0]["lr"] = lr
    before = everything(model, optimizer)
    for _ in range(2):
        model(X).pow(2).mean().backward()
        assert message(ng.StepError, optimizer.step) == FOREIGN
        assert everything(model, optimizer) == before
        optimizer.zero_grad()
    assert step(model, optimizer)


@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed"])
def test_a_plain_backward_is_right_where_it_is_not(recipe: str) -> None:
    model, optimizer = made(recipe)
    other, reference = made(recipe)
    for lr in (0.0, 0.01):  # the first step of a warm-up is a step
        optimizer.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        model(X).pow(2).mean().backward()
        assert optimizer.step()
        step(other, reference)
    assert everything(model, optimizer) == everything(other, reference)


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def plain(model: nn.Module) -> None:
    model(X).pow(2).mean().backward()


@pytest.mark.parametrize("what", [clip, plain])
@pytest.mark.parametrize("recipe", ["bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
def test_fp32_sums_do_not_hide_a_foreign_hand(recipe: str, what: Any) -> None:
    model, optimizer = made(recipe)
    optimizer.backward(model(X).pow(2).mean())
    what(model)
    before = everything(model, optimizer)
    with pytest.raises(ng.StepError, match="changed between"):
        optimizer.step()
    assert everything(model, optimizer) == before
    optimizer.zero_grad()
    assert step(model, optimizer)


@pytest.mark.parametrize("clear", ["model", "model to zero", "each"])
@pytest.mark.parametrize("recipe", [*SWEEP, "bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
def test_gradients_cleared_by_somebody_else_are_cleared(recipe: str, clear: str) -> None:
    model, optimizer = made(recipe)
    other, reference = made(recipe)
    optimizer.backward(model(X).mul(3).pow(2).mean())
    if clear == "each":
        for parameter in model.parameters():
            parameter.grad = None
    else:
        model.zero_grad(set_to_none=clear == "model")
    optimizer.backward(model(X).pow(2).mean())
    assert optimizer.step().grad_norm == step(other, reference).grad_norm
    assert everything(model, optimizer) == everything(other, reference)


@pytest.mark.parametrize("recipe", [*SWEEP, "bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
def test_cleared_gradients_are_not_applied(recipe: str) -> None:
    model, optimizer = made(recipe)
    optimizer.backward(model(X).pow(2).mean())
    model.zero_grad()
    before = bits(model.state_dict())
    assert optimizer.step().grad_norm == 0.0
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize("recipe", SWEEP)
def test_a_closure(recipe: str) -> None:
    model, optimizer = made(recipe)
    before = everything(model, optimizer)
    told = message(ng.StepError, lambda: optimizer.step(lambda: model(X).mean()))
    assert told == (
        "AdamW was given a closure; closures cannot be scaled, checked and skipped as one step\n\n"
        "hint: compute the loss, call optimizer.backward(loss), then optimizer.step()"
    )
    assert everything(model, optimizer) == before
    assert optimizer.step(None).applied  # as some libraries call it


@pytest.mark.parametrize("recipe", [*SWEEP, "fp32"])
def test_the_optimizer_that_was_passed_in_is_not_stepped(recipe: str) -> None:
    model = Net()
    inner = adamw(model.parameters())
    model, optimizer = ng.prepare(model, inner, recipe)
    optimizer.backward(model(X).pow(2).mean())
    before = everything(model, optimizer)
    assert message(ng.StepError, inner.step) == (
        "AdamW.step() was called on the optimizer that was passed to prepare(): it would apply "
        "gradients which are scaled, on halves instead of masters\n\n"
        "hint: use the optimizer that prepare() returned"
    )
    assert everything(model, optimizer) == before
    assert optimizer.step()


def test_sparse_gradients() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.backward(model(torch.tensor([1])).mean())
    before = everything(model, optimizer)
    assert message(ng.StepError, optimizer.step) == (
        "the gradient of weight is torch.sparse_coo; dense ones are read\n\n"
        "hint: make the embedding with sparse=False"
    )
    assert everything(model, optimizer) == before
