"""Nested plain values with tensors in them, as JSON and a flat table of tensors, and back.

Nothing is pickled. Tuples, tensors and dictionaries with keys that are no strings are tagged, so
that what comes back equals what went in. Tensors that are the same memory are stored once.
"""

from __future__ import annotations

from typing import Any

import torch

from narrowgate.errors import CheckpointError

__all__ = ["TensorTable", "decode", "encode"]

_TENSOR, _TUPLE, _DICT = "$tensor", "$tuple", "$dict"


class TensorTable:
    """Tensors by name, each piece of memory once.

    Attributes:
        tensors: What is to be written: dense, on the CPU, no two sharing memory.
        aliases: Names of tensors which are the same memory as an earlier one, with that one's name.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.aliases: dict[str, str] = {}
        self._seen: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor, or an alias if its very memory is there already.

        Args:
            name: Its name, used once.
            tensor: Any dense tensor.
        """
        tensor = tensor.detach()
        if tensor.layout != torch.strided:
            raise CheckpointError(
                f"{name} is a {tensor.layout} tensor; dense ones are saved",
                hint="convert it with to_dense() first",
            )
        memory = (
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            str(tensor.device),
        )
        if tensor.numel():
            first = self._seen.setdefault(memory, name)
            if first != name:
                self.aliases[name] = first
                return
        stored = tensor.cpu().contiguous()
        storage = stored.untyped_storage().data_ptr()
        if storage in self._storages or stored.numel() * stored.element_size() != (
            stored.untyped_storage().nbytes()
        ):
            stored = stored.clone()  # a view of something larger or already there
        self._storages.add(stored.untyped_storage().data_ptr())
        self.tensors[name] = stored


def encode(value: Any, table: TensorTable, path: str) -> Any:
    """Turn a value into what JSON can hold; its tensors go to a table.

    Args:
        value: None, bool, int, float, str, tensor, or list, tuple or dict of such.
        table: Takes the tensors.
        path: Where the value stands, for names and messages.

    Returns:
        The JSON form.

    Raises:
        CheckpointError: A value of another type, by path.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        table.add(path, value)
        return {_TENSOR: path}
    if isinstance(value, tuple):
        return {_TUPLE: [encode(v, table, f"{path}.{i}") for i, v in enumerate(value)]}
    if isinstance(value, list):
        return [encode(v, table, f"{path}.{i}") for i, v in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(v, table, f"{path}.{key}") for key, v in value.items()}
        if all(isinstance(key, (str, int)) for key in value):
            return {_DICT: [[key, encode(v, table, f"{path}.{key}")] for key, v in value.items()]}
    raise CheckpointError(
        f"{path} is a {type(value).__name__}; a checkpoint holds numbers, strings, tensors, and "
        f"lists, tuples and dictionaries of them",
        hint="pass state_dict() of an object, not the object",
    )


def decode(value: Any, tensors: dict[str, torch.Tensor], aliases: dict[str, str]) -> Any:
    """Turn the JSON form back into the value.

    Args:
        value: What `encode` returned.
        tensors: The stored tensors by name.
        aliases: The aliases of the table.

    Returns:
        The value.
    """
    if isinstance(value, list):
        return [decode(item, tensors, aliases) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            name: str = value[_TENSOR]
            return tensors[aliases.get(name, name)]
        if value.keys() == {_TUPLE}:
            return tuple(decode(item, tensors, aliases) for item in value[_TUPLE])
        if value.keys() == {_DICT}:
            return {key: decode(item, tensors, aliases) for key, item in value[_DICT]}
        return {key: decode(item, tensors, aliases) for key, item in value.items()}
    return value
