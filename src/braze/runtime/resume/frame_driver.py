"""Frames that a graph break left open: each is moved on until the outermost one returns.

    broken   the top frame waits before an instruction: execute it           -> ready
    ready    capture again from there, with locals and stack as inputs       -> broken | finished
    eager    everything runs eagerly until a block ends: execute instructions -> ready | native
    native   the rest of the top frame runs as it is, or raises at its place -> finished | failed
    finished the value is the result of the call at which the frame below waits -> that is ready
    failed   the exception is raised at that call                            -> native

An instruction that raises, or that is not executed here, and a frame that is refused, make the
rest of that frame run natively. So do more than `_MOST_IDLE` breaks in a row with nothing computed
between them, a loop that polls, and more than `_MOST_EAGER` instructions of an eager block. The
loop is flat: its depth does not grow with the breaks. No step keeps values of the program in its
own variables while the program runs: what the program lets go of is finalized then.
"""

from __future__ import annotations

import enum
import types
from typing import Any, Literal, Protocol, TypeAlias, final

from braze.compat.python.bytecode import Instruction, decode
from braze.compat.python.hidden_frames import hide_frames
from braze.compat.python.opcode_semantics import take
from braze.compat.python.opcodes import OPCODES
from braze.compat.python.signal_handlers import is_raised_by_handler
from braze.compile_records import LeftToEager
from braze.errors import InternalError, RecomputedOtherwise
from braze.ir.captured.compile_request import FrameValues, PartlyRun
from braze.ir.captured.frame import NULL, Break, GraphBreak
from braze.ir.origin import Origin
from braze.runtime.autograd.checkpoint_calls import EagerRun
from braze.runtime.dispatch.cache_entries import (
    CacheEntry,
    Found,
    FrameCache,
    FrameKey,
    continuation_key,
)
from braze.runtime.dispatch.eager_fallback import Tally, leave_to_eager
from braze.runtime.dispatch.tracebacks import without_driver_frames
from braze.runtime.resume.continuation import Continuation, Point, make_continuation
from braze.runtime.resume.frame_calls import RunNatively, StandIns, called_by
from braze.runtime.resume.reconstruct import LiveFrame
from braze.runtime.resume.single_step import HANDLERS, Finished


class Host(Protocol):
    """What the loop asks of the dispatcher."""

    continuations: dict[Any, Continuation]
    stand_ins: StandIns
    tally: Tally

    @property
    def runs_eagerly(self) -> bool: ...
    def cache(self, key: FrameKey, code: types.CodeType, offset: int) -> FrameCache: ...
    def find(
        self, cache: FrameCache, values: FrameValues, function: types.FunctionType | None
    ) -> Found | LeftToEager: ...
    def call(self, callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def left_by_fault(
        self, fault: Exception, code: types.CodeType, *, is_rest: bool
    ) -> LeftToEager: ...
    def found_in_forward(
        self, entry: CacheEntry, values: FrameValues, otherwise: RecomputedOtherwise
    ) -> Found | LeftToEager: ...


class _Ready(enum.Enum):
    """The top frame waits for capture to start at its offset."""

    READY = enum.auto()


@final
class _Broken:
    """The top frame waits for its instruction to be executed: `reason` broke the graph there.
    is_rest: something has been computed already; is_idle: not by the graph before it."""

    __slots__ = ("is_idle", "is_rest", "reason")

    def __init__(self, reason: GraphBreak, *, is_rest: bool, is_idle: bool = False) -> None:
        self.reason = reason
        self.is_rest = is_rest
        self.is_idle = is_idle


@final
class _Failed:
    """The top frame ended with an exception."""

    __slots__ = ("exception",)

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


@final
class _EagerBlock:
    """The top frame runs eagerly, since everything does for the time being: why. steps: the
    instructions executed so far."""

    __slots__ = ("steps", "why")

    def __init__(self, why: LeftToEager) -> None:
        self.why = why
        self.steps = 0


@final
class _Native:
    """The rest of the top frame is to run natively, by raising at its instruction if there is an
    exception; why: what the rest is left to eager for, None where that is the exception."""

    __slots__ = ("exception", "why")

    def __init__(
        self, exception: BaseException | None = None, why: LeftToEager | None = None
    ) -> None:
        self.exception = exception
        self.why = why

    def take(self) -> BaseException | None:
        """The exception, no longer held here."""
        exception, self.exception = self.exception, None
        return exception


_State: TypeAlias = _Broken | _Ready | Finished | _Failed | _EagerBlock | _Native

# Breaks in a row without a tensor going in or out of a graph: beyond this the top frame runs
# natively, beyond the second number those that called it, too.
_MOST_IDLE = 256
_MOST_IDLE_CALLERS = 4096

# Instructions of an eager block that are executed here, so that the frame is compiled again at its
# end. A block in which a loop takes more runs natively, and so does what follows it.
_MOST_EAGER = 2048

# What loads variables. A graph breaks there where a value cannot be an input of one: on the stack
# it could not be one either.
_LOADS = frozenset(
    "LOAD_FAST LOAD_CLOSURE LOAD_DEREF LOAD_FAST_LOAD_FAST STORE_FAST_LOAD_FAST".split()
)

# Interrupts of the driver itself, between the program's instructions, in one call.
_MOST_INTERRUPTS = 64

# The instructions at which a caller waits.
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})


