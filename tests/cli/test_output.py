"""What happens where the output cannot be written: the work is done all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowgate import cli
from narrowgate.cli.streams import kept_going
from narrowgate.pilot.judge import judge
from narrowgate.records import layout
from narrowgate.records.files import write_json
from pilot import fake, made
from small_disk import mounted

PILOT = ["pilot", "--only", "bf16", "--", *fake.COMMAND]


def narrowgate(here: Path, *arguments: str, shell: str = "", **options) -> subprocess.Popen[bytes]:
    """Start the command, behind a redirection of the shell's if there is one."""
    words = [sys.executable, "-m", "narrowgate.cli", *arguments]
    if shell:
        words = ["sh", "-c", f'exec "$@" {shell}', "sh", *words]
    return subprocess.Popen(words, cwd=here, **options)


def page_of(here: Path) -> bool:
    return len([*here.glob(f"{layout.ROOT}/pilots/*/{layout.REPORT}")]) == 1


@pytest.fixture
def nobody():
    """The writing end of a pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_cannot_be_encoded_is_replaced(tmp_path, encoding):
    fake.write(tmp_path)
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    process = narrowgate(
        tmp_path, *PILOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert b"PASS" in out
    assert b"ledger: " in out
    assert b"Traceback" not in err
    assert page_of(tmp_path)


@pytest.mark.parametrize("which", [["stdout"], ["stderr"], ["stdout", "stderr"]])
def test_a_reader_that_is_gone_stops_nothing(tmp_path, which, nobody):
    fake.write(tmp_path)
    streams = {name: nobody if name in which else subprocess.PIPE for name in ("stdout", "stderr")}
    process = narrowgate(tmp_path, *PILOT, **streams)
    out, err = process.communicate()
    assert process.returncode == 0
    assert page_of(tmp_path)
    assert out is None or b"ledger: " in out
    assert err is None or b"[6/6]" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "shell", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"]
)
def test_an_output_that_was_closed_or_is_full_stops_nothing(tmp_path, shell):
    fake.write(tmp_path)
    process = narrowgate(tmp_path, *PILOT, shell=shell, stdout=subprocess.PIPE)
    process.communicate()
    assert process.returncode == 0
    assert page_of(tmp_path)


def test_a_report_nobody_reads_is_a_page_all_the_same(tmp_path, nobody):
    folder = made.compared(tmp_path, [0.5, 0.501, 0.499])
    write_json(folder / layout.VERDICT, judge(folder).to_json())
    process = narrowgate(tmp_path, "report", stdout=nobody, stderr=subprocess.PIPE)
    _, err = process.communicate()
    assert (process.returncode, err) == (3, b"")
    assert (folder / layout.REPORT).exists()


def test_data_that_could_not_be_written_is_no_success(tmp_path):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >/dev/full', "sh", sys.executable, "-m", "narrowgate.cli",
         "ledger", "verify"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: stdout cannot be written: No space left on device\n"


def test_the_page_is_there_before_anything_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.write(tmp_path)
    seen = []
    monkeypatch.setattr(
        "narrowgate.report.print_verdict", lambda verdict: seen.append(page_of(tmp_path))
    )
    assert cli.main(PILOT) == 0
    assert cli.main(["report"]) == 0
    next(tmp_path.glob(f"{layout.ROOT}/pilots/*/{layout.REPORT}")).unlink()
    assert cli.main(["report"]) == 0
    assert seen == [True, True, True]


def test_the_streams_are_put_back(monkeypatch):
    before = sys.stdout, sys.stderr
    with kept_going():
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before


def test_limits_with_a_byte_order_mark_are_shown_without_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fake.write(tmp_path, config=f"\ufeff{fake.CONFIG}")
    assert cli.main([*PILOT[:3], "--seeds", "1", *PILOT[3:]]) == 4
    (page,) = tmp_path.glob(f"{layout.ROOT}/pilots/*/{layout.REPORT}")
    assert "<pre>[pilot]\n" in page.read_text(encoding="utf-8")


def test_a_disk_that_may_only_be_read_is_told_at_resume(tmp_path, monkeypatch, capsys):
    fake.write(tmp_path)
    root = tmp_path / layout.ROOT
    root.mkdir()
    with mounted(root):
        monkeypatch.chdir(tmp_path)
        cli.main([*PILOT[:3], "--seeds", "1", *PILOT[3:]])
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        capsys.readouterr()
        assert cli.main(["pilot", "--resume"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "may not be written: Read-only file system\n\nhint: " in err
