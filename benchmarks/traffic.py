"""Counting what a step must do, to say beforehand how long it should take.

What is true here: a dispatch mode sees every operator below autograd with the formats that really
arrive there. Matrix products, convolutions and attention are counted in floating-point operations;
where their operands are in a format without units, the bytes of widening the operands and rounding
the result are counted too. Everything else is counted by the bytes of its tensors, once in and once
out. With four rates of the machine at hand, measured on tensors of the sizes in question, this
gives a time; it is a prediction from below, since kernels call for more than bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Rates", "Traffic", "TrafficCounter", "best_rates", "measure_rates"]

_HALVES = (torch.bfloat16, torch.float16)


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What was counted.

    Attributes:
        flops: Operations of products whose operands are FP32, or of a format without units.
        native_flops: Operations of products in a 16-bit format with units.
        widened_bytes: Bytes read and written to widen operands and to round results.
        other_bytes: Bytes in and out of all other operators.
    """

    flops: float = 0.0
    native_flops: float = 0.0
    widened_bytes: float = 0.0
    other_bytes: float = 0.0

    def seconds(self, rates: Rates) -> float:
        """Predict the time.

        Args:
            rates: Of the machine.

        Returns:
            Seconds.
        """
        return (
            self.flops / rates.flops
            + self.native_flops / rates.native_flops
            + self.widened_bytes / rates.widening
            + self.other_bytes / rates.copying
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the machine does in a second.

    Attributes:
        flops: Operations of an FP32 matrix product.
        native_flops: Operations of a bf16 matrix product, by torch's own kernel.
        widening: Bytes, read and written, of a conversion from bf16 to FP32 and back.
        copying: Bytes, read and written, of an FP32 addition.
    """

    flops: float
    native_flops: float
    widening: float
    copying: float

    def to_json(self) -> dict[str, float]:
        """Give plain data."""
        return asdict(self)


class TrafficCounter(TorchDispatchMode):
    """Count the operators that run within.

    Args:
        widened: The 16-bit formats whose products run on FP32 kernels.
    """

    def __init__(self, widened: frozenset[torch.dtype]) -> None:
        super().__init__()
        self.traffic = Traffic()
        self._widened = widened

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count it."""
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
        flops = _flops(name, args, given, made)
        if flops:
            dtype = given[-1].dtype
            if dtype in _HALVES and dtype not in self._widened:
                self.traffic.native_flops += flops
            else:
                self.traffic.flops += flops
            if dtype in self._widened:
                halves = [t for t in (*given, *made) if t.dtype is dtype]
                # 2 bytes on the 16-bit side and 4 on the other, one read and one written
                self.traffic.widened_bytes += 6 * sum(t.numel() for t in halves)
        elif not func.is_view:
            self.traffic.other_bytes += sum(t.numel() * t.element_size() for t in (*given, *made))
        return output


def _flops(name: str, args: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> float:
    """Count the operations of a product: two for each multiplication; 0 for anything else."""
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left = given[-2]
        return 2.0 * made[0].numel() * left.shape[-1]
    if name in ("convolution", "convolution_backward"):
        backward = name == "convolution_backward"
        output, weight = (given[0], given[2]) if backward else (made[0], given[1])
        once = 2.0 * output.numel() * math.prod(weight.shape[1:])
        return once * sum(args[-1][:2]) if backward else once
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        backward = name.endswith("backward")
        query, key = (given[1], given[2]) if backward else (given[0], given[1])
        # Two products forward, five backward (two of them again); causal masks are half skipped.
        products = 5.0 if backward else 2.0
        causal = any(value is True for value in args)
        return products * 2.0 * query.numel() * key.shape[-2] * (0.5 if causal else 1.0)
    return 0.0


def measure_rates(rows: int = 2048, width: int = 384, repeats: int = 7) -> Rates:
    """Measure the machine's rates, on all its threads; call it before kernels are installed.

    Args:
        rows: Rows of an activation.
        width: Its columns.
        repeats: Each is timed so often, and the least time counts.

    Returns:
        The rates.
    """
    x, weight = torch.randn(rows, width), torch.randn(4 * width, width)
    halves = x.bfloat16(), weight.bfloat16()
    flops = 2.0 * rows * width * 4 * width
    wide, other = torch.randn(rows, 4 * width), torch.randn(rows, 4 * width)
    narrow = wide.bfloat16()
    return Rates(
        flops=flops / _least_seconds(lambda: F.linear(x, weight), repeats),
        native_flops=flops / _least_seconds(lambda: F.linear(*halves), repeats),
        widening=12 * wide.numel() / _least_seconds(lambda: narrow.float().bfloat16(), repeats),
        copying=12 * wide.numel() / _least_seconds(lambda: wide + other, repeats),
    )


def best_rates(measured: Sequence[Rates]) -> Rates:
    """Take the best of each rate, as of a step's time the least.

    Args:
        measured: Rates of the same machine at several times.

    Returns:
        The rates.
    """
    rows = [rates.to_json() for rates in measured]
    return Rates(**{key: max(row[key] for row in rows) for key in rows[0]})


def _least_seconds(run: Callable[[], object], repeats: int) -> float:
    least = math.inf
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - begin)
    return least
