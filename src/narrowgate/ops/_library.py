"""The operator library `narrowgate::`, and the one way to put an op into it.

What is true here: an op has one schema, one definition in plain torch registered as the default
kernel (CompositeExplicitAutograd, so that it serves every device), and one fake kernel, which
makes the same checks as the wrapper and allocates the outputs. None has an autograd formula: the
wrappers call it without gradient recording. A kernel in C++ overrides the definition on the CPU,
where the library could be loaded, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from narrowgate.ops import _native

__all__ = ["NAMESPACE", "OpStatus", "Result", "define", "override", "status", "why_plain"]

NAMESPACE = "narrowgate"

Result = Tensor | tuple[Tensor, Tensor]
"""What an op returns."""

# Registrations live as long as this object does.
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_DEFINED: list[str] = []
_OVERRIDDEN: set[str] = set()

# The kernel of every device that has none of its own.
_DEFAULT = "CompositeExplicitAutograd"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStatus:
    """Which version of an op serves on which kind of device.

    Args:
        op: Name of the op.
        device: Kind of device, such as ``"cpu"``; ``"any"`` if one version serves all.
        version: What computes the result there.
        why: Why it is that one.
    """

    op: str
    device: str
    version: str
    why: str


def define(
    name: str, schema: str, definition: Callable[..., Result], fake: Callable[..., Result]
) -> None:
    """Register an op.

    Args:
        name: Name of the op, its folder, its test and its benchmark.
        schema: Arguments and results, with mutated arguments declared: ``"(Tensor x) -> Tensor"``.
        definition: The op in plain torch.
        fake: Shapes, types and devices of the results, with checks and without arithmetic.
    """
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(name + schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, definition, _DEFAULT)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    _DEFINED.append(name)


def override(name: str, native: Callable[..., Result], definition: Callable[..., Result]) -> None:
    """Have a C++ kernel serve an op on the CPU, if the library could be loaded.

    Args:
        name: Name of the op, defined before.
        native: Calls the kernel.
        definition: The op in plain torch, which `_native.serve` can bring back.
    """
    if _native.loaded.library is None:
        return

    def serve(*args: Any, **kwargs: Any) -> Result:
        chosen = definition if _native.serving() == _native.PLAIN else native
        return chosen(*args, **kwargs)

    _LIBRARY.impl(name, serve, "CPU")  # type: ignore[no-untyped-call]
    _OVERRIDDEN.add(name)


def status() -> list[OpStatus]:
    """Tell which version serves each op, for `narrowgate doctor`.

    Returns:
        One record per op and kind of device, ordered by name: its C++ kernel on the CPU, where the
        library could be loaded, and its definition in plain torch everywhere else.

    Example:
        >>> [record.version for record in status() if record.op == "adamw_step"][-1]
        'plain torch'
    """
    found = []
    for name in sorted(_DEFINED):
        if name in _OVERRIDDEN:
            here = OpStatus(op=name, device="cpu", version=_native.serving(), why=_why_native())
            rest = "no kernel of its own"
            found += [here, OpStatus(op=name, device="other", version=_native.PLAIN, why=rest)]
        else:
            why = _native.loaded.why or "no kernel of its own"
            found.append(OpStatus(op=name, device="any", version=_native.PLAIN, why=why))
    return found


def why_plain() -> str:
    """Say why no C++ kernel serves the CPU; the empty string if kernels do."""
    return "" if _OVERRIDDEN else _native.loaded.why


def _why_native() -> str:
    """Say why the C++ body that serves is the one."""
    if _native.serving() == _native.PLAIN:
        return "chosen by _native.serve"
    best = f"C++ {_native.loaded.bodies[-1]}" == _native.serving()
    reasons = ["best for this processor" if best else "chosen by _native.serve"]
    if _native.loaded.others:
        reasons.append(f"{', '.join(_native.loaded.others)} compiled, never run here")
    if _native.loaded.why:
        reasons.append(_native.loaded.why)
    return "; ".join(reasons)
