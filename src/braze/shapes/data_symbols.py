"""Symbols for numbers that a program computes: `n.item()`, the rows of `nonzero`.

Nobody knows them while the program is traced. What ranges say is answered; all else that shape
rules ask is assumed, and checked when the program runs, once the numbers are there:

    nonzero(x)              i64[u0, 1], u0 in [0, ...]
    x[:4] + y  (y: [u0])    needs u0 == 4, and checks it

Whether sizes are equal, or one, or zero, is mostly asked to take a shorter way, and the longer way
is right for all: they are not, and nothing is checked. Rules say where sizes have to be equal
(`must_equal`), and where the answer changes the result (`is_exactly`). A program that asks itself
gets a `SymbolicTruth`, of which it cannot take the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, final

from braze.shapes.binding import SizeCheck
from braze.shapes.expr import Expr, IntLike, Symbol, as_expr, symbols
from braze.shapes.substitution import substitute

if TYPE_CHECKING:
    from braze.shapes.facts import Facts, Relation

_LEAST_HINT = 2  # small enough for what is asked of slices and limits
_ESTIMATE = 64


class Undecidable(Exception):
    """A question about a number that is known only when the program runs."""


@final
class DataSymbols:
    """The data symbols of one capture. order: of each symbol, and of those derived from some, when
    it is known; checks: what was assumed; given: the symbols that the next numbers have, where a
    graph is traced again."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.order: dict[Symbol, int] = {}
        self.checks: list[SizeCheck] = []
        self.estimates: dict[Symbol, int] = {}
        self.given: list[Symbol] = []
        self._made = 0

    def new_symbol(
        self,
        source: str,
        lower: int | None,
        upper: int | None = None,
        estimate: int = _ESTIMATE,
    ) -> Symbol:
        """A symbol for a number that the program computes next; with a lower bound, it has an
        upper one, too."""
        facts = self.facts
        if self.given:
            return self.given.pop(0)
        hint = _LEAST_HINT
        if lower is not None and upper is not None:
            hint = min(max(hint, lower), upper)
        elif lower is not None:
            upper = _MOST
        symbol = Symbol(f"u{self._made}", lower, upper, hint)
        self._made += 1
        facts.note(f"{symbol} = {source}, known when the program runs")
        facts.hints[symbol] = hint
        self.estimates[symbol] = estimate
        self.order[symbol] = len(self.order)
        return symbol

    def wrap_value(self, symbols: Sequence[Symbol], checks: Sequence[SizeCheck]) -> None:
        """Take over the symbols of an earlier trace, in the order in which they are computed, and
        what is checked of them."""
        for symbol in symbols:
            self.given.append(symbol)
            self.order[symbol] = len(self.order)
            self.estimates[symbol] = symbol.hint or _ESTIMATE
            self.facts.hints[symbol] = max(_LEAST_HINT, symbol.lower or 0)
        self.checks += checks

    def note_named(self, symbol: Symbol, expr: Expr) -> None:
        """A symbol was made for a part of an expression."""
        latest = self._latest(expr)
        if latest is not None:
            self.order[symbol] = latest

    def concerns(self, expr: Expr) -> bool:
        """Whether the expression has such symbols."""
        return not self.order.keys().isdisjoint(symbols(expr))

    # --- questions -------------------------------------------------------------------------------

    def decide(self, relation: Relation) -> bool:
        """Answer a shape rule's question that does not follow from what is known."""
        if relation.kind != ">=":
            return relation.kind == "!="
        holds = relation.holds(self.facts.hint_of(relation.expr))
        self.check(relation if holds else relation.negated(), "the program was compiled for")
        return holds

    def check(self, relation: Relation, says: str, message: str = "", raises: bool = False) -> None:
        """Assume a relation, check it at run time, and learn from it. raises: the program raises
        where it does not hold."""
        facts = self.facts
        relation = type(relation)(facts.current(relation.expr), relation.kind)
        if facts.follows(relation) is True:
            return
        text = message or f"{facts.origin()}: {says} {relation}, which does not hold"
        self.checks.append(SizeCheck(relation.expr, relation.kind, text, raises))
        if relation.kind == "==":
            self._learn_equality(relation.expr)
        else:
            facts.learn(relation)
        facts.note(f"{relation} is checked when the program runs")

    def _learn_equality(self, expr: Expr) -> None:
        """Write the latest symbol in terms of those that are known before it."""
        ranked = sorted((self.order[s], s.name, s) for s in symbols(expr) if s in self.order)
        latest = ranked[-1][2]
        if len(ranked) > 1 and ranked[-2][0] == ranked[-1][0]:
            return
        factor = next((c for monomial, c in expr.terms if monomial == (latest,)), 0)
        rest = expr - as_expr(latest) * factor
        if abs(factor) == 1 and latest not in symbols(rest) and latest not in self.facts.meaning:
            self.facts.write(latest, rest * -factor)

    def refuse(self, what: str) -> NoReturn:
        """Stop: the number itself is needed."""
        raise Undecidable(what)

    # --- the end ---------------------------------------------------------------------------------

    def refined_checks(self, final: Mapping[Symbol, IntLike]) -> tuple[SizeCheck, ...]:
        """The checks in final symbols, each number of the program as itself."""
        kept = {**final, **{s: self.facts.final_symbol(s) for s in self.estimates}}
        return tuple([replace(c, expr=substitute(c.expr, kept)) for c in self.checks])

    def _latest(self, expr: Expr) -> int | None:
        found = [self.order[s] for s in symbols(expr) if s in self.order]
        return max(found, default=None)


@final
class SymbolicTruth:
    """What a comparison of such numbers, or of sizes that the user marked as unbacked, gives a
    program: `torch._check` takes it."""

    __slots__ = ("facts", "relation")

    def __init__(self, facts: Facts, relation: Relation) -> None:
        self.facts = facts
        self.relation = relation

    def __bool__(self) -> bool:
        self.facts.refuse_unseen(self.relation)
        raise Undecidable(f"whether {self.relation} is known only when the program runs")

    def __hash__(self) -> int:
        return hash(bool(self))

    def __eq__(self, other: object) -> Any:
        return bool(self) == other


_MOST = 1 << 48
