"""Which log artefacts are shown, and how a line looks.

    model.py:12 [graph_breaks] a branch depends on the data of a tensor [data-dependent-branch]
      use torch.where, or torch.cond to keep both sides in the graph

Each artefact is the logger `braze.<name>` of Python's `logging`. Nothing but warnings is shown
until BRAZE_LOGS or `set_logs` asks for more, whatever the root logger's level is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import IO, Any, final

from braze.errors import InvalidOption, unknown_name
from braze.trace import ARTEFACTS

ALL = "all"
# Artefacts whose lines belong together.
PROGRAMS = frozenset(
    "guards bytecode graph graph_code aot_joint_graphs aot_graphs loops schedule fusion "
    "output_code kernel_code".split()
)


@final
class LogFormatter(logging.Formatter):
    """The user's place first, then the artefact, then the message."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        origin = getattr(record, "origin", "")
        artefact = record.name.removeprefix("braze.")
        message = record.getMessage()
        # Programs begin on a line of their own, so that they can be copied.
        space = "\n" if "\n" in message and artefact in PROGRAMS else " "
        head = f"{origin} [{artefact}]" if origin else f"[{artefact}]"
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return f"{head}{space}{message.rstrip()}"


@final
class _StandardError(logging.StreamHandler[IO[str]]):
    """Writes to what `sys.stderr` is at the time of the line."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> IO[str]:
        return sys.stderr

    @stream.setter
    def stream(self, _: IO[str]) -> None:
        raise AttributeError("the stream is always sys.stderr")


def set_logs(*names: str, **switches: bool) -> None:
    """Show these logs, and no others.

    names: artefacts ("graph_breaks", "recompiles"), or several in one string with commas; "all".
    switches: the same as keywords: `set_logs(graph_breaks=True)`.
    Without arguments everything is quiet again. Raises InvalidOption for an unknown artefact.
    """
    wanted = {*_split(names), *(name for name, on in switches.items() if on)}
    for name in [*wanted, *switches]:
        if name != ALL and name not in ARTEFACTS:
            raise InvalidOption(unknown_name("log", name, [*ARTEFACTS, ALL]))
    unwanted = {name for name, on in switches.items() if not on}
    for name in ARTEFACTS:
        shown = (name in wanted or ALL in wanted) and name not in unwanted
        level = logging.INFO if shown else logging.WARNING
        logging.getLogger(f"braze.{name}").setLevel(level)
    _set_handler(bool(wanted))


def shown_logs() -> tuple[str, ...]:
    """The artefacts that are shown now."""
    return tuple(
        name for name in ARTEFACTS if logging.getLogger(f"braze.{name}").isEnabledFor(logging.INFO)
    )


def _split(names: Iterable[Any]) -> Iterable[str]:
    for name in names:
        if not isinstance(name, str):
            raise InvalidOption(f"set_logs takes names of logs, not {name!r}.")
        yield from (part.strip().lstrip("+") for part in name.split(",") if part.strip())


def _set_handler(wanted: bool) -> None:
    logger = logging.getLogger("braze")
    logger.setLevel(logging.WARNING)
    for handler in [h for h in logger.handlers if isinstance(h, _StandardError)]:
        logger.removeHandler(handler)
    if wanted:
        handler = _StandardError()
        handler.setFormatter(LogFormatter())
        logger.addHandler(handler)
    # With a handler of ours, the root logger's would print every line a second time.
    logger.propagate = not wanted
