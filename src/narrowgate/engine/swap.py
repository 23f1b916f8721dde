"""A module keeps its class's name, its keys and its place; only its forward becomes another.

The class of a module is swapped for a subclass of the same name whose forward is wrapped. Wrapping
an instance's forward would make copies run the original's weights, and hooks cannot be traced into
a compiled graph; a subclass survives isinstance, state_dict, deepcopy, pickle, compile and
sharding. What a wrapped forward needs to know is plain data on the instance, so that copies carry
it too.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from narrowgate.engine import norms
from narrowgate.engine.buffers import BufferGuard
from narrowgate.engine.cpu.native import HALVES
from narrowgate.engine.recording import note_entered
from narrowgate.errors import PrepareError

__all__ = ["autocast", "is_covered", "is_prepared", "mark", "swap", "unswap", "widen"]

Forward = Callable[..., Any]

_DEVICE = "_narrowgate_device"
_COMPUTE = "_narrowgate_compute"
_GUARD = "_narrowgate_guard"
_OWN = (_DEVICE, _COMPUTE, _GUARD)


def widen(value: Any) -> Any:
    """Widen all 16-bit floating tensors in a value to FP32, through containers.

    Args:
        value: A tensor, a tuple, list, dict, dataclass or packed sequence of such, or anything
            else.

    Returns:
        The same structure with 16-bit tensors in FP32; what holds none is returned as it is.
    """
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALVES else value
    if isinstance(value, PackedSequence):
        return value.to(torch.float32) if value.data.dtype in HALVES else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(widen(item) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(widen(item) for item in value)
    if isinstance(value, dict):
        wide = {key: widen(item) for key, item in value.items()}
        if isinstance(value, defaultdict):
            return type(value)(value.default_factory, wide)
        return wide if type(value) is dict else type(value)(**wide)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: widen(getattr(value, f.name)) for f in fields(value) if f.init}
        )
    return value


def _region(inner: Forward) -> Forward:
    """Run the forward under autocast to the module's format; give FP32 to whoever called."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device: str = getattr(self, _DEVICE)
        dtype: torch.dtype | None = getattr(self, _COMPUTE)
        guard: BufferGuard | None = getattr(self, _GUARD, None)
        if guard is not None and self.training and torch.is_grad_enabled():
            guard.snapshot()
        if dtype is None:  # an FP32 part of a 16-bit model: its inputs may be 16-bit
            with torch.autocast(device, enabled=False):
                return inner(self, *widen(args), **widen(kwargs))
        with torch.autocast(device, dtype):
            output = inner(self, *args, **kwargs)
        return widen(output)

    return forward


def _island(inner: Forward) -> Forward:
    """Run the forward in FP32."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(getattr(self, _DEVICE), enabled=False):
            return inner(self, *widen(args), **widen(kwargs))

    return forward


def _embedding(inner: Forward) -> Forward:
    """Widen what the embedding gives."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return widen(inner(self, *args, **kwargs))

    return forward


def _norm(inner: Forward) -> Forward:
    """Sum in FP32 and return the input's format, whatever mix of formats comes in.

    The stock forward raises on FP32 input with 16-bit scale, and under CUDA's autocast it returns
    FP32, which doubles what the residual stream keeps for backward.
    """

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        weight = None if self.weight is None else self.weight.float()
        bias = getattr(self, "bias", None)
        bias = None if bias is None else bias.float()
        with torch.autocast(input.device.type, enabled=False):
            if isinstance(self, nn.GroupNorm):
                return norms.group_norm(input, self.num_groups, weight, bias, self.eps)
            shape = tuple(self.normalized_shape)
            if isinstance(self, nn.RMSNorm):
                return norms.rms_norm(input, shape, weight, self.eps)
            return norms.layer_norm(input, shape, weight, bias, self.eps)

    return forward


def _rnn(inner: Forward) -> Forward:
    """Run the fused FP32 recurrence on widened weights and inputs; round the output once.

    States stay FP32: they are small, and a state carried from batch to batch would lose bits.
    """

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's own name
        halves = self._flat_weights
        with torch.autocast(getattr(self, _DEVICE), enabled=False):
            self._flat_weights = [weight.float() for weight in halves]
            try:
                output, state = inner(self, widen(input), widen(hx))
            finally:
                self._flat_weights = halves
        return output.to(getattr(self, _COMPUTE)), state

    return forward


_WRAPPERS: dict[str, Callable[[Forward], Forward]] = {
    "region": _region,
    "island": _island,
    "embedding": _embedding,
    "norm": _norm,
    "rnn": _rnn,
}


