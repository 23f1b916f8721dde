"""One run, from its start to the last process of it."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import pytest

from narrowgate.errors import PilotError
from narrowgate.pilot import launch as launching
from narrowgate.pilot.launch import launch
from narrowgate.pilot.processes import Guard, end_processes
from narrowgate.records import layout
from narrowgate.records.files import read_json
from narrowgate.records.run import Ending
from pilot import fake


class Presses:
    """Ctrl-C, pressed as soon as a file is there, and again as soon as another is."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths

    def __call__(self) -> int:
        return sum(path.exists() for path in self.paths)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt-1"
    folder.mkdir()
    return folder


def python(folder: Path, code: str, *, timeout_s: float = 60, stop=lambda: 0, tick=lambda: None):
    command = [sys.executable, "-I", "-S", "-c", code]
    return launch(command, folder, timeout_s=timeout_s, stop=stop, tick=tick)


def hanging(folder: Path, before: str = "") -> str:
    """A script that does something, says that it hangs, and hangs."""
    return f"""
import os, pathlib, signal, sys, time
folder = pathlib.Path({str(folder)!r})
{before}
(folder / "hanging").touch()
while True:
    time.sleep(600)
"""


def test_what_it_prints_and_its_code_are_kept(folder):
    ending = python(folder, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ending.how, ending.code) == ("ended", 3)
    assert (folder / layout.STDOUT).read_text() == "out\n"
    assert (folder / layout.STDERR).read_text() == "err\n"
    stored = read_json(folder / layout.EXIT)
    assert Ending(how=stored["how"], code=stored["code"], seconds=stored["seconds"]) == ending


def test_it_knows_its_folder_and_has_nothing_to_read_and_a_session_of_its_own(folder):
    python(
        folder,
        "import os, sys; print(os.environ['NARROWGATE_RUN'], repr(sys.stdin.read()),"
        " os.getsid(0) == os.getpid())",
    )
    assert (folder / layout.STDOUT).read_text() == f"{folder} '' True\n"


def test_more_output_than_a_pipe_holds_hangs_nothing(folder):
    python(folder, "print('x' * 1_000_000)")
    assert (folder / layout.STDOUT).stat().st_size == 1_000_001


def test_a_run_that_takes_too_long_is_ended(folder):
    # Ready before the time-out, or not: TERM ends it either way.
    ending = python(folder, "import time; time.sleep(600)", timeout_s=0.05)
    assert (ending.how, ending.code) == ("timeout", -15)


def test_a_run_that_ignores_term_is_killed(folder, monkeypatch):
    monkeypatch.setattr(launching, "_TIMED_OUT", ((0.0, 15), (0.05, 9)))
    here = folder / "hanging"

    def wait_until_it_ignores():
        fake.wait_for(here.exists, "the run")

    code = hanging(folder, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    ending = python(folder, code, timeout_s=0, tick=wait_until_it_ignores)
    assert (ending.how, ending.code) == ("timeout", -9)


def test_ctrl_c_interrupts_and_lets_it_save(folder):
    save = "signal.signal(signal.SIGINT, lambda *_: (print('saved'), sys.exit(7)))"
    ending = python(folder, hanging(folder, save), stop=Presses(folder / "hanging"))
    assert (ending.how, ending.code) == ("interrupted", 7)
    assert (folder / layout.STDOUT).read_text() == "saved\n"


def test_a_second_ctrl_c_kills_at_once_what_ignores_the_first(folder):
    heed_not = "signal.signal(signal.SIGINT, lambda *_: (folder / 'told').touch())"
    stop = Presses(folder / "hanging", folder / "told")
    ending = python(folder, hanging(folder, heed_not), stop=stop)
    assert (ending.how, ending.code) == ("interrupted", -9)


def test_without_a_second_one_it_is_killed_after_a_while(folder, monkeypatch):
    ladder = ((0.0, 2), (0.02, 15), (0.04, 9))
    monkeypatch.setattr(launching, "_INTERRUPTED", ladder)
    ignore = "signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)"
    ending = python(folder, hanging(folder, ignore), stop=Presses(folder / "hanging"))
    assert (ending.how, ending.code) == ("interrupted", -9)


LEAVE = """
import os, pathlib, subprocess, sys, time
child = '''
import os, pathlib, signal, time
{ignore}
pathlib.Path({path!r}).write_text(str(os.getpid()))
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-I", "-S", "-c", child], start_new_session={own}, {env})
while not pathlib.Path({path!r}).exists() or not pathlib.Path({path!r}).read_text():
    time.sleep(0.005)
"""


@pytest.mark.parametrize(
    ("own", "env"),
    [(False, ""), (True, ""), (False, "env={}")],
    ids=["in its group", "in its own session", "without its environment"],
)
def test_what_the_command_leaves_running_ends_with_it(folder, own, env):
    path = str(folder / "left")
    ending = python(folder, LEAVE.format(path=path, own=own, env=env, ignore="pass"))
    assert (ending.how, ending.code) == ("ended", 0)
    number = int(Path(path).read_text())
    fake.wait_for(lambda: not fake.is_alive(number), "its end")


def test_what_is_left_and_ignores_term_is_killed(folder, monkeypatch):
    monkeypatch.setattr(
        launching,
        "end_processes",
        lambda path, hurry: end_processes(path, grace_s=0.05, hurry=hurry),
    )
    path = str(folder / "left")
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    python(folder, LEAVE.format(path=path, own=True, env="", ignore=ignore))
    assert not fake.is_alive(int(Path(path).read_text()))


def test_a_fault_in_whoever_draws_leaves_nothing_running(folder):
    def tick() -> None:
        if (folder / "hanging").exists():
            raise ZeroDivisionError

    code = hanging(folder, f"print(os.getpid(), file=open({str(folder / 'number')!r}, 'w'))")
    with pytest.raises(ZeroDivisionError):
        python(folder, code, tick=tick)
    assert not fake.is_alive(int((folder / "number").read_text()))
    assert not (folder / layout.EXIT).exists()


@pytest.mark.parametrize("content", [None, b"no program\n"])
def test_a_program_that_cannot_be_started_is_told(folder, content):
    program = folder / "program"
    if content is not None:
        program.write_bytes(content)
        program.chmod(0o755)
    with pytest.raises(PilotError, match="cannot be started") as caught:
        launch([str(program)], folder, timeout_s=1, stop=lambda: 0, tick=lambda: None)
    assert caught.value.hint


def test_a_clock_that_jumps_moves_neither_times_nor_time_outs(folder, monkeypatch):
    hours = iter([0.0, 1e9, -1e9] * 1000)
    monkeypatch.setattr(time, "time", lambda: next(hours))
    ending = python(folder, "pass", timeout_s=60)
    assert (ending.how, ending.code) == ("ended", 0)
    assert 0 < ending.seconds < 60


class Stopped:
    """A pilot that is stopped (Ctrl-Z) at one of its looks, and goes on a quarter hour later."""

    def __init__(self, monkeypatch, during) -> None:
        self.lost_s, self.during = 0.0, during
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + self.lost_s)

    def __call__(self) -> None:
        if not self.lost_s:
            self.during()
            self.lost_s = 900.0


