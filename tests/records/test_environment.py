from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from narrowgate.records import environment
from narrowgate.records.environment import code_files, git_facts, machine_facts, memory_bytes


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


def test_code_is_what_was_loaded_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
        module = types.ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)

    (tmp_path / "not_loaded.py").write_text("x = 1\n")
    assert code_files(tmp_path) == {}
    load("model_b", tmp_path / "b.py")
    load("model_a", tmp_path / "parts" / "a.py")
    load("installed", tmp_path / "site-packages" / "installed.py")
    hashed = hashlib.sha256(b"x = 1\n").hexdigest()
    assert list(code_files(tmp_path).items()) == [("b.py", hashed), ("parts/a.py", hashed)]
    (tmp_path / "b.py").unlink()
    assert code_files(tmp_path)["b.py"] == hashlib.sha256(b"").hexdigest()


def test_narrowgates_own_files_are_no_code_of_the_project() -> None:
    source = Path(environment.__file__).parents[1]
    assert not any("narrowgate/" in place for place in code_files(source.parent))


def test_facts_are_named_and_no_variable_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    facts = machine_facts()
    assert set(facts) == {"python", "narrowgate", "system", "machine", "processor", "cores"}
    assert "hunter2" not in repr(facts)
    assert facts["cores"] == len(os.sched_getaffinity(0))


def test_memory_counts_what_is_held() -> None:
    before, _ = memory_bytes()
    # Pages from the system: the allocator may still hold some that an earlier test has freed.
    with mmap.mmap(-1, 64 * 2**20) as held:
        for place in range(0, len(held), mmap.PAGESIZE):
            held[place] = 1
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
