"""Sizes and numbers of a frame's inputs as symbols, and the guards that their use leads to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from braze.compat.torch.nn_modules import is_parameter
from braze.errors import ConstraintViolated
from braze.ir.captured.frame import CapturedFrame, FromSizes
from braze.ir.captured.guard import Guard, GuardKind, SizeCondition
from braze.ir.captured.source import (
    AttributeSource,
    ItemSource,
    LocalSource,
    PeekSource,
    SizeSource,
    Source,
    StackSource,
    StrideSource,
)
from braze.ir.origin import UNKNOWN, Origin
from braze.marks import DimensionMark, Marked, marks_of_dimensions
from braze.shapes.expr import Expr, Symbol, as_expr, maximum, symbols
from braze.shapes.facts import ENDLESS, MOST, Assumed, Facts, Relation, relation_text
from braze.shapes.policy import SizePolicy
from braze.shapes.substitution import substitute
from braze.shapes.symbolic import ProgramInt, hint_of, program_value, symbol_size
from braze.shapes.unknowns import SpecialisedError, Unknown

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

Layout = tuple[tuple[Any, ...], tuple[Any, ...]]
_STRICT = (DimensionMark.DYNAMIC, DimensionMark.UNBACKED)


@final
class DynamicSizes:
    """The symbols of one attempt to capture a frame.

    facts: what is known of them; None while there is none. notes: lines for the log.
    moderate: of floats from outside, where it was asked, whether they are small.
    """

    def __init__(
        self, policy: SizePolicy | None, tracer: Tracer, origin: Any, copies_freely: bool = False
    ) -> None:
        self._policy = policy
        self._copies_freely = copies_freely
        self._tracer = tracer
        tracer.open_facts = self._opened
        self._origin = origin
        self.facts: Facts | None = None
        self.notes: list[tuple[str, Origin]] = []
        self.moderate: dict[Source, bool] = {}
        self._numbers: dict[Source, Any] = {}
        self._texts: dict[int, tuple[str, Source]] = {}
        self._promised: list[tuple[Symbol, int | None, int | None]] = []
        self._strides: list[tuple[Source, Any, Origin]] = []

    # --- taking in -------------------------------------------------------------------------------

    def layout(self, real: torch.Tensor, source: Source) -> Layout | None:
        """Sizes and strides of a tensor from outside; None where all are static."""
        policy = self._policy
        if policy is None or real.layout is not torch.strided or not real.dim():
            return None
        marks = marks_of_dimensions(real)
        if not marks and is_parameter(real):
            return None
        numbers = (*real.shape, *real.stride())
        static = [dim for dim, marked in marks.items() if marked.mark is DimensionMark.STATIC]
        chosen = policy.sizes(
            self._text(source),
            numbers,
            asked=marks.keys() - static,
            static=static,
            is_argument=is_argument(source),
        )
        if not chosen:
            return None
        rank = real.dim()
        shape = [
            self._size(source, dim, numbers[dim], marks) if dim in chosen else numbers[dim]
            for dim in range(rank)
        ]
        steps = numbers[rank:]
        if any(n < 2 and type(size) is not int for n, size in zip(numbers, shape)):
            steps = _steps_of_larger(real, shape)
        stride = self._stride(source, shape, steps, {p - rank for p in chosen})
        return tuple(shape), stride

    def number(self, source: Source, value: int) -> Any:
        """An int from outside as a symbol; None where it is static."""
        known = self._numbers.get(source) if self._numbers else None
        if known is not None or self._policy is None:
            return known
        text = self._text(source)
        if not self._policy.is_symbolic(text, value, is_argument=is_argument(source)):
            return None
        if not -MOST <= value <= MOST:
            return None
        ends = (min(value, 2), MOST) if value >= 0 else (None, -2)
        made = program_value(self._symbol(source, value, Marked(DimensionMark.MAYBE, *ends)))
        self._numbers[source] = made
        return made

    def is_lifted(self, source: Source, value: float) -> bool:
        """Whether a float from outside is passed to the graph: one that changed between compiles,
        and from the first on an optimizer's learning rate."""
        if self._policy is None or not math.isfinite(value):
            return False
        text = self._text(source)
        rate = type(source) is ItemSource and source.key == "lr" and "param_groups" in text
        return self._policy.is_lifted(text, value, expected=rate)

    def _text(self, source: Source) -> str:
        """str(source), of whose base the text is mostly known."""
        if type(source) is not AttributeSource:
            return str(source)
        known = self._texts.get(id(source.base))
        if known is None:
            known = self._texts[id(source.base)] = (str(source.base), source.base)
        return f"{known[0]}.{source.name}"

    def _size(self, source: Source, dim: int, number: int, marks: dict[int, Marked]) -> Any:
        marked = marks.get(dim, Marked(DimensionMark.MAYBE))
        place = SizeSource(source, dim)
        if marked.mark is DimensionMark.UNBACKED:
            return self._symbol(place, number, marked)
        if marked.mark in _STRICT and not (marked.least or 0) <= number <= (marked.most or MOST):
            raise SpecialisedError(
                f"{place} was marked as dynamic in [{marked.least}, {marked.most}] and is "
                f"{number}: mark the sizes that it takes, or call with one of them",
                self._origin(),
            )
        ranged = (marked.least, marked.most) != (None, None)
        if number < 2 and ranged and marked.mark in _STRICT:
            raise SpecialisedError(
                f"{place} was marked as {marked.mark.value} in a range and is {number} at the "
                "first call: compile with a size of at least 2",
                self._origin(),
            )
        return self._symbol(place, number, marked) if number > 1 else number

    def _symbol(self, source: Source, number: int, marked: Marked) -> object:
        facts = self._opened()
        unseen = marked.mark is DimensionMark.UNBACKED
        least = marked.least if number < 2 else max(marked.least or 2, 2)
        least = marked.least or 0 if unseen else least
        most = MOST if marked.most is None else marked.most
        strict = marked.mark in _STRICT
        symbol = facts.new_symbol(source, number, least, most, strict=strict, unseen=unseen)
        if strict and (marked.least, marked.most) != (None, None):
            self._promised.append((symbol, least, marked.most))
        return symbol_size(facts, symbol)

    def check_marks(self) -> None:
        """Raise SpecialisedError where a dimension takes less sizes than the user said."""
        for symbol, least, most in self._promised:
            assert self.facts is not None
            low, high = self.facts.range_now(symbol)
            if (low or 0) > (least or 0) or (most is not None and (high or MOST) < most):
                source = self.facts.unknowns[symbol].source
                raise SpecialisedError(
                    f"{source} was marked as dynamic in [{least}, {most}], and the program allows "
                    f"[{low}, {high}]",
                    self.facts.narrowed_at(symbol),
                )

    def _opened(self) -> Facts:
        if self.facts is None:
            self.facts = Facts(self._origin, lambda text: self.notes.append((text, self._origin())))
            self.facts.are_all_asked_for = self._policy is not None and self._policy.dynamic is True
            if self._copies_freely and self.facts.are_all_asked_for:
                self.facts.free_copies = []
            self._tracer.facts = self.facts
        return self.facts

    def _stride(
        self, source: Source, shape: list[object], numbers: tuple[int, ...], changed: set[int]
    ) -> tuple[object, ...]:
        """Strides in terms of the sizes, where those explain them."""
        made: list[Any] = list(numbers)
        done: list[int] = []
        for dim in sorted(range(len(shape)), key=lambda d: (numbers[d], hint_of(shape[d]), -d)):
            if numbers[dim] > 1:
                inner = [
                    e for e in done if numbers[e] and numbers[e] * hint_of(shape[e]) == numbers[dim]
                ]
                if inner:
                    made[dim] = made[inner[-1]] * shape[inner[-1]]
                elif dim in changed:
                    place = StrideSource(source, dim)
                    made[dim] = self._symbol(place, numbers[dim], Marked(DimensionMark.MAYBE))
            if type(made[dim]) is not int:
                self._strides.append((StrideSource(source, dim), made[dim], self._origin()))
            done.append(dim)
        return tuple(made)

    def release(self) -> None:
        """Let go of the trace. Sizes stay good for what was made of them."""
        self._tracer.open_facts = None
        del self._tracer
        self._origin = None
        self._texts.clear()
        if self.facts is not None:
            self.facts.origin = self.facts.note = _silent

    # --- giving out ------------------------------------------------------------------------------

    def sources(self, expr: Expr) -> tuple[tuple[Symbol, Source], ...]:
        """Where the numbers are found that the symbols of an expression over inputs stand for."""
        assert self.facts is not None
        unknowns = self.facts.unknowns
        return tuple([(s, unknowns[s].source) for s in sorted(symbols(expr), key=str)])

    def in_inputs(self, value: ProgramInt) -> tuple[Expr, tuple[tuple[Symbol, Source], ...]]:
        """A program's int as an expression over inputs."""
        assert self.facts is not None
        expr = self.facts.in_inputs(value.expr)
        return expr, self.sources(expr)

    def meanings(
        self, symbols: Iterable[tuple[Symbol, Expr]]
    ) -> tuple[tuple[Symbol, FromSizes], ...]:
        """How the numbers of a graph's symbols are found at a call. symbols: with what each is in
        terms of inputs' symbols."""
        return tuple([(symbol, FromSizes(e, self.sources(e))) for symbol, e in symbols])

    def marked(self) -> tuple[tuple[Symbol, Source], ...]:
        """The symbols of sizes that the user marked, and where they are found."""
        unknowns = () if self.facts is None else self.facts.unknowns.values()
        return tuple([(u.symbol, u.source) for u in unknowns if u.strict])

    def _counted(self, expr: Expr) -> Expr:
        """A stride as tensors have it: a size of zero, which only a dimension that was marked as
        unbacked can have, counts as one."""
        assert self.facts is not None
        unseen = [u.symbol for u in self.facts.unknowns.values() if u.unseen]
        return substitute(expr, {symbol: maximum(symbol, 1) for symbol in unseen})

    def guards(self) -> list[Guard]:
        """Everything that was assumed of symbols."""
        facts = self.facts
        if facts is None:
            return []
        made = []
        for place, stride, origin in self._strides:
            here = Symbol(str(place))
            if stride.expr != as_expr(_symbol_at(facts, place)):
                expr = self._counted(facts.in_inputs(stride.expr))
                sources = ((here, place), *self.sources(expr))
                condition = SizeCondition(here - expr, 0, 0, sources)
                made.append(Guard(None, GuardKind.SIZES, condition, origin))
        for expr, (low, high), origin in facts.range_guards():
            high = None if high is None or high >= ENDLESS else high
            if low == 0 and high is None and facts.is_unseen(expr):
                continue
            condition = SizeCondition(expr, low, high, self.sources(expr))
            made.append(Guard(None, GuardKind.SIZES, condition, origin or UNKNOWN))
        made += [
            _guard_of(assumed, assumed.relation.expr, self.sources(assumed.relation.expr))
            for assumed in facts.guards()
        ]
        return made


