"""An SMT solver proves what the algebra of index expressions does, for all values of its symbols.

Trees of operations are built twice: by Braze's constructors, which rewrite as they build, and as
terms of the solver, which do not. Each rule has to have had its turn.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import z3

from braze.codegen.cpp.index import CPP
from braze.codegen.triton.index import TRITON
from braze.shapes import expr as algebra
from braze.shapes.expr import Expr, Symbol, as_expr, bounds, floor_div, maximum, minimum, modulo
from braze.shapes.prove import is_nonnegative
from braze.shapes.substitution import substitute
from tests.unit.shapes.smt import counterexample, extremum, in_ranges, meaning, meaning_of_text

COUNT = int(os.environ.get("BRAZE_PROOFS", "400"))
SYMBOLS = (
    *(Symbol("i", 0, 3), Symbol("j", 0, 7), Symbol("k", 0, 4)),
    *(Symbol("n", 1, None), Symbol("m", -5, 20)),
)
SIZE = SYMBOLS[3]


def build(generator: random.Random, depth: int) -> tuple[Expr, Any]:
    """A random tree, by Braze and by the solver."""
    if depth == 0:
        if generator.random() < 0.3:
            number = generator.randint(-17, 33)
            return as_expr(number), z3.IntVal(number)
        symbol = generator.choice(SYMBOLS)
        return as_expr(symbol), z3.Int(symbol.name)
    one, one_term = build(generator, depth - 1)
    kind = generator.choice(("+", "-", "*", "//", "%", "pair", "row", "least", "greatest"))
    number = generator.choice((1, 2, 3, 4, 6, 8, 12, 16))
    if kind == "*":
        number *= generator.choice((1, -1))
        return one * number, one_term * number
    if kind == "//":
        return floor_div(one, number), one_term / number
    if kind == "%":
        return modulo(one, number), one_term % number
    if kind == "pair":  # a division and its remainder, which may become one again
        whole, whole_term = floor_div(one, number), one_term / number
        return whole * number + modulo(one, number), whole_term * number + one_term % number
    other, other_term = build(generator, depth - 1)
    if kind == "row":  # a point in rows of a width, divided by it
        inside, inside_term = modulo(other, number), other_term % number
        point, term = one * number + inside, one_term * number + inside_term
        rows = number * generator.choice((1, 2, 3))
        return floor_div(point, rows), term / rows
    if kind == "+":
        return one + other, one_term + other_term
    if kind == "-":
        return one - other, one_term - other_term
    choose = maximum if kind == "greatest" else minimum
    return choose(one, other), extremum([one_term, other_term], kind == "greatest")


def wrong(seed: int) -> str | None:
    """What the solver refutes of the trees of a seed."""
    tree, term = build(random.Random(seed), 3)
    ranges = in_ranges(SYMBOLS)
    low, high = bounds(tree)
    claims: dict[str, Any] = {"the value": meaning(tree) == term}
    if low is not None:
        claims[f"the bound {low}"] = meaning(tree) >= low
    if high is not None:
        claims[f"the bound {high}"] = meaning(tree) <= high
    if is_nonnegative(tree, {}):
        claims["the sign"] = meaning(tree) >= 0
    for syntax in (CPP, TRITON):
        claims[f"the text for {syntax.quotient}"] = meaning_of_text(
            tree, syntax, SYMBOLS
        ) == meaning(tree)
    for name, claim in claims.items():
        found = counterexample(claim, ranges)
        if found is not None:
            return f"seed {seed}, {name}: {term} became {tree}, wrong at {found}"
    return None


# Each rule, with what shows that it did something.
RULES: dict[str, Callable[[Any, tuple[Any, ...]], bool]] = {
    "_split_multiples": lambda made, given: bool(made[0].terms and made[1].terms),
    "_split_fine": lambda made, given: made[0] > 1,
    "_floor_div_atom": lambda made, given: made.terms[0][0][0].dividend != given[0],
    "_extremum": lambda made, given: type(made.terms[0][0][0]) is not algebra.Extremum,
}


def _had_turns(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    turns: Counter[str] = Counter()

    def watch(name: str, shows: Callable[[Any, tuple[Any, ...]], bool]) -> None:
        rule = getattr(algebra, name)

        def watched(*given: Any, **named: Any) -> Any:
            made = rule(*given, **named)
            try:
                turns[name] += shows(made, given)
            except (AttributeError, IndexError):
                turns[name] += 1  # nothing of the old form is left
            return made

        monkeypatch.setattr(algebra, name, watched)

    for name, shows in RULES.items():
        watch(name, shows)
    merge = algebra._merge_division_pairs

    def merged(sums: Any) -> None:
        before = len(sums)
        merge(sums)
        turns["_merge_division_pairs"] += len(sums) != before

    monkeypatch.setattr(algebra, "_merge_division_pairs", merged)
    return turns


def test_rules_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = _had_turns(monkeypatch)
    for seed in range(COUNT):
        assert wrong(seed) is None
    for name in (*RULES, "_merge_division_pairs"):
        assert turns[name], f"{name} was not tried"


IN_I, IN_J, IN_N = as_expr(SYMBOLS[0]), as_expr(SYMBOLS[1]), as_expr(SIZE)
T_I, T_J, T_N = z3.Int("i"), z3.Int("j"), z3.Int("n")


@pytest.mark.parametrize(
    ("made", "term"),
    [
        (floor_div(IN_N * IN_I + IN_J * IN_N, IN_N), (T_N * T_I + T_J * T_N) / T_N),
        (modulo(IN_N * IN_I + IN_J * IN_N, IN_N), (T_N * T_I + T_J * T_N) % T_N),
        (floor_div(IN_J * (IN_N + 8) + IN_I, IN_N + 8), (T_J * (T_N + 8) + T_I) / (T_N + 8)),
        (floor_div(IN_N + 8, IN_N + 8), z3.IntVal(1)),
        (modulo(IN_I, IN_N + 3), T_I % (T_N + 3)),
        (floor_div(IN_I, IN_N + 3), T_I / (T_N + 3)),
        (substitute(floor_div(IN_N * 2 + 1, 4), {SIZE: IN_I * 2}), (T_I * 4 + 1) / 4),
        (substitute(modulo(IN_N, 4) * 3, {SIZE: IN_J + 8}), ((T_J + 8) % 4) * 3),
    ],
)
def test_divisions_by_sizes_are_proved(made: Expr, term: Any) -> None:
    assert counterexample(meaning(made) == term, in_ranges(SYMBOLS)) is None


def _off_by_one(value: Expr, divisor: int, shift: int = 0) -> tuple[Expr, Expr]:
    quotient, rest = _SPLIT(value, divisor, shift)
    return quotient, rest + 1 if rest.terms else rest


def _without_a_look(value: Expr, divisor: int) -> tuple[int, Expr, Expr]:
    factor = 2 if divisor > 2 and divisor % 2 == 0 else 1
    quotient, rest = _SPLIT(value, factor)
    return (2, quotient, rest) if factor == 2 else (1, value, algebra.ZERO)


_SPLIT = algebra._split_multiples
PLANTED: dict[str, Callable[..., Any]] = {
    "_split_multiples": _off_by_one,
    "_split_fine": _without_a_look,
    "divided": lambda dividend, divisor: dividend,
    "_is_nonnegative": lambda value: True,
}


@pytest.mark.parametrize("name", PLANTED)
def test_wrong_rules_are_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, name, PLANTED[name])
    assert any(wrong(seed) for seed in range(COUNT))
