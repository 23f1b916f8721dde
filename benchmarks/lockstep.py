"""Several training processes, one step of each in turn.

What is true here: a shared machine drifts by tens of percent within minutes, so two runs one after
the other cannot be compared. Each variant is a process of its own (kernels are installed for a
whole process, and peak memory is one process's), all are alive together, and only one of them works
at a time. A round is one step of each.

A worker reads requests, one word a line, from stdin, and answers each with one line of JSON. What
it prints otherwise goes to a file, which is quoted if the worker dies.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Worker", "WorkerDiedError", "serve"]

Answer = dict[str, Any]


class WorkerDiedError(RuntimeError):
    """A worker ended before it answered."""


class Worker:
    """A process that works on request.

    Args:
        name: What it is called in messages.
        command: How to start it.
        environment: Its environment.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        # A session of its own: Ctrl-C at the terminal is for the parent, which ends its workers.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def ask(self, request: str) -> Answer:
        """Send a request and wait for the answer.

        Args:
            request: One word that the worker knows.

        Returns:
            Its answer.

        Raises:
            WorkerDiedError: It ended instead; the end of what it said is in the message.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            raise WorkerDiedError(
                f"the worker {self.name!r} ended with code {self._process.returncode} when asked "
                f"to {request}:\n{self.words()[-2000:]}"
            )
        answer: Answer = json.loads(line)
        return answer

    def words(self) -> str:
        """Give what the worker has said on its error stream so far."""
        self._words.seek(0)
        return self._words.read().strip()

    def close(self) -> None:
        """End the worker, also one that is at work."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._words):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a request which nobody has read
                    stream.close()


def serve(handlers: Mapping[str, Callable[[], Answer]]) -> None:
    """Answer requests until stdin is closed; the worker's side.

    Args:
        handlers: What to do for each request.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(handlers[line.strip()]()), file=answers, flush=True)
