"""From a live model to its description, which is all that a plan ever sees.

Run as ``python -m narrowgate.engine.describe MODULE:FACTORY`` it calls the factory and prints the
description as JSON: so the commands, which import no torch, resolve plans in their own process.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrize

from narrowgate.errors import NarrowgateError, PrepareError, nearest
from narrowgate.plan import ModelInfo, ModuleInfo, Owner, ParamInfo

__all__ = ["FORMAT_OF", "check_made", "describe", "format_name", "kind_of", "overlapping"]

#: torch's dtypes by format name, where a model's parameters may have them.
FORMAT_OF: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}

_KINDS: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("Linear", (nn.Linear,)),
    ("Conv", (
        nn.Conv1d, nn.Conv2d, nn.Conv3d,
        nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    )),
    ("Embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("Attention", (nn.MultiheadAttention,)),
    ("Parametrization", (parametrize.ParametrizationList,)),
)  # fmt: skip

#: Kinds whose forward is replaced: they count only with the forward that torch gave them.
_STOCK: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("LayerNorm", (nn.LayerNorm,)),
    ("GroupNorm", (nn.GroupNorm,)),
    ("RMSNorm", (nn.RMSNorm,)),
    ("RNN", (nn.RNN, nn.LSTM, nn.GRU)),
)

_NORMS = (
    nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip

# Names under which torch's older weight_norm and spectral_norm keep what a weight is computed from.
_OLD_PARAMETRIZATIONS = ("_g", "_v", "_orig")


def kind_of(module: nn.Module) -> str:
    """Name what a module is to a plan.

    Args:
        module: Any module.

    Returns:
        One of the kinds that `narrowgate.plan` knows; ``Norm`` for norms whose forward is left
        alone (batch norms mix formats by themselves; a subclass with its own forward is its own
        affair); ``Other`` for the rest.
    """
    for kind, classes in _STOCK:
        if any(isinstance(module, c) and type(module).forward is c.forward for c in classes):
            return kind
    if isinstance(module, _NORMS):
        return "Norm"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "RenormalisedEmbedding"
    if isinstance(module, nn.EmbeddingBag) and module.mode == "sum":
        return "WeightedBag"
    for kind, classes in _KINDS:
        if isinstance(module, classes):
            return kind
    return "Other"


def format_name(dtype: torch.dtype) -> str:
    """Name a dtype as plans do: by its format, or torch's own name where plans know none."""
    return FORMAT_OF.get(dtype, str(dtype).removeprefix("torch."))


def _is_parametrized(module: nn.Module) -> bool:
    """Say whether a weight of the module is computed from other parameters."""
    if parametrize.is_parametrized(module):
        return True
    return any(
        name.endswith(_OLD_PARAMETRIZATIONS) and name.rpartition("_")[0] in module.__dict__
        for name in module._parameters
    )


