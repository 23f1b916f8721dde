"""The offline half works where torch cannot be imported at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shape import source
from shape.test_layers import WITH_TORCH

NO_TORCH = "import sys; sys.modules['torch'] = None\n"
OFFLINE = [
    name
    for name in source.modules()
    if name.split(".")[1:2] not in [[room] for room in WITH_TORCH] and not name.endswith("__main__")
]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_torch_free_rooms_import_without_torch():
    done = python(NO_TORCH + "\n".join(f"import {name}" for name in OFFLINE))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_block_on_torch_works():
    assert "ModuleNotFoundError" in python(NO_TORCH + "import torch.nn").stderr


def test_importing_the_package_does_not_import_torch():
    done = python("import sys, narrowgate; print('torch' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["doctor", "--help"], 0),
        (["plan", "--help"], 0),
        (["plan", "module:factory", "--recipe", "bf61"], 2),
        ([], 2),
    ],
)
def test_commands_start_without_torch(arguments, code):
    run = f"from narrowgate.cli import main; sys.exit(main({arguments!r}))"
    done = python(NO_TORCH + run)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


DESCRIPTION = '{"schema": 1, "device": "cpu", "modules": [], "params": []}'


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["doctor", "--json"], "{}"),
        (["plan", "module:factory"], DESCRIPTION),
        (["plan", "module:factory", "--diff", "fp16", "--json"], DESCRIPTION),
    ],
)
def test_commands_run_without_torch_on_their_side(arguments, answer):
    stub = (
        "import subprocess\n"
        "from narrowgate.cli import console, main\n"
        f"done = subprocess.CompletedProcess([], 0, stdout={answer!r})\n"
        "console.subprocess.run = lambda *_, **__: done\n"
    )
    done = python(NO_TORCH + stub + f"sys.exit(main({arguments!r}))")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
