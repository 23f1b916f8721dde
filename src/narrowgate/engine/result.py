"""StepResult: what a step did, read from the device only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from narrowgate.records import StepRecord

__all__ = ["StepResult"]


class StepResult:
    """What one optimizer step did; looking at any field waits for the device, once.

    A StepResult is true if the step was applied, so ``if optimizer.step(): ...`` reads as it
    should.

    Args:
        facts: FP64 vector: skipped, loss finite, loss scale, gradient norm, index of the culprit or
            -1, attempted, number of saturated elements, index of the first saturated parameter.
        names: The names to which both indices point.

    Attributes:
        applied: Whether parameters and states were updated.
        reason: Why the step was skipped; empty if nothing happened.
        loss_scale: The loss scale its gradients were made with.
        grad_norm: Norm of the true gradients before clipping.
        culprit: Name of the guilty parameter, or None.
        attempted: Number of this step, counting from 1.
    """

    __slots__ = ("_facts", "_names", "_record")

    def __init__(self, facts: torch.Tensor, names: Sequence[str]) -> None:
        self._facts = facts
        self._names = names
        self._record: StepRecord | None = None

    def record(self) -> StepRecord:
        """Read the facts into plain data.

        Returns:
            The record of the step.
        """
        if self._record is None:
            skipped, loss_finite, scale, norm, culprit, attempted, saturated, where = (
                self._facts.tolist()
            )
            reason, name = "", None
            if skipped:
                reason = "non-finite gradient" if loss_finite else "non-finite loss"
                name = self._names[int(culprit)] if culprit >= 0 else None
                if culprit < 0 and loss_finite:
                    reason = "halted"
            elif saturated:
                reason = f"{int(saturated)} elements saturated"
                name = self._names[int(where)]
            self._record = StepRecord(
                applied=not skipped,
                reason=reason,
                loss_scale=scale,
                grad_norm=norm,
                culprit=name,
                attempted=int(attempted),
            )
        return self._record

    applied = property(lambda self: self.record().applied)
    reason = property(lambda self: self.record().reason)
    loss_scale = property(lambda self: self.record().loss_scale)
    grad_norm = property(lambda self: self.record().grad_norm)
    culprit = property(lambda self: self.record().culprit)
    attempted = property(lambda self: self.record().attempted)

    def __bool__(self) -> bool:
        """Whether the step was applied."""
        return self.record().applied

    def __repr__(self) -> str:
        """Print as the record does."""
        return repr(self.record()).replace("StepRecord", "StepResult", 1)
