"""What a reader may copy from a docstring works."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
MODULES = sorted(
    ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for path in (SRC / "narrowgate").rglob("*.py")
    if (parts := path.relative_to(SRC).with_suffix("").parts)[-1] != "__main__"
    and ">>> " in path.read_text(encoding="utf-8")
)


@pytest.fixture(autouse=True)
def process_left_alone(tmp_path, monkeypatch):
    """Run in an empty folder; give back torch's generator, default dtype and CPU kernels after."""
    import torch

    from narrowgate.engine import cpu

    monkeypatch.chdir(tmp_path)
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(default)
    if cpu.installed():
        cpu.uninstall()


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted > 0
