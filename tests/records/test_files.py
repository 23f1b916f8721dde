from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgate.errors import RunError
from narrowgate.records.files import (
    SCHEMA,
    dumps,
    number,
    read_json,
    read_lines,
    sha256,
    write_json,
)


@given(st.floats())
def test_a_number_comes_back_from_json_bit_for_bit(value: float) -> None:
    back = number(json.loads(dumps(value), parse_constant=lambda name: pytest.fail(name)))
    assert (
        math.isnan(back)
        if math.isnan(value)
        else (back, math.copysign(1, back))
        == (
            value,
            math.copysign(1, value),
        )
    )


@pytest.mark.parametrize("value", ["1.0", "NaN", None, True, [1.0], {}, 10**400])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(RunError, match="where a number belongs"):
        number(value)


def test_an_object_comes_back_with_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"a": [1, math.inf, {"b": math.nan}], "c": "ü"})
    assert read_json(path) == {"schema": SCHEMA, "a": [1, "inf", {"b": "nan"}], "c": "ü"}
    assert os.listdir(path.parent) == ["a.json"]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"a\.json cannot be written: No space left") as error:
        write_json(path, {"a": 2})
    assert error.value.hint is not None
    assert read_json(path)["a"] == 1
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "no schema number"),
        ('{"a": 1}', "no schema number"),
        ('{"schema": true}', "no schema number"),
        ('{"schema": 0}', "no schema number"),
        (f'{{"schema": {SCHEMA + 1}}}', f"schema {SCHEMA + 1}; this version of narrowgate knows"),
        ("\ud800".encode("utf-16", "surrogatepass").decode("latin-1"), "cannot be read"),
    ],
)
def test_what_is_none_of_ours_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=message):
        read_json(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"gone\.json cannot be read: No such file"):
        read_json(tmp_path / "gone.json")


def test_a_log_is_read_up_to_its_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    lines, faults = read_lines(path)
    assert [line["a"] for line in lines] == [1, 2]
    assert faults == ["a.jsonl: line 3 is torn (7 characters), left out"]


def test_a_last_line_without_a_newline_is_torn_even_if_it_parses(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 12}')  # it may have been going to be 123
    lines, faults = read_lines(path)
    assert ([line["a"] for line in lines], len(faults)) == ([1], 1)


def test_unreadable_lines_in_the_middle_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \xff\xfe\n[1]\n\n{"a": 2}\n')
    lines, faults = read_lines(path)
    assert [line["a"] for line in lines] == [1, 2]
    assert [fault.partition(" (")[0] for fault in faults] == [
        "a.jsonl: line 2 cannot be read",
        "a.jsonl: line 3 cannot be read",
    ]


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == ([], [])


def test_a_hash_is_sha256(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")  # FIPS 180-4's own example
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