def test_the_time_of_a_run_whose_end_was_seen_late_is_not_known(folder, monkeypatch):
    def wait_until_it_has_ended():
        number = folder / "number"
        fake.wait_for(lambda: number.exists() and number.read_text(), "the run")
        fake.wait_for(lambda: not fake.is_alive(int(number.read_text())), "its end")

    code = f"import os; open({str(folder / 'number')!r}, 'w').write(str(os.getpid()))"
    # Nor is it a time-out, though the pause is longer than the 60 s that it may take.
    ending = python(folder, code, tick=Stopped(monkeypatch, wait_until_it_has_ended))
    assert (ending.how, ending.code) == ("ended", 0)
    assert math.isnan(ending.seconds)
    assert math.isnan(Ending.from_json(read_json(folder / layout.EXIT)).seconds)


@pytest.mark.parametrize("stops_before", [True, False], ids=["before a look", "after a look"])
def test_a_stop_at_the_very_look_that_finds_the_end_is_seen(folder, monkeypatch, stops_before):
    """Whichever of the two the clock and the look at the process is stopped between."""
    stopped = Stopped(monkeypatch, lambda: None)
    real = launching._has_ended

    def process_ends(process):
        (folder / "end").touch()
        fake.wait_for(lambda: not fake.is_alive(process.pid), "its end")

    def look(process):
        if stops_before:
            stopped()
            process_ends(process)
        found = real(process)
        if not stops_before:
            process_ends(process)
            stopped()
        return found

    monkeypatch.setattr(launching, "_has_ended", look)
    code = f"""
import pathlib, time
while not pathlib.Path({str(folder / "end")!r}).exists():
    time.sleep(0.005)
"""
    assert math.isnan(python(folder, code, timeout_s=3600).seconds)


def test_a_stop_amid_a_run_that_goes_on_costs_no_time(folder, monkeypatch):
    ticks = []

    def tick():
        ticks.append(1)
        if len(ticks) == 1:
            stopped()
        if len(ticks) == 3:
            (folder / "end").touch()

    stopped = Stopped(monkeypatch, lambda: None)
    code = f"""
import pathlib, time
while not pathlib.Path({str(folder / "end")!r}).exists():
    time.sleep(0.005)
"""
    ending = python(folder, code, timeout_s=3600, tick=tick)
    assert 900 < ending.seconds < 1000


def test_only_processes_of_the_folder_are_ended(tmp_path):
    mine, other = tmp_path / "attempt-1", tmp_path / "attempt-10"
    numbers = {}
    for folder in (mine, other):
        folder.mkdir()
        numbers[folder] = os.spawnve(
            os.P_NOWAIT, "/bin/sleep", ["sleep", "600"], {"NARROWGATE_RUN": str(folder)}
        )
    fake.wait_for(lambda: len(fake.living(tmp_path)) == 2, "both")
    assert end_processes(mine) == 1
    assert fake.living(tmp_path) == [numbers[other]]
    assert end_processes(tmp_path, hurry=lambda: True) == 1
    assert [os.waitpid(numbers[f], 0)[1] for f in (mine, other)] == [15, 9]


def test_the_guard_ends_the_run_under_way_and_no_other_when_its_pilot_is_gone(tmp_path):
    runs = []
    for number in (1, 2):
        folder = tmp_path / f"attempt-{number}"
        folder.mkdir()
        environment = {"NARROWGATE_RUN": str(folder)}
        runs.append(os.spawnve(os.P_NOWAIT, "/bin/sleep", ["sleep", "600"], environment))
    fake.wait_for(lambda: len(fake.living(tmp_path)) == 2, "both")
    with Guard() as guard:
        guard.watch(tmp_path / "attempt-1")
        guard.watch(tmp_path / "attempt-2")
    assert os.waitpid(runs[1], 0)[1] == 15
    assert fake.living(tmp_path) == [runs[0]]
    os.kill(runs[0], 9)
    os.waitpid(runs[0], 0)


def test_a_guard_that_was_killed_stops_nothing(tmp_path):
    with Guard() as guard:
        guard._process.kill()
        guard._process.wait()
        guard.watch(tmp_path)