def with_assumptions(captured: CapturedFrame, assumed: Iterable[Assumed]) -> CapturedFrame:
    """The frame with guards for what a later stage assumed of the graph's symbols."""
    meanings = dict(captured.symbols)
    made = []
    for one in assumed:
        named = {symbol: meanings[symbol] for symbol in symbols(one.relation.expr)}
        expr = substitute(one.relation.expr, {s: meaning.expr for s, meaning in named.items()})
        places = {place: None for meaning in named.values() for place in meaning.sources}
        _check_marked(captured, one, expr)
        made.append(_guard_of(one, expr, tuple(places)))
    return dataclasses.replace(captured, guards=(*captured.guards, *made))


def _check_marked(captured: CapturedFrame, assumed: Assumed, expr: Expr) -> None:
    """Raise ConstraintViolated where a size is tied to one number though the user marked it."""
    if assumed.relation.kind != "==":
        return
    for symbol, source in captured.marked:
        if {s.name for s in symbols(expr)} == {symbol.name}:
            raise ConstraintViolated(
                f"{assumed.origin}: {source} was marked as dynamic, and the backward needs "
                f"{relation_text(Relation(expr, '=='))}"
            )


def _guard_of(assumed: Assumed, expr: Expr, sources: tuple[tuple[Symbol, Source], ...]) -> Guard:
    kind = assumed.relation.kind
    lower, upper = None if kind == "!=" else 0, 0 if kind == "==" else None
    condition = SizeCondition(expr, lower, upper, sources, kind == "!=")
    return Guard(None, GuardKind.SIZES, condition, assumed.origin or UNKNOWN)


def _steps_of_larger(real: torch.Tensor, shape: Sequence[object]) -> tuple[int, ...]:
    """Strides that the tensor would have, were its sizes those that the capture goes on with."""
    if not real.is_contiguous():
        return real.stride()
    made, step = [], 1
    for size in reversed(shape):
        made.append(step)
        step *= max(hint_of(size), 1)
    return tuple(reversed(made))


def _silent(*arguments: object) -> None:
    return None


def passed_sources(unknowns: tuple[Unknown, ...]) -> tuple[Source, ...]:
    """Where the numbers of `Graph.sizes` are found."""
    return tuple([unknown.source for unknown in unknowns])


def is_argument(source: Source) -> bool:
    """Whether a value is an argument of the frame, or an item of one."""
    while isinstance(source, ItemSource | PeekSource):
        source = source.base
    return type(source) in (LocalSource, StackSource)


def _symbol_at(facts: Facts, source: Source) -> Symbol:
    found = [symbol for symbol, unknown in facts.unknowns.items() if unknown.source == source]
    return found[0] if found else Symbol("")
