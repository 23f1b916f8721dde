"""Checkpoints: everything that a run needs to go on bit for bit, whole or not at all.

    folder/latest                    the name of the newest complete step
    folder/step-<n>/manifest.json    size and SHA-256 of every other file
                    state.json       groups, counters, generators, extras, aliases of tied tensors
                    model.safetensors, optimizer.safetensors

A step folder is written under another name and renamed when it is complete; then ``latest`` is
replaced. So a crash, a full disk or Ctrl-C at any moment leaves the last checkpoint as it was. Two
are kept. Loading checks every file against the manifest, and the contents against model and
optimizer, before it changes anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from narrowgate.engine.codec import TensorTable, decode, encode
from narrowgate.engine.optimizer import PreparedOptimizer
from narrowgate.engine.prepare import session_of
from narrowgate.engine.session import Session
from narrowgate.errors import CheckpointError

__all__ = ["load_checkpoint", "save_checkpoint"]

_SCHEMA = 1
_FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
_STEP = re.compile(r"step-(\d+)")


def save_checkpoint(folder: str | Path, model: Any, optimizer: Any, **extra: Any) -> Path:
    """Save model, masters, optimizer, loss scale, counters and random generators.

    Args:
        folder: Where checkpoints are kept; made if it is not there. The two newest stay.
        model: What prepare() returned: a model or a list.
        optimizer: What prepare() returned: an optimizer or a list.
        **extra: Whatever else the run needs, such as ``scheduler=scheduler.state_dict()``: numbers,
            strings, tensors, and containers of them.

    Returns:
        The folder of this checkpoint, ``folder/step-<n>`` with n the steps attempted.

    Raises:
        CheckpointError: An extra that cannot be saved; what was there before stays as it was.
        PrepareError: It is not what prepare() returned.
        StepError: The model was converted, or its parameters replaced, since prepare().
    """
    session = session_of(optimizer)
    models, optimizers = _lists(model, optimizer, session)
    session.check_models()
    session.masters.verify(session.masters.remainders)
    weights, states = TensorTable(), TensorTable()
    modules = []
    for number, one in enumerate(models):
        modules.append(
            {
                key: encode(value, weights, key if len(models) == 1 else f"{number}:{key}")
                for key, value in one.state_dict().items()
            }
        )
    number_of_step = int(session.scaler.read()["attempted"])
    tree = {
        "schema": _SCHEMA,
        "recipe": str(session.recipe),
        "models": modules,
        "optimizers": [
            encode(one.state_dict(), states, f"optimizer{i}") for i, one in enumerate(optimizers)
        ],
        "machine": session.scaler.state.tolist(),
        "generators": encode(_generators(), states, "generators"),
        "extra": encode(extra, states, "extra"),
        "model_aliases": weights.aliases,
        "optimizer_aliases": states.aliases,
    }
    root = Path(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be kept in {root}: {error.strerror}",
            hint="name a folder that is there or can be made",
        ) from error
    _heal(root)
    before = _latest(root)
    target = root / f"step-{number_of_step}"
    part = root / f".{target.name}.{os.getpid()}"
    try:
        part.mkdir()
        save_file(weights.tensors, part / "model.safetensors")
        save_file(states.tensors, part / "optimizer.safetensors")
        (part / "state.json").write_text(json.dumps(tree))
        manifest = {
            "schema": _SCHEMA,
            "files": {name: _fingerprint(part / name) for name in _FILES},
        }
        (part / "manifest.json").write_text(json.dumps(manifest, indent=1))
        for name in (*_FILES, "manifest.json"):
            _sync(part / name)
        if target.exists():  # the same step again: it makes room when the new one is whole
            target.rename(root / f".{target.name}.old")
        part.rename(target)
    finally:
        _heal(root)
    _point(root, target.name)
    for other in root.iterdir():
        kept = other.name in (target.name, before)
        if not kept and _STEP.fullmatch(other.name) and (other / "manifest.json").is_file():
            shutil.rmtree(other)
    return target


def load_checkpoint(folder: str | Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """Load what `save_checkpoint` saved; training goes on as if it had not been interrupted.

    Args:
        folder: Where checkpoints are kept (the latest is taken), or one ``step-<n>`` of it.
        model: A model prepared with the same recipe, or the list.
        optimizer: Its prepared optimizer, or the list.

    Returns:
        The extras that were saved.

    Raises:
        CheckpointError: Nothing there; a file that is cut short or changed; another model, recipe
            or optimizer. Model and optimizer are then as they were.
        PrepareError: It is not what prepare() returned.
    """
    session = session_of(optimizer)
    models, optimizers = _lists(model, optimizer, session)
    place = _find(Path(folder))
    tree = _read(place)
    if tree["recipe"] != str(session.recipe):
        raise CheckpointError(
            f"the checkpoint {place} is of the recipe {tree['recipe']!r}; this model was prepared "
            f"with {str(session.recipe)!r}",
            hint="prepare with the recipe of the checkpoint; to go on in another, then "
            "ng.restore() and prepare again",
        )
    weights = load_file(place / "model.safetensors")
    states = load_file(place / "optimizer.safetensors")
    loaded = [decode(one, weights, tree["model_aliases"]) for one in tree["models"]]
    _check_models(models, loaded, place)
    saved = [decode(one, states, tree["optimizer_aliases"]) for one in tree["optimizers"]]
    if len(saved) != len(optimizers):
        raise CheckpointError(
            f"the checkpoint {place} holds {len(saved)} optimizers; there are {len(optimizers)}",
            hint="prepare the same models and optimizers together",
        )
    for one, state in zip(optimizers, saved, strict=True):
        one.check_state_dict(state)
    # from here on nothing can be refused any more
    for module, state in zip(models, loaded, strict=True):
        module.load_state_dict(state)
    for one, state in zip(optimizers, saved, strict=True):
        one.load_state_dict(state)
    session.scaler.state.copy_(torch.tensor(tree["machine"], dtype=torch.float64))
    session.masters.verify(session.masters.remainders)
    for guard in session.guards:  # a compiled forward does not watch anew, an eager one would
        guard.watch()
    _set_generators(decode(tree["generators"], states, tree["optimizer_aliases"]))
    extra: dict[str, Any] = decode(tree["extra"], states, tree["optimizer_aliases"])
    return extra


def _lists(
    model: Any, optimizer: Any, session: Session
) -> tuple[list[nn.Module], list[PreparedOptimizer]]:
    """Bring models and optimizers into lists; refuse others than were prepared together."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if [id(m) for m in models] != [id(m) for m in session.models] or (
        [id(o) for o in optimizers] != [id(o) for o in session.optimizers]
    ):
        raise CheckpointError(
            "a checkpoint holds all models and optimizers of one prepare() call; these are not "
            "they",
            hint="pass model and optimizer as prepare() returned them",
        )
    return models, optimizers


