"""What speaks for recording calls: time on the device, and memory that a recording holds."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from typing import Any

import pytest
import torch

from braze.ir.device_model import H200, STEP
from braze.ir.device_rates import MeasuredRates, Rate
from braze.ir.kernels.loops import Buffer, ExternCall, LoopProgram
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from braze.runtime.cuda.cublas_workspace import Scratch
from braze.runtime.cuda_graphs.capture_analysis import _SOLVED
from braze.runtime.cuda_graphs.policy import (
    RecordingChoice,
    StepWork,
    call_refused,
    copied_bytes,
    device_seconds,
    held_bytes,
    piece_bytes,
    recording_choice,
    scratch_of,
)
from braze.schedule import CUDA, schedule
from tests.unit.codegen.programs import axes, buffer, define, load, program, view
from tests.unit.codegen.running import OPTIONS

MEMORY = 1 << 37


def _chain(size: int, length: int) -> LoopProgram:
    """y = relu(relu(x @ w) @ w) ... : a product and a kernel for each link."""
    shape = (size, size)
    x, w = buffer("x", shape), buffer("w", shape)
    statements, value = [], x
    for number in range(length):
        product, result = buffer(f"p{number}", shape), buffer(f"y{number}", shape)
        (i, _), (j, _) = over = axes(shape)
        call = ExternCall(torch.ops.aten.mm.default, (view(value), view(w)), (), (product,))
        made = define(result, over, apply("add", load(product, i, j), 1.0))
        statements += [call, made]
        value = result
    return program([x, w], statements, [value])


def _plan(size: int, length: int) -> Schedule:
    return schedule(_chain(size, length), OPTIONS, CUDA)


def test_small_steps_take_what_a_step_takes() -> None:
    plan = _plan(16, 5)
    assert len(plan.steps) == 10
    assert device_seconds(plan) == pytest.approx(10 * STEP)


def test_large_steps_take_their_products_and_bytes() -> None:
    size = 4096
    found = device_seconds(_plan(size, 1))
    assert found == pytest.approx(2 * size**3 / H200.products(4) + 8 * size**2 / H200.memory)


def test_a_product_in_a_kernel_counts_as_one() -> None:
    size = 4096
    plan = schedule(_chain(size, 1), OPTIONS, CUDA, lambda *_: True)
    assert len(plan.steps) == 1
    assert device_seconds(plan) == pytest.approx(2 * size**3 / H200.products(4))


def test_a_kernel_moves_what_it_touches() -> None:
    size = 1 << 20
    table, result = buffer("t", (64, size)), buffer("r", (size,))
    (i, _) = (over := axes((size,)))[0]
    plan = schedule(
        program([table], [define(result, over, load(table, 5, i))], [result]), OPTIONS, CUDA
    )
    assert device_seconds(plan) == pytest.approx(max(2 * 4 * size / H200.memory, STEP))


def test_convolutions_and_their_backward() -> None:
    image, weight, result = (8, 64, 56, 56), (128, 64, 3, 3), (8, 128, 56, 56)
    x, w, y = buffer("x", image), buffer("w", weight), buffer("y", result)
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    forward = ExternCall(torch.ops.aten.convolution.default, (view(x), view(w), *rest), (), (y,))
    made = device_seconds(schedule(program([x, w], [forward], [y]), OPTIONS, CUDA))
    operations = 2 * 8 * 56 * 56 * 128 * 64 * 9
    assert made == pytest.approx(operations / H200.products(4))
    g, dx, dw = buffer("g", result), buffer("dx", image), buffer("dw", weight)
    given = (view(g), view(x), view(w), [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    op = torch.ops.aten.convolution_backward.default
    backward = ExternCall(op, (*given, [True, True, False]), (), (dx, dw, None))
    twice = device_seconds(schedule(program([g, x, w], [backward], [dx, dw]), OPTIONS, CUDA))
    assert twice == pytest.approx(2 * made)


@pytest.mark.parametrize(
    ("op", "added", "used"),
    [
        ("mm", None, Scratch.PLAIN),
        ("addmm", (8,), Scratch.BIASED),
        ("addmm", (8, 8), Scratch.PLAIN),
        ("cumsum", None, Scratch.NONE),
    ],
)
def test_what_products_work_in(op: str, added: tuple[int, ...] | None, used: Scratch) -> None:
    x, w, y = (buffer(name, (8, 8)) for name in ("x", "w", "y"))
    bias = [] if added is None else [buffer("b", added)]
    given = [view(x)] if op == "cumsum" else [*map(view, bias), view(x), view(w)]
    arguments = (*given, 0) if op == "cumsum" else tuple(given)
    call = ExternCall(getattr(torch.ops.aten, op).default, arguments, (), (y,))
    plan = schedule(program([x, w, *bias], [call], [y]), OPTIONS, CUDA)
    assert scratch_of(plan) == used


@torch.library.custom_op("test_recording_choice::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """An operator of a program's."""
    return x.clone()


