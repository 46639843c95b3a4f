"""`copy.copy` and `copy.deepcopy` of objects from outside: what C code would read of them."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.attribute_load import instance_dict
from braze.capture.state.guard_context import TENSORS, is_identity
from braze.capture.state.side_effects import EXACT
from braze.compat.python.stub_gaps import NEW_OBJECT, NEW_OBJECT_WITH_KEYWORDS
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(object.__reduce_ex__)
def reduce_object(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`copyreg.__newobj__`, the class, its state, guarded as a whole, and its items."""
    owner = args[0]
    guard_context = interpreter.guard_context
    cls = type(owner)
    is_hooked = _is_hooked(interpreter, cls)
    if id(owner) not in guard_context.known and not _asks_python(interpreter, cls):
        return call_natively(interpreter, object.__reduce_ex__, args, kwargs)
    reduce_method = guard_context.lookup(cls, "__reduce__")
    if is_hooked:
        asked = interpreter.attribute(owner, "__reduce__")
        if not _is_bound(asked, owner, "__reduce__"):
            return interpreter.call(asked)
        interpreter.attribute(owner, "__class__")
    elif type(reduce_method) is types.FunctionType:
        return interpreter.call(reduce_method, owner)
    if cls in EXACT and not instance_dict(owner):
        owner = interpreter.side_effects.contents(owner)
        return interpreter.native(object.__reduce_ex__, owner, *args[1:])
    if (
        reduce_method not in _OF_STATE
        or args[1:] < (2,)
        or not _is_made_in_python(interpreter, cls)
    ):
        raise BreakRequested("unseen-callable", f"copying a {cls.__qualname__}")
    return _reduced(interpreter, owner, cls)


@answers(object.__getstate__)
def state_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    (owner,) = args
    if type(owner) in TENSORS:  # a fake tensor's attributes are its own
        raise BreakRequested("unsupported-tensor", "Tensor.__getstate__")
    is_hooked = _is_hooked(interpreter, type(owner))
    if id(owner) not in interpreter.guard_context.known and not is_hooked:
        return call_natively(interpreter, object.__getstate__, args, kwargs)
    return _state(interpreter, owner)


