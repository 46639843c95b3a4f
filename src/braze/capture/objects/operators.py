"""Unary, binary and comparison operators on any values."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.calls.c_functions import (
    call_builtin,
    call_natively,
    call_seen,
    call_with_key,
    iterable_argument,
    native_argument,
)
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.attribute_load import bind_attribute
from braze.capture.objects.iteration import is_uniterable, native_iterable
from braze.capture.objects.mapping_proxies import entries_of
from braze.capture.objects.number_identity import are_numbers, is_same_number
from braze.capture.objects.truth import truth
from braze.capture.state.guard_by_parts import is_numpys_float
from braze.capture.state.guard_context import CONSTANTS, NUMBERS, TENSORS
from braze.capture.state.hidden_members import asks_members
from braze.capture.state.side_effects import EXACT, SEQUENCES
from braze.capture.tensors.symbolic_floats import with_float_sizes
from braze.capture.tensors.torch_check import negated
from braze.compat.numpy.interface import SCALARS
from braze.frozen import frozen
from braze.ir.captured.guard import ABSENT
from braze.shapes.data_symbols import SymbolicTruth
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext


@final
@frozen(eq=False)
class Operator:
    """function does it natively; method and reflected are what classes define for it. sign: as
    messages show it."""

    function: Callable[..., Any]
    method: str
    reflected: str
    in_place: str = ""
    sign: str = ""


_BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "+": (operator.add, operator.iadd, "add"),
    "&": (operator.and_, operator.iand, "and"),
    "//": (operator.floordiv, operator.ifloordiv, "floordiv"),
    "<<": (operator.lshift, operator.ilshift, "lshift"),
    "@": (operator.matmul, operator.imatmul, "matmul"),
    "*": (operator.mul, operator.imul, "mul"),
    "%": (operator.mod, operator.imod, "mod"),
    "|": (operator.or_, operator.ior, "or"),
    "**": (operator.pow, operator.ipow, "pow"),
    ">>": (operator.rshift, operator.irshift, "rshift"),
    "-": (operator.sub, operator.isub, "sub"),
    "/": (operator.truediv, operator.itruediv, "truediv"),
    "^": (operator.xor, operator.ixor, "xor"),
}
OPERATORS: dict[str, Operator] = {
    **{
        sign: Operator(plain, f"__{name}__", f"__r{name}__", sign=sign)
        for sign, (plain, _, name) in _BINARY.items()
    },
    **{
        f"{sign}=": Operator(in_place, f"__{name}__", f"__r{name}__", f"__i{name}__", f"{sign}=")
        for sign, (_, in_place, name) in _BINARY.items()
    },
}
COMPARISONS: dict[str, Operator] = {
    "<": Operator(operator.lt, "__lt__", "__gt__", sign="<"),
    "<=": Operator(operator.le, "__le__", "__ge__", sign="<="),
    "==": Operator(operator.eq, "__eq__", "__eq__", sign="=="),
    "!=": Operator(operator.ne, "__ne__", "__ne__", sign="!="),
    ">": Operator(operator.gt, "__gt__", "__lt__", sign=">"),
    ">=": Operator(operator.ge, "__ge__", "__le__", sign=">="),
}
_COMPARISONS = frozenset(COMPARISONS.values())
_ORDERINGS = frozenset(COMPARISONS[sign] for sign in ("<", "<=", ">", ">="))
UNARY: dict[str, Operator] = {
    "__neg__": Operator(operator.neg, "__neg__", ""),
    "__pos__": Operator(operator.pos, "__pos__", ""),
    "__invert__": Operator(operator.invert, "__invert__", ""),
    "__abs__": Operator(abs, "__abs__", ""),
}


def binary(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """`left op right`, as Python decides who does it."""
    left_class, right_class = type(left), type(right)
    if left_class is FakeArray or right_class is FakeArray:
        return _on_arrays(interpreter, op, left, right)
    if left_class in CONSTANTS and right_class in CONSTANTS:
        if left_class in _FOR_SEVERAL or right_class in _FOR_SEVERAL:
            return _on_numbers(interpreter, op, left, right)
        if left_class is right_class is torch.Size and op.method in ("__eq__", "__ne__"):
            return _equality_of_sizes(interpreter, op, left, right)
        return interpreter.native(op.function, left, right)
    if left_class in TENSORS or right_class in TENSORS:
        if _is_operand(left_class) and _is_operand(right_class):
            return leaf_call(interpreter, op.function, (left, right), {})
    elif op in _COMPARISONS and _is_of_numpys(left_class, right_class):
        return _as_numpys(interpreter, op, left, right)
    elif _is_of_scalars(left_class, right_class):
        plain = [interpreter.native(_AT_HAND.get(type(v), _same), v) for v in (left, right)]
        return call_natively(interpreter, op.function, tuple(plain), {})
    elif op.method in ("__eq__", "__ne__"):
        return _equality(interpreter, op, left, right)
    elif left_class in EXACT and (right_class in EXACT or right_class in CONSTANTS):
        return _on_container(interpreter, op, left, right)
    found = _by_methods(interpreter, op, left, right)
    if found is not NotImplemented:
        return found
    is_of_tensor = left_class in TENSORS or right_class in TENSORS
    if is_of_tensor and (_is_number(left_class) or _is_number(right_class)):
        return _on_plain_number(interpreter, op, left, right)
    is_of_tensor = is_of_tensor and op not in _COMPARISONS
    if is_of_tensor and _computes(interpreter.guard_context, (left_class, right_class)):
        # A tensor's own method may be Python code, and asks the other side's: `x * (1 / tensor)`.
        raise BreakRequested("unseen-python", f"`{op.sign}` of a tensor and an object")
    if op.in_place and left_class in EXACT and left_class not in _FIXED:
        return _grow(interpreter, op, left, right)
    known = [_answered(interpreter.guard_context, op, side) for side in (left, right)]
    # What writes to a tensor is noted for the graphs that other backends get.
    call = leaf_call if op.in_place and left_class in TENSORS else call_natively
    return call(interpreter, op.function, tuple(known), {})


def _on_arrays(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """An operator on an array and what NumPy makes one of; else the other class is asked, too."""
    if all(type(value) in _OF_ARRAYS for value in (left, right)):
        return interpreter.arrays.operator(op.in_place or op.method, left, right)
    found = _by_methods(interpreter, op, left, right)
    if found is NotImplemented:
        raise BreakRequested("numpy", f"{op.sign} of an array and a {type(right).__qualname__}")
    return found


_OF_ARRAYS = CONSTANTS | SCALARS | {FakeArray, list, tuple}


def _answered(guard_context: GuardContext, op: Operator, side: object) -> object:
    """An operand for C code to raise about, or to join with a sequence. One of the program's whose
    methods have answered NotImplemented is not asked again: an object of a class of that name
    stands for it, unless C code could take it for a number or for items."""
    names = [name for name in (op.method, op.reflected, op.in_place) if name]
    if not any(_is_of_program(guard_context, side, name) for name in names):
        return side
    cls = type(side)
    if any(guard_context.lookup(cls, name) is not ABSENT for name in _TAKEN_BY_SEQUENCES):
        return side
    return type(cls.__name__, (), {"__module__": cls.__module__})()


def _computes(guard_context: GuardContext, classes: tuple[type, type]) -> bool:
    """Whether a class has arithmetic of the program's."""
    return any(
        type(guard_context.lookup(cls, name)) is types.FunctionType
        for cls in classes
        if cls.__flags__ & _HEAP_TYPE and cls not in TENSORS and cls not in CONSTANTS
        for name in _ARITHMETIC
    )


