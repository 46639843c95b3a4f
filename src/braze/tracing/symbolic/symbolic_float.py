"""Symbolic floats: Python floats that the graph computes, on the CPU in double precision.

    step.item()            %2: f64[] = _to_copy(%1, f64)
    1 - 0.9 ** step        %3 = pow(0.9, %2); %4 = rsub(%3, 1.0)
    x.mul_(1 - ...)        %5: float = _local_scalar_dense(%4); %6 = mul(%0, %5)

Such a float is a `torch.SymFloat`, so that PyTorch's C++ takes it where it takes numbers, and its
own node. What needs its value (a comparison, a hash, its text) specialises a float that came from
outside, and raises DataDependent for one that depends on tensors. Where Python raises, or gives a
complex number, the graph's number is infinite or NaN: `Tracer.check_number` hears of it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Value
from braze.ir.types import ScalarType, TensorType
from braze.shapes.demands import is_computed
from braze.shapes.facts import Relation
from braze.shapes.symbolic import ProgramInt, SymbolicSize
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

NUMBER = TensorType(torch.float64, (), (), torch.device("cpu"))
_FLOAT = ScalarType(float)
# Settles a float from outside to the value that it has: adds the guard.
Specialise = Callable[[], object]
# Settles only how a float from outside compares: (the comparison's name, with what, the answer).
Compared = Callable[[str, float, bool], None]


@final
class SymbolicFloat(torch.SymFloat):
    """tensor: the 0-dim float64 fake tensor that holds it. hint: its value now, where it depends on
    numbers from outside only; `specialise` then ties the program to those. compared: of a number
    from outside itself, ties the program to the answer of a comparison alone. is_positive: whatever
    the sizes are that it is made of. ratio: two sizes, where it is surely one divided by the other
    and at most rounded once, so that its whole part is the quotient's."""

    __slots__ = (
        *("_value", "compared", "hint", "is_positive", "ratio"),
        *("specialise", "tensor", "tracer"),
    )

    def __init__(
        self,
        tracer: Tracer,
        tensor: TracedTensor,
        hint: float | None = None,
        specialise: tuple[Specialise, ...] = (),
        compared: Compared | None = None,
    ) -> None:
        self.tracer = tracer
        self.tensor = tensor
        self.hint = hint
        self.specialise = specialise
        self.compared = compared
        self.is_positive = False
        self.ratio: tuple[Any, Any] | None = None
        self._value: Value | None = None

    @property
    def node(self) -> Any:
        """What C++ asks: the object itself."""
        return self

    def value(self) -> Value:
        """The number as operators take it."""
        if self._value is None:
            recorder = self.tracer.recorder
            number = recorder.read(self.tensor.place)
            read = aten._local_scalar_dense.default
            self._value = recorder.emit_typed(read, (number,), {}, _FLOAT)
        assert self._value is not None
        return self._value

    def example(self) -> float:
        """A number like it, for shape rules."""
        return 0.5 if self.hint is None else self.hint

    # --- numbers ---------------------------------------------------------------------------------

    def __float__(self) -> float:
        if self.hint is None:
            raise DataDependent("float", "the number depends on the values of a tensor")
        for settle in self.specialise:
            settle()
        return self.hint

    def __int__(self) -> int:
        return int(float(self))

    __trunc__ = __int__

    def __floor__(self) -> int:
        return math.floor(float(self))

    def __ceil__(self) -> int:
        return math.ceil(float(self))

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash(float(self))

    def __repr__(self) -> str:
        return repr(float(self))

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __round__(self, digits: int | None = None) -> float | int:
        return round(float(self), digits)

    def __pos__(self) -> SymbolicFloat:
        return self

    def conjugate(self) -> SymbolicFloat:
        """Of a real number, itself."""
        return self

    def is_integer(self) -> bool:
        """Needs the number."""
        return float(self).is_integer()

    def as_integer_ratio(self) -> tuple[int, int]:
        """Needs the number."""
        return float(self).as_integer_ratio()

    def hex(self) -> str:
        """Needs the number."""
        return float(self).hex()

    def __deepcopy__(self, memory: object) -> SymbolicFloat:
        return self

    def __copy__(self) -> SymbolicFloat:
        return self

    # --- what C++ asks of a node -----------------------------------------------------------------

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_bool = is_nested_int = is_constant = is_int

    def is_symbolic(self) -> bool:
        return True

    has_hint = is_symbolic

    def clone(self) -> Any:
        return self

    def maybe_as_int(self) -> None:
        return None

    constant_int = constant_bool = maybe_as_int

    def guard_float(self, file: str, line: int) -> float:
        return float(self)

    def float_(self) -> float:
        return float(self)

    def sym_float(self) -> SymbolicFloat:
        return self


