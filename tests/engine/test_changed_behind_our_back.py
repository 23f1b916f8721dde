"""Parameters that somebody changes, casts, replaces, adds, freezes or interrupts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import SPLIT, SWEEP, bits
from engine.net import Net, X, adamw, everything, made, message, step

PARTED = (
    "{} do not belong to their remainders: the two halves of the master are of different steps\n\n"
    "hint: load model and optimizer from the same checkpoint, and FP32 weights before prepare(); "
    "if the weights were changed on purpose, optimizer.adopt_weights() takes them as they stand"
)


@pytest.mark.parametrize("recipe", SPLIT)
@pytest.mark.parametrize("then", ["step", "restore", "full", "save"])
@pytest.mark.parametrize("what", ["model", "optimizer", "edit"])
def test_halves_and_remainders_of_different_steps(
    recipe: str, what: str, then: str, tmp_path: Path
) -> None:
    model, optimizer = made(recipe)
    old = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    step(model, optimizer)
    if what == "model":
        model.load_state_dict(old[0])
    elif what == "optimizer":
        optimizer.load_state_dict(old[1])
    else:
        with torch.no_grad():
            model[0].weight.mul_(0.5)
    named = "the 16-bit weights of " + (
        "0.weight" if what == "edit" else "0.weight, 0.bias, 2.weight and 1 more"
    )
    optimizer.zero_grad()
    optimizer.backward(model(X).pow(2).mean())
    before = everything(model, optimizer)
    calls: dict[str, Callable[[], Any]] = {
        "step": optimizer.step,
        "restore": lambda: ng.restore(model, optimizer),
        "full": lambda: ng.full_precision_state_dict(model, optimizer),
        "save": lambda: ng.save_checkpoint(tmp_path, model, optimizer),
    }
    for _ in range(2):
        assert message(ng.CheckpointError, calls[then]) == PARTED.format(named)
        assert everything(model, optimizer) == before
        assert list(tmp_path.iterdir()) == []
    optimizer.adopt_weights()
    calls[then]()


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("then", ["step", "full", "save", "restore"])
def test_a_model_cast_after_prepare_is_refused(
    recipe: str, to: torch.dtype, then: str, tmp_path: Path
) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    optimizer.zero_grad()
    optimizer.backward(model(X).pow(2).mean())
    was = {name: p.dtype for name, p in model.named_parameters()}
    model.to(to)  # the gradients with it
    if all(dtype is to for dtype in was.values()):
        return
    before = bits(dict(model.named_parameters()))
    calls: dict[str, Callable[[], Any]] = {
        "step": optimizer.step,
        "full": lambda: ng.full_precision_state_dict(model, optimizer),
        "save": lambda: ng.save_checkpoint(tmp_path, model, optimizer),
        "restore": lambda: ng.restore(model, optimizer),
    }
    with pytest.raises(ng.NarrowgateError) as caught:
        calls[then]()
    told = str(caught.value)
    first = next(name for name, dtype in was.items() if dtype is not to)
    assert first in told
    assert "hint:" in told
    assert bits(dict(model.named_parameters())) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", SPLIT)
def test_channels_last_after_prepare(recipe: str) -> None:
    """Torch's own optimizers cope with it."""
    x = torch.linspace(-1, 1, 150).reshape(2, 3, 5, 5)
    ends = []
    for late in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Conv2d(3, 4, 3)
        model, optimizer = ng.prepare(model, adamw(model.parameters()), recipe)
        for turn in range(3):
            step(model, optimizer, x)
            if late and turn == 0:
                model.to(memory_format=torch.channels_last)
        ends.append(ng.full_precision_state_dict(model, optimizer)["weight"].contiguous())
    assert bits(ends[0]) == bits(ends[1])


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "expanded", "strided"])
@pytest.mark.parametrize("recipe", SWEEP)
def test_any_layout_before_prepare(recipe: str, layout: str) -> None:
    if layout == "expanded" and recipe not in SPLIT:
        return  # one memory for several elements: torch's optimizers refuse it too
    ends = []
    for plain_layout in (True, False):
        torch.manual_seed(0)
        if layout == "channels_last":
            model: Any = nn.Conv2d(3, 4, 3)
            x = torch.linspace(-1, 1, 150).reshape(2, 3, 5, 5)
            if not plain_layout:
                model.to(memory_format=torch.channels_last)
        else:
            model, x = nn.Linear(4, 6), X
            wide = torch.randn(8, 12)
            data = {
                "transposed": wide[:4, :6].clone().t(),
                "expanded": wide[:1, :4].clone().expand(6, 4),
                "strided": wide[1:7, 1:9:2],
            }[layout]
            model.weight = nn.Parameter(data.clone(memory_format=torch.contiguous_format))
            if not plain_layout:
                model.weight = nn.Parameter(data)
        model, optimizer = ng.prepare(model, adamw(model.parameters()), recipe)
        for _ in range(2):
            step(model, optimizer, x)
        other = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(other)
        step(model, optimizer, x)
        ends.append(ng.full_precision_state_dict(model, optimizer)["weight"].contiguous())
    assert bits(ends[0]) == bits(ends[1])


