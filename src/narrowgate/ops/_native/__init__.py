"""The C++ kernels: find their library, load it, and say loudly what came of it.

What is true here: one shared library with a plain C ABI holds every op's kernel, once per body (set
of instructions), as ``narrowgate_<op>_<body>``. It is compiled when narrowgate is installed and
never when it is imported; ``build.json`` beside it says what was built, and why not. A library that
should be there and cannot be used is warned of when the ops are imported, and `status` gives the
reason: nothing falls back in silence. Which body serves is chosen here, once, by what the
processor can do; `serve` chooses another for tests and benchmarks.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import struct
import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from narrowgate.errors import OpError

__all__ = [
    "FORMAT",
    "PLAIN",
    "Loaded",
    "addresses",
    "formats_of",
    "kernel",
    "load",
    "loaded",
    "numbers",
    "room",
    "same_openmp",
    "serve",
    "serving",
    "sizes",
    "versions",
]

PLAIN = "plain torch"
"""The version of an op that its definition serves."""

FORMAT = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
"""The kernels' number of a data type: floats.h, enum Format."""

UNIT = 1 << 15
"""Elements that one thread takes at a time: units.h, kUnit. It sizes the rooms of `grad_stats`."""

_REINSTALL = "run `make venv` (in a checkout), or install narrowgate again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of loading the library.

    Args:
        library: None if none serves.
        bodies: Bodies that this processor can run, best last.
        others: Bodies compiled that it cannot run.
        why: Why none serves, or what speaks against the one that does; empty if nothing.
        broken: Whether a library that should serve does not.
    """

    library: ctypes.CDLL | None = None
    bodies: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    why: str = ""
    broken: bool = False


def digest(ops: Path) -> str:
    """Take the digest of the C++ sources below a folder, as CMakeLists.txt does; "" without any."""
    found = [*ops.glob("*/kernel.cpp"), *ops.glob("_native/*.cpp"), *ops.glob("_native/*.h")]
    names = sorted(path.relative_to(ops).as_posix() for path in found)
    lines = [f"{name} {hashlib.sha256((ops / name).read_bytes()).hexdigest()}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def _is_cut(path: Path) -> bool:
    """Tell whether a 64-bit ELF file ends before its table of sections, which comes last in it."""
    head = path.read_bytes()[:64]
    if len(head) < 64 or not head.startswith(b"\x7fELF\x02"):
        return False
    table, entry_bytes, entries = struct.unpack_from("<40xQ10xHH", head)
    return bool(path.stat().st_size < table + entry_bytes * entries)


def load(folders: Sequence[str]) -> Loaded:
    """Load the library.

    Args:
        folders: Where the parts of this package lie: an editable install has its Python in the
            checkout and what was built in site-packages.

    Returns:
        What came of it; every failure with its reason.
    """
    found = [Path(folder) for folder in folders if (Path(folder) / "build.json").is_file()]
    if not found:
        return Loaded(why="narrowgate was not installed, only imported; " + _REINSTALL)
    build = json.loads((found[0] / "build.json").read_text(encoding="utf-8"))
    if not build["library"]:
        return Loaded(why=build["why"])
    path = found[0] / build["library"]
    if not path.is_file():
        return Loaded(why=f"{path} was built and is missing; {_REINSTALL}", broken=True)
    if _is_cut(path):  # loading it would end the process with a bus error
        return Loaded(why=f"{path} ends too early; {_REINSTALL}", broken=True)
    try:
        library = ctypes.CDLL(str(path))
        library.narrowgate_sources.restype = ctypes.c_char_p
        library.narrowgate_bodies.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:  # not a library for this platform, or not ours
        return Loaded(why=f"{path} cannot be loaded ({error}); {_REINSTALL}", broken=True)
    sources = next(filter(None, (digest(Path(folder).parent) for folder in folders)), "")
    if sources and sources != library.narrowgate_sources().decode():
        return Loaded(why=f"{path} was built from other C++ sources; {_REINSTALL}", broken=True)
    can, cannot = library.narrowgate_bodies().decode().split("|")
    why = ""
    if not library.narrowgate_has_openmp():
        why = "built without OpenMP: one thread"
    elif same_openmp(library) is False:
        why = "another OpenMP runtime than torch's: two teams of threads share the cores"
    return Loaded(library=library, bodies=tuple(can.split()), others=tuple(cannot.split()), why=why)


def same_openmp(library: ctypes.CDLL) -> bool | None:
    """Tell whether the kernels' OpenMP runtime is torch's; None where that cannot be seen."""
    # A symbol is looked up in a library and in those that it needs.
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not path.is_file():
        return None
    found = []
    for searched in (library, ctypes.CDLL(str(path))):
        symbol: Any = getattr(searched, "omp_get_max_threads", None)
        if symbol is None:
            return None
        found.append(ctypes.cast(symbol, ctypes.c_void_p).value)
    return found[0] == found[1]


loaded = load(__path__)
if loaded.broken:
    warnings.warn(
        f"the native kernels do not serve: {loaded.why}. Until then the ops run in plain torch",
        RuntimeWarning,
        stacklevel=2,
    )

_body: str | None = loaded.bodies[-1] if loaded.bodies else None


def versions() -> list[str]:
    """List what can serve an op with a kernel here: plain torch, then each body, best last."""
    return [PLAIN, *(f"C++ {body}" for body in loaded.bodies)]


def serving() -> str:
    """Name the version that serves CPU tensors now."""
    return PLAIN if _body is None else f"C++ {_body}"


@contextmanager
def serve(version: str) -> Iterator[None]:
    """Have another version serve within, for tests and benchmarks; it holds for every thread.

    Args:
        version: One of `versions`.

    Raises:
        OpError: No such version here.
    """
    global _body
    if version not in versions():
        raise OpError(
            f"serve: version is {version!r}; allowed: {', '.join(versions())}",
            hint=loaded.why or "other bodies need another processor",
        )
    before = _body
    _body = None if version == PLAIN else version.removeprefix("C++ ")
    try:
        yield
    finally:
        _body = before


@functools.cache
def _function(op: str, body: str, arguments: tuple[Any, ...]) -> Any:
    function = getattr(loaded.library, f"narrowgate_{op}_{body}")
    function.argtypes = arguments
    function.restype = None
    return function


def kernel(op: str, *arguments: Any) -> Any:
    """Give an op's kernel in the body that serves.

    Args:
        op: Name of the op.
        arguments: ctypes types of its arguments.
    """
    assert _body is not None, "the definition serves"
    return _function(op, _body, arguments)


def addresses(tensors: Sequence[Tensor]) -> array[int]:
    """Give the addresses of tensors' data, as an array that C reads."""
    return array("Q", [tensor.data_ptr() for tensor in tensors])


def sizes(tensors: Sequence[Tensor]) -> array[int]:
    """Give numbers of elements, as an array that C reads."""
    return array("q", [tensor.numel() for tensor in tensors])


def formats_of(tensors: Sequence[Tensor]) -> array[int]:
    """Give the numbers of the tensors' data types, as an array that C reads."""
    return array("i", [FORMAT[tensor.dtype] for tensor in tensors])


def numbers(values: Sequence[float]) -> array[float]:
    """Give numbers rounded to FP32, as an array that C reads."""
    return array("f", values)


def room(count: int) -> array[int]:
    """Give room for 64-bit numbers that the kernel writes, zeros at first."""
    return array("q", bytes(8 * count))
