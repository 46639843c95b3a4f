"""Checks Python numbers against the dtype of a tensor, as the operator's kernel does.

    torch.full((2,), 1e51)      value cannot be converted to type float without overflow
    y.to(torch.uint8) + 300     wraps, as 300 % 256 does
    y + 1e51                    infinity

Which operators look at which of their numbers, and by which dtype, follows no rule: `fill_` takes
1e51 for a half tensor and `masked_fill_` does not. So the operator itself is asked, on tensors of
a few elements; what it says is remembered. A number that changes from call to call is tied to the
range of those that the operator takes: by guards on a number from outside, and by checks where the
program computes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Value
from braze.ir.types import TensorType
from braze.shapes.facts import Relation
from braze.shapes.symbolic import SymbolicSize
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.graph_inputs import input_type
from braze.tracing.op_schema import OpFacts
from braze.tracing.shape_rules.infer import freeze, thaw
from braze.tracing.shape_rules.strides import as_operand, contiguous
from braze.tracing.symbolic.symbolic_float import COMPARISONS, SymbolicFloat

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer


# Their numbers say how large the result is: they are asked as they are, of few elements.
_SIZED_BY_NUMBERS = frozenset({"aten::arange", "aten::range"})
_MOST_ELEMENTS = 1024
# Kernels have ways of their own for one element: so many stand for any number of them.
_SEVERAL = 2
# Arguments that say how large the result is.
_SIZES = frozenset({"size", "pad", "steps"})
# Tensors of positions: of zeros, which there are. Others hold ones, by which all can be divided.
_INDICES = frozenset({"index", "indices"})
# Every dtype holds these.
_LEAST, _MOST = 0, 127


def check_numbers(
    tracer: Tracer, facts: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Raise what eager raises for the numbers among an operator's arguments. One that changes from
    call to call is tied to those that the operator takes."""
    op, names = facts.op, facts.argument_names
    given = [
        (place, args[place] if place < len(args) else kwargs.get(names[place]))
        for place in facts.numbers
    ]
    takes_floats = _holds_fractions(args[0]) if args else False
    doubtful = [(place, n) for place, n in given if not _fits_all(n, takes_floats)]
    if not doubtful or not _may_ask(op, [number for _, number in given]):
        return
    question = _Question(facts, *_sampled(facts, args, kwargs), torch.get_default_dtype())
    for place, number in doubtful:
        if type(number) is SymbolicFloat:
            _tie_float(tracer, number, question.about(place, 1.0))
        elif isinstance(number, SymbolicSize):
            _tie_integer(number, question.about(place, 1))
    question.check()


# --- private ---------------------------------------------------------------------------------


def _holds_fractions(argument: Any) -> bool:
    if type(argument) is not TracedTensor:
        return False
    dtype = argument.place.type.dtype
    return dtype.is_floating_point or dtype.is_complex


def _fits_all(number: Any, takes_floats: bool) -> bool:
    """Whether no operator refuses the number. takes_floats: nor floats as such."""
    if isinstance(number, int) or (takes_floats and isinstance(number, float)):
        return _LEAST <= number <= _MOST
    return number is None


def _may_ask(op: torch._ops.OpOverload, numbers: list[Any]) -> bool:
    """Whether the operator's result has few elements where its numbers are as they are."""
    if op._schema.name not in _SIZED_BY_NUMBERS:
        return True
    if any(type(number) not in (int, float) for number in numbers):
        return False
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return bool(step) and abs(end - start) <= _MOST_ELEMENTS * abs(step)


_PLAIN = (int, float, complex)
_Key: TypeAlias = tuple[Any, ...]


