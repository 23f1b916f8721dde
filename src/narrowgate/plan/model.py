"""What a plan is resolved on: a description of a model, without the model.

The engine writes it from a live model; it travels as JSON, so that a plan can be made, printed and
compared where torch is not even installed. A parameter that several modules hold (tied weights) is
described once, with all its owners.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from narrowgate.errors import NarrowgateError

__all__ = ["ModelInfo", "ModuleInfo", "Owner", "ParamInfo"]

_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """One module.

    Attributes:
        fqn: Path of the module; the root's is ``""``.
        kind: What the module is to a plan: ``Linear``, ``Conv``, ``LayerNorm``, ..., or ``Other``.
        class_name: Name of its class, for people.
        parametrized: Whether a parametrization or weight norm computes one of its weights.
    """

    fqn: str
    kind: str
    class_name: str
    parametrized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A module that holds a parameter, and under which name.

    Attributes:
        module: Path of the module.
        name: Name of the attribute.
    """

    module: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamInfo:
    """One parameter, tied or not.

    Attributes:
        fqn: Its first name.
        owners: Every module that holds it, in the order of the model.
        shape: Its shape.
        dtype: Format it is stored in now, by its format name; a name torch alone knows stays
            torch's.
        trainable: Whether it asks for gradients.
        optimized: Whether an optimizer of the same prepare() holds it.
        shares_storage_with: First name of another parameter whose memory overlaps; None if none
            does.
    """

    fqn: str
    owners: tuple[Owner, ...]
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    optimized: bool
    shares_storage_with: str | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model as a plan sees it.

    Attributes:
        device: Kind of device that holds the parameters: ``cpu``, ``cuda``, ...
        modules: All modules, parents before children.
        params: All parameters, each once.
    """

    device: str
    modules: tuple[ModuleInfo, ...]
    params: tuple[ParamInfo, ...]

    def to_json(self) -> str:
        """Write the description as JSON."""
        return json.dumps({"schema": _SCHEMA, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelInfo:
        """Read a description from JSON.

        Args:
            text: What `to_json` wrote.

        Raises:
            NarrowgateError: It is no description, or one of another schema.
        """
        try:
            data = json.loads(text)
            if data["schema"] != _SCHEMA:
                raise NarrowgateError(
                    f"model description of schema {data['schema']}; this version knows {_SCHEMA}",
                    hint="describe the model with the same version of narrowgate",
                )
            return cls(
                device=data["device"],
                modules=tuple(ModuleInfo(**module) for module in data["modules"]),
                params=tuple(_param(param) for param in data["params"]),
            )
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise NarrowgateError(
                f"this is no model description: {error}",
                hint="a description is what ModelInfo.to_json() wrote",
            ) from error


def _param(data: dict[str, Any]) -> ParamInfo:
    """Read one parameter from its JSON form."""
    owners = tuple(Owner(**owner) for owner in data["owners"])
    return ParamInfo(**{**data, "shape": tuple(data["shape"]), "owners": owners})
