"""The plan: a recipe resolved against one model, as a frozen table with a reason in every row.

Everything later (casting, checkpoints, reports) reads this table and never looks at patterns again.
Two plans are the same if their hashes are; `diff` says where two of them part.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, fields

from narrowgate.errors import NarrowgateError
from narrowgate.formats import get

__all__ = ["ModuleRow", "ParamRow", "Plan", "diff"]

_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamRow:
    """What one parameter is stored as, and why.

    Attributes:
        fqn: First name of the parameter.
        shape: Its shape.
        format: Format of the parameter itself; its gradient has the same.
        master: ``params``: the parameter is the FP32 master. ``split``: a 16-bit remainder beside
            it makes the FP32 master. ``none``: there is no master. ``frozen``: no optimizer holds
            it.
            ``foreign``: not a real floating-point parameter; left alone.
        reason: Why.
    """

    fqn: str
    shape: tuple[int, ...]
    format: str
    master: str
    reason: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameter."""
        return self.numel * _storage_bytes(self.format)

    @property
    def remainder_bytes(self) -> int:
        """Bytes of the remainder beside it."""
        return self.numel * 2 if self.master == "split" else 0

    @property
    def gradient_bytes(self) -> int:
        """Bytes of its gradient, while there is one."""
        return 0 if self.master in ("frozen", "foreign") else self.weight_bytes


def _storage_bytes(name: str) -> int:
    """Bytes of one stored element; 0 for what is none of our formats."""
    try:
        return get(name).storage_bits // 8
    except NarrowgateError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """What one module computes in, and what is changed about it.

    Attributes:
        fqn: Path of the module; the root's is ``""``.
        kind: Its kind.
        compute: Format of its matrix products' operands.
        treatment: ``region`` (its forward enters this format's autocast), ``norm``, ``rnn``,
            ``island`` (its forward runs in FP32) or ``embedding`` (its output is widened).
        reason: Why.
    """

    fqn: str
    kind: str
    compute: str
    treatment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe resolved against one model.

    Attributes:
        recipe: The recipe in normal form.
        device: Kind of device the plan is for.
        params: One row for each parameter.
        modules: One row for each module whose forward is changed.
        notes: What a reader should know: rules without effect, large parts left in FP32.
    """

    recipe: str
    device: str
    params: tuple[ParamRow, ...]
    modules: tuple[ModuleRow, ...]
    notes: tuple[str, ...]

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's JSON form, as 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Write the plan as JSON, always in the same order."""
        return json.dumps({"schema": _SCHEMA, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from JSON.

        Args:
            text: What `to_json` wrote.

        Raises:
            NarrowgateError: It is no plan, or one of a newer schema.
        """
        try:
            data = json.loads(text)
            if data["schema"] != _SCHEMA:
                raise NarrowgateError(
                    f"plan of schema {data['schema']}; this version knows {_SCHEMA}",
                    hint="resolve the plan again with this version of narrowgate",
                )
            return cls(
                recipe=data["recipe"],
                device=data["device"],
                params=tuple(
                    ParamRow(**{**row, "shape": tuple(row["shape"])}) for row in data["params"]
                ),
                modules=tuple(ModuleRow(**row) for row in data["modules"]),
                notes=tuple(data["notes"]),
            )
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise NarrowgateError(
                f"this is no plan: {error}", hint="a plan is what Plan.to_json() wrote"
            ) from error

    def totals(self) -> dict[str, int]:
        """Sum the bytes of weights, remainders and gradients, and what FP32 would take.

        Returns:
            Bytes under ``weights``, ``remainders``, ``gradients``, and ``fp32`` for the weights and
            gradients of the same parameters in FP32.
        """
        real = [row for row in self.params if row.master != "foreign"]
        trained = [row for row in real if row.master != "frozen"]
        return {
            "weights": sum(row.weight_bytes for row in real),
            "remainders": sum(row.remainder_bytes for row in real),
            "gradients": sum(row.gradient_bytes for row in real),
            "fp32": 4 * sum(row.numel for row in real) + 4 * sum(row.numel for row in trained),
        }

    def render(self) -> str:
        """Print the plan for people: totals first, then rows with equal treatment together."""
        totals = self.totals()
        held = totals["weights"] + totals["remainders"] + totals["gradients"]
        lines = [
            f"plan {self.hash[:12]} of {self.recipe!r} on {self.device}",
            f"  weights {totals['weights']:,} B, remainders {totals['remainders']:,} B, "
            f"gradients {totals['gradients']:,} B; in FP32 {totals['fp32']:,} B"
            + (f" (ratio {held / totals['fp32']:.2f})" if totals["fp32"] else ""),
            "",
        ]
        groups: dict[tuple[str, str, str], list[ParamRow]] = {}
        for row in self.params:
            groups.setdefault((row.format, row.master, row.reason), []).append(row)
        for (stored, master, reason), rows in groups.items():
            elements = sum(row.numel for row in rows)
            size = sum(row.weight_bytes + row.remainder_bytes for row in rows)
            lines.append(
                f"  {stored:<5} master={master:<7} {len(rows):>5} parameters "
                f"{elements:>14,} elements {size:>15,} B  {_names(rows)}"
            )
            lines.append(f"        {reason}")
        counts = Counter((row.treatment, row.compute, row.reason) for row in self.modules)
        if counts:
            lines.append("")
        for (treatment, compute, reason), count in counts.items():
            lines.append(f"  {treatment:<9} in {compute:<5} {count:>5} modules  {reason}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def _names(rows: list[ParamRow]) -> str:
    """Name the first of some parameters."""
    return rows[0].fqn if len(rows) == 1 else f"{rows[0].fqn}, ..."


def diff(old: Plan, new: Plan) -> list[str]:
    """Say where two plans part.

    Args:
        old: One plan.
        new: The other.

    Returns:
        One line for each difference: the recipe, the device, rows that only one has, rows that
        differ. Empty if the two are equal but for their notes.
    """
    lines = []
    for name in ("recipe", "device"):
        if getattr(old, name) != getattr(new, name):
            lines.append(f"{name}: {getattr(old, name)} -> {getattr(new, name)}")
    before: dict[tuple[str, str], ParamRow | ModuleRow] = {}
    after: dict[tuple[str, str], ParamRow | ModuleRow] = {}
    for plan, table in ((old, before), (new, after)):
        table.update({("parameter", row.fqn): row for row in plan.params})
        table.update({(row.treatment, row.fqn): row for row in plan.modules})
    for kind, fqn in dict.fromkeys([*before, *after]):
        was, now = before.get((kind, fqn)), after.get((kind, fqn))
        where = f"{kind} {fqn or '(root)'}"
        if was is None or now is None:
            lines.append(f"{where}: only in the {'new' if was is None else 'old'} plan")
        elif was != now:
            changes = [
                f"{field.name} {getattr(was, field.name)} -> {getattr(now, field.name)}"
                for field in fields(was)
                if getattr(was, field.name) != getattr(now, field.name)
            ]
            lines.append(f"{where}: {'; '.join(changes)}")
    return lines
