"""What a run in a pilot records of the data: checksums by which two runs' data are compared."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import narrowgate as ng
from engine.recorded import ended, given, net, train
from narrowgate.records import script
from records import asked

pytestmark = pytest.mark.usefixtures("no_run_is_left")


def checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, seed: int = 0
) -> object:
    folder = asked.folder(tmp_path / f"{recipe}-{seed}", recipe=recipe)
    monkeypatch.setenv(script.VARIABLE, str(folder))
    train(None, seed=seed)
    return given(ended(folder))


def test_data_are_the_same_in_every_recipe_and_differ_with_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = checksums(tmp_path, monkeypatch, "fp32")
    assert first == checksums(tmp_path, monkeypatch, "bf16")
    assert first == checksums(tmp_path, monkeypatch, "fp16")
    other = checksums(tmp_path, monkeypatch, "fp32", seed=1)
    assert len(set(first)) == 4
    assert not set(first) & set(other)


@pytest.mark.parametrize(
    "batch",
    [
        torch.randint(9, (2, 3)),
        torch.randn(2, 3),
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(2, 3, dtype=torch.complex64),
        torch.randint(255, (4,), dtype=torch.uint8),
        torch.randn(3, 2).T,
        {"ids": torch.arange(3), "more": [torch.ones(2), (torch.zeros(1), None, "x")]},
        torch.tensor([math.nan, math.inf]),
    ],
    ids=["i64", "f32", "f64", "c64", "u8", "strided", "nested", "nan"],
)
def test_any_batch_has_a_checksum_which_one_bit_changes(pilot: Path, batch: object) -> None:
    class Any(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, batch: object, scale: float) -> torch.Tensor:
            return self.weight * scale

    asked.folder(pilot, recipe="fp32")
    model = Any()
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    changed = copy.deepcopy(batch)
    first = changed["ids"] if isinstance(changed, dict) else changed
    storage = first.untyped_storage()
    storage[0] = storage[0] ^ 1
    for one in (batch, changed, batch):
        optimizer.backward(model(one, scale=2.0).sum())
        optimizer.step()
    first, other, again = given(ended(pilot))
    assert first == again != other
    assert first != (None, None)


def test_floats_beside_whole_numbers_are_no_data(pilot: Path) -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, ids: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.table(ids) + state

    asked.folder(pilot, recipe="bf16")
    model = Text()
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = torch.zeros(4)
    for _ in range(2):  # a state that is carried on, as in truncated backpropagation through time
        state = model(torch.arange(3), state).mean(0)
        optimizer.backward(state.sum())
        optimizer.step()
        optimizer.zero_grad()
        state = state.detach()
    (first, one), (second, other) = given(ended(pilot))
    assert first == second == 3
    assert one != other


def test_a_mask_of_booleans_tells_no_order(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp32")
    model, optimizer = ng.prepare(*net())
    model.forward = lambda x, mask: nn.Sequential.forward(model, x)  # type: ignore[method-assign]
    optimizer.backward(model(torch.ones(2, 4), torch.ones(2, dtype=torch.bool)).mean())
    optimizer.step()
    ((whole, floats),) = given(ended(pilot))
    assert (whole, floats is None) == (None, False)


def test_what_was_cast_to_the_recipes_format_is_no_data(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    model, optimizer = ng.prepare(*net())
    optimizer.backward(model(torch.ones(2, 4).to(model[0].weight.dtype)).mean())
    optimizer.step()
    assert given(ended(pilot)) == [(None, None)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning")
def test_what_has_no_checksum_does_not_disturb_training(pilot: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, *_: object) -> torch.Tensor:
            return self.weight.sum()

    asked.folder(pilot, recipe="fp32")
    model = Odd()
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    conjugate = torch.tensor([1 + 2j]).conj()
    odd = [
        (torch.empty(2, device="meta"), torch.ones(2)),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), torch.ones(2)),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), torch.ones(2)),
        (torch.ones(2).to_sparse(), torch.ones(2)),
        (conjugate, torch.ones(2)),
        (conjugate.imag, torch.ones(2)),
    ]
    for inputs in odd:
        optimizer.backward(model(*inputs))
        optimizer.step()
    torch.vmap(lambda row: model(row[None]))(torch.ones(3, 2))  # leaves nothing behind
    for _ in range(2):
        optimizer.backward(model(torch.ones(2)))
        optimizer.step()
    run = ended(pilot)
    assert run.faults == ()
    *found, _, plain = run.steps.floats
    assert found[:4] == [plain] * 4
    assert plain not in found[4:]
    assert len(found) == len(odd)


def test_validation_is_no_data_of_training(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    model, optimizer = ng.prepare(*net())
    for validates in (False, True):
        if validates:
            model.eval()
            model(torch.randn(3, 4))
            model.train()
        optimizer.backward(model(torch.ones(2, 4)).mean())
        optimizer.step()
    first, second = given(ended(pilot))
    assert first == second != (None, None)


def test_data_are_sampled_in_a_long_run(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp32")
    train(None, steps=125)
    floats = ended(pilot).steps.floats
    taken = [place for place, value in enumerate(floats) if value is not None]
    assert taken == [*range(100), 100, 110, 120]


def test_a_compiled_model_is_left_whole(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    model, optimizer = ng.prepare(*net())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer.backward(compiled(torch.ones(2, 4)).mean())
    optimizer.step()
    assert len(ended(pilot).steps) == 1
