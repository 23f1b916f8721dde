"""What the ops are compared with: NumPy and ml_dtypes, written from the formulas and not from ops.

What is true here: nothing in this file calls torch's arithmetic. NumPy rounds each float32
operation once, which is what the ops promise; the splits use float64, where the ops use integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import torch

Array = np.ndarray

CODE = {torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16, torch.float32: np.float32}


def bits(value: torch.Tensor) -> Array:
    """The bit patterns of a tensor of 16- or 32-bit floats, unsigned, in logical order."""
    width = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}[value.element_size()]
    return value.contiguous().view(width[0]).cpu().numpy().view(width[1])


def from_array(value: Array) -> torch.Tensor:
    """A tensor with the bits of a float32, float16 or bfloat16 array."""
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def to_array(value: torch.Tensor) -> Array:
    """The same bits as a NumPy array of the same format (bfloat16 of ml_dtypes)."""
    if value.dtype is torch.bfloat16:
        return bits(value).view(ml_dtypes.bfloat16)
    return value.contiguous().numpy().copy()


def on_grid(w: Array) -> Array:
    """float32 -> float32: magnitudes below 2^-16 to the nearest multiple of 2^-39, ties to even."""
    wide = w.astype(np.float64)
    rounded = np.copysign(np.rint(np.abs(wide) * 2.0**39) * 2.0**-39, wide)
    return np.where(np.abs(wide) < 2.0**-16, rounded, wide).astype(np.float32)


def split_fp16(w: Array) -> tuple[Array, Array]:
    """Finite float32 below 65,520 -> (fp16 codes, remainders), in float64 arithmetic."""
    wide = on_grid(w).astype(np.float64)
    half = wide.astype(np.float16)
    magnitude = np.abs(half.astype(np.float64))
    # frexp gives magnitude = fraction * 2^exponent with fraction in [0.5, 1).
    exponent = np.where(magnitude == 0, -14, np.maximum(np.frexp(magnitude)[1] - 1, -14))
    code = (np.abs(wide) - magnitude) / np.ldexp(1.0, exponent - 25)
    remainder = code.astype(np.int16)
    assert (remainder == code).all(), "a remainder is no 16-bit integer"
    return half.view(np.uint16), remainder


@dataclass(slots=True)
class Adam:
    """Adam and AdamW on one float32 array, every operation rounded once.

    Args:
        w: The master; changed by `step`.
        limit: Magnitude at which the weight saturates; None for float32 parameters.
        snap: What storing does to a master, such as `on_grid`.
    """

    w: Array
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    maximize: bool
    limit: float | None = None
    snap: bool = False
    t: int = 0
    m: Array = field(init=False)
    v: Array = field(init=False)

    def __post_init__(self) -> None:
        """Start the moments at zero."""
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def step(self, grad: Array, mult: float) -> int:
        """Do one step; give how many elements saturated."""
        fl = np.float32
        g = grad.astype(np.float32) * fl(mult)
        if self.maximize:
            g = -g
        if self.weight_decay and not self.decoupled:
            g = g + self.w * fl(self.weight_decay)
        self.m = self.m * fl(self.beta1) + g * fl(1 - self.beta1)
        self.v = self.v * fl(self.beta2) + (g * g) * fl(1 - self.beta2)
        self.t += 1
        bc1, bc2 = 1 - self.beta1**self.t, 1 - self.beta2**self.t
        denom = np.sqrt(self.v) / fl(math.sqrt(bc2)) + fl(self.eps)
        w = self.w
        if self.weight_decay and self.decoupled:
            w = w * fl(1 - self.lr * self.weight_decay)
        with np.errstate(invalid="ignore"):  # Inf / Inf is a test of its own
            w = w - (self.m / denom) * fl(self.lr / bc1)
        self.w, count = store(w, self.limit, snap=self.snap)
        return count


@dataclass(slots=True)
class Sgd:
    """SGD on one float32 array, every operation rounded once; the fields are those of `Adam`."""

    w: Array
    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    limit: float | None = None
    snap: bool = False
    b: Array = field(init=False)

    def __post_init__(self) -> None:
        """Start the buffer at zero."""
        self.b = np.zeros_like(self.w)

    def step(self, grad: Array, mult: float) -> int:
        """Do one step; give how many elements saturated."""
        fl = np.float32
        g = grad.astype(np.float32) * fl(mult)
        if self.maximize:
            g = -g
        if self.weight_decay:
            g = g + self.w * fl(self.weight_decay)
        if self.momentum:
            self.b = self.b * fl(self.momentum) + g
            g = g + self.b * fl(self.momentum) if self.nesterov else self.b
        self.w, count = store(self.w - g * fl(self.lr), self.limit, snap=self.snap)
        return count


def store(w: Array, limit: float | None, *, snap: bool) -> tuple[Array, int]:
    """What is left of a master after it is stored, and how many elements saturated."""
    if limit is None:
        return w, int((~np.isfinite(w)).sum())
    count = int((~(np.abs(w) <= np.float32(limit))).sum())
    w = np.clip(w, np.float32(-limit), np.float32(limit))
    return on_grid(w) if snap else w, count


def checksum(codes: list[int]) -> int:
    """The 64-bit checksum of 16-bit codes, with Python's integers."""
    top = 1 << 64
    gamma, mix_1, mix_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    total = len(codes) * gamma
    for j, start in enumerate(range(0, len(codes), 4)):
        word = sum(code << (16 * i) for i, code in enumerate(codes[start : start + 4]))
        h = (word ^ ((j + 1) * gamma % top)) * mix_1 % top
        total += (h ^ (h >> 32)) * mix_2
    total %= top
    return total - top if total >= top // 2 else total
