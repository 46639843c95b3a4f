"""One program, played once: eagerly or compiled, to plain data that says what happened."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import linecache
import logging
import re
import sys
import types
import warnings
from typing import Any, final

import torch

import braze
from tests.fuzz.reference.program import Program
from tests.fuzz.reference.snapshot import MODULE, Entry, Observer, ambient, without_addresses

_OPERATOR = re.compile(r"^ +[%\w][^=\n]* = (?!None)", re.MULTILINE)
_FAULTS = ("InternalError", "BrazeError", "VerificationError")


@final
@dataclasses.dataclass(slots=True)
class Step:
    """What was seen after one step. text: the step. error: its type and message, or "". state: what
    all globals were, and the last result, "result"."""

    text: str
    error: str
    state: list[Entry]


@final
@dataclasses.dataclass(slots=True)
class Played:
    """What a program did. graphs: the operators of each graph. said: the messages of breaks,
    warnings and faults that the compiler gave. warned: the program's warnings."""

    steps: list[Step] = dataclasses.field(default_factory=list)
    graphs: list[int] = dataclasses.field(default_factory=list)
    said: list[str] = dataclasses.field(default_factory=list)
    warned: set[str] = dataclasses.field(default_factory=set)
    broken: str = ""


@final
class _Journal(logging.Handler):
    """Counts graphs and keeps what the compiler says, from its public logs."""

    def __init__(self, played: Played) -> None:
        super().__init__()
        self._played = played

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name.endswith(("graph_code", "graph")):
            self._played.graphs.append(len(_OPERATOR.findall(text)))
        else:
            self._played.said.append(f"{record.name} {text[:300]}")


def play(program: Program, is_compiled: bool) -> Played:
    """Run a program in this process, which is good for nothing else from then on."""
    played = Played()
    module = types.ModuleType(MODULE)
    module.__file__ = f"<{MODULE}>"
    sys.modules[MODULE] = module
    linecache.cache[module.__file__] = (
        len(program.text),
        None,
        program.text.splitlines(True),
        module.__file__,
    )
    printed = io.StringIO()
    if is_compiled:
        _listen(played)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            exec(compile(program.text, module.__file__, "exec"), module.__dict__)
            _compile(module, program, is_compiled)
        except Exception as error:
            played.broken = f"{type(error).__name__}: {error}"
            return played
        observer = Observer()
        for text in program.steps:
            played.steps.append(_step(text, module.__dict__, observer, printed))
    for one in caught:
        text = f"{one.category.__name__}: {without_addresses(str(one.message))}"
        if "braze" in f"{one.category.__module__} {text}".lower():
            played.said.append(f"warning {text}")
        else:
            played.warned.add(text)
    return played


def _listen(played: Played) -> None:
    braze.set_logs("graph_breaks,graph_code,graph")
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("braze"):
            logger = logging.getLogger(name)
            logger.handlers = []
    logger = logging.getLogger("braze")
    logger.handlers = [_Journal(played)]
    logger.propagate = False


def _compile(module: types.ModuleType, program: Program, is_compiled: bool) -> None:
    entry = module.ENTRY
    if is_compiled:
        with braze.config.patch(suppress_errors=False):
            entry = eval(program.way, {"braze": braze, "torch": torch, "entry": entry})
    module.run = module.ENTRY if entry is None else entry  # `nn.Module.compile` returns nothing


def _step(text: str, space: dict[str, Any], observer: Observer, printed: io.StringIO) -> Step:
    error, result, entries = "", None, []
    try:
        if text.startswith("run("):
            result = eval(text, space)
        else:
            exec(compile(text, "<step>", "exec"), space)
    except Exception as raised:
        error = f"{type(raised).__name__}: {without_addresses(str(raised))}"
        entries = _context(raised)
    gc.collect()
    if "run(" in text:
        roots = {"result": result, "printed": printed.getvalue(), **ambient(), **space}
        entries += observer.observe(roots)
    return Step(text, error, entries)


def _context(error: BaseException) -> list[Entry]:
    """The chain of an exception, by types."""
    chain: list[Entry] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < 6:
        chain.append((f"error{len(chain)}", (type(seen).__name__, len(seen.args))))
        seen = seen.__cause__ or seen.__context__
    return chain
