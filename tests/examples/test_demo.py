"""The demo around a pilot that is faked, and once around one that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import demo
import pytest

from narrowgate.pilot.judge import judge
from narrowgate.records import layout
from narrowgate.records.files import write_json
from pilot import made

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pilots(tmp_path, monkeypatch):
    """Two examples whose pilots are given: how they end, and how much worse bf16 is."""

    def give(*endings):
        given = iter(endings)

        def pilot(name):
            code, differences, spoil = next(given)
            if differences is None:
                return code, None
            folder = made.compared(tmp_path, differences, name=f"{name}-pilot")
            write_json(folder / layout.VERDICT, judge(folder).to_json())
            (folder / layout.REPORT).write_text("page")
            spoil(folder)
            return code, folder

        monkeypatch.setattr(demo, "pilot", pilot)
        return demo.main()

    return give


def whole(folder):
    pass


def summary_of(output):
    return output.partition("\n== Verdicts: ")[2].splitlines()[1:]


def test_whatever_the_verdicts_it_ends_with_0_if_all_is_there(pilots, capsys):
    assert pilots((0, [0.001, 0.002, 0.0, 0.001, 0.003], whole), (3, [0.5] * 5, whole)) == 0
    lines = summary_of(capsys.readouterr().out)
    assert lines[0] == "A GPT on the source text of Python's library, against fp32, 5 seeds:"
    assert lines[1].split() == ["bf16", "pass", "val_loss", "+0.0014,", "margin", "0.0100"]
    assert lines[2].endswith("gpt-pilot/report.html")
    assert lines[4].split()[:2] == ["bf16", "fail"]
    assert lines[4].endswith(" val_loss +0.5000, margin 0.0100; quality.val_loss")
    assert lines[5].endswith("resnet-pilot/report.html")
    assert len(lines) == 6


def test_a_run_without_a_result_is_named_and_it_ends_with_1(pilots, capsys):
    def lose_one(folder):
        (made.layout.attempts(folder, "bf16", 3)[-1] / layout.RESULT).unlink()

    assert pilots((4, [0.0] * 5, lose_one), (0, [0.0] * 5, whole)) == 1
    assert "  without a result: bf16, seed 3\n" in capsys.readouterr().out


def test_a_page_that_was_not_written_is_said_and_it_ends_with_1(pilots, capsys):
    def lose_page(folder):
        (folder / layout.REPORT).unlink()

    assert pilots((0, [0.0] * 5, whole), (1, [0.0] * 5, lose_page)) == 1
    assert "  report: not written\n" in capsys.readouterr().out


def test_a_pilot_without_a_verdict_does_not_keep_the_other_from_running(pilots, capsys):
    assert pilots((5, None, whole), (0, [0.0] * 5, whole)) == 1
    output = capsys.readouterr().out
    assert "no verdict; `narrowgate pilot` ended with 5" in output
    assert "resnet-pilot/report.html" in output


def test_an_interrupted_pilot_is_the_last(pilots, capsys):
    assert pilots((130, None, whole)) == 130
    assert "Verdicts" not in capsys.readouterr().out


# --- a pilot that runs ---------------------------------------------------------------------------

SCRIPT = """
import sys
import time
import torch
import narrowgate as ng

seed = ng.seed(int(sys.argv[2]))
model = torch.nn.Linear(4, 1)
model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.backward(loss)
    optimizer.step()
if "{wait}":
    open("is_waiting", "w").close()
    time.sleep(60)
ng.result(val_loss=loss)
"""
CONFIG = """
[pilot]
candidates = ["bf16"]
seeds = 1

[quality.val_loss]
better = "lower"
margin = 0.01
"""
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import demo
demo.FOLDER, demo.EXAMPLES = Path.cwd(), {"mine": "A line"}
sys.exit(demo.main())
"""


def start(folder: Path, wait: str) -> subprocess.Popen[str]:
    (folder / "mine.py").write_text(SCRIPT.replace("{wait}", wait))
    (folder / "mine.toml").write_text(CONFIG)
    command = [sys.executable, "-c", DRIVER, str(ROOT / "examples")]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def test_it_runs_pilots_by_the_command_and_sums_them_up(tmp_path):
    process = start(tmp_path, wait="")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    summary = summary_of(output)
    assert summary[0] == "A line, against fp32, 1 seeds:"
    assert summary[1].split()[:2] == ["bf16", "inconclusive"]
    assert Path(tmp_path, summary[2].removeprefix("  report: ")).is_file()


def test_ctrl_c_reaches_the_pilot_which_says_how_to_go_on(tmp_path):
    process = start(tmp_path, wait="yes")
    try:
        while not (tmp_path / "is_waiting").exists() and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, output + errors
    assert "narrowgate pilot --resume" in errors
    assert "Verdicts" not in output
