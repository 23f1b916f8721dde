"""Bad input: each mistake with the whole message that the user reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.errors import OpError

META = torch.device("meta")


def adamw(**changes: Any) -> None:
    """A valid call on two bf16 weights, but for the changes."""
    given: dict[str, Any] = {
        "params": [torch.ones(2, 3).bfloat16(), torch.ones(4).bfloat16()],
        "remainders": [torch.zeros(2, 3).short(), torch.zeros(4).short()],
        "grads": [torch.ones(2, 3), torch.ones(4).half()],
        "exp_avgs": [torch.zeros(2, 3), torch.zeros(4)],
        "exp_avg_sqs": [torch.zeros(2, 3), torch.zeros(4)],
        "steps": [torch.tensor(0.0), torch.tensor(0.0)],
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "decoupled": True,
        "maximize": False,
        "grad_mult": torch.tensor(1.0),
        "skip": torch.tensor(0.0),
    }
    for name, value in changes.items():
        if isinstance(value, Tensor) and isinstance(given[name], list):
            given[name] = [given[name][0], value]
        else:
            given[name] = value
    ops.adamw_step(**given)


def sgd(**changes: Any) -> None:
    """A valid call on one fp32 weight with momentum, but for the changes."""
    given: dict[str, Any] = {
        "params": [torch.ones(3)],
        "remainders": [],
        "grads": [torch.ones(3)],
        "momentum_buffers": [torch.zeros(3)],
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "nesterov": False,
        "maximize": False,
        "grad_mult": torch.tensor(1.0),
        "skip": torch.tensor(0.0),
    }
    ops.sgd_step(**given | changes)


SETTINGS = "\n\nhint: check the optimizer's settings and the schedule that changes them"
CONVERT = "\n\nhint: convert it before the call: the op never converts silently"
BY_POSITION = "\n\nhint: the lists go by position, one entry per parameter"
ORDER = "\n\nhint: the lists go by position: check their order"
MATERIALISE = "\n\nhint: materialise it first, for example with module.to_empty(device=...)"
OWN = "\n\nhint: pass a tensor that owns its memory, for example value.clone()"

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "split_format": (
        lambda: ops.split_master(torch.ones(1), "bf61"),
        "split_master: format is 'bf61'; allowed: bf16, fp16\n\nhint: did you mean 'bf16'?",
    ),
    "split_float64": (
        lambda: ops.split_master(torch.ones(2, 3).double(), "bf16"),
        "split_master: master is float64 of shape (2, 3); allowed: float32" + CONVERT,
    ),
    "split_complex": (
        lambda: ops.split_master(torch.ones(1).cfloat(), "fp16"),
        "split_master: master is complex64 of shape (1,); allowed: float32" + CONVERT,
    ),
    "split_number": (
        lambda: ops.split_master(1.0, "fp16"),  # type: ignore[arg-type]
        (
            "split_master: master is a float; allowed: a tensor of float32\n\n"
            "hint: wrap numbers with torch.tensor(...)"
        ),
    ),
    "split_sparse": (
        lambda: ops.split_master(torch.ones(2, 2).to_sparse(), "fp16"),
        (
            "split_master: master is a tensor of layout sparse_coo; allowed: strided\n\n"
            "hint: make it dense with .to_dense(); an embedding gives dense gradients with "
            "sparse=False"
        ),
    ),
    "split_meta": (
        lambda: ops.split_master(torch.ones(2, device=META), "fp16"),
        (
            "split_master: master is on device meta, shape (2,); allowed: a device that holds data"
            + MATERIALISE
        ),
    ),
    "limit_format": (
        lambda: ops.largest_master("fp8"),
        "largest_master: format is 'fp8'; allowed: bf16, fp16\n\nhint: allowed: bf16, fp16",
    ),
    "join_swapped": (
        lambda: ops.join_master(torch.zeros(2).short(), torch.zeros(2).half()),
        "join_master: half is int16 of shape (2,); allowed: bfloat16, float16" + CONVERT,
    ),
    "join_bytes": (
        lambda: ops.join_master(torch.zeros(2).half(), torch.zeros(2, 2, dtype=torch.uint8)),
        "join_master: remainder is uint8 of shape (2, 2); allowed: int16" + CONVERT,
    ),
    "join_shape": (
        lambda: ops.join_master(torch.zeros(2, 3).half(), torch.zeros(3, 2).short()),
        "join_master: remainder is of shape (3, 2); allowed: (2, 3), the shape of half" + ORDER,
    ),
    "join_device": (
        lambda: ops.join_master(torch.zeros(2).half(), torch.zeros(2, device=META).short()),
        (
            "join_master: remainder is on meta; allowed: cpu, the device of half\n\n"
            "hint: move it with .to('cpu')"
        ),
    ),
    "stats_integer": (
        lambda: ops.grad_stats([torch.ones(1), torch.ones(2).int()]),
        (
            "grad_stats: grads[1] is int32 of shape (2,); allowed: float32, bfloat16, float16, "
            "float64" + CONVERT
        ),
    ),
    "stats_none": (
        lambda: ops.grad_stats([None]),  # type: ignore[list-item]
        (
            "grad_stats: grads[0] is a NoneType; allowed: a tensor of float32, bfloat16, float16, "
            "float64\n\nhint: wrap numbers with torch.tensor(...)"
        ),
    ),
    "stats_devices": (
        lambda: ops.grad_stats([torch.ones(1, device=META), torch.ones(1)]),
        (
            "grad_stats: grads[0] is on device meta, shape (1,); allowed: a device that holds data"
            + MATERIALISE
        ),
    ),
    "checksum_float32": (
        lambda: ops.half_checksum([torch.ones(1)]),
        "half_checksum: halves[0] is float32 of shape (1,); allowed: bfloat16, float16" + CONVERT,
    ),
    "adamw_mixed_params": (
        lambda: adamw(params=torch.ones(4)),
        "adamw_step: params[1] is float32 of shape (4,); allowed: bfloat16" + CONVERT,
    ),
    "adamw_float64_params": (
        lambda: adamw(params=[torch.ones(2, 3).double()] * 2),
        (
            "adamw_step: params[0] is float64 of shape (2, 3); allowed: float32, bfloat16, float16"
            + CONVERT
        ),
    ),
    "adamw_no_remainders": (
        lambda: adamw(remainders=[]),
        "adamw_step: remainders is a list of 0; allowed: 2, the length of params" + BY_POSITION,
    ),
    "adamw_remainders_beside_fp32": (
        lambda: adamw(params=[torch.ones(2, 3), torch.ones(4)]),
        (
            "adamw_step: remainders is a list of 2 beside float32 parameters; allowed: an empty "
            "list\n\nhint: a float32 parameter is its own master; pass remainders=[]"
        ),
    ),
    "adamw_short_grads": (
        lambda: adamw(grads=[torch.ones(2, 3)]),
        "adamw_step: grads is a list of 1; allowed: 2, the length of params" + BY_POSITION,
    ),
    "adamw_short_steps": (
        lambda: adamw(steps=[]),
        "adamw_step: steps is a list of 0; allowed: 2, the length of params" + BY_POSITION,
    ),
    "adamw_float64_grad": (
        lambda: adamw(grads=torch.ones(4).double()),
        (
            "adamw_step: grads[1] is float64 of shape (4,); allowed: float32, bfloat16, float16"
            + CONVERT
        ),
    ),
    "adamw_sparse_grad": (
        lambda: adamw(grads=torch.ones(4).to_sparse()),
        (
            "adamw_step: grads[1] is a tensor of layout sparse_coo; allowed: strided\n\n"
            "hint: make it dense with .to_dense(); an embedding gives dense gradients with "
            "sparse=False"
        ),
    ),
    "adamw_grad_shape": (
        lambda: adamw(grads=torch.ones(2, 2)),
        "adamw_step: grads[1] is of shape (2, 2); allowed: (4,), the shape of params[1]" + ORDER,
    ),
    "adamw_bf16_state": (
        lambda: adamw(exp_avgs=torch.zeros(4).bfloat16()),
        "adamw_step: exp_avgs[1] is bfloat16 of shape (4,); allowed: float32" + CONVERT,
    ),
    "adamw_param_with_gaps": (
        lambda: adamw(params=torch.ones(8).bfloat16()[::2]),
        (
            "adamw_step: params[1] is strided (2,) for shape (4,); allowed: strides without gaps "
            "or overlaps" + OWN
        ),
    ),
    "adamw_param_with_overlaps": (
        lambda: adamw(params=torch.ones(1).bfloat16().expand(4)),
        (
            "adamw_step: params[1] is strided (0,) for shape (4,); allowed: strides without gaps "
            "or overlaps" + OWN
        ),
    ),
    "adamw_state_with_other_strides": (
        lambda: adamw(exp_avg_sqs=[torch.zeros(3, 2).T, torch.zeros(4)]),
        (
            "adamw_step: exp_avg_sqs[0] is strided (1, 2); allowed: (3, 1), the strides of "
            "params[0]\n\nhint: make it with torch.empty_like(params[0], "
            "memory_format=torch.preserve_format)"
        ),
    ),
    "adamw_meta_param": (
        lambda: adamw(params=torch.ones(4, device=META).bfloat16()),
        (
            "adamw_step: params[1] is on device meta, shape (4,); allowed: a device that holds data"
            + MATERIALISE
        ),
    ),
    "adamw_step_on_another_device": (
        lambda: adamw(steps=torch.tensor(0.0, device=META)),
        (
            "adamw_step: steps[1] is on meta; allowed: cpu, the device of params[0]\n\n"
            "hint: move it with .to('cpu')"
        ),
    ),
    "adamw_integer_step": (
        lambda: adamw(steps=torch.tensor(0)),
        "adamw_step: steps[1] is int64 of shape (); allowed: float32" + CONVERT,
    ),
    "adamw_skip_with_a_dimension": (
        lambda: adamw(skip=torch.zeros(1)),
        (
            "adamw_step: skip is of shape (1,); allowed: (), a tensor without dimensions\n\n"
            "hint: make it with torch.tensor(1.0)"
        ),
    ),
    "adamw_bool_skip": (
        lambda: adamw(skip=torch.tensor(False)),
        "adamw_step: skip is bool of shape (); allowed: float32" + CONVERT,
    ),
    "adamw_number_grad_mult": (
        lambda: adamw(grad_mult=1.0),
        (
            "adamw_step: grad_mult is a float; allowed: a tensor of float32\n\n"
            "hint: wrap numbers with torch.tensor(...)"
        ),
    ),
    "adamw_nan_lr": (
        lambda: adamw(lr=float("nan")),
        "adamw_step: lr is nan; allowed: 0 <= lr < inf" + SETTINGS,
    ),
    "adamw_negative_lr": (
        lambda: adamw(lr=-0.1),
        "adamw_step: lr is -0.1; allowed: 0 <= lr < inf" + SETTINGS,
    ),
    "adamw_infinite_lr": (
        lambda: adamw(lr=float("inf")),
        "adamw_step: lr is inf; allowed: 0 <= lr < inf" + SETTINGS,
    ),
    "adamw_beta1": (
        lambda: adamw(beta1=1.0),
        "adamw_step: beta1 is 1.0; allowed: 0 <= beta1 < 1.0" + SETTINGS,
    ),
    "adamw_beta2": (
        lambda: adamw(beta2=-0.1),
        "adamw_step: beta2 is -0.1; allowed: 0 <= beta2 < 1.0" + SETTINGS,
    ),
    "adamw_weight_decay": (
        lambda: adamw(weight_decay=-1e-4),
        "adamw_step: weight_decay is -0.0001; allowed: 0 <= weight_decay < inf" + SETTINGS,
    ),
    "adamw_eps_vanishes": (
        lambda: adamw(eps=1e-50),
        (
            "adamw_step: eps is 1e-50, which is 0 in float32; allowed: eps > "
            "7.006492321624085e-46\n\nhint: an element whose gradients were all 0 would be "
            "divided by 0; 1e-8 is usual"
        ),
    ),
    "adamw_eps_zero": (
        lambda: adamw(eps=0.0),
        (
            "adamw_step: eps is 0.0, which is 0 in float32; allowed: eps > "
            "7.006492321624085e-46\n\nhint: an element whose gradients were all 0 would be "
            "divided by 0; 1e-8 is usual"
        ),
    ),
    "adamw_eps_nan": (
        lambda: adamw(eps=float("nan")),
        "adamw_step: eps is nan; allowed: 0 <= eps < inf" + SETTINGS,
    ),
    "sgd_nan_momentum": (
        lambda: sgd(momentum=float("nan")),
        "sgd_step: momentum is nan; allowed: 0 <= momentum < inf" + SETTINGS,
    ),
    "sgd_buffers_without_momentum": (
        lambda: sgd(momentum=0.0),
        (
            "sgd_step: momentum is 0.0 beside a list of 1 momentum_buffers; allowed: momentum > 0, "
            "or nesterov=False and momentum_buffers=[]\n\nhint: without momentum there is nothing "
            "to look ahead with and nothing to keep"
        ),
    ),
    "sgd_nesterov_without_momentum": (
        lambda: sgd(momentum=0.0, momentum_buffers=[], nesterov=True),
        (
            "sgd_step: momentum is 0.0 beside nesterov; allowed: momentum > 0, "
            "or nesterov=False and momentum_buffers=[]\n\nhint: without momentum there is nothing "
            "to look ahead with and nothing to keep"
        ),
    ),
    "sgd_missing_buffers": (
        lambda: sgd(momentum_buffers=[]),
        "sgd_step: momentum_buffers is a list of 0; allowed: 1, the length of params" + BY_POSITION,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    """The whole message, before anything is touched."""
    call, message = BAD[name]
    with pytest.raises(OpError) as caught:
        call()
    assert str(caught.value) == message


def test_the_unchanged_calls_are_valid() -> None:
    """What the cases above change is what makes them fail."""
    adamw()
    sgd()


def test_a_refused_call_touches_nothing() -> None:
    """A mistake in the last entry leaves the first as it was."""
    param, step = torch.ones(2, 3).bfloat16(), torch.tensor(4.0)
    with pytest.raises(OpError):
        adamw(params=[param, torch.ones(4)], steps=[step, torch.tensor(4.0)])
    assert param._version == step._version == 0


def test_layouts_that_only_look_different_are_taken() -> None:
    """Dimensions of size 1 have no stride to speak of: (4, 1, 3, 3) in channels_last is dense."""
    w = torch.ones(4, 1, 3, 3)
    sgd(
        params=[w.to(memory_format=torch.channels_last)],
        grads=[w],
        momentum_buffers=[torch.zeros_like(w)],
    )
