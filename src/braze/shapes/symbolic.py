"""Symbolic integers: what stands for a size that is not known, in shape rules and in programs.

`SymbolicSize` is an expression over the symbols of one capture. Arithmetic gives expressions;
a comparison is answered by the capture's `Facts`, which may turn it into a guard. It is a
`torch.SymInt`, so that PyTorch's C++ takes it, and its own node, which C++ asks for arithmetic.

`ProgramInt` is the same as a program sees it: hashing one, printing one or using it as an index
needs its number, and specialises it. Shape rules hash sizes by expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from braze.shapes.conditions import (
    NOTHING_KNOWN,
    Condition,
    always,
    are_strides_in_order,
    is_dense,
    is_dense_in_order,
)
from braze.shapes.data_symbols import SymbolicTruth
from braze.shapes.expr import (
    Expr,
    Symbol,
    as_expr,
    constant_value,
    floor_div,
    maximum,
    minimum,
    modulo,
)
from braze.shapes.facts import Facts, Kind, Relation
from braze.shapes.number_nodes import Arithmetic, FloatNode
from braze.shapes.prove import plain_least

_Operation: TypeAlias = Callable[[Expr, Expr], Expr]


class SymbolicSize(torch.SymInt):
    """An integer expression over symbols; one object an expression and capture, which is why they
    hash by identity.

    hint: its value at the sizes at hand. program: the object that programs see. node: the one that
    C++ asks, which shape rules have: the object itself. maybe_as_int, clone, wrap_int: what C++
    asks most. The first may not know yet what the size was specialised to.
    """

    __slots__ = (
        *("_least", "_now", "_now_at", "clone", "maybe_as_int", "wrap_int"),
        *("expr", "facts", "hint", "known", "node", "program"),
    )

    expr: Expr
    facts: Facts
    hint: int
    program: Any
    maybe_as_int: Callable[[], int | None]
    _now: Expr
    _now_at: int
    _least: float | None

    def __init__(self, facts: Facts, expr: Expr, hint: int) -> None:
        self.facts = facts
        self.expr = expr
        self.hint = hint
        self.known: dict[Any, Any] = {}
        self.node: Any = self
        self.clone = always(self)
        if facts.numbers is None:
            facts.numbers = _Numbers(facts)
        self.wrap_int = facts.numbers.__getitem__
        number = constant_value(expr)
        self.maybe_as_int = NOTHING_KNOWN if number is None else always(number)
        self._now_at = -1
        self._least = None

    def least(self) -> float:
        """A lower bound, from the ranges of the symbols when it was asked for first: they only
        become narrower."""
        found = self._least
        if found is None:
            low = plain_least(self.now(), self.facts.ranges)
            found = self._least = -math.inf if low is None else low
        return found

    def now(self) -> Expr:
        """The expression as it is written now."""
        if self._now_at != self.facts.rewritten:
            self._look_again()
        return self._now

    def is_open(self) -> bool:
        """Whether no size at hand may answer what it is asked."""
        facts, expr = self.facts, self.now()
        return facts.is_unseen(expr) or (facts.data is not None and facts.data.concerns(expr))

    def _look_again(self) -> None:
        self._now_at = self.facts.rewritten
        self._now = self.facts.current(self.expr)
        number = constant_value(self._now)
        if number is not None:
            self.maybe_as_int = always(number)

    def _as(self, made: object) -> object:
        return made

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = __str__

    def __deepcopy__(self, memory: object) -> SymbolicSize:
        return self

    def __copy__(self) -> SymbolicSize:
        return self

    # --- numbers ---------------------------------------------------------------------------------

    def __int__(self) -> int:
        return self.facts.specialise(self.expr)

    __index__ = __trunc__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __bool__(self) -> bool:
        return self.facts.decide(Relation(self.expr, "!="))

    def __neg__(self) -> object:
        return self._as(_combined("sub", 0, self))

    def __pos__(self) -> SymbolicSize:
        return self

    def __abs__(self) -> object:
        return self if self >= 0 else -self

    def __floor__(self) -> SymbolicSize:
        return self

    __ceil__ = __round__ = __floor__  # type: ignore[assignment]

    def conjugate(self) -> SymbolicSize:
        """Of an integer, itself."""
        return self

    real = numerator = property(lambda self: self)
    imag, denominator = 0, 1

    def as_integer_ratio(self) -> tuple[SymbolicSize, int]:
        """As `int.as_integer_ratio`."""
        return self, 1

    def is_integer(self) -> bool:
        """Of an integer, True."""
        return True

    # --- what C++ asks of a node -----------------------------------------------------------------

    # Asked thousands of times a trace: methods of the constants, which run no Python.
    is_int = is_symbolic = has_hint = True.__bool__
    is_bool = is_float = is_nested_int = is_constant = False.__bool__
    constant_int = nested_int = constant_bool = NOTHING_KNOWN

    def int_(self) -> int:
        return int(self)

    def guard_int(self, file: str, line: int) -> int:
        return int(self)

    def str(self) -> str:
        return str(self.expr)

    def _graph_repr(self) -> object:
        return str(self.expr)

    def sym_float(self) -> FloatNode:
        return FloatNode(float(int(self)))

    def neg(self) -> object:
        return as_node(self.facts, _combined("sub", 0, self))

    def floor(self) -> SymbolicSize:
        return self

    ceil = trunc = round = floor

    def is_non_overlapping_and_dense_indicator(self, sizes: object, strides: object) -> object:
        return self.wrap_int(int(is_dense(sizes, strides)))

    def is_non_overlapping_and_dense(self, sizes: object, strides: object) -> Condition:
        return Condition(lambda default: is_dense(sizes, strides))

    def is_contiguous(self, sizes: Any, strides: object) -> Condition:
        order = range(len(sizes) - 1, -1, -1)
        return Condition(lambda default: is_dense_in_order(sizes, strides, order))

    def is_channels_last_contiguous_2d(self, sizes: object, strides: object) -> Condition:
        return Condition(lambda default: is_dense_in_order(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_contiguous_3d(self, sizes: object, strides: object) -> Condition:
        return Condition(lambda default: is_dense_in_order(sizes, strides, (1, 4, 3, 2, 0)))

    def is_channels_last_strides_2d(self, sizes: object, strides: object) -> Condition:
        return Condition(lambda default: are_strides_in_order(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_strides_3d(self, sizes: object, strides: object) -> Condition:
        return Condition(lambda default: are_strides_in_order(sizes, strides, (1, 4, 3, 2, 0)))


@final
class ProgramInt(SymbolicSize):
    """A symbolic integer in a program's hands."""

    __slots__ = ()

    def __init__(self, size: SymbolicSize) -> None:
        super().__init__(size.facts, size.expr, size.hint)
        self.node = size

    def __sym_float__(self) -> float:
        """`torch.sym_float`: floats are not symbols, so the size is one value from here on."""
        return float(int(self))

    def _as(self, made: object) -> object:
        return program_value(made)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return repr(int(self))

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)


