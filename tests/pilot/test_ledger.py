"""The ledger: whole chains, each kind of edit, torn tails, a full disk, two writers."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys

import pytest

from narrowgate.errors import LedgerError
from narrowgate.pilot import ledger as module
from narrowgate.pilot.ledger import FIRST, Ledger, looks_of, values_hash
from pilot import made


@pytest.fixture
def ledger(tmp_path):
    """A ledger of five entries."""
    found = Ledger(tmp_path / ".narrowgate" / "ledger.jsonl")
    for number in range(5):
        found.append("reject", f"pilot-{number}", {"recipe": "bf16", "by": "Ada", "n": number})
    return found


def lines_of(ledger):
    return ledger.path.read_bytes().splitlines(keepends=True)


def test_an_empty_ledger_is_whole(tmp_path):
    empty = Ledger(tmp_path / "ledger.jsonl")
    empty.verify()
    assert (empty.entries(), empty.head) == ((), None)
    assert not empty.path.exists()


def test_entries_are_chained_and_come_back(ledger):
    entries = ledger.entries()
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5]
    assert [e.previous for e in entries] == [FIRST, *(e.hash for e in entries[:-1])]
    assert ledger.head == entries[-1].hash
    assert entries[3].body == {"recipe": "bf16", "by": "Ada", "n": 3}


def test_what_append_gives_is_what_is_read(ledger):
    body = {"é\n": ['"', "\ud800", "\u2028"], "x": (1.5, -0.0, 1e-320), "n": float("nan")}
    entry = ledger.append("pilot", "損失", body)
    assert entry == ledger.entries()[-1]
    assert entry.body == {"é\n": ['"', "\ud800", "\u2028"], "x": [1.5, -0.0, 1e-320], "n": "nan"}
    assert len(lines_of(ledger)) == 6


def changed(lines):
    return [*lines[:2], lines[2].replace(b"Ada", b"Eve"), *lines[3:]]


EDITS = {
    "a word changed": (changed, 3, "its content has the hash"),
    "a number changed": (lambda ls: [ls[0].replace(b'"n": 0', b'"n": 9'), *ls[1:]], 1, "was chan"),
    "first line removed": (lambda ls: ls[1:], 1, "does not follow"),
    "a line removed": (lambda ls: [*ls[:2], *ls[3:]], 3, "does not follow"),
    "the middle cut": (lambda ls: [ls[0], ls[4]], 2, "does not follow"),
    "two lines swapped": (lambda ls: [ls[0], ls[2], ls[1], *ls[3:]], 2, "does not follow"),
    "a line put in": (lambda ls: [*ls[:3], ls[1], *ls[3:]], 4, "does not follow"),
    "a line doubled": (lambda ls: [*ls, ls[4]], 6, "does not follow"),
    "a foreign line": (lambda ls: [*ls[:3], b"{}\n", *ls[3:]], 4, "it is no entry"),
    "an empty line": (lambda ls: [*ls[:3], b"\n", *ls[3:]], 4, "it is no entry"),
    "a space more": (
        lambda ls: [ls[0].replace(b": 1,", b":  1,"), *ls[1:]],
        1,
        "as it was written",
    ),
    "keys moved": (
        lambda ls: [
            json.dumps(dict(reversed(json.loads(ls[0]).items()))).encode() + b"\n",
            *ls[1:],
        ],
        1,
        "not as it was written",
    ),
    "another kind": (lambda ls: [ls[0].replace(b"reject", b"accept"), *ls[1:]], 1, "has the hash"),
    "an unknown kind": (lambda ls: [ls[0].replace(b"reject", b"adopt"), *ls[1:]], 1, "as it was"),
    "an infinity": (lambda ls: [ls[0].replace(b'"n": 0', b'"n": NaN'), *ls[1:]], 1, "was changed"),
    "not UTF-8": (lambda ls: [ls[0].replace(b"Ada", b"\xff\xfe!"), *ls[1:]], 1, "was changed"),
    "a key twice": (
        lambda ls: [ls[0].replace(b'{"schema": 1', b'{"schema": 1, "number": 1'), *ls[1:]],
        1,
        "was changed",
    ),
    "nested without end": (lambda ls: [b"[" * 100_000 + b"\n", *ls[1:]], 1, "it is no entry"),
    "behind its end": (lambda ls: [*ls[:4], ls[4][:-1] + b"x"], 5, "was changed"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_found_and_named_by_its_line(name, ledger):
    edit, number, told = EDITS[name]
    ledger.path.write_bytes(b"".join(edit(lines_of(ledger))))
    before = ledger.path.read_bytes()
    for act in (ledger.verify, ledger.entries, lambda: ledger.append("reject", "p", {})):
        with pytest.raises(LedgerError) as caught:
            act()
        assert f"{ledger.path}: line {number} " in caught.value.message
        assert told in caught.value.message
        assert "compare it with a copy" in (caught.value.hint or "")
    assert ledger.path.read_bytes() == before


def test_every_flipped_bit_is_found(ledger):
    whole = ledger.path.read_bytes()
    end = len(lines_of(ledger)[0]) + len(lines_of(ledger)[1])
    # All bits of the second line and both newlines; then of the last line the last bytes.
    places = [*range(len(lines_of(ledger)[0]) - 1, end), *range(len(whole) - 8, len(whole))]
    for place in places:
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            with pytest.raises(LedgerError):
                module._read(bytes(flipped), ledger.path)


def test_a_rehashed_line_does_not_fit_the_next(ledger):
    lines = lines_of(ledger)
    entry = ledger.entries()[1]
    values = {**module._values(entry), "body": {**entry.body, "by": "Eve"}}
    forged = module.LedgerEntry(**values, hash=module._hash(values))
    ledger.path.write_bytes(
        b"".join([lines[0], module._render(forged).encode() + b"\n", *lines[2:]])
    )
    with pytest.raises(LedgerError, match="line 3 is entry 3 and does not follow"):
        ledger.verify()


def test_a_cut_tail_is_a_whole_chain_and_has_another_head(ledger):
    # What the chain cannot show by itself, as the docs say: the head is what tells.
    head = ledger.head
    ledger.path.write_bytes(b"".join(lines_of(ledger)[:3]))
    ledger.verify()
    assert ledger.head != head


@pytest.mark.parametrize("keep", [1, 20, 200])
def test_a_torn_tail_is_left_out_and_moved_aside(keep, ledger, caplog):
    lines = lines_of(ledger)
    torn = lines[4][:keep]
    ledger.path.write_bytes(b"".join(lines[:4]) + torn)
    with caplog.at_level(logging.WARNING):
        assert len(ledger.entries()) == 4
    assert f"torn line of {keep} bytes" in caplog.text
    with caplog.at_level(logging.WARNING):
        assert ledger.append("reject", "pilot-5", {}).number == 5
    assert f"its {keep} bytes are now in" in caplog.text
    assert [e.pilot for e in ledger.entries()][-2:] == ["pilot-3", "pilot-5"]
    (aside,) = ledger.path.parent.glob("ledger.jsonl.torn-*")
    assert aside.read_bytes() == torn


def test_an_entry_that_lost_only_its_newline_is_kept(ledger):
    ledger.path.write_bytes(ledger.path.read_bytes()[:-1])
    assert len(ledger.entries()) == 5
    assert ledger.append("reject", "p", {}).number == 6
    assert len(ledger.entries()) == 6
    assert list(ledger.path.parent.glob("*torn*")) == []


def test_a_newer_schema_is_refused(ledger):
    lines = lines_of(ledger)
    ledger.path.write_bytes(lines[0].replace(b'"schema": 1', b'"schema": 2'))
    with pytest.raises(
        LedgerError, match="line 1 has schema 2; this version of narrowgate knows 1"
    ):
        ledger.verify()


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_disk_leaves_the_ledger_as_it_was(room, ledger, monkeypatch):
    before = ledger.path.read_bytes()
    really = os.write

    def write(fd, data):
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(fd, data[:room])

    monkeypatch.setattr(module.os, "write", write)
    with pytest.raises(LedgerError, match="could not be written") as caught:
        ledger.append("accept", "p", {})
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert ledger.path.read_bytes() == before


def test_an_entry_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    synced = []
    really = os.fsync

    def fsync(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        really(fd)

    monkeypatch.setattr(module.os, "fsync", fsync)
    Ledger(tmp_path / "ledger.jsonl").append("pilot", "p", {})
    assert synced == [str(tmp_path / "ledger.jsonl"), str(tmp_path)]


def test_a_folder_in_its_place_is_told(tmp_path):
    for act in (Ledger(tmp_path).entries, lambda: Ledger(tmp_path).append("pilot", "p", {})):
        with pytest.raises(LedgerError, match="Is a directory"):
            act()


WRITE = """
import sys
from pathlib import Path
from narrowgate.pilot.ledger import Ledger
for _ in range(20):
    Ledger(Path(sys.argv[1])).append("pilot", sys.argv[2], {"x": "y" * 5_000})
