"""What to do about it: pure functions from what happened to what follows.

Nothing here imports torch, reads a clock or changes an argument.
"""

from narrowgate.policies.loss_scale import (
    PRESETS,
    LossScaleConfig,
    LossScaleState,
    initial_state,
    is_halted,
    next_state,
)

__all__ = [
    "PRESETS",
    "LossScaleConfig",
    "LossScaleState",
    "initial_state",
    "is_halted",
    "next_state",
]
