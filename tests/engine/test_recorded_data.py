"""What a run in a pilot records of the data: checksums by which two runs' data are compared."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import narrowgate as ng
from engine.recorded import ended, net, train
from narrowgate.records import script
from records import asked


@pytest.fixture(autouse=True)
def no_run_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(script.VARIABLE, raising=False)
    monkeypatch.delenv("RANK", raising=False)
    yield
    script.close()


@pytest.fixture
def pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(script.VARIABLE, str(tmp_path / "run"))
    return tmp_path / "run"


def checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, seed: int = 0
) -> object:
    folder = asked.folder(tmp_path / f"{recipe}-{seed}", recipe=recipe)
    monkeypatch.setenv(script.VARIABLE, str(folder))
    train(None, seed=seed)
    return ended(folder).steps.data


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
        torch.tensor([[True, False]]),
        torch.randint(255, (4,), dtype=torch.uint8),
        torch.randn(3, 2).T,
        {"ids": torch.arange(3), "more": [torch.ones(2), (torch.zeros(1), None, "x")]},
        torch.tensor([math.nan, math.inf]),
    ],
    ids=["i64", "f32", "f64", "c64", "bool", "u8", "strided", "nested", "nan"],
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
    for given in (batch, changed, batch):
        optimizer.backward(model(given, scale=2.0).sum())
        optimizer.step()
    data = ended(pilot).steps.data
    assert data[0] == data[2] != data[1]
    assert None not in data


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
    first, second = ended(pilot).steps.data
    assert first == second == 3


def test_what_was_cast_to_the_recipes_format_is_no_data(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    model, optimizer = ng.prepare(*net())
    optimizer.backward(model(torch.ones(2, 4).to(model[0].weight.dtype)).mean())
    optimizer.step()
    assert ended(pilot).steps.data == (None,)


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
    first, second = ended(pilot).steps.data
    assert first == second


def test_data_are_sampled_in_a_long_run(pilot: Path) -> None:
    asked.folder(pilot, recipe="fp32")
    train(None, steps=125)
    data = ended(pilot).steps.data
    taken = [place for place, value in enumerate(data) if value is not None]
    assert taken == [*range(100), 100, 110, 120]


def test_a_compiled_model_is_left_whole(pilot: Path) -> None:
    asked.folder(pilot, recipe="bf16")
    model, optimizer = ng.prepare(*net())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer.backward(compiled(torch.ones(2, 4)).mean())
    optimizer.step()
    assert len(ended(pilot).steps) == 1
