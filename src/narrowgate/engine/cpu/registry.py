"""Putting kernels over torch's own and taking them away again.

A table maps an operator's name to a builder. The builder gets the kernels which were there before
and the dtypes to widen, and returns the kernel to register. All originals are fetched before the
first kernel is registered, since afterwards torch would hand out ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.library import Library, get_kernel

__all__ = ["Build", "Kernel", "Lookup", "Wide", "announced_override", "override"]

Kernel = Callable[..., Any]
"""``kernel(keyset, *args, **kwargs)`` of an operator's own schema."""

Lookup = Callable[[str], Kernel]
"""The CPU kernel that an operator had before: ``lookup("mm")``."""

Wide = frozenset[torch.dtype]
"""The 16-bit dtypes to widen."""

Build = Callable[[Lookup, Wide], Kernel]
"""Makes the kernel to register."""


@contextmanager
def announced_override() -> Iterator[None]:
    """Silence torch's own word on overriding; narrowgate says it itself, in the engine.

    The dispatcher warns once per process, at whichever operator comes first, that a kernel is
    covered by another. Nothing else is silenced, and only around the registration.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        yield


def override(library: Library, table: Mapping[str, Build], wide: Wide) -> None:
    """Register the kernels of one table at the CPU key.

    Args:
        library: The handle that owns them; destroying it brings the old kernels back.
        table: Operator name, with overload, to builder.
        wide: The dtypes to widen.
    """
    covered = {name: get_kernel(f"aten::{name}", "CPU").call_boxed for name in table}

    def lookup(name: str) -> Kernel:
        if name not in covered:
            covered[name] = get_kernel(f"aten::{name}", "CPU").call_boxed
        return covered[name]

    kernels = {name: build(lookup, wide) for name, build in table.items()}
    with announced_override():
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU", with_keyset=True)
