"""ng.log and ng.result as scripts call them: each test is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from narrowgate.records import Run, layout, load_run
from narrowgate.records.files import read_json
from records import asked


def python(code: str, cwd: Path, run: Path | None = None, **variables: str) -> Any:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "NARROWGATE_RUN")}
    if run is not None:
        environment["NARROWGATE_RUN"] = str(run)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "import narrowgate as ng\n" + textwrap.dedent(code)],
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def own_runs(folder: Path) -> list[Run]:
    return [load_run(path) for path in sorted((folder / ".narrowgate" / "runs").glob("*"))]


def test_outside_of_a_pilot_a_run_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    done = python("ng.log(step=1, lr=0.5)\nng.log(step=2, lr=0.25)\nng.result(acc=91)", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = own_runs(tmp_path)
    assert done.stderr == f"narrowgate: recorded in {run.folder}\n"
    assert (run.request.recipe, run.request.pilot, run.ending) == (None, None, None)
    assert run.request.command[1:] == ("-c",)
    assert [line.values for line in run.logs] == [{"lr": 0.5}, {"lr": 0.25}]
    assert run.result is not None
    assert run.result.metrics == {"acc": 91.0}
    assert run.environment["python"]


def test_a_script_that_says_nothing_leaves_nothing(tmp_path: Path) -> None:
    done = python("import narrowgate.records.script", tmp_path)
    assert (done.returncode, done.stderr, os.listdir(tmp_path)) == (0, "", [])


def test_log_and_result_need_no_torch(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nng.log(a=1)\nng.result(b=2)"
    assert python(code, tmp_path).returncode == 0


def test_what_was_logged_is_there_without_a_result(tmp_path: Path) -> None:
    assert python("ng.log(a=1)", tmp_path).returncode == 0
    (run,) = own_runs(tmp_path)
    assert (len(run.logs), run.result, run.is_complete) == (1, None, False)


def test_a_log_after_a_result_begins_another_run(tmp_path: Path) -> None:
    code = "ng.log(a=1)\nng.result(b=1)\nng.log(a=2)\nng.result(b=2)"
    assert python(code, tmp_path).returncode == 0
    first, second = own_runs(tmp_path)
    found = sorted((run.logs[0].values["a"], run.result.metrics["b"]) for run in (first, second))
    assert found == [(1.0, 1.0), (2.0, 2.0)]


def test_a_run_of_before_does_not_stand_in_the_pilots_way(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = f"ng.result(b=1)\nimport os\nos.environ['NARROWGATE_RUN'] = {str(run)!r}\nng.result(b=2)"
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    result = load_run(run).result
    assert result is not None
    assert result.metrics == {"b": 2.0}


def test_in_a_pilot_all_goes_into_the_run(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    done = python("ng.log(a=1)\nng.result(b=1)", tmp_path, run)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_run(run).is_complete
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        ("ng.result()", "without a metric", "ng.result(val_loss=loss.item())"),
        ("ng.result(a='x')", "a is 'x', of type str", "give a float"),
        ("ng.result(a=1, slices={'s': 3})", "slice 's' is 3", "slices="),
        ("ng.result(a=1, slices={'s': {}})", "slice 's' is {}", "slices="),
        ("ng.result(a=1, slices={1: {'a': 1}, '1': {'a': 2}})", "two slices '1'", "names of"),
        ("ng.result(a=1, slices={'s': {'b': None}})", "s/b is None", "give a float"),
        ("ng.log(step='x', a=1)", "step is 'x'", "give a float"),
        ("ng.result(a=1)\nng.log(b=1)", "after ng.result()", "call ng.result last"),
        ("ng.result(a=1)\nng.result(a=2)", "has its result already", "call ng.result once"),
    ],
)
def test_a_wrong_call_is_refused_with_a_hint(
    tmp_path: Path, code: str, message: str, hint: str
) -> None:
    done = python(code, tmp_path, asked.folder(tmp_path / "run"))
    assert done.returncode == 1
    assert "RunError: " in done.stderr
    assert message in done.stderr
    assert f"hint: {hint}" in done.stderr


def test_a_folder_that_is_no_runs_is_refused(tmp_path: Path) -> None:
    done = python("ng.log(a=1)", tmp_path, tmp_path / "nowhere")
    assert "where there is no request.json" in done.stderr
    assert "unset it" in done.stderr


def test_two_processes_do_not_write_into_one_run(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = """
        import subprocess, sys
        ng.log(a=1)
        inner = [sys.executable, "-c", "import narrowgate as ng; ng.log(a=2)"]
        done = subprocess.run(inner, capture_output=True, text=True)
        sys.exit(0 if "another process is writing into" in done.stderr else 1)
    """
    assert python(code, tmp_path, run).returncode == 0
    assert [line.values["a"] for line in load_run(run).logs] == [1.0]


def test_a_forked_child_of_a_run_does_not_record(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, from 3.12 on
        ng.log(a=1)
        if (child := os.fork()) == 0:
            ng.log(a=2)
            ng.result(b=2)
            raise SystemExit
        os.waitpid(child, 0)
        ng.result(b=1)
    """
    done = python(code, tmp_path, run)
    assert (done.returncode, done.stderr) == (0, "")
    found = load_run(run)
    assert [line.values["a"] for line in found.logs] == [1.0]
    assert found.result is not None
    assert found.result.metrics == {"b": 1.0}


