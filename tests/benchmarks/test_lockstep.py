from __future__ import annotations

import os
import sys
from pathlib import Path

import lockstep
import pytest

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import lockstep
count = 0
def step():
    global count
    count += 1
    print("working")
    return {{"count": count}}
def die():
    print("no more paper", file=sys.stderr)
    sys.exit(7)
lockstep.serve({{"step": step, "die": die}})
"""


@pytest.fixture
def worker():
    script = SCRIPT.format(folder=str(Path(lockstep.__file__).parent))
    worker = lockstep.Worker("printer", [sys.executable, "-c", script])
    yield worker
    worker.close()


def test_a_worker_keeps_its_state_and_its_words(worker: lockstep.Worker) -> None:
    assert [worker.ask("step")["count"] for _ in range(3)] == [1, 2, 3]
    assert worker._process.pid != os.getpid()
    worker.close()


def test_what_a_worker_prints_is_no_answer(worker: lockstep.Worker) -> None:
    worker.ask("step")
    with pytest.raises(lockstep.WorkerDiedError) as caught:
        worker.ask("die")
    first, *words = str(caught.value).splitlines()
    assert first == "the worker 'printer' ended with code 7 when asked to die:"
    assert words == ["working", "no more paper"]
    with pytest.raises(lockstep.WorkerDiedError, match="when asked to step"):
        worker.ask("step")


def test_ctrl_c_at_the_terminal_is_not_the_workers(worker: lockstep.Worker) -> None:
    worker.ask("step")
    assert os.getpgid(worker._process.pid) != os.getpgid(0)