def holds_number(tracer: Tracer, tensor: object) -> bool:
    """Whether the number that a tensor holds can be computed with in the graph."""
    if not tracer.gives_numbers or type(tensor) is not TracedTensor:
        return False
    kind = tensor.place.type
    plain = kind.dtype.is_floating_point and kind.dtype.itemsize > 1
    return plain and kind.shape == () and kind.device.type == "cpu"


def tensor_of_number(tracer: Tracer, number: object) -> object:
    """The tensor that eager makes of a number in the place of a tensor: of the widest type."""
    kinds = {bool: torch.bool, complex: torch.complex128, float: torch.float64}
    kinds[SymbolicFloat] = torch.float64
    options = {"dtype": kinds.get(type(number), torch.int64), "device": NUMBER.device}
    return tracer.call(aten.scalar_tensor.default, (number,), options)


NUMBERS = frozenset({bool, int, float, complex, SymbolicSize, SymbolicFloat})


def with_tensor(
    tracer: Tracer, op: torch._ops.OpOverload, args: tuple[object, ...]
) -> tuple[object, ...]:
    """Arguments of an operator among which is no tensor, where the first, a number, is to be one:
    C++ gives the tensor that it made of a number as the number."""
    if not isinstance(op._schema.arguments[0].type, torch.TensorType):
        return args
    return (tensor_of_number(tracer, args[0]), *args[1:])


def number_of(tracer: Tracer, tensor: TracedTensor) -> SymbolicFloat:
    """`tensor.item()` of a 0-dim floating point tensor on the CPU."""
    number = tracer.recorder.read(tensor.place)
    assert isinstance(number.type, TensorType)
    if number.type.dtype is not torch.float64:
        number = tracer.recorder.emit(aten._to_copy.default, (number,), {"dtype": torch.float64})
    else:  # the number stays what it is when the tensor is written to
        number = tracer.recorder.emit(aten.clone.default, (number,), {})
    return number_at(tracer, number)


def float_of(tracer: Tracer, size: ProgramInt) -> SymbolicFloat:
    """A symbolic size as a float."""
    known = tracer.integers.get((float, size.node))
    if known is None:
        options = {"dtype": torch.float64, "device": NUMBER.device}
        value = tracer.recorder.emit(aten.full.default, ((), size.node), options)
        computed = is_computed(size)
        hint = None if computed else float(size.hint)
        settle = functools.partial(int, size)
        known = SymbolicFloat(tracer, tracer.fake_for(value), hint, () if computed else (settle,))
        known.is_positive = size.facts.follows(Relation(size.expr - 1, ">=")) is True
        known.ratio = (size, 1)
        tracer.integers[float, size.node] = known
    return known


def calculated(
    op: Any, operands: tuple[object, ...], python: Callable[..., float]
) -> SymbolicFloat:
    """An operator of ATen on symbolic floats and numbers; `python` does the same on numbers."""
    tracer = next(x.tracer for x in operands if type(x) is SymbolicFloat)
    values = [number_value(tracer, x) for x in operands]
    result = tracer.recorder.emit(op, values, {})
    made = _made(tracer, result, operands, python)
    is_open = made.hint is None or (python is operator.pow and _may_overflow(*operands))
    raises_unless = _RAISES_UNLESS.get(python) if is_open else None
    if raises_unless is None or tracer.check_number is None:
        return made
    if not (python in _OF_POSITIVE and _is_positive(operands[-1])):
        emit = tracer.recorder.emit
        tracer.check_number(lambda: raises_unless(emit, values, result))
    return made


