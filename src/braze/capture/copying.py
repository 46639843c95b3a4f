"""`copy.copy` and `copy.deepcopy` of objects from outside: what C code would read of them."""

from __future__ import annotations

import collections
import copyreg
import types
from typing import Any

from braze.capture.attributes import instance_dict
from braze.capture.handler_table import answers
from braze.capture.native_calls import call_natively
from braze.capture.overlay import EXACT
from braze.capture.signals import BreakRequested


@answers(object.__reduce_ex__)
def reduce_object(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`copyreg.__newobj__`, the class, and the instance dict, guarded as a whole."""
    owner = args[0]
    cls = type(owner)
    world = interpreter.world
    reduce_method = world.lookup(cls, "__reduce__")
    if isinstance(reduce_method, types.FunctionType):
        return interpreter.call(reduce_method, owner)
    plain = reduce_method is object.__reduce__ and not isinstance(
        owner, (list, dict, tuple, set, frozenset, collections.deque)
    )
    if not plain:
        if cls in EXACT:
            owner = interpreter.overlay.contents(owner)
            return interpreter.native(object.__reduce_ex__, owner, *args[1:])
        if id(owner) in world.known:
            raise BreakRequested("unseen-callable", f"copying a {cls.__qualname__}")
        return call_natively(interpreter, object.__reduce_ex__, args, kwargs)
    state_method = world.lookup(cls, "__getstate__")
    if isinstance(state_method, types.FunctionType):
        state = interpreter.call(state_method, owner)
    else:
        state = _state(interpreter, owner)
    return copyreg.__newobj__, (cls,), state  # type: ignore[attr-defined]


def _state(interpreter: Any, owner: Any) -> Any:
    space = instance_dict(owner)
    if space is None or any(vars(base).get("__slots__") for base in type(owner).__mro__):
        raise BreakRequested("unseen-callable", f"copying a {type(owner).__qualname__}")
    world = interpreter.world
    if id(owner) in world.known:
        world.enroll(space, world.instance_dict_source(owner))
        space = interpreter.overlay.contents(space)
    return dict(space) or None
