"""The CPU kernels are there as long as a prepared model on a CPU is: taken, counted, given back."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

from narrowgate.engine import cpu
from narrowgate.engine.describe import FORMAT_OF

if TYPE_CHECKING:
    from narrowgate.engine.session import Session

__all__ = ["give_back", "take"]

_log = logging.getLogger("narrowgate")
_live: weakref.WeakSet[Session] = weakref.WeakSet()


def take(session: Session) -> None:
    """Register what 16-bit training on a CPU needs, and say so if it was not there.

    Args:
        session: Of a model that is being prepared, copied or unpickled.
    """
    if session.device.type != "cpu" or session.recipe.is_passthrough:
        return
    _live.add(session)
    if cpu.installed():
        return
    cpu.install()
    formats = {entry.compute for entry in session.recipe.entries if entry.is_16bit}
    wide = sorted(formats & {FORMAT_OF[dtype] for dtype in cpu.widened()})
    products = f"{' and '.join(wide)} products run as FP32 GEMMs rounded once; " if wide else ""
    _log.warning(
        "on this CPU %skernels that sum in 16 bits are replaced; ng.restore() undoes it", products
    )


def give_back(session: Session) -> None:
    """Let go; the kernels go with the last one.

    Args:
        session: Of a model that was restored.
    """
    _live.discard(session)
    if not _live and cpu.installed():
        cpu.uninstall()
