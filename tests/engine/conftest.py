"""Every test of the engine starts and ends with torch's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from narrowgate.engine import cpu
from narrowgate.records import script


@pytest.fixture(autouse=True)
def own_kernels():
    torch.manual_seed(0)
    yield
    if cpu.installed():
        cpu.uninstall()


@pytest.fixture
def no_run_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody asks for a run, none is under way, and none is left."""
    monkeypatch.delenv(script.VARIABLE, raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(script._State, "is_silent", False)
    yield
    script.close()


@pytest.fixture
def pilot(no_run_is_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run that a pilot asks for; the test writes its request there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(script.VARIABLE, str(tmp_path / "run"))
    return tmp_path / "run"
