"""Lowering: the table of rules, what stays with ATen, views, checks and symbolic sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from braze.ir.graphs.graph import Constant, Graph, Node, Output, Value
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import Definition, ExternCall, LoopProgram
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.verify_loops import verify_loops
from braze.ir.types import TensorType
from braze.lower import lower
from braze.lower.coordinates import make_axes
from braze.lower.rules import RULES, add_rule
from braze.options import Options
from braze.shapes.expr import Symbol, as_expr, symbols

CPU = torch.device("cpu")
aten = torch.ops.aten


def _lower(*lines: str, numerics: str = "default") -> LoopProgram:
    graph = parse_graph("graph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    options: Any = SimpleNamespace(numerics=numerics)
    program = lower(graph, options)
    verify_loops(program)
    return program


def _externs(program: LoopProgram) -> list[str]:
    return [str(s.op) for s in program.statements if isinstance(s, ExternCall)]


def _definitions(program: LoopProgram) -> list[Definition]:
    return [s for s in program.statements if isinstance(s, Definition)]


# Rules for operators that only some of the supported PyTorch versions have.
OPTIONAL_RULES = frozenset({"aten.concatenate.default"})


def test_every_rule_names_an_operator() -> None:
    missing = []
    for key in RULES:
        _, name, overload = key.split(".")
        packet = getattr(aten, name, None)
        if packet is None or overload not in packet.overloads():
            missing.append(key)
    assert set(missing) <= OPTIONAL_RULES


def test_a_second_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"two lowering rules for aten\.exp\.default"):
        add_rule("exp", lambda call, self: None)


def test_an_operator_without_a_rule_stays() -> None:
    program = _lower(
        "input %0: f32[4][1]cpu", "%1: f32[4][1]cpu = aten.cumsum.default(%0, 0)", "output %1"
    )
    assert _externs(program) == ["aten.cumsum.default"]
    (result,) = run_loops(program, [torch.ones(4)])
    assert result.tolist() == [1, 2, 3, 4]


def test_complex_numbers_stay() -> None:
    program = _lower(
        "input %0: c64[4][1]cpu", "%1: c64[4][1]cpu = aten.mul.Tensor(%0, 2)", "output %1"
    )
    assert _externs(program) == ["aten.mul.Tensor"]


def test_eager_numerics_leave_sums_to_aten() -> None:
    lines = (
        "input %0: bf16[4][1]cpu",
        "%1: bf16[4][1]cpu = aten.mul.Tensor(%0, 2)",
        "%2: bf16[][]cpu = aten.sum.default(%1)",
        "output %2",
    )
    assert _externs(_lower(*lines, numerics="eager")) == ["aten.sum.default"]
    assert _externs(_lower(*lines)) == []


@pytest.mark.parametrize(
    ("call", "is_own"),
    [
        ("aten.mul.Tensor(%0, 3)", True),
        ("aten.add.Tensor(%0, %0, alpha=2)", False),  # ATen fuses the multiplication
        ("aten.relu.default(%0)", True),
        ("aten.exp.default(%0)", False),
        ("aten.sqrt.default(%0)", False),  # ATen's float32 differs in the last place
    ],
)
def test_eager_numerics_keep_the_bits(call: str, is_own: bool) -> None:
    program = _lower(
        "input %0: f32[4][1]cpu", f"%1: f32[4][1]cpu = {call}", "output %1", numerics="eager"
    )
    assert bool(_externs(program)) is not is_own


def test_division_of_integers_by_a_tensor_may_raise() -> None:
    program = _lower(
        "input %0: i64[4][1]cpu",
        "input %1: i64[4][1]cpu",
        "%2: i64[4][1]cpu = aten.div.Tensor_mode(%0, %1, rounding_mode='floor')",
        "output %2",
    )
    assert _externs(program) == []
    dividend, divisor = torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2])
    (result,) = run_loops(program, [dividend, divisor])
    assert result.tolist() == [3, -4, -4, 3]
    with pytest.raises(IndexError):  # the call is then run by eager, which words the error
        run_loops(program, [dividend, divisor * 0])


def test_an_index_out_of_range_raises() -> None:
    program = _lower(
        "input %0: f32[3, 2][2, 1]cpu",
        "input %1: i64[2][1]cpu",
        "%2: f32[2, 2][2, 1]cpu = aten.index.Tensor(%0, [%1])",
        "output %2",
    )
    assert _externs(program) == []
    table = torch.arange(6.0).view(3, 2)
    (result,) = run_loops(program, [table, torch.tensor([-1, 0])])
    assert torch.equal(result, table[[-1, 0]])
    with pytest.raises(IndexError, match="3 is out of bounds for dimension with size 3"):
        run_loops(program, [table, torch.tensor([0, 3])])


def test_views_cost_nothing() -> None:
    program = _lower(
        "input %0: f32[4, 6][6, 1]cpu",
        "%1: f32[2, 2, 6][12, 6, 1]cpu = aten.view.default(%0, [2, 2, 6])",
        "%2: f32[6, 2, 2][1, 12, 6]cpu = aten.permute.default(%1, [2, 0, 1])",
        "%3: f32[2, 2][12, 6]cpu = aten.select.int(%2, 0, -1)",
        "output %3",
    )
    assert not program.statements
    (view,) = program.outputs
    assert (view.shape, view.stride, view.offset) == ((2, 2), (12, 6), 5)


def test_a_view_that_strides_cannot_say_is_copied() -> None:
    """`view` of a transposed tensor: what reaches lowering where a rule of shapes was lenient."""
    program = _lower(
        "input %0: f32[2, 3][3, 1]cpu",
        "%1: f32[3, 2][1, 3]cpu = aten.t.default(%0)",
        "%2: f32[6][1]cpu = aten.reshape.default(%1, [6])",
        "%3: f32[6][1]cpu = aten.cumsum.default(%2, 0)",
        "output %3",
    )
    x = torch.arange(6.0).view(2, 3)
    (result,) = run_loops(program, [x])
    assert torch.equal(result, x.t().reshape(6).cumsum(0))


def test_constants_and_positions_are_folded() -> None:
    program = _lower(
        "input %0: f32[4][1]cpu",
        "%1: i64[4][1]cpu = aten.arange.default(4)",
        "%2: b8[4][1]cpu = aten.lt.Scalar(%1, 2)",
        "%3: f32[4][1]cpu = aten.where.ScalarOther(%2, %0, 0.0)",
        "output %3",
    )
    assert len(program.statements) == 1


def test_a_captured_number_is_a_literal() -> None:
    x, two = (
        Value(n, TensorType(torch.float32, s, t, CPU)) for n, s, t in ((0, (3,), (1,)), (1, (), ()))
    )
    result = Value(2, x.type)
    node = Node(aten.mul.Tensor, (x, two), (), (result,))
    constants = (Constant(two, torch.tensor(2.0)),)
    program = lower(Graph((x,), constants, (node,), (Output(result),), ()), Options())
    assert "* 2.0:f32" in print_loops(program)


def test_unused_results_are_not_computed() -> None:
    program = _lower(
        "input %0: f32[2, 3][3, 1]cpu",
        "(%1: f32[2][1]cpu, %2: i64[2][1]cpu) = aten.max.dim(%0, 1)",
        "output %1",
    )
    assert len(program.statements) == 1


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_numbers_that_the_graph_computes(dtype: str) -> None:
    """They are of double precision, for loops and for ATen's kernels."""
    program = _lower(
        f"input %0: {dtype}[2, 2][2, 1]cpu",
        "input %1: f64[][]cpu",
        "%2: f64[][]cpu = aten.exp.default(%1)",
        "%3: float = aten._local_scalar_dense.default(%2)",
        f"%4: {dtype}[2, 2][2, 1]cpu = aten.mul.Tensor(%0, %3)",
        f"%5: {dtype}[2, 2][2, 1]cpu = aten.renorm.default(%4, %3, 0, 2.0)",
        "output %4",
        "output %5",
    )
    assert _externs(program) == ["aten.renorm.default"]
    assert "number b" in print_loops(program)
    x = torch.linspace(0, 1, 4).view(2, 2).to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    number = torch.tensor(0.3, dtype=torch.float64)
    product, limited = run_loops(program, [x, number])
    expected = x * number.exp().item()
    torch.testing.assert_close(product, expected, rtol=0, atol=0)
    assert torch.equal(limited, torch.renorm(expected, number.exp().item(), 0, 2.0))


