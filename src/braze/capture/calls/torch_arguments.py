"""What torch's C code gets for an argument that is no tensor, number or text.

Containers from outside are replaced by their shadows, at any depth. Of an object of another class
C code may ask how long it is, its items, what number or array it is: which it asks for is nowhere
written, and `torch.stack` looks past methods that `torch.tensor` calls. So an object whose class
answers one of these questions in Python breaks the graph, and one that answers none is guarded to
have no such methods.
"""

from __future__ import annotations

import collections
import operator
import types
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.capture.state.provenance import module_of_class
from braze.capture.state.side_effects import EXACT, MAPPINGS
from braze.capture.state.special_methods import has_contents
from braze.compat.python.packages import is_of_package

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext

_PASSED = CONSTANTS | TENSORS  # as they are
_ASKED = (
    *("__iter__", "__next__", "__len__", "__length_hint__", "__getitem__", "__contains__"),
    *("__index__", "__int__", "__float__", "__complex__", "__bool__", "__torch_function__"),
    *("__array__", "__array_interface__", "__array_struct__", "__cuda_array_interface__"),
    *("__dlpack__", "__getattr__", "__getattribute__", "keys"),
)
_OF_PYTHON = (types.FunctionType, property, classmethod, staticmethod)
_OWN = ("braze", "torch")
_HEAP_TYPE = 1 << 9
_LISTS = (list, tuple, collections.deque)


def torch_argument(interpreter: Interpreter, value: Any) -> Any:
    """The value that torch's C code gets for one of the program's; BreakRequested where it would
    run, or read, what nobody sees."""
    cls = type(value)
    if cls in _PASSED:
        return value
    if cls is list or cls is tuple:
        return _with_items(interpreter, cls, interpreter.side_effects.contents(value))
    if cls is slice:
        parts = (value.start, value.stop, value.step)
        return slice(*[torch_argument(interpreter, part) for part in parts])
    if cls in MAPPINGS:
        return _with_values(interpreter, interpreter.side_effects.contents(value))
    if cls not in EXACT:
        _check_class(interpreter.guard_context, value)
    if issubclass(type(value), _LISTS):
        return _with_items(interpreter, cls, interpreter.side_effects.contents(value))
    return interpreter.side_effects.contents(value) if cls in EXACT else value


def _with_items(interpreter: Interpreter, cls: type, value: Any) -> object:
    """A sequence with the items that C code gets; itself where they are those that it has."""
    kind = cls if cls in _LISTS else next(b for b in _LISTS if issubclass(type(value), b))
    held = list(kind.__iter__(value))
    if _PASSED.issuperset(map(type, held)):
        return value
    items = [torch_argument(interpreter, item) for item in held]
    if all(map(operator.is_, items, held)):
        return value
    if issubclass(cls, tuple):
        return cls(items) if hasattr(cls, "n_sequence_fields") else tuple.__new__(cls, items)
    return items if issubclass(cls, list) else collections.deque(items, value.maxlen)


def _with_values(interpreter: Interpreter, value: Any) -> object:
    held = list(dict.items(value))  # hashing a key may run the program, which changes the dict
    entries = [(key, torch_argument(interpreter, item)) for key, item in held]
    same = all(new is old for (_, new), (_, old) in zip(entries, held))
    return value if same else dict(entries)


def _check_class(guard_context: GuardContext, value: object) -> None:
    """Break where the class answers in Python what C code may ask, or C code would read contents
    that are not guarded; guard that it does not."""
    cls: Any = type(value)
    if not cls.__flags__ & _HEAP_TYPE and not has_contents(cls):
        return
    for base in type.__dict__["__mro__"].__get__(cls):
        space = type.__dict__["__dict__"].__get__(base)
        name = next((name for name in _ASKED if isinstance(space.get(name), _OF_PYTHON)), None)
        if name is not None and not _is_own(base):
            detail = f"torch gets a {cls.__qualname__}, which has a {base.__qualname__}.{name}"
            raise BreakRequested("unseen-python", detail)
    if has_contents(cls) and id(value) in guard_context.known and not issubclass(cls, _LISTS):
        raise BreakRequested("unsupported-container", f"a {cls.__qualname__} from outside")
    for name in _ASKED:
        guard_context.lookup(cls, name)


def _is_own(cls: type) -> bool:
    return is_of_package(module_of_class(cls), *_OWN)
