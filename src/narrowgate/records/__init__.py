"""What happened, as plain data: records of steps, runs, verdicts and decisions. No torch here."""

from narrowgate.records.decision import LedgerEntry
from narrowgate.records.run import (
    Ending,
    Load,
    LogLine,
    Request,
    Result,
    Run,
    Steps,
    load_run,
)
from narrowgate.records.step import StepRecord
from narrowgate.records.summary import Summary, step_times, summarise
from narrowgate.records.verdict import CandidateVerdict, GateVerdict, Outcome, Verdict

__all__ = [
    "CandidateVerdict",
    "Ending",
    "GateVerdict",
    "LedgerEntry",
    "Load",
    "LogLine",
    "Outcome",
    "Request",
    "Result",
    "Run",
    "StepRecord",
    "Steps",
    "Summary",
    "Verdict",
    "load_run",
    "step_times",
    "summarise",
]
