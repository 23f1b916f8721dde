"""30 steps equal 15, a save, a new process, and 15 more: bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("resume_run.py")
COMBINATIONS = [
    f"{recipe}-{optimizer}"
    for recipe in ("bf16", "fp16", "bf16-mixed", "fp16-mixed", "fp32")
    for optimizer in ("adamw", "sgd")
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    path = os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)])
    for mode in ("whole", "rest"):
        subprocess.run(
            [sys.executable, str(SCRIPT), mode, str(folder)],
            check=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    return folder


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_resumed_run_equals_the_uninterrupted_one_exact(runs: Path, combination: str) -> None:
    whole = load_file(runs / combination / "whole.safetensors")
    rest = load_file(runs / combination / "rest.safetensors")
    assert whole.keys() == rest.keys()
    different = [key for key in whole if not same_bits(whole[key], rest[key])]
    assert different == []


def test_fp16_skipped_on_the_way(runs: Path) -> None:
    for combination in COMBINATIONS:
        skips = int((runs / combination / "skips").read_text())
        assert (skips > 0) == ("fp16" in combination), combination


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bit for bit."""
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.dtype == other.dtype and torch.equal(*flat)
