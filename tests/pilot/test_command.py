"""The user's command: the seed put in, secrets kept out, a typo found before anything is made."""

from __future__ import annotations

import pytest

from narrowgate.errors import PilotError
from narrowgate.pilot.command import check_command, fill, render_command, resumed_command
from narrowgate.records.masking import mask_command

TEMPLATE = ("python", "train.py", "--seed={seed}", "--name", "{seed}-{seed}", "{{seed}}", "{lr}")
SECRET = ("python", "train.py", "--hub-token", "abc", "--seed", "{seed}")


def test_only_the_exact_text_is_replaced_and_everywhere():
    assert fill(TEMPLATE, 7) == (
        *("python", "train.py", "--seed=7", "--name", "7-7", "{7}", "{lr}"),
    )


def test_a_command_without_a_seed_stays_as_it_is():
    assert fill(("torchrun", "train.py"), 3) == ("torchrun", "train.py")


def test_a_command_is_written_as_one_would_type_it_without_its_secrets():
    assert render_command([*SECRET, "a b"]) == (
        "python train.py --hub-token '***' --seed {seed} 'a b'"
    )


def refusal(call, *arguments) -> PilotError:
    with pytest.raises(PilotError) as caught:
        call(*arguments)
    assert caught.value.hint
    return caught.value


def test_a_program_that_does_not_exist_is_refused():
    assert "'no-such-program' was not found" in refusal(check_command, ["no-such-program"]).message


def test_a_script_without_its_interpreter_is_told_how(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my train.py").write_text("pass", encoding="utf-8")
    error = refusal(check_command, ["my train.py"])
    assert "cannot be executed" in error.message
    assert error.hint.endswith("-- python 'my train.py'")


@pytest.mark.parametrize("command", [[], [""], ["/"], ["python", "a\0b"]])
def test_what_is_no_command_is_refused(command):
    assert (
        "narrowgate pilot -- python train.py --seed {seed}" in refusal(check_command, command).hint
    )


def test_a_program_on_the_path_is_accepted():
    check_command(["sh", "-c", "exit 3"])


def test_the_stored_command_is_used_again():
    assert resumed_command(TEMPLATE, ()) == TEMPLATE


def test_a_stored_command_without_its_secret_is_asked_for():
    error = refusal(resumed_command, mask_command(SECRET), ())
    assert "without its secrets" in error.message
    assert "--resume -- COMMAND" in error.hint


def test_a_command_given_again_keeps_its_secret():
    assert resumed_command(mask_command(SECRET), SECRET) == SECRET


def test_another_command_is_refused():
    other = ("python", "other.py", "--hub-token", "xyz")
    error = refusal(resumed_command, mask_command(SECRET), other)
    assert "other.py" in error.message
    assert "xyz" not in error.message
