"""The evaluator of loop programs, on programs written by hand; and the printer's text of them."""

from __future__ import annotations

import pytest
import torch

from braze.ir.kernels.loops import (
    SCALAR_OPS,
    Apply,
    Buffer,
    BufferView,
    Definition,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
)
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.run_loops import _OPERATORS, evaluate_scalar, run_loops
from braze.ir.kernels.scalars import apply, cast, literal, without_round_trips
from braze.shapes.expr import Symbol, as_expr

CPU = torch.device("cpu")
ROW, FOLDED = Symbol("i0", 0, 3), Symbol("r0", 0, 3)
IN = Buffer("b0", torch.float32, (4,), (1,), CPU)


def _run(body: Scalar, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = Buffer("b1", dtype, (4,), (1,), CPU)
    definition = Definition(out, ((ROW, 4),), (as_expr(ROW),), body)
    program = LoopProgram((IN,), (), (definition,), (BufferView(out, (4,), (1,), 0, dtype),), ())
    assert print_loops(program).endswith("return b1\n")
    (result,) = run_loops(program, [x])
    return result


def test_every_scalar_operator_is_evaluated() -> None:
    assert set(SCALAR_OPS) == set(_OPERATORS)


def test_a_guard_hides_loads_outside() -> None:
    inside = apply("ge", Index(as_expr(ROW) - 1), 0)
    body = Guarded(inside, Load(IN, (as_expr(ROW) - 1,)), Literal(9.0, torch.float32))
    assert _run(body, torch.arange(4.0)).tolist() == [9, 0, 1, 2]


def test_a_load_outside_is_found() -> None:
    with pytest.raises(RuntimeError, match="load of b0"):
        _run(Load(IN, (as_expr(ROW) - 1,)), torch.arange(4.0))


def test_an_index_is_checked() -> None:
    body = Load(IN, (InRange(apply("mul", Index(as_expr(ROW)), 2), 4),))
    with pytest.raises(IndexError, match="index 4"):
        _run(body, torch.arange(4.0))


def test_folds() -> None:
    x = torch.tensor([3.0, -1.0, 7.0, 7.0])
    load = Load(IN, (as_expr(FOLDED),))
    axes = ((FOLDED, 4),)
    assert _run(Reduce("sum", axes, load, torch.float32), x)[0] == 16
    assert _run(Reduce("max", axes, load, torch.float32), x)[0] == 7
    assert _run(Reduce("argmax", axes, load, torch.int64), x, torch.int64)[0] == 2
    x[1] = torch.nan
    assert _run(Reduce("max", axes, load, torch.float32), x).isnan().all()
    assert _run(Reduce("argmin", axes, load, torch.int64), x, torch.int64)[0] == 1


def test_evaluates_positions() -> None:
    scalar = apply("floordiv", Index(as_expr(ROW)), 2)
    assert evaluate_scalar(scalar, ROW, 4).tolist() == [0, 0, 1, 1]


def test_constructors_fold_what_needs_no_proof() -> None:
    load = Load(IN, (as_expr(ROW),))
    assert apply("mul", load, 1.0) is load
    assert isinstance(apply("add", load, 0.0), Apply)  # -0.0 + 0.0 is 0.0
    assert cast(load, torch.float32) is load
    assert cast(cast(load, torch.float64), torch.float32) is load
    rounded = cast(cast(load, torch.bfloat16), torch.float32)
    assert rounded is not load
    assert without_round_trips(rounded) is load
    assert cast(literal(0.1, torch.float32), torch.bfloat16).value == 0.10009765625
    assert literal(300, torch.uint8).value == 44
    both = apply("add", literal(True, torch.bool), literal(True, torch.bool))
    assert both.op == "or"
