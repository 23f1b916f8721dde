"""The examples are scripts: their folder goes on the path, and torch's own kernels come back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]


@pytest.fixture(autouse=True)
def own_kernels() -> Iterator[None]:
    from narrowgate.engine import cpu

    yield
    cpu.uninstall()
