"""Warnings about the machine, each given once."""

from __future__ import annotations

from typing import final

from braze.errors import warn
from braze.locks import make_lock


@final
class Warned:
    """What has been said of the machine, once in a process."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._messages: set[str] = set()

    def once(self, message: str, subject: str = "") -> None:
        """Warn, unless it was said before, of this subject if one is given."""
        with self._lock:
            known = (subject or message) in self._messages
            self._messages.add(subject or message)
        if not known:
            warn(message)
