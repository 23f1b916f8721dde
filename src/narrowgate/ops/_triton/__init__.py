"""The Triton kernels: whether they serve CUDA tensors, and which version says so.

What is true here: nothing imports triton. A kernel's module does, and is imported when its op meets
a CUDA tensor for the first time; a process without a GPU never pays for it. Where the kernels
cannot serve, the definitions in plain torch do, the same bits but slower: the first call warns, and
`status` gives the reason. An error within triton (a kernel that does not compile) is raised as it
is: nothing falls back in silence.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

__all__ = ["OLDEST", "Found", "found", "kernel", "plain", "serves"]

OLDEST = (3, 6)
"""The oldest triton on which the kernels were compiled and interpreted."""

CAPABILITY = (8, 0)
"""The least compute capability for which the kernels are compiled in tests."""

_plain = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of looking for triton.

    Args:
        version: Such as ``"3.9.0"``; empty if the kernels do not serve.
        why: Why they do not, or on what they serve.
    """

    version: str
    why: str


def judge(version: str, hip: str | None, capabilities: list[tuple[int, int]]) -> Found:
    """Decide whether the kernels serve.

    Args:
        version: Of triton; empty if it is not installed.
        hip: ROCm's version, if torch is built for it.
        capabilities: Of the CUDA devices that are visible.

    Returns:
        The decision with its reason.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    why = ""
    if not version:
        why = "triton is not installed"
    elif numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        why = f"triton {version} is older than {oldest}, the oldest on which they were tested"
    elif hip:
        why = "torch is built for ROCm; they are compiled and tested for NVIDIA's GPUs alone"
    elif capabilities and min(capabilities) < CAPABILITY:
        least, got = (f"{major}.{minor}" for major, minor in (CAPABILITY, min(capabilities)))
        why = f"a device of compute capability {got} is visible; they need {least}"
    if why:
        return Found(version="", why=why)
    tested = "compiled and interpreted in tests, never yet run on a GPU"
    return Found(version=version, why=tested if capabilities else f"no CUDA device here; {tested}")


@functools.cache
def found() -> Found:
    """Look for triton and for devices, once."""
    version = ""
    if importlib.util.find_spec("triton") is not None:
        try:
            version = metadata.version("triton")
        except metadata.PackageNotFoundError:  # torch's nightly builds bring it by another name
            version = importlib.import_module("triton").__version__
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return judge(version, torch.version.hip, [torch.cuda.get_device_capability(i) for i in devices])


@functools.cache
def _warn() -> None:
    warnings.warn(
        f"the Triton kernels do not serve: {found().why}. Until then the ops run in plain torch",
        RuntimeWarning,
        stacklevel=4,
    )


def serves() -> bool:
    """Tell whether the kernels serve CUDA tensors now; warn once if they cannot."""
    if found().version:
        return not _plain
    _warn()
    return False


@functools.cache
def kernel(op: str) -> Callable[..., Any]:
    """Import an op's kernel, and triton with it."""
    function: Callable[..., Any] = getattr(
        importlib.import_module(f"narrowgate.ops.{op}.triton"), op
    )
    return function


@contextmanager
def plain() -> Iterator[None]:
    """Have the definitions serve CUDA tensors within, for tests and benchmarks."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before
