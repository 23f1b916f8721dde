"""The operator library `narrowgate::`, and the one way to put an op into it.

What is true here: an op has one schema, one definition in plain torch registered as the default
kernel (CompositeExplicitAutograd, so that it serves every device), and one fake kernel, which
makes the same checks as the wrapper and allocates the outputs. None has an autograd formula: the
wrappers call it without gradient recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["NAMESPACE", "OpStatus", "Result", "define", "status"]

NAMESPACE = "narrowgate"

Result = Tensor | tuple[Tensor, Tensor]
"""What an op returns."""

# Registrations live as long as this object does.
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_DEFINED: list[str] = []

# The kernel of every device that has none of its own.
_DEFAULT = "CompositeExplicitAutograd"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStatus:
    """Which version of an op serves on which kind of device.

    Args:
        op: Name of the op.
        device: Kind of device, such as ``"cpu"``; ``"any"`` if one version serves all.
        version: What computes the result there.
    """

    op: str
    device: str
    version: str


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


def status() -> list[OpStatus]:
    """Tell which version serves each op, for `narrowgate doctor`.

    Returns:
        One record per op and kind of device, ordered by name. Every op is served by its
        definition in plain torch, on any device.

    Example:
        >>> [record.version for record in status() if record.op == "adamw_step"]
        ['plain torch']
    """
    return [OpStatus(op=name, device="any", version="plain torch") for name in sorted(_DEFINED)]
