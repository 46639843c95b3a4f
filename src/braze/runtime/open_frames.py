"""Frames that a graph break left open: each is moved on until the outermost one returns.

    broken   the top frame waits before an instruction: execute it           -> ready
    ready    capture again from there, with locals and stack as inputs       -> broken | finished
    native   the rest of the top frame runs as it is, or raises at its place -> finished | failed
    finished the value is the result of the call at which the frame below waits -> that is ready
    failed   the exception is raised at that call                            -> native

An instruction that raises, or that is not executed here, and a frame that is refused, make the
rest of that frame run natively. So do more than `_MOST_IDLE` breaks in a row with nothing computed
between them: a loop that polls. The loop is flat: its depth does not grow with the breaks. No step
keeps values of the program in its own variables while the program runs: what the program lets go
of is finalized then.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any, Protocol, TypeAlias, final

from braze.compat.bytecode import decode
from braze.errors import InternalError
from braze.ir.entry import FrameValues, PartlyRun
from braze.ir.frame import NULL, Break, Refused
from braze.runtime.continuation import Continuation, Point, make_continuation
from braze.runtime.entries import Entry, Found, FrameCache, FrameKey, continuation_key
from braze.runtime.frame_calls import RunNatively
from braze.runtime.instructions import HANDLERS, Finished, take
from braze.runtime.recipes import LiveFrame
from braze.runtime.tracebacks import without_driver_frames


class Host(Protocol):
    """What the loop asks of the dispatcher."""

    continuations: dict[Any, Continuation]

    def cache(self, key: FrameKey, code: types.CodeType, offset: int) -> FrameCache: ...
    def find(
        self, cache: FrameCache, values: FrameValues, function: types.FunctionType | None
    ) -> Found | None: ...
    def call(
        self,
        callable: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        namespace: dict[str, Any],
    ) -> Any: ...
    def observe(self, event: str, detail: str) -> None: ...
    def note_return(self, refused: Refused) -> None: ...
    def failure_of(self, fault: Exception) -> str: ...
    def note_failure(self, text: str, entry: Entry) -> None: ...


class _Where(enum.Enum):
    """What the top frame waits for."""

    BROKEN = "its instruction is to be executed"
    IDLE = "likewise, and the graph before it was empty"
    READY = "capture is to start at its offset"


@final
class _Failed:
    """The top frame ended with an exception."""

    __slots__ = ("exception",)

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


@final
class _Native:
    """The rest of the top frame is to run natively, by raising at its instruction if there is an
    exception; refused: why, if it was now that it could not be captured; failed: what is to be
    said of the entry whose graph failed, if it did."""

    __slots__ = ("exception", "failed", "refused")

    def __init__(
        self,
        exception: BaseException | None = None,
        refused: Refused | None = None,
        failed: tuple[str, Entry] | None = None,
    ) -> None:
        self.exception = exception
        self.refused = refused
        self.failed = failed

    def take(self) -> BaseException | None:
        """The exception, no longer held here."""
        exception, self.exception = self.exception, None
        return exception


_State: TypeAlias = _Where | Finished | _Failed | _Native

# Breaks in a row without a tensor going in or out of a graph: beyond this the top frame runs
# natively, beyond the second number those that called it, too.
_MOST_IDLE = 256
_MOST_IDLE_CALLERS = 4096

# Operands of the instructions at which a caller waits, beside `arg` arguments.
_CALL_OPERANDS = {"CALL": 2, "CALL_KW": 3}


def run_frames(host: Host, frames: list[LiveFrame], natively: bool) -> Any:
    """The outermost frame's return value, or its exception. frames: outermost first, consumed.
    natively: the rest of the top frame is not captured."""
    state: _State = _Native() if natively else _Where.BROKEN
    idle = 0  # breaks in a row
    while True:
        if state is _Where.BROKEN or state is _Where.IDLE:
            idle = idle + 1 if state is _Where.IDLE else 0
            leaves = _gives_up(host, frames[-1], idle, _MOST_IDLE)
            state = _Native() if leaves else _execute(host, frames[-1])
        elif state is _Where.READY:
            leaves = _gives_up(host, frames[-1], idle, _MOST_IDLE_CALLERS)
            state = _Native() if leaves else _enter(host, frames)
        elif type(state) is _Native:
            state = _run_rest(host, frames[-1], state)
        else:
            assert isinstance(state, Finished | _Failed)
            frames.pop()
            if not frames:
                break
            state = _return_to(host, frames[-1], state)
    if isinstance(state, Finished):
        return state.value
    try:
        raise state.exception
    finally:
        del state


def _gives_up(host: Host, frame: LiveFrame, idle: int, most: int) -> bool:
    """Whether a frame is not captured any further, since it computes nothing."""
    if idle <= most:
        return False
    host.observe("idle", f"{frame.code.co_qualname}: {idle} breaks with nothing computed between")
    return True


def _execute(host: Host, frame: LiveFrame) -> _State:
    """Execute the instruction before which the frame waits."""
    program = decode(frame.code)
    index = program.index_at[frame.offset]
    instruction = program.instructions[index]
    handler = HANDLERS.get(instruction.name)
    if handler is None:
        return _Native()
    frame.call = functools.partial(host.call, namespace=frame.globals)
    before = list(frame.stack)
    raised: BaseException | None
    try:
        result = handler(frame, instruction)
    except RunNatively:
        raised = None  # what the rest raises must not have RunNatively for its context
    except BaseException as exception:
        raised = without_driver_frames(exception)
    else:
        if isinstance(result, Finished):
            return result
        following = index + 1 if result is None else result
        frame.offset = program.instructions[following].offset
        return _Where.READY
    frame.stack = before
    return _Native(raised)


def _enter(host: Host, frames: list[LiveFrame]) -> _State:
    """Go on with the top frame by a compiled entry, if there is one."""
    frame = frames[-1]
    values = FrameValues(frame.locals, frame.stack, frame.globals)
    key = continuation_key(frame.code, frame.offset, values)
    cache = host.cache(key, frame.code, frame.offset)
    refusals = cache.refusals
    found = raised = None
    try:
        found = host.find(cache, values, frame.function)
    except BaseException as interrupt:  # of the compile: the frame's handlers see it
        raised = without_driver_frames(interrupt)
    if raised is not None:
        return _Native(raised)
    if found is None:
        return _Native(refused=None if cache.refusals is refusals else cache.refusals[-1])
    entry, inputs = found
    results = None
    failed = ""
    try:
        results = entry.run_graph(inputs)
    except PartlyRun as partly:
        raised = partly.cause
    except Exception as fault:
        failed = host.failure_of(fault)
    if results is None:  # outside of the except clauses, so that what is raised has no context
        return _Native(raised, failed=(failed, entry))
    if entry.returns:
        return Finished(entry.replay(values, results))
    host.observe("break", f"{frame.code.co_qualname} at {frame.offset}")
    frames[-1:] = entry.replay(values, results)
    assert isinstance(entry.compiled.exit, Break)
    if entry.compiled.exit.natively:
        return _Native()
    return _Where.BROKEN if inputs or results else _Where.IDLE


def _return_to(host: Host, caller: LiveFrame, state: Finished | _Failed) -> _State:
    """Complete the call at which a frame waits: push the value, or raise there."""
    if isinstance(state, _Failed):
        return _Native(state.exception)
    program = decode(caller.code)
    index = program.index_at[caller.offset]
    instruction = program.instructions[index]
    if instruction.name == "CALL_FUNCTION_EX":
        count = 3 + (instruction.arg & 1)
    elif instruction.name in _CALL_OPERANDS:
        count = instruction.arg + _CALL_OPERANDS[instruction.name]
    else:
        raise InternalError(
            "runtime",
            f"a frame waits at {instruction.name}, which is no call",
            origin=f"{caller.code.co_filename}:{instruction.line}",
        )
    take(caller.stack, count)
    caller.stack.append(state.value)
    caller.offset = program.instructions[index + 1].offset
    return _Where.READY


def _run_rest(host: Host, frame: LiveFrame, how: _Native) -> Finished | _Failed:
    """Run the rest of a frame natively, from its instruction or by raising there."""
    host.observe("native", f"{frame.code.co_qualname} at {frame.offset}")
    exception = how.take()
    known = 0 if exception is None else id(exception.__traceback__)
    rest = _rest(host, frame, exception)
    del exception  # what it holds ends when the program lets go of it
    try:
        result = rest()
    except BaseException as raised:
        return _Failed(without_driver_frames(raised, known))
    if how.refused is not None:
        host.note_return(how.refused)
    if how.failed is not None:
        host.note_failure(*how.failed)
    return Finished(result)


def _rest(host: Host, frame: LiveFrame, exception: BaseException | None) -> types.FunctionType:
    """The rest of a frame as a function, which takes over the frame's values."""
    point = Point(
        frame.offset,
        tuple(frame.locals),
        tuple([slot is NULL for slot in frame.stack]),
        exception is not None,
    )
    key = (id(frame.code), point)
    continuation = host.continuations.get(key)
    if continuation is None:
        continuation = host.continuations[key] = make_continuation(frame.code, point)
    function = continuation.function(frame.globals, frame.locals, frame.stack, exception)
    frame.locals, frame.stack = {}, []
    return function
