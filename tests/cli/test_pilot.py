"""``narrowgate pilot`` as a person meets it: exit codes, what is printed, Ctrl-C, sudden death."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from narrowgate import cli
from narrowgate.pilot.judge import read_verdict, recompute
from narrowgate.pilot.ledger import Ledger
from narrowgate.records import layout
from narrowgate.records.files import read_json
from pilot import fake

# What a shell with job control does for what it starts: Ctrl-C is not ignored.
MAIN = """
import signal, sys
from narrowgate.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
NARROWGATE = [sys.executable, "-c", MAIN]
BEGIN = ["pilot", "--", *fake.COMMAND]
RESUME = ["pilot", "--resume"]


def start(here: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command with its messages in a file, so that no pipe holds it up."""
    with (here / "out").open("w") as out, (here / "err").open("w") as err:
        return subprocess.Popen([*NARROWGATE, *arguments], cwd=here, stdout=out, stderr=err)


def narrowgate(here: Path, *arguments: str) -> tuple[int, str, str]:
    code = start(here, *arguments).wait()
    return code, (here / "out").read_text(), (here / "err").read_text()


@pytest.fixture
def inside(tmp_path, monkeypatch, capsys):
    """Run the command in this process, which is quicker, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        return cli.main(list(arguments)), *capsys.readouterr()

    return run


def folder_of(here: Path) -> Path:
    """The only pilot's folder."""
    (folder,) = (here / ".narrowgate" / "pilots").iterdir()
    return folder


def found(folder: Path):
    """All that a verdict says but for times, attempts and hashes of files."""
    return [
        (
            *(candidate.recipe, candidate.outcome, candidate.error),
            *(candidate.plan_hash, candidate.data, candidate.num_runs),
            candidate.gates,
        )
        for candidate in read_verdict(folder).candidates
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The verdict of a pilot that nothing happened to."""
    here = tmp_path_factory.mktemp("undisturbed")
    fake.write(here)
    code, out, err = narrowgate(here, *BEGIN)
    assert code == 3, err
    return here, out, err


def test_a_whole_pilot_ends_with_its_verdict_a_page_and_the_head_of_the_ledger(undisturbed):
    here, out, err = undisturbed
    folder = folder_of(here)
    assert [candidate[:2] for candidate in found(folder)] == [("bf16", "pass"), ("fp16", "fail")]
    ledger = Ledger(here / ".narrowgate" / layout.LEDGER)
    assert [entry.kind for entry in ledger.entries()] == ["pilot", "verdict", "verdict"]
    page = folder.relative_to(here) / layout.REPORT
    assert out.endswith(f"report: {page}\nledger: {ledger.head}\n")
    assert (here / page).is_file()
    lines = err.splitlines()
    assert lines[0] == f"pilot {folder}: 9 runs"
    assert lines[1].startswith("[1/9] fp32, seed 0: done in ")
    assert lines[2].startswith("the rest is likely to take ")
    assert lines[-1].startswith("[9/9] fp32, seed 2: done in ")
    assert recompute(folder) == read_verdict(folder)


def test_a_finished_pilot_resumed_says_the_same_and_enters_nothing_twice(
    undisturbed, inside, monkeypatch
):
    here, out, _ = undisturbed
    monkeypatch.chdir(here)
    assert inside(*RESUME)[:2] == (3, out)
    assert inside(*RESUME, str(folder_of(here)))[:2] == (3, out)
    assert inside(*RESUME, str(folder_of(here)), "--", *fake.COMMAND)[:2] == (3, out)
    assert len(Ledger(here / ".narrowgate" / layout.LEDGER).entries()) == 3


@pytest.mark.parametrize(
    ("behave", "arguments", "code"),
    [
        ({}, ["--only", "bf16"], 0),
        ({}, ["--only", "bf16", "--seeds", "2"], 4),
        ({"bf16@1": "crash"}, ["--only", "bf16"], 4),
        ({"bf16@1": "other-data"}, ["--only", "bf16"], 2),
        ({"bf16@1": "nan"}, ["--only", "bf16"], 3),
        ({"fp32": "crash"}, [], 5),
    ],
    ids=["pass", "few seeds", "one crash", "other data", "nan", "all crash"],
)
def test_the_exit_code_says_how_it_came_out(tmp_path, behave, arguments, code, inside):
    fake.write(tmp_path, behave)
    got, out, err = inside("pilot", *arguments, "--", *fake.COMMAND)
    assert got == code, err
    assert ("report: " in out) == (code != 5)
    assert "Traceback" not in err or "Traceback: it broke here" in err


def test_a_command_that_always_fails_is_quoted_with_the_way_on(tmp_path, inside):
    fake.write(tmp_path, {"*": "crash"})
    _, out, err = inside(*BEGIN)
    assert out == ""
    assert "error: the baseline fp32 failed: with seed 0 it ended with exit code 3; " in err
    assert "\n    Traceback: it broke here\n" in err
    way_on = f"narrowgate pilot --resume {folder_of(tmp_path).relative_to(tmp_path)}"
    assert f"hint: mend the script, then go on with: {way_on};" in err
    assert not (folder_of(tmp_path) / layout.VERDICT).exists()


def test_more_seeds_are_a_second_look(tmp_path, inside):
    fake.write(tmp_path)
    assert inside("pilot", "--only", "bf16", "--", *fake.COMMAND)[0] == 0
    assert inside(*RESUME, "--seeds", "4")[0] == 0
    (candidate,) = read_verdict(folder_of(tmp_path)).candidates
    assert {gate.gate: gate.look for gate in candidate.gates}["quality.val_loss"] == 2
    assert candidate.gates[0].seeds == (0, 1, 2, 3)


def test_a_stop_at_max_hours_is_no_look(tmp_path, inside):
    fake.write(tmp_path)
    code, out, err = inside("pilot", "--max-hours", "1e-9", "--", *fake.COMMAND)
    assert (code, out) == (4, "")
    assert "error: stopped, without a verdict: " in err
    assert "0 of 9 runs are done and kept" in err
    assert not (folder_of(tmp_path) / layout.VERDICT).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pilot"], "error: no command was given to the pilot"),
        (["pilot", "--", "no-such-program"], "error: the command's program 'no-such-program' was"),
        (["pilot", "--seeds", "0", "--", "true"], "error: --seeds = 0; allowed: 1 to 1,000"),
        (["pilot", "--max-hours", "0", "--", "true"], "error: Invalid value: --max-hours is 0;"),
        (["pilot", "--only", "bf61", "--", "true"], "error: there is no recipe 'bf61'"),
        (["pilot", "--only", "tf32", "--", "true"], "error: --only tf32: that is no candidate"),
        (["pilot", "--config", "none.toml", "--", "true"], "error: there is no none.toml"),
        (["pilot", "--resume", "--only", "bf16"], "error: Invalid value: --only narrows a new"),
        (
            ["pilot", "--resume", "--config", "x.toml"],
            "error: Invalid value: --config is for a new",
        ),
        (["pilot", "python", "train.py", "--sed", "3"], "error: No such option: --sed"),
        (["pilot", "--resume"], "error: there is no pilot below "),
        (["pilot", "--resume", "pilots/typo"], "error: 'pilots/typo' is neither a pilot's folder"),
    ],
)
def test_a_mistake_is_told_with_a_hint_and_makes_nothing(arguments, message, tmp_path, inside):
    fake.write(tmp_path)
    code, out, err = inside(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert "\n\nhint: " in err
    assert not (tmp_path / ".narrowgate").exists()


def test_options_without_the_two_dashes_are_told_where_they_belong(inside):
    hint = "; a command and its own options stand behind --: narrowgate pilot -- COMMAND\n"
    assert inside("pilot", "python", "train.py", "--sed", "3")[2].endswith(f" --help{hint}")
    assert inside("pilot", "--sed", "3", "--", "true")[2].endswith(" --help\n")


def test_limits_edited_before_going_on_are_said_not_to_count(tmp_path, inside):
    fake.write(tmp_path)
    assert inside("pilot", "--only", "bf16", "--", *fake.COMMAND)[0] == 0
    assert "note:" not in inside(*RESUME)[2]
    (tmp_path / "narrowgate.toml").write_text(fake.CONFIG.replace("0.5", "1e-6"))
    code, _, err = inside(*RESUME)
    assert code == 0
    config = folder_of(tmp_path).relative_to(tmp_path) / layout.CONFIG
    assert f"note: the limits are those of {config}, as they stood when the pilot began;" in err


def test_the_help_shows_an_example(inside):
    code, out, _ = inside("pilot", "--help")
    assert code == 0
    assert "Example: narrowgate pilot -- python train.py --seed {seed}" in out


def test_on_a_terminal_the_run_under_way_is_drawn(tmp_path):
    fake.write(tmp_path, {"fp32@1": "hang-after-result", "fp32@2": "crash"})
    main, side = pty.openpty()
    process = subprocess.Popen(
        [*NARROWGATE, "pilot", "--only", "bf16", "--", *fake.COMMAND],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=side, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    os.close(side)
    text, is_told = b"", False
    while True:
        try:
            text += os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        if not is_told and b"step 10 of 10, loss " in text:
            process.send_signal(signal.SIGINT)
            is_told = True
    os.close(main)
    assert process.wait() == 130
    assert b"all runs" in text
    assert b"fp32, seed 1" in text
    assert b"interrupted; 3 of 6 runs are done and kept" in text


# --- Ctrl-C and sudden death: whatever the moment, the pilot goes on to the same verdict ---


def files(here: Path) -> list[str]:
    """What is there of a project's pilots; what is only being written does not count."""
    found = []
    for place, _, names in os.walk(here / ".narrowgate"):
        found += [f"{place}/{name}" for name in names if not name.startswith(".")]
    return found


def stop_at(process, moment: Callable[[], object], number: signal.Signals) -> int:
    """Send a signal when something is there, or find that the command ended before."""
    fake.wait_for(lambda: process.poll() is not None or moment(), "the moment")
    process.send_signal(number)  # of one that has ended it does nothing
    return process.wait()


def go_on(here: Path) -> list[str]:
    """What a person types next: go on, or begin if no pilot was entered yet."""
    has_begun = any(
        entry.kind == "pilot" for entry in Ledger(here / ".narrowgate" / layout.LEDGER).entries()
    )
    return RESUME if has_begun else BEGIN


def ends_as(here: Path, undisturbed: Path) -> None:
    """Go on to the end, undisturbed from now on, and compare."""
    code, _, err = narrowgate(here, *go_on(here))
    assert code == 3, err
    pilot = here / ".narrowgate" / "pilots"
    (folder,) = [path for path in pilot.iterdir() if (path / layout.VERDICT).exists()]
    assert found(folder) == found(folder_of(undisturbed))
    assert recompute(folder) == read_verdict(folder)
    entries = Ledger(here / ".narrowgate" / layout.LEDGER).entries()
    assert [entry.kind for entry in entries] == ["pilot", "verdict", "verdict"]
    assert not fake.living(folder)


MOMENTS = {
    "as it begins": lambda here: files(here),
    "in the first run": lambda here: any(name.endswith("/events.jsonl") for name in files(here)),
    "in a later run": lambda here: len(files(here)) > 40,
    "after the verdict": lambda here: any(name.endswith("/verdict.json") for name in files(here)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment_loses_nothing(tmp_path, moment, undisturbed):
    fake.write(tmp_path)
    process = start(tmp_path, *BEGIN)
    code = stop_at(process, lambda: MOMENTS[moment](tmp_path), signal.SIGINT)
    assert code in ((130, 3) if moment == "after the verdict" else (130,))
    assert "Traceback" not in (tmp_path / "err").read_text()
    ends_as(tmp_path, undisturbed[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_interrupted_may_save(tmp_path, number):
    fake.write(tmp_path, {"fp32@0": "polite"})
    process = start(tmp_path, *BEGIN)
    attempt = ".narrowgate/pilots/*/runs/fp32/0/attempt-1"
    code = stop_at(process, lambda: [*tmp_path.glob(f"{attempt}/hanging.json")], number)
    assert code == 130
    (place,) = tmp_path.glob(attempt)
    assert read_json(place / "interrupted.json")["signal"] == signal.SIGINT
    ending = read_json(place / layout.EXIT)
    assert (ending["how"], ending["code"]) == ("interrupted", 7)
    err = (tmp_path / "err").read_text()
    assert "error: interrupted; 0 of 9 runs are done and kept" in err
    way_on = f"narrowgate pilot --resume {folder_of(tmp_path).relative_to(tmp_path)}"
    assert err.endswith(f"hint: go on with: {way_on}\n")


def test_a_second_ctrl_c_kills_at_once(tmp_path, undisturbed):
    fake.write(tmp_path, {"bf16@0": "stubborn"})
    process = start(tmp_path, *BEGIN)
    attempt = ".narrowgate/pilots/*/runs/bf16/0/attempt-1"
    fake.wait_for(lambda: [*tmp_path.glob(f"{attempt}/hanging.json")], "the run")
    process.send_signal(signal.SIGINT)
    fake.wait_for(lambda: [*tmp_path.glob(f"{attempt}/interrupted.json")], "the first Ctrl-C")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    (place,) = tmp_path.glob(attempt)
    ending = read_json(place / layout.EXIT)
    assert (ending["how"], ending["code"]) == ("interrupted", -signal.SIGKILL)
    assert not fake.living(folder_of(tmp_path))
    fake.write(tmp_path)
    ends_as(tmp_path, undisturbed[0])


def test_a_pilot_that_is_running_cannot_be_resumed_beside(tmp_path):
    fake.write(tmp_path, {"fp32@0": "hang"})
    process = start(tmp_path, *BEGIN)
    fake.wait_for(lambda: any("hanging" in name for name in files(tmp_path)), "the run")
    done = subprocess.run(
        [*NARROWGATE, *RESUME], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "error: another process is running the pilot in " in done.stderr
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_killed_at_twenty_random_moments_it_comes_to_the_same_verdict(tmp_path):
    """Each time it has made a few more files, it is killed; then it goes on."""
    config = fake.CONFIG.replace("seeds = 3", "seeds = 5")
    calm, here = tmp_path / "calm", tmp_path / "killed"
    for folder in (calm, here):
        folder.mkdir()
        fake.write(folder, config=config)
    assert narrowgate(calm, *BEGIN)[0] == 3
    draw = random.Random(20)
    codes = []
    for _ in range(20):
        most = len(files(here)) + draw.randint(1, 8)
        process = start(here, *go_on(here))
        codes.append(stop_at(process, lambda most=most: len(files(here)) >= most, signal.SIGKILL))
        fake.wait_for(lambda: not fake.living(here / ".narrowgate"), "the end of its run")
    assert codes == [-signal.SIGKILL] * 20
    ends_as(here, calm)
    endings = [read_json(Path(name))["how"] for name in files(here) if name.endswith("/exit.json")]
    assert endings.count("interrupted") > 3  # it was killed amid runs, and not only between them


def test_killed_while_it_concludes_it_comes_to_the_same_verdict(tmp_path, undisturbed):
    fake.write(tmp_path)
    process = start(tmp_path, *BEGIN)
    stop_at(process, lambda: MOMENTS["after the verdict"](tmp_path), signal.SIGKILL)
    ends_as(tmp_path, undisturbed[0])


def test_a_killed_pilot_takes_all_of_its_run_along(tmp_path):
    """Also what a shell started, which nobody tells that the shell is gone."""
    fake.write(tmp_path, {"fp32@0": "hang"})
    (tmp_path / "run.sh").write_text(f"{sys.executable} train.py --seed $1\ntrue\n")
    process = start(tmp_path, "pilot", "--", "sh", "run.sh", "{seed}")
    fake.wait_for(lambda: any("hanging" in name for name in files(tmp_path)), "the run")
    folder = folder_of(tmp_path)
    assert len(fake.living(folder)) == 2
    process.kill()
    process.wait()
    fake.wait_for(lambda: not fake.living(folder), "the end of its run")
    assert not (folder / "runs" / "fp32" / "0" / "attempt-1" / layout.EXIT).exists()
