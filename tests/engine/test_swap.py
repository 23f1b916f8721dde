"""A swapped module keeps its class's name, its keys and its copies; only its forward is another."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

import narrowgate as ng
from narrowgate.engine.swap import widen
from tiny import GPT, Recurrent, ResNet, batch, image_loss, text_loss

HALVES = (torch.bfloat16, torch.float16)


def prepared(model: nn.Module, recipe: str = "bf16", lr: float = 0.1):
    return ng.prepare(model, torch.optim.SGD(model.parameters(), lr=lr), recipe)


class TestIdentity:
    def test_class_name_keys_and_signature_stay(self) -> None:
        plain = GPT()
        keys, names = list(plain.state_dict()), [type(m).__name__ for m in plain.modules()]
        model, _ = prepared(plain)
        assert model is plain
        assert isinstance(model, GPT)
        assert list(model.state_dict()) == keys
        assert [type(m).__name__ for m in model.modules()] == names
        assert type(model).__module__ == GPT.__module__
        assert list(inspect.signature(model.forward).parameters) == ["ids"]

    @pytest.mark.parametrize("build", [GPT, ResNet, Recurrent])
    def test_copies_and_pickles_run_with_their_own_weights(self, build) -> None:
        model, _ = prepared(build())
        loss = image_loss if build is ResNet else text_loss
        before = loss(model.eval()).item()
        for other in (copy.deepcopy(model), through_pickle(model), through_torch(model)):
            assert loss(other).item() == before
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.mul_(1.5)
            assert loss(other).item() != before
            assert loss(model).item() == before

    def test_optimizer_and_model_copied_together_train_apart(self) -> None:
        model, optimizer = prepared(GPT())
        twin, twin_optimizer = copy.deepcopy((model, optimizer))
        for one, step in ((model, optimizer), (twin, twin_optimizer)):
            step.backward(text_loss(one))
            assert step.step().applied
        ours = ng.full_precision_state_dict(model, optimizer)
        theirs = ng.full_precision_state_dict(twin, twin_optimizer)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        twin_optimizer.zero_grad()
        twin_optimizer.backward(text_loss(twin, seed=1))
        twin_optimizer.step()
        again = ng.full_precision_state_dict(model, optimizer)
        assert all(torch.equal(ours[key], again[key]) for key in ours)

    def test_restore_gives_the_classes_back(self) -> None:
        plain = Recurrent()
        classes = [type(m) for m in plain.modules()]
        model, optimizer = prepared(plain)
        assert [type(m) for m in model.modules()] != classes
        model, _ = ng.restore(model, optimizer)
        assert [type(m) for m in model.modules()] == classes
        assert not [k for m in model.modules() for k in m.__dict__ if "narrowgate" in k]


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_torch(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class TestOutputs:
    def test_outputs_of_the_model_are_widened_also_without_gradients(self) -> None:
        model, _ = prepared(GPT())
        ids, _ = batch()
        assert model(ids).dtype == torch.float32
        with torch.no_grad():
            assert model(ids).dtype == torch.float32

    def test_widen_goes_through_containers_and_leaves_the_rest(self) -> None:
        class Pair(NamedTuple):
            a: torch.Tensor
            b: int

        @dataclass
        class Record:
            x: torch.Tensor
            name: str

        class Output(OrderedDict):
            def __init__(self, **kwargs: object) -> None:
                super().__init__(kwargs)

        half, ids = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
        wide = widen(
            [half, (half, ids), Pair(half, 3), Record(half, "n"), Output(y=half), {"k": half}]
        )
        assert wide[0].dtype == torch.float32
        assert wide[1][0].dtype == torch.float32
        assert wide[1][1] is ids
        assert isinstance(wide[2], Pair)
        assert wide[2].a.dtype == torch.float32
        assert isinstance(wide[3], Record)
        assert wide[3].x.dtype == torch.float32
        assert isinstance(wide[4], Output)
        assert wide[4]["y"].dtype == torch.float32
        assert wide[5]["k"].dtype == torch.float32
        double = torch.ones(2, dtype=torch.float64)
        assert widen(double) is double


class Probe(nn.Module):
    """Notes the dtype of what comes through."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.dtype)
        return x