def _check_models(
    models: Sequence[nn.Module], loaded: Sequence[dict[str, Any]], place: Path
) -> None:
    """Refuse the state of another model, naming where it parts."""
    if len(models) != len(loaded):
        raise CheckpointError(
            f"the checkpoint {place} holds {len(loaded)} models; there are {len(models)}",
            hint="prepare the same models together",
        )
    for model, state in zip(models, loaded, strict=True):
        here = model.state_dict()
        for key in dict.fromkeys([*here, *state]):
            mine, theirs = _kind(here, key), _kind(state, key)
            if mine != theirs:
                raise CheckpointError(
                    f"the checkpoint {place} is of another model: {key} is {theirs} in the "
                    f"checkpoint and {mine} in the model",
                    hint="build the model as it was when the checkpoint was saved",
                )


def _kind(state: dict[str, Any], key: str) -> str:
    """Say what stands under a key: its shape and dtype, for tensors."""
    if key not in state:
        return "absent"
    value = state[key]
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return "no tensor"


# --- files ----------------------------------------------------------------------------------


def _fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _sync(path: Path) -> None:
    """Force a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _heal(root: Path) -> None:
    """Clear away what an interrupted save left; a step that had made room comes back.

    Only a save does this: a load may run beside the process that saves.
    """
    for part in root.glob(".step-*"):
        target = root / part.name[1:].removesuffix(".old")
        if part.name.endswith(".old") and not target.exists():
            part.rename(target)
        elif part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def _point(root: Path, name: str) -> None:
    """Replace ``latest``."""
    part = root / f".step-latest.{os.getpid()}"
    part.write_text(name + "\n")
    _sync(part)
    part.replace(root / "latest")


def _latest(root: Path) -> str | None:
    """Read ``latest``."""
    try:
        return (root / "latest").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _find(folder: Path) -> Path:
    """Find the step folder that is meant."""
    if (folder / "manifest.json").is_file():
        return folder
    name = _latest(folder)
    if name is None or not _STEP.fullmatch(name):
        there = sorted(p.name for p in folder.glob("step-*")) if folder.is_dir() else []
        raise CheckpointError(
            f"there is no checkpoint in {folder}: no readable 'latest'",
            hint=f"name one of them: {', '.join(there)}" if there else "look at the path",
        )
    # a save of the same step was killed while the old one had made room for the new
    aside = folder / f".{name}.old"
    return aside if aside.is_dir() and not (folder / name).exists() else folder / name


def _read(place: Path) -> dict[str, Any]:
    """Check every file against the manifest, and read the tree."""

    def refuse(what: str) -> CheckpointError:
        others = sorted(
            p.name for p in place.parent.glob("step-*") if p != place and p.name != place.name
        )
        return CheckpointError(
            f"the checkpoint {place} cannot be read whole: {what}; nothing was loaded",
            hint=f"load another one: {', '.join(str(place.parent / o) for o in others)}"
            if others
            else "there is no other checkpoint beside it",
        )

    if not place.is_dir():
        raise refuse("the folder is missing")
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        expected = manifest["files"]
        if manifest["schema"] > _SCHEMA:
            raise refuse(f"its schema {manifest['schema']} is newer than {_SCHEMA}")
        for name in _FILES:
            path = place / name
            if not path.is_file():
                raise refuse(f"{name} is missing")
            size = path.stat().st_size
            if size != expected[name]["bytes"]:
                raise refuse(f"{name} has {size} bytes of {expected[name]['bytes']}")
            if _fingerprint(path)["sha256"] != expected[name]["sha256"]:
                raise refuse(f"{name} was changed: its SHA-256 is not the manifest's")
        tree: dict[str, Any] = json.loads((place / "state.json").read_text())
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise refuse(f"its manifest is damaged ({error})") from error
    return tree


# --- generators -----------------------------------------------------------------------------


def _generators() -> dict[str, Any]:
    """Read the states of torch's, Python's and, if it is in use, NumPy's generators."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (name, [int(key) for key in keys], *rest)
    return states


def _set_generators(states: dict[str, Any]) -> None:
    """Set the generators whose states were saved."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        import numpy  # only where the saved run used it

        numpy.random.set_state(states["numpy"])
