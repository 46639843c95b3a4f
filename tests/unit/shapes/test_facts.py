"""What is learned of symbols from the questions about them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from braze.shapes.expr import Symbol, as_expr, floor_div, maximum, minimum, modulo
from braze.shapes.facts import Facts, Relation
from braze.shapes.policy import SizeHistory
from braze.shapes.prove import is_nonnegative
from braze.shapes.substitution import evaluate, substitute
from braze.shapes.symbolic import symbol_size, symbolic_minimum
from braze.shapes.unknowns import SpecialisedError


def two(first: int = 6, second: int = 6) -> tuple[Facts, object, object]:
    facts = Facts()
    sizes = [
        symbol_size(facts, facts.new_symbol(name, n)) for name, n in zip("xy", (first, second))
    ]
    return facts, *sizes  # type: ignore[return-value]


def assumed(facts: Facts) -> list[str]:
    return [str(found.relation) for found in facts.guards()]


def test_ranges_answer_without_a_guard() -> None:
    facts, a, b = two()
    assert a != 0 and a != 1 and a > 1 and a * b >= a and not a < 0  # type: ignore[operator]
    assert max(a * 4, 1) is a * 4  # type: ignore[operator, call-overload]
    assert not facts.guards()
    assert all(low == 2 for _, (low, _), _ in facts.range_guards())


def test_equality_is_learned_once() -> None:
    facts, a, b = two()
    assert a == b
    assert str(b + 1) == "s0 + 1"  # type: ignore[operator]
    assert (a * 12) // (b * 4) == 3  # type: ignore[operator]
    assert assumed(facts) == ["s0 == s1"]


def test_sizes_of_which_neither_is_the_greater_are_equal() -> None:
    facts, a, b = two(7, 6)
    assert not a > b + 1 and not a < b + 1  # type: ignore[operator]
    assert str(a * 2 + b) == "3*s0 + -1"  # type: ignore[operator]
    assert assumed(facts) == ["s1 + 1 >= s0", "s0 >= s1 + 1"]


@pytest.mark.parametrize(
    "ask", [lambda n: n == 3, lambda n: n >= 3, lambda n: n != 2, lambda n: int(n) == 3]
)
def test_a_minimum_that_is_a_number_says_something_of_the_size(ask: Any) -> None:
    facts, a, _ = two()
    n = symbolic_minimum(a, 3)
    assert n >= 2 and n <= 3 and a >= n
    assert not facts.guards()
    assert ask(n)
    assert n == 3 and str(a - n) == "s0 + -3"
    assert not facts.guards()
    assert facts.range_guards()[0][1][0] == 3


def test_a_minimum_that_is_the_size() -> None:
    facts, a, _ = two(2)
    n = symbolic_minimum(a, 3)
    assert n != 3 and n == 2
    (guard,) = facts.guards()
    assert {s0: guard.relation.holds(min(s0, 3) - 2) for s0 in (2, 3)} == {2: True, 3: False}


def test_the_least_of_what_is_known_only_by_inequalities() -> None:
    facts, a, _ = two()
    rest = a - (a + 1) // 2  # type: ignore[operator]
    n = symbolic_minimum(rest, 3)
    assert n >= 1 and not facts.guards()


def test_divisibility_makes_exact_quotients() -> None:
    facts, a, _ = two()
    assert a % 2 == 0  # type: ignore[operator]
    assert a // 2 * 2 == a  # type: ignore[operator]
    assert assumed(facts) == ["s0 % 2 == 0"]


def test_quotients_of_numbers_are_numbers() -> None:
    facts, a, b = two(24, 7)
    half = (a + 1) // 2  # type: ignore[operator]
    rest = a - (half + a) // 2  # type: ignore[operator]
    assert str(rest) == "-1*q1 + s0"
    assert a == b + 17 and b == 7
    assert half == 12 and rest == 6
    assert assumed(facts) == ["s0 == s1 + 17", "s0 == 24"]


def test_comparisons_narrow_the_range() -> None:
    facts, a, b = two()
    assert (a <= 4096 and a * 2 >= 6 and a != 3) or a == 3  # type: ignore[operator]
    assert ("s0", (4, 4096)) in [(str(e), ends) for e, ends, _ in facts.range_guards()]
    assert a + 1 > b  # type: ignore[operator]
    assert assumed(facts) == ["s0 >= s1"]
    assert a + 2 > b  # type: ignore[operator]
    assert len(assumed(facts)) == 1


def test_specialises_where_the_number_is_needed() -> None:
    facts, a, _ = two()
    notes: list[str] = []
    facts.note = notes.append
    assert list(range(6))[a.program - 1] == 5  # type: ignore[attr-defined, operator]
    assert {6: "six"}[a.program] == "six"  # type: ignore[attr-defined, index]
    assert a + 1 == 7 and assumed(facts) == ["s0 == 6"]  # type: ignore[operator]
    assert notes == ["s0 == 6 is guarded (s0 is 6 now)", "s0 = x is specialised to 6"]


def test_marked_sizes_must_not_be_specialised() -> None:
    facts = Facts(origin=lambda: "model.py:3")
    size = symbol_size(facts, facts.new_symbol("x", 6, strict=True))
    with pytest.raises(SpecialisedError, match="x was marked as dynamic"):
        int(size)


def test_arithmetic_is_pythons() -> None:
    facts = Facts()
    size = symbol_size(facts, facts.new_symbol("n", 7)).program
    assert int(size % 4) == 3 and int(-size // 2) == -4 and int(9 - size) == 2
    assert size / 2 == 3.5 and size**2 == 49 and divmod(size, 2) == (3, 1)
    assert int(size // -2) == -4 and int(size % -4) == -1 and 2**size == 128
    with pytest.raises(ZeroDivisionError):
        size // (size - size)


S, T = Symbol("s", 2, 7), Symbol("t", 2, 5)


def random_expression(generator: random.Random, depth: int) -> object:
    if not depth:
        return generator.choice([as_expr(S), as_expr(T), as_expr(generator.randint(-6, 6))])
    a, b = random_expression(generator, depth - 1), random_expression(generator, depth - 1)
    kind = generator.randrange(7)
    if kind < 3:
        return a + b if kind == 0 else a - b if kind == 1 else a * b  # type: ignore[operator]
    if kind < 5:
        divide = floor_div if kind == 3 else modulo
        return divide(a, generator.randint(2, 4))  # type: ignore[arg-type]
    return (minimum if kind == 5 else maximum)(a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(200))
def test_what_is_proven_holds(seed: int) -> None:
    expr = random_expression(random.Random(seed), 3)
    values = [
        evaluate(expr, {S: s, T: t})  # type: ignore[arg-type]
        for s, t in itertools.product(range(2, 8), range(2, 6))
    ]
    if is_nonnegative(expr, {}):  # type: ignore[arg-type]
        assert min(values) >= 0, str(expr)


@pytest.mark.parametrize("seed", range(200))
def test_guards_say_all_that_was_answered(seed: int) -> None:
    """Wherever the guards hold, every question has the answer that it got."""
    generator = random.Random(seed)
    facts = Facts()
    hints = generator.randint(2, 7), generator.randint(2, 5)
    s = facts.new_symbol("s", hints[0], 2, 7)
    t = facts.new_symbol("t", hints[1], 2, 5)
    asked = []
    for _ in range(4):
        template = random_expression(generator, 2)
        kind = generator.choice(["==", "!=", ">="])
        relation = Relation(substituted(template, s, t), kind)  # type: ignore[arg-type]
        asked.append((relation, facts.decide(relation)))
    for a, b in itertools.product(range(2, 8), range(2, 6)):
        values = {s: a, t: b}
        if all(r.relation.holds(evaluate(r.relation.expr, values)) for r in facts.guards()) and all(
            (low is None or low <= evaluate(expr, values))
            and (high is None or evaluate(expr, values) <= high)
            for expr, (low, high), _ in facts.range_guards()
        ):
            for relation, answer in asked:
                assert relation.holds(evaluate(relation.expr, values)) is answer, str(relation)
    assert all(r.relation.holds(facts.hint_of(r.relation.expr)) for r in facts.guards())


def substituted(expr: object, s: Symbol, t: Symbol) -> object:
    return substitute(expr, {S: s, T: t})  # type: ignore[arg-type]


def test_history_tells_what_changed() -> None:
    history = SizeHistory()
    assert not history.changed("x", (4, 8))
    history.begin()
    assert history.changed("x", (5, 8)) == {0} == history.changed("x", (5, 8))
    history.begin()
    assert history.changed("x", (5, 9)) == {0, 1}
    history.begin()
    assert not history.changed("x", (5, 9, 1))


@pytest.mark.parametrize(
    "ask, expected",
    [
        (lambda a, b: a % 4 == 0, "s0 % 4 == 0"),
        (lambda a, b: (a + 1) % 4 == 1, "(s0 + 1) % 4 == 1"),
        (lambda a, b: a % b != 0, "s0 % s1 != 0"),
        (lambda a, b: a * 2 % 4 == 0, "2 * (s0 % 2) == 0"),
        (lambda a, b: a // 3 == b // 3, "s0 // 3 == s1 // 3"),
    ],
)
def test_divisibility_reads_as_a_remainder(ask: Any, expected: str) -> None:
    facts, a, b = two(12, 13)
    assert ask(a, b)
    assert assumed(facts) == [expected]
