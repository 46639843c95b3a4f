"""`scheduler.step()` of torch's own schedules of rates: called for real, after the graph ran.

What such a call computes with is a count that is another one at each call, and branches on it
(`if self.last_epoch in self.milestones`); what it writes is read by the next step of the program.
So it is put off to the frame's end, and asks for no guard and no new graph, ever. Where what it
writes is read or written between the call and the end, the graph breaks; where no break is allowed,
the frame is captured again with the call interpreted like any other. So it is, too, where the
schedule runs functions of the program's that do more than compute with numbers, where the rate is
a tensor, and where the call may raise inside of `try` or `with`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.deferred_calls import snapshot
from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ReadTooEarly
from braze.capture.state.side_effects import Unsettled
from braze.compat.torch.lr_schedulers import MAY_RAISE, OWN_FUNCTIONS, SCHEDULES, STEPS

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _put_off(function: Any) -> None:
    @answers(function)
    def step(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        spaces = None if kwargs else _written_by(interpreter, args[0])
        if spaces is None:
            return interpreter.call_python(function, args, kwargs)
        try:
            values = [snapshot(interpreter, function, value) for value in args[1:]]
        except BreakRequested:
            return interpreter.call_python(function, args, kwargs)
        interpreter.put_off(function, (args[0], *values))
        problem = functools.partial(_problem, interpreter, type(args[0]).__name__)
        for space, readable in spaces:
            interpreter.side_effects.unsettle(Unsettled(space, readable, problem))
        return None


for _function in STEPS:
    _put_off(_function)


def _problem(interpreter: Interpreter, name: str) -> BaseException:
    options = interpreter.request.options
    if options is not None and options.fullgraph:
        return ReadTooEarly()
    return BreakRequested("schedule", name)


def _written_by(
    interpreter: Interpreter, schedule: object
) -> list[tuple[dict[object, object], dict[object, object]]] | None:
    """The dicts that a schedule writes to, each with what may be read of it all the same; None
    where the step is interpreted."""
    if interpreter.request.is_watched is None or not interpreter.request.puts_off_schedules:
        return None
    is_guarded = any(frame.current[1].region is not None for frame in interpreter.frames)
    spaces: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    for each in _all_of(interpreter, schedule):
        if each is None or (is_guarded and _may_raise(each)):
            return None
        names = ("optimizer", *_KEPT, *OWN_FUNCTIONS)
        kept = {n: interpreter.attribute(each, n) for n in names if n in vars(each)}
        spaces.append((vars(each), kept))
        optimizer = kept["optimizer"]
        if id(optimizer) not in interpreter.guard_context.known:
            return None
        for group in interpreter.side_effects.contents(
            interpreter.attribute(optimizer, "param_groups")
        ):
            real = interpreter.side_effects.original(group)
            if id(real) not in interpreter.guard_context.known or isinstance(
                real.get("lr"), torch.Tensor
            ):
                return None
            spaces.append((real, {"params": interpreter.item(group, "params")}))
    return spaces


def _may_raise(schedule: object) -> bool:
    own = any(vars(schedule).get(name) is not None for name in OWN_FUNCTIONS)
    return own or type(schedule) in MAY_RAISE


def _all_of(interpreter: Interpreter, schedule: object) -> Iterator[object]:
    """A schedule and those in it; None for one that is not torch's own, or runs the program's."""
    known, cls = interpreter.guard_context.known, type(schedule)
    space = vars(schedule) if cls in SCHEDULES else {}
    if cls not in SCHEDULES or id(schedule) not in known:
        yield None
        return
    for function in _own_functions(interpreter, schedule):
        if not interpreter.number_functions.computes(function):
            yield None
            return
    yield schedule
    if "_schedulers" in space:
        for inner in interpreter.side_effects.contents(
            interpreter.attribute(schedule, "_schedulers")
        ):
            yield from _all_of(interpreter, inner)


def _own_functions(interpreter: Interpreter, schedule: object) -> list[object]:
    found: list[Any] = []
    for name in OWN_FUNCTIONS:
        own = interpreter.attribute(schedule, name) if name in vars(schedule) else None
        if type(own) in (list, tuple):
            found += interpreter.side_effects.contents(own)
        elif own is not None:
            found.append(own)
    return found


_KEPT = ("_schedulers",)
