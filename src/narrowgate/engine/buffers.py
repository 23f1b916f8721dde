"""A skipped step leaves the buffers as they were.

The statistics of a batch norm are written in the forward, before anybody can know that the step
will be skipped. So they are copied before the first forward of a window and put back, on the
device, where the step was skipped. Version counters do not see these writes (a batch norm's kernel
does not count them): norm statistics are known by name, and any other buffer is watched once, over
the first step, by comparing its bytes; constants such as rotary tables drop out then.

Both copies are registered ops: a compiled forward traces through them without a graph break.
"""

from __future__ import annotations

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

    Args:
        model: The model whose buffers are guarded.
    """

    def __init__(self, model: nn.Module) -> None:
        self.buffers: list[torch.Tensor] = []
        self.shadows: list[torch.Tensor] = []
        self.watched: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.taken = torch.zeros((), dtype=torch.bool)
        room = WATCH_LIMIT
        for name, buffer in model.named_buffers():
            self.taken = self.taken.to(buffer.device)
            size = buffer.numel() * buffer.element_size()
            if name.rpartition(".")[2] in _STATISTICS:
                self.buffers.append(buffer)
                self.shadows.append(buffer.detach().clone())
            elif size <= room:
                room -= size
                self.watched.append((buffer, buffer.detach().clone()))

    def snapshot(self) -> None:
        """Copy the buffers, if this is the first forward of the window."""
        if self.buffers:
            torch.ops.narrowgate.snapshot_buffers_(self.shadows, self.buffers, self.taken)

    def settle(self, skip: torch.Tensor) -> None:
        """End the window: put the buffers back where the step was skipped.

        Args:
            skip: 0-d FP32 tensor on the buffers' device, nonzero if the step was skipped.
        """
        for buffer, copy in self.watched:
            if buffer.shape != copy.shape or not _same_bytes(buffer, copy):
                self.buffers.append(buffer)
                self.shadows.append(copy)
        self.watched = []
        if self.buffers:
            torch.ops.narrowgate.restore_buffers_(self.buffers, self.shadows, skip)
        self.open()

    def open(self) -> None:
        """Begin a window: the next forward in training copies the buffers."""
        self.taken.fill_(False)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare two tensors bit for bit, so that a NaN equals itself."""
    return torch.equal(
        one.detach().contiguous().view(-1).view(torch.uint8),
        other.contiguous().view(-1).view(torch.uint8),
    )
