"""Kernels for a GPU, run by Triton's interpreter (or by a GPU, where there is one), beside the
loop evaluator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from braze.codegen.triton import alternatives, generate, host_sources, supports
from braze.codegen.triton.operators import TYPES
from braze.ir.kernels.loops import (
    SCALAR_OPS,
    Cast,
    LoopProgram,
    Scalar,
)
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.scalars import apply, cast, index
from braze.options import Options
from braze.schedule import CUDA, schedule
from braze.shapes.expr import Symbol, as_expr
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
from tests.unit.codegen.triton_running import (
    MARKS,
    OPTIONS,
    check,
    generated,
    run,
    run_sources,
)

pytestmark = MARKS


SHAPES = [((30, 70), (1,)), ((30, 70), (0,)), ((9, 30), ()), ((3, 12, 33), (1,))]


@pytest.mark.parametrize(
    ("rows", "columns"), [(5, 77), (9, 301), (3, 20001), (2, 20000), (1, 1), (0, 5)]
)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16])
def test_softmax(rows: int, columns: int, dtype: torch.dtype) -> None:
    check(softmax(rows, columns, dtype), [torch.randn(rows, columns).to(dtype)])


@pytest.mark.parametrize("columns", [9, 20000])
def test_softmax_of_rows_that_are_not_finite(columns: int) -> None:
    x = torch.randn(6, columns)
    x[1, 3], x[2, 4], x[3, 5] = math.inf, math.nan, -math.inf
    x[4], x[5] = -math.inf, math.inf
    check(softmax(6, columns), [x])


@pytest.mark.parametrize(("rows", "columns"), [(6, 768), (3, 17), (1, 5), (70, 64), (2, 20001)])
def test_add_norm(rows: int, columns: int) -> None:
    inputs = [torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns)]
    check(add_norm(rows, columns), inputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 70, 30), (2, 3, 5), (3, 8, 1), (12, 3, 900)])
def test_channel_norm(shape: tuple[int, int, int]) -> None:
    check(channel_norm(shape), [torch.randn(shape)], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("made", "inputs"),
    [
        (softmax(6, 301), [(6, 301)]),
        (softmax(2, 20001), [(2, 20001)]),
        (add_norm(5, 70), [(5, 70), (5, 70), (70,)]),
        (transposed_add(40, 70), [(70, 40), (40, 70)]),
        (channel_norm((4, 70, 30)), [(4, 70, 30)]),
    ],
)
def test_every_candidate_of_tuning(made: LoopProgram, inputs: list[tuple[int, ...]]) -> None:
    given = [torch.randn(shape) for shape in inputs]
    expected = run_loops(made, given)
    plan = schedule(made, OPTIONS, CUDA)
    ways = alternatives(plan, OPTIONS)
    assert max(map(len, ways)) >= 2
    for number in range(max(map(len, ways))):
        chosen = [launches[min(number, len(launches) - 1) :][:1] for launches in ways]
        found = run_sources(made, plan, host_sources(plan, chosen), given)
        for mine, right in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_columns_of_several_inputs(count: int) -> None:
    """Blocks are powers of two, however many bytes are read for a point."""
    rows, columns = 1200, 70
    inputs = [buffer(f"x{n}", (rows, columns)) for n in range(count)]
    y = buffer("y", (columns,))
    (c, _) = (over := axes((columns,), "c"))[0]
    (r, _) = (along := axes((rows,), "r"))[0]
    value = load(inputs[0], r, c)
    for x in inputs[1:]:
        value = apply("mul", value, load(x, r, c))
    made = program(inputs, [define(y, over, total("sum", along, value))], [y])
    target = replace(CUDA, least_work=1024, least_part=4096)
    _, sources = generated(made, target)
    functions = [launch.function for step in sources.launches for launch in step]
    assert functions and all(n & (n - 1) == 0 for f in functions for n in f.constants)
    check(made, [torch.rand(rows, columns) for _ in inputs], target, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(128, 3, 2048), (17, 12, 2000)])
def test_channel_norm_of_few_channels(shape: tuple[int, int, int]) -> None:
    """The statistics are computed in parts, both moments in one read."""
    plan, _ = generated(channel_norm(shape))
    assert len(plan.steps) == 3
    check(channel_norm(shape), [torch.randn(shape) + 3], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 24, 96), (2, 7, 588)])
def test_channel_norm_of_channels_beside_each_other(shape: tuple[int, int, int]) -> None:
    """The same, for parts that may begin anywhere in an image."""
    made = channel_norm(shape, channels_last=True)
    target = replace(CUDA, least_work=1024, enough_tasks=4)
    plan, _ = generated(made, target)
    assert len(plan.steps) == 3
    x = torch.randn(shape[0], shape[2], shape[1]).transpose(1, 2) + 3
    check(made, [x], target, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("shape", "keep"), SHAPES)
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("nan", [False, True])
def test_extrema(kind: str, shape: tuple[int, ...], keep: tuple[int, ...], nan: bool) -> None:
    x = torch.randn(shape).round(decimals=1)  # with ties: the first one counts
    if nan:
        x.view(-1)[x.numel() // 2] = math.nan
    check(reduction(kind, shape, keep), [x])


@pytest.mark.parametrize("kind", ["max", "argmin", "argmax", "sum", "prod"])
@pytest.mark.parametrize(
    ("shape", "keep"), [((6, 9000), (0,)), ((6, 9003), (0,)), ((9000, 2), (1,))]
)
def test_walked_reductions(kind: str, shape: tuple[int, ...], keep: tuple[int, ...]) -> None:
    x = torch.randn(shape).round(decimals=2)
    if kind.startswith("arg") and shape[0] == 6:
        x[1] = -math.inf
        x[2] = math.inf
        x[3, 5000] = math.nan
        x[4, 8000:] = math.nan
    if kind == "prod":
        x = 1 + x / 1000
    check(reduction(kind, shape, keep), [x], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("shape", "keep"), [*SHAPES, ((2, 20001), (0,)), ((9001, 3), (1,))])
def test_sum_is_as_exact_as_eager(shape: tuple[int, ...], keep: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    along = [d for d in range(len(shape)) if d not in keep]
    summed = reduction("sum", shape, keep)
    error, eager = 0.0, 0.0
    for _ in range(12):
        x = torch.randn(shape)
        exact = x.double().sum(along)
        error += (run(summed, [x])[0] - exact).abs().mean().item()
        eager += (x.sum(along) - exact).abs().mean().item()
    assert error <= 2 * eager


@pytest.mark.parametrize("length", [300_001, 2**19])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_long_sums_are_split(length: int, kind: str) -> None:
    summed = reduction(kind, (length,), ())
    plan, _ = generated(summed)
    assert len(plan.steps) == 2
    check(summed, [torch.randn(length) - 9], rtol=1e-5, atol=1e-3)


def test_a_search_in_a_second_walk_finds_the_first() -> None:
    """The position of the greatest of round(x - mean): rows are walked back the second time."""
    shape = (5, 20000)
    x, mean, y = buffer("x", shape), buffer("mean", (5,)), buffer("y", (5,), torch.int64)
    over = axes(shape)
    (i, _), (r, _) = over
    centred = apply("round", apply("sub", load(x, i, r), load(mean, i)))
    statements = [
        define(mean, over[:1], total("max", over[1:], load(x, i, r))),
        define(y, over[:1], total("argmin", over[1:], centred, torch.int64)),
    ]
    check(program([x], statements, [y]), [torch.randn(shape)])


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize(("shape", "keep"), [((50, 60), (0,)), ((500, 6), (1,)), ((7, 9), ())])
def test_logical_reductions(kind: str, shape: tuple[int, ...], keep: tuple[int, ...]) -> None:
    x = torch.rand(shape) > (0.99 if kind == "any" else 0.01)
    check(reduction(kind, shape, keep, torch.bool), [x])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_integer_reductions(kind: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (20, 30), dtype=dtype)
    check(reduction(kind, (20, 30), (0,), dtype), [x])
    check(reduction(kind, (20, 30), (1,), dtype), [x])


@pytest.mark.parametrize("shape", [(130, 70), (5, 200), (200, 5), (64, 64)])
def test_transposed_reads(shape: tuple[int, int]) -> None:
    rows, columns = shape
    check(transposed_add(rows, columns), [torch.randn(columns, rows), torch.randn(rows, columns)])


def test_a_transposition_is_a_tile() -> None:
    _, sources = generated(transposed_add(256, 128))
    (function,) = {launch.function for step in sources.launches for launch in step}
    assert function.constants == (64, 64)


def test_reshape_cuts_the_loop() -> None:
    check(reshaped(), [torch.randn(4, 6, 10, 8)])


def test_padding_never_reads_outside() -> None:
    check(padded(), [torch.randn(20)])


def test_joining_writes_regions_of_one_buffer() -> None:
    check(joined(), [torch.randn(3, 5), torch.randn(3, 7)])


def test_joined_regions_are_computed_where_they_are_read() -> None:
    """Half of each row turned, as for rotary embeddings: y = x + cat(-x[8:], x[:8])."""
    x, t, y = (buffer(name, (5, 16)) for name in "xty")
    (i, _), (j, _) = half = axes((5, 8))
    (a, _), (b, _) = over = axes((5, 16))
    statements = [
        define(t, half, apply("neg", load(x, i, as_expr(j) + 8)), [i, j]),
        define(t, half, load(x, i, j), [i, as_expr(j) + 8]),
        define(y, over, apply("add", load(x, a, b), load(t, a, b))),
    ]
    turned = program([x], statements, [y])
    plan, _ = generated(turned)
    assert len(plan.steps) == 1 and not plan.slots
    check(turned, [torch.randn(5, 16)])


def test_gather_asserts_its_range() -> None:
    lookup = gathered()
    check(lookup, [torch.randn(10, 6), torch.randint(0, 10, (40,))])
    _, sources = generated(lookup)
    (function,) = {launch.function for step in sources.launches for launch in step}
    assert function.checked and "tl.device_assert" in function.text


def test_a_value_read_at_another_point_of_its_row_goes_through_memory() -> None:
    """y[i, j] = e[i, 9 - j] / sum of e[i], e = exp(x)."""
    x, e, y = (buffer(name, (4, 10)) for name in ("x", "e", "y"))
    s = buffer("s", (4,))
    (i, _), (j, _) = over = axes((4, 10))
    along = axes((10,), "r")
    statements = [
        define(e, over, apply("exp", load(x, i, j))),
        define(s, over[:1], total("sum", along, load(e, i, along[0][0]))),
        define(y, over, apply("truediv", load(e, i, 9 - as_expr(j)), load(s, i))),
    ]
    check(program([x], statements, [y]), [torch.randn(4, 10)])


def test_strided_output_and_input() -> None:
    x, y = buffer("x", (6, 9), stride=(1, 6)), buffer("y", (6, 9), stride=(1, 6))
    (i, _), (j, _) = over = axes((6, 9))
    body = apply("add", load(x, i, j), 1.0)
    check(program([x], [define(y, over, body)], [y]), [torch.randn(9, 6).t()])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (17,), (1, 1, 9), (7001,)])
def test_sizes(shape: tuple[int, ...]) -> None:
    chain = pointwise(shape, lambda x, z: apply("tanh", apply("mul", x, z)), F32, F32)
    check(chain, [torch.randn(shape), torch.randn(shape)])


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (70, 33), (1, 3000)])
def test_symbolic_sizes(rows: int, columns: int) -> None:
    """exp(x) / sum of exp(x), and x transposed + 1, for every size."""
    m, n = Symbol("s0", 1, None), Symbol("s1", 1, None)
    i, j, r = Symbol("i", 0, None), Symbol("j", 0, None), Symbol("r", 0, None)
    size = {"x": (m, n), "y": (m, n), "z": (n, m)}
    x, y, z = (
        buffer(name, tuple(map(as_expr, shape)), stride=(as_expr(shape[1]), 1))  # type: ignore[arg-type]
        for name, shape in size.items()
    )
    s = buffer("s", (as_expr(m),), stride=(1,))  # type: ignore[arg-type]
    over = ((i, as_expr(m)), (j, as_expr(n)))
    statements = [
        define(s, over[:1], total("sum", ((r, as_expr(n)),), apply("exp", load(x, i, r)))),  # type: ignore[arg-type]
        define(y, over, apply("truediv", apply("exp", load(x, i, j)), load(s, i))),  # type: ignore[arg-type]
        define(z, ((j, as_expr(n)), (i, as_expr(m))), apply("add", load(x, i, j), 1.0)),  # type: ignore[arg-type]
    ]
    check(program([x], statements, [y, z]), [torch.randn(rows, columns)])


FLOAT_OPS = sorted(op for op, row in SCALAR_OPS.items() if supports(op, F32) and op != "where")


@pytest.mark.parametrize("dtype", [F32, torch.float64])
def test_every_float_operator(dtype: torch.dtype) -> None:
    """One kernel with all of them, against PyTorch's own."""
    operands = [torch.rand(300, dtype=dtype) * 0.9 + 0.05 for _ in range(3)]
    check(all_of(FLOAT_OPS, dtype), operands, atol=2e-6, rtol=2e-6)


SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.5, -2.5, 3.0, -7.25]
EXACT = "abs neg sign floor ceil trunc round isnan isinf signbit maximum minimum fmax fmin fmod mod"
EXACT += " floordiv truncdiv copysign eq ne lt le gt ge add sub mul truediv sqrt"


@pytest.mark.parametrize("dtype", [F32, torch.float64])
def test_operators_on_special_values(dtype: torch.dtype) -> None:
    left, right = (x.reshape(-1) for x in torch.meshgrid(*[torch.tensor(SPECIAL, dtype=dtype)] * 2))
    check(all_of(EXACT.split(), dtype, len(left)), [left, right, left])


def all_of(names: list[str], dtype: torch.dtype, length: int = 300, arity: int = 3) -> LoopProgram:
    """Every operator on its own output."""
    over = axes((length,))
    inputs = [buffer(f"x{k}", (length,), dtype) for k in range(arity)]
    statements, outputs = [], []
    for number, op in enumerate(names):
        body = apply(op, *(load(x, over[0][0]) for x in inputs[: SCALAR_OPS[op].arity]))
        y = buffer(f"y{number}", (length,), body.dtype)
        statements.append(define(y, over, body))
        outputs.append(y)
    return program(inputs, statements, outputs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_every_integer_operator(dtype: torch.dtype) -> None:
    low = 0 if dtype == torch.uint8 else -9
    first = torch.randint(low, 10, (300,), dtype=dtype)
    second = torch.where(first == 3, 1, torch.randint(1, 7, (300,), dtype=dtype)).to(dtype)
    if dtype != torch.uint8:
        second[::3] *= -1
    names = [op for op in SCALAR_OPS if supports(op, dtype) and op not in ("where", "shl", "shr")]
    check(all_of(names, dtype, arity=2), [first, second])
    small = second.abs() % (dtype.itemsize * 8)
    check(all_of(["shl", "shr"], dtype, arity=2), [first, small])


def test_every_logical_operator() -> None:
    first, second = torch.rand(300) > 0.5, torch.rand(300) > 0.5
    names = [op for op in SCALAR_OPS if supports(op, torch.bool) and op != "where"]
    check(all_of(names, torch.bool, arity=2), [first, second])


@pytest.mark.parametrize("source", list(TYPES))
def test_casts(source: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 2.5, 3.999, 100.25, 77.0, 1e-6, 0.5] * 5).to(source)
    x = buffer("x", (40,), source)
    over = axes((40,))
    outputs = [buffer(f"y{k}", (40,), target) for k, target in enumerate(TYPES)]
    body = load(x, over[0][0])
    statements = [define(y, over, cast(body, y.dtype)) for y in outputs]
    results = run(program([x], statements, outputs), [values])
    for mine, target in zip(results, TYPES, strict=True):
        torch.testing.assert_close(mine, values.to(target), equal_nan=True)