@final
@frozen
class _Question:
    """Whether an operator takes its arguments: small tensors as their types, and numbers. args,
    kwargs: frozen. asked: the place of the one number that is asked about."""

    facts: OpFacts
    args: _Key
    kwargs: _Key
    default_dtype: torch.dtype
    asked: int = -1

    def about(self, place: int, number: Any) -> _Question:
        """The same question, about one number."""
        args, kwargs = self.args, self.kwargs
        if place < len(args[1]):
            items = list(args[1])
            items[place] = freeze(number)
            args = (args[0], tuple(items))
        else:
            named = {**dict(thaw(kwargs)), self.facts.argument_names[place]: number}
            kwargs = freeze(tuple(named.items()))
        return _Question(self.facts, args, kwargs, self.default_dtype, place)

    def takes(self, number: Any) -> bool:
        """Whether the operator takes another number in the place of the one asked about."""
        return self.about(self.asked, number)._raised() is None

    def check(self) -> None:
        """Raise what the operator raises because of its numbers. What is refused with ones in their
        place, too, is refused for another reason, and elsewhere."""
        error = self._raised()
        if error is not None and self._with_ones()._raised() is None:
            raise type(error)(*error.args)

    def _raised(self) -> Exception | None:
        return _raised(self.facts.op, self.args, self.kwargs, self.default_dtype)

    def _with_ones(self) -> _Question:
        plain = self
        args, named = thaw(self.args), dict(thaw(self.kwargs))
        for place in self.facts.numbers:
            name = self.facts.argument_names[place]
            number = args[place] if place < len(args) else named.get(name)
            if type(number) in _PLAIN:
                plain = plain.about(place, 1)
        return plain


@functools.lru_cache(maxsize=1 << 12)
def _raised(
    op: torch._ops.OpOverload, args: _Key, kwargs: _Key, default_dtype: torch.dtype
) -> Exception | None:
    """What an operator raises for arguments in which types stand for tensors."""
    names = [argument.name for argument in op._schema.arguments]
    try:  # tensors, too: the device that is traced for may not be there
        given = [_tensor(argument, name) for argument, name in zip(thaw(args), names)]
        named = {name: _tensor(argument, name) for name, argument in thaw(kwargs)}
        op(*given, **named)
    except Exception as error:
        error.__traceback__ = None
        return error
    return None


def _tensor(argument: Any, name: str) -> object:
    if type(argument) is TensorType:
        make = torch.zeros if name in _INDICES else torch.ones
        return make(as_operand(argument).shape, dtype=argument.dtype, device=argument.device)
    if isinstance(argument, (list, tuple)):
        return [_tensor(item, name) for item in argument]
    return argument


def _sampled(facts: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[_Key, _Key]:
    """The arguments, frozen, with tensors and results of few elements."""
    sampled = [_sample(value, name in _SIZES) for name, value in zip(facts.argument_names, args)]
    named = tuple([(name, _sample(value, name in _SIZES)) for name, value in kwargs.items()])
    return freeze(tuple(sampled)), freeze(named)


def _sample(argument: Any, is_size: bool = False) -> object:
    cls = type(argument)
    if isinstance(argument, torch.Tensor):
        found = argument.place.type if type(argument) is TracedTensor else input_type(argument)
        return contiguous(found.dtype, tuple(map(_fewer, found.shape)), found.device)
    if cls is list or cls is tuple:
        return tuple([_sample(item, is_size) for item in argument])
    if cls is SymbolicFloat:
        return 1.0
    return _fewer(argument) if is_size or isinstance(argument, SymbolicSize) else argument


def _fewer(size: Any) -> int:
    return max(min(size, _SEVERAL), 0) if type(size) is int else _SEVERAL


# --- numbers that change from call to call -----------------------------------------------------


@final
@frozen
class _Range:
    """The floats that an operator takes: from least to most, which are finite, and of those that
    are no number (infinities, NaN) which."""

    least: float
    most: float
    minus_infinity: bool
    infinity: bool
    nan: bool

    def ends(self) -> list[tuple[str, float]]:
        """The comparisons that hold for the finite ones, less what nothing is refused behind."""
        lower = self.least > -_LARGEST or not (self.minus_infinity and self.nan)
        upper = self.most < _LARGEST or not (self.infinity and self.nan)
        return [("ge", self.least)] * lower + [("le", self.most)] * upper


def _largest(dtype: torch.dtype) -> float:
    return float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)


_LARGEST = _largest(torch.float64)
_REALS = tuple(map(_largest, (torch.float16, torch.bfloat16, torch.float32)))
_WHOLES = tuple(
    map(_largest, (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)),
)
# Where ranges of dtypes end, from the middle outwards: as floats, and as integers.
_ENDS = sorted((*_REALS, *_WHOLES))
_LOWER_ENDS = sorted((0.0, *(-end for end in _REALS), *(-end - 1 for end in _WHOLES)), reverse=True)
_INTEGER_ENDS = [int(end) for end in _ENDS if end < _WHOLES[-1]]
_LOWER_INTEGER_ENDS = sorted(
    (0, *(-end for end in _INTEGER_ENDS), *(-end - 1 for end in _INTEGER_ENDS)), reverse=True
)


