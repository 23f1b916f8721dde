"""Checkpoints on disk: torn, flipped, foreign, interrupted; what stays is whole."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import bits
from engine.net import Net, adamw, everything, made, message, step

FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the checkpoints of step 1 and step 2."""
    logging.getLogger("narrowgate").setLevel(logging.ERROR)
    folder = tmp_path_factory.mktemp("saved")
    model, optimizer = made("fp16")
    for number in range(2):
        step(model, optimizer)
        ng.save_checkpoint(folder, model, optimizer, number=number)
    yield folder
    logging.getLogger("narrowgate").setLevel(logging.NOTSET)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(folder: Path) -> str:
    """Load a damaged checkpoint: refused, nothing changed, and the one before still loads."""
    model, optimizer = made("fp16")
    step(model, optimizer)
    torch.manual_seed(5)
    before, files = everything(model, optimizer), contents(folder)
    generator = bits(torch.get_rng_state())
    told = message(ng.CheckpointError, lambda: ng.load_checkpoint(folder, model, optimizer))
    assert everything(model, optimizer) == before
    assert bits(torch.get_rng_state()) == generator
    assert contents(folder) == files
    assert ng.load_checkpoint(folder / "step-1", model, optimizer) == {"number": 0}
    assert step(model, optimizer)
    return told


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_file_cut_short(saved: Path, tmp_path: Path, name: str, share: float) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "step-2" / name
    whole = path.read_bytes()
    left = min(int(len(whole) * share), len(whole) - 1)
    path.write_bytes(whole[:left])
    told = refused(folder)
    assert told.startswith(f"the checkpoint {folder / 'step-2'} cannot be read whole: ")
    assert told.endswith(f"; nothing was loaded\n\nhint: load another one: {folder / 'step-1'}")
    if name != "manifest.json":
        assert f": {name} has {left} bytes of {len(whole)};" in told


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.0, 0.1, 0.6, 1.0])
def test_a_flipped_bit(saved: Path, tmp_path: Path, name: str, place: float) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "step-2" / name
    data = bytearray(path.read_bytes())
    where = min(int(len(data) * place), len(data) - 1)
    data[where] ^= 0x80
    path.write_bytes(data)
    told = refused(folder)
    if name != "manifest.json":
        assert f": {name} was changed: its SHA-256 is not the manifest's; nothing" in told
    else:
        assert ": its manifest is damaged (" in told


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(saved: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "step-2" / name).unlink()
    assert "nothing was loaded" in refused(folder)


@pytest.mark.parametrize(
    "latest", [b"", b"\xf3tep-2\n", b"step-", b"../step-2\n", b"step-9\n", None]
)
def test_a_damaged_latest(saved: Path, tmp_path: Path, latest: bytes | None) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "latest").unlink()
    if latest is not None:
        (folder / "latest").write_bytes(latest)
    told = refused(folder)
    assert "step-1" in told  # says what is there
    # and it does not keep a run from saving
    model, optimizer = made("fp16")
    ng.load_checkpoint(folder / "step-2", model, optimizer)
    step(model, optimizer)
    ng.save_checkpoint(folder, model, optimizer)
    assert (folder / "latest").read_text() == "step-3\n"
    ng.load_checkpoint(folder, model, optimizer)