def chosen(
    compare: Any, best: object, other: object, python: Callable[[object, object], float]
) -> SymbolicFloat:
    """`other` where `compare` says so of it and `best`, else `best`; `python` does the same."""
    operands = (best, other)
    tracer = next(x.tracer for x in operands if type(x) is SymbolicFloat)
    first, second = (number_value(tracer, x) for x in operands)
    is_better = tracer.recorder.emit(compare, (second, first), {})
    value = tracer.recorder.emit(aten.where.self, (is_better, second, first), {})
    return _made(tracer, value, operands, python)


def compared(sign: str, left: object, right: object) -> Value:
    """A comparison of numbers, as a tensor."""
    tracer = next(x.tracer for x in (left, right) if type(x) is SymbolicFloat)
    values = [number_value(tracer, x) for x in (left, right)]
    found: Value = tracer.recorder.emit(_COMPARE[sign], values, {})
    return found


def number_at(tracer: Tracer, value: Value) -> SymbolicFloat:
    """The number that a 0-dim float64 value on the CPU is."""
    return SymbolicFloat(tracer, tracer.fake_for(value))


_COMPARE = {
    "<": aten.lt.Tensor,
    "<=": aten.le.Tensor,
    ">": aten.gt.Tensor,
    ">=": aten.ge.Tensor,
    "==": aten.eq.Tensor,
    "!=": aten.ne.Tensor,
}


# --- private ---------------------------------------------------------------------------------


def _made(
    tracer: Tracer, value: Value, operands: tuple[object, ...], python: Callable[..., float]
) -> SymbolicFloat:
    """A calculated number, with what it is now where the operands are known."""
    made = tracer.fake_for(value)
    hints = [x.hint if type(x) is SymbolicFloat else x for x in operands]
    hint: float | None = None
    settles: tuple[Specialise, ...] = ()
    if None not in hints:
        try:
            found = python(*hints)
        except ArithmeticError:
            found = None
        if found is not None and type(found) in (float, int):
            hint = float(found)
            symbolic = [x for x in operands if type(x) is SymbolicFloat]
            settles = tuple(dict.fromkeys(s for x in symbolic for s in x.specialise))
    number = SymbolicFloat(tracer, made, hint, settles)
    number.is_positive = python in _POSITIVE and all(map(_is_positive, operands))
    number.ratio = _ratio_of(operands, python)
    return number


# --- where Python raises --------------------------------------------------------------------------

_Emit: TypeAlias = Callable[..., Value]
_RaisesUnless: TypeAlias = Callable[[_Emit, Sequence[Value], Value], Value]


def _is_finite(emit: _Emit, number: Value) -> Value:
    return emit(aten.lt.Scalar, (emit(aten.abs.default, (number,), {}), math.inf), {})


def _not_infinite(emit: _Emit, values: Sequence[Value], result: Value) -> Value:
    return emit(aten.ne.Scalar, (emit(aten.abs.default, values, {}), math.inf), {})


def _not_zero(emit: _Emit, values: Sequence[Value], result: Value) -> Value:
    return emit(aten.ne.Scalar, (values[1], 0), {})


def _not(comparison: object) -> _RaisesUnless:
    def otherwise(emit: _Emit, values: Sequence[Value], result: Value) -> Value:
        return emit(aten.logical_not.default, (emit(comparison, (values[0], 0), {}),), {})

    return otherwise


def _stays_finite(emit: _Emit, values: Sequence[Value], result: Value) -> Value:
    """Of finite operands the result is finite."""
    holds = _is_finite(emit, result)
    for operand in values:
        other = emit(aten.logical_not.default, (_is_finite(emit, operand),), {})
        holds = emit(aten.logical_or.default, (holds, other), {})
    return holds


