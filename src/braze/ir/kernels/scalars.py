"""Constructors and walks of scalar expressions: what lowering and scheduling both build with.

`cast` and `apply` fold what needs no proof (a cast to the same dtype, multiplication by one), so
that rules may be written plainly. They never change a rounding; `without_round_trips` does.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import (
    SCALAR_OPS,
    Apply,
    Cast,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    Reduce,
    Scalar,
    Scatter,
)
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value
from braze.shapes.substitution import substitute

Operand: TypeAlias = Scalar | bool | int | float | Expr

# Floats of a byte; of those that PyTorch has, these are the ones that loops convert from and to.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

# The float dtype in which arithmetic on a dtype happens, where it is not the dtype itself.
COMPUTE_DTYPES: dict[torch.dtype, torch.dtype] = dict.fromkeys(
    (torch.float16, torch.bfloat16, *FLOAT8), torch.float32
)

_BOOLEAN_FORMS = {
    "add": "or",
    "maximum": "or",
    "mul": "and",
    "minimum": "and",
    "sub": "xor",
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic on values of `dtype`: float32 for what is narrower."""
    return COMPUTE_DTYPES.get(dtype, dtype)


def literal(value: bool | int | float | Expr, dtype: torch.dtype) -> Scalar:
    """A constant converted to `dtype` as `torch.full` does it, integers wrapped; a size that is
    not known likewise."""
    if type(value) is Expr:
        return cast(index(value), dtype)
    if dtype == torch.bool:
        return Literal(bool(value), dtype)
    if dtype.is_floating_point:
        return Literal(float(value), dtype)
    return Literal(_wrapped(int(value), dtype), dtype)


def stored_number(value: bool | int | float | Expr, dtype: torch.dtype) -> Scalar:
    """What a tensor of `dtype` holds of a number, in the dtype of its arithmetic: of 0.1 bfloat16
    holds 0.10009765625."""
    wide = compute_dtype(dtype)
    if wide == dtype:
        return literal(value, dtype)
    if type(value) is Expr:
        return cast(cast(index(value), dtype), wide)
    return literal(float(torch.tensor(value, dtype=dtype, device="cpu")), wide)


def cast(operand: Scalar, dtype: torch.dtype) -> Scalar:
    """`operand` converted to `dtype`, without steps that change nothing."""
    if operand.dtype == dtype:
        return operand
    if isinstance(operand, Literal):
        return _cast_literal(operand, dtype)
    if isinstance(operand, Cast) and is_exact(operand.operand.dtype, operand.dtype):
        return cast(operand.operand, dtype)
    return Cast(operand, dtype)


