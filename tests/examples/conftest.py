"""The examples are scripts: their folder goes on the path, and the process is as it was afterwards.

`run` calls a script's main() as the command line would, in a folder of its own, and reads back what
it recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))


@pytest.fixture(autouse=True)
def process_left_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder; give back torch's kernels, threads and generator after."""
    import torch

    from narrowgate.engine import cpu
    from narrowgate.records import script

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    script.close()
    torch.set_num_threads(threads)
    cpu.uninstall()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Run a script; with ``asked=(recipe, seed)`` as a pilot does."""
    from narrowgate.records import Request, Run, layout, load_run, script
    from narrowgate.records.files import utc_now, write_json

    count = iter(range(100))

    def run(module: ModuleType, *arguments: str, asked: tuple[str, int] | None = None) -> Run:
        name = Path(module.__file__ or "").name
        monkeypatch.setattr("sys.argv", [name, *arguments])
        before = set(tmp_path.glob(".narrowgate/runs/*"))
        if asked is None:
            module.main()
            (folder,) = set(tmp_path.glob(".narrowgate/runs/*")) - before
        else:
            recipe, seed = asked
            folder = tmp_path / f"attempt-{next(count)}"
            request = Request(
                recipe=recipe,
                seed=seed,
                attempt=1,
                pilot="a pilot",
                command=(name, *arguments),
                commit=None,
                uncommitted=None,
                created=utc_now(),
            )
            write_json(folder / layout.REQUEST, request.to_json())
            with monkeypatch.context() as patch:
                patch.setenv(script.VARIABLE, str(folder))
                module.main()
                script.close()
        return load_run(folder)

    return run
