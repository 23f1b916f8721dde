"""Masters: the 16-bit remainders beside the halves, and the checksums which bind the two together.

The table is the only place where remainders live (int16, shaped like their parameter). Outside they
travel as bytes, ``uint8[..., 2]``: integers would be cast to the parameter's format by torch's own
``load_state_dict``, and no collective knows int16, while 0 to 255 pass unchanged through both.

A checksum of each half is taken after every update. Whoever writes a half later moves its version
counter; then, and after a load, the half is checked against its checksum before the next step, and
a half whose remainder is of another step is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from narrowgate.engine.describe import FORMAT_OF
from narrowgate.errors import CheckpointError
from narrowgate.ops import half_checksum, join_master, largest_master, split_master

__all__ = ["Masters", "remainder_from_bytes", "remainder_to_bytes"]


def remainder_to_bytes(remainder: torch.Tensor) -> torch.Tensor:
    """View a remainder as bytes.

    Args:
        remainder: int16, any shape.

    Returns:
        A view of the same memory.

    Shapes:
        ``(...)`` int16 to ``(..., 2)`` uint8, low byte first.
    """
    return remainder.unsqueeze(-1).view(torch.uint8)


def remainder_from_bytes(data: torch.Tensor) -> torch.Tensor:
    """Read a remainder from bytes, also from bytes that a foreign loader cast to a float format.

    Args:
        data: ``(..., 2)``, whole numbers from 0 to 255 in any format that holds them.

    Returns:
        A fresh int16 tensor of shape ``(...)``.
    """
    whole = data.detach().to(torch.uint8).contiguous()
    return whole.view(torch.int16).squeeze(-1).clone()


class Masters:
    """The remainders of one prepare() call.

    Args:
        names: The first name of each parameter, for messages.
    """

    def __init__(self, names: Mapping[torch.Tensor, str]) -> None:
        self.names = names
        self.remainders: dict[torch.Tensor, torch.Tensor] = {}
        self._checksums: dict[torch.Tensor, torch.Tensor] = {}
        self._versions: dict[torch.Tensor, int] = {}
        self._loaded: dict[torch.Tensor, torch.Tensor] = {}

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter is a half whose remainder is here."""
        return parameter in self.remainders

    def narrow(self, parameter: torch.Tensor, dtype: torch.dtype) -> None:
        """Make a parameter a half, in place, and keep its remainder.

        Args:
            parameter: An FP32 or 16-bit parameter, whose identity stays.
            dtype: The format of the half.
        """
        half, remainder = split_master(parameter.detach().float(), FORMAT_OF[dtype])
        parameter.data = half
        self.remainders[parameter] = remainder

    def adopt(self, parameter: torch.Tensor) -> None:
        """Take a 16-bit parameter as it stands for its own master: a remainder of zero.

        Args:
            parameter: A 16-bit parameter.
        """
        self.remainders[parameter] = torch.zeros_like(parameter, dtype=torch.int16)
        self.refresh([parameter])

    def laid_out(self, parameter: torch.Tensor) -> torch.Tensor:
        """Give a half's remainder in the half's memory format, which the user may have changed.

        Args:
            parameter: A half.

        Returns:
            The live remainder.
        """
        held = self.remainders[parameter]
        if held.stride() != parameter.stride():
            held = torch.empty_like(parameter, dtype=torch.int16).copy_(held)
            self.remainders[parameter] = held
        return held

    def master(self, parameter: torch.Tensor) -> torch.Tensor:
        """Join a parameter's master.

        Args:
            parameter: Any parameter.

        Returns:
            The FP32 master, fresh; an FP32 parameter's own values if it has no remainder.
        """
        if parameter in self.remainders:
            return join_master(parameter.detach(), self.remainders[parameter])
        return parameter.detach().float()

    def store(self, parameter: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
        """Split a master into the half it came from and its remainder.

        Args:
            parameter: A half; one without a remainder is rounded.
            master: Its new master, FP32. What the half's format cannot hold saturates, as in the
                ops of our own optimizers.

        Returns:
            The number of elements that saturated or are NaN, 0-d int64.
        """
        stored = FORMAT_OF[parameter.dtype]
        limit = largest_master(stored)
        half, remainder = split_master(master.clamp(-limit, limit), stored)
        parameter.detach().copy_(half)
        if parameter in self.remainders:
            self.remainders[parameter].copy_(remainder)
        return (~(master.abs() <= limit)).sum()

    def refresh(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take the checksums of halves that were just written together with their remainders.

        Args:
            parameters: The halves.
        """
        halves = [p for p in parameters if p in self.remainders]
        if not halves:
            return
        sums = half_checksum([p.detach() for p in halves])
        for parameter, checksum in zip(halves, sums.unbind(), strict=True):
            self._checksums[parameter] = checksum
            self._versions[parameter] = parameter._version
            self._loaded.pop(parameter, None)

    def checksum_bytes(self, parameter: torch.Tensor) -> torch.Tensor:
        """Give the checksum which stands beside a half's remainder, as bytes.

        Args:
            parameter: A half.

        Returns:
            ``(8,)`` uint8.
        """
        checksum = self._loaded.get(parameter, self._checksums[parameter])
        return checksum.reshape(1).view(torch.uint8).clone()

    def load(
        self, parameter: torch.Tensor, remainder: torch.Tensor, checksum: torch.Tensor
    ) -> None:
        """Take a remainder from a checkpoint; its half may come before or after.

        Args:
            parameter: The half.
            remainder: The bytes of its remainder, ``(..., 2)``.
            checksum: The bytes of the half's checksum, ``(8,)``.
        """
        held = self.remainders[parameter]
        held.copy_(remainder_from_bytes(remainder.to(held.device)).view_as(held))
        whole = checksum.detach().to(device=held.device, dtype=torch.uint8).contiguous()
        self._loaded[parameter] = whole.view(torch.int64).reshape(()).clone()

    def strangers(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Find the halves that are not those which were written together with their remainders.

        Reads nothing unless a version counter moved or a checkpoint was loaded.

        Args:
            parameters: Any parameters.

        Returns:
            The halves whose checksum is another.
        """
        doubtful = [
            p
            for p in parameters
            if p in self.remainders and (p in self._loaded or p._version != self._versions.get(p))
        ]
        if not doubtful:
            return []
        strange = []
        now = half_checksum([p.detach() for p in doubtful]).tolist()
        for parameter, checksum in zip(doubtful, now, strict=True):
            if checksum != int(self._loaded.get(parameter, self._checksums[parameter])):
                strange.append(parameter)
                continue
            if parameter in self._loaded:
                self._checksums[parameter] = self._loaded.pop(parameter)
            self._versions[parameter] = parameter._version
        return strange

    def verify(self, parameters: Iterable[torch.Tensor]) -> None:
        """Check that the halves which somebody else has written still belong to their remainders.

        Args:
            parameters: The parameters of an optimizer.

        Raises:
            CheckpointError: A half and a remainder of different steps, by name.
        """
        wrong = [self.names.get(p, "an unnamed parameter") for p in self.strangers(parameters)]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise CheckpointError(
                f"the 16-bit weights of {', '.join(wrong[:3])}{more} do not belong to their "
                f"remainders: the two halves of the master are of different steps",
                hint="load model and optimizer from the same checkpoint, and FP32 weights before "
                "prepare(); if the weights were changed on purpose, optimizer.adopt_weights() "
                "takes them as they stand",
            )