class TestRegions:
    def test_rule_keeps_a_subtree_in_fp32_and_gives_it_fp32_inputs(self) -> None:
        inside, outside = Probe(), Probe()
        model = nn.Sequential(
            nn.Linear(4, 4), nn.Sequential(inside, nn.Linear(4, 4)), nn.Linear(4, 4), outside
        )
        model, optimizer = prepared(model, "bf16; 1: fp32")
        out = model(torch.ones(2, 4))
        assert inside.seen == [torch.float32]
        assert outside.seen == [torch.bfloat16]
        assert model[1][1].weight.dtype == torch.float32
        assert model[0].weight.dtype == torch.bfloat16
        optimizer.backward(out.sum())
        assert optimizer.step().applied

    def test_rule_puts_a_subtree_of_an_fp32_model_into_bf16(self) -> None:
        inside, outside = Probe(), Probe()
        model = nn.Sequential(
            nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), inside), outside, nn.Linear(4, 4)
        )
        model, optimizer = prepared(model, "fp32; 1: bf16")
        optimizer.backward(model(torch.ones(2, 4)).sum())
        assert inside.seen == [torch.bfloat16]
        assert outside.seen == [torch.float32]
        assert optimizer.step().applied

    def test_autocast_serves_methods_other_than_forward(self) -> None:
        model, _ = prepared(nn.Linear(4, 4))
        with ng.autocast(model):
            assert F.linear(torch.ones(1, 4), torch.ones(4, 4)).dtype == torch.bfloat16
        plain, _ = prepared(nn.Linear(4, 4), "fp32")
        with ng.autocast(plain):
            assert F.linear(torch.ones(1, 4), torch.ones(4, 4)).dtype == torch.float32


class TestNorms:
    @pytest.mark.parametrize("half", HALVES)
    @pytest.mark.parametrize("wide_input", [False, True])
    @pytest.mark.parametrize(
        "build",
        [
            lambda: nn.LayerNorm(16),
            lambda: nn.LayerNorm(16, bias=False),
            lambda: nn.LayerNorm(16, elementwise_affine=False),
            lambda: nn.GroupNorm(4, 16),
            lambda: nn.RMSNorm(16),
        ],
    )
    def test_sum_in_fp32_and_return_their_inputs_format(self, build, half, wide_input) -> None:
        norm = build()
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.uniform_(-2, 2)
        x = torch.randn(8, 16) * 3 + 1
        x = x if wide_input else x.to(half)
        expected = norm(x.float()).to(x.dtype)
        holder = nn.Sequential(nn.Linear(16, 16), norm)
        name = "bf16" if half == torch.bfloat16 else "fp16"
        prepared(holder, name)
        with torch.autocast("cpu", half):
            got = norm(x)
        assert got.dtype == x.dtype
        # two FP32 sums in another order may round to neighbours: at most one ulp of the format
        ulp = torch.finfo(x.dtype).eps if not wide_input else 8 * torch.finfo(x.dtype).eps
        assert torch.allclose(got.float(), expected.float(), rtol=ulp, atol=ulp)

    def test_own_forward_of_a_norm_is_left_alone(self) -> None:
        class Channels(nn.LayerNorm):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x.transpose(1, -1)).transpose(1, -1)

        model = nn.Sequential(nn.Conv2d(3, 4, 1), Channels(4))
        model, optimizer = prepared(model)
        out = model(torch.randn(2, 3, 5, 5))
        assert out.shape == (2, 4, 5, 5)
        optimizer.backward(out.sum())
        assert optimizer.step().applied
        assert model[1].weight.dtype == torch.float32