def test_half_arithmetic_is_in_float32() -> None:
    program = _lower(
        "input %0: bf16[4][1]cpu",
        "%1: bf16[4][1]cpu = aten.exp.default(%0)",
        "output %1",
    )
    assert "bf16(exp(f32(b0[i0])))" in print_loops(program)


def test_windows_on_memory_reach_loops_as_copies() -> None:
    program = _lower(
        "input %0: f32[4][1]cpu",
        "%1: f32[4][1]cpu = aten.exp.default(%0)",
        "%2: f32[2, 2][1, 2]cpu = aten.as_strided.default(%1, [2, 2], [1, 2], 0)",
        "%3: f32[2, 2][1, 2]cpu = aten.neg.default(%2)",
        "output %3",
    )
    x = torch.randn(4)
    (result,) = run_loops(program, [x])
    assert torch.equal(result, -x.exp().as_strided((2, 2), (1, 2), 0))


def test_real_views_of_complex_numbers() -> None:
    program = _lower(
        "input %0: c64[3][1]cpu",
        "%1: f32[3, 2][2, 1]cpu = aten.view_as_real.default(%0)",
        "%2: f32[3][2]cpu = aten.select.int(%1, 1, 1)",
        "%3: f32[3][1]cpu = aten.exp.default(%2)",
        "output %2",
        "output %3",
    )
    z = torch.randn(3, dtype=torch.complex64)
    imaginary, result = run_loops(program, [z])
    torch.testing.assert_close(imaginary, z.imag)
    torch.testing.assert_close(result, z.imag.exp())


