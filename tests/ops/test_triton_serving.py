"""Which version serves CUDA tensors: decided once, said with its reason, triton imported late."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

from narrowgate.ops import _library, _native, _triton


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: nothing here depends on the version."""
    return _native.PLAIN


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Look again in each test, and after it."""
    for function in (_triton.found, _triton._warn):
        function.cache_clear()
    yield
    for function in (_triton.found, _triton._warn):
        function.cache_clear()


@pytest.mark.parametrize(
    ("version", "hip", "capabilities", "serves", "why"),
    [
        ("3.9.0", None, [(9, 0)], True, "compiled and interpreted in tests, never yet run"),
        ("3.10.1", None, [(8, 0), (12, 0)], True, "compiled and interpreted"),
        ("3.9.0", None, [], True, "no CUDA device here"),
        ("3.7.0+git1234", None, [(10, 0)], True, "compiled"),
        ("", None, [(9, 0)], False, "triton is not installed"),
        ("3.2.0", None, [(9, 0)], False, "triton 3.2.0 is older than 3.6, the oldest on which"),
        ("3.9.0", "6.4", [(9, 4)], False, "torch is built for ROCm"),
        ("3.9.0", None, [(9, 0), (7, 5)], False, "a device of compute capability 7.5 is visible"),
    ],
)
def test_what_serves_and_why(
    version: str, hip: str | None, capabilities: list[tuple[int, int]], serves: bool, why: str
) -> None:
    """Every reason, in words."""
    found = _triton.judge(version, hip, capabilities)
    assert bool(found.version) is serves
    assert found.why.startswith(why)


def test_where_triton_is_missing_plain_torch_serves_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warning at the first call, with the reason, and the same reason in the status."""
    monkeypatch.setattr(_triton.importlib.util, "find_spec", lambda name: None)
    with pytest.warns(RuntimeWarning, match="do not serve: triton is not installed. Until then"):
        assert not _triton.serves()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not _triton.serves()
    rows = {(row.version, row.why) for row in _library.status() if row.device == "cuda"}
    assert (_native.PLAIN, "triton is not installed") in rows


def test_the_definitions_can_be_called_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests and benchmarks on a GPU."""
    monkeypatch.setattr(_triton, "found", lambda: _triton.Found(version="3.9.0", why=""))
    assert _triton.serves()
    with _triton.plain():
        assert not _triton.serves()
    assert _triton.serves()


def test_without_a_gpu_triton_is_never_imported() -> None:
    """Neither by the package and its ops, nor by the status, nor by calls on CPU tensors.

    (torch imports it by itself for its compiler, which its optimizers load at their first step.)
    """
    code = (
        "import sys, torch, narrowgate, narrowgate.engine\n"
        "from narrowgate import ops\n"
        "ops.grad_stats([torch.ones(3)])\n"
        "ops.split_master(torch.ones(3), 'bf16')\n"
        "ops.status()\n"
        "print('triton' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False"], done.stderr


def test_every_kernel_can_be_found_by_its_name() -> None:
    """What the dispatcher imports at the first CUDA tensor."""
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    for name in sorted(_library._ON_CUDA):
        assert _triton.kernel(name).__name__ == name
