"""`narrowgate decide` and `narrowgate ledger` as a person meets them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from narrowgate import cli
from narrowgate.pilot.begin import write_limits
from narrowgate.pilot.conclude import verdict_body
from narrowgate.pilot.folder import read_pilot
from narrowgate.pilot.judge import judge
from narrowgate.pilot.ledger import Ledger
from narrowgate.records import layout
from narrowgate.records.files import write_json
from pilot import made

SAID = ["--by", "Ada", "--reason", "because"]


def concluded(root, *, name=made.NAME, add=0.0):
    """A pilot that has run, as its end leaves it."""
    folder = made.pilot(root, name=name)
    made.runs(folder, "fp32")
    made.runs(folder, "bf16", add=add)
    ledger = Ledger(root / layout.ROOT / layout.LEDGER)
    write_limits(ledger, folder, read_pilot(folder))
    verdict = judge(folder)
    write_json(folder / layout.VERDICT, verdict.to_json())
    for candidate in verdict.candidates:
        ledger.append("verdict", name, verdict_body(verdict, candidate))
    return folder, ledger


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def test_accepting_prints_the_entry_and_the_head(here, capsys):
    _, ledger = concluded(here)
    assert cli.main(["decide", "accept", "bf16", *SAID]) == 0
    assert capsys.readouterr() == (f"entry 3: accept bf16 by Ada\nhead {ledger.head}\n", "")
    assert ledger.entries()[-1].body["reason"] == "because"


def test_a_fail_is_overridden_and_accepted(here, capsys):
    concluded(here, add=1.0)
    assert cli.main(["decide", "accept", "bf16", *SAID]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: bf16 cannot be accepted: quality.val_loss: fail\n\nhint: ")
    assert cli.main(["decide", "override", "bf16", "quality.val_loss", *SAID]) == 0
    assert cli.main(["decide", "accept", "bf16", *SAID]) == 0
    assert capsys.readouterr().out.count("head ") == 2


def test_rejecting_needs_no_pass(here, capsys):
    concluded(here, add=1.0)
    assert cli.main(["decide", "reject", "bf16", *SAID]) == 0
    assert capsys.readouterr().out.startswith("entry 3: reject bf16 by Ada\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["override", "bf16", *SAID], "override needs the gate to override"),
        (["accept", "bf16", "quality.val_loss", *SAID], "accept takes no gate, and got 'quality.v"),
        (["accept", "bf16"], "--by is ''"),
        (["accept", "bf16", "--by", "Ada"], "--reason is ''"),
        (["acept", "bf16", *SAID], "Invalid value for 'accept|reject|override': "),
        (["accept", "bf61", *SAID], "there is no recipe 'bf61'"),
        (["accept", "bf16", *SAID, "--pilot", "nowhere"], "there is no nowhere"),
    ],
)
def test_wrong_usage_is_told_and_decides_nothing(arguments, told, here, capsys):
    _, ledger = concluded(here)
    assert cli.main(["decide", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {told}")
    assert "\n\nhint: " in err
    assert len(ledger.entries()) == 2


def test_the_pilot_begun_last_is_meant_or_the_one_named(here, capsys):
    # Begun last, whatever the clock said: names are in order of time, the ledger in order of deed.
    first, ledger = concluded(here, name="20270101T000000-00000000")
    concluded(here, name="20260101T000000-00000000", add=1.0)
    assert cli.main(["decide", "accept", "bf16", *SAID]) == 2
    assert cli.main(["decide", "accept", "bf16", *SAID, "--pilot", str(first)]) == 0
    assert ledger.entries()[-1].pilot == first.name
    assert cli.main(["decide", "accept", "bf16", *SAID, "--pilot", f"{first}/"]) == 0


def test_without_any_pilot_the_way_to_one_is_told(here, capsys):
    assert cli.main(["decide", "accept", "bf16", *SAID]) == 2
    assert "narrowgate pilot -- python train.py" in capsys.readouterr().err


def test_one_changed_byte_of_evidence_forbids_a_decision(here, capsys):
    folder, ledger = concluded(here)
    path = layout.attempt_folder(folder, "fp32", 0, 1) / layout.EVENTS
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert cli.main(["decide", "accept", "bf16", *SAID]) == 2
    assert "runs/fp32/0/attempt-1/events.jsonl was changed" in capsys.readouterr().err
    assert len(ledger.entries()) == 2


def test_the_ledger_shows_who_decided_what_and_what_lapsed(here, capsys):
    folder, ledger = concluded(here)
    reason = "[bold]passes[/bold] 損失"
    assert cli.main(["decide", "accept", "bf16", "--by", "Ada", "--reason", reason]) == 0
    capsys.readouterr()
    assert cli.main(["ledger"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "20261201T180322-1f2e3d4c: bf16 against fp32, 5 seeds" in out
    assert f"by Ada: {reason}" in out
    assert "lapsed" not in out
    assert f"3 entries, the chain is whole; head {ledger.head}" in out
    verdict = judge(folder)
    body = {**verdict_body(verdict, made.only(verdict)), "torch": "2.14.0", "outcome": "fail"}
    body["gates"][0]["outcome"] = "fail"
    ledger.append("verdict", "later", body)
    body = {**body, "outcome": None, "error": "it cannot be compared"}
    ledger.append("verdict", "last", body)
    assert cli.main(["ledger", "show"]) == 0
    out, _ = capsys.readouterr()
    assert "[lapsed by entry 4: another torch (2.13.0+cpu -> 2.14.0)]" in out
    assert "fail: quality.val_loss fail" in out
    assert "not compared: it cannot be compared" in out


def test_verify_says_that_the_chain_is_whole_or_where_it_breaks(here, capsys):
    _, ledger = concluded(here)
    assert cli.main(["ledger", "verify"]) == 0
    told = f"2 entries, the chain is whole; head {ledger.head}\n"
    assert capsys.readouterr() == (told, "")
    content = bytearray(ledger.path.read_bytes())
    content[40] ^= 1
    ledger.path.write_bytes(content)
    for arguments in (["ledger", "verify"], ["ledger"]):
        assert cli.main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "ledger.jsonl: line 1 was changed" in err


def test_an_empty_ledger_is_told(here, capsys):
    for arguments in (["ledger"], ["ledger", "verify"]):
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out == ".narrowgate/ledger.jsonl has no entries\n"


def test_these_commands_import_neither_torch_nor_scipy(here):
    concluded(here)
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['scipy'] = sys.modules['numpy'] = None\n"
        "from narrowgate.cli import main\n"
        f"codes = [main(['decide', 'accept', 'bf16', *{SAID!r}]), main(['ledger'])]\n"
        "sys.exit(codes != [0, 0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
