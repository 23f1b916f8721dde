"""The loss-scale machine on the device: the transition of `narrowgate.policies`, as where().

The whole state is one FP64 vector which lives beside the parameters, so that neither the scale nor
the verdict of a step needs a read by the host. FP64 holds every FP32 scale and every counter up to
2^53 exactly. A test runs this version and the host's side by side on random strings of verdicts.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from narrowgate.plan import LossScale
from narrowgate.policies import PRESETS, LossScaleConfig

__all__ = ["FIELDS", "LossScaler", "config_of"]

#: The entries of the state vector, in order.
FIELDS = (
    "loss_scale", "good_steps", "hysteresis_left", "floor_skips", "attempted", "applied",
)  # fmt: skip

_WHOLE = ("interval", "hysteresis")


def config_of(wish: LossScale) -> LossScaleConfig:
    """Make the machine's configuration from what the recipe says.

    Args:
        wish: The loss scaling of a recipe.

    Returns:
        The configuration; a loss scale of 1 that never moves if scaling is off.

    Raises:
        LossScaleError: Scales that contradict each other, or are no FP32 numbers.
        RecipeError: Another number of the machine that is out of its range.
    """
    if wish.mode != "dynamic":
        return LossScaleConfig.static(wish.value)
    changes = {k: int(v) if k in _WHOLE else v for k, v in wish.changes}
    return replace(PRESETS[wish.preset], **changes)  # type: ignore[arg-type]


class LossScaler:
    """The loss scale of one prepare() call, and the count of its steps.

    Args:
        config: The machine's configuration.
        device: Where the parameters are.
    """

    def __init__(self, config: LossScaleConfig, device: torch.device) -> None:
        self.config = config
        self.state = torch.tensor(
            [config.init, -config.growth_delay, config.hysteresis, 0.0, 0.0, 0.0],
            dtype=torch.float64,
            device=device,
        )

    @property
    def is_on(self) -> bool:
        """Whether the loss scale is or can become anything but 1."""
        return not self.config.init == self.config.floor == self.config.ceiling == 1.0

    @property
    def loss_scale(self) -> torch.Tensor:
        """The loss scale as a fresh 0-d FP32 tensor."""
        return self.state[0].float()

    def advance(self, finite: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Make one transition.

        Args:
            finite: 0-d bool tensor: whether loss and gradients were finite.

        Returns:
            Two 0-d bool tensors: whether the step is to be skipped, and whether training is halted
            (it is skipped then, too, and the state has stopped moving).
        """
        config = self.config
        scale, good, hysteresis, floor_skips, attempted, applied = self.state.unbind()
        halted_before = floor_skips >= config.patience

        # A non-finite step: forgive it while hysteresis lasts, then back off as far as the floor.
        spent = (hysteresis - 1).clamp(min=0)
        backs_off = spent <= 0
        lowered = (scale * config.backoff).float().double().clamp(min=config.floor)
        bad_scale = torch.where(backs_off, lowered, scale)
        no_room = backs_off & ~(lowered < scale)
        bad_floor_skips = floor_skips + no_room.double()

        # A clean step: count it, and grow at the interval if FP32 can hold what comes out.
        grown = (scale * config.growth).float().double()
        counted = good + 1
        at_interval = counted >= config.interval
        raised = torch.where(torch.isfinite(grown), grown.clamp(max=config.ceiling), scale)
        good_scale = torch.where(at_interval, raised, scale)
        full = torch.full_like(hysteresis, config.hysteresis)
        resets = at_interval if config.hysteresis_reset == "growth" else torch.ones_like(finite)

        new = torch.stack(
            [
                torch.where(finite, good_scale, bad_scale),
                torch.where(
                    finite,
                    torch.where(at_interval, torch.zeros_like(good), counted),
                    torch.full_like(good, -config.growth_delay),
                ),
                torch.where(finite, torch.where(resets, full, hysteresis), spent),
                torch.where(finite, torch.zeros_like(floor_skips), bad_floor_skips),
                attempted + 1,
                applied + finite.double(),
            ]
        )
        self.state.copy_(torch.where(halted_before, self.state, new))
        halted = self.state[3] >= config.patience
        return ~finite | halted_before, halted

    def read(self) -> dict[str, float]:
        """Read the state on the host; this waits for the device."""
        return dict(zip(FIELDS, self.state.tolist(), strict=True))
