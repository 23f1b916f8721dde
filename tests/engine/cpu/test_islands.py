"""CPU autocast treats each operator as CUDA's does: the lists, the dtypes, the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from narrowgate.engine import cpu
from narrowgate.engine.cpu import autocast_table as table
from narrowgate.engine.cpu import islands
from narrowgate.engine.private import registered_at

HALVES = [torch.bfloat16, torch.float16]
POLICIES = {
    "lower": table.LOWER,
    "fp32": table.FP32,
    "set dtype": table.SET_DTYPE,
    "append dtype": frozenset(table.APPEND_DTYPE),
    "promote": table.PROMOTE,
}
POLICY = {name: policy for policy, names in POLICIES.items() for name in names}
aten = torch.ops.aten


def listed(key: str) -> set[str]:
    return {name.removeprefix("aten::") for name in registered_at(key)}


VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# What only some builds list: (whether the torch that is installed does, why).
VARIES = {
    "rms_norm": (VERSION >= (2, 12), "listed after 2.11"),
    "linalg_matrix_sqrth": (VERSION >= (2, 14), "an operator of 2.14"),
    "cholesky": (VERSION < (2, 14), "no operator of 2.14"),
    "qr": (VERSION < (2, 14), "no operator of 2.14"),
    "_cudnn_rnn": (torch.version.cuda is not None, "in CUDA builds"),
}


def here(names: set[str] | frozenset[str]) -> set[str]:
    """Those names which the torch that is installed can list."""
    return {name for name in names if VARIES.get(name, (True, ""))[0]}


def without_dimnames(names: set[str]) -> set[str]:
    """Leave out the overloads for named tensors, which torch 2.11 still had."""
    return {name for name in names if "imname" not in name and "names_" not in name}


@pytest.mark.usefixtures("both")
def test_the_two_lists_are_equal_save_for_the_named_exceptions() -> None:
    cuda, on_cpu = (without_dimnames(listed(f"Autocast{key}")) for key in ("CUDA", "CPU"))
    assert cuda - set(table.CUDA_ONLY) == on_cpu - set(table.CPU_ONLY)


@pytest.mark.usefixtures("stock")
def test_the_tables_match_the_torch_that_is_installed() -> None:
    cuda, on_cpu = (without_dimnames(listed(f"Autocast{key}")) for key in ("CUDA", "CPU"))
    only = here(set(table.CUDA_ONLY))
    assert here(set(POLICY)) | only | {"binary_cross_entropy"} == cuda
    assert cuda & on_cpu == here(table.STOCK) | {"grid_sampler"}
    assert on_cpu - cuda == here(set(table.CPU_ONLY))
    assert cuda - on_cpu == only | (islands.missing() - {"grid_sampler"})


def test_no_operator_has_two_policies_and_every_exception_has_a_reason() -> None:
    assert sum(map(len, POLICIES.values())) == len(POLICY)
    reasons = [*table.CUDA_ONLY.values(), *table.CPU_ONLY.values()]
    assert all(len(reason) > 10 for reason in reasons)


# -- one call of each operator -------------------------------------------------------------------

Call = Callable[[Callable[..., Any], Callable[..., Tensor]], Any]


def _cell(op: Callable[..., Any], r: Callable[..., Tensor], gates: int, *, pair: bool) -> Any:
    hidden = [r(2, 4), r(2, 4)] if pair else r(2, 4)
    return op(r(2, 3), hidden, r(4 * gates, 3), r(4 * gates, 4), r(4 * gates), r(4 * gates))


def _resize(size: list[int], *extra: Any) -> Call:
    return lambda op, r: op(r(1, 2, *(3,) * len(size)), size, *extra)


def _unary(op: Callable[..., Any], r: Callable[..., Tensor]) -> Any:
    return op(r(4, 4))


def _two(op: Callable[..., Any], r: Callable[..., Tensor]) -> Any:
    return op(r(4, 4), r(4, 4))


def _labels() -> Tensor:
    return torch.tensor([0, 1, 2, 3])


def _each(names: str, call: Call) -> dict[str, Call]:
    return dict.fromkeys(names.split(), call)


CALLS: dict[str, Call] = {
    **_each(
        """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus
        linalg_matrix_sqrth
        nuclear_norm prod sum pdist norm.Scalar linalg_matrix_norm linalg_matrix_norm.str_ord
        """,
        _unary,
    ),
    **_each(
        """
        mm matmul linear linalg_vecdot atan2 dist cdist cosine_similarity poisson_nll_loss kl_div
        l1_loss smooth_l1_loss huber_loss mse_loss soft_margin_loss hinge_embedding_loss
        binary_cross_entropy_with_logits pow.Tensor_Tensor
        """,
        _two,
    ),
    "poisson_nll_loss": lambda op, r: op(r(4, 4), r(4, 4), True, False, 1e-8, 1),
    "logsumexp": lambda op, r: op(r(4, 4), [1]),
    "pow.Tensor_Scalar": lambda op, r: op(r(4, 4), 2),
    "pow.Scalar": lambda op, r: op(2, r(4, 4)),
    "layer_norm": lambda op, r: op(r(4, 4), [4], r(4), r(4)),
    "native_layer_norm": lambda op, r: op(r(4, 4), [4], r(4), r(4), 1e-5),
    "rms_norm": lambda op, r: op(r(4, 4), [4], r(4)),
    "group_norm": lambda op, r: op(r(2, 4, 3), 2, r(4), r(4)),
    "frobenius_norm.dim": lambda op, r: op(r(4, 4), [1]),
    "nuclear_norm.dim": lambda op, r: op(r(4, 4), [0, 1]),
    "cosine_embedding_loss": lambda op, r: op(r(4, 4), r(4, 4), torch.ones(4)),
    "nll_loss": lambda op, r: op(r(4, 4), _labels()),
    "nll_loss2d": lambda op, r: op(r(1, 4, 2, 2), _labels().view(1, 2, 2)),
    "margin_ranking_loss": lambda op, r: op(r(4), r(4), torch.ones(4)),
    "multilabel_margin_loss": lambda op, r: op(r(4, 4), torch.tensor([[0, 1, -1, -1]] * 4)),
    "triplet_margin_loss": lambda op, r: op(r(4, 4), r(4, 4), r(4, 4)),
    "multi_margin_loss": lambda op, r: op(r(4, 4), _labels()),
    "renorm": lambda op, r: op(r(4, 4), 2, 0, 1.0),
    "upsample_nearest1d": _resize([6]),
    "_upsample_nearest_exact1d": _resize([6]),
    "upsample_nearest2d": _resize([6, 6]),
    "_upsample_nearest_exact2d": _resize([6, 6]),
    "upsample_nearest3d": _resize([6, 6, 6]),
    "_upsample_nearest_exact3d": _resize([6, 6, 6]),
    "upsample_linear1d": _resize([6], False),
    "upsample_bilinear2d": _resize([6, 6], False),
    "_upsample_bilinear2d_aa": _resize([6, 6], False),
    "upsample_trilinear3d": _resize([6, 6, 6], False),
    "upsample_bicubic2d": _resize([6, 6], False),
    "_upsample_bicubic2d_aa": _resize([6, 6], False),
    "prod.dim_int": lambda op, r: op(r(4, 4), 1),
    "softmax.int": lambda op, r: op(r(4, 4), 1),
    "log_softmax.int": lambda op, r: op(r(4, 4), 1),
    "cumprod": lambda op, r: op(r(4, 4), 1),
    "cumsum": lambda op, r: op(r(4, 4), 1),
    "linalg_vector_norm": lambda op, r: op(r(4, 4), 3, [1], True),
    "linalg_matrix_norm": lambda op, r: op(r(4, 4), 1),
    "sum.dim_IntList": lambda op, r: op(r(4, 4), [1], True),
    "norm.ScalarOpt_dim": lambda op, r: op(r(4, 4), 2, [1]),
    "addcdiv": lambda op, r: op(r(4), r(4), r(4), value=0.5),
    "addcmul": lambda op, r: op(r(4), r(4), r(4), value=0.5),
    "bilinear": lambda op, r: op(r(4, 3), r(4, 2), r(5, 3, 2), r(5)),
    "cross": lambda op, r: op(r(4, 3), r(4, 3)),
    "dot": lambda op, r: op(r(4), r(4)),
    "vdot": lambda op, r: op(r(4), r(4)),
    "grid_sampler": lambda op, r: op(r(1, 2, 4, 4), r(1, 3, 3, 2), 0, 0, False),
    "index_put": lambda op, r: op(r(4), [_labels()], r(4), True),
    "tensordot": lambda op, r: op(r(4, 3), r(3, 4), [1], [0]),
    "scatter_add": lambda op, r: op(r(4), 0, _labels(), r(4)),
    "_convolution": lambda op, r: op(
        r(1, 2, 5), r(3, 2, 3), r(3), [1], [0], [1], False, [0], 1, False, False, True, True
    ),
    "_convolution.deprecated": lambda op, r: op(
        r(1, 2, 5), r(3, 2, 3), r(3), [1], [0], [1], False, [0], 1, False, False, True
    ),
    "convolution": lambda op, r: op(r(1, 2, 5), r(3, 2, 3), r(3), [1], [0], [1], False, [0], 1),
    "conv1d": lambda op, r: op(r(1, 2, 5), r(3, 2, 3), r(3)),
    "conv2d": lambda op, r: op(r(1, 2, 5, 5), r(3, 2, 3, 3), r(3)),
    "conv3d": lambda op, r: op(r(1, 2, 5, 5, 5), r(3, 2, 3, 3, 3), r(3)),
    "conv_tbc": lambda op, r: op(r(5, 1, 2), r(3, 2, 4), r(4)),
    "conv_transpose1d": lambda op, r: op(r(1, 2, 5), r(2, 3, 3), r(3)),
    "conv_transpose2d.input": lambda op, r: op(r(1, 2, 5, 5), r(2, 3, 3, 3), r(3)),
    "conv_transpose3d.input": lambda op, r: op(r(1, 2, 5, 5, 5), r(2, 3, 3, 3, 3), r(3)),
    "prelu": lambda op, r: op(-r(4, 4), r(1)),
    "addmm": lambda op, r: op(r(4), r(4, 3), r(3, 4)),
    "addmv": lambda op, r: op(r(4), r(4, 3), r(3)),
    "addr": lambda op, r: op(r(4, 3), r(4), r(3)),
    "einsum": lambda op, r: op("ij,jk->ik", [r(4, 3), r(3, 4)]),
    "mv": lambda op, r: op(r(4, 3), r(3)),
    "addbmm": lambda op, r: op(r(4, 4), r(2, 4, 3), r(2, 3, 4)),
    "baddbmm": lambda op, r: op(r(2, 4, 4), r(2, 4, 3), r(2, 3, 4)),
    "bmm": lambda op, r: op(r(2, 4, 3), r(2, 3, 4)),
    "chain_matmul": lambda op, r: op([r(4, 3), r(3, 4), r(4, 2)]),
    "linalg_multi_dot": lambda op, r: op([r(4, 3), r(3, 4), r(4, 2)]),
    "lstm_cell": lambda op, r: _cell(op, r, 4, pair=True),
    "gru_cell": lambda op, r: _cell(op, r, 3, pair=False),
    "rnn_tanh_cell": lambda op, r: _cell(op, r, 1, pair=False),
    "rnn_relu_cell": lambda op, r: _cell(op, r, 1, pair=False),
    "scaled_dot_product_attention": lambda op, r: op(r(1, 2, 4, 8), r(1, 2, 4, 8), r(1, 2, 4, 8)),
}


def overload(name: str) -> Any:
    packet, _, variant = name.partition(".")
    return getattr(getattr(aten, packet), variant or "default")


def operands(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Values in (0.1, 0.9), where every function of the list is defined, rounded to bf16."""
    generator = torch.Generator().manual_seed(3)

    def make(*shape: int) -> Tensor:
        values = torch.rand(*shape, generator=generator) * 0.8 + 0.1
        return values.bfloat16().float().half().to(dtype)

    return make


