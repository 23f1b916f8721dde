"""A scheduler that waits for skipped steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowgate.engine.optimizer import PreparedOptimizer

__all__ = ["FollowedScheduler"]


class FollowedScheduler:
    """A scheduler behind a facade: ``step()`` advances it only if the last step was applied.

    Everything else, ``state_dict`` and ``get_last_lr`` among it, is the scheduler's own.

    Args:
        optimizer: The prepared optimizer whose steps count.
        scheduler: The scheduler; it is not patched.
    """

    def __init__(self, optimizer: PreparedOptimizer, scheduler: Any) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance the scheduler if the last optimizer step was applied; this reads from the device.

        Args:
            *args: Passed on, a metric for example.
            **kwargs: Passed on.
        """
        result = self._optimizer.last_result
        if result is None or result.applied:
            self._scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Give whatever else the scheduler has."""
        if name.startswith("__") or name in ("_scheduler", "_optimizer"):
            raise AttributeError(name)
        return getattr(self._scheduler, name)
