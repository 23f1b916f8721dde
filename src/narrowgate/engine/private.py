"""Every name of torch's that is private and that narrowgate needs, in one place.

No other module imports a private name, and a test checks that each one here still exists and still
does what is asked of it; so a new torch release breaks one file, with the reason beside the name.

Group 1, the dispatcher. ``torch.library`` has public calls to add a kernel and to fetch the one it
covers, but none to take a kernel away again, to ask which operators have one at a key, or to leave
a key out while a kernel calls on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import torch

__all__ = [
    "destroy_library",
    "registered_at",
    "resize_output",
    "without_autocast_cpu",
]

# -- 1. the dispatcher -------------------------------------------------------------------------

_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def destroy_library(library: torch.library.Library) -> None:
    """Take back every kernel registered through ``library``.

    Public name missing: a ``Library.close()``. Dropping the last reference does the same, but when
    that happens is up to whoever else holds one.
    """
    library._destroy()


def registered_at(key: str) -> frozenset[str]:
    """Name the operators that have a kernel of their own at a dispatch key.

    Public name missing: any view of the dispatcher's tables.

    Args:
        key: A dispatch key, for instance ``"AutocastCUDA"``.

    Returns:
        Full names, ``aten::norm.Scalar``.
    """
    return frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def resize_output(out: torch.Tensor, shape: torch.Size) -> None:
    """Give ``out`` the shape of a result as ``out=`` does, with torch's own warning.

    Public name missing: ``out=`` semantics for kernels written in Python.
    """
    torch.ops.aten._resize_output_.default(out, list(shape), out.device)


def without_autocast_cpu() -> AbstractContextManager[Any]:
    """Leave CPU autocast out for the calls made inside: what torch's own autocast kernels do.

    Public name missing: a guard on a dispatch key. ``torch.autocast(enabled=False)`` also clears
    the cast cache on leaving the outermost region and costs several times as much per call.
    """
    return cast("AbstractContextManager[Any]", torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU))
