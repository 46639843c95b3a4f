"""Fits result shapes of operators without a rule by asking their meta kernels at several sizes.

    meta kernel at s0 = 6, 7, 9, 14, ...  ->  results of 12, 14, 18, 28, ...  ->  2*s0

Meta kernels take numbers, not symbols. Where one expression explains the results at the sizes at
hand and at six others, it is taken; what an ATen kernel returns at run time is compared with it.
Where none does, sizes of zero and one are taken as they are, and if that is not enough, every size
that the call depends on is specialised.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from braze.ir.types import TensorType
from braze.shapes.demands import is_computed, symbolic_among
from braze.shapes.expr import Symbol, as_expr, constant_value, range_of, symbols
from braze.shapes.facts import Facts, Relation
from braze.shapes.substitution import evaluate
from braze.shapes.symbolic import SymbolicSize
from braze.shapes.unknowns import SpecialisedError
from braze.tracing.shape_rules.strides import tensor_type
from braze.tracing.symbolic.size_conditions import conditions_of

# How far from the sizes at hand each probe is; other symbols go on from another place, each in
# strides of its own: their number is a prime, so that none meets a few of them only.
_STEPS = (1, 3, 8, 2, 5, 13, 4, 21, 7, 11, 34, 17, 6)
_PROBES = 8
# Attempts at smaller sizes than at hand: how far they are from the least to those at hand.
_SMALLER = {1: 0.0, 4: 0.6}
_MOST_TRIES = 52
_POINTS = 3

_ROUNDS = 3
_REFUSALS = (RuntimeError, ValueError, IndexError)
_REFUSED: Any = object()

Infer = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Ask = Callable[[Mapping[Symbol, int]], Any]


def infer_by_probing(infer: Infer, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """What `infer` gives for numbers, for arguments with symbolic sizes."""
    sizes = list(dict.fromkeys(_sizes_in((args, kwargs))))
    facts: Facts = sizes[0].facts
    try:
        first = infer(*_numbers((args, kwargs), facts, facts.hints))
    except _REFUSALS:
        for size in sizes:  # with others it may not raise, or say something else
            with contextlib.suppress(SpecialisedError):  # the program's error comes first
                int(size)
        raise

    def ask(values: Mapping[Symbol, int]) -> Any:
        try:
            return infer(*_numbers((args, kwargs), facts, values))
        except _REFUSALS:
            return _REFUSED

    fitted = None
    if _are_conditions_met(facts, sizes, dimensions_in((args, kwargs)), ask):
        fitted = _fitted_to_probes(facts, sizes, first, ask)
    if fitted is not None:
        _check_small(infer, args, kwargs, facts, fitted[0])
        return fitted[0]
    small = [size for size in sizes if size.hint < 2 and constant_value(size.now()) is None]
    if small:  # strides of such sizes follow rules of their own: as they are, the others may do
        for size in small:
            int(size)
        return infer_by_probing(infer, args, kwargs)
    for size in sizes:
        int(size)
    return first


def _are_conditions_met(
    facts: Facts, sizes: Sequence[SymbolicSize], dimensions: Sequence[SymbolicSize], ask: Ask
) -> bool:
    """Require what has to hold of sizes so that no probe raises; False where some still do.

    A probe that raises says that a call may, which fits the guards of one that does not. So none
    is passed over: the error is the program's, or the sizes have something in common.
    """
    for _ in range(_ROUNDS):
        probes = itertools.islice(_known_probes(facts, sizes), _PROBES)
        if all(ask(probe) is not _REFUSED for probe in probes):
            return True
        asked = (facts.current(size.expr) for size in dimensions)
        found = conditions_of(facts, asked, lambda values: ask(values) is not _REFUSED)
        open_ones = [relation for relation in found if facts.follows(relation) is None]
        if not open_ones:
            return False
        for relation in open_ones:
            if facts.follows(relation) is None and not facts.require(relation):
                return False
        if all(constant_value(size.now()) is not None for size in dimensions):
            return False
    return False


def _fitted_to_probes(
    facts: Facts, sizes: Sequence[SymbolicSize], first: object, ask: Ask
) -> tuple[object] | None:
    """(The result in symbols,) that all probes agree with. Where those with smaller sizes than at
    hand do not, it is that of the others, and sizes are as large as now at least."""
    values = [facts.hints, *itertools.islice(_known_probes(facts, sizes), _PROBES)]
    for least in (None, facts.hints):
        if least is not None:
            every = itertools.islice(_known_probes(facts, sizes), _MOST_TRIES)
            chosen = [v for v in every if all(v[s] >= n for s, n in least.items())]
            values = [facts.hints, *chosen[:_PROBES]]
        if len(values) < _PROBES:
            return None
        results = [first, *map(ask, values[1:])]
        if any(result is _REFUSED for result in results):
            return None
        fitted = _fitted(results, _Candidates(sizes, values))
        if fitted is not None:
            if least is not None:
                for symbol in _free_symbols(facts, sizes):
                    facts.require(Relation(as_expr(symbol) - least[symbol], ">="))
            _settle_held(facts, sizes, values)
            return fitted
    return None


def _check_small(
    infer: Infer, args: tuple[object, ...], kwargs: dict[str, object], facts: Facts, fitted: object
) -> None:
    """Numbers that the program computes may be zero or one: where the operator raises then, or
    gives another shape, the program checks that they are not."""
    if facts.data is None:
        return
    sizes = [n for n in dict.fromkeys(_sizes_in((args, kwargs))) if is_computed(n)]
    for size, small in itertools.product(sizes, (0, 1)):
        named = symbols(facts.current(size.expr)) & facts.data.estimates.keys()
        values = facts.assignment(dict.fromkeys(named, small))
        if values is None:
            continue
        try:
            found = infer(*_numbers((args, kwargs), facts, values))
            same = _shapes(found) == _shapes(_numbers(fitted, facts, values))
        except _REFUSALS:
            same = False
        if not same:
            facts.require_other(size.now(), small)


def _shapes(result: object) -> tuple[object, ...] | None:
    if isinstance(result, (tuple, list)):
        return tuple(map(_shapes, result))
    return result.shape if isinstance(result, TensorType) else None


def facts_of(arguments: object) -> Facts | None:
    """What is known of the symbols among arguments and types; None where there are none."""
    for size in _sizes_in(arguments):
        return size.facts
    return None


def has_symbols(arguments: object) -> bool:
    """Whether a size among arguments and types is symbolic."""
    return facts_of(arguments) is not None


def in_numbers(arguments: object) -> Any:
    """The arguments at the sizes at hand, all of which are specialised."""
    sizes = list(_sizes_in(arguments))
    for size in sizes:
        int(size)
    facts: Facts = sizes[0].facts
    return _numbers(arguments, facts, facts.hints)


# --- numbers for symbols -------------------------------------------------------------------------


def _sizes_in(argument: object) -> Iterable[SymbolicSize]:
    if isinstance(argument, TensorType):
        yield from symbolic_among((*argument.shape, *argument.stride))
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _sizes_in(item)
    elif isinstance(argument, dict):
        yield from _sizes_in(tuple(argument.values()))
    elif isinstance(argument, SymbolicSize):
        yield argument


def dimensions_in(argument: object) -> list[SymbolicSize]:
    """The symbolic sizes among arguments, without strides."""
    if isinstance(argument, TensorType):
        return [*symbolic_among(argument.shape)]
    if isinstance(argument, dict):
        argument = tuple(argument.values())
    if isinstance(argument, (tuple, list)):
        return [size for item in argument for size in dimensions_in(item)]
    return [argument] if isinstance(argument, SymbolicSize) else []


def _numbers(argument: object, facts: Facts, values: Mapping[Symbol, int]) -> Any:
    """The arguments at some values of the symbols."""
    if isinstance(argument, TensorType):
        shape, stride = (
            tuple([_numbers(n, facts, values) for n in sizes])
            for sizes in (argument.shape, argument.stride)
        )
        return tensor_type(argument.dtype, shape, stride, argument.device)
    if isinstance(argument, (tuple, list)):
        return type(argument)([_numbers(item, facts, values) for item in argument])
    if isinstance(argument, dict):
        return {name: _numbers(item, facts, values) for name, item in argument.items()}
    if isinstance(argument, SymbolicSize):
        return evaluate(facts.current(argument.expr), values)
    return argument


def _known_probes(facts: Facts, sizes: Sequence[SymbolicSize]) -> Iterable[dict[Symbol, int]]:
    """Other values of the symbols for which all that is known holds."""
    free = _linked(facts, _free_symbols(facts, sizes))
    if free not in facts.probes:
        facts.probes[free] = [], iter(_probes(facts, free))
    found, further = facts.probes[free]
    yield from found
    for probe in further:
        found.append(probe)
        yield probe


def _free_symbols(facts: Facts, sizes: Sequence[SymbolicSize]) -> tuple[Symbol, ...]:
    """The symbols that the sizes are made of."""
    named = {s for size in sizes for s in symbols(facts.current(size.expr))}
    for symbol, meaning in facts.derived():
        if symbol in named:
            named |= symbols(meaning)
    return tuple(sorted(named, key=str))


def _linked(facts: Facts, free: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
    """With the symbols that an assumed relation ties to these: where a mask is as long as the
    tokens at least, no longer tokens are found while the mask stays as it is."""
    relations = [symbols(facts.current(known.relation.expr)) for known in facts.assumed]
    open_relations = [named for named in relations if len(named) > 1]
    named, size = set(free), -1
    while open_relations and len(named) != size:
        size = len(named)
        named.update(*(tied for tied in open_relations if not named.isdisjoint(tied)))
    return tuple(sorted(named, key=str))


def _settle_held(
    facts: Facts, sizes: Sequence[SymbolicSize], values: Sequence[dict[Symbol, int]]
) -> None:
    """Specialise symbols that had one value at all probes: nothing was found out about others."""
    for symbol in _free_symbols(facts, sizes):
        if len({probe[symbol] for probe in values}) == 1 and symbol not in facts.meaning:
            facts.specialise(as_expr(symbol))


def _probes(facts: Facts, free: Sequence[Symbol]) -> Iterable[dict[Symbol, int]]:
    """At first every symbol varies by itself; then those that are equal now stay equal: many calls
    fit nothing else."""
    hints = sorted({facts.hints[symbol] for symbol in free})
    for attempt in range(_MOST_TRIES):
        changes = {}
        for place, symbol in enumerate(free):
            if attempt >= _MOST_TRIES // 2:
                place = hints.index(facts.hints[symbol])
            step = _STEPS[(attempt * (place + 1) + 5 * place) % len(_STEPS)]
            changes[symbol] = facts.hints[symbol] + step * (1 + attempt // len(_STEPS)) ** 2
            if attempt in _SMALLER:
                changes[symbol] = _smaller(facts, symbol, _SMALLER[attempt])
        probe = facts.assignment(changes)
        for held in free if probe is None else ():  # a symbol of which little else is allowed
            probe = facts.assignment({s: n for s, n in changes.items() if s is not held})
            if probe is not None:
                break
        if probe is not None:
            yield probe


def _smaller(facts: Facts, symbol: Symbol, share: float) -> int:
    """A smaller value of a symbol than at hand, on the way to the least that it may have."""
    now, (least, _) = facts.hints[symbol], range_of(symbol, facts.ranges)
    least = 2 if least is None else max(least, 2)
    return now if now <= least else least + int((now - least) * share)


# --- expressions for numbers ---------------------------------------------------------------------


class _Candidates:
    """What results may be made of: the sizes of the arguments, with their values at each probe."""

    def __init__(self, sizes: Sequence[SymbolicSize], values: Sequence[dict[Symbol, int]]) -> None:
        facts: Facts = sizes[0].facts
        self.known = [
            (size, [evaluate(facts.current(size.expr), v) for v in values]) for size in sizes
        ]

    def explain(self, numbers: Sequence[int]) -> object:
        """The expression that gives these numbers, or None."""
        if len(set(numbers)) == 1:
            return numbers[0]
        for size, values in self.known:
            if values == list(numbers):
                return size
        for size, values in self.known:
            line = _line(values, numbers)
            if line is not None:
                return size * line[0] + line[1]
        for (a, first), (b, second) in itertools.combinations(self.known, 2):
            for sums, made in (
                ([x + y for x, y in zip(first, second)], a + b),
                ([x * y for x, y in zip(first, second)], a * b),
            ):
                line = _line(sums, numbers)
                if line is not None:
                    return made * line[0] + line[1]
        return None

    def note(self, size: object, numbers: Sequence[int]) -> None:
        """A result's size may explain other numbers."""
        if isinstance(size, SymbolicSize):
            self.known.append((size, list(numbers)))