def test_a_process_forked_before_anything_was_said_may_be_the_run(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = """
        import os
        if (child := os.fork()) == 0:
            ng.result(b=2)
            raise SystemExit
        os.waitpid(child, 0)
    """
    assert python(code, tmp_path, run).returncode == 0
    assert load_run(run).is_complete


def test_of_a_launchers_processes_rank_0_records(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    assert python("ng.log(a=1)\nng.result(b=1)", tmp_path, run, RANK="1").returncode == 0
    assert os.listdir(run) == [layout.REQUEST]
    assert python("ng.log(a=0)\nng.result(b=0)", tmp_path, run, RANK="0").returncode == 0
    assert load_run(run).is_complete


def test_torch_distributed_knows_the_rank_better_than_the_launcher(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = """
        import sys, types
        fake = types.ModuleType("torch.distributed")
        fake.is_available = fake.is_initialized = lambda: True
        fake.get_rank = lambda: 3
        sys.modules["torch.distributed"] = fake
        ng.log(a=1)
    """
    assert python(code, tmp_path, run).returncode == 0
    assert os.listdir(run) == [layout.REQUEST]


def test_a_rank_stays_what_it_was_when_the_group_is_destroyed(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = """
        import sys, types
        fake = types.ModuleType("torch.distributed")
        is_there = [True]
        fake.is_available = lambda: True
        fake.is_initialized = lambda: is_there[0]
        fake.get_rank = lambda: 1
        sys.modules["torch.distributed"] = fake
        ng.log(a=1)
        is_there[0] = False
        ng.result(a=1)
    """
    assert python(code, tmp_path, run).returncode == 0
    assert os.listdir(run) == [layout.REQUEST]


def test_a_secret_in_the_command_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import narrowgate as ng\nng.result(a=1)\n")
    command = [sys.executable, "t.py", "--hub-token", "hunter2"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "MY_SECRET": "hunter3"}, check=False
    )
    assert done.returncode == 0
    (run,) = own_runs(tmp_path)
    assert run.request.command[-2:] == ("--hub-token", "***")
    for path in run.folder.iterdir():
        assert "hunter" not in path.read_text()
    assert read_json(run.folder / layout.REQUEST)["schema"] == 1


def test_a_run_that_is_killed_keeps_what_it_wrote(tmp_path: Path) -> None:
    run = asked.folder(tmp_path / "run")
    code = """
        import os, pathlib, signal, time
        ng.log(a=1)
        while "log" not in pathlib.Path(os.environ["NARROWGATE_RUN"], "events.jsonl").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = run / layout.EVENTS
    path.write_text("")
    assert python(code, tmp_path, run).returncode == -9
    found = load_run(run)
    assert ([line.values for line in found.logs], found.faults) == ([{"a": 1.0}], ())
