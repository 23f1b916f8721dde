"""What one optimizer step did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one optimizer step did; the same on every rank.

    Attributes:
        applied: Whether parameters and states were updated.
        reason: Why the step was skipped, or what happened to an applied one; empty if nothing did.
        loss_scale: The loss scale its gradients were made with.
        grad_norm: Norm of the optimizer's true gradients, before clipping; NaN or infinite if they
            are.
        culprit: The parameter nearest the loss whose gradient was non-finite, or whose new value
            its format could not hold; None if there is none.
        attempted: Number of this step, counting from 1; skipped ones count.
    """

    applied: bool
    reason: str
    loss_scale: float
    grad_norm: float
    culprit: str | None
    attempted: int
