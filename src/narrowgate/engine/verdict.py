"""What the gradients of one window say, as tensors that nobody has read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

__all__ = ["Verdict"]


@dataclass(slots=True, eq=False)
class Verdict:
    """What the gradients of one window say.

    Attributes:
        skip: 0-d FP32 tensor, nonzero if the step must not be applied.
        halted: 0-d bool tensor: no step will ever be applied again.
        inverse_scale: 0-d FP64 tensor, 1 / the loss scale of the gradients.
        scale: 0-d FP32 tensor, that loss scale.
        loss_finite: 0-d bool tensor.
        culprit: 0-d FP64 tensor: index of the guilty parameter, or -1.
        rows: Row of each parameter in ``stats``.
        stats: What `narrowgate.ops.grad_stats` says of the stored gradients, one row each.
        attempted: 0-d FP64 tensor: number of the step.
        followed: The optimizers that have stepped by this verdict.
    """

    skip: torch.Tensor
    halted: torch.Tensor
    inverse_scale: torch.Tensor
    scale: torch.Tensor
    loss_finite: torch.Tensor
    culprit: torch.Tensor
    rows: dict[torch.Tensor, int]
    stats: torch.Tensor
    attempted: torch.Tensor
    followed: set[int] = field(default_factory=set)

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Give the norm of some parameters' true gradients.

        Args:
            parameters: The parameters.

        Returns:
            0-d FP64 tensor; 0 if none of them has a gradient.
        """
        rows = [self.rows[p] for p in parameters if p in self.rows]
        if not rows:
            return torch.zeros_like(self.inverse_scale)
        chosen = self.stats if len(rows) == len(self.rows) else self.stats[rows]
        return chosen[:, 0].sum().sqrt() * self.inverse_scale