@pytest.mark.parametrize(
    "change", [{"schema": 99}, {"files": {}}, {"files": []}, {"schema": "x"}, {"schema": None}]
)
def test_a_foreign_manifest(saved: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "step-2" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert "nothing was loaded" in refused(folder)
    path.write_text("[]")
    assert "nothing was loaded" in refused(folder)


def test_nothing_there(tmp_path: Path) -> None:
    model, optimizer = made()
    place = tmp_path / "nowhere"
    assert message(ng.CheckpointError, lambda: ng.load_checkpoint(place, model, optimizer)) == (
        f"there is no checkpoint in {place}: no readable 'latest'\n\nhint: look at the path"
    )
    assert not place.exists()
    place.write_text("a file")
    for call in (ng.load_checkpoint, ng.save_checkpoint):
        with pytest.raises(ng.CheckpointError, match="nowhere"):
            call(place, model, optimizer)
    assert place.read_text() == "a file"


def wider(model: Net) -> None:
    model[2] = nn.Linear(8, 3)


def deeper(model: Net) -> None:
    model.append(nn.Linear(2, 2))


def without_bias(model: Net) -> None:
    model[2] = nn.Linear(8, 2, bias=False)


@pytest.mark.parametrize(
    ("change", "parted"),
    [
        (
            wider,
            "2.weight is float16 of shape (2, 8) in the checkpoint and float16 of shape (3, 8)",
        ),
        (deeper, "3.weight is absent in the checkpoint and float16 of shape (2, 2)"),
        (without_bias, "2.bias is float16 of shape (2,) in the checkpoint and absent"),
    ],
)
def test_a_checkpoint_of_another_model(saved: Path, change: Any, parted: str) -> None:
    model = Net()
    change(model)
    optimizer: Any
    model, optimizer = ng.prepare(model, adamw(model.parameters()), "fp16")
    step(model, optimizer)
    before, files = everything(model, optimizer), contents(saved)
    assert message(ng.CheckpointError, lambda: ng.load_checkpoint(saved, model, optimizer)) == (
        f"the checkpoint {saved / 'step-2'} is of another model: {parted} in the model\n\n"
        "hint: build the model as it was when the checkpoint was saved"
    )
    assert everything(model, optimizer) == before
    assert contents(saved) == files


@pytest.mark.parametrize(
    "recipe", ["bf16", "fp16-mixed", "fp16(init=1024)", "fp16; 2: fp32", "fp32"]
)
def test_a_checkpoint_of_another_recipe(saved: Path, recipe: str) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    before = everything(model, optimizer)
    told = message(ng.CheckpointError, lambda: ng.load_checkpoint(saved, model, optimizer))
    assert told.startswith(
        f"the checkpoint {saved / 'step-2'} is of the recipe 'fp16'; this model was prepared with "
        f"{recipe!r}\n\nhint: "
    )
    assert everything(model, optimizer) == before


def test_a_checkpoint_with_other_optimizers(saved: Path) -> None:
    model = Net()
    first, *rest = model
    halves = [
        adamw(first.parameters()),
        adamw([p for module in rest for p in module.parameters()]),
    ]
    model, optimizers = ng.prepare(model, halves, "fp16")
    before = bits([model.state_dict(), [o.state_dict() for o in optimizers]])
    assert message(ng.CheckpointError, lambda: ng.load_checkpoint(saved, model, optimizers)) == (
        f"the checkpoint {saved / 'step-2'} holds 1 optimizers; there are 2\n\n"
        "hint: prepare the same models and optimizers together"
    )
    for call in (ng.load_checkpoint, ng.save_checkpoint):
        assert message(
            ng.CheckpointError, lambda call=call: call(saved, model, optimizers[0])
        ).startswith("a checkpoint holds all models and optimizers of one prepare() call")
    assert bits([model.state_dict(), [o.state_dict() for o in optimizers]]) == before


@pytest.mark.parametrize("extra", [object(), {1, 2}, print, {"deep": [0, (b"bytes",)]}])
def test_an_extra_that_cannot_be_saved_leaves_the_folder(
    saved: Path, tmp_path: Path, extra: Any
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    files = contents(folder)
    model, optimizer = made("fp16")
    told = message(
        ng.CheckpointError, lambda: ng.save_checkpoint(folder, model, optimizer, thing=extra)
    )
    assert told.startswith("extra.thing")
    assert told.endswith("hint: pass state_dict() of an object, not the object")
    assert contents(folder) == files
    assert sorted(p.name for p in folder.iterdir()) == ["latest", "step-1", "step-2"]


def save_interrupted(folder: Path, pair: Any, at: int | None) -> list[int]:
    """Save, with Ctrl-C just before a line of the module of checkpoints is executed first.

    Returns:
        The lines which were executed, in the order in which they were reached.
    """
    import narrowgate.engine.checkpoint as module

    lines: dict[int, None] = {}

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line" and frame.f_lineno not in lines:
            lines[frame.f_lineno] = None
            if frame.f_lineno == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ng.save_checkpoint(folder, *pair, number="new")
    finally:
        sys.settrace(before)
    return list(lines)


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_ctrl_c_at_any_line_of_saving_leaves_a_whole_checkpoint(
    saved: Path, tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what reaches the disk is not what is tested
    pair = made("fp16")
    ng.load_checkpoint(saved, *pair)
    if not again:
        step(*pair)
    reader = made("fp16")
    folder = tmp_path / "whole"
    shutil.copytree(saved, folder)
    lines = save_interrupted(folder, pair, None)
    seen = set()
    assert len(lines) > 40
    for number, line in enumerate(lines):
        folder = tmp_path / str(line)
        shutil.copytree(saved, folder)
        with pytest.raises(KeyboardInterrupt):
            save_interrupted(folder, pair, line)
        # the one before or the new one; whole, and by the plain way
        seen.add(ng.load_checkpoint(folder, *reader)["number"])
        # and the next save is served
        if number % 8 == 0:
            ng.save_checkpoint(folder, *pair, number="next")
            assert ng.load_checkpoint(folder, *reader)["number"] == "next"
            assert not [p for p in folder.iterdir() if p.name.startswith(".")]
        shutil.rmtree(folder)
    assert seen == {1, "new"}