@pytest.mark.parametrize(
    ("op", "rest", "refused"),
    [
        ("aten.bernoulli.p", (0.5,), ""),
        ("aten.cumprod.default", (0,), ""),
        ("aten.median.default", (), ""),
        ("test_recording_choice.counted.default", (), "test_recording_choice::counted is not"),
    ],
)
def test_calls_that_nobody_asks_to_record(op: str, rest: tuple[Any, ...], refused: str) -> None:
    """Whatever PyTorch has may be tried; what the program has may do more on the host."""
    x, y = buffer("x", (8, 8)), buffer("y", (8, 8))
    found: Any = torch.ops
    for name in op.split("."):
        found = getattr(found, name)
    call = ExternCall(found, (view(x), *rest), (), (y,))
    plan = schedule(program([x], [call], [y]), OPTIONS, CUDA)
    (step,) = plan.steps
    assert isinstance(step, ExternStep)
    why_not = call_refused(step)
    assert why_not.startswith(refused) and bool(why_not) == bool(refused)


def test_solvers_alone_are_refused_by_name() -> None:
    """Of PyTorch's operators that have a CUDA kernel, all that can be tried are."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    refused = {name.split(".")[0].removeprefix("aten::") for name in names if _SOLVED.match(name)}
    solvers = {"linalg_eigh", "_linalg_eigh", "linalg_inv_ex", "_linalg_svd", "cholesky_inverse"}
    assert solvers <= refused
    listed = "cumsum sort topk index_put _embedding_bag _grouped_mm grid_sampler_2d scatter_reduce "
    listed += "native_layer_norm_backward _fused_adamw_ exponential_ detach linalg_vector_norm "
    listed += "linalg_cross linalg_matrix_exp dot index_select"
    assert refused.isdisjoint(listed.split())
    assert len(refused) < 100, sorted(refused)


def test_what_a_recording_holds() -> None:
    size = 1024
    # At most a product, what is made of it, and the result before.
    assert held_bytes(_plan(size, 4)) <= 3 * 4 * size**2
    assert held_bytes(_plan(size, 4)) >= 2 * 4 * size**2
    first, second = (buffer(name, (size,)) for name in ("a", "b"))
    (i, _) = (over := axes((size,)))[0]
    both = program(
        [x := buffer("x", (size,))],
        [
            define(first, over, apply("add", load(x, i), 1.0)),
            define(second, over, apply("mul", load(x, i), 2.0)),
        ],
        [first, second],
    )
    assert held_bytes(schedule(both, OPTIONS, CUDA)) == 2 * 4 * size


def test_the_piece_that_a_recording_takes() -> None:
    """What it holds, without results that are elsewhere, where that is much."""
    size = 8192
    plan, small = _plan(size, 3), _plan(64, 3)
    assert piece_bytes(plan, (), 0) == held_bytes(plan)
    (result,) = [view.buffer for view in plan.outputs]
    made = {b for step in plan.steps if isinstance(step, Kernel) for b in step.memory}
    assert result in made and held_bytes(plan) >= 2 * 4 * size**2
    assert piece_bytes(plan, [result], 0) == held_bytes(plan, [result])
    assert piece_bytes(plan, made, 0) == 0, "nothing is left"
    assert piece_bytes(small, (), 0) == 0


def test_a_large_result_is_a_block_of_its_own() -> None:
    """Where the program sees it: what is saved for a backward lies beside what was before."""
    size = 8192
    x, w, a, p = (buffer(name, (size, size)) for name in ("x", "w", "a", "p"))
    (i, _), (j, _) = over = axes((size, size))
    call = ExternCall(torch.ops.aten.mm.default, (view(a), view(w)), (), (p,))
    doubled = define(a, over, apply("mul", load(x, i, j), 2.0))
    plan = schedule(program([x, w], [doubled, call], [p, a]), OPTIONS, CUDA)
    one = 4 * size**2
    assert held_bytes(plan) == 2 * one
    assert piece_bytes(plan, (), 1) == one and piece_bytes(plan, (), 0) == 2 * one


def test_what_is_not_asked_for_has_to_be_small() -> None:
    assert recording_choice(_plan(16, 5), False, MEMORY).plain == ""
    assert "little" in recording_choice(_plan(16, 1), False, MEMORY).plain
    large = recording_choice(_plan(1024, 5), False, 1 << 20)
    assert "would hold" in large.plain

    def unknown(plan: Schedule, made: Buffer) -> Schedule:
        x = plan.inputs[0]
        call = ExternCall(torch.ops.aten.linalg_inv_ex.default, (view(x),), (), (made, None))
        step = dataclasses.replace(plan.steps[0], call=call)  # type: ignore[arg-type]
        return dataclasses.replace(plan, steps=(step, *plan.steps[1:]))

    odd = unknown(_plan(16, 5), buffer("inverse", (16, 16)))
    assert recording_choice(odd, False, MEMORY).plain == ""


@pytest.mark.parametrize("asked", [False, True])
def test_what_a_trial_has_refused_is_not_recorded(asked: bool) -> None:
    def tried(step: ExternStep) -> str:
        return "waits for the device" if "mm" in str(step.call.op) else ""

    assert recording_choice(_plan(16, 5), asked, MEMORY, tried).plain == "waits for the device"


def test_what_nobody_asked_for_leaves_as_much_as_it_takes() -> None:
    choice = RecordingChoice((), H200, GIB, 100 * GIB, "", False)
    assert choice.has_room(2 * GIB) and not choice.has_room(2 * GIB - 1)
    assert dataclasses.replace(choice, asked=True).has_room(0)


def test_what_is_asked_for_is_recorded_up_to_a_share_of_memory() -> None:
    held = held_bytes(_plan(1024, 5))
    assert recording_choice(_plan(1024, 1), True, 8 * held).plain == ""
    assert "would hold" in recording_choice(_plan(1024, 5), True, 2 * held).plain


def test_what_is_copied_at_each_call() -> None:
    weight, image, saved = torch.ones(4, requires_grad=True), torch.ones(8), torch.ones(16)
    inputs = [weight, image, saved]
    assert copied_bytes(inputs, {1}, (0, 1), None) == 4 * 8
    assert copied_bytes(inputs, set(), (0, 1, 2), None) == 0
    assert copied_bytes(inputs, set(), (0, 2), set()) == 4 * 16
    assert copied_bytes(inputs, {1}, (0, 1, 2), {saved.data_ptr()}) == 4 * 8
    transposed = [weight.detach(), image, saved]
    assert copied_bytes(transposed, set(), (0, 2), set()) == 4 * 20
    assert copied_bytes(transposed, set(), (0, 2), set(), {0}) == 4 * 16


GIB = 1 << 30


def _work(seconds: float) -> tuple[StepWork, ...]:
    return (StepWork(int(seconds * H200.memory)),)


@pytest.mark.parametrize(
    ("asked", "held", "ratio"),
    [(False, GIB // 2, 1), (False, GIB, 2), (True, GIB // 2, 0), (True, 2 * GIB, 0)],
)
def test_how_much_longer_the_host_has_to_take(asked: bool, held: int, ratio: int) -> None:
    choice = RecordingChoice(_work(1.0), H200, held, 100 * GIB, "", asked)
    assert choice.needs_time() is bool(ratio)
    if ratio:
        assert choice.why_not(0.99 * ratio) != "" and choice.why_not(1.01 * ratio) == ""
    assert held < choice.most < 20 * GIB and 0 < choice.most_copied < (2 if asked else 1) * GIB


def test_the_answer_and_its_line(caplog: pytest.LogCaptureFixture) -> None:
    choice = RecordingChoice(_work(1e-3), H200, 5 << 20, GIB << 4, "", False)
    with caplog.at_level(logging.INFO, "braze.perf_hints"):
        assert choice.why_not(2e-3) == ""
    assert "2.00 ms" in caplog.text and "5 MiB" in caplog.text
    assert "1.00 ms at its best" in choice.why_not(0.5e-3)


def test_rates_are_read_when_the_second_call_decides() -> None:
    """Products' only of what has products: a compile, and the first call, measure nothing."""
    asked = Counter[str]()

    def measure(device: torch.device, rate: Rate) -> None:
        asked[rate] += 1

    measured = MeasuredRates(torch.device("cuda", 0), measure)
    plan = dataclasses.replace(_plan(64, 5), device=dataclasses.replace(H200, measured=measured))
    choice = recording_choice(plan, False, MEMORY)
    assert not asked
    choice.why_not(1.0)
    assert asked == {"copy": 1, "products": 1}
    asked.clear()
    moves = dataclasses.replace(choice, work=_work(1.0))
    assert moves.device is plan.device and moves.why_not(0.0) and not asked
