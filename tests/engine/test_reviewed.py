"""What a review of the engine found: each was wrong once."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook

import narrowgate as ng
from engine.net import sgd, step
from narrowgate.engine import norms


@pytest.mark.parametrize("build", [nn.LayerNorm, nn.RMSNorm, lambda n: nn.GroupNorm(2, n)])
def test_a_norm_may_be_called_by_keyword(build) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), build(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(input=self.linear(x))

    model = Net()
    model, optimizer = ng.prepare(model, sgd(model), "bf16")
    assert step(model, optimizer).applied


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_renormalises_its_weight_stays_fp32(kind) -> None:
    model = nn.Sequential(kind(10, 8, max_norm=0.5), nn.Linear(8, 1))
    plain = torch.nn.Sequential(kind(10, 8, max_norm=0.5), nn.Linear(8, 1))
    plain.load_state_dict(model.state_dict())
    model, optimizer = ng.prepare(model, sgd(model), "bf16")
    assert model[0].weight.dtype == torch.float32
    ids = torch.tensor([[1, 2], [3, 4]])
    for _ in range(3):
        assert step(model, optimizer, ids).applied
    assert model[0](ids).norm(dim=-1).max() <= 0.5001


@pytest.mark.parametrize("recipe", ["bf16", "fp16(init=256)"])
def test_a_bag_with_weights_of_its_samples_trains(recipe) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.linear = nn.EmbeddingBag(10, 8, mode="sum"), nn.Linear(8, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.linear(self.bag(ids, per_sample_weights=torch.ones(ids.shape)))

    model = Net()
    model, optimizer = ng.prepare(model, sgd(model), recipe)
    assert step(model, optimizer, torch.tensor([[1, 2], [3, 4]])).applied
    assert model.bag.weight.dtype == torch.float32


@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed"])
def test_an_eps_that_vanishes_is_torchs_own_affair(recipe) -> None:
    half = torch.bfloat16 if recipe == "bf16" else torch.float32
    ends = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=0.0)
        if prepared:
            model, optimizer = ng.prepare(model, optimizer, recipe)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5, dtype=half if prepared else None)
        optimizer.step()
        ends.append(
            ng.full_precision_state_dict(model, optimizer) if prepared else model.state_dict()
        )
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_models_that_share_a_parameter_must_agree_on_it() -> None:
    class Raw(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.w = weight

    linear = nn.Linear(4, 4, bias=False)
    raw = Raw(linear.weight)
    before = linear.weight.detach().clone()
    with pytest.raises(
        ng.PrepareError, match=r"one parameter is model 0: weight \(bf16 master=split\)"
    ):
        ng.prepare([linear, raw], sgd(linear), "bf16")
    assert torch.equal(linear.weight, before)
    assert linear.weight.dtype == torch.float32


def test_parameters_in_one_piece_of_memory_stay_there() -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(6, 4)
            self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))
            self.a.weight, self.b.weight = nn.Parameter(whole[:4]), nn.Parameter(whole[2:6])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x) + self.c(x)

    torch.manual_seed(0)
    model = Sliced()
    model, optimizer = ng.prepare(model, sgd(model, lr=0.5), "bf16")
    assert model.a.weight.dtype == model.b.weight.dtype == torch.float32
    assert model.c.weight.dtype == torch.bfloat16
    assert step(model, optimizer).applied
    assert torch.equal(model.a.weight[2:], model.b.weight[:2])
    reasons = {row.fqn: row.reason for row in optimizer.plans[0].params}
    assert reasons["a.weight"] == "shares memory with b.weight"
    assert reasons["b.weight"] == "shares memory with a.weight"


def test_neighbours_in_one_storage_do_not_share_memory() -> None:
    whole = torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].weight, model[1].weight = nn.Parameter(whole[:4]), nn.Parameter(whole[4:])
    model, _ = ng.prepare(model, sgd(model), "bf16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_two_models_in_one_piece_of_memory_are_refused() -> None:
    whole = torch.randn(6, 4)
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    one.weight, other.weight = nn.Parameter(whole[:4]), nn.Parameter(whole[2:])
    with pytest.raises(ng.PrepareError, match="model 0: weight and model 1: weight are two param"):
        ng.prepare([one, other], sgd(one, other), "bf16")


def test_restore_refuses_what_was_parametrized_since() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    model, optimizer = ng.prepare(model, sgd(model), "bf16")
    parametrizations.weight_norm(model[1])
    with pytest.raises(ng.PrepareError, match=r"1 was parametrized after prepare\(\)"):
        ng.restore(model, optimizer)
    assert step(model, optimizer).applied


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.RMSprop])
@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_global_hooks_fire_once_a_step(recipe, make) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    inner = make([{"params": part.parameters()} for part in model], lr=0.1)
    model, optimizer = ng.prepare(model, inner, recipe)
    fired: list[str] = []
    handle = register_optimizer_step_post_hook(lambda o, *_: fired.append(type(o).__name__))
    try:
        step(model, optimizer)
    finally:
        handle.remove()
    assert fired == ["PreparedOptimizer"]


def test_a_model_kept_for_evaluation_keeps_its_kernels() -> None:
    from narrowgate.engine import cpu

    kept, others = nn.Linear(4, 4), nn.Linear(4, 4)
    kept, optimizer = ng.prepare(kept, sgd(kept), "fp16")
    del optimizer
    others, optimizer = ng.prepare(others, sgd(others), "fp16")
    ng.restore(others, optimizer)
    assert cpu.installed()
    assert kept(torch.ones(1, 4)).dtype == torch.float32


@pytest.mark.parametrize("recipe", ["bf16", "fp32"])
def test_a_group_may_be_a_generator(recipe) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model, optimizer = ng.prepare(model, sgd(model[0]), recipe)
    optimizer.add_param_group({"params": model[1].parameters()})
    assert len(optimizer.param_groups[1]["params"]) == 2
    before = model[1].weight.detach().clone()
    step(model, optimizer)
    assert not torch.equal(model[1].weight, before)


@pytest.mark.parametrize("recipe", ["bf16", "fp16(init=64)", "bf16-mixed", "fp16-mixed(init=64)"])
@pytest.mark.parametrize("outer", [torch.bfloat16, torch.float16])
def test_an_autocast_around_the_loop_changes_nothing(recipe, outer) -> None:
    ends = []
    for around in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        model, optimizer = ng.prepare(model, sgd(model), recipe)
        with torch.autocast("cpu", outer) if around else contextlib.nullcontext():
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(torch.ones(3, 4)).pow(2).mean()
                optimizer.backward(loss)
                assert optimizer.step()
        ends.append(ng.full_precision_state_dict(model, optimizer)["weight"])
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", ["layer", "group", "rms"])
def test_wide_norms_equal_fp32_rounded_once(kind, affine, half) -> None:
    torch.manual_seed(0)
    x = (torch.randn(6, 8, 5) * 3 + 1).to(half)
    gradient = torch.randn(6, 8, 5).to(half)
    shape = (8,) if kind == "group" else (8, 5)
    leaves = [torch.randn(shape) if affine else None for _ in range(2)]

    def run(wide: bool):
        inputs = [t.detach().clone().requires_grad_() if t is not None else None for t in leaves]
        start = x.float() if wide else x.clone()
        start.requires_grad_()
        weight, bias = inputs
        if kind == "layer":
            function = F.layer_norm if wide else norms._LayerNorm.apply
            y = function(start, shape, weight, bias, 1e-5)
        elif kind == "group":
            function = F.group_norm if wide else norms._GroupNorm.apply
            y = function(start, 4, weight, bias, 1e-5)
        else:
            y = (
                F.rms_norm(start, shape, weight, 1e-5)
                if wide
                else norms.rms_norm(start, shape, weight, 1e-5)
            )
            inputs = inputs[:1]
        y.backward(gradient.float() if wide else gradient)
        grads = [t.grad for t in inputs if t is not None]
        return [y.detach().to(half), start.grad.to(half)], grads

    (wide, wide_grads), (narrow, narrow_grads) = run(True), run(False)
    eps = torch.finfo(half).eps
    for one, other in zip(wide, narrow, strict=True):
        # FP32 sums in another order may round to neighbours: one ulp of the format
        assert torch.allclose(one.float(), other.float(), rtol=eps, atol=eps)
    for one, other in zip(wide_grads, narrow_grads, strict=True):
        assert one.dtype == other.dtype == torch.float32
        # 30 addends of size up to 30 in FP32, in another order: 30 * 30 * 2^-24
        assert torch.allclose(one, other, rtol=0, atol=30 * 30 * 2**-24)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, lambda n: nn.GroupNorm(4, n)])
def test_norms_keep_16_bits_for_backward(kind) -> None:
    model = nn.Sequential(nn.Linear(64, 64), kind(64), nn.Linear(64, 64))
    model, _ = ng.prepare(model, sgd(model), "bf16")
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t
    ):
        model(torch.randn(512, 64))
    saved = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
    # the model's input, the norm's input and its output, 2 bytes each; and of every row at most
    # 4 groups with 2 FP32 statistics
    assert saved <= 512 * 64 * 3 * 2 + 512 * 4 * 2 * 4


def test_adam_with_decoupled_decay_is_adamw() -> None:
    ends = []
    for make in (
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.5, decoupled_weight_decay=True),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.5),
    ):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        model, optimizer = ng.prepare(model, make(model.parameters()), "bf16")
        for _ in range(3):
            step(model, optimizer)
        ends.append(ng.full_precision_state_dict(model, optimizer)["weight"])
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed"])
def test_a_model_that_was_cast_before_gets_its_fp32_back(recipe) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).bfloat16()
    inner = torch.optim.Adagrad(model.parameters())  # it makes its states at once, in bf16
    assert {s["sum"].dtype for s in inner.state.values()} == {torch.bfloat16}
    model, optimizer = ng.prepare(model, inner, recipe)
    assert model[1].weight.dtype == model[1].running_mean.dtype == torch.float32
    assert {s["sum"].dtype for s in optimizer.state.values()} == {torch.float32}
    assert step(model, optimizer, torch.randn(2, 1, 3, 3)).applied


def test_the_clip_factor_is_torchs_also_for_tiny_norms() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = ng.prepare(model, sgd(model, lr=1.0), "bf16-mixed")
    model.weight.grad = torch.full((1, 1), 2.0**-20)
    assert optimizer.step(max_norm=2.0**-22)
    # torch adds 1e-6 to the norm, here about as large as the norm itself
    factor = torch.tensor(2.0**-22 / (2.0**-20 + 1e-6), dtype=torch.float64).float()
    assert model.weight.item() == (1 - torch.tensor(2.0**-20) * factor).item()


def test_adopting_weights_leaves_the_masters_of_the_others() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model, optimizer = ng.prepare(model, sgd(model), "bf16")
    step(model, optimizer)
    before = copy.deepcopy(ng.full_precision_state_dict(model, optimizer))
    with torch.no_grad():
        model[0].weight.clamp_(-0.1, 0.1)
    optimizer.adopt_weights()
    after = ng.full_precision_state_dict(model, optimizer)
    assert torch.equal(after["0.weight"], model[0].weight.float())
    assert all(torch.equal(after[k], before[k]) for k in before if k != "0.weight")


def test_a_model_without_a_forward_is_told_of_autocast(caplog) -> None:
    parts = nn.ModuleDict({"a": nn.Linear(2, 2)})
    ng.prepare(parts, sgd(parts), "bf16")
    assert "ModuleDict has no forward of its own" in caplog.text


def test_a_lazy_module_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))
    with pytest.raises(ng.PrepareError, match=r"the parameter 1.weight is not made yet"):
        ng.prepare(model, sgd(model[0]), "bf16")