def run_frames(host: Host, frames: list[LiveFrame], entry: CacheEntry) -> object:
    """The outermost frame's return value, or its exception. frames: outermost first, consumed.
    entry: whose graph broke there."""
    state: _State | None = None
    breaks = _BreaksInARow()
    interrupts = 0
    while True:
        try:
            if state is None:
                state = _behind(entry, frames[-1], is_rest=entry.compiled.operators > 0)
            elif isinstance(state, Finished | _Failed):
                if len(frames) == 1:
                    break
                frames.pop()
                state = _return_to(host, frames[-1], state)
            else:
                state = _step(host, frames, state, breaks)
        except InternalError:
            raise
        except BaseException as interrupt:
            # It came between two instructions of the program, so it is raised at the next one:
            # a `with` or `try` that is open ends as it does where the interpreter is interrupted.
            interrupts += 1
            if interrupts > _MOST_INTERRUPTS:
                raise  # a fault of the driver's own, which would come again without end
            state = _Native(without_driver_frames(interrupt))
    if isinstance(state, Finished):
        return state.value
    try:
        raise state.exception
    finally:
        del state


@final
class _BreaksInARow:
    """Counts graph breaks that follow each other with nothing computed between them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def _step(
    host: Host,
    frames: list[LiveFrame],
    state: _Broken | Literal[_Ready.READY] | _EagerBlock | _Native,
    breaks: _BreaksInARow,
) -> _State:
    """Move the top frame on by one state."""
    if type(state) is _Broken:
        breaks.count = breaks.count + 1 if state.is_idle else 0
        if breaks.count > _MOST_IDLE:
            return _Native(why=_left_idle(frames[-1], breaks.count))
        if _next_instruction(frames[-1]).name in _LOADS:
            return _Native(why=_left_at(frames[-1], state))
        return _execute(host, frames, state)
    if type(state) is _Native:
        return _run_rest(host, frames, state)
    if type(state) is _EagerBlock:
        return _execute_in_block(host, frames, state)
    if breaks.count > _MOST_IDLE_CALLERS:
        return _Native(why=_left_idle(frames[-1], breaks.count))
    entered: _State = called_by(host.stand_ins, frames[:-1], _enter, host, frames)
    return entered


def _behind(
    entry: CacheEntry, frame: LiveFrame, *, is_rest: bool, is_idle: bool = False
) -> _Broken | _Native:
    """How the top frame goes on behind a graph that broke there."""
    end = entry.compiled.exit
    assert isinstance(end, Break)
    broken = _Broken(end.reason, is_rest=is_rest, is_idle=is_idle)
    return _Native(why=_left_natively(frame, broken)) if end.natively else broken


def _leaves_operators_out(entry: CacheEntry) -> bool:
    """Whether it broke at an operator of a function that is left out, each of which is a break:
    what it calls is compiled, however many come before."""
    end = entry.compiled.exit
    return isinstance(end, Break) and end.reason.code == "disabled"


def _left_natively(frame: LiveFrame, broken: _Broken) -> LeftToEager:
    """Why the rest of a frame runs natively that capture left at a break."""
    reason, name = broken.reason, frame.code.co_qualname
    place = str(reason.origin)
    return LeftToEager(
        reason.code, reason.reason, reason.hint, place, name, broken.is_rest, is_for_good=True
    )


def _left_idle(frame: LiveFrame, idle: int) -> LeftToEager:
    """Why the rest of a frame runs natively that breaks its graphs and computes nothing."""
    code, line = frame.code, _next_instruction(frame).line
    what = f"{idle} graph breaks in a row with nothing computed between"
    hint = "poll outside of the compiled function"
    place = f"{code.co_filename}:{line}"
    return LeftToEager("idle-breaks", what, hint, place, code.co_qualname, True, is_for_good=True)


def _next_instruction(frame: LiveFrame) -> Instruction:
    """What the frame waits before."""
    program = decode(frame.code)
    return program.instructions[program.index_at[frame.offset]]


def _execute(host: Host, frames: list[LiveFrame], broken: _Broken) -> _State:
    """Execute the instruction before which the top frame waits."""
    frame = frames[-1]
    program = decode(frame.code)
    index = program.index_at[frame.offset]
    instruction = program.instructions[index]
    handler = HANDLERS.get(instruction.name)
    if handler is None:
        return _Native(why=_left_at(frame, broken))
    frame.call = host.call
    before = list(frame.stack)
    raised: BaseException | None
    try:
        result = called_by(host.stand_ins, frames, handler, frame, instruction)
    except RunNatively:
        raised = None  # what the rest raises must not have RunNatively for its context
    except BaseException as exception:
        raised = without_driver_frames(exception)
    else:
        if isinstance(result, Finished):
            return result
        following = index + 1 if result is None else result
        frame.offset = program.instructions[following].offset
        return _Ready.READY
    frame.stack = before
    try:
        return _Native(raised, _left_at(frame, broken) if raised is None else None)
    finally:
        # Frames of the traceback refer to this one as their caller: a cycle, if it held the
        # exception, and what the program's frames hold would go later than in eager.
        raised = None


def _execute_in_block(host: Host, frames: list[LiveFrame], block: _EagerBlock) -> _State:
    """Execute one instruction of a block in which everything runs eagerly; ready at its end."""
    if not host.runs_eagerly:
        return _Ready.READY
    block.steps += 1
    if block.steps > _MOST_EAGER:
        return _Native(why=block.why)
    why = block.why
    reason = GraphBreak(why.code, why.reason, why.hint, Origin(frames[-1].code.co_filename, 0))
    state = _execute(host, frames, _Broken(reason, is_rest=True))
    if state is _Ready.READY:
        return block
    if type(state) is _Native and state.exception is None:
        return _Native(why=why)
    return state


def _enter(host: Host, frames: list[LiveFrame]) -> _State:
    """Go on with the top frame by a compiled entry, if there is one."""
    frame = frames[-1]
    values = FrameValues(frame.locals, frame.stack, frame.globals)
    key = continuation_key(frame.code, frame.offset, values)
    cache = host.cache(key, frame.code, frame.offset)
    found: Found | LeftToEager | None = None
    raised: BaseException | None = None
    try:
        found = host.find(cache, values, frame.function)
    except BaseException as interrupt:  # of the compile: the frame's handlers see it
        raised = without_driver_frames(interrupt)
    if found is None:
        try:
            return _Native(raised)
        finally:
            raised = None  # see `_execute`
    if isinstance(found, LeftToEager):
        return _EagerBlock(found) if host.runs_eagerly else _Native(why=found)
    entry, inputs = found
    results = why = None
    try:
        try:
            results = entry.run_graph(inputs)
        except RecomputedOtherwise as otherwise:
            found = host.found_in_forward(entry, values, otherwise)
            if isinstance(found, LeftToEager):
                return _Native(why=found)
            entry, inputs = found
            results = entry.run_graph(inputs)
    except RecomputedOtherwise as otherwise:
        raised = otherwise
    except PartlyRun as partly:
        raised = partly.cause
    except Exception as fault:
        if is_raised_by_handler(fault):
            raised = without_driver_frames(fault)
        else:
            why = host.left_by_fault(fault, frame.code, is_rest=True)
    if results is None:  # outside of the except clauses, so that what is raised has no context
        try:
            return _Native(raised, why)
        finally:
            raised = None  # see `_execute`
    if entry.returns:
        return Finished(entry.replay(values, results))
    host.tally.broken.add()
    frames[-1:] = entry.replay(values, results)
    is_idle = not (inputs or results or _leaves_operators_out(entry))
    return _behind(entry, frames[-1], is_rest=True, is_idle=is_idle)


def _return_to(host: Host, caller: LiveFrame, state: Finished | _Failed) -> _State:
    """Complete the call at which a frame waits: push the value, or raise there."""
    if isinstance(state, _Failed):
        return _Native(state.exception)
    program = decode(caller.code)
    index = program.index_at[caller.offset]
    instruction = program.instructions[index]
    if instruction.name not in _CALLS:
        raise InternalError(
            "runtime",
            f"a frame waits at {instruction.name}, which is no call",
            origin=f"{caller.code.co_filename}:{instruction.line}",
        )
    take(caller.stack, OPCODES[instruction.name].effect.pops(instruction.arg))
    caller.stack.append(state.value)
    caller.offset = program.instructions[index + 1].offset
    return _Ready.READY


def _left_at(frame: LiveFrame, broken: _Broken) -> LeftToEager:
    """Why the rest runs natively from a break on whose instruction is not executed for the frame:
    it reads what no graph holds, or needs the program's own frame; or it raises, in words that are
    best left to CPython."""
    reason = broken.reason
    return LeftToEager(
        "program-raises",
        reason.reason,
        reason.hint,
        str(reason.origin),
        frame.code.co_qualname,
        is_rest=broken.is_rest,
        is_for_good=True,
        may_raise=True,
        returned=reason.code,
    )


def _left_by(exception: BaseException, frame: LiveFrame) -> LeftToEager:
    """Why the rest runs natively where an exception comes out of an instruction."""
    code = frame.code
    program = decode(code)
    line = program.instructions[program.index_at[frame.offset]].line
    return LeftToEager(
        "program-raises",
        f"{type(exception).__name__} comes out of what is called, and the frame handles it",
        "",
        f"{code.co_filename}:{line}",
        code.co_qualname,
        is_rest=True,
        may_raise=True,
        returned="handled-exception",
    )


def _run_rest(host: Host, frames: list[LiveFrame], how: _Native) -> Finished | _Failed | _Native:
    """Run the rest of the top frame natively, from its instruction or by raising there."""
    frame, callers = frames[-1], frames[:-1]
    exception = how.take()
    why = how.why
    if why is None:
        assert exception is not None, "nothing says why a frame is left to eager"
        why = _left_by(exception, frame)
    known = 0 if exception is None else id(exception.__traceback__)
    place = EagerRun(frame.code, frame.offset)
    continuation = _continuation(host, frame, exception is not None)
    rest = continuation.function(frame.globals, frame.locals, frame.stack, exception)
    frame.locals, frame.stack = {}, []  # the function has them now
    del exception  # what it holds ends when the program lets go of it
    try:
        result = called_by(
            host.stand_ins, callers, leave_to_eager, host.tally, why, rest, (), {}, place
        )
    except BaseException as raised:
        raised = without_driver_frames(raised, known)
        unused = continuation.unused_values(rest)
        if unused is None:
            return _Failed(raised)
        frame.locals, frame.stack = unused  # interrupted before the program's code began
        return _Native(raised)
    return Finished(result)


def _continuation(host: Host, frame: LiveFrame, raises: bool) -> Continuation:
    """The code of the rest of a frame; raises: by raising an exception at its instruction."""
    point = Point(
        frame.offset,
        tuple(frame.locals),
        tuple([slot is NULL for slot in frame.stack]),
        raises,
    )
    key = (id(frame.code), point)
    continuation = host.continuations.get(key)
    if continuation is None:
        continuation = host.continuations[key] = make_continuation(frame.code, point)
    return continuation


hide_frames(__name__)
