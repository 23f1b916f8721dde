"""Products, convolutions and attention in 16 bits: widen, call the FP32 kernel, round once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.cpu.samples import Call, bits_equal, flat, halved, kernel_calls, widen
from narrowgate.engine import cpu
from narrowgate.engine.cpu import kernels

HALVES = [torch.bfloat16, torch.float16]
CALLS = {call.name: call for call in kernel_calls()}
aten = torch.ops.aten


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("both")
def test_is_the_fp32_kernel_rounded_once(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name]
    args, kwargs = halved(call, dtype)
    ours = flat(call.op(*args, **kwargs))
    exact = flat(call.op(*map(widen, args), **{k: widen(v) for k, v in kwargs.items()}))
    logsumexp_position = 1 if name.startswith("attention ") and "backward" not in name else None
    for position, (got, wide) in enumerate(zip(ours, exact, strict=True)):
        if wide is None or got is None:
            assert got is None
            assert wide is None
            continue
        wanted = wide if position == logsumexp_position else wide.to(dtype)
        assert bits_equal(got, wanted), (name, position)


@pytest.mark.usefixtures("stock")
def test_results_have_the_shape_dtype_and_layout_of_the_stock_kernels() -> None:
    dtype = torch.bfloat16
    described: list[list[Any]] = []
    for _ in range(2):
        results = []
        for call in CALLS.values():
            args, kwargs = halved(call, dtype)
            results.append(
                [
                    None if r is None else (r.shape, r.dtype, r.stride() if r.numel() else ())
                    for r in flat(call.op(*args, **kwargs))
                ]
            )
        described.append(results)
        cpu.install(widen=HALVES)
    for name, before, after in zip(CALLS, *described, strict=True):
        assert before == after, name


def _in_place(call: Call, dtype: torch.dtype) -> Any:
    args, kwargs = halved(call, dtype)
    target = args[0].clone()
    overload = getattr(aten, call.op._schema.name.removeprefix("aten::") + "_").default
    assert overload(target, *args[1:], **kwargs) is target
    return target


IN_PLACE = [
    name
    for name in CALLS
    if name.startswith(("addmm plain", "baddbmm plain", "addmv plain", "addbmm plain"))
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.usefixtures("both")
def test_in_place_forms_store_what_the_functional_form_returns(
    name: str, dtype: torch.dtype
) -> None:
    args, kwargs = halved(CALLS[name], dtype)
    assert bits_equal(_in_place(CALLS[name], dtype), CALLS[name].op(*args, **kwargs))


WITH_OUT = [
    name
    for name in CALLS
    if name.split()[0] in ("mm", "bmm", "addmm", "baddbmm", "addmv", "addbmm", "addr", "mv")
    and "strided" not in name
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.usefixtures("both")
def test_out_forms_write_into_any_layout_and_grow_an_empty_tensor(dtype: torch.dtype) -> None:
    for name in WITH_OUT:
        call = CALLS[name]
        args, kwargs = halved(call, dtype)
        wanted = call.op(*args, **kwargs)
        packet = getattr(aten, call.op._schema.name.removeprefix("aten::"))
        empty = torch.empty(0, dtype=dtype)
        assert packet.out(*args, **kwargs, out=empty) is empty, name
        assert bits_equal(empty, wanted), name
        padded = torch.empty(*wanted.shape[:-1], wanted.shape[-1] * 2, dtype=dtype)[..., ::2]
        packet.out(*args, **kwargs, out=padded)
        assert torch.equal(padded.nan_to_num(), wanted.nan_to_num()), name


@pytest.mark.usefixtures("stock")
def test_out_of_the_wrong_shape_warns_and_out_of_the_wrong_dtype_raises_as_stock() -> None:
    a, b = torch.ones(4, 5).bfloat16(), torch.ones(5, 3).bfloat16()
    words = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="resized") as caught:
            out = torch.mm(a, b, out=torch.empty(2, 2, dtype=torch.bfloat16))
        assert out.shape == (4, 3)
        with pytest.raises(RuntimeError) as error:
            torch.mm(a, b, out=torch.empty(4, 3))
        words.append((str(caught[0].message), str(error.value)))
        cpu.install(widen=HALVES)
    assert words[0] == words[1]


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "mm": lambda h, f: h @ f,
    "mm reversed": lambda h, f: f @ h,
    "bmm": lambda h, f: torch.bmm(h[None], f[None]),
    "addmm bias": lambda h, f: torch.addmm(f[0], h, h),
    "addmm": lambda h, f: torch.addmm(h, h, f),
    "baddbmm": lambda h, f: torch.baddbmm(f[None], h[None], h[None]),
    "addbmm": lambda h, f: torch.addbmm(h, h[None], f[None]),
    "mv": lambda h, f: torch.mv(h, f[0]),
    "addmv": lambda h, f: torch.addmv(f[0], h, h[0]),
    "dot": lambda h, f: torch.dot(h[0], f[0]),
    "linear": lambda h, f: F.linear(h, f),
    "convolution": lambda h, f: F.conv1d(h[None], f[None]),
    "convolution bias": lambda h, f: F.conv1d(h[None], h[:, :, None], f[0]),
    "attention": lambda h, f: F.scaled_dot_product_attention(h[None, None], *[f[None, None]] * 2),
    "attention mask": lambda h, f: F.scaled_dot_product_attention(
        *[h[None, None].bfloat16()] * 3, attn_mask=h[None, None].half()
    ),
    "other half": lambda h, f: h.bfloat16() @ h.half(),
    "index_add": lambda h, f: h.index_add(0, torch.tensor([0]), f[:1]),
    "index_put": lambda h, f: h.index_put((torch.tensor([0]),), f[0], accumulate=True),
    "put": lambda h, f: h.put(torch.tensor([0]), f[0, :1], accumulate=True),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.usefixtures("stock")
def test_mixed_dtypes_raise_what_stock_raises(name: str, dtype: torch.dtype) -> None:
    f = torch.randn(6, 6)
    words = []
    for _ in range(2):
        try:
            MIXED[name](f.to(dtype), f)
            words.append("")
        except RuntimeError as error:
            words.append(str(error))
        cpu.install(widen=HALVES)
    assert words[0] == words[1]
    # torch 2.11 still computed a mixed addmv
    assert words[0] or (name == "addmv" and torch.__version__.startswith("2.11"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("stock")
def test_wide_dtypes_give_the_same_bits_with_and_without(dtype: torch.dtype) -> None:
    def results() -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for call in CALLS.values():
            args = [
                a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a
                for a in call.args
            ]
            kwargs = {
                k: v.to(dtype) if isinstance(v, Tensor) else v for k, v in call.kwargs.items()
            }
            found += flat(call.op(*args, **kwargs))
        return found

    before = results()
    cpu.install(widen=HALVES)
    for a, b in zip(before, results(), strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and bits_equal(a, b))


@pytest.mark.usefixtures("stock")
def test_integers_and_complex_numbers_pass_through() -> None:
    whole = torch.arange(12).view(3, 4)
    numbers = torch.randn(3, 4, dtype=torch.complex64)

    def results() -> list[Tensor]:
        return [
            whole @ whole.t(),
            torch.addmm(whole[:, :3], whole, whole.t()),
            numbers @ numbers.mH,
            torch.vdot(numbers[0], numbers[1]),
            torch.zeros(3, dtype=torch.int64).index_add(0, whole[0, :3], whole[1, :3]),
            torch.zeros(3, dtype=torch.int64).index_put(
                (whole[0, :3],), whole[1, :3], accumulate=True
            ),
        ]

    before = results()
    cpu.install(widen=HALVES)
    assert all(torch.equal(a, b) for a, b in zip(before, results(), strict=True))


@pytest.mark.usefixtures("stock")
def test_only_the_formats_asked_for_are_widened() -> None:
    """A kernel in effect is one that differs from stock's bits on this data, or is not called."""
    seen: list[torch.dtype] = []
    original = torch.library.get_kernel("aten::mm", "CPU")

    class Spy:
        def call_boxed(self, keys: Any, a: Tensor, b: Tensor) -> Any:
            seen.append(a.dtype)
            return original.call_boxed(keys, a, b)

    spied = kernels.TABLE["mm"](lambda _: Spy().call_boxed, frozenset({torch.float16}))
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl("mm", spied, "CPU", with_keyset=True)
    try:
        for dtype in (*HALVES, torch.float32):
            x = torch.ones(2, 2, dtype=dtype)
            assert (x @ x).dtype is dtype
    finally:
        library._destroy()
    assert seen == [torch.bfloat16, torch.float32, torch.float32]
