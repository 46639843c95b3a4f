"""Runs an operator's kernel on small tensors to learn which arguments it rejects.

    torch.where(x, x, x)          where expected condition to be a boolean tensor
    x.index_select(0, i.short())  Expected dtype int32 or int64 for index
    x[1:].copy_(x[:-1])           some elements of the input tensor and the written-to tensor ...

Which dtypes, numbers of dimensions and numbers an operator takes, and whether what it writes to may
overlap what it reads, follows no rule, and shape rules know results, not refusals. So the operator
itself is asked, once for each combination of dtypes, ranks and numbers: on tensors of the sizes at
hand where those are few elements, else on smaller ones that shape rules take. What is
remembered says nothing of sizes: those are the shape rules' matter. Of a number that is an operand
it says the sign, whether it is zero or one, and its width in bits; dimensions and sizes are exact.

What is refused because of the data that stand for the program's (a singular matrix) is taken:
tensors of zeros and of ones have both to be refused. How often a mask is true says how many indices
and values go with it: these are one each, which go with any number. Operators that draw random
numbers are not asked, nor are those on a device, whose kernels say other things.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from braze.compat.torch.aten import LinAlgError, aten
from braze.ir.types import MASKS, TensorType
from braze.shapes.demands import is_computed, symbolic_among
from braze.shapes.symbolic import SymbolicSize
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, TracedTensor
from braze.tracing.op_schema import OpFacts
from braze.tracing.shape_rules.argument_types import place_type
from braze.tracing.shape_rules.infer import freeze, infer, thaw
from braze.tracing.shape_rules.strides import as_operand, contiguous
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

# So many elements are asked about as they are; beyond, sizes are this at most.
_FEW, _SEVERAL = 1 << 13, 2
# Memory that is laid out as the program's, in elements; results, at most.
_MOST_MEMORY, _MOST_RESULTS = 1 << 16, 1 << 20
# Kinds of arguments that are remembered of an operator; what it is called with may have no end.
_MOST_KINDS = 1 << 10
_SHAPES = frozenset({"normalized_shape", "size", "input_sizes", "self_sizes", "N", "C", "HxW"})
# What is said of sizes that are not the program's, where shape rules say nothing.
_OF_SIZES = ("out of range", "INTERNAL ASSERT FAILED")
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError)


def check_arguments(
    tracer: Tracer, facts: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Raise what the operator's kernel raises for these arguments. Untraceable where memory that it
    writes to overlaps what it reads, and is too large to be asked about."""
    signature: list[Any] = []
    for place, argument in enumerate(args):
        cls = type(argument)
        if cls is TracedTensor:
            type_ = argument.place.type
            signature.append(type_.dtype)
            signature.append(-1 if 0 in type_.shape else len(type_.shape))
        elif cls is int and place in facts.operands:
            signature.append((cls, argument < 0, argument == 0, argument == 1, _width(argument)))
        elif cls is float:
            signature.append((cls, argument < 0, argument == 0, argument <= 1))
        elif cls is list and _EXACT.issuperset(map(type, argument)):
            signature.append(tuple(argument))
        else:
            signature.append(cls)
            signature.append(argument if cls in _EXACT else _signature(argument))
    for name, argument in kwargs.items():
        signature.append(name)
        signature.append(argument if type(argument) in _EXACT else _signature(argument))
    key, taken = tuple(signature), facts.taken
    if key not in taken and _check(facts, args, kwargs):
        if len(taken) >= _MOST_KINDS:
            taken.clear()
        taken.add(key)
    if facts.written:
        _check_overlap(facts, args, kwargs)


# --- private ---------------------------------------------------------------------------------

_EXACT = frozenset(
    {int, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format}
)


# Bits of the integers that dtypes hold, without and with a sign.
_WIDTHS = (7, 8, 15, 16, 31, 32, 63, 64)


