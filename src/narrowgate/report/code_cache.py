"""Compiled templates, kept beside the templates as Python keeps its own compiled modules.

What is true here: compiling the pilot's template takes longer than filling it in. What is kept is
used only if it was compiled from this very text, with these settings, by this Python and this
jinja. It lies in the package's own ``__pycache__`` and is read as Python reads what lies there.
Where Python may write none of its own (``PYTHONDONTWRITEBYTECODE``, an installation that is
read-only), neither is this.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import sys
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from narrowgate.errors import RunError
from narrowgate.records.files import replacing

__all__ = ["CodeCache"]


class CodeCache(jinja2.BytecodeCache):
    """jinja's cache, without jinja's file format, which is unpickled.

    Args:
        folder: Where the compiled templates lie; made when the first is written.
        settings: Source of the module that makes the environment, which decides the code too.
    """

    def __init__(self, folder: Path, settings: bytes) -> None:
        self._folder = folder
        self._settings = settings

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Name the file of a template.

        Args:
            name: The template's name.
            filename: Where it was found.
        """
        return f"{name}.{sys.implementation.cache_tag}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a bucket its code, if what is kept belongs to it.

        Args:
            bucket: jinja's place for one template's code.
        """
        with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
            stored = (self._folder / bucket.key).read_bytes()
            head = self._head(bucket)
            if stored.startswith(head):
                bucket.code = marshal.loads(stored[len(head) :])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a bucket's code.

        Args:
            bucket: jinja's place for one template's code.
        """
        if sys.dont_write_bytecode:
            return
        with contextlib.suppress(OSError, RunError):
            self._folder.mkdir(exist_ok=True)
            with replacing(self._folder / bucket.key, "") as beside:
                beside.write_bytes(self._head(bucket) + marshal.dumps(bucket.code))

    def _head(self, bucket: Bucket) -> bytes:
        """Tell apart what was compiled from another text, or by another jinja or Python."""
        of = f"{bucket.checksum} {jinja2.__version__} {sys.version}"
        return hashlib.sha256(of.encode() + self._settings).digest()