# A class that nobody uses any more goes, and the one below it: parametrized modules have one each.
_made: WeakValueDictionary[tuple[type[nn.Module], str], type[nn.Module]] = WeakValueDictionary()


def _subclass(base: type[nn.Module], treatment: str) -> type[nn.Module]:
    """Make the subclass of a class whose forward is wrapped; the same one every time."""
    known = _made.get((base, treatment))
    if known is not None:
        return known
    wrapped = functools.wraps(base.forward)(_WRAPPERS[treatment](base.forward))
    body = {
        "forward": wrapped,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce_ex,
        "_narrowgate_base": base,
        "_narrowgate_treatment": treatment,
    }
    metaclass: Any = type(base)
    made: type[nn.Module] = metaclass(base.__name__, (base,), body)
    _made[base, treatment] = made
    return made


def _reduce_ex(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """Copy and pickle by the class that has a name, and the treatments on top of it."""
    treatments = []
    base: Any = type(self)
    while hasattr(base, "_narrowgate_base"):
        treatments.append(base._narrowgate_treatment)
        base = base._narrowgate_base
    reduced = object.__reduce_ex__(self, protocol)
    assert isinstance(reduced, tuple)
    return (_rebuild, (base, tuple(reversed(treatments))), *reduced[2:])


def _rebuild(base: type[nn.Module], treatments: tuple[str, ...]) -> nn.Module:
    """Make an empty module of the swapped class."""
    for treatment in treatments:
        base = _subclass(base, treatment)
    return base.__new__(base)


def is_prepared(module: nn.Module) -> bool:
    """Say whether a module, or the model around it, was prepared."""
    return _DEVICE in module.__dict__


def mark(module: nn.Module, device: str) -> None:
    """Mark a model as prepared whose forward stays as it is.

    Args:
        module: The root of a model.
        device: Kind of device that holds it.
    """
    setattr(module, _DEVICE, device)


def swap(
    module: nn.Module,
    treatment: str,
    *,
    device: str,
    compute: torch.dtype | None,
    guard: BufferGuard | None = None,
) -> None:
    """Swap the class of a module for one whose forward is wrapped.

    Args:
        module: The module, changed in place.
        treatment: A treatment of the plan: ``region``, ``island``, ``norm``, ``rnn``,
            ``embedding``.
        device: Kind of device whose autocast is meant.
        compute: The 16-bit format of the region around; None in an FP32 region.
        guard: What keeps the buffers of a skipped step; on the root of a model only.

    Raises:
        PrepareError: The instance has a forward of its own, which a swapped class would not reach.
    """
    if "forward" in module.__dict__:
        raise PrepareError(
            f"a {type(module).__name__} has its forward replaced on the instance",
            hint="call prepare() before whatever replaces the forward",
        )
    module.__class__ = _subclass(type(module), treatment)
    mark(module, device)
    setattr(module, _COMPUTE, compute)
    if guard is not None:
        setattr(module, _GUARD, guard)


def is_covered(module: nn.Module) -> bool:
    """Say whether somebody has swapped the class of a swapped module again, as parametrizations do.

    Args:
        module: Any module.

    Returns:
        True if `unswap` would take away what is on top.
    """
    ours = hasattr(type(module), "_narrowgate_base")
    return ours and "_narrowgate_base" not in vars(type(module))


def unswap(module: nn.Module) -> None:
    """Give a module its own class back.

    Args:
        module: The module, changed in place; one that was never swapped is left alone.
    """
    while hasattr(type(module), "_narrowgate_base"):
        module.__class__ = type(module)._narrowgate_base  # type: ignore[attr-defined]
    for name in _OWN:
        module.__dict__.pop(name, None)


def autocast(model: nn.Module) -> torch.autocast:
    """Enter a prepared model's region for methods and parts called other than by its forward.

    Args:
        model: A model that `prepare` returned.

    Returns:
        A context manager: autocast as the model's forward enters it, switched off for FP32 recipes.

    Example:
        >>> import torch, narrowgate as ng
        >>> model = torch.nn.Linear(2, 2)
        >>> model, _ = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16")
        >>> with ng.autocast(model):
        ...     (model.weight @ model.weight).dtype
        torch.bfloat16
    """
    guard: BufferGuard | None = model.__dict__.get(_GUARD)
    if guard is not None and model.training and torch.is_grad_enabled():
        guard.snapshot()
    note_entered()
    dtype = model.__dict__.get(_COMPUTE)
    device = model.__dict__.get(_DEVICE, "cpu")
    return torch.autocast(device, dtype, enabled=dtype is not None)
