"""Marks: which gradient a parameter had, and whether anybody has written into it since.

A gradient that is cleared makes room for the next one at the same address, where it has the same id
and, as likely as not, the same version. So a mark holds a weak reference: what is gone matches
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.weak import TensorWeakRef

__all__ = ["Marks"]


class Marks:
    """One mark for each of some parameters.

    Args:
        pairs: Parameters with the gradients to mark.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        self._marks: dict[torch.Tensor, tuple[TensorWeakRef, int]] = {}
        for parameter, gradient in pairs:
            self.put(parameter, gradient)

    def put(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Mark a gradient as it is now.

        Args:
            parameter: The parameter.
            gradient: Its gradient, or what stands for it.
        """
        self._marks[parameter] = (TensorWeakRef(gradient), gradient._version)

    def match(self, parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
        """Say whether a gradient is the one that was marked, unwritten since.

        Args:
            parameter: The parameter.
            gradient: The gradient.

        Returns:
            True if it is.
        """
        mark = self._marks.get(parameter)
        return mark is not None and mark[1] == gradient._version and mark[0]() is gradient

    def drop(self, parameter: torch.Tensor) -> None:
        """Forget a mark, if there is one.

        Args:
            parameter: The parameter.
        """
        self._marks.pop(parameter, None)

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def parameters(self) -> list[torch.Tensor]:
        """List the parameters that have a mark."""
        return list(self._marks)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter has a mark."""
        return parameter in self._marks

    def __bool__(self) -> bool:
        """Whether there is any mark."""
        return bool(self._marks)
