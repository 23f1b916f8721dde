"""DistributedDataParallel around a prepared model: replicas stay equal, and skip together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("ddp_run.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    path = os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)])
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder)],
            env={**os.environ, "PYTHONPATH": path},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    return folder


@pytest.mark.parametrize("recipe", ["bf16", "fp16", "bf16-mixed"])
def test_replicas_are_bit_equal_and_skip_together_exact(ranks: Path, recipe: str) -> None:
    one, other = (load_file(ranks / f"{recipe}-{rank}.safetensors") for rank in range(2))
    assert one["applied"].tolist() == [True, True, True, False, True, True]
    assert all(torch.equal(one[key], other[key]) for key in one)