def is_exact(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of `source` survives conversion to `target` (and so a second one)."""
    return (source, target) in _EXACT


_NUMBERS = (bool, int, float, Expr)


def apply(op: str, *operands: Operand) -> Scalar:
    """`op` of `SCALAR_OPS`; Python numbers take the dtype of the first scalar operand. On bool,
    add, mul, sub, maximum and minimum become their logical forms."""
    row = SCALAR_OPS[op]
    dtype = next(x.dtype for x in reversed(operands) if not isinstance(x, _NUMBERS))
    typed = tuple(literal(x, dtype) if isinstance(x, _NUMBERS) else x for x in operands)
    if dtype == torch.bool:
        op = _BOOLEAN_FORMS.get(op, op)
    if op in _ON_NUMBERS and all(isinstance(operand, Literal) for operand in typed):
        folded = _fold_literals(op, typed)
        if folded is not None:
            return folded
    if op in _SIMPLIFIED:
        simple = _SIMPLIFIED[op](typed)
        if simple is not None:
            return simple
    return Apply(op, typed, torch.bool if row.result == "bool" else dtype)


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    """The scalar operands directly below, coordinates of loads included."""
    below = _CHILDREN.get(type(scalar))
    return () if below is None else below(scalar)


def walk(scalar: Scalar) -> Iterator[Scalar]:
    """Every node, parents first; one that is shared comes once: as a tree it may be huge."""
    return iter(_nodes(scalar))


def expressions(coordinates: Sequence[Expr | Scalar]) -> tuple[Expr, ...]:
    """Coordinates of which none is an element that is loaded (a gather)."""
    found = tuple([place for place in coordinates if isinstance(place, Expr)])
    assert len(found) == len(coordinates), coordinates
    return found


def loads(scalar: Scalar) -> Iterator[Load]:
    """Every load in the tree."""
    return (node for node in _nodes(scalar) if type(node) is Load)


def replace_children(scalar: Scalar, replace: Callable[[Scalar], Scalar]) -> Scalar:
    """The node with `replace` applied to each scalar directly below it; the node itself where that
    changes nothing: programs are large, and most passes touch little of them."""
    if isinstance(scalar, Apply):
        operands = tuple(map(replace, scalar.operands))
        if all(map(operator.is_, operands, scalar.operands)):
            return scalar
        return Apply(scalar.op, operands, scalar.dtype)
    if isinstance(scalar, Load):
        if all(isinstance(c, Expr) for c in scalar.coordinates):
            return scalar
        coordinates = tuple(c if isinstance(c, Expr) else replace(c) for c in scalar.coordinates)
        return Load(scalar.buffer, coordinates)
    if isinstance(scalar, Cast):
        operand = replace(scalar.operand)
        return scalar if operand is scalar.operand else cast(operand, scalar.dtype)
    if isinstance(scalar, InRange):
        return InRange(replace(scalar.operand), scalar.size)
    if isinstance(scalar, Guarded):
        return Guarded(replace(scalar.condition), replace(scalar.value), replace(scalar.other))
    if isinstance(scalar, Reduce):
        body = replace(scalar.body)
        if body is scalar.body:
            return scalar
        return Reduce(scalar.kind, scalar.axes, body, scalar.dtype)
    if isinstance(scalar, Scatter):
        positions = tuple(None if p is None else replace(p) for p in scalar.positions)
        return Scatter(scalar.kind, positions, replace(scalar.value), scalar.in_order)
    return scalar


def substitute_symbols(scalar: Scalar, replacements: Mapping[Symbol, Expr]) -> Scalar:
    """The tree with index symbols replaced by index expressions."""

    def replace(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Index):
            expr = substitute(node.expr, replacements)
            return node if expr is node.expr else Index(expr)
        if isinstance(node, Load):
            coordinates = tuple(
                substitute(c, replacements) if isinstance(c, Expr) else below(c)
                for c in node.coordinates
            )
            if all(map(operator.is_, coordinates, node.coordinates)):
                return node
            return Load(node.buffer, coordinates)
        return replace_children(node, below)

    return rebuild(scalar, replace)


def rebuild(
    scalar: Scalar, replace: Callable[[Scalar, Callable[[Scalar], Scalar]], Scalar]
) -> Scalar:
    """`replace(node, below)` at the root, where `below` does the same for a node further down.
    What is shared is replaced once and stays shared."""
    return _Below({}, replace)(scalar)


def index(expr: Expr | int | Symbol) -> Scalar:
    """An index expression as an int64 scalar; constants become literals."""
    constant = constant_value(expr)
    return Index(as_expr(expr)) if constant is None else Literal(constant, torch.int64)


def without_round_trips(scalar: Scalar) -> Scalar:
    """Cast(f32, Cast(bf16, x)) becomes x for x of float32: one rounding less than eager's. Not of a
    0-dim tensor: there the rounding is promotion's, and comparisons depend on it."""
    return rebuild(scalar, _without_round_trip)


def _without_round_trip(scalar: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
    if isinstance(scalar, Cast):
        inner = scalar.operand
        if (
            isinstance(inner, Cast)
            and inner.dtype in COMPUTE_DTYPES
            and inner.dtype not in FLOAT8  # who rounds to those means it
            and inner.operand.dtype == scalar.dtype == COMPUTE_DTYPES[inner.dtype]
            and not (isinstance(inner.operand, Load) and not inner.operand.coordinates)
        ):
            return below(inner.operand)
    return replace_children(scalar, below) if children(scalar) else scalar


# --- private ---------------------------------------------------------------------------------

# By class: every stage walks trees, and a chain of `isinstance` is asked to its end for each leaf.
# What is not here has nothing below it.
_CHILDREN: dict[type, Callable[[Any], tuple[Scalar, ...]]] = {
    Apply: lambda scalar: scalar.operands,
    Cast: lambda scalar: (scalar.operand,),
    InRange: lambda scalar: (scalar.operand,),
    Guarded: lambda scalar: (scalar.condition, scalar.value, scalar.other),
    Reduce: lambda scalar: (scalar.body,),
    Load: lambda scalar: tuple([c for c in scalar.coordinates if type(c) is not Expr]),
    Scatter: lambda scalar: (*[p for p in scalar.positions if p is not None], scalar.value),
}


def _nodes(scalar: Scalar) -> list[Scalar]:
    """Every node, in the order of `walk`."""
    found: list[Scalar] = []
    stack, seen, get = [scalar], {id(scalar)}, _CHILDREN.get
    while stack:
        node = stack.pop()
        found.append(node)
        below = get(type(node))
        if below is None:
            continue
        for child in below(node)[::-1]:
            key = id(child)
            if key not in seen:
                seen.add(key)
                stack.append(child)
    return found


@final
@frozen(eq=False)
class _Below:
    """What `rebuild` does to a node, and what it became. No closure, which would refer to itself:
    what it has seen would then live until garbage is collected, long after the compile."""

    done: dict[int, Scalar]
    replace: Callable[[Scalar, Callable[[Scalar], Scalar]], Scalar]

    def __call__(self, node: Scalar) -> Scalar:
        found = self.done.get(id(node))
        if found is None:
            found = self.done[id(node)] = self.replace(node, self)
        return found


def _exact_conversions() -> set[tuple[torch.dtype, torch.dtype]]:
    integers = [torch.int8, torch.int16, torch.int32, torch.int64]
    pairs = {(integers[i], integers[j]) for i in range(4) for j in range(i + 1, 4)}
    pairs |= {(torch.uint8, wide) for wide in integers[1:]}
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    pairs |= {(small, wide) for small in FLOAT8 for wide in floats[2:]}
    pairs |= {(half, wide) for half in floats[:2] for wide in floats[2:]}
    pairs |= {(torch.float32, torch.float64)}
    small = [torch.uint8, torch.int8, torch.int16]
    pairs |= {(s, f) for s in small for f in floats[2:]} | {(torch.int32, torch.float64)}
    # Not integers of a byte to half types: a GPU computes bfloat16(w) * s in pairs of halves, and
    # rounds w * s one by one (test_operands_are_computed_beside_the_next_blocks_on_their_way).
    pairs |= {(torch.bool, other) for other in [torch.uint8, *integers, *floats]}
    return pairs


_EXACT = _exact_conversions()


def _wrapped(value: int, dtype: torch.dtype) -> int:
    information = torch.iinfo(dtype)
    span = 1 << information.bits
    return (value - information.min) % span + information.min


def _cast_literal(operand: Literal, dtype: torch.dtype) -> Scalar:
    value = operand.value
    if dtype in COMPUTE_DTYPES:
        return Literal(float(torch.tensor(value, dtype=dtype, device="cpu")), dtype)
    if not dtype.is_floating_point and isinstance(value, float) and not math.isfinite(value):
        return literal(True, dtype) if dtype == torch.bool else Cast(operand, dtype)
    return literal(value, dtype)


_ON_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "maximum": lambda x, y: x if x > y else y,  # of zeros the second, as the kernels have it
    "minimum": lambda x, y: x if x < y else y,
}


def _fold_literals(op: str, operands: tuple[Scalar, ...]) -> Scalar | None:
    """The result of two finite numbers; float32 ones are rounded first, as they would be."""
    dtype = operands[0].dtype
    values = [x.value for x in operands if isinstance(x, Literal)]
    if dtype == torch.float32:
        if any(abs(value) > _LARGEST_FLOAT32 for value in values):
            return None
        values = [struct.unpack("f", struct.pack("f", value))[0] for value in values]
    if not all(map(math.isfinite, values)) or (op == "truediv" and values[1] == 0):
        return None
    return literal(_ON_NUMBERS[op](*values), dtype)


_LARGEST_FLOAT32 = torch.finfo(torch.float32).max


def _is_literal(scalar: Scalar, value: int) -> bool:
    return isinstance(scalar, Literal) and scalar.value == value


def _simplified_mul(operands: tuple[Scalar, ...]) -> Scalar | None:
    left, right = operands
    if _is_literal(right, 1):
        return left
    return right if _is_literal(left, 1) else None


def _simplified_add(operands: tuple[Scalar, ...]) -> Scalar | None:
    left, right = operands
    if left.dtype.is_floating_point:  # -0.0 + 0 is 0.0
        return None
    if _is_literal(right, 0):
        return left
    return right if _is_literal(left, 0) else None


def _simplified_where(operands: tuple[Scalar, ...]) -> Scalar | None:
    condition, chosen, other = operands
    if isinstance(condition, Literal):
        return chosen if condition.value else other
    return None


def _simplified_division(operands: tuple[Scalar, ...]) -> Scalar | None:
    return operands[0] if _is_literal(operands[1], 1) else None


_SIMPLIFIED: dict[str, Callable[[tuple[Scalar, ...]], Scalar | None]] = {
    "mul": _simplified_mul,
    "add": _simplified_add,
    "truediv": _simplified_division,
    "where": _simplified_where,
}