def check_made(model: nn.Module) -> None:
    """Check that all parameters of a model exist.

    Args:
        model: Any model.

    Raises:
        PrepareError: One is still to be made by the first batch, by name.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise PrepareError(
                f"the parameter {name} is not made yet (a lazy module)",
                hint="run one batch through the model before prepare()",
            )


def describe(model: nn.Module, optimized: Iterable[torch.Tensor] = ()) -> ModelInfo:
    """Describe a model.

    Args:
        model: The model; its parameters must exist.
        optimized: The parameters that some optimizer holds.

    Returns:
        The description, with tied parameters once.

    Raises:
        PrepareError: Parameters on several kinds of device, on the meta device, or not yet made.
    """
    check_made(model)
    held = {id(p) for p in optimized}
    owners: dict[nn.Parameter, list[Owner]] = {}
    modules = []
    for path, module in model.named_modules():
        modules.append(
            ModuleInfo(
                fqn=path,
                kind=kind_of(module),
                class_name=type(module).__name__,
                parametrized=_is_parametrized(module),
            )
        )
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(parameter, []).append(Owner(module=path, name=name))
    devices = sorted({parameter.device.type for parameter in owners})
    if len(devices) > 1 or "meta" in devices:
        raise PrepareError(
            f"the model's parameters are on {', '.join(devices)}; prepare() takes one kind of "
            "device",
            hint="move the model to its device first (model.to(device), or to_empty() from meta)",
        )
    return ModelInfo(
        device=devices[0] if devices else "cpu",
        modules=tuple(modules),
        params=_params(owners, held),
    )


def _fqn(owner: Owner) -> str:
    """Join a module's path and a parameter's name."""
    return f"{owner.module}.{owner.name}" if owner.module else owner.name


def _params(owners: dict[nn.Parameter, list[Owner]], held: set[int]) -> tuple[ParamInfo, ...]:
    """Describe each parameter once, and say whose memory overlaps whose."""
    sharers: dict[nn.Parameter, str] = {}
    for one, other in overlapping(owners):
        sharers.setdefault(one, _fqn(owners[other][0]))
        sharers.setdefault(other, _fqn(owners[one][0]))
    return tuple(
        ParamInfo(
            fqn=_fqn(places[0]),
            owners=tuple(places),
            shape=tuple(parameter.shape),
            dtype=format_name(parameter.dtype),
            trainable=parameter.requires_grad,
            optimized=id(parameter) in held,
            shares_storage_with=sharers.get(parameter),
        )
        for parameter, places in owners.items()
    )


def overlapping(parameters: Iterable[nn.Parameter]) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Find different parameters in one piece of memory.

    Neighbours in one storage, such as the flattened weights of a recurrent network, do not overlap.

    Args:
        parameters: The parameters, each once.

    Returns:
        Pairs whose memory, from first to last element, overlaps.
    """
    spans = []
    for parameter in parameters:
        if parameter.numel() and parameter.layout == torch.strided:
            steps = zip(parameter.shape, parameter.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in steps)
            begin = parameter.data_ptr()
            end = begin + (last + 1) * parameter.element_size()
            spans.append((str(parameter.device), begin, end, parameter))
    pairs = []
    there, reach, furthest = "", 0, None  # what reaches furthest so far, on which device, how far
    for device, begin, end, parameter in sorted(spans, key=lambda span: span[:3]):
        if furthest is not None and device == there and begin < reach:
            pairs.append((furthest, parameter))
        if device != there or end > reach:
            there, reach, furthest = device, end, parameter
    return pairs


def _made(name: str, factory: str) -> object:
    """Call ``factory`` of the module ``name``; a fault inside either keeps its own traceback."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise PrepareError(
            f"there is no module {name!r} in {Path.cwd()} or on the path",
            hint="run the command in the folder of the module",
        ) from error
    if not callable(getattr(module, factory, None)):
        raise PrepareError(
            f"the module {name!r} has no callable {factory!r}",
            hint=nearest(factory, [n for n, v in vars(module).items() if callable(v)]),
        )
    return getattr(module, factory)()


def main(arguments: list[str]) -> int:
    """Print the description of what ``MODULE:FACTORY`` makes, as JSON.

    Args:
        arguments: One string: a module and a callable in it which takes nothing and gives a model.

    Returns:
        0, or 2 if the model cannot be had (the reason is printed on stderr).
    """
    sys.path.insert(0, str(Path.cwd()))
    name, colon, factory = (arguments or [""])[0].partition(":")
    try:
        if not colon:
            raise PrepareError(
                f"{name!r} is not of the form MODULE:FACTORY",
                hint="for example 'train:build_model', a callable that returns the model",
            )
        # stdout is for the description alone; what the user's module prints goes beside the logs.
        with contextlib.redirect_stdout(sys.stderr):
            model = _made(name, factory)
        if not isinstance(model, nn.Module):
            raise PrepareError(
                f"{arguments[0]} gave {type(model).__name__}, not a torch.nn.Module",
                hint="name a callable which takes no arguments and returns the model",
            )
        # Nobody has said what will be trained: what asks for gradients is taken to be.
        info = describe(model, [p for p in model.parameters() if p.requires_grad])
    except NarrowgateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(info.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
