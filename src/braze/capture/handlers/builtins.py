"""Builtins that look at objects: type, isinstance, len, getattr, iter, print ..."""

from __future__ import annotations

import _abc
import abc
import collections
import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.calls.c_functions import call_natively, call_seen
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import check_original, check_protocols
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.handlers.dispatch import make_instance, refuse_finalizer
from braze.capture.objects.attribute_load import (
    GENERIC,
    load_attribute,
    load_class_attribute,
    load_generic,
)
from braze.capture.objects.attribute_store import (
    delete_attribute,
    delete_generic,
    store_attribute,
    store_generic,
)
from braze.capture.objects.formatting import format_value, text_of
from braze.capture.objects.isinstance_checks import note_abstract, tensor_is_instance
from braze.capture.objects.iteration import (
    GetitemIterator,
    counted_iterable,
    is_uniterable,
    iterator_of,
    keyed_iterable,
    native_iterable,
    next_of,
)
from braze.capture.objects.operators import COMPARISONS, OPERATORS, binary
from braze.capture.objects.python_modules import load_module_attribute
from braze.capture.objects.truth import length, truth
from braze.capture.opcodes.build import mapping_contents
from braze.capture.state.guard_context import CONSTANTS, NUMBERS, TENSORS, is_identity
from braze.capture.state.side_effects import EXACT
from braze.capture.state.special_methods import compares_its_own_way
from braze.capture.tensors.super_proxy import make_super
from braze.capture.tensors.symbolic_floats import extremum
from braze.compat.python.packages import is_of_package
from braze.compat.torch.dynamo_interop import is_optimizer
from braze.ir.captured.guard import ABSENT, MRO, GuardKind
from braze.shapes.symbolic import ProgramInt, symbolic_maximum, symbolic_minimum
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_NOTHING = object()

# --- what an object is -----------------------------------------------------------------------


@answers(type)
def type_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    if len(args) != 1:
        return make_instance(interpreter, type, args, kwargs)
    if type(args[0]) is InlinedGenerator:
        return types.GeneratorType
    return interpreter.guard_context.type_of(args[0])


