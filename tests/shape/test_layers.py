"""Who may import whom. The table is the project's architecture; a new edge is a decision."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shape import source

DATA = {"formats", "plan", "records", "policies"}
MAY_IMPORT = {
    "errors": set(),
    "formats": {"errors"},
    "plan": {"errors", "formats"},
    "records": {"errors"},
    "policies": {"errors", "records"},
    "ops": {"errors", "formats"},
    "engine": {"errors", "ops"} | DATA,
    "pilot": {"errors"} | DATA,
    "report": {"errors"} | DATA,
    "cli": {"errors", "pilot", "report"} | DATA,
}
WITH_TORCH = {"ops", "engine"}


def faults(module: str, path: Path, nodes: ast.Module) -> list[str]:
    """Imports of one module that the table does not allow."""
    room = module.split(".")[1]
    found = []
    for name in sorted(source.imports(module, path, nodes)):
        parts = name.split(".")
        if parts[0] == "torch" and room not in WITH_TORCH:
            found.append(f"{module}: {name} in a torch-free room")
        if parts[0] != "narrowgate" or name in ("narrowgate", "narrowgate.__version__"):
            continue  # the root holds the version and the lazy public names
        if parts[1] != room and parts[1] not in MAY_IMPORT[room]:
            found.append(f"{module}: {name}, but {room} may import {sorted(MAY_IMPORT[room])}")
    return found


ROOMS = {name: path for name, path in source.modules().items() if name != "narrowgate"}


def test_every_room_is_in_the_table():
    assert {name.split(".")[1] for name in ROOMS} <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", ROOMS)
def test_imports_obey_the_table(module):
    path = ROOMS[module]
    assert faults(module, path, source.tree(path)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "def f():\n    from torch import nn",
        "import importlib\nimportlib.import_module('torch.nn')",
        "from narrowgate.engine import prepare",
        "from narrowgate import ops",
        "from ..engine import prepare",
        "from .. import ops",
        "def f():\n    import narrowgate.ops.split",
    ],
)
def test_the_walk_sees_a_wrong_import(line):
    path = source.PACKAGE / "plan" / "resolve.py"
    assert len(faults("narrowgate.plan.resolve", path, ast.parse(line))) == 1
