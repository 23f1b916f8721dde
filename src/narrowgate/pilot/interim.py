"""What finished runs tell before all have finished: faults for which more runs would be wasted.

The judge looks at all of this again, from the folder alone; here the point is to stop early.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from narrowgate.errors import PilotError, nearest
from narrowgate.pilot.config import EVERY_SLICE, PilotConfig
from narrowgate.records.run import Result, Run
from narrowgate.records.summary import summarise

__all__ = ["Interim", "explain", "last_lines", "missing_numbers"]

_TAIL_BYTES = 8_192
# Colours and cursor movements, and whatever else a terminal would not print.
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def missing_numbers(result: Result, config: PilotConfig) -> list[str]:
    """Name what the configuration judges and a result does not have.

    Args:
        result: The result.
        config: The limits.

    Returns:
        Names such as ``val_loss`` and ``val_loss/json``.
    """
    missing = []
    for limit in config.quality:
        if limit.name not in result.metrics:
            missing.append(limit.name)
        missing += [
            f"{limit.name}/{part}"
            for part in limit.slices
            if part != EVERY_SLICE and limit.name not in result.slices.get(part, {})
        ]
    return missing


def explain(run: Run, config: PilotConfig) -> str:
    """Say what a run lacks to count, in words.

    Args:
        run: The run.
        config: The limits.

    Returns:
        The reason; empty if the run has what it has to.
    """
    if run.ending is None or run.ending.how == "interrupted":
        return "was interrupted"
    if run.ending.how == "timeout":
        return f"took longer than timeout_s = {config.timeout_s:g} s and was ended"
    code = run.ending.code
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    if code != 0:
        return f"ended with exit code {code}"
    if run.result is None:
        return "ended well, but never called ng.result"
    if missing := missing_numbers(run.result, config):
        return "reported no " + ", ".join(missing)
    return ""


def last_lines(path: Path, num_lines: int = 12) -> list[str]:
    """Read the end of what a run printed, without what a terminal would not print.

    Args:
        path: stdout.log or stderr.log.
        num_lines: How many lines at most.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [_UNPRINTABLE.sub("", line).rstrip() for line in text.split("\n")]
    return [line[:300] for line in lines if line][-num_lines:]


class Interim:
    """What the runs done so far tell.

    Args:
        baseline: The baseline's recipe.
        config: The limits.
    """

    def __init__(self, baseline: str, config: PilotConfig) -> None:
        self._baseline = baseline
        self._config = config
        self._curves: dict[str, int] = {}
        #: Why a candidate cannot be compared, by recipe.
        self.dropped: dict[str, str] = {}

    def check_first(self, run: Run) -> None:
        """Look at the first baseline run that ended well.

        Args:
            run: The run.

        Raises:
            PilotError: It does not report what the configuration judges.
        """
        assert run.result is not None
        missing = missing_numbers(run.result, self._config)
        if not missing:
            return
        has = sorted(run.result.metrics) + sorted(
            f"{name}/{part}" for part, values in run.result.slices.items() for name in values
        )
        raise PilotError(
            f"the configuration judges {', '.join(missing)}, which the baseline's run in "
            f"{run.folder} did not report; it reported {', '.join(has)}",
            hint=f"{nearest(missing[0], has)}; then go on: narrowgate pilot --resume, or, with "
            "another configuration, begin a new pilot",
        )

    def add_baseline(self, seed: int, run: Run) -> None:
        """Take in a run of the baseline.

        Args:
            seed: Its seed.
            run: The run.

        Raises:
            PilotError: It did the same, bit for bit, as one with another seed.
        """
        other = self._curves.setdefault(summarise(run).curve, seed)
        if other != seed:
            raise PilotError(
                f"the baseline's runs with seeds {other} and {seed} are equal, bit for bit: the "
                "script ignores its seed",
                hint="pass it on: narrowgate pilot -- python train.py --seed {seed}, or read it "
                "in the script with ng.seed(); then begin a new pilot",
            )

    def compare(self, recipe: str, seed: int, candidate: Run, baseline: Run) -> str:
        """Take in a pair of runs with the same seed.

        Args:
            recipe: The candidate.
            seed: The seed.
            candidate: The candidate's run.
            baseline: The baseline's run.

        Returns:
            Why the candidate cannot be compared; empty if it can.
        """
        if candidate.plan_hash is None:
            why = "its script never called ng.prepare, so that the recipe was not used"
        elif self._config.data_order == "same":
            why = _data_difference(seed, candidate, baseline)
        else:
            why = ""
        if why:
            self.dropped.setdefault(recipe, why)
        return why


def _data_difference(seed: int, candidate: Run, baseline: Run) -> str:
    """Name the first step at which two runs were given different data."""
    pairs = zip(candidate.steps.data, baseline.steps.data, candidate.steps.step, strict=False)
    for mine, theirs, step in pairs:
        if mine is not None and theirs is not None and mine != theirs:
            return (
                f"with seed {seed} it was given other data than the baseline, from step {step} on"
            )
    return ""