def _width(number: int) -> int:
    """The narrowest integers that hold a number."""
    return bisect.bisect_left(_WIDTHS, number.bit_length())


def _signature(argument: Any) -> Any:
    """What of an argument decides whether it is taken."""
    cls = type(argument)
    if isinstance(argument, torch.Tensor):
        type_ = place_type(argument)
        return type_.dtype, -1 if 0 in type_.shape else len(type_.shape)
    if cls is list or cls is tuple:
        return tuple([_signature(item) for item in argument])
    if cls is float:
        return cls, argument < 0, argument == 0, argument <= 1
    return (cls, argument) if cls in _EXACT else cls


def _check(facts: OpFacts, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Raise what the operator raises; whether it was asked, and takes the arguments."""
    types, named = place_type(tuple(args)), {n: place_type(a) for n, a in kwargs.items()}
    types = _beside_masks(facts, types)
    tensors = list(_tensors((types, tuple(named.values()))))
    symbols = list(symbolic_among(n for t in tensors for n in t.shape))
    if is_computed(*symbols):
        return False
    if symbols:
        types, named = _at_hand(types), {n: _at_hand(t) for n, t in named.items()}
        tensors = list(_tensors((types, tuple(named.values()))))
    if not tensors or any(t.device.type != "cpu" or _is_open(t.shape) for t in tensors):
        return False
    if any(0 in t.shape for t in tensors):
        return True  # kernels are not asked about those
    if any("pivots" in name for name in facts.argument_names):
        return True  # kernels write where pivots say, also outside of their memory: never made up
    others = tuple(
        [t for n, t in enumerate(types) if n not in facts.operands or type(t) is not int]
    )
    factor = _largest_factor((others, tuple(named.values())))
    if factor is None:
        return False
    total = sum(_count(as_operand(t).shape) for t in tensors)
    is_exact = total <= _FEW and total * factor <= _MOST_RESULTS
    limit = _FEW if is_exact else _SEVERAL
    if factor * sum(_SEVERAL ** len(t.shape) for t in tensors) > _MOST_RESULTS:
        return False
    sampled = [_sampled(t, limit, n in _SHAPES) for n, t in zip(facts.argument_names, types)]
    key = tuple(sampled), tuple([(n, _sampled(t, limit, n in _SHAPES)) for n, t in named.items()])
    modes = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
    error = _refusal(facts, freeze(key), is_exact, modes)
    if error is not None:
        for size in symbols:
            int(size)  # specialised: at other sizes the operator is asked again
        raise type(error)(*error.args)
    return True


def _beside_masks(facts: OpFacts, types: tuple[object, ...]) -> tuple[Any, ...]:
    """The arguments, indices and values of one element where a mask is among the indices."""
    names = facts.argument_names
    if "indices" not in names[: len(types)]:
        return types
    place = names.index("indices")
    indices = types[place]
    if not isinstance(indices, tuple) or not any(map(_is_mask, indices)):
        return types
    single = tuple([t if _is_mask(t) else _of_one_element(t) for t in indices])
    return (*types[:place], single, *map(_of_one_element, types[place + 1 :]))


def _is_mask(argument: object) -> bool:
    return type(argument) is TensorType and argument.dtype in MASKS


def _of_one_element(argument: object) -> object:
    if type(argument) is not TensorType:
        return argument
    shape = tuple([0 if type(n) is int and n == 0 else 1 for n in argument.shape])
    return contiguous(argument.dtype, shape, argument.device)


def _at_hand(argument: object) -> Any:
    """An argument whose tensors have the sizes at hand for symbols, of which nothing is learnt."""
    if type(argument) is TensorType and _is_open(argument.shape):
        shape: Any = tuple([_now_at_hand(size) for size in argument.shape])
        return contiguous(argument.dtype, shape, argument.device)
    if isinstance(argument, (list, tuple)):
        return tuple([_at_hand(item) for item in argument])
    return argument


def _now_at_hand(size: object) -> object:
    """A size's number in this call. What is known of it may be newer than the size."""
    return size.facts.hint_of(size.now()) if isinstance(size, SymbolicSize) else size


def _is_open(shape: Sequence[object]) -> bool:
    return any(type(size) is not int for size in shape)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _tensors(arguments: Any) -> Iterator[TensorType]:
    for argument in arguments:
        if type(argument) is TensorType:
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)


