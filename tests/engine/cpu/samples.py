"""Calls of each overridden operator: shapes, layouts, geometries. Data for several tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: the overload, and its arguments in FP32, to be rounded by whoever uses it."""

    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def _t(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _transposed(*shape: int) -> Tensor:
    return _t(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def _strided(*shape: int) -> Tensor:
    """Neither contiguous nor dense: every second column of something wider."""
    return _t(*shape[:-1], 2 * shape[-1])[..., ::2]


def _products() -> Iterator[Call]:
    layouts = {"plain": _t, "transposed": _transposed, "strided": _strided}
    for layout, make in layouts.items():
        for m, k, n in ((5, 7, 3), (64, 33, 17), (0, 4, 3), (4, 0, 3), (1, 300, 1)):
            tag = f"{layout} {m}x{k}x{n}"
            a, b, c = make(m, k), make(k, n), make(m, n)
            yield Call(name=f"mm {tag}", op=aten.mm.default, args=(a, b))
            yield Call(name=f"addmm {tag}", op=aten.addmm.default, args=(c, a, b))
            yield Call(name=f"addmm row {tag}", op=aten.addmm.default, args=(_t(n), a, b))
            a, b, c = make(2, m, k), make(2, k, n), make(2, m, n)
            yield Call(name=f"bmm {tag}", op=aten.bmm.default, args=(a, b))
            yield Call(name=f"baddbmm {tag}", op=aten.baddbmm.default, args=(c, a, b))
            yield Call(name=f"addbmm {tag}", op=aten.addbmm.default, args=(c[0], a, b))
    yield Call(
        name="mm expanded", op=aten.mm.default, args=(_t(1, 8).expand(6, 8), _t(8, 1).expand(8, 5))
    )
    scaled = {"beta": 0.5, "alpha": -2}
    nan = torch.full((4, 3), torch.nan)
    for kwargs in (scaled, {"beta": 0}):
        tag = " ".join(f"{k}={v}" for k, v in kwargs.items())
        c = nan if kwargs == {"beta": 0} else _t(4, 3)
        yield Call(
            name=f"addmm {tag}", op=aten.addmm.default, args=(c, _t(4, 5), _t(5, 3)), kwargs=kwargs
        )
        yield Call(
            name=f"baddbmm {tag}",
            op=aten.baddbmm.default,
            args=(c.expand(2, 4, 3), _t(2, 4, 5), _t(2, 5, 3)),
            kwargs=kwargs,
        )
    for m, k in ((6, 40), (0, 3), (3, 0)):
        for layout, make in layouts.items():
            a = make(m, k)
            yield Call(name=f"mv {layout} {m}x{k}", op=aten.mv.default, args=(a, _t(k)))
            yield Call(
                name=f"addmv {layout} {m}x{k}",
                op=aten.addmv.default,
                args=(_t(m), a, _t(k)),
                kwargs=scaled,
            )
        yield Call(name=f"addr {m}x{k}", op=aten.addr.default, args=(_t(m, k), _t(m), _t(k)))
        yield Call(
            name=f"addr scaled {m}x{k}",
            op=aten.addr.default,
            args=(_t(k), _t(m), _t(k)),
            kwargs=scaled,
        )
    for n in (0, 1, 1000):
        yield Call(name=f"dot {n}", op=aten.dot.default, args=(_t(n), _t(n)))
        yield Call(name=f"vdot {n}", op=aten.vdot.default, args=(_strided(n), _t(n)))


def _convolutions() -> Iterator[Call]:
    def both(
        name: str,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool = False,
        output_padding: Sequence[int] | None = None,
        groups: int = 1,
    ) -> Iterator[Call]:
        extra = [0] * len(stride) if output_padding is None else output_padding
        geometry = (stride, padding, dilation, transposed, extra, groups)
        yield Call(
            name=f"convolution {name}", op=aten.convolution.default, args=(x, w, bias, *geometry)
        )
        y = aten.convolution.default(x, w, bias, *geometry)
        sizes = None if bias is None else list(bias.shape)
        for mask in ([True, True, bias is not None], [False, True, False]):
            yield Call(
                name=f"convolution_backward {name} {mask}",
                op=aten.convolution_backward.default,
                args=(torch.randn_like(y), x, w, sizes, *geometry, mask),
            )

    last = torch.channels_last
    yield from both("1d", _t(2, 3, 20), _t(4, 3, 5), _t(4), [1], [2], [1])
    yield from both("1d strided no bias", _t(2, 3, 20), _t(4, 3, 5), None, [2], [0], [1])
    yield from both("2d", _t(2, 3, 9, 8), _t(4, 3, 3, 3), _t(4), [1, 1], [1, 1], [1, 1])
    yield from both(
        "2d stride padding dilation",
        _t(2, 3, 11, 10),
        _t(4, 3, 3, 2),
        _t(4),
        [2, 1],
        [1, 2],
        [2, 1],
    )
    yield from both(
        "2d channels_last",
        _t(2, 8, 9, 8).contiguous(memory_format=last),
        _t(4, 8, 3, 3).contiguous(memory_format=last),
        _t(4),
        [1, 1],
        [1, 1],
        [1, 1],
    )
    yield from both(
        "2d grouped", _t(2, 4, 9, 8), _t(8, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], groups=2
    )
    yield from both(
        "2d depthwise", _t(2, 4, 9, 8), _t(4, 1, 3, 3), _t(4), [1, 1], [1, 1], [1, 1], groups=4
    )
    yield from both(
        "2d transposed",
        _t(2, 3, 5, 6),
        _t(3, 4, 3, 3),
        _t(4),
        [2, 2],
        [1, 1],
        [1, 1],
        transposed=True,
        output_padding=[1, 0],
    )
    yield from both("3d", _t(1, 2, 5, 6, 7), _t(3, 2, 3, 3, 3), _t(3), [1] * 3, [1] * 3, [1] * 3)
    yield from both("empty batch", _t(0, 3, 9, 8), _t(4, 3, 3, 3), _t(4), [1, 1], [1, 1], [1, 1])
    yield from both(
        "strided input", _strided(2, 3, 9, 8), _t(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1]
    )


def _attention() -> Iterator[Call]:
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    heads_last = _t(2, 6, 3, 8).transpose(1, 2)
    variants: dict[str, tuple[tuple[Tensor, Tensor, Tensor], bool, dict[str, Any]]] = {
        "plain": ((_t(2, 3, 6, 8), _t(2, 3, 9, 8), _t(2, 3, 9, 8)), False, {}),
        "causal": ((_t(2, 3, 6, 8), _t(2, 3, 6, 8), _t(2, 3, 6, 8)), True, {}),
        "heads last, scaled": ((heads_last, heads_last, heads_last), True, {"scale": 0.3}),
        "masked": (
            (_t(2, 3, 6, 8), _t(2, 3, 9, 8), _t(2, 3, 9, 8)),
            False,
            {"attn_mask": _t(2, 1, 6, 9)},
        ),
    }
    for name, ((q, k, v), causal, kwargs) in variants.items():
        yield Call(name=f"attention {name}", op=forward, args=(q, k, v, 0.0, causal), kwargs=kwargs)
        output, logsumexp = forward(q, k, v, 0.0, causal, **kwargs)
        yield Call(
            name=f"attention backward {name}",
            op=backward,
            args=(torch.randn_like(output), q, k, v, output, logsumexp, 0.0, causal),
            kwargs=kwargs,
        )


def kernel_calls() -> list[Call]:
    """Calls of every functional operator of the kernel table, the same on each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        return [*_products(), *_convolutions(), *_attention()]


def halve(value: Any, dtype: torch.dtype) -> Any:
    """Round a floating argument to 16 bits, strides kept; logsumexp, always FP32, excepted."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    if 0 in value.stride() and value.numel():
        # An expanded tensor: round what it is a view of.
        base = value.as_strided(
            [1 if s == 0 else n for n, s in zip(value.shape, value.stride(), strict=True)],
            value.stride(),
        )
        return base.to(dtype).expand(value.shape)
    out = torch.empty_strided(value.size(), value.stride(), dtype=dtype)
    return out.copy_(value)


def halved(call: Call, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call in a 16-bit format."""
    backward = "attention backward" in call.name
    args = [
        a if backward and position == 5 else halve(a, dtype) for position, a in enumerate(call.args)
    ]
    return args, {key: halve(value, dtype) for key, value in call.kwargs.items()}


def widen(value: Any) -> Any:
    """A 16-bit tensor in FP32, strides kept as ``Tensor.float`` keeps them."""
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Same shape, dtype, strides and bits; NaN equals NaN."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.stride() == b.stride()
        and torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.nan_to_num().signbit(), b.nan_to_num().signbit())
        and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


def flat(result: Any) -> list[Tensor | None]:
    """The results of a call as a list."""
    return [result] if isinstance(result, Tensor) else list(result)
