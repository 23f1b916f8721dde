"""The models which the benchmarks and their tests train, each with a batch and a loss.

Everything is made from one seed. The GPT is the example's; text is the example's text; images are
noise, since neither bytes nor seconds nor rounding errors ask what is on a picture.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from gpt import GPT, load_text, windows

__all__ = ["DTYPES", "GPT", "SIZES", "Task", "load_text", "make_task", "windows"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The 16-bit formats by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model with something to learn.

    Attributes:
        name: Name of the model.
        model: The model, FP32, freshly initialised.
        inputs: One batch.
        targets: What is to be predicted: class numbers, any shape.
    """

    name: str
    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor

    def loss(self, model: nn.Module) -> torch.Tensor:
        """Give a model's mean cross-entropy on the batch.

        Args:
            model: This task's model, or a copy of it in another precision.

        Returns:
            0-d tensor.
        """
        logits = model(self.inputs)
        return F.cross_entropy(logits.flatten(0, -2), self.targets.flatten())


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, and the input added."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        same = channels_in == channels and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, channels_in, height, width) to (batch, channels, height', width')."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network for 32 x 32 images, two blocks at each of three resolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        channels = (width, width, 2 * width, 4 * width)
        blocks = []
        for index in range(3):
            blocks += [
                ResidualBlock(channels[index], channels[index + 1], 1 if index == 0 else 2),
                ResidualBlock(channels[index + 1], channels[index + 1], 1),
            ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (batch, 3, 32, 32) to logits (batch, 10)."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class LSTM(nn.Module):
    """A byte-level recurrent language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map bytes (batch, context) to logits (batch, context, 256)."""
        return self.head(self.lstm(self.byte(tokens))[0])


SIZES: Mapping[str, Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {
        "gpt": {
            "full": {"layers": 6, "width": 384, "context": 256, "batch": 8},
            "small": {"layers": 3, "width": 192, "context": 64, "batch": 4},
        },
        "resnet": {"full": {"width": 32, "batch": 128}, "small": {"width": 8, "batch": 16}},
        "lstm": {
            "full": {"width": 256, "context": 64, "batch": 16},
            "small": {"width": 64, "context": 32, "batch": 8},
        },
    }
)
"""Arguments of each model and of its batch, by name and size."""


def make_task(name: str, size: str = "full", *, seed: int = 0) -> Task:
    """Make a model and a batch.

    Args:
        name: ``gpt``, ``resnet`` or ``lstm``.
        size: ``full`` or ``small``.
        seed: Of weights, noise and the choice of text.

    Returns:
        The task.
    """
    args = SIZES[name][size]
    torch.manual_seed(seed)
    if name == "resnet":
        images = torch.randn(args["batch"], 3, 32, 32)
        classes = torch.randint(10, (args["batch"],))
        return Task(name=name, model=ResNet(args["width"]), inputs=images, targets=classes)
    model = (
        GPT(args["layers"], args["width"], args["context"])
        if name == "gpt"
        else LSTM(args["width"])
    )
    text, _ = load_text()
    starts = torch.randint(len(text) - args["context"], (args["batch"],))
    tokens, targets = windows(text, starts, args["context"])
    return Task(name=name, model=model, inputs=tokens, targets=targets)
