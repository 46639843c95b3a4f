"""Generated kernels beside the loop evaluator, over the forms that schedules take."""

from __future__ import annotations

import math

import pytest
import torch

from braze.codegen.cpp import supports
from braze.codegen.cpp.operators import TYPES
from braze.ir.kernels.loops import SCALAR_OPS, Cast
from braze.ir.kernels.scalars import apply, cast, index
from braze.shapes.expr import as_expr
from tests.unit.codegen.programs import (
    F32,
    add_norm,
    axes,
    buffer,
    channel_norm,
    define,
    gathered,
    joined,
    load,
    padded,
    pointwise,
    program,
    reduction,
    reshaped,
    softmax,
    total,
    transposed_add,
)
from tests.unit.codegen.running import check, compiled

SHAPES = [((1000, 70), (1,)), ((1000, 70), (0,)), ((90, 300), ()), ((8, 12, 33), (1,))]


@pytest.mark.parametrize(("rows", "columns"), [(100, 77), (3, 5000), (1, 1), (200, 4), (0, 5)])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16])
def test_softmax(rows: int, columns: int, dtype: torch.dtype) -> None:
    check(softmax(rows, columns, dtype), [torch.randn(rows, columns).to(dtype)])


@pytest.mark.parametrize(("rows", "columns"), [(50, 768), (3, 17), (1, 5), (1000, 64)])
def test_add_norm(rows: int, columns: int) -> None:
    inputs = [torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns)]
    check(add_norm(rows, columns), inputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 70, 30), (2, 3, 5), (3, 8, 1)])
