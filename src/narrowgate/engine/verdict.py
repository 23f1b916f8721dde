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

    def facts(
        self, norm: torch.Tensor, touched: Sequence[int], saturated: torch.Tensor | None
    ) -> torch.Tensor:
        """Put what a step did into the vector that a StepResult reads.

        Args:
            norm: 0-d FP64 tensor, the norm of the optimizer's true gradients.
            touched: Indices of the parameters that had a gradient.
            saturated: For each of them the number of elements that its format could not hold; None
                if there are none.

        Returns:
            FP64 vector.
        """
        lost = where = torch.zeros_like(norm)
        if saturated is not None:
            lost = saturated.sum().double()
            indices = torch.tensor(touched, dtype=torch.float64)
            on_device = indices.to(norm.device, non_blocking=True)
            where = on_device.gather(0, saturated.argmax(0, True))[0]
        return torch.stack(
            [
                self.skip.double(),
                self.loss_finite.double(),
                self.scale.double(),
                norm,
                self.culprit,
                self.attempted,
                lost,
                where,
            ]
        )
