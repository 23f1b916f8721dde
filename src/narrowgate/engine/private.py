"""Every name of torch's that is private and that narrowgate needs, in one place.

No other module imports a private name, and a test checks that each one here still exists and still
does what is asked of it; so a new torch release breaks one file, with the reason beside the name.

Group 1, the dispatcher. ``torch.library`` has public calls to add a kernel and to fetch the one it
covers, but none to take a kernel away again, to ask which operators have one at a key, to read an
operator's arguments, or to leave a key out while a kernel calls on.

Group 2, the processor. ``torch.cpu`` has no public word on the formats oneDNN has kernels for.

Group 3, the optimizer. Its hooks can be added publicly, but neither listed, moved nor passed by.

Group 4, the compiler. Hooks do not run in what it has compiled, and nothing public says whether it
has compiled anything.

Group 5, function transforms. Nothing public says whether a tensor belongs to one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

__all__ = [
    "argument_defaults",
    "bare_step",
    "destroy_library",
    "has_compiled",
    "is_wrapped",
    "move_hooks",
    "native_bf16",
    "native_fp16",
    "open_library",
    "register_kernel",
    "registered_at",
    "without_autocast_cpu",
]

# -- 1. the dispatcher -------------------------------------------------------------------------

_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def open_library() -> torch.library.Library:
    """Open a handle through which kernels for ATen's operators are registered.

    Public, but untyped; it is here beside the call that closes it.
    """
    return torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def register_kernel(
    library: torch.library.Library,
    name: str,
    kernel: Callable[..., Any],
    key: str,
    *,
    with_keyset: bool = False,
) -> None:
    """Put ``kernel`` over what an operator has at a dispatch key.

    The call is public, but untyped. Private is what it answers with: the dispatcher warns, once per
    process, at whichever operator comes first, that a kernel is covered by another. Whoever
    installs says that itself, so this one message is silenced here, and nothing else is.

    Args:
        library: From :func:`open_library`; destroying it brings the old kernel back.
        name: The operator, with its overload, without ``aten::``.
        kernel: The function to call.
        key: The dispatch key.
        with_keyset: Whether ``kernel`` wants the dispatch keys as its first argument.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(name, kernel, key, with_keyset=with_keyset)  # type: ignore[no-untyped-call]


def destroy_library(library: torch.library.Library) -> None:
    """Take back every kernel registered through ``library``.

    Public name missing: a ``Library.close()``. Dropping the last reference does the same, but when
    that happens is up to whoever else holds one.
    """
    library._destroy()  # type: ignore[no-untyped-call]


def registered_at(key: str) -> frozenset[str]:
    """Name the operators that have a kernel of their own at a dispatch key.

    Public name missing: any view of the dispatcher's tables.

    Args:
        key: A dispatch key, for instance ``"AutocastCUDA"``.

    Returns:
        Full names, ``aten::norm.Scalar``.
    """
    return frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def without_autocast_cpu() -> AbstractContextManager[Any]:
    """Leave CPU autocast out for the calls made inside: what torch's own autocast kernels do.

    Public name missing: a guard on a dispatch key. ``torch.autocast(enabled=False)`` also clears
    the cast cache on leaving the outermost region and costs several times as much per call.
    """
    return cast("AbstractContextManager[Any]", torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU))


def argument_defaults(op: Any) -> dict[str, tuple[bool, Any]]:
    """Read an operator's arguments from its schema.

    Public name missing: the schema of an operator.

    Args:
        op: An overload, for instance ``torch.ops.aten.sum.default``.

    Returns:
        By name, in order: whether it is keyword-only, and its default (None where it has none).
    """
    return {a.name: (a.kwarg_only, a.default_value) for a in op._schema.arguments}


# -- 2. the processor --------------------------------------------------------------------------


def native_bf16() -> bool:
    """Tell whether oneDNN has bf16 kernels for this processor.

    Public name missing: the flag; ``torch.backends.mkldnn`` says only that oneDNN is there.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def native_fp16() -> bool:
    """Tell whether oneDNN has fp16 kernels for this processor. Public name missing: as above."""
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


# -- 3. the optimizer --------------------------------------------------------------------------

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def move_hooks(old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> None:
    """Move the hooks of one optimizer to another, so that each fires once for each step.

    Public name missing: a view of the hooks that are registered. Their handles go stale.

    Args:
        old: Has no hooks afterwards.
        new: Has its own and these.
    """
    for name in _HOOKS:
        getattr(new, name).update(getattr(old, name))
        getattr(old, name).clear()


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """Give an optimizer's ``step`` without the hooks around it, its own and the global ones.

    Public name missing: torch wraps the method of the class and marks the wrapper.

    Args:
        optimizer: Any optimizer.

    Returns:
        The bound method as its author wrote it.
    """
    method: Any = type(optimizer).step
    while getattr(method, "hooked", False):
        method = method.__wrapped__
    return cast("Callable[..., Any]", method.__get__(optimizer))


# -- 4. the compiler ---------------------------------------------------------------------------


def has_compiled() -> bool:
    """Say whether torch.compile has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return False
    counters = utils.counters  # with fullgraph=True the frames are not counted
    return bool(counters["frames"]["total"] or counters["stats"]["unique_graphs"])


# -- 5. function transforms --------------------------------------------------------------------


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Say whether a tensor belongs to a transform of torch.func, and must not outlive it."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