"""


def test_writers_at_once_make_one_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(path), name]) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        Ledger(path).verify()
    assert [writer.returncode for writer in writers] == [0, 0]
    names = [entry.pilot for entry in Ledger(path).entries()]
    assert sorted(names) == ["a"] * 20 + ["b"] * 20


def verdict_entry(ledger, values, *, alpha=0.025, recipe="bf16", gate="quality.x", **of_body):
    body = {
        "recipe": recipe,
        "plan_hash": "p",
        "code": "c",
        "command": list(made.COMMAND),
        "gates": [{"gate": gate, "alpha": alpha, "values_hash": values_hash([0, 1], values)}],
        **of_body,
    }
    ledger.append("verdict", made.NAME, body)


def look(ledger, values, *, command=made.COMMAND, recipe="bf16", gate="quality.x", **about):
    about = {"plan_hash": "p", "code": "c", **about}
    looks = looks_of(ledger.entries(), command)
    return looks(recipe=recipe, gate=gate, values=values_hash([0, 1], values), **about)


def test_looks_are_counted_by_what_was_compared(ledger):
    assert look(ledger, [1.0, 2.0]) == 1
    verdict_entry(ledger, [1.0, 2.0])
    assert look(ledger, [1.0, 2.0]) == 1  # the same values again are the same look
    assert look(ledger, [1.0, 2.5]) == 2
    verdict_entry(ledger, [1.0, 2.0])
    assert look(ledger, [1.0, 2.5]) == 2
    verdict_entry(ledger, [1.0, 2.5])
    assert [look(ledger, [1.0, x]) for x in (2.0, 2.5, 3.0)] == [1, 2, 3]


@pytest.mark.parametrize(
    "other",
    [
        {"command": ("python", "other.py")},
        {"recipe": "fp16"},
        {"gate": "quality.x/a"},
        {"plan_hash": "q"},
        {"code": "d"},
    ],
)
def test_a_look_at_something_else_does_not_count(other, ledger):
    verdict_entry(ledger, [1.0, 2.0])
    assert look(ledger, [3.0, 4.0]) == 2
    assert look(ledger, [3.0, 4.0], **other) == 1


def test_a_look_without_a_test_spends_nothing(ledger):
    verdict_entry(ledger, [1.0, 2.0], alpha=float("nan"))
    assert look(ledger, [3.0, 4.0]) == 1
