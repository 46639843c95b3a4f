"""The launch program: memory, threads, aliases, mutations, extern calls."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from braze.codegen.cpp import generate
from braze.ir.kernels.loops import BufferView, ExternCall, LoopProgram
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import ExternStep
from braze.options import config
from braze.runtime.launch.cpp_compiler import NoCompiler, Toolchain, find_toolchain
from braze.runtime.link.link_cpu import Linked, link
from braze.schedule import schedule
from braze.shapes.expr import Symbol, as_expr
from tests.unit.codegen.programs import F32, axes, buffer, define, load, pointwise, program, view
from tests.unit.codegen.running import OPTIONS, check, compiled

MM = torch.ops.aten.mm.default


def _with_matmul(size: int) -> LoopProgram:
    """y = tanh(2x @ w) + 1, with the product as an extern call."""
    shape = (size, size)
    x, w, a, p, y = (buffer(name, shape) for name in ("x", "w", "a", "p", "y"))
    (i, _), (j, _) = over = axes(shape)
    call = ExternCall(MM, (view(a), view(w)), (), (p,))
    statements = [
        define(a, over, apply("mul", load(x, i, j), 2.0)),
        call,
        define(y, over, apply("add", apply("tanh", load(p, i, j)), 1.0)),
    ]
    return program([x, w], statements, [y])


def test_extern_writes_into_the_arena() -> None:
    plan = schedule(_with_matmul(16), OPTIONS)
    (extern,) = [step for step in plan.steps if isinstance(step, ExternStep)]
    assert extern.out_op is torch.ops.aten.mm.out
    assert {b.name for b, _ in plan.slots} == {"a", "p"}
    check(_with_matmul(16), [torch.randn(16, 16), torch.randn(16, 16)], atol=1e-5, rtol=1e-5)


def test_results_are_fresh_at_each_call() -> None:
    function = compiled(pointwise((100,), lambda x: apply("add", x, 1.0)))
    first = function([torch.zeros(100)])[0]
    second = function([torch.ones(100)])[0]
    assert first.eq(1).all() and second.eq(2).all()
    assert first.data_ptr() != second.data_ptr()


def test_a_linked_program_tells_its_text_and_keeps_its_library() -> None:
    function = compiled(_with_matmul(16))
    assert isinstance(function, Linked)
    assert "def call(inputs):" in function.text and "out=arena" in function.text
    names = function._call.__globals__
    called = [name for name in names if f"run({name}, " in function.text]
    assert called
    assert all(names[name] == names["keep"].address(name) for name in called)


def test_threads_do_not_share_an_arena() -> None:
    function = compiled(_with_matmul(64))
    w = torch.randn(64, 64) / 8
    wrong: list[float] = []

    def call(seed: int) -> None:
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        right = torch.tanh(2 * x @ w) + 1
        for _ in range(50):
            error = (function([x, w])[0] - right).abs().max().item()
            if error > 1e-5:
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_any_thread_count_gives_the_same_sum() -> None:
    from tests.unit.codegen.programs import reduction

    function = compiled(reduction("sum", (700, 900), ()))
    x = torch.randn(700, 900)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(function([x])[0].item())
    finally:
        torch.set_num_threads(before)
    assert len(set(results)) == 1


def test_mutations_are_written_last_and_may_swap() -> None:
    x, z, y = (buffer(name, (5,)) for name in ("x", "z", "y"))
    ((i, _),) = over = axes((5,))
    base = program([x, z], [define(y, over, apply("add", load(x, i), load(z, i)))], [y])
    swapping = replace(base, mutations=((x, view(z)), (z, view(x))))
    a, b = torch.arange(5.0), torch.arange(5.0) * 10
    (total,) = compiled(swapping)([a, b])
    assert total.tolist() == [0, 11, 22, 33, 44]
    assert a.tolist() == [0, 10, 20, 30, 40] and b.tolist() == [0, 1, 2, 3, 4]


def test_output_may_be_a_view_of_an_input() -> None:
    x = buffer("x", (2, 6))
    column = BufferView(x, (2,), (6,), 3, F32)
    function = compiled(replace(program([x], [], []), outputs=(column,)))
    whole = torch.arange(24.0).reshape(4, 6)
    (part,) = function([whole[2:]])
    assert part.tolist() == [15.0, 21.0] and part.data_ptr() == whole[2, 3].data_ptr()


@pytest.mark.parametrize(
    "shape, stride, offset, text",
    [
        ((3, 6, 4), (24, 1, 6), 0, "x0.mT"),
        ((3, 6, 3), (24, 1, 6), 6, "x0.as_strided((3, 6, 3), (24, 1, 6), x0.storage_offset() + 6)"),
        ((6, 4, 3), (1, 6, 24), 0, "x0.as_strided((6, 4, 3), (1, 6, 24))"),
        ((3, 4), (24, 6), 0, "x0.as_strided((3, 4), (24, 6))"),
        ((72,), (1,), 0, "x0.as_strided((72,), (1,))"),
    ],
)
def test_how_views_are_made(
    shape: tuple[int, ...], stride: tuple[int, ...], offset: int, text: str
) -> None:
    x = buffer("x", (3, 4, 6))
    seen = BufferView(x, shape, stride, offset, F32)
    function = compiled(replace(program([x], [], []), outputs=(seen,)))
    assert isinstance(function, Linked)
    assert f"return [{text}]" in function.text
    for start in (0, 7):
        given = torch.randn(80)[start:][:72].view(3, 4, 6)
        (made,) = function([given])
        assert (made.shape, made.stride()) == (shape, stride)
        assert made.data_ptr() == given.data_ptr() + 4 * offset
        torch.testing.assert_close(made, given.as_strided(shape, stride, start + offset))


def test_inputs_that_require_gradients() -> None:
    function = compiled(pointwise((4,), lambda x: apply("mul", x, 3.0)))
    (y,) = function([torch.ones(4, requires_grad=True)])
    assert y.tolist() == [3.0] * 4 and not y.requires_grad and torch.is_grad_enabled()


def test_symbolic_sizes() -> None:
    rows, columns = Symbol("s0", 2, None), Symbol("s1", 2, None)
    shape, stride = (as_expr(rows), as_expr(columns)), (as_expr(columns), 1)
    x, y = (replace(buffer(name, (2, 2)), shape=shape, stride=stride) for name in ("x", "y"))
    s = replace(buffer("s", (2,)), shape=(as_expr(rows),))
    i, j, r = Symbol("i0", 0, None), Symbol("i1", 0, None), Symbol("r0", 0, None)
    over = ((i, shape[0]), (j, shape[1]))
    from tests.unit.codegen.programs import total

    statements = [
        define(s, [(i, shape[0])], total("sum", [(r, shape[1])], load(x, i, r))),  # type: ignore[list-item]
        define(y, over, apply("truediv", load(x, i, j), load(s, i))),  # type: ignore[arg-type]
    ]
    function = compiled(program([x], statements, [y]))
    for size in [(3, 5), (40, 700), (2, 9000)]:
        given = torch.rand(size)
        torch.testing.assert_close(function([given])[0], given / given.sum(1, keepdim=True))


def test_no_compiler_is_a_value() -> None:
    plan = schedule(pointwise((4,), lambda x: apply("neg", x)), OPTIONS)
    missing = replace(config.snapshot(), compiler="no-such-compiler")
    outcome = link(plan, generate(plan, missing), missing)
    assert isinstance(outcome, NoCompiler) and "BRAZE_CXX" in outcome.reason


@pytest.mark.parametrize(
    ("flags", "said"), [("-foo", "-foo"), ("-lnosuch", "-lnosuch"), ("-std=c++98", "C++17")]
)
def test_flags_that_the_compiler_refuses_are_a_value(flags: str, said: str) -> None:
    plan = schedule(pointwise((4,), lambda x: apply("neg", x)), OPTIONS)
    refused = replace(config.snapshot(), cpp_flags=("-g", flags))
    outcome = link(plan, generate(plan, refused), refused)
    assert isinstance(outcome, NoCompiler)
    named, error = outcome.reason.split("): ")
    assert f"'-g {flags}'" in named and "BRAZE_CXXFLAGS" in named
    assert said in error and "\n" not in error
    assert isinstance(find_toolchain(refused), Toolchain)  # the flags are for kernels alone
