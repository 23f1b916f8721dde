"""Small models which several tests share: a GPT, a residual network, a recurrent one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(split).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT whose head is tied to its embedding."""

    def __init__(
        self, vocab: int = 31, width: int = 32, layers: int = 2, context: int = 16
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ResNet(nn.Module):
    """A stem and one residual block with batch norms."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.stem(images)))
        x = F.relu(x + self.norm2(self.conv(x)))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    """An embedding, a two-layer LSTM, a head."""

    def __init__(self, vocab: int = 31, width: int = 16) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.token(ids))[0])


def batch(seed: int = 0, *, rows: int = 4, length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and the ids to predict, `(rows, length)` each."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 31, (rows, length + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def text_loss(model: nn.Module, seed: int = 0) -> torch.Tensor:
    """The cross entropy of a language model on one batch."""
    ids, targets = batch(seed)
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def image_loss(model: nn.Module, seed: int = 0) -> torch.Tensor:
    """The cross entropy of a classifier on one batch."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(6, 3, 8, 8, generator=generator)
    labels = torch.randint(0, 5, (6,), generator=generator)
    return F.cross_entropy(model(images), labels)
