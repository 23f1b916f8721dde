"""Each file of tests leaves plain torch behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.tools import plain_torch_again as plain_torch_again
from cases.tools import plain_torch_where_it_is_shown as plain_torch_where_it_is_shown
from narrowgate.records import script
from records import asked


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run in bf16 that a pilot asks for."""
    folder = asked.folder(tmp_path / "run", recipe="bf16")
    monkeypatch.setenv(script.VARIABLE, str(folder))
    yield folder
    script.close()