def _largest_factor(arguments: Any) -> int | None:
    """By how much numbers among the arguments may make a result larger than its operands; None
    where a number is not known."""
    factor = 1
    for argument in arguments:
        if isinstance(argument, SymbolicSize):
            return None
        if isinstance(argument, (list, tuple)):
            inner = _largest_factor(argument)
            if inner is None:
                return None
            factor *= inner
        elif type(argument) is int:
            factor *= max(1, abs(argument))
    return factor


def _sampled(argument: object, limit: int, is_shape: bool = False) -> object:
    """An argument of few elements. is_shape: its numbers are sizes of other arguments."""
    if type(argument) is TensorType:
        shape: Any = argument.shape
        return contiguous(argument.dtype, tuple([min(n, limit) for n in shape]), argument.device)
    if isinstance(argument, (list, tuple)):
        return tuple([_sampled(item, limit, is_shape) for item in argument])
    if is_shape and type(argument) is int:
        return min(argument, limit)
    return 1.0 if type(argument) is SymbolicFloat else argument


@functools.lru_cache(maxsize=1 << 12)
def _refusal(
    facts: OpFacts, key: object, is_exact: bool, modes: tuple[object, ...]
) -> Exception | None:
    """What the operator raises, whatever tensors hold; None if it takes the arguments, or if
    smaller ones stand for them which shape rules do not take. modes: of the process, on which it
    depends."""
    types, named = thaw(key)
    for fill in (torch.zeros, torch.ones):
        error = _raised(facts.op, types, named, fill)
        if error is None:
            return None
    if isinstance(error, LinAlgError):
        return None
    if is_exact:
        return error
    says_sizes = any(words in str(error) for words in _OF_SIZES)
    return (
        None if says_sizes or not _fit(facts, types, named) or _is_of_sizes(facts, key) else error
    )


def _is_of_sizes(facts: OpFacts, key: object) -> bool:
    """Whether smaller tensors may be refused for being so small: those of one floating dtype and
    usual indices are, too. Channels that groups do not divide, an image smaller than the window:
    the program's own sizes may be taken. Operators on single elements know no sizes."""
    if torch.Tag.pointwise in facts.op.tags:
        return False
    types, named = thaw(key)
    tensors = _tensors((types, tuple([t for _, t in named])))
    floating = next((t.dtype for t in tensors if t.dtype.is_floating_point), torch.float32)
    usual = tuple([_usual(t, floating) for t in types])
    usually = tuple([(name, _usual(t, floating)) for name, t in named])
    if (usual, usually) == (tuple(types), tuple(named)):
        return True
    return _raised(facts.op, usual, usually, torch.ones) is not None


def _usual(argument: object, floating: torch.dtype) -> object:
    """An argument of that floating dtype, or of the usual one of indices."""
    if isinstance(argument, (list, tuple)):
        return type(argument)([_usual(item, floating) for item in argument])
    if type(argument) is not TensorType or argument.dtype in (torch.bool, floating):
        return argument
    is_number = argument.dtype.is_floating_point or argument.dtype.is_complex
    return replace(argument, dtype=floating if is_number else torch.int64)


def _raised(op: torch._ops.OpOverload, types: Any, named: Any, fill: object) -> Exception | None:
    try:
        op(*[_made(t, fill) for t in types], **{name: _made(t, fill) for name, t in named})
    except _REFUSALS as error:
        error.__traceback__ = None
        return error
    return None