def first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def test_every_operator_has_a_call() -> None:
    assert CALLS.keys() == POLICY.keys()


@pytest.mark.parametrize(
    ("autocast", "given"), [(half, given) for half in HALVES for given in (torch.float32, half)]
)
@pytest.mark.usefixtures("both")
def test_each_operator_runs_in_the_format_of_cudas_list(
    autocast: torch.dtype, given: torch.dtype
) -> None:
    for name, call in CALLS.items():
        if name not in here(set(CALLS)):
            continue
        policy = POLICY[name]
        wanted = {"lower": autocast, "promote": given}.get(policy, torch.float32)
        with torch.autocast("cpu", autocast):
            result = first(call(overload(name), operands(given)))
        assert result.dtype is wanted, name
        # The same operator, by hand, in the format of its policy: the same bits.
        by_hand = first(call(overload(name), operands(wanted)))
        assert torch.equal(result, by_hand), name


@pytest.mark.parametrize("name", ["softmax.int", "sum", "cumsum", "prod", "linalg_vector_norm"])
@pytest.mark.usefixtures("both")
def test_a_dtype_set_by_the_caller_is_respected(name: str) -> None:
    x = torch.rand(4, 4).bfloat16()
    extra: dict[str, tuple[Any, ...]] = {"softmax.int": (1,), "cumsum": (1,)}
    with torch.autocast("cpu", torch.bfloat16):
        result = overload(name)(x, *extra.get(name, ()), dtype=torch.float64)
    assert result.dtype is torch.float64


