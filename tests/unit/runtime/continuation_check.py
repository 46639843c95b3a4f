"""Stop every function of the corpus before each of its instructions, go on natively, compare.

Run as a program it prints one line a difference, under any Python that has continuations; torch
is not needed: `braze.ir.captured.frame` is replaced by its NULL.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_SOURCE = _HERE.parents[2] / "src" / "braze"


def _without_torch() -> None:
    for name in ("braze", "braze.ir"):
        package = types.ModuleType(name)
        package.__path__ = [str(_SOURCE.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    frame = types.ModuleType("braze.ir.captured.frame")
    frame.NULL = importlib.import_module("braze.compat.python.opcode_semantics").NULL  # type: ignore[attr-defined]
    sys.modules["braze.ir.captured.frame"] = frame
    sys.path.insert(0, str(_HERE.parents[2]))


if __name__ == "__main__":
    _without_torch()

from braze.ir.captured.frame import NULL  # noqa: E402
from braze.runtime.resume.continuation import Point, make_continuation  # noqa: E402
from braze.runtime.resume.single_step import Finished  # noqa: E402
from tests.unit.runtime import continuation_corpus as corpus  # noqa: E402
from tests.unit.runtime import continuation_corpus_handlers  # noqa: E402
from tests.unit.runtime.simulator import Simulation  # noqa: E402

FILES = (corpus.__file__, continuation_corpus_handlers.__file__)


def start(make: Any) -> tuple[Simulation, Any, list[Any]]:
    function, arguments = make()
    log: list[Any] = corpus._Log() if function is corpus._Log.run else []
    bound = inspect.signature(function).bind(log, *arguments)
    bound.apply_defaults()
    return Simulation(function, dict(bound.arguments)), log, [function, arguments]


def plain(make: Any) -> tuple[Any, ...]:
    function, arguments = make()
    log: list[Any] = corpus._Log() if function is corpus._Log.run else []
    return observe(lambda: function(log, *arguments), log)


def observe(call: Any, log: list[Any]) -> tuple[Any, ...]:
    handled = sys.exc_info()[1]
    try:
        outcome: tuple[Any, ...] = ("returns", plain_text(call()))
    except Exception as exception:
        outcome = ("raises", type(exception), str(exception), lines(exception))
    leaked = "" if sys.exc_info()[1] is handled else "left an exception being handled"
    return (*outcome, plain_text(log) + leaked)


def plain_text(value: Any) -> str:
    """A result in words, without addresses."""
    import re

    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def lines(exception: BaseException) -> list[tuple[str, int | None]]:
    """The corpus's entries of a traceback."""
    entries, trace = [], exception.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in FILES:
            entries.append((code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    return entries


def go_on(simulation: Simulation, exception: BaseException | None = None) -> Any:
    """Run the rest natively, or raise at the instruction."""
    point = Point(
        simulation.instruction.offset,
        tuple(simulation.locals),
        tuple(slot is NULL for slot in simulation.stack),
        exception is not None,
    )
    made = make_continuation(simulation.program.code, point)
    function = made.function(simulation.globals, simulation.locals, simulation.stack, exception)
    return function()


def visits(make: Any) -> list[int]:
    """The numbers of the steps before which to stop: the first and the last time at each place."""
    simulation, _, _ = start(make)
    seen: dict[int, list[int]] = {}
    step = 0
    try:
        while True:
            seen.setdefault(simulation.index, []).append(step)
            if isinstance(simulation.step(), Finished):
                break
            step += 1
    except Exception:
        pass
    return sorted({number for steps in seen.values() for number in (steps[0], steps[-1])})


def differences(name: str, make: Any) -> tuple[int, list[str]]:
    """How many continuations were tried, and which of them went another way than a plain call."""
    expected = plain(make)
    wrong: list[str] = []
    tried = 0
    for stop in visits(make):
        simulation, log, _ = start(make)
        for _ in range(stop):
            simulation.step()
        where = f"{name} at {simulation.instruction.offset} {simulation.instruction.name}"
        actual = observe(lambda here=simulation: go_on(here), log)
        tried += 1
        if forgetful(actual, simulation) != forgetful(expected, simulation):
            wrong.append(f"{where}: {actual} instead of {expected}")
    for stop in visits(make):
        simulation, log, _ = start(make)
        for _ in range(stop):
            simulation.step()
        earlier = simulation.raised
        try:
            if simulation.execute() is None:
                continue
            continue
        except Exception as exception:
            raised = exception.with_traceback(corpus_only(exception))
        where = f"{name} raising at {simulation.instruction.offset} {simulation.instruction.name}"
        actual = observe(lambda here=simulation, e=raised: go_on(here, e), log)
        tried += 1
        simulation.raised = earlier
        if forgetful(actual, simulation) != forgetful(expected, simulation):
            wrong.append(f"{where}: {actual} instead of {expected}")
    return tried, wrong


def corpus_only(exception: BaseException) -> types.TracebackType | None:
    kept, entry = [], exception.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename in FILES:
            kept.append(entry)
        entry = entry.tb_next
    chain = None
    for entry in reversed(kept):
        chain = types.TracebackType(chain, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return chain


def forgetful(outcome: tuple[Any, ...], simulation: Simulation) -> tuple[Any, ...]:
    """Without the lines, where the simulation raised the exception and so left none."""
    if outcome[0] == "raises" and simulation.raised is not None:
        return (*outcome[:3], *outcome[4:])
    return outcome


if __name__ == "__main__":
    total = 0
    for case_name, make_case in corpus.CASES:
        count, found = differences(case_name, make_case)
        total += count
        for line in found:
            print(line)
    print(f"{total} continuations of {len(corpus.CASES)} functions")