@functools.lru_cache(maxsize=1 << 10)
def _float_range(question: _Question) -> _Range | None:
    """The floats that an operator takes; None where they are no range that is known."""
    takes = question.takes
    most = _end(takes, _ENDS, lambda end: math.nextafter(end, math.inf), _LARGEST)
    least = _end(takes, _LOWER_ENDS, lambda end: math.nextafter(end, -math.inf), -_LARGEST)
    if most is None or least is None:
        return None
    return _Range(least, most, takes(-math.inf), takes(math.inf), takes(math.nan))


@functools.lru_cache(maxsize=1 << 10)
def _integer_range(question: _Question) -> tuple[int | None, int | None] | None:
    """The least and the most integer that an operator takes, where there are such."""
    takes = question.takes
    most = _end(takes, _INTEGER_ENDS, lambda end: end + 1, math.inf)
    least = _end(takes, _LOWER_INTEGER_ENDS, lambda end: end - 1, -math.inf)
    if most is None or least is None:
        return None
    return (None if least == -math.inf else least), (None if most == math.inf else most)


def _end(
    takes: Callable[[Any], bool],
    ends: Sequence[float],
    beyond: Callable[[Any], Any],
    none: float,
) -> Any:
    """The end behind which nothing is taken, `none` if there is none; None where neither is so."""
    for end in ends:
        if not takes(beyond(end)):
            return end if takes(end) else None
    return none if math.isinf(none) or takes(none) else None


def _tie_float(tracer: Tracer, number: SymbolicFloat, question: _Question) -> None:
    """Let a symbolic float be one that the operator takes, whatever it is at a call."""
    if not question.takes(1):
        return  # what is refused is not the number
    found = _float_range(question)
    hint = number.hint
    if found is None or (hint is not None and not found.least <= hint <= found.most):
        question.about(question.asked, float(number)).check()  # settles it, or breaks the graph
        return
    ends = found.ends()
    if number.compared is not None:
        for sign, end in ends:
            COMPARISONS[sign](number, end)  # the answer is guarded
    elif ends and tracer.check_number is not None:
        held = tracer.recorder.read(number.tensor.place)
        if (held, found) not in tracer.integers:
            tracer.integers[held, found] = True
            tracer.check_number(lambda: _in_range(tracer.recorder.emit, held, found))


_SIGNS = {"ge": aten.ge.Scalar, "le": aten.le.Scalar}


def _in_range(emit: Callable[..., Any], number: Value, found: _Range) -> Value:
    """Whether the graph's number is in the range, as a tensor."""
    inside = [emit(_SIGNS[sign], (number, end), {}) for sign, end in found.ends()]
    holds: Value = functools.reduce(lambda a, b: emit(aten.logical_and.default, (a, b), {}), inside)
    for is_taken, end in ((found.minus_infinity, -math.inf), (found.infinity, math.inf)):
        if is_taken:
            other = emit(aten.eq.Scalar, (number, end), {})
            holds = emit(aten.logical_or.default, (holds, other), {})
    if found.nan:
        other = emit(aten.ne.Tensor, (number, number), {})
        holds = emit(aten.logical_or.default, (holds, other), {})
    return holds


def _tie_integer(number: SymbolicSize, question: _Question) -> None:
    """Let a symbolic integer be one that the operator takes."""
    if not question.takes(1):
        return
    found = _integer_range(question)
    is_open = number.is_open()
    if found is None or (not is_open and not _is_between(found, number.hint)):
        question.about(question.asked, int(number)).check()
        return
    least, most = found
    needed = []
    if least is not None:
        needed.append(Relation(number.now() - least, ">="))
    if most is not None:
        needed.append(Relation(-number.now() + most, ">="))
    if not all(map(number.facts.require, needed)):
        raise DataDependent(str(question.facts.op), "it never takes the number that is computed")


def _is_between(ends: tuple[int | None, int | None], number: int) -> bool:
    least, most = ends
    return (least is None or least <= number) and (most is None or number <= most)
