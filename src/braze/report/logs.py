"""Which log artefacts are shown, and how a line looks.

    model.py:12 [graph_breaks] a branch depends on the data of a tensor [data-dependent-branch]
      use torch.where, or torch.cond to keep both sides in the graph

Each artefact is the logger `braze.<name>` of Python's `logging`. Nothing but warnings is shown
until BRAZE_LOGS or `set_logs` asks for more, whatever the root logger's level is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, final

import torch

from braze.environment import warn_of_environment
from braze.errors import InvalidOption, unknown_name
from braze.report.log_names import GROUPS, HELP, help_text, known_names, resolve_name
from braze.report.recompile_profile import WHOLE_RUN
from braze.trace import ARTEFACTS

# Artefacts whose lines belong together.
PROGRAMS = frozenset(
    "guards bytecode graph graph_code graph_sizes aot_joint_graphs aot_graphs loops schedule "
    "fusion output_code kernel_code".split()
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
        text = f"{head}{space}{message.rstrip()}"
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # Lines of several processes come mixed.
            rank = torch.distributed.get_rank()
            text = "\n".join([f"[rank{rank}]: {line}" for line in text.split("\n")])
        return text


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


def set_logs(*names: str, **switches: object) -> None:
    """Show these logs, and no others.

    names: logs ("graph_breaks", "recompiles"), groups ("dynamo", "aot", "inductor", "all"), names
        of torch.compile's logs, modules; or several in one string with commas. With a plus sign a
        group shows all of its logs, with a minus sign a name is not shown. "help" prints the list.
    switches: the same as keywords: `set_logs(graph_breaks=True)`; a number is a level of `logging`
        (`dynamo=logging.DEBUG`); `modules` is a dict of names and levels.
    Without arguments everything is quiet again. Raises InvalidOption for an unknown name.
    """
    asked = [*_split(names), *_switched(switches)]
    _show(asked, [name for name, _ in asked if name != HELP and resolve_name(name) is None])


def set_logs_of_environment(text: str, file: str) -> None:
    """Show what BRAZE_LOGS names, in the file of BRAZE_LOGS_OUT, too. A program does not end for
    what its environment has: what is wrong is warned of, and the rest is shown."""
    asked = [*_split([text])]
    wrong = [name for name, _ in asked if name != HELP and resolve_name(name) is None]
    _show([(name, level) for name, level in asked if name not in wrong], [])
    for name in wrong:
        error = InvalidOption(unknown_name("log", name, known_names()))
        warn_of_environment("BRAZE_LOGS", name, error)
    if file:
        _write_to(file)


def shown_logs() -> tuple[str, ...]:
    """The artefacts that are shown now."""
    return tuple(
        name for name in ARTEFACTS if logging.getLogger(f"braze.{name}").isEnabledFor(logging.INFO)
    )


def _show(asked: Sequence[tuple[str, int]], wrong: Sequence[str]) -> None:
    """Show logs by name and level. wrong: names that nothing has."""
    if wrong:
        raise InvalidOption(unknown_name("log", wrong[0], known_names()))
    if any(name == HELP for name, _ in asked):
        print(help_text(), file=sys.stderr)
    shown: dict[str, bool] = dict.fromkeys(ARTEFACTS, False)
    # What is switched off is off, wherever it stands.
    for name, level in sorted(asked, key=lambda one: one[1] > logging.INFO):
        if name != HELP:
            found = resolve_name(name)
            assert found is not None, name
            shown.update(dict.fromkeys(_logs_of(found, level), level <= logging.INFO))
    for name, on in shown.items():
        level = logging.INFO if on else logging.WARNING
        logging.getLogger(f"braze.{name}").setLevel(level)
    _set_handler(any(shown.values()))
    WHOLE_RUN.begin_where_shown()


def _logs_of(name: str, level: int) -> tuple[str, ...]:
    if name not in GROUPS:
        return (name,)
    least, most = GROUPS[name]
    return least if level == logging.INFO else most


def _split(names: Iterable[object]) -> Iterator[tuple[str, int]]:
    """(name, level) of each name, by its sign."""
    for name in names:
        if not isinstance(name, str):
            raise InvalidOption(f"set_logs takes names of logs, not {name!r}.")
        for part in map(str.strip, name.split(",")):
            level = {"+": logging.DEBUG, "-": logging.ERROR}.get(part[:1], logging.INFO)
            if part:
                yield part.lstrip("+-"), level


def _switched(switches: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(name, level) of each keyword."""
    for name, value in switches.items():
        if name == "modules":
            yield from _switched(value or {})
        elif isinstance(value, bool) or value is None:
            yield name, logging.INFO if value else logging.ERROR
        elif isinstance(value, int):
            yield name, value
        else:
            raise InvalidOption(f"{name} is True, False or a level of logging, not {value!r}.")


def _write_to(file: str) -> None:
    """Write what is shown to a file, too."""
    logger = logging.getLogger("braze")
    try:
        handler = logging.FileHandler(file)
    except OSError as error:
        warn_of_environment("BRAZE_LOGS_OUT", file, InvalidOption(str(error)))
        return
    handler.setFormatter(LogFormatter())
    logger.addHandler(handler)


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
