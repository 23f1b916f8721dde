"""The recipe fp32 is a pass-through: bit-equal to a script without narrowgate."""

from __future__ import annotations

import pytest
import torch

import narrowgate as ng
from narrowgate.engine import cpu, switches
from tiny import GPT, ResNet, image_loss, text_loss

OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}


def run(build, loss, make, *, clip: float | None, through: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    model = build()
    optimizer = make(model.parameters())
    if through:
        model, optimizer = ng.prepare(model, optimizer, "fp32", clip_norm=clip)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(6):
        optimizer.zero_grad()
        if through:
            optimizer.backward(loss(model, step))
        else:
            loss(model, step).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
    return model.state_dict()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(("build", "loss"), [(GPT, text_loss), (ResNet, image_loss)])
def test_fp32_equals_a_script_without_narrowgate_exact(build, loss, make, clip) -> None:
    plain = run(build, loss, make, clip=clip, through=False)
    ours = run(build, loss, make, clip=clip, through=True)
    assert all(torch.equal(plain[key], ours[key]) for key in plain)


def test_fp32_changes_nothing_about_model_process_or_kernels() -> None:
    model = GPT()
    classes = [type(module) for module in model.modules()]
    before = switches.read()
    model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters()), "fp32")
    assert [type(module) for module in model.modules()] == classes
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert switches.read() == before
    assert not cpu.installed()
    assert "narrowgate" not in optimizer.param_groups[0]


def test_step_result_tells_the_norm_only_where_it_was_computed() -> None:
    model = GPT()
    model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters()), "fp32")
    optimizer.backward(text_loss(model))
    result = optimizer.step()
    assert result.applied
    assert result.grad_norm != result.grad_norm
    expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    assert optimizer.step(max_norm=1e9).grad_norm == expected


class TestSwitches:
    def test_16bit_recipes_turn_reduced_reductions_off_on_cuda_and_restore_puts_them_back(
        self,
    ) -> None:
        before = switches.read()
        kept = switches.apply(ng.parse("bf16"), "cuda")
        now = switches.read()
        assert not now["fp16_reduced_precision_reduction"]
        assert not now["bf16_reduced_precision_reduction"]
        assert kept == before
        switches.put_back(kept)
        assert switches.read() == before

    def test_cpu_models_leave_the_switches_alone(self) -> None:
        before = switches.read()
        assert switches.apply(ng.parse("bf16"), "cpu") == {}
        assert switches.read() == before

    def test_fp32_warns_if_tf32_is_on(self) -> None:
        before = switches.read()
        try:
            switches.put_back({"float32_matmul_precision": "high", "cudnn_tf32": True})
            with pytest.warns(
                UserWarning, match="leaves TF32 on: float32_matmul_precision is high"
            ):
                assert switches.apply(ng.parse("fp32"), "cuda") == {}
        finally:
            switches.put_back(before)

    def test_tf32_turns_it_on_and_remembers(self) -> None:
        kept = switches.apply(ng.parse("tf32"), "cuda")
        try:
            assert switches.read()["float32_matmul_precision"] == "high"
        finally:
            switches.put_back(kept)
        assert switches.read()["float32_matmul_precision"] == "highest"
