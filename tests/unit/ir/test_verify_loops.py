"""The verifier of loop programs finds each kind of mistake, and names the statement."""

from __future__ import annotations

import pytest
import torch

from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Cast,
    Definition,
    Guarded,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
)
from braze.ir.kernels.verify_loops import InvalidLoops, verify_loops
from braze.ir.origin import Origin
from braze.shapes.expr import Symbol, as_expr

CPU = torch.device("cpu")
ROW = Symbol("i0", 0, 3)
FOLDED = Symbol("r0", 0, 3)


def _buffer(name: str, dtype: torch.dtype = torch.float32, size: int = 4) -> Buffer:
    return Buffer(name, dtype, (size,), (1,), CPU)


IN, OUT = _buffer("b0"), _buffer("b1")


def _load(buffer: Buffer = IN, offset: int = 0, symbol: Symbol = ROW) -> Load:
    return Load(buffer, (as_expr(symbol) + offset,))


def _program(body: Scalar, target: Buffer = OUT, *more: Definition) -> LoopProgram:
    definition = Definition(target, ((ROW, 4),), (as_expr(ROW),), body, Origin("model.py", 7))
    view = BufferView(target, target.shape, target.stride, 0, target.dtype)
    return LoopProgram((IN,), (), (definition, *more), (view,), ())


def test_accepts_a_plain_program() -> None:
    verify_loops(_program(Apply("exp", (_load(),), torch.float32)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_load(_buffer("b9")), "b9 is read before it is computed"),
        (_load(offset=1), r"coordinate 0 of b0, i0 \+ 1, leaves \[0, 4\)"),
        (_load(symbol=FOLDED), "r0 of b0 is no axis"),
        (Load(IN, ()), "load of b0 has another rank"),
        (Cast(_load(), torch.int64), "b1 is torch.float32, its definition torch.int64"),
        (Apply("frob", (_load(),), torch.float32), "no scalar operator frob"),
        (Apply("add", (_load(),), torch.float32), "add takes 2 operands"),
        (Apply("not", (_load(),), torch.float32), "not does not take torch.float32"),
        (Apply("eq", (_load(), _load()), torch.float32), "eq gives torch.bool"),
        (Literal(1, torch.float32), "1 as a literal of torch.float32"),
        (
            Apply("add", (_load(), Cast(_load(), torch.float64)), torch.float32),
            "add of torch.float",
        ),
        (
            Reduce("median", ((FOLDED, 4),), _load(symbol=FOLDED), torch.float32),
            "no fold median",
        ),
        (
            Guarded(
                Apply("lt", (_load(), _load()), torch.bool),
                Reduce("sum", ((FOLDED, 4),), _load(symbol=FOLDED), torch.float32),
                _load(),
            ),
            "a fold below something other",
        ),
    ],
)
def test_finds(body: Scalar, message: str) -> None:
    with pytest.raises(InvalidLoops, match=message) as caught:
        verify_loops(_program(body))
    assert "model.py:7" in str(caught.value)


def test_a_guarded_load_may_leave_the_buffer() -> None:
    condition = Apply("ge", (_load(), _load()), torch.bool)
    verify_loops(_program(Guarded(condition, _load(offset=1), _load())))


def test_finds_overlapping_regions() -> None:
    again = Definition(OUT, ((ROW, 4),), (as_expr(ROW),), _load())
    with pytest.raises(InvalidLoops, match="regions of one target overlap"):
        verify_loops(_program(_load(), OUT, again))


def test_finds_a_result_without_definition() -> None:
    view = BufferView(OUT, (4,), (1,), 0, torch.float32)
    with pytest.raises(InvalidLoops, match="result b1 is never computed"):
        verify_loops(LoopProgram((IN,), (), (), (view,), ()))
