"""Of the ranks that train together rank 0 records, whoever starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowgate.records import load_run
from records import asked

SCRIPT = Path(__file__).with_name("ranks_run.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("start", [[*TORCHRUN, str(SCRIPT), "torchrun"], [str(SCRIPT), "spawn"]])
def test_rank_0_records_and_the_others_are_silent(tmp_path: Path, start: list[str]) -> None:
    run = asked.folder(tmp_path / "run", recipe="bf16", seed=0)
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    environment = {k: v for k, v in os.environ.items() if k not in names}
    done = subprocess.run(
        [sys.executable, *start],
        cwd=tmp_path,
        env={**environment, "NARROWGATE_RUN": str(run), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = load_run(run)
    assert found.faults == ()
    assert found.steps.step == (1, 2, 3)
    assert [line.values["rank"] for line in found.logs] == [0.0, 0.0, 0.0]
    assert found.result is not None
    assert found.result.metrics == {"rank": 0.0}
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "rendezvous"}
