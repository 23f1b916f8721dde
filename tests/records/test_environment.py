from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowgate.records import environment
from narrowgate.records.environment import code_hash, git_facts, machine_facts, memory_bytes


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "a")
    return tmp_path


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD").strip()
    assert git_facts(checkout) == (head, None)


def test_every_kind_of_change_changes_the_hash(checkout: Path) -> None:
    found = [git_facts(checkout)[1]]
    (checkout / "train.py").write_text("x = 2\n")
    found.append(git_facts(checkout)[1])
    (checkout / "new.py").write_text("y = 1\n")
    found.append(git_facts(checkout)[1])
    (checkout / "new.py").write_text("y = 2\n")
    found.append(git_facts(checkout)[1])
    git(checkout, "add", ".")  # staged or not is the same code, but git says it in other words
    (checkout / "large.bin").write_bytes(bytes(2**20 + 1))
    found.append(git_facts(checkout)[1])
    (checkout / "train.py").unlink()
    found.append(git_facts(checkout)[1])
    assert len(set(found)) == len(found)
    assert found[0] is None


def test_our_own_folder_is_no_change(checkout: Path) -> None:
    (checkout / ".narrowgate").mkdir()
    (checkout / ".narrowgate" / "ledger.jsonl").write_text("x")
    assert git_facts(checkout)[1] is None


def test_a_folder_that_git_does_not_know_has_no_commit(tmp_path: Path) -> None:
    assert git_facts(tmp_path) == (None, None)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_facts(tmp_path) == (None, None)


def test_the_code_hash_covers_what_was_loaded_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)

    found = [code_hash(tmp_path)]
    (tmp_path / "model_a.py").write_text("x = 1\n")
    found.append(code_hash(tmp_path))
    assert found[0] == found[1]  # there, but not loaded
    load("model_a")
    found.append(code_hash(tmp_path))
    (tmp_path / "model_a.py").write_text("x = 2\n")
    found.append(code_hash(tmp_path))
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setitem(sys.modules, "installed", type(sys)("installed"))
    sys.modules["installed"].__file__ = str(tmp_path / "site-packages" / "installed.py")
    found.append(code_hash(tmp_path))
    assert found[3] == found[4]
    assert len(set(found)) == 3


def test_facts_are_named_and_no_variable_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    facts = machine_facts()
    assert set(facts) == {"python", "narrowgate", "system", "machine", "processor", "cores"}
    assert "hunter2" not in repr(facts)
    assert facts["cores"] == len(os.sched_getaffinity(0))


def test_memory_counts_what_is_held() -> None:
    before, _ = memory_bytes()
    held = bytearray(64 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    now, peak = memory_bytes()
    assert now - before > 50 * 2**20
    assert peak >= now


def test_memory_is_known_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise OSError(2, "No such file")

    monkeypatch.setattr(environment.Path, "read_text", missing)
    now, peak = memory_bytes()
    assert now == peak > 2**20
    assert environment.processor_name() == machine_facts()["machine"]
