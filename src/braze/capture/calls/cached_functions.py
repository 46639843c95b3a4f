"""Cached functions (`functools.lru_cache`): what is cached is guarded to be cached still, what is
not is interpreted and put into the cache behind the graph, and each call counts.

Capture itself fills no cache of the program's: a capture may be refused, and then its calls were
none.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.callbacks import Callback
from braze.capture.calls.handler_registry import CALL_HANDLERS, answer
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import NUMBERS, TENSORS, is_constant
from braze.capture.state.hidden_members import is_single_key
from braze.capture.state.side_effects import EXACT
from braze.compat.python.bytecode import returns_none
from braze.compat.python.lru_caches import (
    LRU_CACHE,
    NOTHING,
    CachedResult,
    CountedCall,
    FillableResult,
    FilledCall,
    RepeatedCall,
    Room,
    Uncached,
    cached_function,
    has_room,
    held_result,
    key_of,
    maximum_size,
)
from braze.compat.python.packages import is_of_package
from braze.compat.torch.ambient_state import call_untraced
from braze.frozen import frozen
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ObjectSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def call_cached(
    interpreter: Interpreter, cached: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A call of a cached function: what its cache holds, or what its body gives."""
    handler = CALL_HANDLERS.get(cached)
    if handler is not None:
        return answer(interpreter, cached, handler, args, kwargs)
    given = (*args, *kwargs.values())
    if is_of_package(cached.__module__, "torch") and all(map(_is_fixed, given)):
        return _call_torchs(interpreter, cached, args, kwargs)
    if type(cached_function(cached)) is Callback:  # made in the frame: the cache is the frame's own
        return call_natively(interpreter, cached, args, kwargs)
    if maximum_size(cached) == 0:
        return _first_result(interpreter, _CachedCall(cached, args, kwargs, None, None, True))
    for value in given:
        if type(value) in EXACT and type(value).__hash__ is None:
            interpreter.native(hash, value)  # raises
    call = _looked_at(interpreter, cached, args, kwargs)
    known = interpreter.cached_results.get((cached, call.key), NOTHING)
    if known is not NOTHING:
        if not _fits(interpreter, cached):
            _check_room(interpreter, cached)
        _count(interpreter, call)
        return known
    held = NOTHING if call.is_fresh else held_result(cached, call.key)
    if held is NOTHING:
        return _first_result(interpreter, call)
    if call.tensor is not None:
        raise BreakRequested("unseen-callable", "a cached function, of a tensor that it knows")
    _check_room(interpreter, cached)
    _guard_arguments(interpreter, call)
    _count(interpreter, call)
    return _held(interpreter, cached, call.key, held)


# --- what a call is looked up by -------------------------------------------------------------


@final
@frozen(eq=False)
class _CachedCall:
    """A call of a cached function.

    key: under which the cache has its result, made of real tensors.
    tensor: where among the arguments one is a tensor from outside; None: none is.
    is_fresh: an argument was made in the frame, and is the key of no earlier call.
    """

    cached: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: Any
    tensor: int | str | None
    is_fresh: bool

    def given(self) -> tuple[Any, ...]:
        """All arguments."""
        return (*self.args, *self.kwargs.values())


@final
class _Made:
    """A tensor made in the frame, as a part of a key."""

    def __init__(self, fake: object) -> None:
        self._fake = fake

    def __hash__(self) -> int:
        return id(self._fake)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Made and other._fake is self._fake


