"""Files that a person can read in one sitting, and one version number."""

from __future__ import annotations

import re

import pytest

import narrowgate
from shape import source

MOST_LINES = 450


def test_no_source_file_is_long():
    files = [path for path in source.tracked() if path.suffix == ".py"]
    if not files:
        pytest.skip("not a git checkout")
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_the_changelog_starts_with_this_version():
    text = (source.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## \[?(\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert heads[0] == narrowgate.__version__


def test_the_package_says_that_it_is_typed():
    assert (source.PACKAGE / "py.typed").is_file()
