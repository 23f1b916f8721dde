"""The ``narrowgate`` command, torch-free: it starts at once and works where torch is not installed.

Data goes to stdout, messages and logs to stderr. Whatever needs torch runs in a subprocess
(``python -m narrowgate.engine.doctor``). The libraries which draw the tables are the extra
``[pilot]``; this module does without them, so that the base install can say what is missing.
"""

from __future__ import annotations

import gc
import importlib.util
import sys

__all__ = ["main"]

_NEEDED = ("typer", "rich", "pydantic", "jinja2", "plotly")


def main(arguments: list[str] | None = None) -> int:
    """Run the ``narrowgate`` command.

    Args:
        arguments: What follows the command's name; None takes it from ``sys.argv``.

    Returns:
        The exit code: 0 done, 1 internal error, 2 usage or configuration, 130 Ctrl-C.
    """
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # also while it is still being imported
        return 130


def _main(arguments: list[str]) -> int:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: the narrowgate command needs {' and '.join(missing)}, not installed here\n"
            "\n"
            "hint: pip install 'narrowgate[pilot]'",
            file=sys.stderr,
        )
        return 2
    # What is imported lives to the end; looking for garbage in it is a twentieth of a command.
    gc.disable()
    from narrowgate.cli.app import run

    gc.freeze()
    gc.enable()
    return run(arguments)
