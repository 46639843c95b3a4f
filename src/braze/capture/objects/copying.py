"""`copy.copy` and `copy.deepcopy` of objects from outside: what C code would read of them."""

from __future__ import annotations

import collections
import copyreg
import types
from typing import TYPE_CHECKING, Any

from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.attribute_load import instance_dict
from braze.capture.state.guard_context import is_identity
from braze.capture.state.side_effects import EXACT
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(object.__reduce_ex__)
def reduce_object(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`copyreg.__newobj__`, the class, and the instance dict, guarded as a whole."""
    owner = args[0]
    guard_context = interpreter.guard_context
    if id(owner) not in guard_context.known:
        return call_natively(interpreter, object.__reduce_ex__, args, kwargs)
    cls = type(owner)
    reduce_method = guard_context.lookup(cls, "__reduce__")
    if type(reduce_method) is types.FunctionType:
        return interpreter.call(reduce_method, owner)
    plain = reduce_method is object.__reduce__ and not issubclass(type(owner), _OF_ITEMS)
    if cls in EXACT and not instance_dict(owner):
        owner = interpreter.side_effects.contents(owner)
        return interpreter.native(object.__reduce_ex__, owner, *args[1:])
    if not plain or args[1:] < (2,):
        raise BreakRequested("unseen-callable", f"copying a {cls.__qualname__}")
    return _reduced(interpreter, owner, cls)


@answers(object.__getstate__)
def state_of(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (owner,) = args
    if id(owner) not in interpreter.guard_context.known:
        return call_natively(interpreter, object.__getstate__, args, kwargs)
    return _state(interpreter, owner)


def _whole(function: Any) -> Any:
    def read(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if id(args[0]) in interpreter.guard_context.known and not is_identity(args[0]):
            detail = f"reading the whole of a {type(args[0]).__qualname__}"
            raise BreakRequested("unseen-callable", detail)
        return call_natively(interpreter, function, args, kwargs)

    return read


for _function in (object.__reduce__, object.__dir__):
    answers(_function)(_whole(_function))

_OF_ITEMS = (list, dict, tuple, set, frozenset, collections.deque)


def _reduced(interpreter: Interpreter, owner: Any, cls: type) -> Any:
    """What makes a new instance, its arguments, and its state, for an instance from outside."""
    guard_context = interpreter.guard_context
    given: tuple[Any, ...] = ()
    made_by: Any = copyreg.__newobj__  # type: ignore[attr-defined]
    if guard_context.lookup(cls, "__getnewargs_ex__") is not ABSENT:
        positional, keywords = interpreter.call(interpreter.attribute(owner, "__getnewargs_ex__"))
        made_by, given = copyreg.__newobj_ex__, (positional, keywords)  # type: ignore[attr-defined]
    elif guard_context.lookup(cls, "__getnewargs__") is not ABSENT:
        given = interpreter.call(interpreter.attribute(owner, "__getnewargs__"))
    state_method = guard_context.lookup(cls, "__getstate__")
    if type(state_method) is types.FunctionType:
        state = interpreter.call(state_method, owner)
    else:
        state = _state(interpreter, owner)
    return made_by, (cls, *given), state, None, None


def _state(interpreter: Interpreter, owner: Any) -> Any:
    space = instance_dict(owner)
    if space is None or any(vars(base).get("__slots__") for base in type(owner).__mro__):
        raise BreakRequested("unseen-callable", f"copying a {type(owner).__qualname__}")
    guard_context = interpreter.guard_context
    guard_context.track(space, guard_context.instance_dict_source(owner))
    return dict(interpreter.side_effects.contents(space)) or None
