from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import demo
import pytest

ROOT = Path(__file__).resolve().parents[2]


class FakeWorker:
    """Answers as a worker does, and is interrupted or dies at a given step."""

    made: list[FakeWorker]
    trouble: tuple[str, int, BaseException | None]

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self.steps, self.closed = name, 0, False
        FakeWorker.made.append(self)

    def ask(self, request: str) -> dict[str, Any]:
        if request == "validate":
            return {"val_loss": 2.5}
        if request == "finish":
            sizes = {"weights": 4e6, "gradients": 3e6, "states": 2e6, "saved": 1e6}
            share = 2 if self.name == "fp32" else 1
            return {**{kind: share * size for kind, size in sizes.items()}, "rss": 5e8}
        self.steps += 1
        name, step, trouble = FakeWorker.trouble
        if trouble is not None and (self.name, self.steps) == (name, step):
            raise trouble
        seconds = {"fp32": 2.0, "bf16": 1.0, demo.AUTOCAST: 12.0}[self.name]
        return {"seconds": seconds, "loss": 3.0, "applied": self.steps > 1}

    def words(self) -> str:
        return "[bf16] on this CPU"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def run_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(trouble: Any, *arguments: str) -> tuple[int, str]:
        where = trouble if isinstance(trouble, tuple) else ("bf16", 3, trouble)
        FakeWorker.made, FakeWorker.trouble = [], where
        monkeypatch.setattr(demo, "Worker", FakeWorker)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("sys.argv", ["demo.py", "--recipes", "bf16", *arguments])
        return demo.main(), capsys.readouterr().out

    return run


def rows_of(name: str, output: str) -> list[list[str]]:
    rows = [line for line in output.splitlines() if line.startswith(f"│ {name} ")]
    return [[cell.strip() for cell in row.strip("│").split("│")][1:] for row in rows]


def test_the_tables_have_ratios_sums_and_skips(run_demo: Any) -> None:
    code, output = run_demo(None, "--steps", "10", "--batch", "2", "--context", "50")
    assert code == 0
    heads = [line.strip("┃").split("┃")[1:] for line in output.splitlines() if "┃" in line]
    assert [[cell.strip() for cell in line] for line in heads] == [
        ["train loss", "val loss", "tokens/s", "x fp32", "steps", "skipped"],
        ["weights", "grads", "states", "saved", "sum", "x fp32", "peak RSS"],
    ]
    assert rows_of("bf16", output) == [
        ["3.000", "2.500", "100", "2.00", "10", "1"],
        ["4.0", "3.0", "2.0", "1.0", "10.0", "0.50", "500"],
    ]
    # torch.autocast stops after twenty seconds: two steps of twelve
    assert rows_of(demo.AUTOCAST, output)[0] == ["-", "-", "8", "0.17", "2", "1"]
    assert "[bf16] on this CPU" in output
    assert all(worker.closed for worker in FakeWorker.made)


def test_a_table_fits_into_80_columns(run_demo: Any) -> None:
    _, output = run_demo(None, "--steps", "3")
    assert "…" not in output
    assert max(len(line) for line in output.splitlines()) <= 80


def test_ctrl_c_prints_what_was_measured_so_far(run_demo: Any) -> None:
    code, output = run_demo(KeyboardInterrupt(), "--steps", "10", "--no-autocast")
    assert code == 130
    assert "interrupted" in output
    assert rows_of("fp32", output)[0] == ["3.000", "-", "512", "1.00", "3", "1"]
    assert rows_of("bf16", output)[0][3:] == ["2.00", "2", "1"]
    assert all(worker.closed for worker in FakeWorker.made)


def test_ctrl_c_before_the_first_step_prints_no_table(run_demo: Any) -> None:
    code, output = run_demo(("fp32", 1, KeyboardInterrupt()), "--steps", "10", "--no-autocast")
    assert code == 130
    assert "│" not in output


def test_a_slow_machine_ends_the_run_early_and_is_told(run_demo: Any) -> None:
    code, output = run_demo(None, "--steps", "1000", "--no-autocast", "--seconds", "30")
    assert code == 0
    # rounds of three seconds each: ten of them
    assert "stopped after 10 of 1000 steps" in output
    assert rows_of("bf16", output)[0][1] == "2.500"


def test_a_worker_that_dies_is_quoted(run_demo: Any) -> None:
    code, output = run_demo(demo.WorkerDiedError("it said: out of memory"), "--steps", "10")
    assert code == 1
    assert "it said: out of memory" in output
    assert all(worker.closed for worker in FakeWorker.made)


def test_it_runs_as_make_demo_runs_it() -> None:
    sizes = ["--layers", "1", "--width", "32", "--context", "16", "--batch", "2", "--steps", "3"]
    command = [sys.executable, "examples/demo.py", "--recipes", "fp16", "--no-autocast", *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 3/3" in done.stdout
    assert len(rows_of("fp16", done.stdout)) == 2
    assert done.stderr == ""