def _choice(x: Scalar, y: Scalar) -> Scalar:
    return apply("where", apply("gt", cast(x, F32), 0.0), x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16, torch.uint8])
def test_choices(dtype: torch.dtype) -> None:
    x, y = (torch.randint(0, 9, (100,)).to(dtype) for _ in range(2))
    check(pointwise((100,), _choice, dtype, dtype, result=dtype), [x, y])


@pytest.mark.parametrize("op", ["gelu", "tanh", "exp"])
def test_short_forms_stay_within_half_types(op: str) -> None:
    """Rounded to float16, they are what the exact functions are: at most one value aside."""
    x = torch.linspace(-6, 6, 2001)

    def body(v: Scalar) -> Scalar:
        if op != "gelu":
            return Cast(apply(op, v), torch.float16)
        inner = apply("add", apply("erf", apply("mul", v, math.sqrt(0.5))), 1.0)
        return Cast(apply("mul", apply("mul", v, 0.5), inner), torch.float16)

    (mine,) = run(pointwise((2001,), body, F32, result=torch.float16), [x])
    function = torch.nn.functional.gelu if op == "gelu" else getattr(torch, op)
    exact = function(x.double())
    error, least = (mine.double() - exact).abs(), (exact.half().double() - exact).abs()
    assert error.norm() <= 1.01 * least.norm()


