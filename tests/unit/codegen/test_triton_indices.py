"""Where points are in memory: pairs of neighbours, runs of loops, kernels that begin at the end."""

from __future__ import annotations

import pytest
import torch

from braze.codegen.triton.runs import regrouped
from braze.ir.kernels.loops import Guarded, LoopProgram
from braze.ir.kernels.scalars import apply, index
from braze.shapes.expr import Expr, Symbol, as_expr
from tests.unit.codegen.programs import (
    axes,
    buffer,
    define,
    load,
    program,
)
from tests.unit.codegen.triton_running import (
    MARKS,
    check,
    generated,
)

pytestmark = MARKS


def _texts(made: LoopProgram) -> list[str]:
    _, sources = generated(made)
    return [launch.function.text for step in sources.launches for launch in step]


def turned(rows: int, columns: int, shift: int = 0) -> LoopProgram:
    """y = x * t, of complex numbers: x[i, 2 * j] and x[i, 2 * j + 1] are the parts of one."""
    shape = (rows, 2 * columns + shift)
    x, t, y = buffer("x", shape), buffer("t", (columns, 2)), buffer("y", (rows, columns, 2))
    (i, _), (j, _), (k, _) = over = axes((rows, columns, 2))
    a, b = (load(x, i, 2 * as_expr(j) + n + shift) for n in (0, 1))
    c, d = (load(t, j, as_expr(n)) for n in (0, 1))
    real = apply("sub", apply("mul", a, c), apply("mul", b, d))
    imaginary = apply("add", apply("mul", a, d), apply("mul", b, c))
    body = Guarded(apply("lt", index(as_expr(k)), 1), real, imaginary)
    return program([x, t], [define(y, over, body)], [y])


@pytest.mark.parametrize(("rows", "columns"), [(30, 64), (7, 33), (1, 1)])
def test_pairs(rows: int, columns: int) -> None:
    check(turned(rows, columns), [torch.randn(rows, 2 * columns), torch.randn(columns, 2)])


def test_both_of_a_pair_are_read_at_once() -> None:
    (text,) = _texts(turned(512, 64))
    assert text.count("tl.load(p0 + x)") == 1 and "bz_pair_second" in text


def test_pairs_that_may_end_outside_are_read_one_by_one() -> None:
    """Rows of odd length: the neighbour of the last element is the next row's. t has pairs."""
    made = turned(6, 9, shift=1)
    (text,) = _texts(made)
    assert text.count("= bz_pair_") == 2
    check(made, [torch.randn(6, 19), torch.randn(9, 2)])


def _named(inside: int, width: int | None) -> Symbol:
    return Symbol(f"x_{inside}_{width}", 0, None)


i, j, k = (Symbol(name, 0, None) for name in "ijk")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (i * 40 + j * 8 + k, "x_1_None"),
        (i * 400 + j * 8 + k, "400*i + x_1_40"),
        (i * 15 + j * 3, "3*x_8_None"),
        (i + j * 8 + k, "i + x_1_40"),
        (-(i * 40 + j * 8 + k) + 7, "-1*x_1_None + 7"),
        (k * 5 + j, "j + 5*k"),
    ],
)
def test_runs_of_loops_are_one_index(given: Expr, wanted: str) -> None:
    loops = ((i, 6), (j, 5), (k, 8))
    assert str(regrouped(given, loops, _named)) == wanted


def test_of_symbolic_loops_only_the_outermost_is_in_a_run() -> None:
    s = as_expr(Symbol("s", 0, None))
    loops = ((i, s), (j, 5), (k, 8))
    assert str(regrouped(i * 40 + j * 8 + k, loops, _named)) == "x_1_None"
    loops = ((i, 6), (j, s), (k, 8))
    assert str(regrouped(j * 8 + k, loops, _named)) == "8*j + k"
