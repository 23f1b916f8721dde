"""Counting bytes where they live, and the peak that the operating system saw.

What is true here: every number is counted from live tensors, each storage once, and none is
computed from what a recipe promises. "Saved" is what autograd keeps for the backward pass, without
the parameters, which are there anyway; copies of parameters that autocast makes do count.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["LiveBytes", "SavedBytes", "count_live", "peak_rss_bytes", "saved_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Bytes which training holds from step to step.

    Attributes:
        parameters: Weights as the model stores them.
        remainders: The other halves of split masters, with their checksums.
        gradients: What stands in ``.grad``.
        states: The optimizer's states.
    """

    parameters: int
    remainders: int
    gradients: int
    states: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.remainders + self.gradients + self.states


def _distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def count_live(model: nn.Module, optimizer: torch.optim.Optimizer) -> LiveBytes:
    """Count what a model and its optimizer hold; call it after a step, before the gradients go.

    Args:
        model: A plain or prepared model.
        optimizer: Its plain or prepared optimizer, whose published state holds the remainders.

    Returns:
        The bytes.
    """
    parameters = list(model.parameters())
    kept: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for state in optimizer.state_dict()["state"].values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                kept[name.startswith("master_")].append(value)
    return LiveBytes(
        parameters=_distinct_bytes(parameters),
        remainders=_distinct_bytes(kept[True]),
        gradients=_distinct_bytes(p.grad for p in parameters if p.grad is not None),
        states=_distinct_bytes(kept[False]),
    )


class SavedBytes:
    """What autograd has saved for backward since counting began."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """Count a saved tensor's storage, if it is not counted yet.

        Args:
            tensor: What autograd saves.
        """
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()

    def total(self, model: nn.Module) -> int:
        """Sum up, leaving out what the model's parameters store.

        Args:
            model: The model.

        Returns:
            Bytes.
        """
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        return sum(size for pointer, size in self._storages.items() if pointer not in own)


@contextmanager
def saved_bytes() -> Iterator[SavedBytes]:
    """Count what autograd saves within.

    No reference is kept, so that the count changes nothing about memory: what is saved lives until
    backward, and so no two of the storages counted in one forward share an address.

    Yields:
        The count.
    """
    count = SavedBytes()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        count.note(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield count


def peak_rss_bytes() -> int:
    """Give the largest resident size of this process so far, as Linux counts it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
