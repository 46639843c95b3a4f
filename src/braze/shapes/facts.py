"""What one capture knows of its symbols: ranges, equalities, divisibility, inequalities.

Every question about sizes is `decide(Relation)`. It follows from what is known, or it is answered
by the sizes at hand and becomes a guard, and is known from then on:

    s0 == s1       s1 is written as s0 from now on
    s0 // 2        is q0 from now on
    s0 % 2 == 0    s0 is written as 2*q0
    s0 >= 3        the range of s0
    s0 >= s1 + 1   an inequality, kept as it is
    s0 == 4        s0 is specialised: written as 4

Not handled: solving anything that is not linear in a symbol; such facts answer only the same
question again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, final

from braze.frozen import frozen
from braze.shapes.binding import python_text, with_remainders
from braze.shapes.data_symbols import DataSymbols
from braze.shapes.expr import (
    Expr,
    Extremum,
    FloorDiv,
    IntLike,
    Mod,
    Symbol,
    as_expr,
    as_expr_of,
    bounds,
    constant_value,
    floor_div,
    range_of,
    symbols,
)
from braze.shapes.extrema import decided_by, lower_end
from braze.shapes.intervals import Range
from braze.shapes.linear import can_be_zero, linear_in, solved_for
from braze.shapes.prove import is_nonnegative, is_plainly_nonnegative
from braze.shapes.rewriting import Rewriting
from braze.shapes.substitution import evaluate, substitute
from braze.shapes.unknowns import SpecialisedError, Unknown, UnseenError

Kind: TypeAlias = Literal["==", "!=", ">="]
_MOST_INEQUALITIES = 32
_LEAST_UNSEEN = 2  # what is traced with, so that no size is taken for zero or one
ENDLESS = 1 << 32  # ends of ranges from here on come from MOST, and are not worth a guard
MOST = 1 << 48  # no tensor has as many elements: an end of ranges that is not checked


@final
@frozen
class Relation:
    """`expr kind 0`."""

    expr: Expr
    kind: Kind

    def holds(self, value: int) -> bool:
        """Whether it holds where the expression has this value."""
        return value >= 0 if self.kind == ">=" else (value == 0) is (self.kind == "==")

    def negated(self) -> Relation:
        """The relation that holds where this one does not."""
        if self.kind == ">=":
            return Relation(-self.expr - 1, ">=")
        return Relation(self.expr, "!=" if self.kind == "==" else "==")

    def __str__(self) -> str:
        return relation_text(self)


@final
@frozen
class Assumed:
    """A relation that was assumed, in the symbols that stand for sizes of inputs, and where."""

    relation: Relation
    origin: Any


@final
class Facts:
    """The symbols of one capture and what is known of them.

    origin: says where the program stands, for attribution. note: told of every symbol made and
        every one specialised.
    """

    def __init__(
        self,
        origin: Callable[[], Any] = lambda: None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.origin = origin
        self.note = note
        self.unknowns: dict[Symbol, Unknown] = {}
        self.hints: dict[Symbol, int] = {}
        self.ranges: dict[Symbol, Range] = {}
        self.assumed: list[Assumed] = []
        self._rewriting = Rewriting()
        self.written = self._rewriting.by_symbol  # symbols that are written as something else
        self.meaning: dict[Symbol, Expr] = {}  # symbols made here, in terms of inputs' symbols
        self._inequalities: list[Expr] = []
        self._names: dict[Any, Symbol] = {}
        self._named = 0
        self._known: dict[tuple[Expr, Kind], bool] = {}
        self._range_origins: dict[Symbol, Any] = {}
        self.objects: dict[Expr, Any] = {}  # the one symbolic integer of each expression
        self.numbers: Any = None  # the nodes of plain integers, for C++
        # What shape rules found out: other values of some symbols, types of results.
        self.probes: dict[Any, Any] = {}
        self.inferred: dict[Any, Any] = {}
        self.has_unseen = False
        self.are_all_asked_for = False  # the user wants one program for all sizes
        self.has_free_choice = False  # C++ asks only to take a shorter way to the same result
        self.free_copies: list[Any] | None = None  # of what may be a view; None: it is asked
        self.data: DataSymbols | None = None  # numbers that the program computes

    # --- symbols ---------------------------------------------------------------------------------

    def new_symbol(
        self,
        source: object,
        hint: int,
        lower: int | None = 2,
        upper: int | None = MOST,
        *,
        strict: bool = False,
        unseen: bool = False,
    ) -> Symbol:
        """A symbol for a size (or a Python int) found at `source`, in [lower, upper]."""
        now, hint = hint, max(hint, _LEAST_UNSEEN) if unseen else hint
        symbol = Symbol(f"s{len(self.unknowns)}", lower, upper, hint)
        self.unknowns[symbol] = Unknown(symbol, source, strict, unseen, now)
        self.has_unseen = self.has_unseen or unseen
        self.hints[symbol] = hint
        self._range_origins[symbol] = self.origin()
        most = "inf" if upper is None or upper >= MOST else upper
        self.note(f"{symbol} = {source} in [{lower}, {most}] ({now} now)")
        return symbol

    def data_symbols(self) -> DataSymbols:
        """The symbols of numbers that the program computes, and what is checked of them."""
        if self.data is None:
            self.data = DataSymbols(self)
        return self.data

    def wrap_value(self, symbol: Symbol, meaning: Expr | None = None) -> None:
        """Take over a symbol of an earlier capture, with its range. meaning: what it is in terms of
        symbols adopted before."""
        assert symbol.hint is not None, symbol
        self.hints[symbol] = symbol.hint
        number = symbol.name[1:]
        if symbol.name[0] == "q" and number.isdigit():
            self._named = max(self._named, int(number) + 1)
        if meaning is None:
            least = symbol.lower
            unseen = least is not None and 0 <= least < _LEAST_UNSEEN
            self.has_unseen = self.has_unseen or unseen
            self.unknowns[symbol] = Unknown(symbol, symbol, unseen=unseen)
            self.ranges[symbol] = (symbol.lower, MOST if symbol.upper is None else symbol.upper)
            return
        self._give_meaning(symbol, meaning)
        if len(meaning.terms) == 1 and meaning.terms[0][1] == 1 == len(meaning.terms[0][0]):
            self._define(meaning.terms[0][0][0], symbol)

    def _give_meaning(self, symbol: Symbol, meaning: Expr) -> None:
        self.meaning[symbol] = in_inputs = self.in_inputs(meaning)
        self._rewriting.note_meaning(symbol, in_inputs)
        if self.data is not None:
            self.data.note_named(symbol, meaning)

    @property
    def rewritten(self) -> int:
        """How often `written` changed."""
        return self._rewriting.version

    def current(self, expr: Expr) -> Expr:
        """The expression with everything written as it is now."""
        if not self.written or self.written.keys().isdisjoint(symbols(expr)):
            return expr
        return substitute(expr, self.written)

    def hint_of(self, expr: Expr) -> int:
        """The value at the sizes at hand."""
        return evaluate(expr, self.hints)

    def refined(self) -> dict[Symbol, IntLike]:
        """Replacements that give each symbol its final form and the range that is known now."""
        final: dict[Symbol, IntLike] = {symbol: self.final_symbol(symbol) for symbol in self.hints}
        for symbol in self.written:
            final[symbol] = substitute(self.current(as_expr(symbol)), final)
        return final

    def final_symbol(self, symbol: Symbol) -> Symbol:
        """A symbol with the range that is known now."""
        low, high = range_of(symbol, self.ranges)
        upper = None if high is None or high >= ENDLESS else high
        estimates = {} if self.data is None else self.data.estimates
        return Symbol(symbol.name, low, upper, estimates.get(symbol, self.hints[symbol]))

    def named(self, expr: Expr) -> Expr:
        """The expression with a symbol in the place of each division, remainder, minimum and
        maximum: what is learned of one then holds wherever it stands."""
        if all(type(atom) is Symbol for monomial, _ in expr.terms for atom in monomial):
            return expr
        if len(expr.terms) == 1 and expr.terms[0][1] == 1 == len(expr.terms[0][0]):
            return self.current(self._name(expr.terms[0][0][0]))
        total = as_expr(0)
        for monomial, coefficient in expr.terms:
            product = as_expr(coefficient)
            for atom in monomial:
                product = product * (atom if type(atom) is Symbol else self._name(atom))
            total = total + product
        return self.current(total)

    def _name(self, atom: Any) -> Expr:
        if isinstance(atom, Mod):
            quotient = self.named(floor_div(atom.dividend, atom.divisor))
            return atom.dividend - atom.divisor * quotient
        known = self._names.get(atom)
        if known is not None:
            return as_expr(known)
        expr = as_expr_of(atom)
        hint = self.hint_of(expr)
        low, high = bounds(expr, self.ranges)
        low = lower_end(atom, low, lambda e: self.follows(Relation(e, ">=")) is True)
        symbol = Symbol(f"q{self._named}", low, high, hint)
        self._named += 1
        self.hints[symbol] = hint
        self._give_meaning(symbol, expr)
        self._define(atom, symbol)
        return as_expr(symbol)

    def _define(self, atom: object, symbol: Symbol) -> None:
        """Let the symbol stand for the atom from now on."""
        self._names[atom] = symbol
        here = as_expr(symbol)
        if isinstance(atom, FloorDiv):
            rest = atom.dividend - atom.divisor * here
            self._inequalities += [rest, atom.divisor - 1 - rest]
        elif isinstance(atom, Extremum):
            sign = 1 if atom.maximum else -1
            self._inequalities += [(here - operand) * sign for operand in atom.operands]

    def assignment(self, changes: Mapping[Symbol, int]) -> dict[Symbol, int] | None:
        """Values of all symbols where some have others than at hand; None where something that is
        known does not hold for them."""
        values = dict(self.hints)
        free = [symbol for symbol in self.hints if symbol not in self.written]
        for symbol in free:
            meaning = self.meaning.get(symbol)
            if meaning is None:
                values[symbol] = changes.get(symbol, values[symbol])
            elif self.written.keys().isdisjoint(symbols(meaning)):
                values[symbol] = evaluate(meaning, values)
            else:
                values[symbol] = changes.get(symbol, values[symbol])
        for symbol, expr in self.written.items():
            values[symbol] = evaluate(expr, values)
        for symbol, value in values.items():
            low, high = range_of(symbol, self.ranges)
            if (low is not None and value < low) or (high is not None and value > high):
                return None
        relations = [assumed.relation for assumed in self.assumed]
        try:
            holds = all(r.holds(evaluate(r.expr, values)) for r in relations) and all(
                evaluate(meaning, values) == values[s] for s, meaning in self.meaning.items()
            )
        except ZeroDivisionError:
            return None
        return values if holds else None

    def derived(self) -> list[tuple[Symbol, Expr]]:
        """Symbols that are not written as something else, and what they are in terms of inputs."""
        return [(s, meaning) for s, meaning in self.meaning.items() if s not in self.written]

    def range_now(self, symbol: Symbol) -> Range:
        """The range of an input's symbol as it is known now."""
        return bounds(self.current(as_expr(symbol)), self.ranges)

    def narrowed_at(self, symbol: Symbol) -> object:
        """Where the range of a symbol was narrowed last."""
        return self._range_origins.get(symbol)

    # --- questions -------------------------------------------------------------------------------

    def decide(self, relation: Relation) -> bool:
        """Whether the relation holds; assumed, where it does not follow from what is known."""
        known = self.follows(relation)
        if known is not None:
            return known
        expr = self.current(relation.expr)
        if self.data is not None and self.data.concerns(expr):
            return self.data.decide(Relation(expr, relation.kind))
        if self.is_unseen(expr):
            if relation.kind != ">=":  # mostly asked to take a shorter way
                return relation.kind == "!="
            self.refuse_unseen(Relation(expr, relation.kind))
        holds = relation.holds(self.hint_of(expr))
        true = Relation(expr, relation.kind)
        self._assume(true if holds else true.negated())
        self._known[expr, relation.kind] = holds
        return holds

    def is_unseen(self, expr: Expr) -> bool:
        """Whether a dimension that the user marked as unbacked is part of it."""
        if not self.has_unseen:
            return False
        named = symbols(self.in_inputs(self.current(expr)))
        return any(u.unseen and u.symbol in named for u in self.unknowns.values())

    def refuse_unseen(self, relation: Relation) -> None:
        """Raise UnseenError where the size at hand of a marked dimension would answer."""
        named = symbols(self.in_inputs(self.current(relation.expr)))
        for unknown in self.unknowns.values():
            if unknown.unseen and unknown.symbol in named and unknown.now is not None:
                raise UnseenError(
                    f"{unknown.source} was marked as unbacked, and the program asks whether "
                    f"{relation}: say what holds of it with torch._check(...)",
                    self.origin(),
                )

    def promise(self, relation: Relation) -> bool:
        """Take a relation of such dimensions as true, which the program needs, or says; False
        where it does not hold of the sizes at hand."""
        known = self.follows(relation)
        if known is not None:
            return known
        now = {s: s_now for s, u in self.unknowns.items() if (s_now := u.now) is not None}
        if not relation.holds(evaluate(self.in_inputs(relation.expr), {**self.hints, **now})):
            return False
        self._assume(Relation(self.current(relation.expr), relation.kind))
        return True

    def require(self, relation: Relation) -> bool:
        """Whether a relation holds without which the program would fail."""
        expr = self.current(relation.expr)
        if self.data is not None and self.data.concerns(expr):
            known = self.follows(relation)
            if known is None:
                self.data.check(relation, "the program needs")
            return known is not False
        return self.promise(relation) if self.is_unseen(expr) else self.decide(relation)

    def require_other(self, expr: Expr, number: int) -> None:
        """Assume that a size made of computed numbers is not this number; check it then."""
        relation = Relation(expr - number, "!=")
        if self.data is not None and self.data.concerns(expr):
            self.data.check(relation, "the program was compiled for")
        elif self.is_unseen(expr) and not self.promise(relation):
            self.refuse_unseen(relation)

    def follows(self, relation: Relation) -> bool | None:
        """True or False where what is known says so, else None. Assumes nothing."""
        expr = self.current(relation.expr)
        constant = constant_value(expr)
        if constant is not None:
            return relation.holds(constant)
        key = (expr, relation.kind)
        found = self._known.get(key)
        if found is None:
            found = self._derive(Relation(expr, relation.kind))
            if found is not None:
                self._known[key] = found
        return found

    def _derive(self, relation: Relation) -> bool | None:
        expr = relation.expr
        if relation.kind == ">=":
            ways = ((expr, True), (-expr - 1, False))
        else:
            ways = ((expr - 1, relation.kind == "!="), (-expr - 1, relation.kind == "!="))
        # Most questions are answered by ranges, one way or the other: so those are asked first.
        for proven in (self._is_plainly_nonnegative, self._is_nonnegative):
            for fact, answer in ways:
                if proven(fact):
                    return answer
        if relation.kind != ">=" and not can_be_zero(expr):
            return relation.kind == "!="
        return None

    def _is_plainly_nonnegative(self, expr: Expr) -> bool:
        return is_plainly_nonnegative(expr, self.ranges)

    def _is_nonnegative(self, expr: Expr) -> bool:
        named = symbols(expr)
        near = [fact for fact in self._inequalities if not named.isdisjoint(symbols(fact))]
        return is_nonnegative(expr, self.ranges, near[:_MOST_INEQUALITIES])

    # --- assumptions -----------------------------------------------------------------------------

    def specialise(self, expr: Expr) -> int:
        """The value of the expression now, assumed to be the same at every call."""
        expr = self.current(expr)
        constant = constant_value(expr)
        if constant is None:
            if self.data is not None and self.data.concerns(expr):
                self.data.refuse(f"the value of {expr} is known only when the program runs")
            constant = self.hint_of(expr)
            relation = Relation(expr - constant, "==")
            if self.is_unseen(expr):
                self.refuse_unseen(relation)
            self.decide(relation)
        return constant

    def _assume(self, relation: Relation) -> None:
        """Note a guard, and learn from it."""
        decided = decided_by(relation.expr, relation.kind, self.meaning, self.ranges)
        if decided is not None:
            least, zero = decided
            self._assume(Relation(self.named(self.current(least)), ">="))
            self.learn(Relation(self.current(zero), "=="))
            return
        self._note_guard(relation)
        if not self.learn(relation):
            self.assumed.append(Assumed(self._in_inputs(relation), self.origin()))

    def _note_guard(self, relation: Relation) -> None:
        concerned = sorted(symbols(relation.expr), key=lambda symbol: symbol.name)
        values = ", ".join([f"{symbol} is {self.hints[symbol]}" for symbol in concerned])
        self.note(f"{relation} is guarded ({values} now)")

    def learn(self, relation: Relation) -> bool:
        """Take a relation as true. False where no range of a symbol says all of it."""
        before = self.rewritten
        in_range = relation.kind != "==" and self._learn_range(relation)
        if relation.kind == "==":
            self._learn_equality(relation.expr)
        elif relation.kind == ">=" and -relation.expr in self._inequalities:
            self._learn_equality(relation.expr)  # neither is the greater
        elif relation.kind == ">=" and not in_range:
            self._inequalities.append(relation.expr)
        self._settle(before)
        return in_range

    def write(self, symbol: Symbol, expr: Expr) -> None:
        """Write a symbol as something else from now on."""
        before = self.rewritten
        self._write(symbol, expr)
        self._settle(before)

    def _settle(self, before: int) -> None:
        if self.rewritten != before:
            self._rewrite()
        self._known.clear()
        self.probes.clear()

    def in_inputs(self, expr: Expr) -> Expr:
        """The expression in the symbols that stand for inputs' sizes."""
        if not self.meaning or self.meaning.keys().isdisjoint(symbols(expr)):
            return expr
        return substitute(expr, self.meaning)

    def _in_inputs(self, relation: Relation) -> Relation:
        return Relation(self.in_inputs(relation.expr), relation.kind)

    def _learn_range(self, relation: Relation) -> bool:
        """Narrow one symbol's range; False where the relation says something else."""
        linear = linear_in(relation.expr)
        if linear is None:
            return False
        symbol, factor, rest = linear
        low, high = range_of(symbol, self.ranges)
        if relation.kind == "!=":
            if rest % factor or -rest // factor not in (low, high):
                return False
            edge = -rest // factor
            low, high = (edge + 1, high) if edge == low else (low, edge - 1)
        elif factor > 0:
            low = max(-(rest // factor), low if low is not None else -(rest // factor))
        else:
            high = min(rest // -factor, high if high is not None else rest // -factor)
        self.ranges[symbol] = (low, high)
        self._range_origins[symbol] = self.origin()
        if low is not None and low == high:
            if self.data is None or symbol not in self.data.order:
                closed = self._in_inputs(Relation(as_expr(symbol) - low, "=="))
                self.assumed.append(Assumed(closed, self.origin()))
            self._write(symbol, as_expr(low))
            self._rewrite()
        return True

    def _learn_equality(self, expr: Expr) -> None:
        # An input's size written as several quotients could not be had from them.
        quotients = symbols(expr) & self.meaning.keys()
        solved = (solved_for(expr, quotients) if len(quotients) > 1 else None) or solved_for(expr)
        if solved is not None:
            self._write(*solved)

    def _write(self, symbol: Symbol, expr: Expr) -> None:
        """Write a symbol as something else from now on; what was known of it stays known."""
        low, high = range_of(symbol, self.ranges)
        self._rewriting.write(symbol, expr)
        constant = constant_value(expr)
        if constant is not None:
            self._specialised(symbol)
            return
        if low is not None:
            self._inherit(expr - low)
        if high is not None:
            self._inherit(high - expr)

    def _inherit(self, expr: Expr) -> None:
        if not is_nonnegative(expr, self.ranges) and not self._learn_range(Relation(expr, ">=")):
            self._inequalities.append(expr)

    def _specialised(self, symbol: Symbol) -> None:
        for found in self._rewriting.written_with(symbol):
            unknown = self.unknowns.get(found)
            if unknown is None:
                continue
            number = self.hint_of(self.current(as_expr(unknown.symbol)))
            self.note(f"{unknown.symbol} = {unknown.source} is specialised to {number}")
            if unknown.strict:
                kind = "unbacked" if unknown.unseen else "dynamic"
                raise SpecialisedError(
                    f"{unknown.source} was marked as {kind}, and the program needs it to be "
                    f"{number}",
                    self.origin(),
                )

    def _rewrite(self) -> None:
        """Bring what is kept up to date with `written`."""
        changed = self._rewriting.settle()
        if not changed:
            return
        for symbol in self._rewriting.means(changed):  # quotients of sizes that are numbers now
            number = self.current(self.meaning[symbol])
            if symbol not in self.written and constant_value(number) is not None:
                self._rewriting.write(symbol, number)
        self._rewriting.settle()
        self._inequalities = [
            fact for fact in map(self.current, self._inequalities) if constant_value(fact) is None
        ]

    # --- guards ----------------------------------------------------------------------------------

    def guards(self) -> list[Assumed]:
        """Everything assumed, in inputs' symbols; ranges are left to `range_guards`."""
        return list(self.assumed)

    def range_guards(self) -> list[tuple[Expr, Range, Any]]:
        """(size in inputs' symbols, range, where it was narrowed last) of what is still unknown."""
        found = []
        computed = () if self.data is None else self.data.order
        for symbol in self.hints:
            if symbol in computed or constant_value(self.current(as_expr(symbol))) is not None:
                continue
            expr = self.meaning.get(symbol, as_expr(symbol))
            origin = self._range_origins.get(symbol)
            found.append((expr, range_of(symbol, self.ranges), origin))
        return found

    def learned(self) -> list[Assumed]:
        """Everything assumed, ranges too, that adopted symbols' own ranges do not say."""
        found = self.guards()
        for expr, (low, high), origin in self.range_guards():
            least, most = bounds(expr)
            if low is not None and (least is None or low > least):
                found.append(Assumed(Relation(expr - low, ">="), origin))
            if high is not None and high < ENDLESS and (most is None or high < most):
                found.append(Assumed(Relation(high - expr, ">="), origin))
        return found


def relation_text(relation: Relation, names: Callable[[str], str] = str) -> str:
    """The relation with positive terms on both sides: `s0 >= s1 + 1`, `s0 % 4 == 0`."""
    expr = with_remainders(relation.expr)
    named = {symbol: symbol.name for symbol in symbols(expr)}
    left = Expr(tuple((m, c) for m, c in expr.terms if c > 0))
    right = -Expr(tuple((m, c) for m, c in expr.terms if c < 0))
    return names(f"{python_text(left, named)} {relation.kind} {python_text(right, named)}")
