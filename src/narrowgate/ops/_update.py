"""What every optimizer op does around its own arithmetic: read a weight, store a weight.

What is true here: weights are updated in FP32 and stored in their own format. A split weight past
`largest_master` is set to that limit with its sign, a NaN becomes the canonical NaN; both count
as saturated. An FP32 weight is stored as it is, and counts if it is not finite.

On the CPU, `skip` and the step counts are host memory and are read. On other devices nothing is
read: everything is computed, and `torch.where` keeps the old values of a skipped step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from narrowgate.ops import _checks
from narrowgate.ops._blocks import blocks, flat, in_layout_of, rooms
from narrowgate.ops._limits import HALF_OF, largest_master
from narrowgate.ops.join_master.reference import JOIN_ROOMS, join_bits
from narrowgate.ops.split_master.reference import SPLIT_ROOMS, split_bits, split_master

__all__ = ["Block", "check_lists", "check_signals", "on_host", "samples", "walk"]

_ROOMS = max(JOIN_ROOMS, SPLIT_ROOMS) + 1
"""Operands of a block: gradient, temporary, a float64 one (two), and last the weight. Joining and
splitting use all but the last, before and after the update."""

Weights = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Parameters, remainders and gradients."""

_LIMITS = {dtype: largest_master(name) for name, dtype in HALF_OF.items()}
_LIMITS[torch.float32] = torch.finfo(torch.float32).max


def check_lists(
    op: str,
    params: Sequence[Tensor],
    remainders: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: dict[str, Sequence[Tensor]],
    *,
    meta: bool,
) -> None:
    """Refuse lists that do not belong together, entry by entry.

    Args:
        op: Name of the op, for the message.
        params: All float32, or all of one 16-bit format.
        remainders: int16 beside 16-bit parameters; empty beside float32 ones.
        grads: Any of `_checks.GRADIENTS`, any strides.
        states: Name -> float32 tensors with the parameters' strides.
        meta: Whether tensors without data are let through.

    Raises:
        OpError: What does not fit, and where.
    """
    _checks.same_length(op, params=params, grads=grads, **states)
    if params:
        _checks.tensor(op, "params[0]", params[0], (torch.float32, *_checks.HALVES))
        split = params[0].dtype is not torch.float32
        if split:
            _checks.same_length(op, params=params, remainders=remainders)
        elif remainders:
            _checks.refuse(
                op,
                "remainders",
                f"a list of {len(remainders)} beside float32 parameters",
                "an empty list",
                "a float32 parameter is its own master; pass remainders=[]",
            )
    named = {"remainders": (remainders, torch.int16)} if remainders else {}
    named |= {state: (values, torch.float32) for state, values in states.items()}
    for i, param in enumerate(params):
        name = f"params[{i}]"
        _checks.tensor(op, name, param, (params[0].dtype,))
        if not meta:
            _checks.not_meta(op, name, param)
        _checks.dense(op, name, param)
        _checks.same_device(op, name, param, params[0], "params[0]")
        grad, shape, stride, device = grads[i], param.shape, param.stride(), param.device
        if not _fits(grad, shape, None, device) or grad.dtype not in _checks.GRADIENTS:
            _checks.tensor(op, f"grads[{i}]", grad, _checks.GRADIENTS)
            _checks.same_place(op, f"grads[{i}]", grad, param, name, strides=False)
        for list_name, (values, dtype) in named.items():
            value = values[i]
            if not _fits(value, shape, stride, device) or value.dtype is not dtype:
                _checks.tensor(op, f"{list_name}[{i}]", value, (dtype,))
                _checks.same_place(op, f"{list_name}[{i}]", value, param, name, strides=True)


def _fits(
    value: Tensor, shape: torch.Size, stride: tuple[int, ...] | None, device: torch.device
) -> bool:
    """Tell at little cost that nothing speaks against a tensor; where this does not, `_checks` do.

    A step checks several lists of hundreds of tensors, nearly always rightly made.
    """
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.shape == shape
        and value.device == device
        and (stride is None or value.stride() == stride)
    )


