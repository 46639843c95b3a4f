"""`functools.lru_cache`: what is cached is guarded to be cached still, and each call counts."""

from __future__ import annotations

from typing import Any

from braze.capture.handler_table import CALL_HANDLERS, answer
from braze.capture.overlay import EXACT
from braze.capture.signals import BreakRequested
from braze.capture.world import TENSORS, is_constant, is_identity
from braze.compat.ambient import call_untraced
from braze.compat.bytecode import returns_none
from braze.compat.lru_caches import (
    NOTHING,
    CachedResult,
    CountedCall,
    held_result,
    is_full,
    key_of,
    maximum_size,
)
from braze.compat.packages import is_of_package
from braze.ir.guard import GuardKind
from braze.ir.source import ObjectSource


def call_cached(
    interpreter: Any, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of a cached function. With constants it is really called where nothing is cached,
    which fills its cache no sooner than eager would. With objects it breaks there, so that the
    cache gets their result. With tensors, which are other ones at each call, it is interpreted."""
    handler = CALL_HANDLERS.get(cached)
    if handler is not None:
        return answer(interpreter, cached, handler, args, kwargs)
    given = (*args, *kwargs.values())
    for value in given:
        if type(value) in EXACT and type(value).__hash__ is None:
            interpreter.native(hash, value)  # raises
    if maximum_size(cached) == 0:
        raise BreakRequested("unseen-callable", "a cached function that keeps no results")
    if all(map(_is_fixed, given)):
        return _look_up(interpreter, cached, args, kwargs)
    if all(_is_fixed(value) or _is_found(interpreter, value) for value in given):
        return _look_up_objects(interpreter, cached, args, kwargs)
    if all(_is_fixed(value) or type(value) in TENSORS for value in given):
        _refuse_cached_tensors(interpreter, cached, args, kwargs)
    return _interpret(interpreter, cached, args, kwargs)


def _is_fixed(value: Any) -> bool:
    return is_constant(value) or is_identity(value)


def _is_found(interpreter: Any, value: Any) -> bool:
    """Whether a value is an object from outside that a dict finds by its identity."""
    world = interpreter.world
    if id(value) not in world.known or type(value) in TENSORS or type(value) in EXACT:
        return False
    lookup = world.lookup
    found = lookup(type(value), "__hash__") is object.__hash__
    return found and lookup(type(value), "__eq__") is object.__eq__


def _look_up(interpreter: Any, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    world = interpreter.world
    world.harden_all((*args, *kwargs.values()))
    key = interpreter.native(key_of, cached, args, kwargs)
    counted = interpreter.request.counted_calls
    result = held_result(cached, key)
    if result is NOTHING:
        if any(interpreter.overlay.extent()):
            raise BreakRequested("unseen-callable", "a cached function, after writes")
        if is_full(cached):  # what this call drops may be what the next one asks for
            raise BreakRequested("unseen-callable", "a cached function whose cache is full")
        result = interpreter.native(call_untraced, cached, args, kwargs)
        counted[cached, key] = call = CountedCall(cached, args, kwargs)
        call.made = 1
    if not is_of_package(cached.__module__, "torch"):
        if (cached, key) not in counted:
            counted[cached, key] = CountedCall(cached, args, kwargs)
        interpreter.late_calls.append((counted[cached, key], ()))
    return _held(interpreter, cached, key, result)


def _held(interpreter: Any, cached: Any, key: Any, result: Any) -> Any:
    world = interpreter.world
    world.guard(None, GuardKind.HOLDS, CachedResult(cached, key, result))
    name = getattr(cached, "__qualname__", "cached function")
    return world.enroll(result, ObjectSource(f"{name}()", result))


def _look_up_objects(
    interpreter: Any, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    world = interpreter.world
    key = interpreter.native(key_of, cached, args, kwargs)
    result = held_result(cached, key)
    for value in (*args, *kwargs.values()):
        source = world.source_of(value)
        if not _is_fixed(value) and type(source) is not ObjectSource:
            world.guard(source, GuardKind.ID_MATCH, value)
    if result is NOTHING:
        return _first_result(interpreter, cached, key, args, kwargs)
    interpreter.late_calls.append((CountedCall(cached, args, kwargs), ()))
    return _held(interpreter, cached, key, result)


def _first_result(
    interpreter: Any, cached: Any, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a function gives that has no result for these objects yet. One that does nothing but log
    and gives None (`logger.warning_once`) is called behind the graph, whatever its cache holds
    then. One that gives a constant fills its cache there; others break, so that the cache gets the
    very result."""
    before, said = interpreter.marks(), len(interpreter.late_calls)
    result = _interpret(interpreter, cached, args, kwargs)
    logs = not kwargs and interpreter.late_calls[said:] == [(cached, args)]
    if logs and returns_none(cached.__wrapped__):
        return None
    interpreter.world.guard(None, GuardKind.HOLDS, CachedResult(cached, key, NOTHING))
    if is_constant(result) and not kwargs:
        if logs:
            return result
        if interpreter.marks() == before:
            interpreter.late_calls.append((cached, args))
            return result
    options = interpreter.request.options
    if options is None or not options.fullgraph:
        raise BreakRequested("unseen-callable", "a cached function that has no result yet")
    return result


def _refuse_cached_tensors(
    interpreter: Any, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Break where the cache knows the tensors at hand: it gives what it made of them then."""
    real = [_real_of(interpreter, value) for value in args]
    named = {name: _real_of(interpreter, value) for name, value in kwargs.items()}
    if any(value is None for value in (*real, *named.values())):
        return  # None is rarely an argument; made in the frame it is in no cache
    if held_result(cached, key_of(cached, tuple(real), named)) is not NOTHING:
        raise BreakRequested("unseen-callable", "a cached function, of a tensor that it knows")


def _real_of(interpreter: Any, value: Any) -> Any:
    return interpreter.tracer.real_of(value) if type(value) in TENSORS else value


def _interpret(interpreter: Any, cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function logs is left to the cached function itself, after the graph ran, so that it
    is said as often."""
    interpreter.world.source_of_function(cached.__wrapped__)
    said = len(interpreter.late_calls)
    result = interpreter.call(cached.__wrapped__, *args, **kwargs)
    if len(interpreter.late_calls) > said and not kwargs:
        interpreter.late_calls[said:] = [(cached, args)]
    return result
