"""What finished runs tell before all have finished: faults for which more runs would be wasted.

The rules are the judge's, who looks at everything again from the folder alone; here the point is to
stop early.
"""

from __future__ import annotations

from pathlib import Path

from narrowgate.errors import PilotError, nearest
from narrowgate.pilot.config import PilotConfig
from narrowgate.pilot.faults import check_seeds_differ, fault_of
from narrowgate.pilot.interim import missing_numbers
from narrowgate.pilot.trial import Measured
from narrowgate.records.run import Run, load_run
from narrowgate.records.summary import summarise

__all__ = ["Early"]


class Early:
    """What the runs done so far tell.

    Args:
        baseline: The baseline's recipe.
        config: The limits.
    """

    def __init__(self, baseline: str, config: PilotConfig) -> None:
        self._baseline = baseline
        self._config = config
        self._curves: dict[str, tuple[int, Path]] = {}
        #: Why a candidate cannot be compared, by recipe.
        self.dropped: dict[str, str] = {}

    def check_first(self, run: Run) -> None:
        """Look at a baseline's run that ended well, while none before it has counted.

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
        """Take in a run of the baseline that counts.

        Args:
            seed: Its seed.
            run: The run.

        Raises:
            PilotError: It did the same, bit for bit, as one with another seed, or no candidate
                could be compared with it.
        """
        measured = _measure(seed, run)
        if why := fault_of("", self._baseline, {seed: measured}, {}, self._config):
            raise PilotError(
                f"no candidate can be compared with the baseline: {why}",
                hint="train with what `model, optimizer = ng.prepare(model, optimizer)` returns; "
                "then begin a new pilot",
            )
        other, folder = self._curves.setdefault(measured.summary.curve, (seed, run.folder))
        if other != seed:
            twin = _measure(other, load_run(folder))
            check_seeds_differ(self._baseline, {other: twin, seed: measured})

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
        theirs, mine = _measure(seed, baseline), _measure(seed, candidate)
        why = fault_of(recipe, self._baseline, {seed: theirs}, {seed: mine}, self._config)
        if why:
            self.dropped.setdefault(recipe, why)
        return why


def _measure(seed: int, run: Run) -> Measured:
    assert run.result is not None
    return Measured(seed=seed, run=run, result=run.result, summary=summarise(run))
