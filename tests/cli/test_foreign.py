"""Strings of somebody else's that would steer a terminal: shown, and never obeyed."""

from __future__ import annotations

import ast
import json

import pytest

from narrowgate import cli
from narrowgate.cli import console, progress
from narrowgate.pilot.conclude import verdict_body
from narrowgate.pilot.judge import judge
from narrowgate.pilot.ledger import Ledger
from narrowgate.records import layout
from narrowgate.records.files import write_json
from pilot import fake, made
from shape import source

# Clears the screen, sets the window's title, rings, turns the text around, ends the line.
STEER = "x\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\x08\ny"
SEEN = r"x\u001b[2J\u001b]0;owned\u0007\u202e\u009b31m\u0008"
#: What of it must reach no terminal.
STEERING = "\x1b\x07\x08\x9b\u202e"


def harmless(*texts: str) -> bool:
    return not any(sign in text for sign in STEERING for text in texts)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path


@pytest.fixture
def decided(here):
    """A ledger that somebody else has committed."""
    folder = made.compared(here, [0.0, 0.001, -0.001])
    ledger = Ledger(here / layout.ROOT / layout.LEDGER)
    ledger.append(
        "pilot", folder.name, {"candidates": [STEER], "baseline": STEER, "seeds": [0, 1, 2]}
    )
    verdict = judge(folder)
    write_json(folder / layout.VERDICT, verdict.to_json())
    (candidate,) = verdict.candidates
    body = verdict_body(verdict, candidate)
    ledger.append("verdict", folder.name, body)
    gates = [{**body["gates"][0], "gate": f"quality.{STEER}", "outcome": "fail"}]
    ledger.append("verdict", "other", {**body, "recipe": STEER, "gates": gates, "outcome": "fail"})
    ledger.append("verdict", "third", {**body, "outcome": None, "error": STEER})
    return folder, ledger


def test_a_ledger_of_somebody_elses_keeps_to_its_lines(decided, capsys):
    _, ledger = decided
    last = ledger.entries()[1].body
    ledger.append("override", "p", {**last, "gate": STEER, "by": STEER, "reason": STEER})
    assert cli.main(["ledger"]) == 0
    out, err = capsys.readouterr()
    assert harmless(out)
    assert err == ""
    assert f"{SEEN}\\ny, by {SEEN}\\ny: {SEEN}\\ny" in out
    assert f"fail: quality.{SEEN}\\ny fail" in out
    assert f"not compared: {SEEN}\\ny" in out
    # A title, three lines of a head, one of each entry, one of the frame, and what follows.
    assert len(out.splitlines()) == 4 + 5 + 1 + 1


def test_a_decision_shows_its_name_in_a_line(here, capsys):
    fake.write(here)
    assert cli.main(["pilot", "--only", "bf16", "--", *fake.COMMAND]) == 0
    capsys.readouterr()
    assert cli.main(["decide", "reject", "bf16", "--by", STEER, "--reason", STEER]) == 0
    out, _ = capsys.readouterr()
    head = Ledger(here / layout.ROOT / layout.LEDGER).head
    assert out == f"entry 3: reject bf16 by {SEEN}\\ny\nhead {head}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["decide", "accept", STEER, "--by", "Ada", "--reason", "because"],
        ["decide", "override", "bf16", STEER, "--by", "Ada", "--reason", "because"],
        ["decide", "accept", "bf16", STEER, "--by", "Ada", "--reason", "because"],
        ["report", STEER],
        ["plan", "m:f", "--recipe", STEER],
        ["pilot", "--", STEER],
        ["pilot", "--resume", STEER],
        ["pilot", "--only", STEER, "--", "true"],
        ["pilot", "--config", STEER, "--", "true"],
        [f"--{STEER}"],
        [STEER],
    ],
)
def test_complaints_show_what_they_quote(arguments, here, capsys):
    fake.write(here)
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert harmless(err)
    assert "owned" in err or "no verdict" in err or "no pilot" in err
    assert err.startswith("error: ")


def test_a_hint_keeps_its_lines(capsys):
    console.complain(f"it is {STEER}", "write this:\n\n[pilot]\n")
    assert capsys.readouterr().err == f"error: it is {SEEN}\ny\n\nhint: write this:\n\n[pilot]\n\n"


def test_tables_show_it_in_titles_heads_and_cells(here, capsys):
    console.print_table(STEER, [STEER], [[STEER]])
    out, _ = capsys.readouterr()
    assert harmless(out)
    assert out.count("owned") == 3


def test_progress_shows_it(capsys):
    observer = progress.Lines()
    observer.noted(STEER)
    observer.say(STEER)
    err = capsys.readouterr().err
    assert harmless(err)
    assert err.count("owned") == 2


def test_a_plan_shows_it(here, capsys, monkeypatch):
    parameter = {
        "fqn": STEER, "owners": [{"module": "", "name": STEER}], "shape": [4, 8], "dtype": "fp32",
        "trainable": True, "optimized": True, "shares_storage_with": None,
    }  # fmt: skip
    module = {"fqn": "", "kind": "Linear", "class_name": STEER, "parametrized": False}
    model = {"schema": 1, "device": "cpu", "modules": [module], "params": [parameter]}
    monkeypatch.setattr("narrowgate.cli.plan.ask_engine", lambda *_: model)
    for arguments in ([], ["--diff", "fp16"], ["--json"], ["--diff", "fp16", "--json"]):
        assert cli.main(["plan", "m:f", *arguments]) == 0
    out, err = capsys.readouterr()
    assert harmless(out, err)
    assert "owned" in out


def test_what_a_script_reports_steers_no_terminal(here, capsys):
    """From the metric's name to the verdict, the page's line and the notes on the way."""
    steer = json.dumps(STEER)
    fake.write(here, {"bf16@2": "crash"})
    script = fake.SCRIPT.replace(
        'if does == "nan":',
        f'metrics[{steer}] = 1.0\nslices[{steer}] = dict(val_loss=val)\nif does == "nan":',
    )
    (here / "train.py").write_text(script)
    config = fake.CONFIG.replace("json]\n", 'json]\nmargin = 0.5\n[quality.val_loss.slices."*"]\n')
    (here / "narrowgate.toml").write_text(config)
    cli.main(["pilot", "--only", "bf16", "--", *fake.COMMAND])
    cli.main(["report"])
    cli.main(["ledger"])
    out, err = capsys.readouterr()
    assert harmless(out, err)
    assert out.count(f"val_loss/{SEEN}") >= 3
    (here / "narrowgate.toml").write_text(config.replace("val_loss", "loss"))
    assert cli.main(["pilot", "--only", "bf16", "--", *fake.COMMAND]) == 2
    out, err = capsys.readouterr()
    assert harmless(out, err)
    assert "it reported" in err
    assert "owned" in err


def test_nothing_is_printed_but_through_the_console():
    """One place to make foreign strings harmless; a print beside it would be a hole."""
    allowed = {
        ("narrowgate.cli", "print"),  # before rich is known to be there, and of our own words
        ("narrowgate.cli.console", "print"),
        ("narrowgate.cli.console", "Console"),
        ("narrowgate.cli.progress", "Console"),
        ("narrowgate.cli.streams", "print"),  # what the system calls the error
    }
    found = set()
    for module, path in source.modules().items():
        if not module.startswith("narrowgate.cli"):
            continue
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in {"print", "Console", "echo", "secho", "print_exc"}:
                    is_method = isinstance(node.func, ast.Attribute) and name == "print"
                    if not is_method:
                        found.add((module, name))
    assert found == allowed