def of_expression(
    facts: Facts, expr: Expr, hint: int | None = None, is_current: bool = False
) -> Any:
    """The number of a constant expression, else the one object for it. is_current: it is written
    as it is known now."""
    constant = constant_value(expr)
    if constant is not None:
        return constant
    found = facts.objects.get(expr)
    if found is None:
        found = SymbolicSize(facts, expr, facts.hint_of(expr) if hint is None else hint)
        found.program = ProgramInt(found)
        found.program.program = found.program
        facts.objects[expr] = found
        if is_current:
            found._now, found._now_at = expr, facts.rewritten
    return found


def as_node(facts: Facts, value: object) -> object:
    """A size as C++ has it: numbers too are nodes."""
    return value if isinstance(value, SymbolicSize) else facts.numbers[value]


class _Numbers(dict[int, SymbolicSize]):
    """The nodes of plain integers, made when they are asked for."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts

    def __missing__(self, value: int) -> SymbolicSize:
        made = self[value] = SymbolicSize(self.facts, as_expr(value), value)
        made.program = value
        return made


def program_value(value: object) -> Any:
    """A size as a program may have it: plain numbers stay."""
    return value.program if isinstance(value, SymbolicSize) else value


def plain_size(value: object) -> Any:
    """A size as shape rules have it: what C++ wraps is unwrapped."""
    return value.node if isinstance(value, torch.SymInt) else value


def hint_of(value: object) -> Any:
    """A size's value at hand; numbers are their own."""
    return value.hint if isinstance(value, SymbolicSize) else value


# --- arithmetic ----------------------------------------------------------------------------------


_OPERATIONS: dict[str, tuple[_Operation, Arithmetic]] = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "floordiv": (floor_div, lambda a, b: a // b),
    "mod": (modulo, lambda a, b: a % b),
    "min": (minimum, min),
    "max": (maximum, max),
}


_RING = ("add", "sub", "mul")
_COMMUTATIVE = frozenset(("add", "mul", "min", "max"))
# Operations with a number, here on the right, that give the other operand.
_NEUTRAL = frozenset({("add", 0, True), ("sub", 0, True), ("mul", 1, True), ("floordiv", 1, True)})