def _fit(facts: OpFacts, types: Any, named: Any) -> bool:
    """Whether shape rules take the arguments."""
    outs = {facts.argument_names[place] for place in facts.written}
    try:
        infer(
            facts.functional or facts.op,
            types,
            {name: t for name, t in named if name not in outs or facts.functional is None},
        )
    except (*_REFUSALS, Untraceable):
        return False
    return True


def _made(argument: Any, fill: Any) -> object:
    if type(argument) is TensorType:
        return fill(argument.shape, dtype=argument.dtype, device="cpu")
    if isinstance(argument, (list, tuple)):
        return [_made(item, fill) for item in argument]
    return argument


# --- memory ----------------------------------------------------------------------------------


def _check_overlap(facts: OpFacts, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Raise what the operator does where what it writes to overlaps another argument in memory."""
    written = set()
    for place in facts.written:
        name = facts.argument_names[place]
        target = args[place] if place < len(args) else kwargs.get(name)
        for one in target if isinstance(target, (list, tuple)) else (target,):
            if type(one) is TracedTensor:
                written.add(one.place.base or one.place)
    places = list(_places((args, tuple(kwargs.values()))))
    if len(places) == len({place.base or place for place in places}):
        return
    shared = [place for place in places if (place.base or place) in written]
    if len(shared) < 2 or _is_same_memory(facts, shared):
        return
    spans = [(place, *_span(place)) for place in shared]
    if not any(
        (one.base or one) is (other.base or other) and start < other_end and other_start < end
        for n, (one, start, end) in enumerate(spans)
        for other, other_start, other_end in spans[:n]
    ):
        return
    first, last = min(start for _, start, _ in spans), max(end for _, _, end in spans)
    if last - first > _MOST_MEMORY or len({place.type.dtype for place in shared}) > 1:
        raise Untraceable("a write to memory that another operand of the operator overlaps")
    _ask_in_place(facts.op, args, kwargs, set(map(id, shared)), first, last)


def _is_same_memory(facts: OpFacts, shared: list[Place]) -> bool:
    """Whether a copy is one of memory to itself, as `x[i] += 1` ends with: eager takes those."""
    if facts.op is not aten.copy_.default:
        return False
    one, other = shared
    return (
        one.type.shape == other.type.shape
        and one.type.stride == other.type.stride
        and one.offset == other.offset
    )


def _places(arguments: Any) -> Iterator[Place]:
    for argument in arguments:
        if type(argument) is TracedTensor:
            yield argument.place
        elif isinstance(argument, (list, tuple)):
            yield from _places(argument)


def _span(place: Place) -> tuple[int, int]:
    """The first element in its storage, and the one behind the last. Specialises sizes."""
    start = end = int(place.offset)
    for size, step in zip(place.type.shape, place.type.stride):
        if int(size) == 0:
            return start, start
        end += (int(size) - 1) * int(step)
    return start, end + 1


def _ask_in_place(
    op: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: dict[str, object],
    shared: set[int],
    first: int,
    last: int,
) -> None:
    """Call the operator on memory laid out as the program's."""
    memory: dict[Place, torch.Tensor] = {}

    def laid_out(argument: object) -> Any:
        if isinstance(argument, (list, tuple)):
            return [laid_out(item) for item in argument]
        if not isinstance(argument, torch.Tensor):
            return 1.0 if type(argument) is SymbolicFloat else argument
        type_ = place_type(argument)
        shape, stride = map(_numbers, (type_.shape, type_.stride))
        if type(argument) is not TracedTensor or id(argument.place) not in shared:
            return torch.zeros(shape, dtype=type_.dtype, device="cpu")
        base = argument.place.base or argument.place
        if base not in memory:
            memory[base] = torch.zeros(last - first, dtype=type_.dtype, device="cpu")
        return memory[base].as_strided(shape, stride, int(argument.place.offset) - first)

    op(*[laid_out(a) for a in args], **{name: laid_out(a) for name, a in kwargs.items()})


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple([int(size) for size in sizes])
