"""Whole models: the same gradients as an independent way of widening, and under checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from narrowgate.engine import cpu
from narrowgate.engine.cpu import kernels, swamping

HALVES = [torch.bfloat16, torch.float16]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            z.view(n, t, self.heads, -1).transpose(1, 2)
            for z in self.qkv(self.norm(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(x)


class GPT(nn.Module):
    """Embedding and head tied."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.token, self.place = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return F.cross_entropy(F.linear(x, self.token.weight).flatten(0, 1), tokens.flatten())


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        x = F.max_pool2d(F.relu(self.down(x)), 3, 1)
        return self.head(x.mean((2, 3))).square().mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0]).square().mean()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.linspace(-1, 0, 49, dtype=x.dtype).view(7, 7)
        y, weights = self.attention(x, x, x, attn_mask=mask)
        z, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return y.square().mean() + weights.square().mean() + z.square().mean()


def _tokens(_: torch.dtype) -> Tensor:
    return torch.randint(50, (3, 16))


def _floats(*shape: int) -> Callable[[torch.dtype], Tensor]:
    return lambda dtype: torch.randn(*shape).to(dtype)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.dtype], Tensor]]] = {
    "gpt": (GPT, _tokens),
    "resnet": (ResNet, _floats(4, 3, 12, 12)),
    "lstm": (Recurrent, _floats(3, 9, 6)),
    "attention": (Attention, _floats(2, 7, 16)),
}


class Widening(torch.utils._python_dispatch.TorchDispatchMode):
    """The same promise kept in another place: every call seen on its way down, widened, rounded."""

    names = frozenset(f"aten::{name}" for name in (*kernels.TABLE, *swamping.TABLE))

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.name()
        tensors = [a for a in args if isinstance(a, Tensor)]
        if name not in self.names or not any(t.dtype is self.dtype for t in tensors):
            return func(*args, **kwargs)
        self.seen.add(name)
        wide = [a.float() if isinstance(a, Tensor) and a.dtype is self.dtype else a for a in args]
        wide_kwargs = {k: v.float() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        result = func(*wide, **wide_kwargs)
        if func._schema.name.endswith("_"):
            return args[0].copy_(result)
        if isinstance(result, Tensor):
            return result.to(self.dtype)
        keep = 1 if name == "aten::_scaled_dot_product_flash_attention_for_cpu" else None
        return tuple(
            r if r is None or i == keep else r.to(self.dtype) for i, r in enumerate(result)
        )


def _gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None for g in gradients)
    return [g.clone() for g in gradients if g is not None]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("stock")
def test_gradients_equal_an_independent_widening(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    make, batch = MODELS[name]
    model, x = make().to(dtype), batch(dtype)
    with Widening(dtype) as mode:
        wanted = _gradients(model, x)
    assert mode.seen
    cpu.install(widen=HALVES)
    assert all(map(torch.equal, _gradients(model, x), wanted))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.usefixtures("both")
def test_checkpointing_gives_the_same_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    plain, saved = GPT().to(dtype), GPT(checkpointed=True).to(dtype)
    saved.load_state_dict(plain.state_dict())
    tokens = _tokens(dtype)
    with torch.autocast("cpu", dtype):
        wanted = _gradients(plain, tokens)
    with torch.autocast("cpu", dtype):
        again = _gradients(saved, tokens)
    assert all(map(torch.equal, again, wanted))


@pytest.mark.usefixtures("both")
def test_backward_in_another_thread_of_autograd_and_double_backward_work() -> None:
    x = torch.randn(3, 4).bfloat16().requires_grad_()
    w = torch.randn(4, 2).bfloat16().requires_grad_()
    (first,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
    first.sum().backward()
    assert w.grad is not None
    assert w.grad.dtype is torch.bfloat16


@pytest.mark.usefixtures("both")
def test_other_modes_of_torch_still_see_the_operators() -> None:
    x = torch.randn(8, 8).half()
    with FlopCounterMode(display=False) as counter:
        torch.vmap(torch.mv)(x.expand(2, 8, 8), x[:2])
        x @ x
    assert counter.get_total_flops() == 2 * 8**3 + 2 * 2 * 8**2
    with torch.inference_mode():
        assert (x @ x).dtype is torch.float16
