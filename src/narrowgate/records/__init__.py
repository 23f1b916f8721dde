"""What happened, as plain data. No torch here."""

from narrowgate.records.step import StepRecord

__all__ = ["StepRecord"]
