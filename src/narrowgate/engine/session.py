"""What one prepare() call shares: one loss scale, one verdict, one table of masters.

A window reaches from the first backward to the moment when the gradients are cleared. The loss
scale is frozen in it, so that whatever is accumulated was made with one scale. The verdict is taken
at the first step after a backward, over the gradients of all optimizers of the call, and every one
of them follows it: a step is applied everywhere or nowhere, and the loss scale moves once.

Wrong orders are seen without hooks: the identity and the version of each gradient are noted after
our backward and compared at the step. That is done only where the loss is scaled; with a scale of 1
a plain ``loss.backward()`` is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from narrowgate.engine import lease
from narrowgate.engine.buffers import BufferGuard
from narrowgate.engine.halt import halt_error
from narrowgate.engine.marks import Marks
from narrowgate.engine.masters import Masters
from narrowgate.engine.result import StepResult
from narrowgate.engine.scaling import LossScaler, config_of
from narrowgate.engine.verdict import Verdict
from narrowgate.errors import PrepareError, StepError
from narrowgate.ops import grad_stats
from narrowgate.plan import Plan, Recipe

if TYPE_CHECKING:
    from narrowgate.engine.optimizer import PreparedOptimizer
    from narrowgate.engine.recording import Recording

__all__ = ["Session"]

#: Verdicts that may be under way on a device before the host waits for the oldest.
_LAG = 2


class Session:
    """The shared state of one prepare() call.

    Args:
        recipe: The recipe.
        plans: One plan for each model.
        models: The models.
        names: The first name of each parameter.
        device: Where the parameters are.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        plans: tuple[Plan, ...],
        models: Sequence[nn.Module],
        names: Mapping[torch.Tensor, str],
        device: torch.device,
    ) -> None:
        self.recipe = recipe
        self.plans = plans
        self.models = list(models)
        self.names = dict(names)
        self.order = list(self.names)
        self.labels = list(self.names.values())
        self.index = {p: i for i, p in enumerate(self.order)}
        self.device = device
        self.formats: dict[torch.Tensor, torch.dtype] = {}
        self.scaler = LossScaler(config_of(recipe.loss_scale), device)
        self.masters = Masters(self.names)
        self.guards: list[BufferGuard] = []
        self.optimizers: list[PreparedOptimizer] = []
        self.switches: dict[str, Any] = {}
        self.restored = False
        self.recording: Recording  # set by prepare(), before it converts
        self._scale = self.scaler.loss_scale
        self._loss_finite = torch.ones((), dtype=torch.bool, device=device)
        self._sums: dict[torch.Tensor, torch.Tensor] = {}
        self._parked: dict[torch.Tensor, torch.Tensor] = {}
        self._folded = Marks()
        self._marks = Marks()
        self._judged = Marks()
        self._backwards = 0
        self._verdict: Verdict | None = None
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        """Copy all but what is under way or about gradients: copies of parameters have none."""
        fresh: dict[str, Any] = {
            "_under_way": deque(),
            "_verdict": None,
            "_sums": {},
            "_parked": {},
        }
        return {**self.__dict__, **fresh, "_marks": Marks(), "_judged": Marks(), "_folded": Marks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a copy's or a pickle's state; it needs the CPU kernels as the original does."""
        self.__dict__.update(state)
        if not self.restored:
            lease.take(self)

    # --- parameters and gradients ------------------------------------------------------------

    def parameters(self) -> list[torch.Tensor]:
        """List the parameters of all optimizers, each once, in the order of their groups."""
        held = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        return list(dict.fromkeys(held))

    def name_of(self, parameter: torch.Tensor) -> str:
        """Name a parameter; one that was added later is named by its place."""
        if parameter not in self.names:
            self.names[parameter] = f"added parameter {len(self.names)}"
            self.index[parameter] = len(self.order)
            self.order.append(parameter)
            self.labels.append(self.names[parameter])
        return self.names[parameter]

    def check_formats(self) -> None:
        """Check that parameters are stored as prepare() left them.

        Raises:
            StepError: Somebody has converted the model since.
        """
        for parameter, dtype in self.formats.items():
            if parameter.dtype != dtype:
                raise StepError(
                    f"{self.name_of(parameter)} is {parameter.dtype}, and was {dtype} when "
                    f"prepare() was done: the model was converted, and its masters are lost",
                    hint="say in the recipe which format is wanted, and leave .half(), "
                    ".bfloat16(), .float() and .to(dtype) out",
                )

    def check_models(self) -> None:
        """Check that the models still hold the parameters that were prepared.

        Raises:
            StepError: Parameters were replaced, for example by ``load_state_dict(assign=True)``.
        """
        self.check_formats()
        for model in self.models:
            for fqn, parameter in model.named_parameters():
                if parameter not in self.formats and not self.recipe.is_passthrough:
                    raise StepError(
                        f"{fqn} is not the parameter that was prepared: it was replaced",
                        hint="load with assign=False, and add parameters before prepare() or by "
                        "optimizer.add_param_group()",
                    )

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Give a parameter's gradient as the update shall read it: the FP32 sum if there is one.

        A sum whose ``.grad`` was cleared by somebody else is cleared with it.
        """
        return None if parameter.grad is None else self._sums.get(parameter, parameter.grad)

    def _fold(self, parameters: Sequence[torch.Tensor]) -> None:
        """Add the gradients of 16-bit parameters to their FP32 sums, each gradient once."""
        for parameter in parameters:
            grad = parameter.grad
            if grad is None or parameter.dtype == torch.float32:
                continue
            if self._folded.match(parameter, grad):
                continue
            held = self._sums.get(parameter)
            if held is None:
                self._sums[parameter] = grad.detach().float()
            else:
                held.add_(grad.detach())
            self._folded.put(parameter, grad)

    def forget(self, parameters: Sequence[torch.Tensor]) -> None:
        """Forget what was accumulated for some parameters; the window ends when nothing is left.

        Args:
            parameters: Parameters whose gradients were cleared.
        """
        for parameter in parameters:
            self._sums.pop(parameter, None)
            for marks in (self._folded, self._marks, self._judged):
                marks.drop(parameter)
        if not self._marks:
            self.clear()

    def _forgive_zeroing(self, parameters: Sequence[torch.Tensor]) -> None:
        """Take gradients that somebody zeroed in place for cleared; refuse any other change."""
        changed = [p for p in parameters if self._is_changed(p)]
        if any(bool(p.grad.any()) for p in changed if p.grad is not None):
            raise self._order_error([self.name_of(p) for p in changed])
        self.forget(changed)

    def clear(self) -> None:
        """Forget what was accumulated; the next backward opens a window."""
        self._sums.clear()
        self._folded.clear()
        self._marks.clear()
        self._verdict = None
        self._loss_finite = torch.ones_like(self._loss_finite)
        if (
            self._backwards
        ):  # a window was given up; a forward without a backward belongs to the next
            for guard in self.guards:
                guard.open()
        self._backwards = 0

    # --- the window --------------------------------------------------------------------------

    def begin_backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Open or continue the window, and scale the loss.

        Args:
            loss: The loss, any shape.

        Returns:
            The loss times the scale of the window, in FP32 or wider.

        Raises:
            StepError: Gradients of this window were changed by somebody else.
        """
        parameters = self.parameters()
        self.forget([p for p in parameters if p.grad is None])
        if self._must_be_ours and self._marks:
            self._forgive_zeroing(parameters)
        if self.recipe.accumulate:
            self._fold(parameters)
            # backward would add to them in 16 bits; they come back where no new gradient does
            self._parked = {p: p.grad for p in self._folded.parameters() if p.grad is not None}
            for parameter in self._parked:
                parameter.grad = None
        if not self._marks:
            self._scale = self.scaler.loss_scale
        elif self.scaler.is_on and self._partly_cleared():
            self._rescale(parameters)
        if self._verdict is not None:  # a loss is judged once; its gradients speak for themselves
            self._verdict = None
            self._loss_finite = torch.ones_like(self._loss_finite)
        wide = loss if loss.dtype == torch.float64 else loss.float()
        self._loss_finite = self._loss_finite & torch.isfinite(wide.detach()).all()
        return wide * self._scale if self.scaler.is_on else wide

    def _partly_cleared(self) -> bool:
        """Say whether one optimizer's gradients were cleared while another's were kept."""
        return len(self.optimizers) > 1 and any(
            not any(p in self._marks for group in o.param_groups for p in group["params"])
            for o in self.optimizers
        )

    def _rescale(self, parameters: Sequence[torch.Tensor]) -> None:
        """Bring gradients that are kept to the present loss scale, which so can go on moving.

        Losses that alternate between optimizers never clear all gradients at once; a scale frozen
        for as long as any gradient lives would never come down there. Factors are powers of two
        unless the recipe says otherwise, and then this is exact.
        """
        scale = self.scaler.loss_scale
        kept = {p: g for p in parameters if (g := self.gradient(p)) is not None}
        judged = [p for p, g in kept.items() if self._judged.match(p, g)]
        if kept:
            torch._foreach_mul_(list(kept.values()), scale / self._scale)
        for parameter in judged:
            self._judged.put(parameter, kept[parameter])
        self._scale = scale

    def unpark(self) -> None:
        """Put gradients that were summed before the backward back where it made no new ones."""
        for parameter, grad in self._parked.items():
            if parameter.grad is None:
                parameter.grad = grad
        self._parked = {}

    def end_backward(self) -> None:
        """Note the gradients which our backward has made."""
        self._backwards += 1
        parameters = self.parameters()
        if self.recipe.accumulate:
            self._fold(parameters)
        self._marks = Marks((p, p.grad) for p in parameters if p.grad is not None)

    @property
    def _must_be_ours(self) -> bool:
        """Whether only our backward may make gradients: they are scaled, or summed elsewhere."""
        return self.scaler.is_on or bool(self._sums)

    def _is_changed(self, parameter: torch.Tensor) -> bool:
        """Say whether a parameter's gradient is not the one that our backward made."""
        grad = parameter.grad
        return grad is not None and not self._marks.match(parameter, grad)

    def _order_error(self, names: Sequence[str]) -> StepError:
        """Say that gradients were made or changed from outside."""
        if not self._marks:
            what = "there are gradients, but none were made by optimizer.backward(loss)"
        else:
            what = (
                f"{len(names)} gradients, the first of them {names[0]}, were changed between "
                f"optimizer.backward() and optimizer.step()"
            )
        why = (
            "they would be divided by the loss scale although they were not, or not only, "
            "multiplied by it"
            if self.scaler.is_on
            else "the update reads the FP32 sums of the micro-batches, which this would not reach"
        )
        return StepError(
            f"{what}; {why}",
            hint="replace loss.backward() by optimizer.backward(loss), and clip_grad_norm_ or "
            "other changes of .grad by prepare(clip_norm=...) or optimizer.step(max_norm=...); "
            "optimizers that share a loss go into one prepare() call",
        )

    # --- the verdict -------------------------------------------------------------------------

    def verdict(self, optimizer: PreparedOptimizer) -> Verdict:
        """Give the verdict which an optimizer's step must follow, taking it if there is none.

        Args:
            optimizer: The optimizer about to step.

        Returns:
            The verdict of this window.

        Raises:
            StepError: Gradients which are sparse, elsewhere, or not made by our backward.
            CheckpointError: Halves and remainders that do not belong together.
        """
        own = {p for group in optimizer.param_groups for p in group["params"]}
        last = self._verdict
        if last is not None and id(optimizer) not in last.followed and self._covers(last, own):
            last.followed.add(id(optimizer))
            return last
        parameters = self.parameters()
        with_gradient = [
            p
            for p in parameters
            if (grad := self.gradient(p)) is not None
            # what another optimizer has stepped by, or skipped, is not judged again
            and (p in own or not self._judged.match(p, grad))
        ]
        for parameter in with_gradient:
            self._check_gradient(parameter)
        changed = [self.name_of(p) for p in parameters if self._is_changed(p)]
        if changed and self._must_be_ours:
            raise self._order_error(changed)
        self.check_formats()
        self.masters.verify(parameters)
        self._verdict = self._judge(with_gradient)
        self._verdict.followed.add(id(optimizer))
        self._judged = Marks((p, g) for p in parameters if (g := self.gradient(p)) is not None)
        for guard in self.guards:
            guard.settle(self._verdict.skip)
        self._backwards = 0
        return self._verdict

    def _covers(self, verdict: Verdict, own: Iterable[torch.Tensor]) -> bool:
        """Say whether a verdict was taken over these parameters' gradients of now."""
        return all(
            p in verdict.rows and self._judged.match(p, grad)
            for p in own
            if (grad := self.gradient(p)) is not None
        )

    def _check_gradient(self, parameter: torch.Tensor) -> None:
        """Refuse what the update cannot read."""
        grad = self.gradient(parameter)
        assert grad is not None
        if grad.layout != torch.strided:
            raise StepError(
                f"the gradient of {self.name_of(parameter)} is {grad.layout}; dense ones are read",
                hint="make the embedding with sparse=False",
            )
        if parameter.device != self.device:
            raise StepError(
                f"{self.name_of(parameter)} is on {parameter.device}, and was on {self.device} "
                f"when prepare() was called",
                hint="move the model before prepare()",
            )

    def _judge(self, parameters: Sequence[torch.Tensor]) -> Verdict:
        """Take the verdict: one pass over the gradients, no read by the host."""
        gradients = [g for p in parameters if (g := self.gradient(p)) is not None]
        stats = grad_stats([g.detach() for g in gradients])
        for parameter in parameters:
            self.name_of(parameter)  # one that was added later gets its index
        places = torch.tensor([self.index[p] for p in parameters], dtype=torch.float64)
        indices = places.to(self.device, non_blocking=True)
        bad = stats[:, 2] != 0
        scale = self._scale
        inverse = scale.double().reciprocal()
        # 1/scale must be representable where it is used, in FP32
        finite = self._loss_finite & torch.isfinite(inverse.float())
        if gradients:
            finite = finite & ~bad.any()
            # the last one in the order of the model: backward reaches it first
            culprit = torch.where(bad, indices, torch.full_like(indices, -1.0)).amax()
        else:
            culprit = torch.full_like(inverse, -1.0)
        skip, halted = self.scaler.advance(finite)
        return Verdict(
            skip=skip.float(),
            halted=halted,
            inverse_scale=inverse,
            scale=scale,
            loss_finite=self._loss_finite,
            culprit=culprit,
            rows={p: row for row, p in enumerate(parameters)},
            stats=stats,
            attempted=self.scaler.state[4].clone(),
        )

    def poll(self, result: StepResult, halted: torch.Tensor) -> None:
        """Raise if training is halted; on a GPU up to two steps late, and without waiting.

        Args:
            result: The result of the step.
            halted: 0-d bool tensor.

        Raises:
            NumericsError: No step was applied for as many steps as the machine is patient.
        """
        if self.device.type == "cpu":
            if halted:
                raise halt_error(self, result)
            return
        # untested here: copies to pinned memory, looked at once they have arrived
        copy = torch.empty((), dtype=torch.bool, pin_memory=True)
        copy.copy_(halted, non_blocking=True)
        event = torch.Event(self.device.type)
        event.record()
        self._under_way.append((event, copy))
        while self._under_way and (len(self._under_way) > _LAG or self._under_way[0][0].query()):
            event, copy = self._under_way.popleft()
            event.synchronize()
            if copy:
                raise halt_error(self, result)

    def require_live(self) -> None:
        """Refuse to go on after restore().

        Raises:
            PrepareError: The model has been given back.
        """
        if self.restored:
            raise PrepareError(
                "this optimizer belongs to a model that ng.restore() has given back",
                hint="go on with the optimizer which restore() returned, or prepare() again",
            )