@pytest.mark.usefixtures("both")
def test_what_is_not_a_narrow_float_keeps_its_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.arange(4).sum().dtype is torch.int64
        assert torch.arange(4).cumsum(0).dtype is torch.int64
        assert torch.rand(4, dtype=torch.float64).sum().dtype is torch.float64
        assert torch.rand(4, dtype=torch.float64).exp().dtype is torch.float64
        assert torch.rand(4, dtype=torch.float64).norm(2).dtype is torch.float64
        assert torch.rand(4, dtype=torch.complex64).exp().dtype is torch.complex64
        wide = torch.rand(4, dtype=torch.float64)
        assert torch.dot(wide, wide).dtype is torch.float64


@pytest.mark.usefixtures("both")
def test_one_fp32_argument_promotes_the_others() -> None:
    half, full = torch.rand(4).bfloat16(), torch.rand(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.dot(half, full).dtype is torch.float32
        assert full.index_put((_labels(),), half, accumulate=True).dtype is torch.float32
        assert torch.dot(half, half).dtype is torch.bfloat16


@pytest.mark.usefixtures("both")
def test_cat_and_stack_promote_as_they_do_on_cuda() -> None:
    half, full = torch.rand(4).bfloat16(), torch.rand(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.cat([half, full]).dtype is torch.float32
        assert torch.stack([half, half]).dtype is torch.bfloat16


@pytest.mark.usefixtures("both")
def test_binary_cross_entropy_runs_in_fp32_where_cuda_refuses() -> None:
    p, t = torch.rand(64).bfloat16(), torch.rand(64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.binary_cross_entropy(p, t)
    assert torch.equal(loss, F.binary_cross_entropy(p.float(), t.float()))


@pytest.mark.usefixtures("both")
def test_gradients_come_back_in_the_format_of_the_inputs() -> None:
    x = torch.rand(4, 4).bfloat16().requires_grad_()
    w = torch.rand(4).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.layer_norm(x, (4,), w).softmax(-1).exp().sum() + torch.mv(x, w).norm(2)
    loss.backward()
    assert x.grad is not None
    assert w.grad is not None
    assert x.grad.dtype is torch.bfloat16
    assert w.grad.dtype is torch.float32


@pytest.mark.usefixtures("stock")
def test_outside_autocast_nothing_changes() -> None:
    def results() -> list[Tensor]:
        # Autocast off inside autocast counts as outside too.
        found = []
        for name in sorted(islands.missing()):
            found.append(first(CALLS[name](overload(name), operands(torch.float32))))
            with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
                found.append(first(CALLS[name](overload(name), operands(torch.float32))))
        return found

    before = results()
    cpu.install(widen=HALVES)
    assert all(
        a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(before, results(), strict=True)
    )


@pytest.mark.usefixtures("both")
def test_an_error_inside_leaves_autocast_on() -> None:
    x = torch.rand(4, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError):
            torch.mv(x, torch.rand(3))
        assert x.softmax(-1).dtype is torch.float32
        assert (torch.rand(4, 4) @ torch.rand(4, 4)).dtype is torch.bfloat16
