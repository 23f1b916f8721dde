"""Forward cases of the swamping audit: sums, products, norms, pools, losses, indexed sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from narrowgate.engine.audits.case import ADDENDS, Case, Make, case, signs, zeros_index

__all__ = ["TINY", "cases"]

TINY = 2.0**-30
"""An epsilon for batch norm, which refuses 0: it moves 1 by less than FP32 resolves."""


def cases() -> Iterator[Case]:
    """Yield the forward cases."""
    yield from _sums()
    yield from _products()
    yield from _norms_and_pools()
    yield from _losses()
    for how in _WRITES:
        yield case(how, partial(_write, how=how), ADDENDS)
    yield case("fold", _fold, ADDENDS // 4)
    for mode in ("sum", "mean"):
        expected = ADDENDS if mode == "sum" else 1.0
        yield case(f"embedding_bag {mode}", partial(_embedding_bag, mode=mode), expected)
        yield case(f"segment_reduce {mode}", partial(_segment, reduce=mode), expected)


def _sums() -> Iterator[Case]:
    n, log_n = ADDENDS, math.log(ADDENDS)
    yield case("sum", lambda m: m(n).sum(), n)
    yield case("sum dim 0", lambda m: m(n, 3).sum(0), n)
    yield case("sum dim 1", lambda m: m(3, n).sum(1), n)
    yield case("nansum", lambda m: m(n).nansum(), n)
    yield case("mean", lambda m: m(n).mean(), 1)
    yield case("mean dim 0", lambda m: m(n, 3).mean(0), 1)
    yield case("cumsum", lambda m: m(n).cumsum(0)[-1], n)
    yield case("logsumexp", lambda m: m(n, value=0.0).logsumexp(0), log_n)
    yield case("logcumsumexp", lambda m: m(n, value=0.0).logcumsumexp(0)[-1], log_n)
    yield case("var", lambda m: signs(m, n).var(unbiased=False), 1)
    yield case("std", lambda m: signs(m, n).std(unbiased=False), 1)
    yield case("norm 1", lambda m: m(n).norm(1), n)
    yield case("norm 2", lambda m: m(n).norm(2), math.sqrt(n))
    yield case("vector_norm 3", lambda m: torch.linalg.vector_norm(m(n), 3), n ** (1 / 3))
    yield case("matrix_norm 1", lambda m: torch.linalg.matrix_norm(m(n, 2), 1), n)
    yield case("trace", lambda m: m(1, 1).expand(n, n).trace(), n)
    yield case("trapezoid", lambda m: torch.trapezoid(m(n + 1)), n)
    yield case("dist", lambda m: torch.dist(m(n), m(n, value=0.0), 1), n)
    yield case("cdist", lambda m: torch.cdist(m(1, n), m(1, n, value=0.0), p=1.0), n)
    yield case("softmax", lambda m: m(n, value=0.0).softmax(0), 1 / n)
    yield case("log_softmax", lambda m: m(n, value=0.0).log_softmax(0), -log_n)


def _products() -> Iterator[Case]:
    n = ADDENDS
    yield case("mm", lambda m: m(1, n) @ m(n, 1), n)
    yield case("mm transposed", lambda m: m(n, 2).t() @ m(n, 2), n)
    yield case("addmm", lambda m: torch.addmm(m(2, 2, value=0.0), m(2, n), m(n, 2)), n)
    yield case("bmm", lambda m: torch.bmm(m(2, 1, n), m(2, n, 1)), n)
    yield case("baddbmm", lambda m: torch.baddbmm(m(2, 1, 1, value=0.0), m(2, 1, n), m(2, n, 1)), n)
    yield case("addbmm", lambda m: torch.addbmm(m(1, 1, value=0.0), m(n, 1, 1), m(n, 1, 1)), n)
    yield case("mv", lambda m: torch.mv(m(2, n), m(n)), n)
    yield case("addmv", lambda m: torch.addmv(m(2, value=0.0), m(2, n), m(n)), n)
    yield case("dot", lambda m: torch.dot(m(n), m(n)), n)
    yield case("vdot", lambda m: torch.vdot(m(n), m(n)), n)
    yield case("einsum", lambda m: torch.einsum("ij,ij->", m(n, 2), m(n, 2)), 2 * n)
    yield case("tensordot", lambda m: torch.tensordot(m(n, 2), m(n, 2), ([0], [0])), n)
    yield case("linear", lambda m: F.linear(m(2, n), m(2, n)), n)
    yield case(
        "attention",
        lambda m: F.scaled_dot_product_attention(m(1, 1, 2, 8), m(1, 1, n, 8), m(1, 1, n, 8)),
        1,
    )
    yield case("conv1d", lambda m: F.conv1d(m(1, 1, n), m(1, 1, n)), n)
    yield case("conv2d", lambda m: F.conv2d(m(1, 1, 128, 128), m(1, 1, 128, 128)), n)
    yield case("conv3d", lambda m: F.conv3d(m(1, 1, 32, 32, 16), m(1, 1, 32, 32, 16)), n)
    yield case("conv_transpose1d", lambda m: F.conv_transpose1d(m(1, n, 1), m(n, 1, 1)), n)


def _norms_and_pools() -> Iterator[Case]:
    n = ADDENDS
    yield case("layer_norm", lambda m: F.layer_norm(signs(m, n), (n,), eps=0.0).abs(), 1)
    yield case("group_norm", lambda m: F.group_norm(signs(m, 1, n), 1, eps=0.0).abs(), 1)
    yield case("rms_norm", lambda m: F.rms_norm(m(n), (n,), eps=0.0), 1)
    yield case("instance_norm", lambda m: F.instance_norm(signs(m, 1, 1, n), eps=0.0).abs(), 1)
    yield case(
        "batch_norm",
        lambda m: F.batch_norm(signs(m, 1, 1, n), None, None, training=True, eps=TINY).abs(),
        1,
    )
    yield case("weight_norm", lambda m: torch._weight_norm(m(1, n), m(1, 1), 0), 1 / math.sqrt(n))
    yield case("avg_pool1d", lambda m: F.avg_pool1d(m(1, 1, n), n), 1)
    yield case("avg_pool2d", lambda m: F.avg_pool2d(m(1, 1, 128, 128), 128), 1)
    yield case("avg_pool3d", lambda m: F.avg_pool3d(m(1, 1, 32, 32, 16), (32, 32, 16)), 1)
    yield case("adaptive_avg_pool1d", lambda m: F.adaptive_avg_pool1d(m(1, 1, n), 1), 1)
    yield case("adaptive_avg_pool2d", lambda m: F.adaptive_avg_pool2d(m(1, 1, 128, 128), 1), 1)
    yield case("lp_pool1d", lambda m: F.lp_pool1d(m(1, 1, n), 2.0, n), math.sqrt(n))


def _losses() -> Iterator[Case]:
    n, ln2 = ADDENDS, math.log(2)
    yield case("mse_loss", lambda m: F.mse_loss(m(n), m(n, value=0.0), reduction="sum"), n)
    yield case("l1_loss", lambda m: F.l1_loss(m(n), m(n, value=0.0), reduction="sum"), n)
    yield case(
        "huber_loss", lambda m: F.huber_loss(m(n, value=1.5), m(n, value=0.0), reduction="sum"), n
    )
    yield case(
        "nll_loss",
        lambda m: F.nll_loss(m(n, 2, value=-1.0), zeros_index(m(1), n), reduction="sum"),
        n,
    )
    yield case(
        "nll_loss2d",
        lambda m: F.nll_loss(
            m(1, 2, 128, 128, value=-1.0), zeros_index(m(1), 1, 128, 128), reduction="sum"
        ),
        n,
    )
    # log_softmax rounds log 2, and the mean of those rounds again.
    yield case(
        "cross_entropy",
        lambda m: F.cross_entropy(m(n, 2, value=0.0), zeros_index(m(1), n)),
        ln2,
        roundings=2,
    )
    yield case("kl_div", lambda m: F.kl_div(m(n, value=-1.0), m(n), reduction="sum"), n)
    yield case(
        "binary_cross_entropy_with_logits",
        lambda m: F.binary_cross_entropy_with_logits(m(n, value=0.0), m(n)),
        ln2,
        roundings=2,
    )


_Write = Callable[[Tensor, Tensor, Tensor], Tensor]

_WRITES: Mapping[str, _Write] = {
    "scatter_add": lambda x, i, ones: x.scatter_add(0, i, ones),
    "scatter_reduce sum": lambda x, i, ones: x.scatter_reduce(0, i, ones, "sum"),
    "index_add": lambda x, i, ones: x.index_add(0, i, ones),
    "index_add_": lambda x, i, ones: x.index_add_(0, i, ones),
    "index_put": lambda x, i, ones: x.index_put((i,), ones, accumulate=True),
    "index_put_": lambda x, i, ones: x.index_put_((i,), ones, accumulate=True),
    "put": lambda x, i, ones: x.put(i, ones, accumulate=True),
    "put_": lambda x, i, ones: x.put_(i, ones, accumulate=True),
    # Means, scaled back by a power of two so that one answer serves all.
    "scatter_reduce mean": lambda x, i, ones: (
        x.scatter_reduce(0, i, ones, "mean", include_self=False) * ADDENDS
    ),
    "index_reduce mean": lambda x, i, ones: (
        x.index_reduce(0, i, ones, "mean", include_self=False) * ADDENDS
    ),
}


def _write(make: Make, *, how: str) -> Tensor:
    """Add ADDENDS ones into one element."""
    values = make(ADDENDS)
    return _WRITES[how](make(1, value=0.0), zeros_index(values, ADDENDS), values)


def _fold(make: Make) -> Tensor:
    """A quarter of ADDENDS blocks that all cover one pixel."""
    n = ADDENDS // 4
    return F.fold(make(1, 1, 1).expand(1, n, n), (1, 1), (1, n), padding=(0, n - 1))


def _embedding_bag(make: Make, *, mode: str) -> Tensor:
    table = make(1, 1)
    return F.embedding_bag(zeros_index(table, 1, ADDENDS), table, mode=mode)


def _segment(make: Make, *, reduce: str) -> Tensor:
    x = make(ADDENDS)
    return torch.segment_reduce(x, reduce, lengths=torch.tensor([ADDENDS], device=x.device))
