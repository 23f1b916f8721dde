"""The shape of narrowgate.toml: which tables and keys there are, and what each may hold.

Only `narrowgate.pilot.config` reads this, and only while it loads a file, so that commands which
load none do not pay for pydantic. Every field's description ends a hint: it is written for the
person who got the key wrong.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ConfigTable"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
_OWNER = "the person or team that may override this gate"


class Table(BaseModel):
    """A table that takes no key which it does not know, and turns no string into a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PilotTable(Table):
    """[pilot]: what is run."""

    baseline: str = Field("fp32", description="the recipe that the candidates are compared with")
    candidates: Annotated[list[str], Field(min_length=1)] = Field(
        description='the recipes on trial, such as ["bf16", "fp16-mixed"]'
    )
    seeds: object = Field(
        5, description="a number of seeds N (0 to N-1, at most 1,000) or a list such as [1, 2, 3]"
    )
    timeout_s: Positive = Field(14_400.0, description="the longest that one run may take, seconds")
    data_order: Literal["same", "free"] = Field(
        "same",
        description='"same": a candidate must be given the data that the baseline is given; '
        '"free": the data depend on the model, as in reinforcement learning',
    )


class SliceTable(Table):
    """[quality.NAME.slices.S]: the margin of one slice."""

    margin: Positive = Field(
        description="how much worse than the baseline's this slice may be, in the metric's unit "
        "or, where the metric is relative, as a share"
    )


class QualityTable(Table):
    """[quality.NAME]: the margin of one metric that ng.result reports."""

    better: Literal["lower", "higher"] = Field(
        description='which way the metric is better: "lower" (a loss) or "higher" (an accuracy)'
    )
    margin: Positive = Field(
        description="how much worse than the baseline the mean may be, in the metric's unit, or "
        "with relative = true as a share of the baseline's mean; choose it before the run"
    )
    relative: bool = Field(False, description="true if margins are shares of the baseline's mean")
    owner: Name | None = Field(None, description=_OWNER)
    slices: dict[str, SliceTable] = Field(
        default_factory=dict, description='margins by slice; "*" is for all without their own'
    )


class SpeedTable(Table):
    """[speed]: step times."""

    min_ratio: Positive | None = Field(
        None, description="the baseline's median step time over the candidate's, at least"
    )
    max_p95_ratio: Positive | None = Field(
        None, description="the candidate's 95th percentile of step times over the baseline's"
    )
    owner: Name | None = Field(None, description=_OWNER)


class MemoryTable(Table):
    """[memory]: peak memory."""

    max_ratio: Positive = Field(description="the candidate's peak memory over the baseline's")
    owner: Name | None = Field(None, description=_OWNER)


class StabilityTable(Table):
    """[stability]: skipped steps."""

    max_skipped_share: Share = Field(
        description="the share of optimizer steps that may be skipped, from 0 to 1"
    )
    owner: Name | None = Field(None, description=_OWNER)


class CostTable(Table):
    """[cost]: whole time, and money."""

    max_ratio: Positive = Field(description="the candidate's whole seconds over the baseline's")
    price_per_hour: Positive | None = Field(
        None, description="what an hour of one run costs, in any currency"
    )
    owner: Name | None = Field(None, description=_OWNER)


class ConfigTable(Table):
    """The whole file."""

    pilot: PilotTable = Field(description="the table [pilot], with the candidates")
    quality: Annotated[dict[str, QualityTable], Field(min_length=1)] = Field(
        description="a table [quality.NAME] for each metric of ng.result that is to be no worse"
    )
    speed: SpeedTable | None = Field(None, description="the table of limits on step times")
    memory: MemoryTable | None = Field(None, description="the table of the limit on memory")
    stability: StabilityTable | None = Field(None, description="the table of the limit on skips")
    cost: CostTable | None = Field(None, description="the table of the limit on whole time")
