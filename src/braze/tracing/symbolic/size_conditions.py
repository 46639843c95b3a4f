"""Derives the conditions on symbolic sizes that an operator requires, by trying other sizes.

    source[s2, s0] at index[s3], all 4 at hand:     s2 alone at 5 raises, s2 and s3 at 5 do not
    ->  s2 == s3

A condition is an equality of sizes, a constant difference or ratio, a bound, a difference that is
bounded, or a divisor; a size that fits none of these has to be what it is. What is found says why
the calls that were tried raise: whoever asks tries others then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, final

from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, modulo
from braze.shapes.facts import Facts, Relation
from braze.shapes.linear import solved_for
from braze.shapes.substitution import evaluate, substitute

Accepts: TypeAlias = Callable[[Mapping[Symbol, int]], bool]

_MOST_SUBSETS = 40  # of sizes that are equal at hand, tried for those that have to be
_MOST_MOVES = 5  # of a part, to other values
_LEAST = 2  # zero and one are no symbolic sizes
_MOST_DIVISOR = 64


def conditions_of(facts: Facts, sizes: Iterable[Expr], accepts: Accepts) -> list[Relation]:
    """Relations that hold of the sizes at hand, and without which `accepts` says no.

    sizes: dimensions and integers that the operator is given. accepts: whether it takes these
    values of the symbols.
    """
    return _ConditionSearch(facts, sizes, accepts).found()


@final
class _ConditionSearch:
    """The search for one call. Groups are of sizes that are equal at hand; blocks are those among
    them that have to be equal."""

    def __init__(self, facts: Facts, sizes: Iterable[Expr], accepts: Accepts) -> None:
        self._facts = facts
        self._accepts = accepts
        self._groups: dict[int, list[Expr]] = {}
        self._asked: dict[tuple[tuple[Expr, int], ...], bool | None] = {}
        for size in dict.fromkeys(map(facts.current, sizes)):
            if constant_value(size) is None:
                self._groups.setdefault(facts.hint_of(size), []).append(size)

    def found(self) -> list[Relation]:
        relations, fixed, bounds = [], [], []
        for hint, group in self._groups.items():
            moves = [v for v in _tries(hint) if self._fits(group, v)]
            blocks = self._blocks(group, moves) if moves else [[size] for size in group]
            for block in blocks:
                relations += [Relation(block[0] - other, "==") for other in block[1:]]
                kind = self._kind(block, hint)
                if kind == "fixed":
                    fixed.append((block[0], hint))
                elif isinstance(kind, Relation):
                    relations.append(kind)
                elif kind is not None:
                    bounds.append((block[0], hint, *kind))
        return [*relations, *self._related(fixed), *_bounded(bounds)]

    # --- equal sizes ---------------------------------------------------------------------------

    def _blocks(self, group: Sequence[Expr], moves: Sequence[int]) -> list[list[Expr]]:
        """The group in the smallest parts that can be moved apart."""
        blocks, rest = [], list(group)
        while len(rest) > 1:
            part = next((p for p in _parts(rest) if self._are_independent(p, rest, moves)), rest)
            blocks.append(part)
            rest = [size for size in rest if size not in part]
        return [*blocks, rest] if rest else blocks

    def _are_independent(
        self, part: Sequence[Expr], group: Sequence[Expr], moves: Sequence[int]
    ) -> bool:
        others = [size for size in group if size not in part]
        for sizes in (part, others):
            was_asked = False
            for value in moves[:_MOST_MOVES]:
                fits = self._fits(sizes, value)
                if fits is False:
                    return False
                was_asked = was_asked or fits is True
            if not was_asked:
                return False
        return True

    # --- one block -----------------------------------------------------------------------------

    def _kind(self, block: Sequence[Expr], hint: int) -> str | Relation | tuple[str, int] | None:
        """What has to hold of a block: nothing, a relation, a bound ("least" or "most" with the
        number), or that it is "fixed"."""
        answers = {v: self._fits(block, v) for v in _tries(hint)}
        answers = {v: fits for v, fits in answers.items() if fits is not None}
        if all(answers.values()):
            return None
        refused_below = any(v < hint and not fits for v, fits in answers.items())
        refused_above = any(v > hint and not fits for v, fits in answers.items())
        accepted_above = any(v > hint and fits for v, fits in answers.items())
        if refused_below and not refused_above and accepted_above:
            return "least", self._edge(block, hint, max(v for v, f in answers.items() if not f))
        if refused_above and not refused_below:
            return "most", self._edge(block, hint, min(v for v, f in answers.items() if not f))
        for divisor in range(2, min(hint, _MOST_DIVISOR) + 1):
            if hint % divisor == 0 and self._is_divisor(block, hint, divisor):
                return Relation(self._facts.named(as_expr(modulo(block[0], divisor))), "==")
        return "fixed"

    def _edge(self, block: Sequence[Expr], accepted: int, refused: int) -> int:
        """The last accepted value on the way to the refused one."""
        while abs(accepted - refused) > 1:
            middle = (accepted + refused) // 2
            if self._fits(block, middle):
                accepted = middle
            else:
                refused = middle
        return accepted

    def _is_divisor(self, block: Sequence[Expr], hint: int, divisor: int) -> bool:
        near = [v for v in range(max(hint - divisor, _LEAST), hint + 2 * divisor + 1) if v != hint]
        return all(self._fits(block, v) is (v % divisor == 0) for v in near)

    # --- several sizes ---------------------------------------------------------------------------

    def _related(self, fixed: Sequence[tuple[Expr, int]]) -> list[Relation]:
        """Sizes that cannot be moved alone: a constant difference or ratio, or what they are."""
        found, left = [], list(fixed)
        for (one, a), (other, b) in itertools.permutations(fixed, 2):
            if (one, a) not in left or (other, b) not in left or a < b:
                continue
            steps = (1, 2, 5)
            if all(self._ask({one: a + k, other: b + k}) for k in steps):
                found.append(Relation(one - other - (a - b), "=="))
            elif a % b == 0 and all(
                self._ask({one: (b + k) * (a // b), other: b + k}) for k in steps
            ):
                found.append(Relation(one - other * (a // b), "=="))
            else:
                continue
            left = [pair for pair in left if pair not in ((one, a), (other, b))]
        return [*found, *(Relation(size - hint, "==") for size, hint in left)]

    # --- questions -------------------------------------------------------------------------------

    def _fits(self, sizes: Sequence[Expr], value: int) -> bool | None:
        return self._ask(dict.fromkeys(sizes, value))

    def _ask(self, wanted: Mapping[Expr, int]) -> bool | None:
        """Whether the operator takes these sizes with all others as they are; None where what is
        known allows no such call."""
        key = tuple(wanted.items())
        if key not in self._asked:
            values = self._values(wanted)
            self._asked[key] = None if values is None else self._accepts(values)
        return self._asked[key]

    def _values(self, wanted: Mapping[Expr, int]) -> dict[Symbol, int] | None:
        changes: dict[Symbol, int] = {}
        for size, value in wanted.items():
            equation = substitute(size - value, changes)
            solved = solved_for(equation)
            if solved is not None:
                symbol, meaning = solved
                changes[symbol] = evaluate(meaning, {**self._facts.hints, **changes})
            elif constant_value(equation) != 0:
                return None
        values = self._facts.assignment(changes)
        if values is None or any(evaluate(size, values) != n for size, n in wanted.items()):
            return None
        return values


def _tries(hint: int) -> list[int]:
    """Values to try in the place of one at hand, on both sides."""
    above = (hint + 1, hint + 2, hint + 3, hint + 5, 2 * hint, 3 * hint + 1)
    below = (hint - 1, (hint + _LEAST) // 2, _LEAST)
    return [v for v in dict.fromkeys((*above, *below)) if v >= _LEAST and v != hint]


def _parts(group: Sequence[Expr]) -> Iterable[list[Expr]]:
    """Parts of a group that hold its first member, small ones first."""
    first, *others = group
    every = (
        [first, *chosen]
        for number in range(len(others))
        for chosen in itertools.combinations(others, number)
    )
    return itertools.islice(every, _MOST_SUBSETS)


def _bounded(bounds: Sequence[tuple[Expr, int, str, int]]) -> list[Relation]:
    """Bounds as relations. Two sizes that bound each other are one relation; of others that are
    bounded together each stays on its side of what it is."""
    found, left = [], list(bounds)
    for least, most in itertools.product(bounds, bounds):
        (low, low_hint, kind, edge), (high, high_hint, other_kind, other_edge) = least, most
        paired = kind == "least" and other_kind == "most" and least in left and most in left
        if paired and edge - high_hint == low_hint - other_edge:
            found.append(Relation(low - high - (edge - high_hint), ">="))
            left = [bound for bound in left if bound not in (least, most)]
    for size, hint, kind, edge in left:
        number = edge if len(left) == 1 else hint
        found.append(Relation(size - number if kind == "least" else number - size, ">="))
    return found
