"""Putting kernels over torch's own and taking them away again.

A table maps an operator's name to a builder. The builder gets the kernels which were there before
and the dtypes to widen, and returns the kernel to register. All originals are fetched before the
first kernel is registered, since afterwards torch would hand out ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.library import Library, get_kernel

from narrowgate.engine.private import register_kernel

__all__ = ["Build", "Kernel", "Lookup", "Wide", "override"]

Kernel = Callable[..., Any]
"""``kernel(keyset, *args, **kwargs)`` of an operator's own schema."""

Lookup = Callable[[str], Kernel]
"""The CPU kernel that an operator had before: ``lookup("mm")``."""

Wide = frozenset[torch.dtype]
"""The 16-bit dtypes to widen."""

Build = Callable[[Lookup, Wide], Kernel]
"""Makes the kernel to register."""


def override(library: Library, table: Mapping[str, Build], wide: Wide) -> None:
    """Register the kernels of one table at the CPU key.

    Args:
        library: The handle that owns them; destroying it brings the old kernels back.
        table: Operator name, with overload, to builder.
        wide: The dtypes to widen.
    """
    covered = {name: get_kernel(f"aten::{name}", "CPU").call_boxed for name in table}

    kernels = {name: build(covered.__getitem__, wide) for name, build in table.items()}
    for name, kernel in kernels.items():
        register_kernel(library, name, kernel, "CPU", with_keyset=True)
