"""A skipped step leaves the buffers as they were.

The statistics of a batch norm are written in the forward, before anybody can know that the step
will be skipped. So they are copied before the first forward of a window and put back, on the
device, where the step was skipped. Version counters do not see these writes (a batch norm's kernel
does not count them): norm statistics are known by name, and any other buffer is watched once, over
the first step, by comparing its bytes; constants such as rotary tables drop out then.

Both copies are registered ops: a compiled forward traces through them without a graph break.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

__all__ = ["WATCH_LIMIT", "BufferGuard"]

#: Bytes of unknown buffers that are copied once to see whether a forward writes them. 64 MiB: more
#: than any table of positions in use, less than one layer of the models that have such tables.
WATCH_LIMIT = 64 * 2**20

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_library = torch.library.Library("narrowgate", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "snapshot_buffers_(Tensor(a!)[] shadows, Tensor[] buffers, Tensor(b!) taken) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(  # type: ignore[no-untyped-call]
    "restore_buffers_(Tensor(a!)[] buffers, Tensor[] shadows, Tensor skip) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _snapshot(
    shadows: list[torch.Tensor], buffers: list[torch.Tensor], taken: torch.Tensor
) -> None:
    """Copy buffers into their shadows unless that was done in this window."""
    if taken.device.type == "cpu":
        if not taken:
            torch._foreach_copy_(shadows, buffers)
    else:
        for shadow, buffer in zip(shadows, buffers, strict=True):
            shadow.copy_(torch.where(taken, shadow, buffer))
    taken.fill_(True)


def _restore(buffers: list[torch.Tensor], shadows: list[torch.Tensor], skip: torch.Tensor) -> None:
    """Put shadows back where the step was skipped."""
    if skip.device.type == "cpu":
        if skip:
            torch._foreach_copy_(buffers, shadows)
    else:
        for buffer, shadow in zip(buffers, shadows, strict=True):
            buffer.copy_(torch.where(skip != 0, shadow, buffer))


_library.impl("snapshot_buffers_", _snapshot, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_library.impl("restore_buffers_", _restore, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("narrowgate::snapshot_buffers_", lambda *_: None)
torch.library.register_fake("narrowgate::restore_buffers_", lambda *_: None)


class BufferGuard:
    """The copies of one model's buffers.

    Buffers are looked up by module and name each time: a forward may as well bind a new tensor to
    the name as write into the old one, and moving a model binds new ones too.

    Args:
        model: The model whose buffers are guarded.
    """

    def __init__(self, model: nn.Module) -> None:
        self.places: list[tuple[nn.Module, str]] = []
        self.shadows: list[torch.Tensor] = []
        self.watched: list[tuple[nn.Module, str]] = []
        self.copies: list[torch.Tensor] = []
        device, room = torch.device("cpu"), WATCH_LIMIT
        for module, name, buffer in _buffers(model):
            device = buffer.device
            size = buffer.numel() * buffer.element_size()
            if name in _STATISTICS:
                self.places.append((module, name))
                self.shadows.append(buffer.detach().clone())
            elif size <= room:
                room -= size
                self.watched.append((module, name))
        self.taken = torch.zeros((), dtype=torch.bool, device=device)
        self.watch()

    def watch(self) -> None:
        """Copy the buffers of which it is not known yet whether a forward writes them."""
        self.copies = [_held(place).detach().clone() for place in self.watched]

    def snapshot(self) -> None:
        """Copy the buffers, if this is the first forward of the window."""
        buffers = [_held(place) for place in self.places]
        if not torch.compiler.is_compiling():
            if self.watched and not self.taken:
                self.watch()
            for index, buffer in enumerate(buffers):
                if not _alike(self.shadows[index], buffer):
                    self.shadows[index] = buffer.detach().clone()
        if buffers:
            torch.ops.narrowgate.snapshot_buffers_(self.shadows, buffers, self.taken)
        elif self.watched:
            self.taken.fill_(True)

    @torch.no_grad()
    def settle(self, skip: torch.Tensor) -> None:
        """End the window: put the buffers back where the step was skipped.

        Args:
            skip: 0-d FP32 tensor on the buffers' device, nonzero if the step was skipped.
        """
        if self.watched and self.taken:  # a read by the host, until the first training forward
            for place, copy in zip(self.watched, self.copies, strict=True):
                if not _alike(copy, _held(place)) or not _same_bytes(copy, _held(place)):
                    self.places.append(place)
                    self.shadows.append(copy)
            self.watched, self.copies = [], []
        # through .data: a graph that is still to be walked back keeps these buffers (a batch norm
        # saves them), and would refuse to if their version counters moved
        held = [_held(place).data for place in self.places]
        pairs = [(b, s) for b, s in zip(held, self.shadows, strict=True) if _alike(s, b)]
        if pairs:
            buffers, shadows = (list(tensors) for tensors in zip(*pairs, strict=True))
            # where no forward of this window was ours there is nothing to put back
            torch.ops.narrowgate.restore_buffers_(buffers, shadows, skip * self.taken)
        self.open()

    def open(self) -> None:
        """Begin a window: the next forward in training copies the buffers."""
        self.taken.fill_(False)


def _buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    """List a model's buffers with the modules that hold them, each tensor once."""
    seen: set[int] = set()
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                yield module, name, buffer


def _held(place: tuple[nn.Module, str]) -> torch.Tensor:
    """Look a buffer up; one that is gone counts as empty."""
    module, name = place
    buffer = module._buffers.get(name)
    return torch.empty(0) if buffer is None else buffer


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether one tensor can be copied into another bit for bit."""
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare two tensors bit for bit, so that a NaN equals itself."""
    return torch.equal(
        one.detach().contiguous().view(-1).view(torch.uint8),
        other.contiguous().view(-1).view(torch.uint8),
    )
