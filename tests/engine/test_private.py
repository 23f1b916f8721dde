"""Each private name of torch's still exists and still does what is asked of it."""

from __future__ import annotations

import pytest
import torch

from narrowgate.engine import private


def test_a_registered_kernel_runs_and_goes_when_its_library_is_destroyed() -> None:
    x = torch.ones(2)
    library = private.open_library()
    private.register_kernel(library, "erfinv", lambda x: torch.full_like(x, 7.0), "CPU")
    try:
        assert torch.erfinv(x).tolist() == [7.0, 7.0]
    finally:
        private.destroy_library(library)
    assert torch.erfinv(x).tolist() == [float("inf")] * 2


def test_a_kernel_may_ask_for_the_dispatch_keys() -> None:
    seen = []

    def kernel(keys: torch._C.DispatchKeySet, x: torch.Tensor) -> torch.Tensor:
        seen.append(keys.has(torch._C.DispatchKey.CPU))
        return torch.full_like(x, 7.0)

    library = private.open_library()
    private.register_kernel(library, "erfinv", kernel, "CPU", with_keyset=True)
    try:
        torch.erfinv(torch.ones(2))
    finally:
        private.destroy_library(library)
    assert seen == [True]


def test_registered_at_sees_autocasts_lists() -> None:
    assert "aten::norm.Scalar" in private.registered_at("AutocastCUDA")
    assert "aten::mm" in private.registered_at("AutocastCPU")
    assert "aten::relu" not in private.registered_at("AutocastCUDA")


def test_without_autocast_cpu_leaves_it_out_and_brings_it_back_after_an_error() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with private.without_autocast_cpu():
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is torch.bfloat16
        with pytest.raises(MemoryError), private.without_autocast_cpu():
            raise MemoryError
        assert (x @ x).dtype is torch.bfloat16


def test_argument_defaults_are_in_order_with_what_is_keyword_only() -> None:
    assert private.argument_defaults(torch.ops.aten.sum.dim_IntList) == {
        "self": (False, None),
        "dim": (False, None),
        "keepdim": (False, False),
        "dtype": (True, None),
    }
    assert private.argument_defaults(torch.ops.aten.norm.ScalarOpt_dim)["p"] == (False, None)


def test_the_flags_of_the_processor_are_plain_booleans() -> None:
    assert isinstance(private.native_bf16(), bool)
    assert isinstance(private.native_fp16(), bool)