def _whole(function: object) -> Callable[..., object]:
    def read(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if id(args[0]) in interpreter.guard_context.known and not is_identity(args[0]):
            detail = f"reading the whole of a {type(args[0]).__qualname__}"
            raise BreakRequested("unseen-callable", detail)
        return call_natively(interpreter, function, args, kwargs)

    return read


for _function in (object.__reduce__, object.__dir__):
    answers(_function)(_whole(_function))

# The base in C, that may hold items, of classes whose instances are copied by what is seen here.
_LAYOUTS = (list, collections.OrderedDict, dict, tuple, str, bytes, int, float, complex, object)
# Methods in C that reduce to a new instance, its state and its items.
_OF_STATE = (object.__reduce__, collections.OrderedDict.__reduce__)
_ITEMS_OF_TUPLE = vars(tuple)["__getnewargs__"]
_NO_SLOTS = frozenset({"__dict__", "__weakref__"})


# Methods of a class that C code calls to reduce an instance.
_ASKED = (
    *("__getattribute__", "__reduce__", "__getnewargs_ex__", "__getnewargs__", "__getstate__"),
    *("items", "__iter__"),
)


def _asks_python(interpreter: Interpreter, cls: type) -> bool:
    """Whether reducing an instance runs Python code of its class."""
    lookup = interpreter.guard_context.lookup
    return any(type(lookup(cls, name)) is types.FunctionType for name in _ASKED)


def _is_hooked(interpreter: Interpreter, cls: type) -> bool:
    """Whether a class finds its attributes by Python code."""
    return type(interpreter.guard_context.lookup(cls, "__getattribute__")) is types.FunctionType


def _is_bound(value: object, owner: object, name: str) -> bool:
    """Whether a value is `object`'s method in C, or a container's, of an object."""
    if type(value) is not types.BuiltinMethodType or value.__name__ != name:
        return False
    return value.__self__ is owner


def _is_made_in_python(interpreter: Interpreter, cls: type) -> bool:
    """Whether instances hold nothing but attributes, slots, and items of a known base."""
    layout = next(base for base in _LAYOUTS if issubclass(cls, base))
    if interpreter.guard_context.lookup(cls, "__del__") is not ABSENT:
        return False
    try:
        layout.__new__(cls)  # refuses a class whose instances C code lays out in another way
    except TypeError:
        return False
    return True


def _reduced(interpreter: Interpreter, owner: object, cls: type) -> object:
    """What makes a new instance, its arguments, its state and its items."""
    guard_context = interpreter.guard_context
    given: tuple[Any, ...] = ()
    made_by = NEW_OBJECT
    if issubclass(cls, collections.OrderedDict):
        return cls, (), _asked_state(interpreter, owner, cls), *_items(interpreter, owner, cls)
    if guard_context.lookup(cls, "__getnewargs_ex__") is not ABSENT:
        both = interpreter.call(interpreter.attribute(owner, "__getnewargs_ex__"))
        if type(both) is not tuple or [*map(type, both)] != [tuple, dict]:
            raise BreakRequested("unseen-callable", f"copying a {cls.__qualname__}")
        positional, keywords = both
        made_by, given = NEW_OBJECT_WITH_KEYWORDS, (positional, keywords)
    elif guard_context.lookup(cls, "__getnewargs__") is _ITEMS_OF_TUPLE:
        given = ((*tuple.__iter__(interpreter.side_effects.contents(owner)),),)
    elif guard_context.lookup(cls, "__getnewargs__") is not ABSENT:
        given = interpreter.call(interpreter.attribute(owner, "__getnewargs__"))
        if type(given) is not tuple:
            raise BreakRequested("unseen-callable", f"copying a {cls.__qualname__}")
    state = _asked_state(interpreter, owner, cls)
    return made_by, (cls, *given), state, *_items(interpreter, owner, cls)


def _items(interpreter: Interpreter, owner: object, cls: type) -> tuple[object, object]:
    """Iterators over a list's items and over a dict's, None for what the object is not."""
    if issubclass(cls, list):
        return interpreter.call(iter, owner), None
    if issubclass(cls, dict):
        items = interpreter.call(interpreter.attribute(owner, "items"))
        return None, interpreter.call(iter, items)
    return None, None


def _asked_state(interpreter: Interpreter, owner: object, cls: type) -> object:
    """What `__getstate__` gives, by the class's method or `object`'s."""
    state_method = interpreter.guard_context.lookup(cls, "__getstate__")
    if _is_hooked(interpreter, cls):
        asked = interpreter.attribute(owner, "__getstate__")
        if not _is_bound(asked, owner, "__getstate__"):
            return interpreter.call(asked)
    elif type(state_method) is types.FunctionType:
        return interpreter.call(state_method, owner)
    return _state(interpreter, owner)


def _state(
    interpreter: Interpreter, owner: object
) -> tuple[dict[str, object] | None, dict[str, object]] | dict[str, object] | None:
    """The instance dict, beside the slots where there are any; None where both are empty."""
    space = instance_dict(owner)
    slots = _slots(interpreter, owner)
    if space is None and slots is None and not issubclass(type(owner), _LAYOUTS[:-1]):
        raise BreakRequested("unseen-callable", f"copying a {type(owner).__qualname__}")
    held = _held(interpreter, owner, space) or None
    return (held, slots) if slots else held


def _held(
    interpreter: Interpreter, owner: object, space: dict[str, object] | None
) -> dict[str, Any]:
    """What an instance dict holds."""
    guard_context = interpreter.guard_context
    if space is None:
        return {}
    if id(owner) not in guard_context.known:
        return dict(space)
    guard_context.track(space, guard_context.instance_dict_source(owner))
    return dict(interpreter.side_effects.contents(space))


def _slots(interpreter: Interpreter, owner: object) -> dict[str, object] | None:
    """The values of slots that have one; None for a class without slots."""
    names = [
        _mangled(base, name)
        for base in type(owner).__mro__
        for name in _declared(vars(base).get("__slots__", ()))
        if name not in _NO_SLOTS
    ]
    if not names:
        return None
    values = {}
    for name in names:
        try:
            values[name] = interpreter.attribute(owner, name)
        except ProgramRaised as raised:
            if not isinstance(raised.exception, AttributeError):
                raise
    return values


def _declared(slots: Any) -> tuple[str, ...]:
    """The names in a class's `__slots__`."""
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _mangled(cls: type, name: str) -> str:
    """The name of the attribute of a slot: private ones have the class's in them."""
    stripped = cls.__name__.lstrip("_")
    is_private = name.startswith("__") and not name.endswith("__") and stripped
    return f"_{stripped}{name}" if is_private else name
