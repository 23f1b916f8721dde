"""Every kernel under AddressSanitizer and UBSan: no byte beside a buffer, nothing undefined."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from narrowgate.ops import _native

OPS = Path(__file__).resolve().parents[2] / "src" / "narrowgate" / "ops"
DRIVER = Path(__file__).with_name("native_driver.cpp")
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
}


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: here each test names its body."""
    return _native.PLAIN


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("body", FLAGS)
def test_no_kernel_leaves_its_buffers(tmp_path: Path, body: str) -> None:
    """The driver's cases, in one body; the flags are those of CMakeLists.txt, less optimisation."""
    if body not in _native.loaded.bodies:
        pytest.skip(f"this processor cannot run {body}, or it was not built")
    if body != "baseline":
        assert platform.machine() in ("x86_64", "AMD64")
    assert COMPILER is not None
    program = tmp_path / "driver"
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    flags = ["-std=c++17", "-O2", "-ftree-vectorize", "-fopenmp", "-ffp-contract=off"]
    flags += ["-fno-math-errno", "-fno-trapping-math", *sanitize, *FLAGS[body]]
    flags += [f"-DNARROWGATE_BODY={body}", f"-I{OPS}"]
    sources = [str(path) for path in (DRIVER, *sorted(OPS.glob("*/kernel.cpp")))]
    built = subprocess.run(
        [COMPILER, *flags, *sources, "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    # libgomp keeps its threads' memory until the end, which is no leak of ours.
    environment = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    ran = subprocess.run([program], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert ran.stdout.count(": done\n") == 8