def test_channel_norm(shape: tuple[int, int, int]) -> None:
    check(channel_norm(shape), [torch.randn(shape)], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("shape", "keep"), SHAPES)
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("nan", [False, True])
def test_extrema(kind: str, shape: tuple[int, ...], keep: tuple[int, ...], nan: bool) -> None:
    x = torch.randn(shape).round(decimals=1)  # with ties: the first one counts
    if nan:
        x.view(-1)[x.numel() // 2] = math.nan
    check(reduction(kind, shape, keep), [x])


@pytest.mark.parametrize(("shape", "keep"), [*SHAPES, ((5, 300000), (0,)), ((300000, 3), (1,))])
def test_sum_is_as_exact_as_eager(shape: tuple[int, ...], keep: tuple[int, ...]) -> None:
    """Over many sums: a single one may come out exact by luck."""
    function = compiled(reduction("sum", shape, keep))
    along = [d for d in range(len(shape)) if d not in keep]
    error, eager = 0.0, 0.0
    for _ in range(max(6, 100 // math.prod(shape[d] for d in keep))):
        x = torch.randn(shape)
        exact = x.double().sum(along)
        error += (function([x])[0] - exact).abs().mean().item()
        eager += (x.sum(along) - exact).abs().mean().item()
    assert error <= 2 * eager


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize(("shape", "keep"), [((50, 60), (0,)), ((500, 60), (1,)), ((7, 9), ())])
def test_logical_reductions(kind: str, shape: tuple[int, ...], keep: tuple[int, ...]) -> None:
    x = torch.rand(shape) > (0.99 if kind == "any" else 0.01)
    check(reduction(kind, shape, keep, torch.bool), [x])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_integer_reductions(kind: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (40, 300), dtype=dtype)
    check(reduction(kind, (40, 300), (0,), dtype), [x])
    check(reduction(kind, (40, 300), (1,), dtype), [x])


@pytest.mark.parametrize("shape", [(130, 70), (5, 200), (200, 5), (64, 64)])
def test_transposed_reads(shape: tuple[int, int]) -> None:
    rows, columns = shape
    check(transposed_add(rows, columns), [torch.randn(columns, rows), torch.randn(rows, columns)])


def test_reshape_cuts_the_loop() -> None:
    check(reshaped(), [torch.randn(4, 6, 10, 8)])


def test_padding_never_reads_outside() -> None:
    check(padded(), [torch.randn(20)])


def test_joining_writes_regions_of_one_buffer() -> None:
    check(joined(), [torch.randn(3, 5), torch.randn(3, 7)])


def test_gather_and_its_check() -> None:
    lookup = gathered()
    weights = torch.randn(10, 6)
    check(lookup, [weights, torch.randint(0, 10, (40,))])
    with pytest.raises(IndexError):
        compiled(lookup)([weights, torch.full((40,), 10)])
    with pytest.raises(IndexError):
        compiled(lookup)([weights, torch.full((40,), -1)])


def test_pooling_window_is_unrolled() -> None:
    x, y = buffer("x", (2, 9, 9)), buffer("y", (2, 4, 4))
    (c, _), (i, _), (j, _) = over = axes((2, 4, 4))
    window = axes((3, 3), "r")
    p, q = window[0][0], window[1][0]
    body = load(x, c, as_expr(i) * 2 + p, as_expr(j) * 2 + q)
    check(program([x], [define(y, over, total("max", window, body))], [y]), [torch.randn(2, 9, 9)])


def test_strided_output_and_input() -> None:
    x, y = buffer("x", (6, 9), stride=(1, 6)), buffer("y", (6, 9), stride=(1, 6))
    (i, _), (j, _) = over = axes((6, 9))
    body = apply("add", load(x, i, j), 1.0)
    check(program([x], [define(y, over, body)], [y]), [torch.randn(9, 6).t()])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (17,), (1, 1, 9), (70001,)])
def test_sizes(shape: tuple[int, ...]) -> None:
    chain = pointwise(shape, lambda x, z: apply("tanh", apply("mul", x, z)), F32, F32)
    check(chain, [torch.randn(shape), torch.randn(shape)])


FLOAT_OPS = sorted(op for op, row in SCALAR_OPS.items() if supports(op, F32) and op != "where")


@pytest.mark.parametrize("dtype", [F32, torch.float64])
def test_every_float_operator(dtype: torch.dtype) -> None:
    """One kernel with all of them, against PyTorch's own."""
    operands = [torch.rand(300, dtype=dtype) * 0.9 + 0.05 for _ in range(3)]
    over = axes((300,))
    inputs = [buffer(f"x{k}", (300,), dtype) for k in range(3)]
    statements, outputs = [], []
    for number, op in enumerate(FLOAT_OPS):
        row = SCALAR_OPS[op]
        body = apply(op, *(load(x, over[0][0]) for x in inputs[: row.arity]))
        y = buffer(f"y{number}", (300,), body.dtype)
        statements.append(define(y, over, body))
        outputs.append(y)
    check(program(inputs, statements, outputs), operands, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_every_integer_operator(dtype: torch.dtype) -> None:
    low = 0 if dtype == torch.uint8 else -9
    first = torch.randint(low, 10, (300,), dtype=dtype)
    second = torch.where(first == 3, 1, torch.randint(1, 7, (300,), dtype=dtype)).to(dtype)
    if dtype != torch.uint8:
        second[::3] *= -1
    over = axes((300,))
    inputs = [buffer("x0", (300,), dtype), buffer("x1", (300,), dtype)]
    names = [
        op for op in SCALAR_OPS if supports(op, dtype) and op not in ("where", "shl", "shr", "pow")
    ]
    statements, outputs = [], []
    for number, op in enumerate(names):
        body = apply(op, *(load(x, over[0][0]) for x in inputs[: SCALAR_OPS[op].arity]))
        y = buffer(f"y{number}", (300,), body.dtype)
        statements.append(define(y, over, body))
        outputs.append(y)
    check(program(inputs, statements, outputs), [first, second])


def test_integer_division_by_zero_raises() -> None:
    divide = pointwise(
        (50,), lambda x, z: apply("floordiv", x, z), torch.int64, torch.int64, result=torch.int64
    )
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(divide)([torch.arange(50), torch.zeros(50, dtype=torch.int64)])


@pytest.mark.parametrize("source", list(TYPES))
def test_casts(source: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 2.5, 3.999, 100.25, 77.0, 1e-6, 0.5] * 5).to(source)
    targets = list(TYPES)
    x = buffer("x", (40,), source)
    over = axes((40,))
    outputs = [buffer(f"y{k}", (40,), target) for k, target in enumerate(targets)]
    body = load(x, over[0][0])
    statements = [define(y, over, cast(body, y.dtype)) for y in outputs]
    results = compiled(program([x], statements, outputs))([values])
    for mine, target in zip(results, targets, strict=True):
        torch.testing.assert_close(mine, values.to(target), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_half_types_is_exact(dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (200_000,), dtype=torch.int64).to(torch.int32)
    scale = torch.randn(100_000) * 2.0 ** torch.randint(-30, 20, (100_000,))
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 65504.0, 65520.0, 6e-8])
    x = torch.cat([bits.view(F32), scale, special])
    narrow = pointwise((len(x),), lambda v: Cast(v, dtype), F32, result=dtype)
    (mine,) = compiled(narrow)([x])
    right = x.to(dtype)
    assert torch.equal(mine.isnan(), right.isnan())
    finite = ~right.isnan()
    assert torch.equal(mine[finite].view(torch.int16), right[finite].view(torch.int16))
    widen = pointwise((65536,), lambda v: Cast(v, F32), dtype)
    every = torch.arange(65536).to(torch.int16).view(dtype)
    torch.testing.assert_close(compiled(widen)([every])[0], every.float(), equal_nan=True)


@pytest.mark.parametrize(("op", "limit"), [("exp", 1.2), ("tanh", 1.6), ("erf", 1.5)])
def test_inline_functions_are_within_ulps(op: str, limit: float) -> None:
    x = torch.cat([torch.linspace(-110, 95, 400_001), torch.linspace(-6, 6, 400_001)])
    (mine,) = compiled(pointwise((len(x),), lambda v: apply(op, v)))([x])
    exact = getattr(torch, op)(x.double())
    single = exact.float()
    spacing = (torch.nextafter(single.abs(), torch.tensor(math.inf)) - single.abs()).double()
    known = torch.isfinite(single) & (spacing > 0)
    assert (((mine - exact).abs() / spacing)[known]).max() < limit
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    (mine,) = compiled(pointwise((5,), lambda v: apply(op, v)))([special])
    torch.testing.assert_close(mine, getattr(torch, op)(special), equal_nan=True)


def test_index_values() -> None:
    y = buffer("y", (7, 9), torch.int64)
    (i, _), (j, _) = over = axes((7, 9))
    body = apply("add", index(as_expr(i) * 9 + j), 3)
    check(program([], [define(y, over, body)], [y]), [])


def test_supports_is_total() -> None:
    for op in SCALAR_OPS:
        for dtype in [*TYPES, torch.complex64, torch.float8_e5m2]:
            assert supports(op, dtype) in (True, False)
    assert not supports("digamma", torch.int64)
    assert supports("", torch.bfloat16) and not supports("", torch.complex64)
