"""Backward cases of the swamping audit: gradients to which ADDENDS places contribute 1 each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from narrowgate.engine.audits.case import ADDENDS, Case, Make, case, grad, ones, signs, zeros_index
from narrowgate.engine.audits.forward import TINY

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """Yield the backward cases."""
    n = ADDENDS
    for how in _READS:
        yield case(f"{how}/input", partial(_read, how=how), n)
    for how in _WINDOWS:
        yield case(f"{how}/input", partial(_window, how=how), n // 4)
    for how in _STRETCHES:
        yield case(f"{how}/input", partial(_stretch, how=how), n)
    for norm in ("layer_norm", "layer_norm fp32", "group_norm", "group_norm nhwc", "batch_norm"):
        for of in ("weight", "bias"):
            yield case(f"{norm}/{of}", partial(_norm, norm=norm, of=of), n)
    yield case("rms_norm/weight", partial(_norm, norm="rms_norm", of="weight"), n)
    for dims in (1, 2, 3):
        for of in ("weight", "bias"):
            yield case(f"conv{dims}d/{of}", partial(_conv, dims=dims, of=of), n)
    for of in ("weight", "bias"):
        yield case(f"conv_transpose1d/{of}", partial(_conv_transpose, of=of), n)
        yield case(f"linear/{of}", partial(_linear, of=of), n)
    yield case("linear/input", _linear_input, n)
    yield case("softmax/input", _softmax, 0.0, magnitude=1.0)
    yield case("layer_norm/input", _layer_norm_input, 0.0, magnitude=1.0)
    yield case("attention/value", _attention_value, n)
    yield case("attention/key", _attention_key, n / 8)
    yield case("prelu/weight", _prelu, n)
    yield case("bilinear/weight", _bilinear, n)
    yield case("cdist/input", _cdist, n)
    yield case("cumsum/input", _cumsum, n)
    yield case("embedding_bag/per_sample_weights", _per_sample_weights, n)


# -- one element, read many times ----------------------------------------------------------------

_READS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "getitem": lambda w, i: w[i],
    "index_select": lambda w, i: w.index_select(0, i),
    "gather": lambda w, i: w.gather(0, i[:, None]),
    "take": lambda w, i: w.take(i),
    "take_along_dim": lambda w, i: torch.take_along_dim(w, i[:, None], 0),
    "embedding": lambda w, i: F.embedding(i, w),
    "embedding_bag sum": lambda w, i: F.embedding_bag(i[None], w, mode="sum"),
    "embedding_bag mean": lambda w, i: F.embedding_bag(i[:, None], w, mode="mean"),
    "embedding_bag max": lambda w, i: F.embedding_bag(i[:, None], w, mode="max"),
    "expand": lambda w, _: w.expand(ADDENDS, 1),
    "repeat": lambda w, _: w.repeat(ADDENDS, 1),
    "repeat_interleave": lambda w, _: w.repeat_interleave(ADDENDS, 0),
    "as_strided": lambda w, _: w.as_strided((ADDENDS,), (0,)),
    "broadcast add": lambda w, _: w + w.detach().expand(ADDENDS, 1),
    "broadcast mul": lambda w, _: w * w.detach().expand(ADDENDS, 1),
}


def _read(make: Make, *, how: str) -> Tensor:
    w = ones(make, 1, 1)
    return grad(_READS[how](w, zeros_index(w, ADDENDS)), w)


# -- one element, in many overlapping windows ----------------------------------------------------

_WIDTH = ADDENDS // 4

_WINDOWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "avg_pool1d": lambda x: F.avg_pool1d(x, _WIDTH, 1) * _WIDTH,
    "avg_pool2d": lambda x: F.avg_pool2d(x, (1, _WIDTH), 1) * _WIDTH,
    "max_pool1d": lambda x: F.max_pool1d(x, _WIDTH, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, (1, _WIDTH), 1),
    "unfold": lambda x: x.unfold(2, _WIDTH, 1),
    "im2col": lambda x: F.unfold(x[:, :, None], (1, _WIDTH)),
}


def _window(make: Make, *, how: str) -> Tensor:
    x = make(1, 1, 2 * _WIDTH - 1, value=0.0)
    x[..., _WIDTH - 1] = 1.0  # The maximum of every window, and in every window.
    x.requires_grad_()
    return grad(_WINDOWS[how](x), x)[..., _WIDTH - 1]


# -- one element, stretched over many ------------------------------------------------------------


def _resized(x: Tensor, mode: str, *size: int) -> Tensor:
    corners = False if mode in ("linear", "bilinear", "bicubic", "trilinear") else None
    return F.interpolate(x, size=size, mode=mode, align_corners=corners)


def _sampled(x: Tensor, *size: int) -> Tensor:
    grid = torch.zeros(1, *size, len(size), dtype=x.dtype, device=x.device)
    return F.grid_sample(x, grid, align_corners=True)


_STRETCHES: Mapping[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "interpolate nearest 1d": (1, lambda x: _resized(x, "nearest", ADDENDS)),
    "interpolate linear": (1, lambda x: _resized(x, "linear", ADDENDS)),
    "interpolate nearest 2d": (2, lambda x: _resized(x, "nearest", 128, 128)),
    "interpolate nearest-exact": (2, lambda x: _resized(x, "nearest-exact", 128, 128)),
    "interpolate area": (2, lambda x: _resized(x, "area", 128, 128)),
    "interpolate bilinear": (2, lambda x: _resized(x, "bilinear", 128, 128)),
    "interpolate bicubic": (2, lambda x: _resized(x, "bicubic", 128, 128)),
    "interpolate trilinear": (3, lambda x: _resized(x, "trilinear", 32, 32, 16)),
    "adaptive_avg_pool2d": (2, lambda x: F.adaptive_avg_pool2d(x, 128)),
    "adaptive_max_pool2d": (2, lambda x: F.adaptive_max_pool2d(x, 128)),
    "grid_sample 2d": (2, lambda x: _sampled(x, 128, 128)),
    "grid_sample 3d": (3, lambda x: _sampled(x, 32, 32, 16)),
    "replication_pad1d": (1, lambda x: F.pad(x, (0, ADDENDS - 1), mode="replicate")),
    "replication_pad2d": (2, lambda x: F.pad(x, (0, 127, 0, 127), mode="replicate")),
    "replication_pad3d": (3, lambda x: F.pad(x, (0, 15, 0, 31, 0, 31), mode="replicate")),
}


def _stretch(make: Make, *, how: str) -> Tensor:
    dims, run = _STRETCHES[how]
    x = ones(make, 1, 1, *(1,) * dims)
    return grad(run(x), x)


# -- weights and biases, shared by many samples --------------------------------------------------


def _norm(make: Make, *, norm: str, of: str) -> Tensor:
    """Each of ADDENDS normalised values is +1 or -1 and its seed has that sign, or is 1."""
    rows = norm.startswith(("layer", "rms"))
    w, b = ones(make, 2), ones(make, 2)
    if norm == "layer_norm fp32":
        w, b = (p.detach().float().requires_grad_() for p in (w, b))
    x = signs(make, ADDENDS, 2) if rows else signs(make, ADDENDS // 4, 2, 2, 2)
    if norm == "group_norm nhwc":
        x = x.contiguous(memory_format=torch.channels_last)
    # Torch 2.13's channels_last group norm crashes in backward if the input needs no gradient.
    x.requires_grad_()
    if norm.startswith("layer_norm"):
        y = F.layer_norm(x, (2,), w, b, 0.0)
    elif norm.startswith("group_norm"):
        y = F.group_norm(x, 1, w, b, 0.0)
    elif norm == "rms_norm":
        y = F.rms_norm(x, (2,), w, 0.0)
    else:
        y = F.batch_norm(x, None, None, w, b, True, 0.1, TINY)
    seed = x.detach() if of == "weight" else torch.ones_like(x)
    _, gradient = torch.autograd.grad(y, (x, w if of == "weight" else b), seed)
    return gradient


def _conv(make: Make, *, dims: int, of: str) -> Tensor:
    op = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    size = ((ADDENDS,), (128, 128), (32, 32, 16))[dims - 1]
    w, b = ones(make, 1, 1, *(1,) * dims), ones(make, 1)
    return grad(op(make(1, 1, *size), w, b), w if of == "weight" else b)


def _conv_transpose(make: Make, *, of: str) -> Tensor:
    w, b = ones(make, 1, 1, 1), ones(make, 1)
    return grad(F.conv_transpose1d(make(1, 1, ADDENDS), w, b), w if of == "weight" else b)


def _linear(make: Make, *, of: str) -> Tensor:
    w, b = ones(make, 1, 1), ones(make, 1)
    return grad(F.linear(make(2, ADDENDS // 2, 1), w, b), w if of == "weight" else b)


def _linear_input(make: Make) -> Tensor:
    x = ones(make, 2, 1)
    return grad(F.linear(x, make(ADDENDS, 1)), x)


def _prelu(make: Make) -> Tensor:
    w = ones(make, 1)
    return grad(F.prelu(make(ADDENDS, value=-1.0), w), w, make(ADDENDS, value=-1.0))


def _bilinear(make: Make) -> Tensor:
    w = ones(make, 1, 1, 1)
    return grad(F.bilinear(make(ADDENDS, 1), make(ADDENDS, 1), w), w)


def _per_sample_weights(make: Make) -> Tensor:
    table, weights = make(1, ADDENDS), ones(make, 1, 1)
    index = zeros_index(table, 1, 1)
    return grad(F.embedding_bag(index, table, mode="sum", per_sample_weights=weights), weights)


# -- sums inside a gradient's formula ------------------------------------------------------------


def _softmax(make: Make) -> Tensor:
    """Gradient y * (g - sum(g * y)) with g = 1: the sum is 1, the gradient 0."""
    x = make(ADDENDS, value=0.0).requires_grad_()
    return grad(x.softmax(0), x) * ADDENDS


def _layer_norm_input(make: Make) -> Tensor:
    """Gradient rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = 1: 0."""
    x = signs(make, 1, ADDENDS).requires_grad_()
    return grad(F.layer_norm(x, (ADDENDS,), None, None, 0.0), x)


def _attention_value(make: Make) -> Tensor:
    v = ones(make, 1, 1, 1, 8)
    attended = F.scaled_dot_product_attention(make(1, 1, ADDENDS, 8), make(1, 1, 1, 8), v)
    return grad(attended, v)


def _attention_key(make: Make) -> Tensor:
    """Two equal keys with values v and -v: a query adds 1/2 * (8 v - 0) to the first key.

    With v = 1/32 and 8 channels that is 1/8 per query.
    """
    k = ones(make, 1, 1, 2, 8)
    v = signs(make, 1, 1, 8, 2).transpose(2, 3).contiguous() / 32
    attended = F.scaled_dot_product_attention(make(1, 1, ADDENDS, 8), k, v, scale=1.0)
    return grad(attended, k)[..., 0, :]


def _cdist(make: Make) -> Tensor:
    a = ones(make, 1, 1)
    return grad(torch.cdist(a, make(ADDENDS, 1, value=0.0), p=1.0), a)


def _cumsum(make: Make) -> Tensor:
    x = ones(make, ADDENDS)
    return grad(x.cumsum(0), x)[0]
