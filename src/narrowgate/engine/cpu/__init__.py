"""Sixteen bits on the CPU: the same numbers as a GPU's, near FP32's speed.

:func:`install` does three things, process-wide, until :func:`uninstall`:

1. formats for which the processor has no matrix units run on the FP32 kernels (``kernels``),
2. operators that sum in 16 bits sum in FP32 (``swamping``),
3. CPU autocast follows CUDA's list of operators (``islands``).

All three only touch calls with 16-bit tensors, or calls under CPU autocast; all go away again with
nothing left behind. Importing this package registers nothing, and nothing here prints: the engine
says once what it installed.

Compiled graphs call products and sums through the dispatcher, so those follow at once. The casts of
autocast are part of a graph: torch's on-disk cache of graphs does not know of ours and would hand
out graphs made without them, or leave ours to runs without narrowgate. So the cache's tag changes
while the kernels are in place. A graph that this process compiled before keeps its casts until
``torch.compiler.reset()``; hence first prepare, then compile.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.library import Library

from narrowgate.engine.cpu import islands, kernels, swamping
from narrowgate.engine.cpu.native import HALVES, ProbeRow, native_dtypes, probe
from narrowgate.engine.cpu.registry import override
from narrowgate.engine.private import destroy_library, open_library

__all__ = [
    "ProbeRow",
    "install",
    "installed",
    "native_dtypes",
    "probe",
    "uninstall",
    "widened",
]


_CACHE_TAG = "narrowgate-autocast-islands-1"
"""Part of the key of cached graphs; the number rises when the islands change."""


class _State:
    """What is installed now: the kernels' handle, the dtypes they widen, the tag before ours."""

    library: Library | None = None
    wide: frozenset[torch.dtype] = frozenset()
    cache_tag: str = ""


def install(*, widen: Iterable[torch.dtype] | None = None) -> None:
    """Put the kernels in place for this process; a second call changes nothing.

    Args:
        widen: Formats to compute on the FP32 kernels. None means those for which the processor has
            no units of its own: bf16 and fp16 less :func:`native_dtypes`. When kernels for other
            formats are in place already, they are replaced.
    """
    wide = HALVES - native_dtypes() if widen is None else HALVES.intersection(widen)
    if _State.library is not None:
        if widen is None or wide == _State.wide:
            return
        uninstall()
    library = open_library()
    try:
        if wide:
            override(library, kernels.TABLE, wide)
        override(library, swamping.TABLE, HALVES)
        islands.register(library)
    except BaseException:
        destroy_library(library)
        raise
    _State.library, _State.wide = library, wide
    _State.cache_tag = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = f"{_State.cache_tag}+{_CACHE_TAG}"


def uninstall() -> None:
    """Bring torch's own kernels back, bit for bit; without :func:`install` it does nothing."""
    if _State.library is not None:
        destroy_library(_State.library)
        torch.compiler.config.cache_key_tag = _State.cache_tag
        _State.library, _State.wide = None, frozenset()


def installed() -> bool:
    """Tell whether the kernels are in place."""
    return _State.library is not None


def widened() -> frozenset[torch.dtype]:
    """Name the formats whose products now run on the FP32 kernels.

    Returns:
        A subset of bf16 and fp16; empty when nothing is installed.
    """
    return _State.wide
