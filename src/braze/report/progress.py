"""A line on the terminal while a compile takes longer than a second.

    braze: compiling GPT.forward (model.py:12), 4 s

It is rewritten each second, and erased at the end. Where standard error is no terminal, or with
`BRAZE_PROGRESS=0`, there is none, and no thread that would write it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import final

from braze.compile_records import LISTENERS, CompileEvent
from braze.locks import make_lock
from braze.options import config

AFTER = 1.0
_ERASE = "\r\x1b[K"
_LONGEST = 79


@final
class ProgressLine:
    """A listener of compiles. One thread writes, which ends when nothing compiles.

    after: seconds of a compile without a line, and between two of its lines.
    """

    def __init__(self, after: float = AFTER) -> None:
        self._after = after
        self._lock = make_lock()
        # (thread, what it compiles, since when), innermost last.
        self._running: list[tuple[int, str, float]] = []
        self._is_shown = False
        self._writer_of = 0  # the process whose thread writes: a child has none, but knows of it

    def __call__(self, event: CompileEvent) -> None:
        thread = threading.get_ident()
        if event.kind == "begin":
            if not (sys.stderr and sys.stderr.isatty() and config.progress):
                return
            file, _, line = event.origin.rpartition(":")
            what = f"{event.function} ({Path(file).name}:{line})"
            with self._lock:
                self._running.append((thread, what, time.monotonic()))
                if self._writer_of != os.getpid():
                    self._writer_of = os.getpid()
                    threading.Thread(target=self._run, name="braze progress", daemon=True).start()
        elif self._running:
            with self._lock:
                own = [n for n, (by, _, _) in enumerate(self._running) if by == thread]
                if own:
                    del self._running[own[-1]]
                if self._is_shown and not self._running:
                    self._write(_ERASE)
                    self._is_shown = False

    def write_line(self) -> None:
        """Write what compiles for more than a second now, if anything."""
        with self._lock:
            if not self._running:
                return
            _, what, began = self._running[0]
            spent = time.monotonic() - began
            if spent >= self._after:
                text = f"braze: compiling {what}, {spent:.0f} s"
                self._is_shown = True
                self._write(_ERASE + text[:_LONGEST])

    # --- private -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            time.sleep(self._after)
            with self._lock:
                if not self._running:
                    self._writer_of = 0
                    return
                self.write_line()

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # closed, or gone: nothing is to be shown
            self._running.clear()


def show_progress() -> None:
    """Have compiles of this process show their line."""
    LISTENERS.add(ProgressLine())