# What Python does -> the condition outside of which it raises, or gives a complex number.
_RAISES_UNLESS: dict[Any, _RaisesUnless] = {
    operator.truediv: _not_zero,
    operator.pow: _stays_finite,
    math.exp: _stays_finite,
    math.sqrt: _not(aten.lt.Scalar),
    math.log: _not(aten.le.Scalar),
    math.sin: _not_infinite,
    math.cos: _not_infinite,
}
_OF_POSITIVE = (operator.truediv, math.sqrt, math.log)  # never, if the last operand is positive


def _is_positive(operand: Any) -> bool:
    if type(operand) is SymbolicFloat:
        return operand.is_positive
    return bool(operand > 0)


def _ratio_of(operands: tuple[object, ...], python: object) -> tuple[Any, Any] | None:
    """Of a size times a small fraction, and of a quotient of such: nothing was rounded before."""
    if python not in (operator.mul, operator.truediv) or not all(map(_is_positive, operands)):
        return None
    (over, under), (first, second) = (_exact_ratio(x) for x in operands)
    if over is None or first is None:
        return None
    if python is operator.truediv:
        return over * second, under * first
    return (over * first, under * second) if type(under) is type(second) is int else None


def _exact_ratio(operand: Any) -> tuple[Any, Any]:
    if type(operand) is SymbolicFloat:
        ratio = operand.ratio
        if ratio is None or type(ratio[1]) is not int or ratio[1] & (ratio[1] - 1):
            return None, None  # not a power of two
        return ratio
    if not math.isfinite(operand):
        return None, None
    over, under = float(operand).as_integer_ratio()
    return (over, under) if over < _EXACT and under < _EXACT else (None, None)


_EXACT = 1 << 16
_POSITIVE = (
    *(operator.add, operator.mul, operator.truediv, operator.pow),
    *(math.sqrt, max, min),
)


def number_value(tracer: Tracer, operand: Any) -> Value:
    """A number as the 0-dim tensor that the graph computes with."""
    if type(operand) is SymbolicFloat:
        return tracer.recorder.read(operand.tensor.place)
    options = {"dtype": torch.float64, "device": NUMBER.device}
    made: Value = tracer.recorder.emit(aten.full.default, ((), float(operand)), options)
    return made


_BINARY: dict[str, tuple[Any, Callable[..., Any]]] = {
    "add": (aten.add.Tensor, operator.add),
    "sub": (aten.sub.Tensor, operator.sub),
    "mul": (aten.mul.Tensor, operator.mul),
    "truediv": (aten.div.Tensor, operator.truediv),
    "pow": (aten.pow.Tensor_Tensor, operator.pow),
}
_UNARY: dict[str, tuple[Any, Callable[..., Any]]] = {
    "neg": (aten.neg.default, operator.neg),
    "abs": (aten.abs.default, abs),
}
COMPARISONS: dict[str, Callable[[float | SymbolicFloat, float], bool]] = {
    name: getattr(operator, name) for name in "eq ne lt le gt ge".split()
}
_ON_NUMBERS: dict[str, Callable[..., Any]] = {
    **COMPARISONS,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}


def _binary(op: object, python: Callable[..., object]) -> tuple[object, object]:
    def forward(self: SymbolicFloat, other: object) -> object:
        other = _known(other)
        if type(other) not in _OPERANDS:
            return NotImplemented
        return _safely(op, self, other, python)

    def reflected(self: SymbolicFloat, other: object) -> object:
        other = _known(other)
        if type(other) not in _OPERANDS:
            return NotImplemented
        return _safely(op, other, self, python)

    return forward, reflected


