"""The optimizer that prepare() gives back: the user's own, seen through a facade.

It is a `torch.optim.Optimizer` which shares groups, states and defaults with the optimizer passed
in, by property, so that schedulers made before or after go on working. It adds `backward`, and a
`step` that says what it did. Its checkpoints hold everything: remainders as bytes with the
checksums of their halves, states in their own format, the loss scale and the counters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from narrowgate.engine import optimizer_state
from narrowgate.engine.checks import check_group, check_norm
from narrowgate.engine.cpu.native import HALVES
from narrowgate.engine.follow import FollowedScheduler
from narrowgate.engine.private import bare_step, move_hooks
from narrowgate.engine.result import StepResult
from narrowgate.engine.session import Session
from narrowgate.engine.update import has_own_op, materialised_step, update
from narrowgate.engine.verdict import Verdict
from narrowgate.errors import StepError
from narrowgate.plan import Plan

__all__ = ["PreparedOptimizer"]


class PreparedOptimizer(Optimizer):
    """The user's optimizer behind a facade; made by `prepare`.

    Args:
        inner: The user's optimizer.
        session: What the prepare() call shares.
        clip_norm: Gradients are clipped to this norm at every step; None does not clip.
    """

    def __init__(self, inner: Optimizer, session: Session, clip_norm: float | None) -> None:
        # not Optimizer.__init__: groups and states are the inner optimizer's
        self._inner = inner
        self._session = session
        self._clip_norm = clip_norm
        self._inside = False
        self._last: StepResult | None = None
        self._backwards = 0
        Optimizer.__setstate__(self, {})
        move_hooks(inner, self)
        self._guard = inner.register_step_pre_hook(self._refuse_inner_step)
        if not session.recipe.is_passthrough:
            optimizer_state.publish(inner, session)
            if inner.state:
                optimizer_state.publish_states(inner, session)

    # --- what a torch optimizer is -----------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the inner optimizer."""
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._inner.param_groups = groups

    @property
    def state(self) -> Any:
        """The states of the inner optimizer."""
        return self._inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self._inner.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the inner optimizer."""
        return self._inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self._inner.defaults = defaults

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the facade with all it stands for; wrapped methods are made anew."""
        return {k: v for k, v in self.__dict__.items() if k not in ("step", "_guard")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a copy's or a pickle's state."""
        self.__dict__.update(state)
        Optimizer.__setstate__(self, {})
        # the copy of the inner optimizer lost its hooks, as torch's optimizers do
        self._guard = self._inner.register_step_pre_hook(self._refuse_inner_step)

    def __repr__(self) -> str:
        """Print the inner optimizer and the recipe."""
        return f"Prepared {self._inner!r}\nrecipe: {self._session.recipe}"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer.

        Args:
            param_group: As in torch. FP32 parameters are their own masters; 16-bit ones get a
                remainder of zero.
        """
        if not self._session.recipe.is_passthrough:
            held = param_group["params"]  # often a generator, which can be read only once
            held = [held] if isinstance(held, torch.Tensor) else list(held)
            param_group = {**param_group, "params": held}
            check_group(held, str(self._session.recipe))
        self._inner.add_param_group(param_group)
        for parameter in self._inner.param_groups[-1]["params"]:
            self._session.name_of(parameter)
            self._session.formats[parameter] = parameter.dtype
            if parameter.dtype in HALVES:
                self._session.masters.adopt(parameter)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and close the window.

        Args:
            set_to_none: As in torch.
        """
        self._inner.zero_grad(set_to_none)
        if self._session.recipe.is_passthrough:
            return
        self._session.forget(self._held())

    # --- the two lines -----------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Scale the loss if the recipe scales, and run backward outside of autocast.

        Args:
            loss: The loss; 16-bit losses are widened first.
            **kwargs: As for `torch.Tensor.backward`: ``gradient``, ``retain_graph``, ...

        Raises:
            StepError: The loss is no floating-point tensor, or gradients of this window were
                changed.
        """
        if not isinstance(loss, torch.Tensor) or not loss.is_floating_point():
            got = loss.dtype if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise StepError(
                f"backward() takes a floating-point loss tensor; got {got}",
                hint="call optimizer.backward(loss) once for each loss",
            )
        self._session.require_live()
        if self._session.recipe.is_passthrough:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call]
            self._session.recording.loss(loss)
            return
        scaled = self._session.begin_backward(loss)
        try:
            with torch.autocast(self._session.device.type, enabled=False):
                scaled.backward(**kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._session.unpark()
        self._session.end_backward()
        self._session.recording.loss(loss)
        for optimizer in self._session.optimizers:
            optimizer._backwards += 1

    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, *, max_norm: float | None = None
    ) -> StepResult:
        """Update parameters and states, or skip all of it if a gradient is not finite.

        Args:
            closure: For FP32 recipes as in torch, but that the StepResult is returned and not the
                loss; else refused.
            max_norm: Clip the true gradients to this norm at this step, in place of ``clip_norm``.

        Returns:
            What happened, read when looked at; true if the step was applied.

        Raises:
            StepError: A closure, or gradients that our backward did not make while the loss is
                scaled.
            NumericsError: Every step was skipped for a while and the loss scale is at its floor.
            CheckpointError: 16-bit weights that do not belong to their remainders.
        """
        session = self._session
        session.require_live()
        if closure is not None and not session.recipe.is_passthrough:
            raise StepError(
                f"{type(self._inner).__name__} was given a closure; closures cannot be scaled, "
                f"checked and skipped as one step",
                hint="compute the loss, call optimizer.backward(loss), then optimizer.step()",
            )
        limit = self._clip_norm if max_norm is None else max_norm
        check_norm("max_norm", limit, StepError)
        if torch.is_inference_mode_enabled():
            raise StepError(
                "step() was called under torch.inference_mode(); the states that it would make "
                "could not be trained on",
                hint="step outside of it",
            )
        self._inner._opt_called = True  # type: ignore[attr-defined] # schedulers made before prepare
        if session.recipe.is_passthrough:
            return self._plain_step(closure, limit)
        if self._is_probe():
            self._initialise()
            return self._result(self._idle_facts())
        with torch.autocast(session.device.type, enabled=False):  # whatever the user is inside of
            result, halted = self._judged_step(limit)
        # an autocast around the whole loop would go on with casts of the weights before this step
        torch.clear_autocast_cache()
        session.recording.step(self, result)
        session.poll(result, halted)
        return result

    def adopt_weights(self) -> None:
        """Take the 16-bit weights as they stand for masters, after they were changed on purpose.

        Of the parameters that were changed, what their remainders held is dropped: at most half an
        ulp of the 16-bit format per weight. The others keep their masters.
        """
        masters = self._session.masters
        for parameter in masters.strangers(self._held()):
            masters.adopt(parameter)

    def follow(self, scheduler: Any) -> FollowedScheduler:
        """Make a scheduler wait for skipped steps.

        Args:
            scheduler: Any of torch's schedulers, made on this optimizer or the one passed to
                prepare.

        Returns:
            The scheduler behind a facade whose ``step()`` advances only if the last optimizer step
            was applied. Asking that reads from the device. The scheduler itself is not patched.
        """
        return FollowedScheduler(self, scheduler)

    @property
    def last_result(self) -> StepResult | None:
        """What the last step did; None before the first."""
        return self._last

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the prepared models, in the order in which they were given."""
        return self._session.plans

    def release(self) -> Optimizer:
        """Give the inner optimizer back as torch left it; called by `narrowgate.restore`.

        Returns:
            The optimizer that was passed to prepare(), with the states of now.
        """
        self._guard.remove()
        move_hooks(self, self._inner)
        optimizer_state.withdraw(self._inner)
        for group in self.param_groups:
            on_device = group.get("fused") or group.get("capturable")
            for parameter in group["params"]:
                step = self.state.get(parameter, {}).get("step")
                if isinstance(step, torch.Tensor) and not on_device:
                    self.state[parameter]["step"] = step.cpu()  # where torch keeps it
        return self._inner

    # --- the step's parts --------------------------------------------------------------------

    def _judged_step(self, limit: float | None) -> tuple[StepResult, torch.Tensor]:
        """Take the verdict, and update or skip by it."""
        session = self._session
        verdict = session.verdict(self)
        norm = verdict.norm(self._held())
        mult = verdict.inverse_scale
        if limit is not None:  # torch's clip_grad_norm_: never larger than 1, 1e-6 against zero
            mult = mult * (limit / (norm + 1e-6)).clamp(max=1.0)
        try:
            with torch.no_grad():
                touched, saturated = self._update(mult.float(), verdict)
        finally:  # also after an interrupt: what was updated until then belongs together
            session.masters.refresh(self._held())
        optimizer_state.publish(self._inner, session)
        optimizer_state.publish_states(self._inner, session)
        self._backwards = 0
        result = self._result(verdict.facts(norm, [session.index[p] for p in touched], saturated))
        return result, verdict.halted

    def _held(self) -> list[torch.Tensor]:
        """List the parameters of this optimizer."""
        return [p for group in self.param_groups for p in group["params"]]

    def _refuse_inner_step(self, *_: Any) -> None:
        """Raise if the inner optimizer is stepped by anybody but us."""
        if not self._inside:
            raise StepError(
                f"{type(self._inner).__name__}.step() was called on the optimizer that was passed "
                f"to prepare(): it would apply gradients which are scaled, on halves instead of "
                f"masters",
                hint="use the optimizer that prepare() returned",
            )

    def _is_probe(self) -> bool:
        """Say whether this is no training step: a distributed checkpoint making states exist.

        It sets every learning rate to 0 and every gradient to zero, and steps.
        """
        return (
            not self.state
            and self._backwards == 0
            and all(float(group.get("lr", 1.0)) == 0.0 for group in self.param_groups)
            and not any(bool(p.grad.any()) for p in self._held() if p.grad is not None)
        )

    def _initialise(self) -> None:
        """Make the states that the first step would make; count nothing, move nothing."""
        zero = torch.zeros((), dtype=torch.float32, device=self._session.device)
        skip = torch.ones_like(zero)
        for group in self.param_groups:
            if has_own_op(self._inner, group):
                update(
                    self._inner, group, self._session.masters, self._session.gradient, zero, skip
                )
            else:
                self._step_inner(group, zero)
        optimizer_state.publish(self._inner, self._session)
        optimizer_state.publish_states(self._inner, self._session)

    def _step_inner(
        self, group: dict[str, Any], mult: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Let the inner optimizer step on materialised masters."""
        with optimizer_state.hidden(self._inner, group):
            return materialised_step(
                self._inner,
                group,
                self._session.masters,
                self._session.gradient,
                mult,
                self._take_inner_step,
            )

    def _take_inner_step(self, *args: Any) -> None:
        """Let the inner optimizer step, without hooks unless somebody replaced its step."""
        self._inside = True
        try:
            step = self._inner.step if "step" in vars(self._inner) else bare_step(self._inner)
            step(*args)
        finally:
            self._inside = False

    def _update(
        self, mult: torch.Tensor, verdict: Verdict
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Update every group by the way that it allows."""
        touched: list[torch.Tensor] = []
        counts: list[torch.Tensor] = []
        skipped: bool | None = None
        for group in self.param_groups:
            if has_own_op(self._inner, group):
                parameters, saturated = update(
                    self._inner, group, self._session.masters, self._session.gradient, mult,
                    verdict.skip,
                )  # fmt: skip
            else:
                if skipped is None:
                    skipped = bool(verdict.skip)  # one read: torch's optimizers know no skip flag
                if skipped:
                    continue
                parameters, saturated = self._step_inner(group, mult)
            touched += parameters
            if saturated is not None:
                counts.append(saturated)
        return touched, torch.cat(counts) if counts else None

    def _idle_facts(self) -> torch.Tensor:
        """Give the facts of a step that was no training step."""
        scale, attempted = self._session.scaler.state[0], self._session.scaler.state[4]
        zero = torch.zeros_like(scale)
        one = torch.ones_like(scale)
        return torch.stack([zero, one, scale, zero, zero - 1, attempted, zero, zero])

    def _plain_step(self, closure: Callable[[], Any] | None, limit: float | None) -> StepResult:
        """Step as a script without narrowgate would."""
        norm = torch.full((), float("nan"), dtype=torch.float64, device=self._session.device)
        if limit is not None:
            norm = torch.nn.utils.clip_grad_norm_(self._held(), limit).double()
        elif self._session.recording.wants_norm:
            grads = [p.grad for p in self._held() if p.grad is not None and not p.grad.is_sparse]
            norm = torch.nn.utils.get_total_norm(grads).double()
        self._take_inner_step(closure)
        state = self._session.scaler.state
        state[4:6] += self._session.recording.begins_window(self)
        zero, one = torch.zeros_like(norm), torch.ones_like(norm)
        result = self._result(torch.stack([zero, one, one, norm, zero - 1, state[4], zero, zero]))
        self._session.recording.step(self, result)
        return result

    def _result(self, facts: torch.Tensor) -> StepResult:
        """Keep and return the result of a step."""
        self._last = StepResult(facts, self._session.labels)
        return self._last

    # --- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Give groups and states, with remainders as bytes and the checksums of their halves.

        Returns:
            What torch's optimizers return; save it with the model's of the same step.
        """
        packed = Optimizer.state_dict(self)
        if self._session.recipe.is_passthrough:
            return packed
        return optimizer_state.pack(packed, self._held(), self._session)

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a state that cannot be loaded whole; nothing is changed.

        Args:
            state_dict: What `load_state_dict` would be given.

        Raises:
            CheckpointError: It is of another recipe or optimizer, of a plain optimizer, or
                incomplete.
        """
        optimizer_state.check(self._inner, state_dict, self._session)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave; every bit and every format comes back as it was.

        The state is checked whole before anything is changed. Whether the model's halves belong to
        the loaded remainders is checked at the next step, since the model may be loaded later.

        Args:
            state_dict: Of a prepared optimizer with the same recipe and parameters.

        Raises:
            CheckpointError: It is of another recipe, of a plain optimizer, or incomplete.
        """
        self._session.require_live()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        self.check_state_dict(state_dict)
        if self._session.recipe.is_passthrough:
            optimizer_state.load_plain(self._inner, state_dict)
        else:
            optimizer_state.load(self._inner, state_dict, self._session)
            self._backwards = 0
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)
