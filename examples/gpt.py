"""Train a small byte-level GPT on the source text of Python's own standard library.

    python examples/gpt.py --recipe bf16

The text lies on every machine with Python; a token is a byte. The lines marked "one" and "two"
train in 16 bits. Those marked "pilot" let `narrowgate pilot` choose the seed and judge the result:

    narrowgate pilot --config examples/gpt.toml -- python examples/gpt.py --seed {seed}
"""

import argparse
import statistics
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import narrowgate as ng

# Validation text comes from each of these alike, and the loss on each is a slice of its own.
PARTS = {
    "modules": "*.py",
    "asyncio": "asyncio/*.py",
    "email": "email/*.py",
    "encodings": "encodings/*.py",
    "json": "json/*.py",
}


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


def load_text() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Give text to train on, and of each part of the library its last tenth, for validation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    train, validation = [], {}
    for part, pattern in PARTS.items():
        text = b"".join(path.read_bytes() for path in sorted(folder.glob(pattern)))
        if len(text) < 20_000:
            raise SystemExit(f"this Python keeps no source text of its {part} in {folder}")
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        train.append(data[: len(data) * 9 // 10])
        validation[part] = data[len(data) * 9 // 10 :]
    return torch.cat(train), validation


def windows(data: torch.Tensor, starts: torch.Tensor, context: int) -> tuple[torch.Tensor, ...]:
    """Cut windows of text, and the same windows one byte further on, which are to be predicted."""
    chunks = data[starts[:, None] + torch.arange(context + 1)].long()
    return chunks[:, :-1], chunks[:, 1:]


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Give the mean cross-entropy in nats per byte."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(args: argparse.Namespace, text: torch.Tensor):
    """Train, and yield (model, loss) after each step."""
    seed = ng.seed(args.seed)  # pilot
    model = GPT(args.layers, args.width, args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    model, optimizer = ng.prepare(model, optimizer, args.recipe)  # one
    schedule = torch.optim.lr_scheduler.LambdaLR(  # up for a tenth of the steps, then down to 0
        optimizer, lambda step: min(10 * (step + 1) / args.steps, 1 - step / args.steps)
    )
    order = torch.Generator().manual_seed(seed)
    for _ in range(args.steps):
        starts = torch.randint(len(text) - args.context, (args.batch,), generator=order)
        loss = loss_of(model, *windows(text, starts, args.context))
        optimizer.zero_grad()
        optimizer.backward(loss)  # two
        optimizer.step()
        schedule.step()
        yield model, loss.item()


@torch.no_grad()
def validate(model: nn.Module, text: torch.Tensor, context: int, batches: int = 4) -> float:
    """Give the loss on 16 windows a batch, spread evenly over the text."""
    starts = torch.linspace(0, len(text) - context - 1, 16 * batches).long().split(16)
    return statistics.fmean(loss_of(model, *windows(text, s, context)).item() for s in starts)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="bf16", help="fp32, bf16, fp16, bf16-mixed, ...")
    defaults = {"steps": 120, "seed": 0, "layers": 2, "width": 192, "context": 32, "batch": 4}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} if left out")
    parser.add_argument("--lr", type=float, default=3e-4, help="the highest learning rate")
    return parser.parse_args(argv)


def main() -> None:
    """Train as the command line says, then give the loss on each part of the library."""
    torch.set_num_threads(1)  # so small a model gains little by more, and waits on a busy machine
    args = parse_arguments()
    text, validation = load_text()
    for step, (model, loss) in enumerate(train(args, text), start=1):  # noqa: B007
        if step % max(args.steps // 10, 1) == 0:
            print(f"step {step}/{args.steps}  loss {loss:.3f}")
    model.eval()
    losses = {part: validate(model, data, args.context) for part, data in validation.items()}
    mean = statistics.fmean(losses.values())
    print(f"val_loss {mean:.4f}  " + "  ".join(f"{part} {losses[part]:.4f}" for part in losses))
    ng.result(val_loss=mean, slices={part: {"val_loss": losses[part]} for part in losses})  # pilot


if __name__ == "__main__":
    main()
