"""What is said when no step can be applied any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from narrowgate.engine.result import StepResult
from narrowgate.errors import NumericsError

if TYPE_CHECKING:
    from narrowgate.engine.session import Session

__all__ = ["halt_error"]


def halt_error(session: Session, result: StepResult) -> NumericsError:
    """Name the parameter that forced the loss scale to its floor, with its largest gradient.

    Args:
        session: The prepare() call whose training cannot go on.
        result: What its last step did.

    Returns:
        The error to raise.
    """
    record, config = result.record(), session.scaler.config
    where = "the loss itself" if record.reason == "non-finite loss" else "no parameter"
    if record.culprit is not None:
        where = record.culprit
        held = next((p for p in session.order if session.names[p] == record.culprit), None)
        grad = None if held is None else session.gradient(held)
        if grad is not None:
            finite = grad.detach()[torch.isfinite(grad)]
            largest = float(finite.abs().max()) / record.loss_scale if len(finite) else None
            bad = grad.numel() - len(finite)
            limit = torch.finfo(grad.dtype).max / record.loss_scale
            where += f" ({bad} of {grad.numel()} gradient elements non-finite, "
            where += (
                f"the largest finite one {largest:.6g}; "
                if largest is not None
                else "none finite; "
            )
            where += f"{grad.dtype} at this loss scale holds up to {limit:.6g})"
        if record.reason == "non-finite loss":
            where = f"the loss itself, and {where}"
    scale = f" with the loss scale at its floor {config.floor:.6g}" if session.scaler.is_on else ""
    fp16 = any(entry.compute == "fp16" for entry in session.recipe.entries)
    return NumericsError(
        f"{config.patience} steps in a row were skipped{scale}; the last one for {where}. "
        f"Weights and states are those of the last applied step",
        hint="look for a division by zero or a too high learning rate where this parameter is "
        "used, or keep that module in FP32 ('...; its.path: fp32')"
        + ("; bf16 has FP32's range" if fp16 else ""),
    )