def _combined(name: str, left: Any, right: Any) -> object:
    """The result of an operation on a symbolic and another integer."""
    symbolic = left if isinstance(left, SymbolicSize) else right
    other = right if symbolic is left else left
    if isinstance(other, torch.SymInt):
        number, other = other.node.maybe_as_int(), other.node
        if number is None:
            number = symbolic.maybe_as_int()
            if number is not None:  # what C++ has as nodes: the number is the other one
                symbolic, other = other, number
        else:
            other = number
    key: tuple[Any, ...]
    if isinstance(other, SymbolicSize):
        key = (name, id(other), symbolic is left)
    else:
        key = (name, other, symbolic is left or name in _COMMUTATIVE)
        if key in _NEUTRAL:
            return symbolic.node
    known = symbolic.known
    if key in known:
        return known[key]
    facts: Facts = symbolic.facts
    operands = _current(facts, left), _current(facts, right)
    known[key] = made = _calculated(facts, name, operands, (hint_of(left), hint_of(right)))
    return made


def _calculated(
    facts: Facts, name: str, operands: tuple[Expr, Expr], hints: tuple[int, int]
) -> Any:
    first, second = operands
    if name in ("floordiv", "mod") and (constant_value(second) or 0) <= 0:
        if not hints[1] or not facts.decide(Relation(second, "!=")):
            raise ZeroDivisionError("integer division or modulo by zero")
        if not facts.decide(Relation(second - 1, ">=")):
            first, second = -first, -second
            if name == "mod":
                return -of_expression(facts, facts.named(modulo(first, second)))
    elif name in ("min", "max"):
        larger = facts.follows(Relation(first - second, ">="))
        if larger is None:
            smaller = facts.follows(Relation(second - first, ">="))
            larger = None if smaller is None else not smaller
        if larger is not None:
            expr = first if larger is (name == "max") else second
            return of_expression(facts, expr)
    symbolic, numeric = _OPERATIONS[name]
    made = symbolic(first, second)
    if name not in _RING:  # of current operands, those are current
        made = facts.named(facts.current(made))
    return of_expression(facts, made, numeric(*hints), True)


def _current(facts: Facts, value: Any) -> Expr:
    if isinstance(value, SymbolicSize):
        if value.facts is not facts:
            return as_expr(int(value))
        return value.now()
    return as_expr(int(value))


def symbolic_maximum(left: object, right: object) -> object:
    """`max` of two integers, not decided where it is not known."""
    return _of_program("max", left, right)


def symbolic_minimum(left: object, right: object) -> Any:
    """`min` of two integers, not decided where it is not known."""
    return _of_program("min", left, right)


def _of_program(name: str, left: Any, right: Any) -> object:
    if isinstance(left, torch.SymInt) or isinstance(right, torch.SymInt):
        return program_value(_combined(name, left, right))
    return _OPERATIONS[name][1](left, right)


_INTEGERS = (int, torch.SymInt)


def _operator(name: str) -> tuple[object, object]:
    number = _OPERATIONS[name][1]

    def forward(self: SymbolicSize, other: object) -> object:
        if isinstance(other, _INTEGERS):
            return self._as(_combined(name, self, other))
        if isinstance(other, float):
            return number(int(self), other)
        return NotImplemented

    def reflected(self: SymbolicSize, other: object) -> object:
        if isinstance(other, _INTEGERS):
            return self._as(_combined(name, other, self))
        if isinstance(other, float):
            return number(other, int(self))
        return NotImplemented

    return forward, reflected


def _node_operator(name: str) -> object:
    def method(self: SymbolicSize, other: object) -> object:
        made = self.known.get((name, id(other), True))
        if made is None:
            made = _combined(name, self, other)
        return made if type(made) is SymbolicSize else as_node(self.facts, made)

    return method


def _divmod(self: SymbolicSize, other: Any) -> tuple[object, object]:
    return self // other, self % other


def _power(self: SymbolicSize, exponent: Any, modulus: Any = None) -> object:
    if modulus is None and type(exponent) is int and 0 <= exponent <= 4:
        return self._as(math.prod([self.node] * exponent))
    return pow(*[int(x) if isinstance(x, torch.SymInt) else x for x in (self, exponent, modulus)])


def _on_numbers(name: str) -> object:
    """An operation that needs both numbers."""
    method = getattr(int, name)

    def operation(self: SymbolicSize, other: object) -> object:
        if isinstance(other, torch.SymInt):
            other = int(other)
        if isinstance(other, float):
            return getattr(float(int(self)), name)(other)
        return method(int(self), other)

    return operation


def _of_number(name: str) -> Callable[..., object]:
    """A method of the number."""
    method = getattr(int, name)
    return lambda self, *args, **kwargs: method(int(self), *args, **kwargs)


# --- comparisons ---------------------------------------------------------------------------------

# `left op right` as a relation of (left - right), or of (right - left) where the sign is -1.
_COMPARISONS: dict[str, tuple[int, int, Kind]] = {
    "eq": (1, 0, "=="),
    "ne": (1, 0, "!="),
    "ge": (1, 0, ">="),
    "gt": (1, -1, ">="),
    "le": (-1, 0, ">="),
    "lt": (-1, -1, ">="),
}


