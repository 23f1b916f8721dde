"""Train a small ResNet on scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels.

    python examples/resnet.py --recipe bf16

The images come with scikit-learn. The lines marked "one" and "two" train in 16 bits. Those marked
"pilot" let `narrowgate pilot` choose the seed and judge the result:

    narrowgate pilot --config examples/resnet.toml -- python examples/resnet.py --seed {seed}
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

import narrowgate as ng


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """Make a convolution and the norm behind it."""
    convolve = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolve, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions, and a shortcut round them: a plain one if the shape stays the same."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, stride=stride)
        self.second = convolution(outputs, outputs)
        is_plain = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if is_plain else convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, inputs, height, width) to outputs, height and width divided by the stride."""
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """Tell which digit an image shows: a stem, blocks at three resolutions, a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = convolution(1, width)
        self.blocks = nn.Sequential(
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (batch, 1, 8, 8) to logits (batch, 10)."""
        return self.head(self.blocks(F.relu(self.stem(images))).mean((2, 3)))


def load_images() -> tuple[torch.Tensor, ...]:
    """Give images and digits to train on and to test on: half of each digit's, always the same."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images, digits, test_size=0.5, stratify=digits, random_state=0)
    train, test = (torch.tensor(part / 16.0).float().view(-1, 1, 8, 8) for part in parts[:2])
    return train, torch.tensor(parts[2]), test, torch.tensor(parts[3])


def train(args: argparse.Namespace, images: torch.Tensor, digits: torch.Tensor):
    """Train, and yield (model, loss) after each step."""
    seed = ng.seed(args.seed)  # pilot
    model = ResNet(args.width)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    model, optimizer = ng.prepare(model, optimizer, args.recipe)  # one
    schedule = torch.optim.lr_scheduler.LambdaLR(  # up for a tenth of the steps, then down to 0
        optimizer, lambda step: min(10 * (step + 1) / args.steps, 1 - step / args.steps)
    )
    order = torch.Generator().manual_seed(seed)
    for _ in range(args.steps):
        chosen = torch.randperm(len(images), generator=order)[: args.batch]
        loss = F.cross_entropy(model(images[chosen]), digits[chosen])
        optimizer.zero_grad()
        optimizer.backward(loss)  # two
        optimizer.step()
        schedule.step()
        yield model, loss.item()


@torch.no_grad()
def test(model: nn.Module, images: torch.Tensor, digits: torch.Tensor) -> tuple[float, list[float]]:
    """Give the accuracy in points of 100 over all images, and over those of each digit."""
    guesses = torch.cat([model(part).argmax(1) for part in images.split(128)])
    is_right = 100.0 * (guesses == digits).double()
    return is_right.mean().item(), [is_right[digits == digit].mean().item() for digit in range(10)]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="bf16", help="fp32, bf16, fp16, bf16-mixed, ...")
    defaults = {"steps": 120, "seed": 0, "width": 16, "batch": 64}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} if left out")
    parser.add_argument("--lr", type=float, default=0.1, help="the highest learning rate")
    return parser.parse_args(argv)


def main() -> None:
    """Train as the command line says, then give the accuracy on each digit."""
    torch.set_num_threads(1)  # so small a model gains little by more, and waits on a busy machine
    args = parse_arguments()
    images, digits, test_images, test_digits = load_images()
    for step, (model, loss) in enumerate(train(args, images, digits), start=1):  # noqa: B007
        if step % max(args.steps // 10, 1) == 0:
            print(f"step {step}/{args.steps}  loss {loss:.4f}")
    accuracy, by_digit = test(model.eval(), test_images, test_digits)
    print(f"accuracy {accuracy:.2f}  " + "  ".join(f"{d}: {a:.1f}" for d, a in enumerate(by_digit)))
    slices = {f"digit {digit}": {"accuracy": value} for digit, value in enumerate(by_digit)}
    ng.result(accuracy=accuracy, slices=slices)  # pilot


if __name__ == "__main__":
    main()