@answers(isinstance)
def is_instance(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    value, classes = args
    classes = interpreter.side_effects.native(classes)
    return is_instance_of(interpreter, value, classes)


# Whose own methods real code may run on what is no tensor.
_ANSWERED = ("torch", "typing", "enum")


def is_instance_of(interpreter: Interpreter, value: object, classes: Any) -> bool:
    """isinstance() as the program sees the value."""
    if interpreter.guard_context.type_of(value) is classes:  # before any `__instancecheck__`
        return True
    if issubclass(type(classes), tuple):
        return any(is_instance_of(interpreter, value, cls) for cls in classes)
    if type(classes) is types.UnionType:
        return is_instance_of(interpreter, value, classes.__args__)
    if type(value) in TENSORS:
        return tensor_is_instance(interpreter, value, classes)
    if type(value) is classes:
        return True  # CPython asks no `__instancecheck__`
    check = interpreter.guard_context.lookup(type(classes), "__instancecheck__")
    own = type(check) is types.FunctionType and check is not abc.ABCMeta.__instancecheck__
    if own and not is_of_package(check.__module__, *_ANSWERED):
        return truth(interpreter, interpreter.call(check, classes, value))
    if type(value) is InlinedGenerator:
        return is_subclass_of(interpreter, types.GeneratorType, classes)
    if type(value) is FakeArray:
        return is_subclass_of(interpreter, type(value.like), classes)
    if type(value) in NUMBERS:
        value = NUMBERS[type(value)]()  # one like it: only the class is asked
    if check is abc.ABCMeta.__instancecheck__:
        note_abstract(interpreter, type(value), classes)
    interpreter.guard_context.lookup(type(value), MRO)
    return call_seen(interpreter, isinstance, (value, classes), {})


@answers(_abc._abc_instancecheck)
def is_instance_of_abstract(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    abstract, value = args
    note_abstract(interpreter, interpreter.guard_context.type_of(value), abstract)
    return call_seen(interpreter, _abc._abc_instancecheck, args, kwargs)


@answers(_abc._abc_subclasscheck)
def is_subclass_of_abstract(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    abstract, cls = args
    if issubclass(type(cls), type):
        note_abstract(interpreter, cls, abstract)
    return call_seen(interpreter, _abc._abc_subclasscheck, args, kwargs)


@answers(issubclass)
def is_subclass(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    cls, classes = args
    return is_subclass_of(interpreter, cls, interpreter.side_effects.native(classes))


def is_subclass_of(interpreter: Interpreter, cls: Any, classes: Any) -> bool:
    """issubclass(); a metaclass's own method is interpreted."""
    if issubclass(type(classes), tuple):
        return any(is_subclass_of(interpreter, cls, each) for each in classes)
    check = interpreter.guard_context.lookup(type(classes), "__subclasscheck__")
    own = type(check) is types.FunctionType and check is not abc.ABCMeta.__subclasscheck__
    if own and not is_of_package(check.__module__, *_ANSWERED):
        return truth(interpreter, interpreter.call(check, classes, cls))
    if check is abc.ABCMeta.__subclasscheck__ and issubclass(type(cls), type):
        note_abstract(interpreter, cls, classes)
    if issubclass(type(cls), type):
        interpreter.guard_context.lookup(cls, MRO)
    return call_seen(interpreter, issubclass, (cls, classes), {})


@answers(callable)
def is_callable(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return interpreter.guard_context.lookup(type(args[0]), "__call__") is not ABSENT


@answers(id)
def identity(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> int:
    value = args[0]
    real = interpreter.tracer.real_of(value) if type(value) in TENSORS else None
    interpreter.guard_context.keep(value)
    interpreter.guard_context.guard_identity(value)
    return _of_this_call(interpreter, id, value, id(value if real is None else real))


def _of_this_call(interpreter: Interpreter, function: object, value: object, number: int) -> int:
    """A number that an object has by being where it is: one that leaves the frame is asked for
    again, of the object that another call has in its place."""
    if type(value) not in CONSTANTS and not is_identity(value):
        interpreter.numbers_of_objects[number] = (function, value)
    return number


@answers(hash, object.__hash__)
def hash_of(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    (value,) = args
    interpreter.guard_context.guard_identity(value)
    if type(value) in TENSORS:
        real = interpreter.tracer.real_of(value)
        number = hash(value if real is None else real)
        return _of_this_call(interpreter, hash, value, number)
    method = interpreter.guard_context.lookup(type(value), "__hash__")
    if method is object.__hash__:
        interpreter.guard_context.keep(value)
        return _of_this_call(interpreter, hash, value, hash(value))
    if _hides_contents(interpreter, value) and type(method) is not types.FunctionType:
        raise BreakRequested("unseen-callable", f"hash of a {type(value).__qualname__}")
    return call_seen(interpreter, hash, (interpreter.side_effects.native(value),), {})


def _hides_contents(interpreter: Interpreter, value: object) -> bool:
    """Whether a value from outside has contents that are not guarded when C code reads them."""
    known = id(value) in interpreter.guard_context.known
    return known and not is_identity(value) and type(value) not in EXACT


@answers(len)
def len_of(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> ProgramInt | int:
    if type(args[0]) in TENSORS and args[0].dim() and type(args[0].shape[0]) is ProgramInt:
        check_original(interpreter.guard_context, "__len__", args[0])
        return args[0].shape[0]
    return length(interpreter, *args)


@answers(bool)
def bool_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if kwargs or len(args) != 1:
        return interpreter.native(bool, *args, **kwargs)
    return truth(interpreter, args[0])


@answers(super)
def super_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if len(args) == 2:
        return make_super(interpreter, *args)
    return interpreter.native(super, *args)


# --- attributes ------------------------------------------------------------------------------


@answers(getattr)
def get_attribute(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    owner, name, *default = args
    _check_name(interpreter, getattr, name)
    try:
        return load_attribute(interpreter, owner, name)
    except ProgramRaised as raised:
        if default and isinstance(raised.exception, AttributeError):
            guard_missing(interpreter, owner, name)
            return default[0]
        raise


def _check_name(interpreter: Interpreter, function: Any, name: object, *rest: object) -> None:
    """A name that is no text is the program's mistake. One whose class compares by itself breaks:
    how often it is asked is the affair of the dicts that are searched."""
    if type(name) is str:
        return
    if not issubclass(type(name), str):
        interpreter.native(function, object(), name, *rest)
    if compares_its_own_way(type(name)):
        raise BreakRequested("unseen-python", f"{type(name).__name__}.__eq__, of a name")


@answers(hasattr)
def has_attribute(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return get_attribute(interpreter, (*args, _NOTHING), {}) is not _NOTHING


def guard_missing(interpreter: Interpreter, owner: object, name: str) -> None:
    """The program saw that a tensor from outside has no such attribute. (Of other objects each
    place where there was nothing is guarded.)"""
    if type(owner) not in TENSORS:
        return
    guard_context = interpreter.guard_context
    source = guard_context.source_of(owner)
    key = (id(owner), "hasattr", name)
    if (
        source is not None
        and key not in guard_context.reads
        and not any(interpreter.side_effects.extent())
    ):
        guard_context.reads[key] = False
        guard_context.guard(source, GuardKind.HAS_ATTRIBUTE, (name, False))


@answers(setattr)
def set_attribute(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> None:
    _check_name(interpreter, setattr, *args[1:])
    store_attribute(interpreter, *args)


@answers(delattr)
def del_attribute(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> None:
    _check_name(interpreter, delattr, *args[1:])
    delete_attribute(interpreter, *args)


@answers(object.__setattr__, type.__setattr__)
def object_setattr(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> None:
    _check_name(interpreter, object.__setattr__, *args[1:])
    store_generic(interpreter, *args)


@answers(object.__delattr__, type.__delattr__)
def object_delattr(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> None:
    delete_generic(interpreter, *args)


@answers(*GENERIC)
def object_getattribute(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    owner, name = args
    _check_name(interpreter, getattr, name)
    if issubclass(type(owner), (type, types.ModuleType)) or type(owner) in (*TENSORS, *CONSTANTS):
        raise BreakRequested("unsupported-attribute", "object.__getattribute__ of such an object")
    return load_generic(interpreter, owner, name)


@answers(type.__getattribute__)
def type_getattribute(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    return load_class_attribute(interpreter, *args, hooked=False)


@answers(types.ModuleType.__getattribute__)
def module_getattribute(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    return load_module_attribute(interpreter, *args)


@answers(object.__init__)
def object_init(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    if len(args) != 1 or kwargs:
        interpreter.native(object.__init__, *args, **kwargs)


@answers(object.__new__)
def object_new(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    if args and issubclass(type(args[0]), type):
        refuse_finalizer(interpreter.guard_context, args[0])
    return interpreter.native(object.__new__, *args, **kwargs)


@answers(object)
def make_object(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return interpreter.native(object, *args, **kwargs)


@answers(type.__call__)
def type_call(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    return make_instance(interpreter, args[0], args[1:], kwargs)


# --- iteration -------------------------------------------------------------------------------


@answers(iter)
def iter_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if len(args) == 1:
        return iterator_of(interpreter, args[0])
    return call_natively(interpreter, iter, args, kwargs)


@answers(next)
def next_value(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    try:
        return next_of(interpreter, args[0])
    except ProgramRaised as raised:
        if len(args) > 1 and isinstance(raised.exception, StopIteration):
            return args[1]
        raise


@answers(any)
def any_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    items = interpreter.native(iter, native_iterable(interpreter, args[0]))
    while (item := interpreter.native(next, items, ABSENT)) is not ABSENT:
        if truth(interpreter, item):
            return True
    return False


@answers(all)
def all_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    items = interpreter.native(iter, native_iterable(interpreter, args[0]))
    while (item := interpreter.native(next, items, ABSENT)) is not ABSENT:
        if not truth(interpreter, item):
            return False
    return True


@answers(sum)
def sum_of(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    iterable, *start = args
    total = start[0] if start else kwargs.get("start", 0)
    if isinstance(total, (str, bytes, bytearray)):
        return interpreter.native(sum, (), total)
    items = interpreter.native(iter, native_iterable(interpreter, iterable))
    numbers: list[Any] = []  # that come first: their rounding errors are made good, since 3.12
    while (item := interpreter.native(next, items, ABSENT)) is not ABSENT:
        if type(item) in _NUMBERS and type(total) in _NUMBERS:
            numbers.append(item)
            continue
        total = binary(interpreter, OPERATORS["+"], sum(numbers, total), item)
        numbers.clear()
    return sum(numbers, total) if numbers else total


_NUMBERS = frozenset({bool, int, float, complex})


def _extremum(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object], sign: str
) -> object:
    items = args
    if len(args) == 1:
        items = interpreter.native(tuple, native_iterable(interpreter, args[0]))
    if not items:
        if "default" in kwargs:
            return kwargs["default"]
        return interpreter.native(max if sign == ">" else min, ())
    key = kwargs.get("key")
    if key is None and all(type(item) in (int, ProgramInt) for item in items):
        combine = symbolic_maximum if sign == ">" else symbolic_minimum
        return functools.reduce(combine, items)
    kinds = set(map(type, items)) if key is None else set()
    # Which of an integer and a float is the larger says its type, too; optimizers do not ask.
    plain = {float, int} if is_optimizer(interpreter.frames[-1].globals) else {float}
    if SymbolicFloat in kinds and kinds <= {*plain, SymbolicFloat}:
        return extremum(interpreter, items, sign)
    best = items[0]
    best_key = best if key is None else interpreter.call(key, best)
    for item in items[1:]:
        item_key = item if key is None else interpreter.call(key, item)
        if truth(interpreter, binary(interpreter, COMPARISONS[sign], item_key, best_key)):
            best, best_key = item, item_key
    return best


@answers(max)
def max_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return _extremum(interpreter, args, kwargs, ">")


@answers(min)
def min_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return _extremum(interpreter, args, kwargs, "<")


# --- constructors of builtin containers ----------------------------------------------------------


def _from_iterable(cls: type) -> Callable[..., object]:
    def make(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if kwargs or len(args) != 1:
            return interpreter.native(cls, *args, **kwargs)
        value = args[0]
        if cls in (tuple, frozenset) and type(value) is cls:
            return value
        if cls is list or cls is tuple:
            return interpreter.native(cls, counted_iterable(interpreter, value))
        members = keyed_iterable(interpreter, value)
        if cls is frozenset and type(members) is frozenset:
            # `frozenset(members)` is `members`, which stands for an object of a subclass.
            members = set(members)
        return call_seen(interpreter, cls, (members,), {})

    return make


for _cls in (list, tuple, set, frozenset):
    answers(_cls)(_from_iterable(_cls))


@answers(dict)
def make_dict(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[object, object]:
    made: dict[Any, Any] = {}
    if args:
        call_seen(interpreter, dict.update, (made, mapping_source(interpreter, args[0])), {})
    if kwargs:
        call_seen(interpreter, dict.update, (made, kwargs), {})
    return made


def mapping_source(
    interpreter: Interpreter, value: object
) -> dict[Any, Any] | list[tuple[Any, ...]]:
    """What `dict.update` may read natively in the place of a mapping or of pairs."""
    if interpreter.guard_context.lookup(type(value), "keys") is not ABSENT:
        return mapping_contents(interpreter, value)
    pairs = interpreter.native(list, native_iterable(interpreter, value))
    for index, pair in enumerate(pairs):
        if is_uniterable(interpreter, pair):
            message = f"cannot convert dictionary update sequence element #{index} to a sequence"
            raise ProgramRaised(TypeError(message))
    entries = [interpreter.native(tuple, native_iterable(interpreter, pair)) for pair in pairs]
    interpreter.guard_context.guard_identities(entry[0] for entry in entries if entry)
    return entries


def _reverse(interpreter: Interpreter, value: object) -> object:
    """`reversed(value)`, which takes no iterator in the value's place."""
    kind = type(value)
    method = ABSENT if kind in TENSORS else interpreter.guard_context.lookup(kind, "__reversed__")
    if type(method) is types.FunctionType:
        return interpreter.call(method, value)
    getitem = interpreter.guard_context.lookup(kind, "__getitem__")
    by_item = method is ABSENT and type(getitem) is types.FunctionType
    if by_item and interpreter.guard_context.lookup(kind, "__len__") is not ABSENT:
        return GetitemIterator(interpreter, reversed, value, getitem)
    if kind in EXACT or issubclass(kind, (list, tuple, dict, collections.deque)):
        value = interpreter.side_effects.contents(value)
    return call_seen(interpreter, reversed, (value,), {})


def _over_iterables(cls: object) -> Callable[..., object]:
    """zip, enumerate, reversed, map, filter: each item still comes from the program."""

    def make(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        check_protocols(interpreter.guard_context, args)
        if cls is reversed and (kwargs or len(args) != 1):
            return interpreter.native(reversed, *args, **kwargs)
        if cls is reversed:
            return _reverse(interpreter, args[0])
        return call_natively(interpreter, cls, args, kwargs)

    return make


for _lazy in (enumerate, zip, map, filter, reversed):
    answers(_lazy)(_over_iterables(_lazy))


@answers(range)
def make_range(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return call_natively(interpreter, range, args, kwargs)


@answers(slice)
def make_slice(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> slice[object, object, object]:
    return slice(*args)


# --- text ----------------------------------------------------------------------------------------


@answers(str)
def make_str(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if len(args) == 1 and not kwargs:
        return text_of(interpreter, args[0], str)
    return interpreter.native(str, *args, **kwargs)


@answers(repr)
def repr_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    return text_of(interpreter, args[0], repr)


@answers(format)
def format_of(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> str:
    return format_value(interpreter, args[0], None, args[1] if len(args) > 1 else "")


@answers(print, input, open, breakpoint)
def input_output(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    raise BreakRequested("input-output", "print or the like")
