"""Train a small byte-level GPT on the source text of Python's own standard library.

    python examples/gpt.py --recipe bf16

The text lies on every machine with Python; a token is a byte. Two lines are narrowgate's, marked
"one" and "two": without them, with `loss.backward()`, it is plain PyTorch. It ends with JSON.
"""

import argparse
import json
import resource
import statistics
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import narrowgate as ng


class Block(nn.Module):
    """Causal self-attention, then an MLP; each reads a normed copy of the stream and adds to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, context, width) to the same shape."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predict the next byte from those before it; the head's weight is the embedding's."""

    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.byte.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map bytes (batch, context) to logits (batch, context, 256)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.byte(tokens) + self.position(places))))


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Read the standard library's modules in sorted order; the last tenth is for validation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if len(text) < 1_000_000:
        raise SystemExit(f"this Python keeps no source text of its library in {folder}")
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def windows(data: torch.Tensor, starts: torch.Tensor, context: int) -> tuple[torch.Tensor, ...]:
    """Cut windows of text, and the same windows one byte further on, which are to be predicted."""
    chunks = data[starts[:, None] + torch.arange(context + 1)].long()
    return chunks[:, :-1], chunks[:, 1:]


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Give the mean cross-entropy in nats per byte."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def schedule_of(optimizer: torch.optim.Optimizer, args: argparse.Namespace):
    """Warm up over three tenths of the steps, then go down to almost 0."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps, cycle_momentum=False)


def train(args: argparse.Namespace):
    """Train, and yield (model, optimizer, loss, applied) after each step."""
    data, _ = load_text()
    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.width, args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    model, optimizer = ng.prepare(model, optimizer, args.recipe)  # one
    schedule = schedule_of(optimizer, args)
    order = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        starts = torch.randint(len(data) - args.context, (args.batch,), generator=order)
        loss = loss_of(model, *windows(data, starts, args.context))
        optimizer.zero_grad()
        optimizer.backward(loss)  # two
        result = optimizer.step()
        schedule.step()
        yield model, optimizer, loss.item(), result.applied


@torch.no_grad()
def validate(model: nn.Module, context: int, batches: int = 8) -> float:
    """Give the loss on windows spread evenly over the text kept for validation."""
    _, data = load_text()
    starts = torch.linspace(0, len(data) - context - 1, 16 * batches).long().split(16)
    return statistics.fmean(loss_of(model, *windows(data, s, context)).item() for s in starts)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="bf16", help="fp32, bf16, fp16, bf16-mixed, ...")
    defaults = {"steps": 200, "seed": 0, "layers": 4, "width": 256, "context": 128, "batch": 16}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} if left out")
    parser.add_argument("--lr", type=float, default=3e-3, help="the highest learning rate")
    return parser.parse_args(argv)


def main() -> None:
    """Train with what the command line says; print progress, then the results as JSON."""
    args = parse_arguments()
    losses, seconds, skipped, begin = [], [], 0, time.perf_counter()
    for step, (model, _, loss, applied) in enumerate(train(args), start=1):  # noqa: B007
        losses.append(loss)
        seconds.append(time.perf_counter() - begin)
        skipped += not applied
        if step % max(args.steps // 20, 1) == 0:
            print(f"step {step}/{args.steps}  loss {loss:.3f}  {seconds[-1] * 1e3:.0f} ms")
        begin = time.perf_counter()
    results = {
        "recipe": args.recipe,
        "loss": statistics.fmean(losses[-max(args.steps // 10, 1) :]),
        "val_loss": validate(model.eval(), args.context),
        "tokens_per_second": args.batch * args.context / statistics.median(seconds),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "skipped": skipped,
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