class TestIslands:
    @pytest.mark.parametrize("recipe", ["bf16", "fp16", "bf16-mixed", "fp16-mixed"])
    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_recurrence_is_fp32_rounded_once(self, recipe, kind) -> None:
        torch.manual_seed(1)
        rnn = kind(6, 8, 2, batch_first=True)
        half = torch.bfloat16 if "bf16" in recipe else torch.float16
        x = torch.randn(3, 5, 6)
        narrow = copy.deepcopy(rnn)
        if "mixed" not in recipe:
            with torch.no_grad():
                for parameter in narrow.parameters():
                    parameter.copy_(parameter.to(half))
        expected, _ = narrow(x)
        holder = nn.Sequential(nn.Linear(6, 6), rnn)
        _, optimizer = prepared(holder, recipe)
        with ng.autocast(holder):
            got, state = rnn(x)
        assert got.dtype == half
        assert torch.equal(got, expected.to(half))
        assert all(s.dtype == torch.float32 for s in (state if kind is nn.LSTM else (state,)))
        optimizer.backward(got.float().sum())
        assert rnn.weight_ih_l0.grad.dtype == rnn.weight_ih_l0.dtype

    def test_packed_sequences_go_through(self) -> None:
        rnn = nn.GRU(6, 8, batch_first=True)
        model, _ = prepared(nn.Sequential(nn.Linear(6, 6), rnn))
        packed = pack_padded_sequence(torch.randn(2, 4, 6), [4, 2], batch_first=True)
        with ng.autocast(model):
            out, _ = rnn(packed)
        assert out.data.dtype == torch.bfloat16

    def test_parametrized_weights_are_computed_in_fp32(self) -> None:
        layer = parametrizations.spectral_norm(nn.Linear(8, 8))
        model = nn.Sequential(layer, nn.Linear(8, 8))
        model, optimizer = prepared(model)
        seen = []
        layer.parametrizations.weight[0].register_forward_hook(lambda *a: seen.append(a[2].dtype))
        optimizer.backward(model(torch.randn(2, 8)).sum())
        assert seen == [torch.float32]
        assert layer.parametrizations.weight.original.dtype == torch.float32
        assert optimizer.step().applied

    def test_residual_fp32_widens_the_embeddings_output_only(self) -> None:
        seen: dict[str, torch.dtype] = {}
        for recipe in ("bf16", "bf16(residual=fp32)"):
            model, _ = prepared(GPT(), recipe)
            probe = Probe()
            model.blocks.insert(0, probe)
            model(batch()[0])
            seen[recipe] = probe.seen[0]
            assert model.token.weight.dtype == torch.bfloat16
        assert seen == {"bf16": torch.bfloat16, "bf16(residual=fp32)": torch.float32}


class TestCompile:
    @pytest.mark.parametrize("recipe", ["bf16", "fp16", "bf16(residual=fp32)", "bf16-mixed"])
    def test_prepared_gpt_compiles_as_one_graph_with_equal_bits(self, recipe) -> None:
        model, optimizer = prepared(GPT(), recipe)
        optimizer.backward(text_loss(model))
        eager = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.zero_grad()
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        optimizer.backward(text_loss(compiled))
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, eager[name]), name
        assert optimizer.step().applied
        torch._dynamo.reset()

    def test_prepared_gpt_compiles_with_inductor(self) -> None:
        model, optimizer = prepared(GPT())
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True)
        first = None
        for _ in range(8):
            optimizer.zero_grad()
            loss = text_loss(compiled)
            optimizer.backward(loss)
            assert optimizer.step().applied
            first = loss.item() if first is None else first
        assert loss.item() < first
        torch._dynamo.reset()

    def test_batch_norm_model_compiles_with_its_buffers_guarded(self) -> None:
        model, optimizer = prepared(ResNet())
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        optimizer.backward(image_loss(compiled))
        optimizer.step()
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        optimizer.zero_grad()
        optimizer.backward(image_loss(compiled, seed=1) * float("inf"))
        changed = [n for n, b in model.named_buffers() if not torch.equal(b, kept[n])]
        assert changed  # the forward did write them
        assert not optimizer.step().applied
        assert all(torch.equal(b, kept[n]) for n, b in model.named_buffers())
        torch._dynamo.reset()
