"""The C++ library: found, refused or missing, it is always said; one OpenMP runtime, torch's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from narrowgate.ops import _native

OPS = Path(_native.__file__).parents[1]
BUILT = next((Path(p) for p in _native.__path__ if (Path(p) / "build.json").is_file()), None)
needs_library = pytest.mark.skipif(
    _native.loaded.library is None, reason=f"no C++ kernels: {_native.loaded.why}"
)


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: nothing here depends on the version."""
    return _native.PLAIN


def build(folder: Path, **changes: str) -> Path:
    """Write what CMake writes beside the library."""
    said = {"schema": 1, "library": "lib.so", "why": ""} | changes
    (folder / "build.json").write_text(json.dumps(said), encoding="utf-8")
    return folder / "lib.so"


def test_what_was_never_installed_is_said_and_is_no_fault(tmp_path: Path) -> None:
    """As when src is put on the path by hand."""
    found = _native.load([str(tmp_path)])
    assert (found.library, found.broken) == (None, False)
    assert found.why.startswith("narrowgate was not installed, only imported; run `make venv`")


def test_a_machine_without_a_compiler_is_said_and_is_no_fault(tmp_path: Path) -> None:
    """In CMake's words."""
    build(tmp_path, library="", why="no C++ compiler was found when narrowgate was installed")
    found = _native.load([str(tmp_path)])
    assert (found.library, found.broken) == (None, False)
    assert found.why == "no C++ compiler was found when narrowgate was installed"


def test_a_missing_library_is_a_fault(tmp_path: Path) -> None:
    """Built, and gone."""
    path = build(tmp_path)
    found = _native.load([str(tmp_path)])
    assert found.broken
    assert found.why.startswith(f"{path} was built and is missing; run `make venv`")


@needs_library
@pytest.mark.parametrize("damage", ["text", "empty", "cut", "other_machine"])
def test_a_library_that_cannot_be_loaded_is_a_fault(tmp_path: Path, damage: str) -> None:
    """Not a library; nothing; one that lacks its last byte; one for another processor."""
    assert BUILT is not None
    path = build(tmp_path)
    whole = (BUILT / json.loads((BUILT / "build.json").read_text())["library"]).read_bytes()
    if damage == "text":
        path.write_bytes(b"not a library\n")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(whole[:-1])
    else:  # ELF's e_machine, at byte 18: 0xF3 is RISC-V
        path.write_bytes(whole[:18] + b"\xf3\x00" + whole[20:])
    found = _native.load([str(tmp_path)])
    assert (found.library, found.broken) == (None, True)
    said = "ends too early; run" if damage == "cut" else "cannot be loaded ("
    assert found.why.startswith(f"{path} {said}")


@needs_library
def test_another_library_of_that_name_is_a_fault(tmp_path: Path) -> None:
    """One that loads, and is not ours."""
    path = build(tmp_path)
    assert _native.loaded.library is not None
    runtimes = [p for p in Path("/proc/self/maps").read_text().split() if "libc.so" in p]
    shutil.copy(runtimes[0], path)
    found = _native.load([str(tmp_path)])
    assert (found.library, found.broken) == (None, True)
    assert "narrowgate_sources" in found.why


@needs_library
def test_a_library_of_other_sources_is_a_fault(tmp_path: Path) -> None:
    """Somebody edited C++ and did not install again."""
    assert BUILT is not None
    ops = tmp_path / "ops"
    shutil.copytree(OPS, ops, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    if not _native.digest(ops):
        pytest.skip("the sources are not here: narrowgate was installed from a wheel")
    assert not _native.load([str(BUILT), str(ops / "_native")]).broken
    with (ops / "adamw_step" / "kernel.cpp").open("a") as file:
        file.write("// edited\n")
    found = _native.load([str(BUILT), str(ops / "_native")])
    assert found.broken
    assert "was built from other C++ sources; run `make venv`" in found.why


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on its own, warnings shown."""
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@needs_library
def test_a_broken_library_warns_once_and_plain_torch_serves() -> None:
    """On import, with the reason; the numbers are the same."""
    done = python(
        "import ctypes, torch\n"
        "real = ctypes.CDLL\n"
        "class Broken(real):\n"
        "    def __init__(self, name, *args, **kwargs):\n"
        "        if 'narrowgate' in str(name):\n"
        "            raise OSError('invalid ELF header')\n"
        "        super().__init__(name, *args, **kwargs)\n"
        "ctypes.CDLL = Broken\n"
        "from narrowgate import ops\n"
        "print({row.version for row in ops.status() if row.device == 'cpu'})\n"
        "print(ops.grad_stats([torch.tensor([3.0, -4.0])]).tolist())\n"
    )
    assert done.stdout.splitlines() == ["{'plain torch'}", "[[25.0, 4.0, 0.0]]"]
    assert done.stderr.count("the native kernels do not serve") == 1
    assert "(invalid ELF header)" in done.stderr


@needs_library
def test_torch_and_the_kernels_share_one_openmp_runtime() -> None:
    """Two would mean two teams of threads on the same cores."""
    done = python(
        "import re, torch\n"
        "from narrowgate import ops\n"
        "from narrowgate.ops import _native\n"
        "torch.set_num_threads(2)\n"
        "torch.randn(1 << 20).exp()\n"
        "ops.grad_stats([torch.randn(1 << 20)])\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(len(set(re.findall(r'\\S*/lib(?:gomp|omp|iomp5)[^/\\s]*', maps))))\n"
        "print(_native.same_openmp(_native.loaded.library))\n"
    )
    assert done.stdout.split() == ["1", "True"], done.stderr


@needs_library
@pytest.mark.parametrize("threads", ["0", "-3", "many", "1", "999"])
def test_odd_numbers_of_threads_in_the_environment(threads: str) -> None:
    """OMP_NUM_THREADS is torch's to read; the kernels take what torch made of it."""
    done = python(
        "import torch\n"
        "from narrowgate import ops\n"
        "print(ops.grad_stats([torch.ones(1 << 18)]).tolist())\n",
        OMP_NUM_THREADS=threads,
    )
    assert done.stdout.strip() == f"[[{2.0**18}, 1.0, 0.0]]", done.stderr
