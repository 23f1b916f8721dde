"""Ctrl-C as a count that is looked at, and never as an exception between two lines.

While a pilot runs, SIGINT, SIGTERM and SIGHUP (a closed terminal) only count. The first one ends
the run under way and then the pilot; the second one kills at once. So no file is left half-way.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

__all__ = ["Interruptions"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruptions:
    """Counts the wishes to stop while it is entered; what was ignored before stays ignored."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, object] = {}

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def __enter__(self) -> Interruptions:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