def test_every_rounding_of_eager_is_kept_where_asked() -> None:
    """Nothing is contracted, and no form is shorter than eager's."""
    chain = pointwise(
        (100,),
        lambda x, y: Cast(apply("exp", apply("add", apply("mul", x, y), y)), torch.float16),
        F32,
        F32,
        result=torch.float16,
    )
    plan, _ = generated(chain)
    ((launch,),) = generate(plan, Options(numerics="eager")).launches
    assert "mul_rn" in launch.function.text and "add_rn" in launch.function.text
    assert "libdevice.exp" in launch.function.text
    ((launch,),) = generate(plan, Options()).launches
    assert "_rn" not in launch.function.text and "tl.exp" in launch.function.text


def test_index_values() -> None:
    y = buffer("y", (7, 9), torch.int64)
    (i, _), (j, _) = over = axes((7, 9))
    body = apply("add", index(as_expr(i) * 9 + j), 3)
    check(program([], [define(y, over, body)], [y]), [])


def test_large_tensors_are_indexed_with_64_bits() -> None:
    shape = (70000, 40000)
    _, sources = generated(pointwise(shape, lambda x: apply("neg", x)))
    ((launch,),) = sources.launches
    assert "tl.program_id(0).to(tl.int64)" in launch.function.text
    _, sources = generated(pointwise((700, 400), lambda x: apply("neg", x)))
    ((launch,),) = sources.launches
    assert "int64" not in launch.function.text


def test_kernels_that_differ_in_buffers_only_share_a_function() -> None:
    x, y, z = (buffer(name, (300, 3000)) for name in "xyz")
    a, b, c = (buffer(name, (3000,)) for name in "abc")
    (i, _), _ = over = axes((300, 3000))
    once = axes((3000,))
    statements = []
    for source, target in [(x, a), (y, b), (z, c)]:
        statements.append(define(target, once, total("sum", over[:1], load(source, i, once[0][0]))))
    _, sources = generated(program([x, y, z], statements, [a, b, c]))
    launches = [launch for step in sources.launches for launch in step]
    assert len({launch.function.name for launch in launches}) < len(launches) or len(launches) == 1


def test_supports_is_total() -> None:
    for op in SCALAR_OPS:
        for dtype in [*TYPES, torch.complex64, torch.float8_e5m2]:
            assert supports(op, dtype) in (True, False)
    assert not supports("digamma", F32)
    assert supports("", torch.bfloat16) and not supports("", torch.complex64)