@pytest.mark.parametrize("recipe", SPLIT)
def test_parameters_replaced_by_assign_are_refused_by_name(recipe: str, tmp_path: Path) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    for call in (
        lambda: ng.full_precision_state_dict(model, optimizer),
        lambda: ng.save_checkpoint(tmp_path, model, optimizer),
    ):
        with pytest.raises(ng.NarrowgateError, match=r"0\.weight"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("recipe", SWEEP)
def test_a_group_that_cannot_be_trained_is_refused_when_it_is_added(
    recipe: str, dtype: torch.dtype
) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    before = everything(model, optimizer)
    late = nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=dtype is not torch.int64)
    with pytest.raises(ng.NarrowgateError, match=str(dtype).removeprefix("torch.")):
        optimizer.add_param_group({"params": [late]})
    assert everything(model, optimizer) == before
    assert step(model, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", SWEEP)
def test_a_group_that_can_be_trained_is(recipe: str, dtype: torch.dtype) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    late = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer.add_param_group({"params": [late], "lr": 2.0**-12})
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.backward(model(X).pow(2).mean() + (late.float() * 0.25).sum())
        assert optimizer.step()
    if dtype is not torch.float32:  # 3 updates of 2^-12 and a decay: lost without a master
        assert len(optimizer.state_dict()["state"]) == 7
        master = optimizer._session.masters.master(late)
        # lr * (1 + weight decay of 0.01), three times, beside roundings of the master near 1
        assert abs(master[0].item() - (1 - 3 * 2.0**-12 * 1.01)) < 2.0**-20
    with pytest.raises(ValueError, match="some parameters appear in more than one"):
        optimizer.add_param_group({"params": [late]})
    assert len(optimizer.param_groups) == 2
    assert step(model, optimizer)


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("held", [True, False])
def test_unfreezing(recipe: str, held: bool) -> None:
    model = Net()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    chosen = [p for p in model.parameters() if held or p.requires_grad]
    model, optimizer = ng.prepare(model, adamw(chosen), recipe)
    step(model, optimizer)
    model[0].requires_grad_(True)
    if not held:
        optimizer.add_param_group({"params": list(model[0].parameters())})
    result = step(model, optimizer)
    while not result:
        result = step(model, optimizer)
    assert not torch.equal(ng.full_precision_state_dict(model, optimizer)["0.weight"], before)


@pytest.mark.parametrize("recipe", SWEEP)
def test_everything_frozen_and_parameters_of_no_size(recipe: str, tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 2)
    model.none = nn.Parameter(torch.zeros(0, 3))
    inner = nn.Linear(1, 1)
    inner.weight = nn.Parameter(torch.zeros(0, 4))
    model.inner = inner
    model, optimizer = ng.prepare(model, adamw(model.parameters()), recipe)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.backward(
            model(X).mean() / 8 + model.none.sum() + model.inner.weight.sum().float()
        )
        assert optimizer.step(max_norm=1.0)
    ng.save_checkpoint(tmp_path, model, optimizer)
    ng.load_checkpoint(tmp_path, model, optimizer)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(RuntimeError, match="does not require grad"):
        optimizer.backward(model(X).mean())
    optimizer.zero_grad()
    before = bits(model.state_dict())
    assert optimizer.step()
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_in_the_middle_of_a_step_does_not_end_the_run(
    recipe: str, group: int, error: type[BaseException]
) -> None:
    model = Net()
    first, *rest = model
    groups = [
        {"params": list(first.parameters())},
        {"params": [p for module in rest for p in module.parameters()]},
    ]
    inner = torch.optim.RMSprop(groups, lr=0.01)
    stock, calls = inner.step, []

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3 + group:  # two groups in the first step
            raise error("stop")
        return stock(*args)

    inner.step = interrupted  # type: ignore[method-assign]
    model, optimizer = ng.prepare(model, inner, recipe)
    assert step(model, optimizer)
    kept = [p.dtype for p in model.parameters()]
    optimizer.zero_grad()
    optimizer.backward(model(X).pow(2).mean())
    with pytest.raises(error, match="stop"):
        optimizer.step()
    assert [p.dtype for p in model.parameters()] == kept
    assert step(model, optimizer)
    ng.restore(model, optimizer)