def test_symbolic_sizes() -> None:
    rows = as_expr(Symbol("s0", 2, None))
    kind = TensorType(torch.float32, (rows, 6), (6, 1), CPU)
    x = Value(0, kind)
    flat = Value(1, TensorType(torch.float32, (rows * 6,), (1,), CPU))
    column = Value(2, TensorType(torch.float32, (rows * 6,), (1,), CPU))
    mean = Value(3, TensorType(torch.float32, (6,), (1,), CPU))
    nodes = (
        Node(aten.view.default, (x, (rows * 6,)), (), (flat,)),
        Node(aten.exp.default, (flat,), (), (column,)),
        Node(aten.mean.dim, (x, [0]), (), (mean,)),
    )
    graph = Graph((x,), (), nodes, (Output(column), Output(mean)), ())
    program = lower(graph, Options())
    verify_loops(program)
    for count in (2, 5):
        tensor = torch.randn(count, 6)
        exp, average = run_loops(program, [tensor])
        torch.testing.assert_close(exp, tensor.view(-1).exp())
        torch.testing.assert_close(average, tensor.mean(0))


def test_symbolic_batches() -> None:
    """Pooling, normalisation, joining and a loss over a batch of unknown size."""
    batch = as_expr(Symbol("s0", 2, None))

    def value(index: int, *shape: Any) -> Value:
        strides: list[Any] = []
        step: Any = 1
        for size in reversed(shape):
            strides.insert(0, step)
            step = step * size
        return Value(index, TensorType(torch.float32, shape, tuple(strides), CPU))

    image, pooled, both = (
        value(0, batch, 2, 6, 6),
        value(1, batch, 2, 3, 3),
        value(2, batch, 4, 3, 3),
    )
    flat, mean, scale = value(3, batch, 4, 9), value(4, batch, 4, 1), value(5, batch, 4, 1)
    normal, loss = value(6, batch, 4, 9), value(7)
    nodes = (
        Node(aten.avg_pool2d.default, (image, [2, 2]), (), (pooled,)),
        Node(aten.cat.default, ([pooled, pooled], 1), (), (both,)),
        Node(aten.view.default, (both, [batch, 4, 9]), (), (flat,)),
        Node(
            aten.native_layer_norm.default, (flat, [9], None, None, 1e-5), (), (normal, mean, scale)
        ),
        Node(aten.mse_loss.default, (normal, flat), (), (loss,)),
    )
    program = lower(Graph((image,), (), nodes, (Output(normal), Output(loss)), ()), Options())
    verify_loops(program)
    assert not _externs(program)
    for count in (2, 5):
        x = torch.randn(count, 2, 6, 6)
        expected = torch.cat([torch.nn.functional.avg_pool2d(x, 2)] * 2, 1).view(count, 4, 9)
        wanted = torch.nn.functional.layer_norm(expected, (9,))
        result, actual_loss = run_loops(program, [x])
        torch.testing.assert_close(result, wanted)
        torch.testing.assert_close(actual_loss, torch.nn.functional.mse_loss(wanted, expected))


def test_write_backs_are_views() -> None:
    program = _lower(
        "input %0: f32[3][1]cpu",
        "%1: f32[3][1]cpu = aten.add.Tensor(%0, 1)",
        "output %1",
        "write %0 <- %1",
    )
    x = torch.zeros(3)
    run_loops(program, [x])
    assert x.tolist() == [1, 1, 1]
    assert len(_definitions(program)) == 1


def test_axes_of_symbolic_sizes_are_the_programs_own() -> None:
    """Sizes of another program are equal to them, and have other hints."""
    for hint in (6, 10):
        ((_, size), (_, known)) = make_axes("hinted", (as_expr(Symbol("hinted", 2, None, hint)), 3))
        assert [s.hint for s in symbols(size)] == [hint] and known == 3
