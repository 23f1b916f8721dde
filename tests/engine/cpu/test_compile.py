"""Compiled graphs: fullgraph, the same bits under aot_eager, and inductor with and without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from narrowgate.engine import cpu

HALVES = [torch.bfloat16, torch.float16]
# Importing inductor makes torch 2.13 warn about its own use of TorchScript.
inductor = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")


class Net(nn.Module):
    """One of each: embedding, norm, attention, product, convolution, islands."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.qkv, self.conv = nn.Linear(16, 48), nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return F.cross_entropy(F.linear(x, self.embed.weight).flatten(0, 1), tokens.flatten())


def _run(run: nn.Module, model: nn.Module, tokens: Tensor, dtype: torch.dtype) -> list[Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", dtype):
        loss = run(tokens)
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    return [t.clone() for t in found if t is not None]


@pytest.fixture
def _fresh() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("narrow", [False, True], ids=["fp32 parameters", "16-bit parameters"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.usefixtures("both", "_fresh")
def test_aot_eager_fullgraph_gives_the_bits_of_eager(dtype: torch.dtype, narrow: bool) -> None:
    torch.manual_seed(6)
    model = Net().to(dtype) if narrow else Net()
    tokens = torch.randint(20, (4, 9))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    wanted = _run(model, model, tokens, dtype)
    assert all(map(torch.equal, _run(compiled, model, tokens, dtype), wanted))


@inductor
@pytest.mark.usefixtures("stock", "_fresh")
def test_inductor_runs_with_and_without() -> None:
    """Inductor drops roundings between operators, so only closeness is promised for whole graphs.

    The products are single kernels, though: compiled alone they give eager's bits.
    """
    torch.manual_seed(6)
    a, b = torch.randn(8, 5).half(), torch.randn(5, 7).half()

    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    stock = product(a, b)
    assert torch.equal(torch.compile(product, fullgraph=True)(a, b), stock)
    cpu.install(widen=HALVES)
    compiled = torch.compile(product, fullgraph=True)
    assert torch.equal(compiled(a, b), (a.float() @ b.float()).half())
    cpu.uninstall()
    assert torch.equal(compiled(a, b), stock)


@pytest.mark.slow
@inductor
@pytest.mark.usefixtures("stock", "_fresh")
def test_graphs_cached_on_disk_without_the_islands_are_not_used_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Autocast around a compiled region, as when each block is compiled by itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def soft(x: Tensor) -> Tensor:
        return x.softmax(-1)

    x = torch.randn(8, 8).bfloat16()
    dtypes = []
    for installed in (False, True, False):
        torch.compiler.reset()
        cpu.uninstall()
        if installed:
            cpu.install()
        with torch.autocast("cpu", torch.bfloat16):
            dtypes.append(torch.compile(soft, fullgraph=True)(x).dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]


@pytest.mark.slow
@inductor
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.usefixtures("both", "_fresh")
def test_inductor_trains(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    model = Net().to(dtype)
    tokens = torch.randint(20, (4, 9))
    compiled = torch.compile(model, fullgraph=True)
    got, wanted = _run(compiled, model, tokens, dtype), _run(model, model, tokens, dtype)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype is b.dtype
        # Fused operators keep FP32 where eager rounds. A gradient passes fewer than 16 roundings
        # here, each of at most eps / 2, which add up to 8 eps of its largest element.
        bound = 8 * torch.finfo(dtype).eps * b.float().abs().max()
        assert (a.float() - b.float()).abs().max() <= bound
