"""``narrowgate report``: what it prints and writes, and how it ends."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from narrowgate import cli
from narrowgate.errors import RunError
from narrowgate.pilot.judge import judge
from narrowgate.pilot.ledger import Ledger
from narrowgate.records import layout
from narrowgate.records.files import write_json
from pilot import fake, made
from report import html, on_disk, sample


def judged(folder):
    """Write the verdict of a pilot whose runs are there."""
    write_json(folder / layout.VERDICT, judge(folder).to_json())
    return folder


def compared(root, differences, **options):
    return judged(made.compared(root, differences, **options))


@pytest.fixture
def passing(tmp_path):
    return compared(tmp_path, [0.0, 0.001, -0.001, 0.0005, 0.0])


@pytest.mark.parametrize(
    ("differences", "code", "word"),
    [
        ([0.0, 0.001, -0.001, 0.0005, 0.0], 0, "✓ PASS"),
        ([0.5, 0.501, 0.499, 0.5, 0.5], 3, "✗ FAIL"),
        ([0.0, 0.001], 4, "? INCONCLUSIVE"),
    ],
)
def test_the_exit_code_is_the_verdicts(tmp_path, capsys, differences, code, word):
    folder = compared(tmp_path, differences)
    assert cli.main(["report", str(folder)]) == code
    out, err = capsys.readouterr()
    assert word in out
    assert f"report: {folder / layout.REPORT}" in out
    assert err == ""
    assert html.read(folder / layout.REPORT).text.startswith("Verdict: bf16")


def test_a_candidate_that_could_not_be_compared_ends_with_2(tmp_path, capsys):
    folder = compared(tmp_path, [0.0, 0.0, 0.001], candidate_of={"with_plan": False})
    assert cli.main(["report", str(folder)]) == 2
    out, _ = capsys.readouterr()
    assert "! NOT COMPARED  bf16" in out
    assert (folder / layout.REPORT).exists()


def test_without_a_folder_the_newest_pilot_is_taken(passing, tmp_path, capsys, monkeypatch):
    older = passing.with_name("20250101T000000-00000000")
    shutil.copytree(passing, older)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report"]) == 0
    assert passing.name in capsys.readouterr().out
    assert (passing / layout.REPORT).exists()
    assert not (older / layout.REPORT).exists()


def test_the_head_of_the_ledger_is_printed(passing, tmp_path, capsys):
    ledger = Ledger(tmp_path / layout.ROOT / layout.LEDGER)
    entry = ledger.append("pilot", "another", {"command": []})
    assert cli.main(["report", str(passing)]) == 0
    assert f"ledger: {entry.hash}" in capsys.readouterr().out
    assert entry.hash in html.read(passing / layout.REPORT).text


def test_a_copied_folder_gives_the_same_verdict_and_has_no_ledger(passing, tmp_path, capsys):
    copy = tmp_path / "elsewhere" / "and" / "deeper"
    shutil.copytree(passing, copy)
    assert cli.main(["report", str(passing)]) == 0
    here = capsys.readouterr().out
    assert cli.main(["report", str(copy)]) == 0
    there = capsys.readouterr().out
    assert here.replace(str(passing), "") == there.replace(str(copy), "")
    assert "ledger: none beside this folder" in there
    assert "There is no ledger beside this folder" in html.read(copy / layout.REPORT).text


def test_changed_evidence_is_named_and_nothing_is_drawn(passing, capsys):
    events = layout.attempt_folder(passing, "bf16", 1, 1) / layout.EVENTS
    data = bytearray(events.read_bytes())
    data[-5] ^= 1
    events.write_bytes(data)
    assert cli.main(["report", str(passing)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "runs/bf16/1/attempt-1/events.jsonl was changed" in err
    assert not (passing / layout.REPORT).exists()


def test_a_changed_ledger_is_refused(passing, tmp_path, capsys):
    path = tmp_path / layout.ROOT / layout.LEDGER
    Ledger(path).append("pilot", passing.name, {"command": []})
    path.write_text(path.read_text().replace("command", "kommand"))
    assert cli.main(["report", str(passing)]) == 2
    assert "ledger" in capsys.readouterr().err


def test_a_report_can_be_made_again(passing, capsys):
    assert cli.main(["report", str(passing)]) == 0
    page = (passing / layout.REPORT).read_bytes()
    assert cli.main(["report", str(passing)]) == 0
    assert (passing / layout.REPORT).read_bytes() == page


def test_a_folder_that_cannot_be_written_still_prints_the_tables(passing, capsys, monkeypatch):
    def refuse(*_):
        raise RunError("report.html cannot be written: Read-only file system", hint="copy it")

    monkeypatch.setattr("narrowgate.report.write_report", refuse)
    assert cli.main(["report", str(passing)]) == 0
    out, err = capsys.readouterr()
    assert "✓ PASS  bf16" in out
    assert "report:" not in out
    assert err == (
        "error: no page: report.html cannot be written: Read-only file system\n\nhint: copy it\n"
    )


def test_a_run_has_a_page_of_its_own(tmp_path, capsys):
    on_disk.write_run_into(tmp_path / "run", sample.run("fp16", 1, 30))
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "skipped steps" in out
    assert "val_loss" in out
    assert f"report: {tmp_path / 'run' / layout.REPORT}" in out
    assert "One run: fp16 , seed 1" in html.read(tmp_path / "run" / layout.REPORT).text


def test_the_page_of_an_attempt_is_no_new_evidence(passing, capsys):
    attempt = layout.attempt_folder(passing, "bf16", 1, 1)
    assert cli.main(["report", str(attempt)]) == 0
    assert (attempt / layout.REPORT).exists()
    assert cli.main(["report", str(passing)]) == 0, capsys.readouterr().err


def test_all_runs_of_a_pilot_go_to_tensorboard(passing, tmp_path, capsys):
    target = tmp_path / "board"
    assert cli.main(["report", str(passing), "--tensorboard", str(target)]) == 0
    assert f"tensorboard: {target}" in capsys.readouterr().out
    folders = sorted(str(path.relative_to(target)) for path in target.glob("*/*"))
    assert folders == [f"{r}/seed-{seed}" for r in ("bf16", "fp32") for seed in range(5)]
    found = EventAccumulator(str(target / "bf16" / "seed-0"))
    found.Reload()
    assert len(found.Scalars("loss")) == 40


def test_a_run_goes_to_tensorboard(tmp_path, capsys):
    on_disk.write_run_into(tmp_path / "run", sample.run("fp16", 1, 30))
    target = tmp_path / "board"
    assert cli.main(["report", str(tmp_path / "run"), "--tensorboard", str(target)]) == 0
    assert f"tensorboard: {target}" in capsys.readouterr().out
    assert len(list(target.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing is no folder\n\nhint: name one below .narrowgate/pilots or "),
        (".", ". is neither a pilot's folder nor a run's\n\nhint: name one below "),
        ("", "there is no pilot below .narrowgate/pilots\n\nhint: narrowgate pilot -- python "),
    ],
)
def test_a_wrong_folder_is_told_with_the_right_ones(name, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *([name] if name else [])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")


def test_a_pilot_that_has_not_ended_has_no_report(tmp_path, capsys):
    folder = made.compared(tmp_path, [0.0, 0.0, 0.001])
    assert cli.main(["report", str(folder)]) == 2
    assert "has no verdict.json" in capsys.readouterr().err


def test_it_runs_where_torch_cannot_be_imported(passing):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from narrowgate.cli import main\n"
        f"sys.exit(main(['report', {str(passing)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ PASS" in done.stdout


@pytest.fixture
def entered(tmp_path, monkeypatch, capsys):
    """Two pilots that ran here, the later one with the earlier name: the clock went back."""
    monkeypatch.chdir(tmp_path)
    fake.write(tmp_path)
    names = iter(["20301201T000000-aaaaaaaa", "20201201T000000-bbbbbbbb"])
    monkeypatch.setattr(layout, "new_folder_name", lambda: next(names))
    for seeds in ("3", "1"):
        cli.main(["pilot", "--only", "bf16", "--seeds", seeds, "--", *fake.COMMAND])
    capsys.readouterr()
    return tmp_path / layout.ROOT


def test_the_newest_is_the_one_begun_last_whatever_the_clock_said(entered, capsys):
    assert cli.main(["report"]) == 4
    assert "20201201T000000-bbbbbbbb" in capsys.readouterr().out


def test_a_damaged_ledger_takes_no_verdict_away(entered, capsys):
    """Two branches that were merged leave one that no order of lines makes whole."""
    path = entered / layout.LEDGER
    path.write_bytes(path.read_bytes().replace(b"bf16", b"bf61", 1))
    assert cli.main(["report"]) == 2
    out, err = capsys.readouterr()
    assert "✓ PASS  bf16" in out
    assert f"report: .narrowgate/pilots/20301201T000000-aaaaaaaa/{layout.REPORT}" in out
    assert "ledger.jsonl: line 1 was changed" in err


def test_a_verdict_that_the_ledger_does_not_hold_is_not_printed(entered, capsys):
    """Judged again as if it were the first look at other limits."""
    folder = entered / "pilots" / "20301201T000000-aaaaaaaa"
    entries = Ledger(entered / layout.LEDGER).entries()
    (entered / layout.LEDGER).unlink()
    ledger = Ledger(entered / layout.LEDGER)
    for entry in entries:
        body = dict(entry.body)
        if entry.kind == "verdict":
            body["verdict_hash"] = "0" * 64
        ledger.append(entry.kind, entry.pilot, body)
    assert cli.main(["report", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: the ledger holds the verdict 000000000000 of the pilot" in err


def test_a_pilots_folder_may_be_a_link_to_a_large_disk(entered, tmp_path, capsys):
    (entered / "pilots").rename(tmp_path / "large")
    (entered / "pilots").symlink_to(tmp_path / "large")
    assert cli.main(["report"]) == 4
    head = Ledger(entered / layout.LEDGER).head
    assert f"ledger: {head}\n" in capsys.readouterr().out
    said = ["--by", "Ada", "--reason", "because"]
    assert cli.main(["decide", "reject", "bf16", *said]) == 0
