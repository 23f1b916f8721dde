"""The Triton kernels give the definitions' bits, in triton's interpreter, without a GPU."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from narrowgate.ops import _native

ROOT = Path(__file__).resolve().parents[2]
# Where triton has no wheel; elsewhere it is in [dev], and its absence is a fault.
HAS_WHEEL = platform.system() == "Linux" and platform.machine() == "x86_64"


@pytest.fixture(autouse=True)
def version() -> str:
    """Take the place of the fixture of the same name: nothing here depends on the version."""
    return _native.PLAIN


@pytest.mark.skipif(not HAS_WHEEL, reason="triton has no wheel for this platform")
@pytest.mark.parametrize(
    ("marked", "least"), [("not slow", 30), pytest.param("slow", 1, marks=pytest.mark.slow)]
)
def test_every_kernel_gives_the_bits_of_its_definition(marked: str, least: int) -> None:
    """The tests of interpreted.py, which say what is compared, in a process of their own."""
    path = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", str(path), "-m", marked, "-p", "no:cacheprovider"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least, done.stdout
