"""The command as a person or a pipe meets it: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

import narrowgate
from narrowgate import cli
from narrowgate.cli import console

FACTORY = """
import sys
import torch
print("built", file=sys.stderr)
def small():
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))
def broken():
    raise KeyError("no such model")
"""


def narrowgate_command(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "narrowgate.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def report():
    """The real report of this machine, asked for once."""
    done = narrowgate_command("doctor", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_version_goes_to_stdout(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr() == (f"narrowgate {narrowgate.__version__}\n", "")


def test_no_command_prints_the_help_on_stderr_and_ends_with_2(capsys):
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "doctor" in err
    assert "plan" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dokter"], "error: No such command 'dokter'."),
        (["doctor", "--jsn"], "error: No such option: --jsn"),
        (["plan"], "error: Missing argument 'MODULE:FACTORY'."),
    ],
)
def test_wrong_usage_names_the_fault_and_the_help(arguments, message, capsys):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    path = ["narrowgate", *(arguments[:1] if arguments[0] in ("doctor", "plan") else [])]
    assert err.endswith(f"\n\nhint: {' '.join(path)} --help\n")


def test_a_wrong_recipe_is_refused_before_the_model_is_built(capsys, monkeypatch):
    monkeypatch.setattr(
        console.subprocess, "run", lambda *_, **__: pytest.fail("torch was started")
    )
    assert cli.main(["plan", "models:small", "--recipe", "bf61"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: there is no recipe 'bf61'; allowed: fp32, ")
    assert err.endswith("\n\nhint: did you mean 'bf16'?\n")


def test_without_the_extra_the_way_to_it_is_printed(capsys, monkeypatch):
    found = cli.importlib.util.find_spec
    monkeypatch.setattr(
        cli.importlib.util, "find_spec", lambda name: None if name == "rich" else found(name)
    )
    assert cli.main(["doctor"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: the narrowgate command needs rich, not installed here\n"
        "\n"
        "hint: pip install 'narrowgate[pilot]'\n"
    )


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, typer.Abort])
def test_ctrl_c_ends_with_130(interruption, monkeypatch):
    # Which of the two comes out of typer depends on its version.
    def interrupted(*_, **__):
        raise interruption

    monkeypatch.setattr(console.subprocess, "run", interrupted)
    assert cli.main(["doctor"]) == 130


@pytest.mark.parametrize(
    ("code", "printed", "ended", "said"),
    [
        (1, "", 1, "error: narrowgate.engine.doctor ended with code 1\n"),
        (2, "", 2, ""),
        (0, "hello", 1, "error: narrowgate.engine.doctor printed no JSON object but 'hello'\n"),
        (0, "[1]", 1, "error: narrowgate.engine.doctor printed no JSON object but '[1]'\n"),
    ],
)
def test_a_failure_of_the_torch_half_is_told(code, printed, ended, said, capsys, monkeypatch):
    done = subprocess.CompletedProcess([], code, stdout=printed)
    monkeypatch.setattr(console.subprocess, "run", lambda *_, **__: done)
    assert cli.main(["doctor"]) == ended
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)


def test_doctor_reports_versions_devices_formats_ops_and_flags(report):
    assert report["schema"] == 1
    versions = {row["name"]: row["version"] for row in report["versions"]}
    assert versions["narrowgate"] == narrowgate.__version__
    assert versions["torch"].startswith("2.")
    assert report["devices"][0]["device"] == "cpu"
    assert [row["format"] for row in report["cpu_formats"]] == ["bf16", "fp16"]
    assert {row["op"] for row in report["ops"]} >= {"split_master", "adamw_step"}
    flags = {row["flag"] for row in report["flags"]}
    assert flags >= {"bf16_reduced_precision_reduction", "float32_matmul_precision"}


def test_doctor_says_whose_kernels_multiply(report):
    for row in report["cpu_formats"]:
        ours = row["products"] != "torch's own kernels"
        assert ours == (not row["native"])


def test_doctor_draws_every_row_and_note(report, capsys, monkeypatch):
    monkeypatch.setattr("narrowgate.cli.doctor.ask_engine", lambda _: report)
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for row in [*report["versions"], *report["devices"]]:
        assert row["name"] in out
    for row in [*report["flags"], *report["ops"], *report["probe"], *report["cpu_formats"]]:
        assert str(next(iter(row.values()))) in out
    for note in report["notes"]:
        assert f"note: {note}" in out


def test_tables_are_plain_in_a_pipe_and_keep_brackets(capsys):
    console.print_table("T", ["a"], [["[bold]x[/bold]"], [True], [None], [0.25]])
    out, _ = capsys.readouterr()
    assert "\x1b" not in out
    assert "[bold]x[/bold]" in out
    assert [word for word in ("yes", "-", "0.25") if f" {word} " not in out] == []


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("1", False)])
def test_no_color_is_obeyed_on_a_terminal(no_color, coloured, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    table_console = console.Console()
    assert (table_console.color_system is not None and not table_console.no_color) == coloured


def test_plan_prints_the_plan_of_a_factory(tmp_path):
    (tmp_path / "models.py").write_text(FACTORY, encoding="utf-8")
    done = narrowgate_command("plan", "models:small", "--recipe", "bf16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Linear: bf16 half" in done.stdout
    assert "norm: scale and shift stay FP32" in done.stdout
    assert done.stderr == "built\n"


def test_plan_refuses_a_factory_that_is_not_there(tmp_path):
    (tmp_path / "models.py").write_text(FACTORY, encoding="utf-8")
    done = narrowgate_command("plan", "models:smal", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: " in done.stderr
    assert "\n\nhint: " in done.stderr


MODEL = {
    "schema": 1,
    "device": "cpu",
    "modules": [
        {"fqn": "", "kind": "Linear", "class_name": "Linear", "parametrized": False},
    ],
    "params": [
        {
            "fqn": "weight",
            "owners": [{"module": "", "name": "weight"}],
            "shape": [4, 8],
            "dtype": "fp32",
            "trainable": True,
            "optimized": True,
            "shares_storage_with": None,
        }
    ],
}


@pytest.fixture
def described(monkeypatch):
    """A model as the torch half would describe it, without starting it."""
    asked = []
    monkeypatch.setattr(
        "narrowgate.cli.plan.ask_engine", lambda *arguments: asked.append(arguments) or MODEL
    )
    return asked


def test_plan_as_json_reads_back_as_the_plan(described, capsys):
    from narrowgate.plan import ModelInfo, Plan, parse, resolve

    assert cli.main(["plan", "models:small", "-r", "fp16", "--json"]) == 0
    assert described == [("describe", "models:small")]
    printed = Plan.from_json(capsys.readouterr().out)
    assert printed == resolve(ModelInfo.from_json(json.dumps(MODEL)), parse("fp16"))


def test_plan_shows_what_another_recipe_would_change(described, capsys):
    assert cli.main(["plan", "m:f", "--recipe", "bf16", "--diff", "fp16"]) == 0
    text = capsys.readouterr().out
    assert "recipe: bf16 -> fp16" in text
    assert "parameter weight: format bf16 -> fp16" in text
    assert cli.main(["plan", "m:f", "--diff", "fp16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["differences"] == text.splitlines()
    assert answer["old"] != answer["new"]


def test_plan_says_when_nothing_differs(described, capsys):
    assert cli.main(["plan", "m:f", "--diff", "bf16"]) == 0
    assert capsys.readouterr().out == "no difference\n"


@pytest.mark.parametrize("place", ["as it looks around", "as it is imported"])
def test_ctrl_c_while_it_starts_ends_with_130(place, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    if place == "as it looks around":
        monkeypatch.setattr(cli.importlib.util, "find_spec", interrupted)
    else:
        monkeypatch.delitem(sys.modules, "narrowgate.cli.app", raising=False)
        finder = type("Finder", (), {"find_spec": staticmethod(interrupted)})
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        monkeypatch.setattr(cli, "_NEEDED", ())
    assert cli.main(["--version"]) == 130
