"""Unary, binary and comparison operators on any values."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from braze.capture.iteration import native_iterable
from braze.capture.leaf_calls import leaf_call
from braze.capture.native_calls import call_natively, call_seen, native_argument
from braze.capture.overlay import EXACT
from braze.capture.signals import BreakRequested
from braze.capture.truth import truth
from braze.capture.world import CONSTANTS, TENSORS
from braze.ir.guard import ABSENT
from braze.shapes.symbolic import ProgramInt


@final
@dataclass(frozen=True, slots=True)
class Operator:
    """function does it natively; method and reflected are what classes define for it."""

    function: Callable[..., Any]
    method: str
    reflected: str
    in_place: str = ""


def _arithmetic(name: str, function: Callable[..., Any]) -> Operator:
    return Operator(function, f"__{name}__", f"__r{name}__")


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
    **{sign: _arithmetic(name, plain) for sign, (plain, _, name) in _BINARY.items()},
    **{
        f"{sign}=": Operator(in_place, f"__{name}__", f"__r{name}__", f"__i{name}__")
        for sign, (_, in_place, name) in _BINARY.items()
    },
}
COMPARISONS: dict[str, Operator] = {
    "<": Operator(operator.lt, "__lt__", "__gt__"),
    "<=": Operator(operator.le, "__le__", "__ge__"),
    "==": Operator(operator.eq, "__eq__", "__eq__"),
    "!=": Operator(operator.ne, "__ne__", "__ne__"),
    ">": Operator(operator.gt, "__gt__", "__lt__"),
    ">=": Operator(operator.ge, "__ge__", "__le__"),
}
_ORDERINGS = frozenset(COMPARISONS[sign] for sign in ("<", "<=", ">", ">="))
UNARY: dict[str, Operator] = {
    "__neg__": Operator(operator.neg, "__neg__", ""),
    "__pos__": Operator(operator.pos, "__pos__", ""),
    "__invert__": Operator(operator.invert, "__invert__", ""),
    "__abs__": Operator(abs, "__abs__", ""),
}


def binary(interpreter: Any, op: Operator, left: Any, right: Any) -> Any:
    """`left op right`, as Python decides who does it."""
    left_class, right_class = type(left), type(right)
    if left_class in CONSTANTS and right_class in CONSTANTS:
        return interpreter.native(op.function, left, right)
    if left_class in TENSORS or right_class in TENSORS:
        if _is_operand(left_class) and _is_operand(right_class):
            return leaf_call(interpreter, op.function, (left, right), {})
    elif op.method in ("__eq__", "__ne__"):
        return _equality(interpreter, op, left, right)
    elif left_class in EXACT and (right_class in EXACT or right_class in CONSTANTS):
        return _on_container(interpreter, op, left, right)
    found = _by_methods(interpreter, op, left, right)
    if found is not NotImplemented:
        return found
    return call_natively(interpreter, op.function, (left, right), {})


def _is_operand(cls: type) -> bool:
    return cls in TENSORS or cls in CONSTANTS or cls in (list, tuple)


def _on_container(interpreter: Any, op: Operator, left: Any, right: Any) -> Any:
    overlay = interpreter.overlay
    right = overlay.contents(right) if type(right) in EXACT else right
    if op in _ORDERINGS and type(left) is type(right) and isinstance(left, (list, tuple)):
        return _order(interpreter, op, overlay.contents(left), right)
    if op.in_place and type(left) not in (tuple, frozenset):
        known = type(left) is list and id(left) in interpreter.world.known
        if known and op.in_place == "__iadd__" and overlay.add(left, list.extend, (right,)):
            return left
        return overlay.original(interpreter.native(op.function, overlay.changed(left), right))
    return interpreter.native(op.function, overlay.contents(left), right)


def _order(interpreter: Any, op: Operator, left: Any, right: Any) -> Any:
    """Lists and tuples are ordered by their first items that differ, else by length."""
    for first, second in zip(left, right):
        if not _same_or_equal(interpreter, first, second):
            return binary(interpreter, op, first, second)
    return op.function(len(left), len(right))


def _by_methods(interpreter: Any, op: Operator, left: Any, right: Any) -> Any:
    """The classes' own methods, where any is Python code; NotImplemented if none answers."""
    world = interpreter.world
    if op.in_place:
        method = world.lookup(world.type_of(left), op.in_place)
        if isinstance(method, types.FunctionType) and type(left) not in TENSORS:
            result = interpreter.call(method, left, right)
            if result is not NotImplemented:
                return result
    tries = [(left, right, op.method), (right, left, op.reflected)]
    left_class, right_class = world.type_of(left), world.type_of(right)
    if right_class is not left_class and issubclass(right_class, left_class):
        tries.reverse()
    for owner, other, name in tries:
        if type(owner) in TENSORS or type(owner) is ProgramInt or not name:
            continue
        method = world.lookup(type(owner), name)
        if isinstance(method, types.FunctionType):
            result = interpreter.call(method, owner, other)
            if result is not NotImplemented:
                return result
    return NotImplemented


