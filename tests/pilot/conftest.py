"""What the tests of the pilot share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
