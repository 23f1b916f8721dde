"""What the engine tells the record of a run: losses, steps, checksums of the data, bytes, facts.

Nothing is waited for: losses are copied where they are, and results are read later by the
recorder's thread. A run that nobody records costs one comparison a step. In a pilot the recipe is
the pilot's.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from narrowgate.engine import switches
from narrowgate.engine.private import has_compiled, is_wrapped
from narrowgate.plan import Plan
from narrowgate.records import script
from narrowgate.records.environment import memory_bytes, reset_peak
from narrowgate.records.recorder import Measures, Recorder

if TYPE_CHECKING:
    from narrowgate.engine.optimizer import PreparedOptimizer
    from narrowgate.engine.result import StepResult
    from narrowgate.engine.session import Session

__all__ = ["Recording", "note_entered", "recipe_of"]

_log = logging.getLogger("narrowgate")

#: Checksums of the data are taken at each of so many first steps, and at every tenth after.
_EVERY_STEP = 100
#: An FP32 baseline's own optimizer takes no gradient norm: it is taken for the record now and then,
#: so seldom that not even the 95th percentile of step times sees it.
_NORM_INTERVAL = 32


class _Run:
    """What belongs to one run of this process; the next run starts with another.

    Attributes:
        sessions: The prepare() calls that train in it.
        num_optimizers: Optimizers that have a number.
        whole: Sum of the whole numbers that models were given since the last step, by device.
        floats: Sum of the bits of the FP32 and FP64 ones.
        num_steps: Steps told so far.
        is_entered: Whether a training forward of a prepared model was seen, or may have been.
        base_bytes: Resident size before the first prepare(), less what its models hold.
        earlier_peak: A peak of before, which hides lower ones of now; 0 if it was reset.
        recorder: Who is told; None until there is one.
    """

    def __init__(self) -> None:
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.num_optimizers = 0
        self.whole: dict[torch.device, torch.Tensor] = {}
        self.floats: dict[torch.device, torch.Tensor] = {}
        self.num_steps = 0
        self.is_entered = False
        self.base_bytes: int | None = None
        self.earlier_peak = 0
        self.recorder: Recorder | None = None


_run = _Run()


def _this_run() -> _Run:
    """Give the present run; another one if the last has its result."""
    global _run
    if _run.recorder is not None and _run.recorder.is_closed:
        _run = _Run()
    return _run


def recipe_of(recipe: str | Plan | None) -> str | Plan | None:
    """Give the recipe that prepare() is to take: the pilot's, if there is a pilot.

    Args:
        recipe: The script's own.

    Returns:
        The recipe.

    Raises:
        RunError: ``NARROWGATE_RUN`` names no run's folder, or another process is writing there.
    """
    asked = script.request()
    if asked is None or asked.recipe is None:
        return recipe
    script.requested()
    own = "none" if recipe is None else recipe.recipe if isinstance(recipe, Plan) else recipe
    if own != asked.recipe:
        _log.warning(
            "narrowgate: the pilot's recipe %s is taken; the script's own is %s", asked.recipe, own
        )
    return asked.recipe


class Recording:
    """What one prepare() call tells the record; made before anything is converted.

    Args:
        session: What the prepare() call shares.
    """

    def __init__(self, session: Session) -> None:
        self.first = 0
        self._losses: list[torch.Tensor] = []
        self._hooks: list[Any] = []
        self._stepped: set[int] = set()
        run = _this_run()
        if run.base_bytes is None:
            held = sum(_storage_bytes([*m.parameters(), *m.buffers()]) for m in session.models)
            is_asked = script.request() is not None  # else the process's counts are its own
            if is_asked and session.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(session.device)
            now, peak = memory_bytes()
            run.earlier_peak = 0 if is_asked and reset_peak() else peak
            run.base_bytes = max(now - held, 0)

    def begin(self, session: Session) -> None:
        """Tell the record about the models and optimizers, when prepare() is done.

        Args:
            session: What the prepare() call shares.
        """
        self._join(session)
        if script.request() is not None:
            self._hooks = [
                model.register_forward_pre_hook(_note_inputs, with_kwargs=True)
                for model in session.models
            ]

    def _join(self, session: Session) -> None:
        """Take part in the present run, with numbers for the optimizers."""
        run = _this_run()
        self.first = run.num_optimizers
        run.num_optimizers += len(session.optimizers)
        run.sessions.add(session)
        script.introduce_by(_introduce)

    def end(self, session: Session) -> None:
        """Take no part any more: the model was given back.

        Args:
            session: What the prepare() call shares.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        _run.sessions.discard(session)

    def loss(self, loss: torch.Tensor) -> None:
        """Note a loss that backward was given.

        Args:
            loss: The loss, unscaled; copied, since its owner may change it.
        """
        self._stepped.clear()
        if script.active() is not None:
            self._losses.append(loss.detach().clone())

    def begins_window(self, optimizer: PreparedOptimizer) -> bool:
        """Say whether a step that takes no verdict is to be counted, as one that takes it would be.

        Optimizers that step one after the other on the same gradients make one step together.

        Args:
            optimizer: The optimizer that steps.
        """
        begins = not self._stepped or id(optimizer) in self._stepped
        self._stepped = {id(optimizer)} if begins else {*self._stepped, id(optimizer)}
        return begins

    def step(self, optimizer: PreparedOptimizer, result: StepResult) -> None:
        """Note a step.

        Args:
            optimizer: The optimizer that stepped.
            result: What it did.
        """
        recorder = script.active()
        if recorder is None:
            return
        session = optimizer._session
        run = _this_run()
        if session not in run.sessions:  # it went on training after a result
            self._join(session)
        number = self.first + session.optimizers.index(optimizer)
        data, floats = list(run.whole.values()), list(run.floats.values())
        recorder.step(number, self._losses, result.record, data=data, floats=floats)
        self._losses = []
        run.whole, run.floats = {}, {}
        run.num_steps += 1

    @property
    def wants_norm(self) -> bool:
        """Whether the gradient norm of a step that does not need it is to be taken."""
        return script.active() is not None and _this_run().num_steps % _NORM_INTERVAL == 0