def _line(values: Sequence[int], numbers: Sequence[int]) -> tuple[int, int] | None:
    """(factor, constant) with factor * value + constant for all numbers. Through two points there
    always is a line, which says nothing."""
    ends = [(v, n) for v, n in zip(values, numbers) if v != values[0]]
    if len(set(values)) < _POINTS:
        return None
    factor, rest = divmod(ends[0][1] - numbers[0], ends[0][0] - values[0])
    constant = numbers[0] - factor * values[0]
    fits = not rest and all(factor * v + constant == n for v, n in zip(values, numbers))
    return (factor, constant) if fits else None


def _fitted(results: Sequence[Any], candidates: _Candidates) -> tuple[object] | None:
    """(the result in symbols,) that agrees with every probe's; None where nothing does."""
    first = results[0]
    if isinstance(first, (tuple, list)):
        if len({len(r) for r in results}) != 1:
            return None
        parts = [_fitted([r[i] for r in results], candidates) for i in range(len(first))]
        return None if None in parts else (tuple([part[0] for part in parts if part]),)
    if not isinstance(first, TensorType):
        if all(r == first for r in results):
            return (first,)
        # A number among the results, as attention gives the longest sequence of its batch.
        found = candidates.explain(results) if all(type(r) is int for r in results) else None
        return None if found is None else (found,)
    if len({(r.dtype, len(r.shape)) for r in results}) != 1:
        return None
    shape = []
    for dim in range(len(first.shape)):
        numbers = [r.shape[dim] for r in results]
        shape.append(candidates.explain(numbers))
        candidates.note(shape[-1], numbers)
    stride = _strides(results, shape, candidates)
    if stride is None or None in shape:
        return None
    return (tensor_type(first.dtype, tuple(shape), stride, first.device),)


def _strides(
    results: Sequence[Any], shape: Sequence[Any], candidates: _Candidates
) -> tuple[object, ...] | None:
    """Strides as products of sizes inside, or as one of the arguments' numbers."""
    rank = len(shape)
    columns = [[r.stride[d] for r in results] for d in range(rank)]
    made: list[Any] = [None] * rank
    for dim in sorted(range(rank), key=lambda d: (columns[d][0], -d)):
        if len(set(columns[dim])) == 1:
            made[dim] = columns[dim][0]
            continue
        for inner in range(rank):
            if made[inner] is None or shape[inner] is None:
                continue
            reached = [r.stride[inner] * r.shape[inner] for r in results]
            if reached == columns[dim]:
                made[dim] = made[inner] * shape[inner]
                break
        else:
            made[dim] = candidates.explain(columns[dim])
            if made[dim] is None:
                return None
    return tuple(made)
