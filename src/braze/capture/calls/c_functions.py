"""Calls of C code that is not torch's: allowed by type or module, on values that it may see.

A shadow takes the place of a container from outside. Callbacks are wrapped so that they are
interpreted. While C code runs on objects whose classes have Python methods, a tripwire stops at
the first Python frame: that call would be unseen.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

from braze.capture.arrays.numpy_functions import call_on_numbers, is_numpys_function
from braze.capture.calls.c_allowlist import (
    CALLING,
    CHANGING,
    CHANGING_METHODS,
    ITERATING,
    ITERATING_METHODS,
    KEEPING,
    LOOKING_FOR_CLASSES,
    OF_ANY_OBJECT,
    OVER_ITEMS,
    READING_METHODS,
    SAFE_CLASSES,
    SAFE_MODULES,
    STATE_READERS,
    identifier,
    is_pure,
    reads_process,
)
from braze.capture.calls.call_cache import Way
from braze.capture.calls.callbacks import TESTING, Callback, with_truths_asked
from braze.capture.calls.handler_registry import CALL_HANDLERS, answer
from braze.capture.calls.kept_hashes import ask_items
from braze.capture.calls.torch_allowlist import is_binding_record, is_leaf_builtin
from braze.capture.calls.torch_calls import (
    calls_the_program,
    check_protocols,
    leaf_call,
    unnoted_call,
)
from braze.capture.calls.torch_queries import ask_torch, is_question
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.objects.iteration import FittedIterator, ask_length, native_iterable, set_members
from braze.capture.objects.mapping_proxies import entries_of
from braze.capture.state.class_namespaces import guard_class_dicts
from braze.capture.state.guard_context import (
    CONSTANTS,
    MAYBE_BOUND,
    NUMBERS,
    TENSORS,
    is_constant,
    is_identity,
    raw_lookup,
)
from braze.capture.state.hidden_members import ALIASES, asks_members, is_key
from braze.capture.state.lazy_strings import ShownText
from braze.capture.state.opaque_objects import check_opaque, only_keeps
from braze.capture.state.reentrant_calls import ReentrantCall, redirect, restore
from braze.capture.state.side_effects import EXACT, SETS, check_order
from braze.capture.state.special_methods import (
    MAKES_TEXT,
    check_context,
    check_text,
    guard_special_methods,
    has_contents,
    runs_python,
    special_functions,
)
from braze.capture.state.string_escape import settle_read
from braze.class_facts import fact_of_class
from braze.compat.python.code_patching import target_of
from braze.compat.python.packages import is_of_package
from braze.compat.torch.state_setters import STATE_SETTERS
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext


def call_builtin(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Call a builtin function, method or slot."""
    return way_to_call(function)(interpreter, function, args, kwargs)


def way_to_call(function: Any) -> Way:
    """How a builtin function, method or slot is called."""
    handler = _handler_of(function)
    if handler is not None:
        return partial(_answer, handler)
    if is_bound(function) and not is_binding_record(function.__self__):
        return _call_bound
    if function in STATE_SETTERS:
        return _leave_to_program
    if is_leaf_builtin(function):
        return ask_torch if is_question(function) else leaf_call
    holder = getattr(function, "__objclass__", None)
    return _call_function if holder is None else partial(_call_method, holder)