def note_entered() -> None:
    """Note that a region of a prepared model is entered by `narrowgate.autocast`."""
    _run.is_entered = True


def _note_inputs(module: nn.Module, arguments: Any, keywords: Any) -> None:
    """Add up the bits of what a model in training is given; a hook, by its name picklable.

    Whole numbers and floats are kept apart, since floats beside whole numbers are often made by the
    model itself: a state that is carried on, its own last guess. Floats in 16 bits were cast to the
    recipe's format, and tell nothing; a mask of booleans tells no order.
    """
    if torch.compiler.is_compiling() or not module.training or script.active() is None:
        return
    run = _this_run()
    run.is_entered = True
    if run.num_steps >= _EVERY_STEP and run.num_steps % 10:
        return
    for tensor in _tensors((arguments, keywords)):
        if tensor.dtype == torch.bool:
            continue
        is_whole = not (tensor.is_floating_point() or tensor.is_complex())
        if is_whole or tensor.dtype in (torch.float32, torch.float64, torch.complex64):
            total = _checksum(tensor.detach())
            sums = run.whole if is_whole else run.floats
            held = sums.get(total.device)
            sums[total.device] = total if held is None else held + total


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """List the dense tensors in nested lists, tuples and mappings that need no gradient."""
    if isinstance(value, torch.Tensor):
        is_plain = value.layout == torch.strided and value.device.type != "meta"
        is_odd = value.is_nested or value.is_quantized or is_wrapped(value)
        if is_plain and not is_odd and not value.requires_grad and value.numel():
            yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum a tensor's bits, taken as whole numbers, modulo 2^64; the order of elements is no matter.

    That two batches differ in order only changes nothing about their mean loss.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    if tensor.is_floating_point():
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        tensor = tensor.contiguous().view(whole[tensor.element_size()])
    return tensor.sum(dtype=torch.int64)


# --- what a record is told once ------------------------------------------------------------------


def _introduce(recorder: Recorder) -> None:
    """Tell a record which torch, device, flags and plans the run has."""
    run = _this_run()
    run.recorder = recorder
    sessions = sorted(run.sessions, key=lambda session: session.recording.first)
    if not sessions:
        return
    recorder.measure = _measure
    recorder.environment(_facts(sessions[0].device))
    plans = [plan for session in sessions for plan in session.plans]
    combined = hashlib.sha256("".join(plan.hash for plan in plans).encode()).hexdigest()
    recorder.plans(combined, [plan.to_json() for plan in plans])


def _facts(device: torch.device) -> dict[str, str | int | float | bool | None]:
    """Name the facts about torch and the device that change numbers or speed."""
    on_gpu = device.type == "cuda"
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_gpu else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        **switches.read(),
    }


def _measure() -> Measures:
    """Measure what a result holds beside its metrics."""
    run = _run  # its recorder is closing
    sessions = list(run.sessions)
    kinds = dict.fromkeys(("parameters", "remainders", "gradients", "states", "buffers"), 0)
    for session in sessions:
        held = session.parameters()
        kinds["parameters"] += sum(_storage_bytes(m.parameters()) for m in session.models)
        kinds["buffers"] += sum(_storage_bytes(m.buffers()) for m in session.models)
        kinds["remainders"] += _storage_bytes(session.masters.remainders.values())
        kinds["gradients"] += sum(p.numel() * p.element_size() for p in held)
        if session.recipe.accumulate:
            kinds["gradients"] += sum(4 * p.numel() for p in held if p.element_size() == 2)
        for optimizer in session.optimizers:
            values = [
                value
                for state in optimizer.state.values()
                for name, value in state.items()
                if isinstance(value, torch.Tensor) and not name.startswith("master_")
            ]
            kinds["states"] += _storage_bytes(values)
    device = sessions[0].device if sessions else torch.device("cpu")
    base, peak = 0, 0
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    elif (highest := memory_bytes()[1]) > run.earlier_peak:
        base = run.base_bytes or 0
        peak = max(highest - base, 0)
    return Measures(
        device=device.type,
        peak_bytes=peak,
        base_bytes=base,
        kinds=kinds,
        took_effect=run.is_entered or has_compiled() or not any(map(_needs_forward, sessions)),
    )


def _needs_forward(session: Session) -> bool:
    """Say whether a recipe acts through the forward alone: no parameter is narrowed by it."""
    narrowed = any(row.format != "fp32" for plan in session.plans for row in plan.params)
    return not session.recipe.is_passthrough and not narrowed


def _storage_bytes(tensors: Sequence[torch.Tensor] | Iterator[torch.Tensor] | Any) -> int:
    """Sum the bytes of tensors, each storage once."""
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())