_HEAP_TYPE = 1 << 9
_ARITHMETIC = tuple([f"__{side}{name}__" for *_, name in _BINARY.values() for side in ("", "r")])
_TAKEN_BY_SEQUENCES = ("__index__", "__iter__", "__getitem__")
_FIXED = frozenset({tuple, frozenset})


def _grow(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """An operator in place on a container, the other side being of a class of the program's."""
    takes_items = type(left) in SEQUENCES and op.in_place == "__iadd__"
    fit = iterable_argument if takes_items else native_argument
    pair = (interpreter.side_effects.changed(left), fit(interpreter, right))
    return interpreter.side_effects.original(call_seen(interpreter, op.function, pair, {}))


def _on_numbers(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """An operator on numbers that stand for several; what those do not do (they are no parts of
    complex numbers, and truths no numbers) is done by the numbers at hand."""
    left, right = with_float_sizes(interpreter, op.method, left, right)
    try:
        return interpreter.native(op.function, left, right)
    except ProgramRaised as raised:
        if not isinstance(raised.exception, TypeError):
            raise
    plain = [interpreter.native(_FOR_SEVERAL.get(type(v), _same), v) for v in (left, right)]
    return interpreter.native(op.function, *plain)


def _is_of_numpys(left: type, right: type) -> bool:
    """Whether one is NumPy's float and the other is such, too, a constant or a sequence."""
    kinds = (left, right)
    return any(map(is_numpys_float, kinds)) and all(
        kind in CONSTANTS or kind in _PLAIN_SEQUENCES or is_numpys_float(kind) for kind in kinds
    )


def _is_of_scalars(left: type, right: type) -> bool:
    """Whether one is NumPy's scalar and the other is such, too, or a number. NumPy decides what
    class the result has, and how it is rounded: for the number at hand."""
    kinds = (left, right)
    return any(kind in SCALARS for kind in kinds) and all(
        kind in CONSTANTS or kind in SCALARS for kind in kinds
    )


def _as_numpys(interpreter: Interpreter, op: Operator, left: Any, right: Any) -> object:
    """A comparison with a float of NumPy's: it gives a truth of NumPy's, or an array of those."""
    if type(left) not in NUMBERS and type(right) not in NUMBERS:
        return call_natively(interpreter, op.function, (left, right), {})
    number = left if is_numpys_float(type(left)) else right
    plain = [float(v) if v is number else v for v in (left, right)]
    found = binary(interpreter, op, *plain)
    return type(operator.eq(number, number))(found) if type(found) is bool else found


# What stands for several numbers -> what makes it the one at hand.
_FOR_SEVERAL: dict[type, Any] = {ProgramInt: int, SymbolicTruth: bool}
_AT_HAND: dict[type, Any] = {**_FOR_SEVERAL, SymbolicFloat: float}


def _same(value: object) -> object:
    return value


def _is_operand(cls: type) -> bool:
    return cls in TENSORS or cls in CONSTANTS or cls in (list, tuple)


def _on_container(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    side_effects = interpreter.side_effects
    right = side_effects.contents(right) if type(right) in EXACT else right
    if op in _ORDERINGS and type(left) is type(right) and issubclass(type(left), (list, tuple)):
        return _order(interpreter, op, side_effects.contents(left), right)
    if op.in_place and type(left) not in _FIXED:
        known = type(left) is list and id(left) in interpreter.guard_context.known
        if known and op.in_place == "__iadd__" and side_effects.add(left, list.extend, (right,)):
            return left
        return side_effects.original(
            interpreter.native(op.function, side_effects.changed(left), right)
        )
    return interpreter.native(op.function, side_effects.contents(left), right)


def _order(interpreter: Interpreter, op: Operator, left: Any, right: Any) -> object:
    """Lists and tuples are ordered by their first items that differ, else by length."""
    for first, second in zip(left, right):
        if not _same_or_equal(interpreter, first, second):
            return binary(interpreter, op, first, second)
    return op.function(len(left), len(right))


# --- the classes' own methods --------------------------------------------------------------------


def _by_methods(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """What the classes' own methods answer, in CPython's order; NotImplemented where none of them
    is Python code: C code knows that order itself."""
    tries = _tries(interpreter.guard_context, op, left, right)
    if not any(_is_of_program(interpreter.guard_context, owner, name) for owner, name, _ in tries):
        return NotImplemented
    for owner, name, other in tries:
        if type(owner) in TENSORS and _is_number(type(other)):
            return _on_plain_number(interpreter, op, left, right)
        result = _special_method(interpreter, owner, name, other)
        if result is not NotImplemented:
            return result
    classes = (type(left), type(right))
    if TENSORS.intersection(classes) and op not in _COMPARISONS:
        return NotImplemented
    if not NUMBERS.keys().isdisjoint(classes):
        if op.method in ("__eq__", "__ne__") and not any(map(_is_number, classes)):
            return op.method == "__ne__"  # a number and no number: neither is asked once more
        return NotImplemented
    if _is_sequence(op, left, right):
        return NotImplemented
    if op.method in ("__eq__", "__ne__"):
        return is_same(interpreter, left, right) is (op.method == "__eq__")
    raise ProgramRaised(TypeError(_unsupported(interpreter.guard_context, op, left, right)))


def _is_number(cls: type) -> bool:
    """Whether instances are numbers to PyTorch, of a class that is none of Python's own."""
    return issubclass(cls, (int, float, complex)) and cls not in CONSTANTS


def _on_plain_number(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """An operator on a tensor and a number of another class: PyTorch's C++ reads the number itself,
    and asks none of the methods of its class but `__torch_function__`."""
    number = right if type(left) in TENSORS else left
    cls: Any = type(number)
    if interpreter.guard_context.lookup(cls, "__torch_function__") is not ABSENT:
        raise BreakRequested("unseen-python", f"`{op.sign}` of a tensor and a {cls.__qualname__}")
    interpreter.guard_context.guard_identity(number)
    read = next(read for kind, read in _READ if issubclass(cls, kind))
    sides = [read(side) if side is number else side for side in (left, right)]
    return leaf_call(interpreter, op.function, tuple(sides), {})


_READ: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
)

_Try: TypeAlias = tuple[Any, str, Any]  # (whose method, its name, the other operand)


def _tries(
    guard_context: GuardContext, op: Operator, left: object, right: object
) -> tuple[_Try, ...]:
    """The methods that are asked, in order: a subclass that has its own goes first."""
    left_class, right_class = guard_context.type_of(left), guard_context.type_of(right)
    forward, backward = (left, op.method, right), (right, op.reflected, left)
    tries: tuple[_Try, ...] = (forward, backward)
    if op in _COMPARISONS:
        if right_class is not left_class and _derives(right_class, left_class):
            tries = (backward, forward)
    elif right_class is left_class:
        tries = (forward,)
    elif _derives(right_class, left_class):
        own = guard_context.lookup(right_class, op.reflected)
        if own is not guard_context.lookup(left_class, op.reflected):
            tries = (backward, forward)
    return ((left, op.in_place, right), *tries) if op.in_place else tries


def _derives(cls: type, base: type) -> bool:
    """Whether a class really has a base, whatever `issubclass` is told."""
    return base in type.__dict__["__mro__"].__get__(cls)


def _is_of_program(guard_context: GuardContext, owner: object, name: str) -> bool:
    """Whether a method is Python code, or None, which forbids the operator."""
    cls = type(owner)
    if cls in CONSTANTS or cls in TENSORS or cls in EXACT:
        return False
    method = guard_context.lookup(cls, name)
    if name == "__ne__" and type(method) is types.WrapperDescriptorType:
        method = guard_context.lookup(
            cls, "__eq__"
        )  # of its own, it leaves `!=` to the builtin base
    return method is not ABSENT and type(method) is not types.WrapperDescriptorType


def _special_method(interpreter: Interpreter, owner: object, name: str, other: object) -> object:
    """What one method answers. `!=` is by default what `==` is not."""
    cls = type(owner)
    method = (
        ABSENT
        if cls in TENSORS or cls is ProgramInt
        else interpreter.guard_context.lookup(cls, name)
    )
    if type(method) is types.FunctionType:
        return interpreter.call(method, owner, other)
    if method is ABSENT:
        return NotImplemented
    if method is None:
        raise ProgramRaised(TypeError("'NoneType' object is not callable"))
    if method is object.__eq__:
        return is_same(interpreter, owner, other) or NotImplemented
    if method is object.__ne__:
        same = _special_method(interpreter, owner, "__eq__", other)
        return same if same is NotImplemented else not truth(interpreter, same)
    if type(method) is not types.WrapperDescriptorType:
        return interpreter.call(bind_attribute(interpreter, method, owner, cls, name), other)
    if method.__objclass__ in _SEQUENCES and name in _OF_SEQUENCES:
        return NotImplemented  # asked last, after both operands' other methods
    return call_builtin(interpreter, method, (owner, other), {})


_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)
_OF_SEQUENCES = frozenset({"__add__", "__mul__", "__rmul__", "__iadd__", "__imul__"})


def _is_sequence(op: Operator, left: object, right: object) -> bool:
    """Whether sequences are joined or repeated, which is left to C code."""
    of_sequences = op.method in _OF_SEQUENCES
    return of_sequences and any(issubclass(type(side), _SEQUENCES) for side in (left, right))


def _unsupported(guard_context: GuardContext, op: Operator, left: object, right: object) -> str:
    kinds = (guard_context.type_of(left).__name__, guard_context.type_of(right).__name__)
    if op in _COMPARISONS:
        return "{2!r} not supported between instances of {0!r} and {1!r}".format(*kinds, op.sign)
    sign = "** or pow()" if op.sign == "**" else op.sign
    return "unsupported operand type(s) for {2}: {0!r} and {1!r}".format(*kinds, sign)


# --- equality ------------------------------------------------------------------------------------


def _equality(interpreter: Interpreter, op: Operator, left: object, right: object) -> object:
    """`==` and `!=`: containers item by item, other objects by method or identity."""
    found = _by_methods(interpreter, op, left, right)
    if found is not NotImplemented:
        return found
    same = equal(interpreter, left, right)
    return same if op.method == "__eq__" else not same


def equal(interpreter: Interpreter, left: object, right: object) -> bool:
    """Equality of values without Python code of their own at the top."""
    if type(left) in EXACT and type(right) in EXACT:
        side_effects = interpreter.side_effects
        first, second = side_effects.contents(left), side_effects.contents(right)
        if not _asks_each(first) and not _asks_each(second):
            pair = (side_effects.native(first), side_effects.native(second))
            return bool(call_seen(interpreter, operator.eq, pair, {}))
        return _equal_items(interpreter, first, second)
    if torch.Size in (type(left), type(right)) and (_asks_each(left) or _asks_each(right)):
        return _equal_items(interpreter, left, right)
    _refuse_methods(interpreter, left, right)
    interpreter.guard_context.guard_identity(left)
    interpreter.guard_context.guard_identity(right)
    method = interpreter.guard_context.lookup(type(left), "__eq__")
    other = interpreter.guard_context.lookup(type(right), "__eq__")
    if method is object.__eq__ and other is object.__eq__:
        return left is right
    return bool(call_natively(interpreter, operator.eq, (left, right), {}))


def _equality_of_sizes(interpreter: Interpreter, op: Operator, left: Any, right: Any) -> object:
    """`==` and `!=` of shapes. What only one size decides that the program computes is not known,
    and may be promised."""
    if len(left) != len(right) or not (_asks_each(left) or _asks_each(right)):
        return interpreter.native(op.function, left, right)
    answers = [binary(interpreter, COMPARISONS["=="], a, b) for a, b in zip(left, right)]
    unknown = [answer for answer in answers if type(answer) is SymbolicTruth]
    same = False not in [answer for answer in answers if type(answer) is bool]
    if same and len(unknown) == 1:
        return unknown[0] if op.method == "__eq__" else negated(unknown[0])
    same = same and all(truth(interpreter, answer) for answer in unknown)
    return same is (op.method == "__eq__")


def _equal_items(interpreter: Interpreter, first: Any, second: Any) -> bool:
    """Equality of containers, item by item."""
    kinds = [kind for kind in (list, tuple) if issubclass(type(first), kind)]
    if kinds and issubclass(type(second), kinds[0]):
        return len(first) == len(second) and all(
            _same_or_equal(interpreter, a, b) for a, b in zip(first, second)
        )
    if issubclass(type(first), dict) and issubclass(type(second), dict):
        return first.keys() == second.keys() and all(
            _same_or_equal(interpreter, first[key], second[key]) for key in first
        )
    return interpreter.native(operator.eq, first, second)


def _asks_each(value: Any) -> bool:
    """Whether a container of exact builtin class holds a tensor, or a size where the program
    computes sizes, at any depth."""
    cls = type(value)
    if cls in TENSORS:
        return True
    if cls is ProgramInt:
        return value.facts.data is not None or value.facts.has_unseen
    if cls is not torch.Size and (cls in CONSTANTS or cls not in EXACT):
        return False
    return any(map(_asks_each, value.values() if issubclass(cls, dict) else value))


def is_same(interpreter: Interpreter, left: object, right: object) -> bool:
    """`left is right`."""
    if left is not right and are_numbers(left, right):
        return is_same_number(interpreter, left, right)
    if left is not None and right is not None:
        guard_context = interpreter.guard_context
        _refuse_methods(interpreter, left, right)
        if guard_context.by_code and guard_context.are_apart_by_code(left, right):
            return False
        guard_context.guard_identity(left)
        guard_context.guard_identity(right)
    return left is right


def _refuse_methods(interpreter: Interpreter, left: object, right: object) -> None:
    """Bound methods from outside are guarded by what they are made of, each by itself: whether two
    are one, or of one object, is for the program to ask."""
    pair = (left, right)
    if type(left) is type(right) is types.MethodType and any(
        interpreter.guard_context.source_of(method) is not None for method in pair
    ):
        raise BreakRequested("unseen-callable", "a comparison of bound methods")


def _same_or_equal(interpreter: Interpreter, left: object, right: object) -> bool:
    same = left is right if are_numbers(left, right) else is_same(interpreter, left, right)
    if same:
        return True
    return truth(interpreter, binary(interpreter, COMPARISONS["=="], left, right))


# --- others --------------------------------------------------------------------------------------


def unary(interpreter: Interpreter, op: Operator, value: object) -> object:
    """`-value` and the like."""
    if type(value) in TENSORS:
        return leaf_call(interpreter, op.function, (value,), {})
    if type(value) in CONSTANTS:
        return interpreter.native(op.function, value)
    method = interpreter.guard_context.lookup(type(value), op.method)
    if type(method) is types.FunctionType:
        return interpreter.call(method, value)
    return interpreter.native(op.function, value)


def contains(interpreter: Interpreter, container: Any, item: Any) -> bool:
    """`item in container`."""
    cls = type(container)
    guard_context = interpreter.guard_context
    guard_context.guard_identity(item)
    if cls in TENSORS:
        result = leaf_call(interpreter, operator.contains, (container, item), {})
        return bool(result)
    method = guard_context.lookup(cls, "__contains__")
    if type(method) is types.FunctionType:
        return truth(interpreter, interpreter.call(method, container, item))
    if issubclass(type(container), dict) and method is dict.__contains__:
        return dict_has_key(interpreter, container, item)
    is_made_here = cls in _PLAIN_SEQUENCES and id(container) not in guard_context.known
    if is_made_here and type(item) in _PLAIN and _PLAIN.issuperset(map(type, container)):
        return item in container
    if method is ABSENT and is_uniterable(interpreter, container):
        interpreter.native(operator.contains, container, item)  # raises
    if issubclass(type(container), (list, tuple)) or method is ABSENT:
        items = native_iterable(interpreter, container)
        iterator = interpreter.native(iter, items)
        while True:
            candidate = interpreter.native(next, iterator, ABSENT)
            if candidate is ABSENT:
                return False
            if _same_or_equal(interpreter, candidate, item):
                return True
    container = entries_of(interpreter, container)
    if (
        id(container) in guard_context.known
        and cls not in EXACT
        and not issubclass(type(container), type)
    ):
        raise BreakRequested("unsupported-container", f"`in` on {cls.__qualname__}")
    contents = native_argument(interpreter, container) if cls in EXACT else container
    return bool(call_with_key(interpreter, operator.contains, contents, item))


_PLAIN_SEQUENCES = frozenset({list, tuple})
# Of what C compares, nobody asked, once it is known.
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


def dict_has_key(interpreter: Interpreter, container: Any, item: object) -> bool:
    """`dict.__contains__`, whatever the dict's class makes of `in`."""
    side_effects = interpreter.side_effects
    guard_context = interpreter.guard_context
    if id(container) in guard_context.known and id(container) not in side_effects.shadows:
        if type(item) not in CONSTANTS or asks_members(container):
            contents = side_effects.contents(container)
            return bool(call_with_key(interpreter, operator.contains, contents, item))
        written = side_effects.written(container, item)
        if written is not ABSENT:
            return not side_effects.is_deleted(written)
        return side_effects.contains_key(container, item, guard_context.known[id(container)][1])
    contents = side_effects.contents(container)
    return bool(call_with_key(interpreter, dict.__contains__, contents, item))