def _leave_to_program(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A function of torch's that sets state: a graph would run under the state outside."""
    raise BreakRequested("global-state", describe(function))


def is_bound(function: object) -> bool:
    """Whether a builtin method is bound to a value."""
    owner = getattr(function, "__self__", None)
    is_function = issubclass(type(owner), types.ModuleType)
    return owner is not None and (not is_function or type(function) is types.MethodWrapperType)


def _answer(
    handler: Any,
    interpreter: Interpreter,
    function: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    return answer(interpreter, function, handler, args, kwargs)


def _call_function(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A builtin function of a module."""
    if not is_pure(function):
        raise BreakRequested("unseen-callable", describe(function))
    if getattr(function, "__module__", None) in STATE_READERS:
        _check_all_fresh(interpreter, function, (*args, *kwargs.values()))
    return call_natively(interpreter, function, args, kwargs)


def _check_all_fresh(
    interpreter: Interpreter, function: object, values: tuple[object, ...]
) -> None:
    """Break where C code would read attributes of objects from outside."""
    if interpreter.side_effects.has_written_dicts():
        raise BreakRequested("unseen-callable", f"{describe(function)} after writes")
    objects: list[Any] = []
    _note_classes(values, set(), set(), objects)
    for value in objects:
        if id(value) in interpreter.guard_context.known:
            detail = f"{describe(function)} of a {type(value).__qualname__} from outside"
            raise BreakRequested("unseen-callable", detail)


def _handler_of(function: object) -> object:
    try:
        return CALL_HANDLERS.get(function)
    except TypeError:
        return None


def _call_bound(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A builtin method bound to a value: as the class's method with the value first."""
    owner = function.__self__
    if issubclass(type(owner), type):
        method = _answered_class_method(function, owner)
        if method is not None:
            return answer(interpreter, method, CALL_HANDLERS[method], (owner, *args), kwargs)
        if is_leaf_builtin(function):
            return leaf_call(interpreter, function, args, kwargs)
        if function.__name__ == "__new__":
            return _call_new(interpreter, function, owner, args, kwargs)
        if reads_process(owner, function.__name__):
            raise BreakRequested("unseen-callable", describe(function))
        if owner.__module__ in SAFE_MODULES or function.__name__ in _CLASS_QUERIES:
            return call_natively(interpreter, function, args, kwargs)
        return _call_of_class(interpreter, function, owner, args, kwargs)
    if id(function) in interpreter.guard_context.known:
        owner = interpreter.guard_context.read_attribute_value(function, "__self__", owner)
        interpreter.guard_context.read_attribute_value(function, "__name__", function.__name__)
    descriptor = _descriptor_of(function, interpreter.guard_context.type_of(owner))
    if descriptor is None:
        raise BreakRequested("unseen-callable", describe(function))
    return call_builtin(interpreter, descriptor, (owner, *args), kwargs)


def _descriptor_of(function: Any, cls: type) -> object:
    """The class's descriptor behind a bound builtin method, past overriding Python methods."""
    name = function.__name__
    owner = getattr(function, "__objclass__", None)
    for base in cls.__mro__ if owner is None else (owner,):
        found = vars(base).get(name)
        if type(found) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            return found
    return None


def _answered_class_method(function: Any, owner: type) -> object:
    """The descriptor of a class method in C that capture answers itself, or None."""
    name = function.__name__
    found: Any = next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)
    is_it = type(found) is types.ClassMethodDescriptorType and found in CALL_HANDLERS
    return found if is_it and found.__get__(None, owner) == function else None


def _call_of_class(
    interpreter: Interpreter,
    function: Any,
    owner: type,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A builtin method bound to a class: a class method of it or of a base, or its metaclass's."""
    found: Any
    metaclass: Any = type(owner)
    for base in metaclass.__mro__:
        found = vars(base).get(function.__name__)
        if type(found) in _OF_INSTANCES and found.__get__(owner) == function:
            return call_builtin(interpreter, found, (owner, *args), kwargs)
    for base in owner.__mro__:
        found = vars(base).get(function.__name__)
        is_it = type(found) is types.ClassMethodDescriptorType
        if is_it and found.__get__(None, owner) == function and base.__module__ in SAFE_MODULES:
            return call_natively(interpreter, function, args, kwargs)
    raise BreakRequested("unseen-callable", describe(function))


_OF_INSTANCES = (types.WrapperDescriptorType, types.MethodDescriptorType)
_CLASS_QUERIES = frozenset({"__subclasscheck__", "__instancecheck__"})


def _call_new(
    interpreter: Interpreter,
    function: Any,
    owner: type,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """`tuple.__new__(cls, items)` and the like."""
    if owner.__module__ not in SAFE_MODULES:
        raise BreakRequested("unseen-callable", describe(function))
    cls, *rest = args
    if owner in KEEPING:
        return interpreter.native(function, *args, **kwargs)
    fit = iterable_argument if owner.__module__ == "itertools" else native_argument
    native, keywords = _fitted(interpreter, owner, fit, rest, kwargs)
    return call_seen(interpreter, function, (cls, *native), keywords)


def _call_method(
    holder: type,
    interpreter: Interpreter,
    function: Any,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A method descriptor of a builtin class on its first argument."""
    if not args:
        return interpreter.native(function, *args, **kwargs)
    given, *rest = args
    owner = given = entries_of(interpreter, given) if holder is types.MappingProxyType else given
    if holder in KEEPING and id(owner) not in interpreter.guard_context.known:
        if function.__name__ == "__setstate__":  # reads items that nothing guards
            raise BreakRequested("unseen-callable", describe(function))
        return interpreter.native(partial(_with_tripwire, function, args, kwargs))
    if is_numpys_function(holder) and function.__name__ == "__call__":
        return call_on_numbers(interpreter, owner, tuple(rest), kwargs)
    is_safe = holder.__module__ in SAFE_MODULES or holder in SAFE_CLASSES
    if not is_safe or reads_process(holder, function.__name__):
        raise BreakRequested("unseen-callable", describe(function))
    guard_context = interpreter.guard_context
    if holder is dict and function.__name__ in _CHANGING_A_DICT:
        check_order(owner)
    if id(owner) in guard_context.known and not is_identity(owner):
        if issubclass(type(owner), tuple(EXACT)):
            changing = function.__name__ in CHANGING_METHODS
            if type(owner) not in EXACT and not (changing or function.__name__ in READING_METHODS):
                raise BreakRequested("unseen-callable", describe(function))
            side_effects = interpreter.side_effects
            derived = holder is collections.deque is not type(owner)
            if derived and function.__name__ in _OF_SAME_CLASS:
                raise BreakRequested("unsupported-container", f"a {type(owner).__qualname__}")
            if changing and not kwargs and side_effects.add(owner, function, rest):
                return None
            owner = side_effects.changed(owner) if changing else side_effects.contents(owner)
        elif holder is not object or function.__name__ not in OF_ANY_OBJECT:
            raise BreakRequested("unseen-callable", describe(function))
    if holder in _HOLDERS and function.__name__ in _STORING_METHODS:
        return call_seen(interpreter, function, (owner, *rest), kwargs)
    called = holder if function.__name__ == "__init__" else function
    takes_itself = any(value is given for value in rest) and issubclass(type(owner), _EXACT)
    others = [None if value is given else value for value in rest] if takes_itself else rest
    native, keywords = _fitted(interpreter, called, _fitting(function), others, kwargs)
    if takes_itself:
        # C code knows when a container takes its own items; an iterator of them would not end.
        itself = _own_items(interpreter, function, given, owner)
        native = tuple([itself if value is given else n for value, n in zip(rest, native)])
    return call_seen(interpreter, function, (owner, *native), keywords)


def _own_items(interpreter: Interpreter, function: Any, given: Any, owner: object) -> Any:
    """What the method of a container gets for the container itself: lists and deques ask a class
    of the program's for its `__iter__`."""
    asks = function.__name__ in _GROWING and issubclass(type(given), (list, collections.deque))
    if asks and type(type(given).__iter__) in _FUNCTIONS:
        return [*iterable_argument(interpreter, given)]
    return owner


# Methods by which a container takes the items of another one.
_GROWING = frozenset({"extend", "extendleft", "__iadd__"})
# Methods of a deque that give one of its class.
_OF_SAME_CLASS = frozenset({"__add__", "__mul__", "__rmul__", "copy", "__copy__"})
_CHANGING_A_DICT = frozenset({"__init__", "__ior__", "clear", "popitem"})
# Methods that keep their argument itself: it must not be replaced by a copy.
_STORING_METHODS = frozenset(
    {"append", "insert", "add", "setdefault", "__setitem__", "remove", "index", "count", "get"}
    | {"pop", "__contains__", "discard", "appendleft", "move_to_end", "__getitem__"}
)
_EXACT = tuple(EXACT)
_HOLDERS = frozenset({*EXACT})


def call_natively(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Really call C code; containers from outside and callbacks are made fit for it."""
    if function in KEEPING:
        return interpreter.native(function, *args, **kwargs)
    if identifier(function) in OVER_ITEMS and len(args) > OVER_ITEMS[identifier(function)]:
        args = _with_items(interpreter, args, OVER_ITEMS[identifier(function)])
    native, keywords = _fitted(interpreter, function, _fitting(function), args, kwargs)
    if identifier(function) in CHANGING and args:
        exact = type(args[0]) in EXACT
        make = interpreter.side_effects.changed if exact else partial(native_argument, interpreter)
        native = (make(args[0]), *native[1:])
    try:
        return call_seen(interpreter, function, native, keywords)
    except ProgramRaised as raised:
        kinds = map(type, (*native, *keywords.values()))
        if not isinstance(raised.exception, TypeError) or NUMBERS.keys().isdisjoint(kinds):
            raise
    known = tuple(map(interpreter.at_hand, native))
    named = {name: interpreter.at_hand(value) for name, value in keywords.items()}
    return call_seen(interpreter, function, known, named)


def _with_items(
    interpreter: Interpreter, args: tuple[object, ...], place: int
) -> tuple[object, ...]:
    """Arguments of which one holds what C code iterates over, too; one that is long, or without
    end, is taken item by item."""
    items = native_iterable(interpreter, args[place])
    fitted = FittedIterator(partial(iterable_argument, interpreter), iter(items))
    return (*args[:place], fitted, *args[place + 1 :])


_Fit: TypeAlias = Callable[[Any, Any], Any]


def _fitted(
    interpreter: Interpreter,
    called: object,
    fit: _Fit,
    args: Iterable[object],
    kwargs: dict[str, object],
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Arguments made fit for C code, those wrapped that it calls."""
    name = identifier(called)
    positions = CALLING.get(name)
    if called in TESTING:
        args = with_truths_asked(interpreter, called, tuple(args), iterable_argument)
    if name in LOOKING_FOR_CLASSES and any(issubclass(type(value), type) for value in args):
        positions = None
    if positions is None:
        native = tuple([fit(interpreter, value) for value in args])
        return native, {name: fit(interpreter, value) for name, value in kwargs.items()}
    native = tuple(
        [
            _called_argument(interpreter, value, fit)
            if index in positions
            else fit(interpreter, value)
            for index, value in enumerate(args)
        ]
    )
    return native, {n: _called_argument(interpreter, value, fit) for n, value in kwargs.items()}


def _called_argument(interpreter: Interpreter, value: object, fit: _Fit) -> object:
    """An argument that C code may call."""
    if (
        interpreter.guard_context.lookup(type(value), "__call__") is ABSENT
        or type(value) is Callback
    ):
        return fit(interpreter, value)
    return Callback(interpreter, value)


def _fitting(function: object) -> Any:
    """How arguments are made fit: what iterates its arguments gets real iterables."""
    name = getattr(function, "__name__", None)
    if function in _STORING:
        return _stored_argument
    if name in ITERATING_METHODS:
        if getattr(function, "__objclass__", None) in SETS and name != "isdisjoint":
            return _members_argument
        if name == "extend" and getattr(function, "__objclass__", None) in _COUNTING:
            return _counted_argument
        return iterable_argument if name in _ORDERED else _keys_argument
    if function in ITERATING:
        return iterable_argument
    module = getattr(function, "__module__", None)
    return iterable_argument if module == "itertools" else native_argument


def _counted_argument(interpreter: Interpreter, value: object) -> object:
    """Items for C code that asks first how many there may be."""
    made = iterable_argument(interpreter, value)
    if made is not value:
        ask_length(interpreter, value)
    return made


_COUNTING = frozenset({list, bytearray})
# What iterates over its arguments and looks none of the items up.
_ORDERED = frozenset({"extend", "extendleft", "join"})


def _keys_argument(interpreter: Interpreter, value: object) -> object:
    """Items that are looked up: which objects they are counts."""
    made = iterable_argument(interpreter, value)
    if type(made) in EXACT:
        interpreter.guard_context.guard_identities(made)
    return made


def _members_argument(interpreter: Interpreter, value: object) -> object:
    """The same for a set's C code, which reads other sets past their `__iter__`."""
    if issubclass(type(value), SETS):
        value = interpreter.side_effects.contents(value)
        interpreter.guard_context.guard_identities(set_members(value))
        return value
    return _keys_argument(interpreter, value)


def native_argument(interpreter: Interpreter, value: Any) -> object:
    """A value as native code may have it."""
    cls = type(value)
    if cls is ShownText:
        return value.settle()
    if cls in CONSTANTS or cls in TENSORS:
        return value
    if cls in EXACT or cls is slice:
        return interpreter.side_effects.native(value)
    if id(value) in interpreter.guard_context.known:
        if hasattr(cls, "__next__") or has_contents(cls):
            raise BreakRequested("unsupported-container", f"a {cls.__qualname__} from outside")
        if issubclass(cls, tuple):  # its items are guarded
            if not cls.__dictoffset__:
                return interpreter.side_effects.native(value)
            interpreter.guard_context.guard_identity(
                value
            )  # no copy of its items has its attributes
    return value


def _stored_argument(interpreter: Interpreter, value: object) -> object:
    """The same, for C code that keeps what it is given."""
    return value if issubclass(type(value), tuple) else native_argument(interpreter, value)


def iterable_argument(interpreter: Interpreter, value: Any) -> Any:
    """The same, for native code that iterates its arguments."""
    cls = type(value)
    if cls is ShownText:
        return value.settle()
    if cls in EXACT:
        return interpreter.side_effects.contents(value)
    if cls in CONSTANTS or cls in TENSORS or cls is InlinedGenerator or cls is Callback:
        return value
    if interpreter.guard_context.lookup(cls, "__iter__") is not ABSENT:
        return native_iterable(interpreter, value)
    return native_argument(interpreter, value)


def call_seen(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """Call C code on values that it may have; what it calls in the program is interpreted, or
    breaks."""
    has_tensors = any(type(arg) in TENSORS for arg in args)
    classes: set[type] = set()
    if function in _ONLY_STORES:
        values = args[1:-1]
    else:
        values = args[1:] if function in _LEAVES_ITEMS else (*args, *kwargs.values())
    objects: list[Any] | None = [] if function in MAKES_TEXT else None
    interpreter.idle.note_walk(values)
    guard_context = interpreter.guard_context
    is_read = function not in _STORING and not only_keeps(function)
    if is_read and guard_context.has_subclasses:
        check_protocols(guard_context, values)
    guard = partial(_guard_contents, interpreter) if is_read else None
    _note_classes(values, classes, set(), objects, guard)
    if objects:
        check_text(guard_context, objects)
    if classes:
        check_context(classes)
    if classes and args and function in _ASKING_KEYS.get(type(args[0]), ()):
        asked = not (
            classes <= guard_context.found_by_identity
            or all(_is_found_by_identity(guard_context, cls) for cls in classes)
        )
    else:
        asked = bool(classes) or any(type(value) in _FUNCTIONS for value in values)
    if not asked:
        if has_tensors:
            result = unnoted_call(interpreter, function, args, kwargs)
        else:
            result = interpreter.native(function, *args, **kwargs)
        return interpreter.side_effects.original(result)
    if guard_context.opaque and not only_keeps(function):
        check_opaque(interpreter, function, args, kwargs)
    if guard_context.class_dicts:
        guard_class_dicts(guard_context, function, args)
    if interpreter.shows_text:
        interpreter.native(partial(settle_read, function, args, kwargs))
    for cls in classes:
        guard_special_methods(guard_context, cls)
    functions = [f for cls in classes for f in _special_functions(guard_context, cls)]
    reentrant_calls: list[ReentrantCall] = []
    try:
        redirect(interpreter, functions, reentrant_calls)
        _ask_keys(interpreter, function, args)
        if has_tensors:
            result = unnoted_call(interpreter, function, args, kwargs, _with_tripwire)
        else:
            result = interpreter.native(partial(_with_tripwire, function, args, kwargs))
    finally:
        try:
            restore(reentrant_calls)
        finally:  # again, where an interrupt ended it
            restore(reentrant_calls)
    return interpreter.side_effects.original(result)


def _ask_keys(interpreter: Interpreter, function: object, args: tuple[object, ...]) -> None:
    """Ask the items of keys that know their hashes, which the function asks nothing."""
    ask_items(
        function,
        args,
        interpreter.guard_context.known,
        lambda key: interpreter.native(partial(_with_tripwire, hash, (key,), {})),
        lambda: (interpreter.marks(), len(interpreter.draws)),
    )


# What stores its last argument, and drops nothing: it asks neither that nor what is stored. (A
# deque may drop an item at the other end.) And what asks nothing of the items that are there.
_ONLY_STORES = frozenset({list.append, list.insert})
_STORING = _ONLY_STORES | {
    *(list.__setitem__, collections.deque.append, collections.deque.appendleft),
    *(iter, reversed, isinstance, issubclass, type, id, operator.is_, operator.is_not),
}
_LEAVES_ITEMS = frozenset(
    {list.extend, list.pop, list.reverse, collections.deque.pop, collections.deque.popleft}
)
# What asks keys and members for `__hash__` and `__eq__`, and nobody for anything else.
_ASKING_KEYS: dict[type, frozenset[Any]] = {
    dict: frozenset(
        {operator.contains, dict.__contains__, operator.getitem, dict.get, dict.pop}
        | {dict.setdefault}
    ),
    set: frozenset({operator.contains, set.__contains__, set.add}),
    frozenset: frozenset({operator.contains, frozenset.__contains__}),
}


def _is_found_by_identity(guard_context: GuardContext, cls: type) -> bool:
    hashes = raw_lookup(cls, "__hash__") is object.__hash__
    found = hashes and raw_lookup(cls, "__eq__") is object.__eq__
    if found and not guard_context.made_classes:
        guard_context.found_by_identity.add(cls)
    return found


def _special_functions(guard_context: GuardContext, cls: type) -> list[types.FunctionType]:
    """Those of a class, which changes while it is captured only if it is made in the frame."""
    found = guard_context.special_functions.get(cls)
    if found is None:
        found = special_functions(cls)
        if not guard_context.made_classes:
            guard_context.special_functions[cls] = found
    return found


def call_with_key(
    interpreter: Interpreter, function: Any, owner: Any, key: object, *rest: object
) -> object:
    """Call what looks up a key in a container: the key's `__index__`, `__hash__` and `__eq__` are
    interpreted."""
    interpreter.guard_context.guard_identity(key)
    if type(key) not in CONSTANTS:
        _note_classes((key,), set(), set(), None, partial(_guard_contents, interpreter))
    asks = issubclass(type(owner), dict) and asks_members(owner)
    if is_plain_key(key) and not asks:
        return interpreter.native(function, owner, key, *rest)
    return call_seen(interpreter, function, (owner, key, *rest), {})


def _guard_contents(interpreter: Interpreter, value: object) -> None:
    """Guard what an immutable container from outside holds, before C code hashes or compares it.
    (Others come here as their shadows, whose items are guarded.)"""
    if issubclass(type(value), tuple):
        interpreter.guard_context.guard_items(value)
    elif issubclass(type(value), frozenset) and not is_constant(value):
        interpreter.side_effects.contents(value)


def put_member(interpreter: Interpreter, container: object, key: object, value: object) -> None:
    """Put a key into a copy of a container from outside, which asks for its hash. Eager does not:
    one that changes something is refused."""
    marks = interpreter.marks(), len(interpreter.draws)
    if type(container) is set:
        call_seen(interpreter, set.add, (container, key), {})
    else:
        call_seen(interpreter, dict.__setitem__, (container, key, value), {})
    if (interpreter.marks(), len(interpreter.draws)) != marks:
        raise BreakRequested("unsupported-container", "a key whose hash changes something")


def is_plain_key(key: Any) -> bool:
    """Whether C code looks a key up without asking the program."""
    cls = type(key)
    if cls in CONSTANTS or cls in TENSORS:
        return True
    if cls is slice:
        return all(map(is_plain_key, (key.start, key.stop, key.step)))
    if cls is tuple:
        return all(map(is_plain_key, key))
    if cls in ALIASES:
        return is_key(key)
    return is_identity(key) and not runs_python(cls)


_FUNCTIONS = (types.FunctionType, types.MethodType, types.CellType)


def _note_classes(
    values: Any,
    classes: set[type],
    seen: set[int],
    objects: list[object] | None = None,
    guard: Callable[[object], None] | None = None,
) -> None:
    """The classes, of values and of what containers among them hold, that may run Python code;
    and the values that are of such classes."""
    if objects is None and len(values) > 4:
        kinds = {*map(type, values)}
        flat = {kind for kind in kinds if _is_flat(kind)}
        classes.update([kind for kind in flat if runs_python(kind)])
        if len(flat) == len(kinds):
            return
        values = [value for value in values if type(value) not in flat]
    for value in values:
        cls: Any = type(value)
        if cls in CONSTANTS or cls in TENSORS or id(value) in seen:
            continue
        if cls in ALIASES and not is_key(value):  # hashed, and compared, by its objects
            raise BreakRequested("unseen-python", f"a {cls.__qualname__} of objects")
        if is_identity(value) and not runs_python(cls):
            continue
        for base, items in _ITEMS:
            if issubclass(type(value), base):
                seen.add(id(value))
                if guard is not None:
                    guard(value)
                _note_classes(list(items(value)), classes, seen, objects, guard)
        if runs_python(cls):
            classes.add(cls)
            if objects is not None:
                objects.append(value)


@fact_of_class
def _is_flat(cls: Any) -> bool:
    """Whether instances are all treated alike: they are neither containers nor functions."""
    return not (
        cls in MAYBE_BOUND or cls in ALIASES or issubclass(cls, tuple(base for base, _ in _ITEMS))
    )


# How C code sees the items of a builtin container, whatever a subclass makes of it.
_ITEMS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__),
    (slice, lambda value: (value.start, value.stop, value.step)),
    (dict, dict.__iter__),
    (dict, lambda value: iter(dict.values(value))),
)


# Whose Python code may run unseen, and all that it calls: capture itself, torch on fake tensors.
_SEEN_PACKAGES = ("braze", "torch")
# Whose Python code only passes on what it is given.
_PASSING_MODULES = frozenset({"abc", "collections.abc", "_collections_abc", "copyreg"})


@final
class _Tripwire:
    """A profile function: BreakRequested at the first frame of Python code that is neither
    capture's own nor redirected to it."""

    def __init__(self, function: object) -> None:
        self._function = function
        self._own_frames = 0

    def __call__(self, frame: types.FrameType, event: str, argument: object) -> None:
        if event not in ("call", "return"):
            return
        module = str(frame.f_globals.get("__name__", ""))
        is_passing = module in _PASSING_MODULES or module.startswith("namedtuple_")
        if is_of_package(module, *_SEEN_PACKAGES) or target_of(frame.f_code) is not None:
            self._own_frames += 1 if event == "call" else -1
        elif event == "call" and not self._own_frames and not is_passing:
            name = frame.f_code.co_qualname
            raise BreakRequested("unseen-python", f"{describe(self._function)} calls {name}")


@calls_the_program
def _with_tripwire(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Run C code; BreakRequested where it runs Python code unseen. Where a profiler is active its
    hook is left alone, and there is no tripwire."""
    before = sys.getprofile()
    if before is not None and type(before) is not _Tripwire:
        return function(*args, **kwargs)
    try:
        sys.setprofile(_Tripwire(function))
        return function(*args, **kwargs)
    finally:
        sys.setprofile(before)


def describe(function: object) -> str:
    """A callable's name for a message."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    module = getattr(function, "__module__", None)
    if name is None:
        return repr(type(function))
    return f"{module}.{name}" if module and module != "builtins" else str(name)
