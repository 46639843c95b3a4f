"""The integer algebra: what it resolves, and that whatever it does keeps the value."""

import random
from itertools import product

import pytest

from braze.shapes.expr import Symbol, as_expr, bounds, floor_div, maximum, minimum, modulo, symbols
from braze.shapes.substitution import evaluate, substitute

FIRST, SECOND = Symbol("i", 0, 3), Symbol("j", 0, 7)
SIZE = Symbol("n", 1, None)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (floor_div(as_expr(FIRST) * 8 + SECOND, 8), "i"),
        (modulo(as_expr(FIRST) * 8 + SECOND, 8), "j"),
        (floor_div(as_expr(FIRST) * 8 + SECOND, 16), "((i) // (2))"),
        (modulo(as_expr(FIRST) * 8 + SECOND, 16), "8*((i) % (2)) + j"),
        (floor_div(7 - as_expr(SECOND), 8), "0"),
        (modulo(7 - as_expr(SECOND), 8), "-1*j + 7"),
        (floor_div(floor_div(SECOND, 2), 2), "((j) // (4))"),
        (floor_div(SECOND, 2) * 2 + modulo(SECOND, 2), "j"),
        (maximum(as_expr(FIRST), 0), "i"),
        (minimum(as_expr(FIRST), 3), "i"),
        (maximum(as_expr(FIRST) - 1, 0), "max(0, i + -1)"),
        (floor_div(as_expr(SIZE) * FIRST, SIZE), "i"),
        (modulo(as_expr(SIZE) * FIRST, SIZE), "0"),
        (as_expr(FIRST) - FIRST, "0"),
    ],
)
def test_resolves(expression: object, expected: str) -> None:
    assert str(expression) == expected


def test_equal_polynomials_are_equal_objects() -> None:
    a, b = as_expr(FIRST) * (as_expr(SECOND) + 2), as_expr(SECOND) * FIRST + as_expr(FIRST) * 2
    assert a == b and hash(a) == hash(b)


def _random_expression(generator: random.Random, depth: int):
    if depth == 0:
        return generator.choice(
            [as_expr(FIRST), as_expr(SECOND), as_expr(generator.randint(-9, 9))]
        )
    a = _random_expression(generator, depth - 1)
    kind = generator.randrange(7)
    if kind < 2:
        b = _random_expression(generator, depth - 1)
        return a + b if kind == 0 else a - b
    constant = generator.choice([1, 2, 3, 4, 6, 8, 12, 16])
    if kind == 2:
        return a * generator.choice([-2, -1, 2, 3, 4, 8])
    if kind in (3, 4):
        return floor_div(a, constant)
    if kind == 5:
        return modulo(a, constant)
    return maximum(a, constant) if constant % 2 else minimum(a, constant)


def _reference(generator: random.Random, depth: int, i: int, j: int) -> int:
    if depth == 0:
        return generator.choice([i, j, generator.randint(-9, 9)])
    a = _reference(generator, depth - 1, i, j)
    kind = generator.randrange(7)
    if kind < 2:
        b = _reference(generator, depth - 1, i, j)
        return a + b if kind == 0 else a - b
    constant = generator.choice([1, 2, 3, 4, 6, 8, 12, 16])
    if kind == 2:
        return a * generator.choice([-2, -1, 2, 3, 4, 8])
    if kind in (3, 4):
        return a // constant
    if kind == 5:
        return a % constant
    return max(a, constant) if constant % 2 else min(a, constant)


@pytest.mark.parametrize("seed", range(150))
def test_keeps_the_value(seed: int) -> None:
    expression = _random_expression(random.Random(seed), 4)
    low, high = bounds(expression)
    for i, j in product(range(4), range(8)):
        expected = _reference(random.Random(seed), 4, i, j)
        assert evaluate(expression, {FIRST: i, SECOND: j}) == expected, str(expression)
        assert low is None or low <= expected
        assert high is None or expected <= high


def test_substitutes_and_finds_symbols() -> None:
    expression = floor_div(as_expr(SECOND) + FIRST, 3)
    assert symbols(expression) == {FIRST, SECOND}
    assert str(substitute(expression, {SECOND: 4, FIRST: 2})) == "2"


def test_evaluate_names_the_missing_symbol() -> None:
    with pytest.raises(KeyError, match="j"):
        evaluate(as_expr(FIRST) + SECOND, {FIRST: 1})


def test_symbolic_division_pairs_merge() -> None:
    """A loop over two merged dimensions of symbolic sizes: row r // n, column r % n."""
    r, n, m = (Symbol(name, 0 if name == "r" else 2, 50) for name in "rnm")
    row, column = floor_div(r, n), modulo(r, n)
    assert str(row * n + column) == "r"
    assert str(row * n * m * 64 + column * m * 64) == "64*m*r"
    whole = as_expr(n) * m
    assert str(floor_div(r, whole) * whole + modulo(r, whole)) == "r"


def test_symbolic_divisions_keep_their_value() -> None:
    r, n, m = (Symbol(name, 0 if name == "r" else 2, 50) for name in "rnm")
    generator = random.Random(0)
    for _ in range(500):
        values = {
            r: generator.randint(0, 50),
            n: generator.randint(2, 6),
            m: generator.randint(2, 6),
        }
        scale = generator.choice((1, 2, 3))
        factors = generator.choices((n, m), k=generator.randint(1, 2))
        divisor, number = as_expr(scale), scale
        for factor in factors:
            divisor, number = divisor * factor, number * values[factor]
        by, rest = (
            generator.choice(((divisor, number), (as_expr(n), values[n]))),
            generator.choice((n, m)),
        )
        times = generator.choice((1, 2))
        total = floor_div(r, divisor) * by[0] * rest + modulo(r, divisor) * rest * times
        expected = values[r] // number * by[1] + values[r] % number * times
        assert evaluate(total, values) == expected * values[rest], (str(total), values)


def test_symbols_of_an_expression_have_its_own_hints() -> None:
    """Those of another program are equal to them."""
    for hint in (None, 6, 10):
        (symbol,) = symbols(as_expr(Symbol("hinted", 2, None, hint)) * 3 + 1)
        assert symbol.hint == hint
