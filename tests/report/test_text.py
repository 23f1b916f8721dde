"""Strings and numbers as people see them."""

from __future__ import annotations

import json
import math

import pytest

from narrowgate.report.text import (
    fixed,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
    plotly_text,
    printable,
    script_json,
    shorten,
    signed,
)

MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("val_loss", "val_loss"),
        ("a\u202eb", "a\\u202eb"),
        ("\x1b[31mred", "\\u001b[31mred"),
        ("line\u2028line", "line\\u2028line"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\ud800", "\\ud800"),
        ("two\nlines\tand", "two\nlines\tand"),
        ("\N{WOMAN}\u200d\N{ROCKET} עברית", "\N{WOMAN}\u200d\N{ROCKET} עברית"),
    ],
)
def test_what_could_not_be_seen_is_shown_as_its_escape(text, shown):
    assert printable(text) == shown
    printable(text).encode("utf-8")


def test_a_chart_reads_no_tag_in_a_users_string():
    assert plotly_text('<b>x</b> & "y"\nz') == '&lt;b&gt;x&lt;/b&gt; &amp; "y" z'


def test_a_long_name_keeps_its_ends():
    assert shorten("a" * 50 + "b" * 50, 12) == "aaaaaaa…bbbb"
    assert shorten("short", 12) == "short"


@pytest.mark.parametrize(
    "text", ["</script>", "<!--", "]]>", "\u2028\u2029", "&lt;", "<script>", "é\N{ROCKET}"]
)
def test_json_in_a_script_block_cannot_end_it_and_comes_back_whole(text):
    written = script_json({"x": [text]})
    assert written.isascii()
    assert not set(written) & set("<>&")
    assert json.loads(written) == {"x": [text]}


def test_json_has_null_for_what_is_no_number():
    assert json.loads(script_json([math.nan, math.inf, 1.5, (0.1,)])) == [None, None, 1.5, [0.1]]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.4131, "2.413"),
        (-0.012345, f"{MINUS}0.01235"),
        (65536.0, "65,536"),
        (1.234e-7, "1.234e-07"),
        (0.0, "0"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, f"{MINUS}∞"),
        (3.2e30, "3.200e+30"),
    ],
)
def test_numbers(value, shown):
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (signed(0.01234), "+0.0123"),
        (signed(-2.0), f"{MINUS}2"),
        (signed(0.0), "0"),
        (fixed(-0.00123, 4), f"{MINUS}0.0012"),
        (fixed(math.nan, 4), "NaN"),
        (fixed(0.0, 4), "0.0000"),
        (fixed(-4.3e-5, 4), f"{MINUS}4e{MINUS}05"),
        (fixed(5.1e-5, 4), "0.0001"),
        (format_share(0.025), "2.5\N{NO-BREAK SPACE}%"),
        (format_share(0.2), "20\N{NO-BREAK SPACE}%"),
        (format_share(1e-8), "1.00e-06\N{NO-BREAK SPACE}%"),
        (format_bytes(1.5e6), "1.50\N{NO-BREAK SPACE}MB"),
        (format_bytes(12.0), "12\N{NO-BREAK SPACE}B"),
        (format_bytes(math.nan), "NaN"),
        (format_seconds(0.0123), "12.3\N{NO-BREAK SPACE}ms"),
        (format_seconds(150.0), "2.50\N{NO-BREAK SPACE}min"),
        (format_seconds(9e-7), "0.900\N{NO-BREAK SPACE}µs"),
        (format_seconds(0.0), "0\N{NO-BREAK SPACE}s"),
    ],
)
def test_numbers_with_units(shown, expected):
    assert shown == expected