def _safely(op: object, left: Any, right: Any, python: Callable[..., Any]) -> object:
    """An operator of two numbers. Where Python may raise, or give a complex number, a number from
    outside is guarded to be positive, or taken as it is."""
    if python is operator.truediv or python is operator.pow:
        is_power = python is operator.pow
        asked = left if is_power else right
        whole = is_power and type(right) is int and right >= 0
        is_open = is_from_outside(right) or (is_power and is_from_outside(left) and not whole)
        if is_open and not (is_safe(asked) or is_guarded_positive(asked)):
            left = float(left) if is_power and is_from_outside(left) else left
            right = float(right) if is_from_outside(right) else right
        if is_power:
            if _may_overflow(left, right) and left.tracer.check_number is None:
                left = float(left)
            right = _bounded(left, right)
        if SymbolicFloat not in (type(left), type(right)):
            return python(left, right)
    return calculated(op, (left, right), python)


def _bounded(base: Any, exponent: Any) -> object:
    """An exponent from outside, which is guarded to stay as small as the range of floats asks."""
    if type(base) not in (int, float) or base <= 1 or not is_from_outside(exponent):
        return exponent
    most = int(_LARGEST_EXPONENT / math.log2(base))
    is_size = exponent.ratio is not None and exponent.ratio[1] == 1
    fits = (exponent.ratio[0] if is_size else exponent) <= most
    return exponent if fits else float(exponent)


_LARGEST_EXPONENT = 1023  # of two, in double precision


def _may_overflow(base: Any, exponent: Any) -> bool:
    """Whether the power of a number from outside may be too large for a float at another call."""
    if not is_from_outside(base) or type(exponent) not in (int, float):
        return is_from_outside(base)
    is_size = base.ratio is not None and base.ratio[1] == 1
    return abs(exponent) > _LARGEST_POWER if is_size else not 0 <= exponent <= 1


_LARGEST_POWER = 21  # of a size, which has less than 48 bits


def is_safe(operand: object) -> bool:
    """Whether Python neither raises for this divisor (or base) nor gives a complex number."""
    return type(operand) in (int, float, SymbolicFloat) and _is_positive(operand)


def is_guarded_positive(operand: object) -> bool:
    """Whether a number from outside is positive, which ties the program to that alone."""
    if type(operand) is not SymbolicFloat or operand.compared is None or not operand.hint:
        return False
    return operand.hint > 0 and bool(operand > 0)


def is_from_outside(number: object) -> bool:
    """Whether a number is a symbolic float that depends on no tensor."""
    return type(number) is SymbolicFloat and number.hint is not None


def _known(number: object) -> object:
    """A symbolic size as the number that it is: the program is tied to it."""
    return int(number) if isinstance(number, torch.SymInt) else number


def _unary(op: object, python: Callable[..., Any]) -> Callable[..., object]:
    return lambda self: calculated(op, (self,), python)


def _on_numbers(name: str, python: Callable[..., Any]) -> object:
    def method(self: SymbolicFloat, other: Any) -> object:
        other = _known(other)  # else `==` of a number and a size that are equal would be False
        if not isinstance(other, (int, float, complex, SymbolicFloat)):
            return NotImplemented
        compared = self.compared if name in COMPARISONS else None
        if compared is not None and (type(other) is int or type(other) is float):
            answer: bool = python(self.hint, other)
            compared(name, other, answer)
            return answer
        return python(float(self), float(other) if type(other) is SymbolicFloat else other)

    return method


_OPERANDS = frozenset({int, float, bool, SymbolicFloat})


def _install() -> None:
    for name, (op, python) in _BINARY.items():
        forward, reflected = _binary(op, python)
        setattr(SymbolicFloat, f"__{name}__", forward)
        setattr(SymbolicFloat, f"__r{name}__", reflected)
    for name, (op, python) in _UNARY.items():
        setattr(SymbolicFloat, f"__{name}__", _unary(op, python))
    for name, python in _ON_NUMBERS.items():
        setattr(SymbolicFloat, f"__{name}__", _on_numbers(name, python))
    # Python drops a class's hash where it defines equality.
    setattr(SymbolicFloat, "__hash__", lambda self: hash(float(self)))  # noqa: B010


_install()