def check_signals(op: str, params: Sequence[Tensor], grad_mult: Tensor, skip: Tensor) -> None:
    """Refuse a multiplier or a skip flag that is no FP32 scalar on the parameters' device."""
    like = params[0] if params else None
    _checks.scalar(op, "grad_mult", grad_mult, like, "params[0]")
    _checks.scalar(op, "skip", skip, like, "params[0]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of one parameter, all float32 unless said; an op changes its tensors in place.

    Args:
        weight: The masters.
        grad: The gradients times `grad_mult`, negated to maximize; free to be overwritten.
        states: The block of each state of the parameter.
        temporary: Room for one operand.
        wide: Room for one float64 operand.
    """

    weight: Tensor
    grad: Tensor
    states: list[Tensor]
    temporary: Tensor
    wide: Tensor


def on_host(value: Tensor) -> bool:
    """Tell whether reading a value waits for nothing, because it is in host memory."""
    return value.device.type == "cpu"


def walk(
    apply: Callable[[int, Block], None],
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    states: list[list[Tensor]],
    *,
    grad_mult: Tensor,
    skip: Tensor,
    maximize: bool,
) -> Tensor:
    """Update every parameter, block by block.

    Args:
        apply: Called as ``apply(i, block)`` for each block of parameter i.
        params: At least one.
        remainders: Beside 16-bit parameters.
        grads: Gradients, one per parameter.
        states: For each state a list with one tensor per parameter.
        grad_mult: Multiplies every gradient.
        skip: On other devices than the CPU: nonzero keeps every old value. On the CPU the caller
            has read it, and does not call.
        maximize: Whether to go up the gradient.

    Returns:
        Saturated elements per parameter, int64.
    """
    keep = None if on_host(skip) else skip != 0
    factor = grad_mult.item() if on_host(grad_mult) else grad_mult
    scratch = rooms(_ROOMS, params)
    counts: list[int | Tensor] = []
    for i, param in enumerate(params):
        grad = flat(in_layout_of(grads[i], param))
        lanes = [flat(state[i]) for state in states]
        target = _Target(param, remainders[i] if remainders else None)
        count: int | Tensor = 0
        for part in blocks(param.numel()):
            room = scratch[:, : part.stop - part.start]
            block = Block(
                weight=target.load(part, keep, room),  # before the gradient: it uses that room
                grad=room[0].view(torch.float32).copy_(grad[part]).mul_(factor),
                states=[lane[part] for lane in lanes],
                temporary=room[1].view(torch.float32),
                wide=scratch[2:4].view(-1).view(torch.float64)[: room.shape[1]],
            )
            if maximize:
                block.grad.neg_()
            before = [] if keep is None else [state.clone() for state in block.states]
            apply(i, block)
            if keep is not None:
                for old, state in zip(before, block.states, strict=True):
                    state.copy_(torch.where(keep, old, state))
            count = count + target.store(block.weight, part, keep, room)
        counts.append(count)
    if keep is None:
        return torch.tensor(counts, dtype=torch.int64)
    zero = torch.zeros((), dtype=torch.int64, device=skip.device)
    return torch.stack([zero + count for count in counts])


class _Target:
    """A parameter and its remainder, read and written as FP32 masters.

    Args:
        param: float32, or the half of a split master.
        remainder: None beside float32.
    """

    def __init__(self, param: Tensor, remainder: Tensor | None) -> None:
        self._dtype = param.dtype
        self._limit = _LIMITS[param.dtype]
        self._param = flat(param)
        self._codes = None if remainder is None else self._param.view(torch.int16)
        self._remainder = None if remainder is None else flat(remainder)

    def load(self, part: slice, keep: Tensor | None, room: Tensor) -> Tensor:
        """Give the masters of a block, in the last room; float32 without `keep` in place."""
        weight = room[-1].view(torch.float32)
        if self._codes is not None and self._remainder is not None:
            join_bits(self._codes[part], self._remainder[part], self._dtype, room[:-1], weight)
            return weight
        return self._param[part] if keep is None else weight.copy_(self._param[part])

    def store(self, weight: Tensor, part: slice, keep: Tensor | None, room: Tensor) -> int | Tensor:
        """Write the masters of a block, and count those which saturated."""
        limit = self._limit
        fits = False
        if keep is None:
            low, high = (end.item() for end in torch.aminmax(weight))
            fits = -limit <= low and high <= limit  # both False for NaN
        count: int | Tensor = 0
        if not fits:
            outside = (weight.abs() <= limit).logical_not_().sum()
            count = int(outside.item()) if keep is None else torch.where(keep, 0, outside)
        if self._codes is None or self._remainder is None:
            if keep is not None:
                self._param[part].copy_(torch.where(keep, self._param[part], weight))
            return count
        if not fits:
            weight.clamp_(-limit, limit)
        new = split_bits(weight.view(torch.int32), self._dtype, room[:-1], within_limit=fits)
        for stored, bits in zip((self._codes[part], self._remainder[part]), new, strict=True):
            # int32 -> int16 keeps the low 16 bits.
            stored.copy_(bits if keep is None else torch.where(keep, stored.to(bits.dtype), bits))
        return count


def samples() -> list[Weights]:
    """Give (params, remainders, grads) for the samples of an optimizer op, in every format."""
    generator = torch.Generator().manual_seed(0)
    masters = [
        torch.randn(5, 3, generator=generator),
        torch.randn(2, 3, 2, 2, generator=generator).to(memory_format=torch.channels_last),
        torch.zeros(0),
    ]
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    grads = [
        torch.randn(master.shape, generator=generator).to(dtype)
        for master, dtype in zip(masters, dtypes, strict=True)
    ]
    found: list[Weights] = [([master.clone() for master in masters], [], grads)]
    for name in HALF_OF:
        pairs = [split_master(master, name) for master in masters]
        found.append(([pair[0] for pair in pairs], [pair[1] for pair in pairs], grads))
    return found
