"""The CPU kernels are there from the first prepared model on a CPU to the restore() of the last.

Models count, not optimizers: one that is kept for evaluation keeps its kernels. A model that is
dropped without restore() leaves them in place until another one is restored.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from torch import nn

from narrowgate import ops
from narrowgate.engine import cpu
from narrowgate.engine.describe import FORMAT_OF

if TYPE_CHECKING:
    from narrowgate.engine.session import Session

__all__ = ["give_back", "take"]

_log = logging.getLogger("narrowgate")
_lock = threading.Lock()
_live: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def take(session: Session) -> None:
    """Register what 16-bit training on a CPU needs, and say so if it was not there.

    Args:
        session: Of a model that is being prepared, copied or unpickled.
    """
    if session.device.type != "cpu" or session.recipe.is_passthrough:
        return
    with _lock:
        _live.update(session.models)
        if cpu.installed():
            return
        cpu.install()
    formats = {entry.compute for entry in session.recipe.entries if entry.is_16bit}
    wide = sorted(formats & {FORMAT_OF[dtype] for dtype in cpu.widened()})
    products = f"{' and '.join(wide)} products run as FP32 GEMMs rounded once; " if wide else ""
    _log.warning(
        "narrowgate: on this CPU %skernels that sum in 16 bits are replaced; "
        "ng.restore() undoes it",
        products,
    )
    if why := ops.why_plain():
        _log.warning("narrowgate: steps run in plain torch, the same bits but slower: %s", why)


def give_back(session: Session) -> None:
    """Let go; the kernels go with the last one.

    Args:
        session: Of a model that was restored.
    """
    with _lock:
        _live.difference_update(session.models)
        if not _live and cpu.installed():
            cpu.uninstall()