def relation_of(name: str, left: object, right: Any) -> tuple[Facts, Relation]:
    """What a comparison of sizes says, and the facts that answer it."""
    facts = left.facts if isinstance(left, SymbolicSize) else right.facts
    sign, constant, kind = _COMPARISONS[name]
    first, second = _current(facts, left), _current(facts, right)
    if sign < 0:
        first, second = second, first
    return facts, Relation(first - (second - constant if constant else second), kind)


def _above(name: str, size: SymbolicSize, number: int) -> bool | None:
    """What a comparison gives where the size's lower bound decides it."""
    least = size.least()
    if least > number or (least == number and name in ("ge", "lt")):
        return name in ("ne", "gt", "ge")
    return None


def _comparison(name: str) -> Callable[..., object]:
    unlike = {"eq": False, "ne": True}.get(name, NotImplemented)

    def method(self: SymbolicSize, other: Any) -> object:
        if isinstance(other, int):
            known = self.known.get((name, other))
            if known is None:
                known = self.known[name, other] = _above(name, self, other)
            if known is not None:
                return known
        elif isinstance(other, torch.SymInt):
            other = other.node
            if other is self.node:
                return name in ("eq", "ge", "le")
            if other.facts is not self.facts:  # of another capture: equal in a cache's key only
                return unlike
            known = self.known.get((name, id(other), None))  # they live as long as the capture
            if known is not None:
                return known
        elif isinstance(other, (float, complex)):
            kind = float if isinstance(other, float) else complex
            return getattr(kind, f"__{name}__")(kind(int(self)), other)
        else:
            return NotImplemented  # the other one may know: `n == tensor` is a tensor
        facts, relation = relation_of(name, self, other)
        if type(self) is ProgramInt:
            truth = _unknown_truth(facts, relation)
            if truth is not None:
                return truth
        answer = facts.decide(relation)
        key = (name, other) if type(other) is int else (name, id(other), None)
        self.known[key] = answer
        return answer

    return method


def _unknown_truth(facts: Facts, relation: Relation) -> SymbolicTruth | None:
    """What a program's comparison gives that no size at hand may answer; else None."""
    if facts.data is None and not facts.has_unseen:
        return None
    if facts.follows(relation) is not None:
        return None
    if facts.data is not None and facts.data.concerns(facts.current(relation.expr)):
        return SymbolicTruth(facts, relation)
    return SymbolicTruth(facts, relation) if facts.is_unseen(relation.expr) else None


def _node_comparison(name: str) -> Callable[..., object]:
    def method(self: SymbolicSize, other: Any) -> Condition:
        known, key = self.known, (name, id(other))  # nodes live as long as the capture

        def ask(default: bool | None) -> bool:
            answer = known.get(key)
            number = other.maybe_as_int() if answer is None else None
            if number is not None:
                answer = known[key] = _above(name, self, number)
            if answer is None:
                facts, relation = relation_of(name, self, other)
                answer = facts.decide(relation) if default is None else facts.follows(relation)
                if answer is None:
                    return default is True
                known[key] = answer
            return answer

        def promise() -> bool:
            facts, relation = relation_of(name, self, other)
            return facts.require(relation)

        return Condition(ask, promise, self.facts)

    return method


def _install() -> None:
    """The operators, for programs and (under C++'s names) for nodes."""
    for name in ("add", "sub", "mul", "floordiv", "mod"):
        forward, reflected = _operator(name)
        setattr(SymbolicSize, f"__{name}__", forward)
        setattr(SymbolicSize, f"__r{name}__", reflected)
        setattr(SymbolicSize, name, _node_operator(name))
    for name in ("min", "max"):
        setattr(SymbolicSize, f"sym_{name}", _node_operator(name))
    for name in _COMPARISONS:
        setattr(SymbolicSize, f"__{name}__", _comparison(name))
        setattr(SymbolicSize, name, _node_comparison(name))
    for name in "truediv lshift rshift and or xor".split():
        setattr(SymbolicSize, f"__{name}__", _on_numbers(f"__{name}__"))
        setattr(SymbolicSize, f"__r{name}__", _on_numbers(f"__r{name}__"))
    for name in ("bit_length", "bit_count", "to_bytes"):
        setattr(SymbolicSize, name, _of_number(name))
    named = {"pow": _power, "__pow__": _power, "__rpow__": _on_numbers("__rpow__")}
    named |= {"__divmod__": _divmod, "int_floordiv": _node_operator("floordiv")}
    for name, method in {**named, "__hash__": object.__hash__}.items():
        setattr(SymbolicSize, name, method)


_install()


def symbol_size(facts: Facts, symbol: Symbol) -> object:
    """The size that a symbol is."""
    return of_expression(facts, facts.current(as_expr(symbol)))
