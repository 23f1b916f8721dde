"""Switches of the whole process that change what a matrix product computes: read, set, put back.

By default torch lets CUDA's fp16 and bf16 products reduce in 16 bits. A 16-bit recipe turns that
off for models on CUDA. ``fp32`` changes nothing; it warns if TF32 is on, since its products are not
FP32.
"""

from __future__ import annotations

import warnings

import torch

from narrowgate.plan import Recipe

__all__ = ["apply", "put_back", "read"]

_Switches = dict[str, bool | str]


def read() -> _Switches:
    """Read the switches.

    Returns:
        Whether fp16 and bf16 products may be reduced in 16 bits, whether convolutions may use TF32,
        and the precision of FP32 products (``highest`` is FP32).
    """
    matmul = torch.backends.cuda.matmul
    return {
        "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
        "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def apply(recipe: Recipe, device: str) -> _Switches:
    """Set the switches as a recipe needs them.

    Args:
        recipe: The recipe.
        device: Kind of device that holds the model; only CUDA has these switches.

    Returns:
        What they were before, for `put_back`; empty if nothing was changed.
    """
    if device != "cuda":
        return {}
    before = read()
    if recipe.default.compute == "tf32":
        put_back({"float32_matmul_precision": "high", "cudnn_tf32": True})
    elif recipe.is_passthrough:
        if before["float32_matmul_precision"] != "highest" or before["cudnn_tf32"]:
            warnings.warn(
                "the recipe fp32 leaves TF32 on: float32_matmul_precision is "
                f"{before['float32_matmul_precision']}, cudnn.allow_tf32 is {before['cudnn_tf32']}",
                stacklevel=4,
            )
        return {}
    else:
        put_back(
            {"fp16_reduced_precision_reduction": False, "bf16_reduced_precision_reduction": False}
        )
    return before


def put_back(before: _Switches) -> None:
    """Set switches to given values.

    Args:
        before: Values by name, as `read` gives them; names left out stay as they are.
    """
    matmul = torch.backends.cuda.matmul
    for name, value in before.items():
        if name == "fp16_reduced_precision_reduction":
            matmul.allow_fp16_reduced_precision_reduction = value
        elif name == "bf16_reduced_precision_reduction":
            matmul.allow_bf16_reduced_precision_reduction = value
        elif name == "cudnn_tf32":
            torch.backends.cudnn.allow_tf32 = bool(value)
        else:
            torch.set_float32_matmul_precision(str(value))