# --- equality ------------------------------------------------------------------------------------


def _equality(interpreter: Any, op: Operator, left: Any, right: Any) -> Any:
    """`==` and `!=`: containers item by item, other objects by method or identity."""
    found = _by_methods(interpreter, op, left, right)
    if found is not NotImplemented:
        return found
    if op.method == "__ne__":
        opposite = _by_methods(interpreter, COMPARISONS["=="], left, right)
        if opposite is not NotImplemented:
            return not truth(interpreter, opposite)
    same = equal(interpreter, left, right)
    return same if op.method == "__eq__" else not same


def equal(interpreter: Any, left: Any, right: Any) -> bool:
    """Equality of values without Python code of their own at the top."""
    if type(left) in EXACT and type(right) in EXACT:
        overlay = interpreter.overlay
        first, second = overlay.contents(left), overlay.contents(right)
        if not _holds_tensors(first) and not _holds_tensors(second):
            pair = (overlay.native(first), overlay.native(second))
            return bool(call_seen(interpreter, operator.eq, pair, {}))
        return _equal_items(interpreter, first, second)
    method = interpreter.world.lookup(type(left), "__eq__")
    other = interpreter.world.lookup(type(right), "__eq__")
    if method is object.__eq__ and other is object.__eq__:
        return left is right
    return bool(call_natively(interpreter, operator.eq, (left, right), {}))


def _equal_items(interpreter: Any, first: Any, second: Any) -> bool:
    """Equality of containers, item by item."""
    if isinstance(first, (list, tuple)) and type(first) is type(second):
        return len(first) == len(second) and all(
            _same_or_equal(interpreter, a, b) for a, b in zip(first, second)
        )
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            _same_or_equal(interpreter, first[key], second[key]) for key in first
        )
    return interpreter.native(operator.eq, first, second)  # type: ignore[no-any-return]


def _holds_tensors(value: Any) -> bool:
    """Whether a container of exact builtin class holds a tensor, at any depth."""
    cls = type(value)
    if cls in TENSORS:
        return True
    if cls in CONSTANTS or cls not in EXACT:
        return False
    return any(map(_holds_tensors, value.values() if issubclass(cls, dict) else value))


def _same_or_equal(interpreter: Any, left: Any, right: Any) -> bool:
    if left is right:
        return True
    return truth(interpreter, binary(interpreter, COMPARISONS["=="], left, right))


# --- others --------------------------------------------------------------------------------------


def unary(interpreter: Any, op: Operator, value: Any) -> Any:
    """`-value` and the like."""
    if type(value) in TENSORS:
        return leaf_call(interpreter, op.function, (value,), {})
    if type(value) in CONSTANTS:
        return interpreter.native(op.function, value)
    method = interpreter.world.lookup(type(value), op.method)
    if isinstance(method, types.FunctionType):
        return interpreter.call(method, value)
    return interpreter.native(op.function, value)


def contains(interpreter: Any, container: Any, item: Any) -> bool:
    """`item in container`."""
    cls = type(container)
    world = interpreter.world
    if cls in TENSORS:
        result = leaf_call(interpreter, operator.contains, (container, item), {})
        return bool(result)
    method = world.lookup(cls, "__contains__")
    if isinstance(method, types.FunctionType):
        return truth(interpreter, interpreter.call(method, container, item))
    if issubclass(type(container), dict) and method is dict.__contains__:
        return _dict_contains(interpreter, container, item)
    if issubclass(type(container), (list, tuple)) or method is ABSENT:
        items = native_iterable(interpreter, container)
        iterator = interpreter.native(iter, items)
        while True:
            candidate = interpreter.native(next, iterator, ABSENT)
            if candidate is ABSENT:
                return False
            if _same_or_equal(interpreter, candidate, item):
                return True
    if id(container) in world.known and cls not in EXACT and not issubclass(type(container), type):
        raise BreakRequested("unsupported-container", f"`in` on {cls.__qualname__}")
    contents = native_argument(interpreter, container) if cls in EXACT else container
    return interpreter.native(operator.contains, contents, item)


def _dict_contains(interpreter: Any, container: Any, item: Any) -> bool:
    overlay = interpreter.overlay
    world = interpreter.world
    if id(container) in world.known and id(container) not in overlay.shadows:
        if type(item) not in CONSTANTS:
            return interpreter.native(operator.contains, overlay.contents(container), item)
        written = overlay.written(container, item)
        if written is not ABSENT:
            return not overlay.is_deleted(written)
        return overlay.contains_key(container, item, world.known[id(container)][1])
    return interpreter.native(dict.__contains__, overlay.contents(container), item)