def _looked_at(
    interpreter: Interpreter, cached: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> _CachedCall:
    """The call with its key. Breaks where an argument is hashed or compared by code of the
    program's, or is a size that is symbolic."""
    args = tuple([_without_symbol(interpreter, value) for value in args])
    kwargs = {name: _without_symbol(interpreter, value) for name, value in kwargs.items()}
    tensor: int | str | None = None
    is_fresh = False
    parts: dict[int | str, Any] = {}
    given: tuple[tuple[int | str, Any], ...] = (*enumerate(args), *kwargs.items())
    for place, value in given:
        parts[place] = value
        if type(value) in TENSORS:
            real = interpreter.tracer.real_of(value)
            parts[place] = _Made(value) if real is None else real
            is_fresh = is_fresh or real is None
            if real is not None and tensor is not None:
                raise BreakRequested("unseen-callable", "a cached function of two tensors")
            tensor = place if real is not None else tensor
            continue
        for part in _items(interpreter, value):
            if not _is_fixed(part) and not _is_hashed_by_identity(interpreter, part):
                name = type(part).__qualname__
                raise BreakRequested("unseen-callable", f"a cached function of a {name}")
            is_fresh = is_fresh or not (
                _is_fixed(part) or id(part) in interpreter.guard_context.known
            )
    by_place = tuple([parts[place] for place in range(len(args))])
    by_name = {name: parts[name] for name in kwargs}
    key = interpreter.native(key_of, cached, by_place, by_name)
    return _CachedCall(cached, args, kwargs, key, tensor, is_fresh)


def _without_symbol(interpreter: Interpreter, value: object) -> object:
    """An argument; a size or number that changes has the results of each of its values."""
    kind = NUMBERS.get(type(value))
    if kind is None:
        return value
    if not _is_whole(interpreter):
        raise BreakRequested("unseen-callable", "a cached function of a number that changes")
    return interpreter.native(kind, value)


def _items(interpreter: Interpreter, value: object) -> Iterator[object]:
    """What a key is made of: the items of tuples, at any depth; those from outside are read."""
    if type(value) is tuple and not is_constant(value):
        for item in interpreter.side_effects.contents(value):
            yield from _items(interpreter, item)
    else:
        yield value


def _is_fixed(value: object) -> bool:
    return is_single_key(value)


def _is_hashed_by_identity(interpreter: Interpreter, value: object) -> bool:
    if type(value) in TENSORS or type(value) in EXACT:
        return False
    lookup = interpreter.guard_context.lookup
    found = lookup(type(value), "__hash__") is object.__hash__
    return found and lookup(type(value), "__eq__") is object.__eq__


def _is_whole(interpreter: Interpreter) -> bool:
    """Whether no break is allowed."""
    options = interpreter.request.options
    return options is not None and bool(options.fullgraph)


# --- what is cached --------------------------------------------------------------------------


def _guard_arguments(interpreter: Interpreter, call: _CachedCall) -> None:
    guard_context = interpreter.guard_context
    guard_context.guard_identities(call.given())
    for value in call.given():
        for part in _items(interpreter, value):
            source = guard_context.source_of(part)
            if _is_fixed(part) or source is None or type(source) is ObjectSource:
                continue
            if type(part) not in TENSORS:
                guard_context.guard(source, GuardKind.ID_MATCH, part)


def _fits(interpreter: Interpreter, cached: object) -> bool:
    """Whether the cache holds all that the frame asked of it, so that what the frame put there is
    dropped by nothing: what was used last stays longest."""
    size = maximum_size(cached)
    called = [c.cached if type(c) in _LATE else c for c, _ in interpreter.deferred_calls]
    return size is None or size >= sum(each is cached for each in called)


_LATE = (CountedCall, FilledCall, RepeatedCall)


def _check_room(interpreter: Interpreter, cached: object) -> None:
    """What the frame put into the cache must have dropped nothing that is looked up now."""
    count = sum(filled is cached for filled, _ in interpreter.cached_results)
    if not count or maximum_size(cached) is None:
        return
    if not has_room(cached, count):
        raise BreakRequested("unseen-callable", "a cached function whose cache is full")
    interpreter.guard_context.guard(None, GuardKind.HOLDS, Room(cached, count))


def _held(interpreter: Interpreter, cached: object, key: object, result: object) -> object:
    guard_context = interpreter.guard_context
    guard_context.guard(None, GuardKind.HOLDS, CachedResult(cached, key, result))
    name = getattr(cached, "__qualname__", "cached function")
    return guard_context.track(result, ObjectSource(f"{name}()", result))


def _count(interpreter: Interpreter, call: _CachedCall) -> None:
    repeated = RepeatedCall(call.cached, tuple(call.kwargs))
    interpreter.deferred_calls.append((repeated, call.given()))


# --- what is not -----------------------------------------------------------------------------


def _first_result(interpreter: Interpreter, call: _CachedCall) -> object:
    """What the function's body gives, which goes into the cache after the graph ran."""
    cached, function = call.cached, cached_function(call.cached)
    if type(function) is not types.FunctionType:
        return _really_called(interpreter, call, "a cached function that has no result yet")
    before, said = _written(interpreter), len(interpreter.deferred_calls)
    interpreter.guard_context.source_of_function(function)
    result, problem = None, None
    try:
        result = interpreter.call(function, *call.args, **call.kwargs)
    except ProgramRaised as raised:
        problem = raised
    except BreakRequested as unseen:
        if _written(interpreter) != before or not _is_whole(interpreter):
            raise
        interpreter.over = False
        return _really_called(interpreter, call, unseen.detail)
    only_says = len(interpreter.deferred_calls) > said and _written(interpreter) == before
    if problem is None and only_says and not call.kwargs and returns_none(function):
        # The cached function itself says it or does not, whatever its cache holds by then.
        interpreter.deferred_calls[said:] = [(cached, call.args)]
        return None
    only_computes = len(interpreter.deferred_calls) == said and _written(interpreter) == before
    if problem is None and only_computes and is_constant(result):
        _guard_fillable(interpreter, call, result)
    else:
        _guard_missing(interpreter, call)
    filled = FilledCall(cached, function, tuple(call.kwargs), problem is not None)
    interpreter.deferred_calls.append((filled, (result, *call.given())))
    if problem is not None:
        raise problem
    if maximum_size(cached) != 0:
        interpreter.cached_results[cached, call.key] = result
    return result


def _written(interpreter: Interpreter) -> tuple[object, ...]:
    """What changes where the program does more than to compute, and to say something."""
    marks = interpreter.marks()
    draws = len(interpreter.draws)
    return marks[0], *marks[2:], draws, interpreter.tracer.recorder.progress


def _guard_fillable(interpreter: Interpreter, call: _CachedCall, result: object) -> None:
    """Guard that the cache has no other result for the call than a constant that its body only
    computed: the graph that fills the cache serves the calls after it, too."""
    if call.is_fresh or call.tensor is not None:
        _guard_missing(interpreter, call)
        return
    _guard_arguments(interpreter, call)
    question = FillableResult(call.cached, call.key, result)
    interpreter.guard_context.guard(None, GuardKind.HOLDS, question)


def _guard_missing(interpreter: Interpreter, call: _CachedCall) -> None:
    """Guard that the cache has no result for the call. Of several tensors one is asked."""
    if call.is_fresh:
        return
    guard_context = interpreter.guard_context
    _guard_arguments(interpreter, call)
    if call.tensor is None:
        guard_context.guard(None, GuardKind.HOLDS, CachedResult(call.cached, call.key, NOTHING))
        return
    place = call.tensor
    given = call.args[place] if isinstance(place, int) else call.kwargs[place]
    source = guard_context.source_of(given)
    asked = Uncached(call.cached, call.args, call.kwargs, call.tensor)
    guard_context.guard(source, GuardKind.UNCACHED, asked)


def _really_called(interpreter: Interpreter, call: _CachedCall, why: str) -> object:
    """What a body that cannot be interpreted gives: the call breaks. Where no break is allowed, a
    call with constants is made once, while the frame is captured."""
    function = cached_function(call.cached)
    opaque = isinstance(function, _SEVERAL) or not all(map(_is_fixed, call.given()))
    if opaque or not _is_whole(interpreter):
        raise BreakRequested("unseen-callable", why)
    try:
        return _look_up(interpreter, call.cached, call.args, call.kwargs)
    except ProgramRaised as raised:  # it would run again, eagerly
        problem = type(raised.exception).__name__
    raise BreakRequested("unseen-callable", f"a cached function that raises {problem}")


# What calls a function that may be called otherwise, too.
_SEVERAL = (functools.partial, types.MethodType, LRU_CACHE)


def _call_torchs(
    interpreter: Interpreter, cached: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Functions of torch's that are cached do nothing but find something out: nobody sees when
    they are called, or how often. What the frame has written already they might read, so that one
    without a result is interpreted behind a write."""
    if any(interpreter.side_effects.extent()) and maximum_size(cached) != 0:
        call = _looked_at(interpreter, cached, args, kwargs)
        known = interpreter.cached_results.get((cached, call.key), NOTHING)
        if known is not NOTHING:
            return known
        if held_result(cached, call.key) is NOTHING:
            return _first_result(interpreter, call)
    return _look_up(interpreter, cached, args, kwargs, counts=False)


def _look_up(
    interpreter: Interpreter,
    cached: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    counts: bool = True,
) -> object:
    """The result for constants. Where there is none, the function is called now."""
    guard_context = interpreter.guard_context
    guard_context.guard_identities((*args, *kwargs.values()))
    key = interpreter.native(key_of, cached, args, kwargs)
    counted = interpreter.request.counted_calls
    result = held_result(cached, key) if maximum_size(cached) != 0 else NOTHING
    if result is NOTHING:
        if any(interpreter.side_effects.extent()):
            raise BreakRequested("unseen-callable", "a cached function, after writes")
        if not has_room(cached, 1):  # what this call drops may be what the next one asks for
            raise BreakRequested("unseen-callable", "a cached function whose cache is full")
        result = interpreter.native(call_untraced, cached, args, kwargs)
        counted[cached, key] = call = CountedCall(cached, args, kwargs)
        call.made = 1
    if counts:
        if (cached, key) not in counted:
            counted[cached, key] = CountedCall(cached, args, kwargs)
        interpreter.deferred_calls.append((counted[cached, key], ()))
    return _held(interpreter, cached, key, result)
