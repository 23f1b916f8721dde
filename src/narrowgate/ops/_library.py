"""The operator library `narrowgate::`, and the one way to put an op into it.

What is true here: an op has one schema, one definition in plain torch registered as the default
kernel (CompositeExplicitAutograd, so that it serves every device), and one fake kernel, which
makes the same checks as the wrapper and allocates the outputs. None has an autograd formula: the
wrappers call it without gradient recording. A kernel in C++ overrides the definition on the CPU,
where the library could be loaded, and one in Triton on CUDA devices, where triton is installed;
both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from narrowgate.ops import _native, _triton

__all__ = [
    "NAMESPACE",
    "OpStatus",
    "Result",
    "define",
    "override",
    "override_cuda",
    "status",
    "why_plain",
]

NAMESPACE = "narrowgate"

Result = Tensor | tuple[Tensor, Tensor]
"""What an op returns."""

# Registrations live as long as this object does.
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_DEFINED: list[str] = []
_OVERRIDDEN: set[str] = set()
_ON_CUDA: set[str] = set()

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


def override_cuda(name: str, definition: Callable[..., Result]) -> None:
    """Have a Triton kernel serve an op on CUDA devices; triton is imported when it first does.

    Args:
        name: Name of the op, defined before; ``triton.py`` in its folder has a function like it.
        definition: The op in plain torch, which serves where triton cannot.
    """

    def serve(*args: Any, **kwargs: Any) -> Result:
        chosen = _triton.kernel(name) if _triton.serves() else definition
        result: Result = chosen(*args, **kwargs)
        return result

    _LIBRARY.impl(name, serve, "CUDA")  # type: ignore[no-untyped-call]
    _ON_CUDA.add(name)


def status() -> list[OpStatus]:
    """Tell which version serves each op, for `narrowgate doctor`.

    Returns:
        Records ordered by op: on ``"cpu"`` its C++ kernel, where the library could be loaded; on
        ``"cuda"`` its Triton kernel, where triton is installed, whether or not there is a device;
        on every ``"other"`` device its definition in plain torch.

    Example:
        >>> [record.version for record in status() if record.op == "adamw_step"][-1]
        'plain torch'
    """
    found = []
    for name in sorted(_DEFINED):
        here = [_on_cpu(name), _on_cuda(name)]
        found += [OpStatus(op=name, device=d, version=v, why=why) for d, v, why in here]
        rest = "no kernel of its own"
        found.append(OpStatus(op=name, device="other", version=_native.PLAIN, why=rest))
    return found


def why_plain() -> str:
    """Say why no C++ kernel serves the CPU; the empty string if kernels do."""
    return "" if _OVERRIDDEN else _native.loaded.why


def _on_cpu(name: str) -> tuple[str, str, str]:
    """Give device, version and reason."""
    if name not in _OVERRIDDEN:
        return "cpu", _native.PLAIN, _native.loaded.why or "no kernel of its own"
    return "cpu", _native.serving(), _why_native()


def _on_cuda(name: str) -> tuple[str, str, str]:
    """Give device, version and reason."""
    if name not in _ON_CUDA:
        return "cuda", _native.PLAIN, "no kernel of its own"
    look = _triton.found()
    return "cuda", f"Triton {look.version}" if look.version else _native.PLAIN, look.why


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
