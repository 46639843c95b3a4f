"""Schedules with parts on the host, cut into what is recorded and what is not.

Kernels run on the CPU here (see test_link_device.py); what stands for the host is labelled "meta".
"""

from __future__ import annotations

import itertools
import logging
import random
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from braze.ir.graphs.joint_graph import PLAIN, Role
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram, Statement
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from braze.runtime.cuda_graphs import partition as recording_parts_module
from braze.runtime.cuda_graphs.capture_analysis import recording_facts, step_refused
from braze.runtime.cuda_graphs.capture_trials import CaptureTrials, kind_of
from braze.runtime.cuda_graphs.partition import Parts, recording_parts
from braze.runtime.link import link_cuda as link_device
from braze.schedule import CUDA, schedule
from braze.shapes.expr import Expr, Symbol, as_expr
from tests.unit.codegen.programs import axes, buffer, define, load, view
from tests.unit.codegen.running import OPTIONS
from tests.unit.runtime.test_link_device import DEVICE, FakeDriver, driver, launched

__all__ = ["driver"]
ASKED = replace(OPTIONS, mode="reduce-overhead")
HOST = torch.device("meta")
SHAPE = (4, 4)
ATEN = torch.ops.aten


def _links(value: Buffer, w: Buffer, count: int, tag: str) -> tuple[list[Statement], Buffer]:
    """value = value @ w + 1, so many times."""
    statements: list[Statement] = []
    for number in range(count):
        product, made = buffer(f"p{tag}{number}", SHAPE), buffer(f"y{tag}{number}", SHAPE)
        (i, _), (j, _) = over = axes(SHAPE)
        statements.append(ExternCall(ATEN.mm.default, (view(value), view(w)), (), (product,)))
        statements.append(define(made, over, apply("add", load(product, i, j), 1.0)))
        value = made
    return statements, value


def _number(name: str) -> Buffer:
    return Buffer(name, torch.float64, (), (), HOST)


def _as_number(buffer: Buffer) -> BufferView:
    return BufferView(buffer, (), (), 0, buffer.dtype, is_number=True)


def _step(before: int = 4, after: int = 4) -> LoopProgram:
    """A chain whose middle is scaled by a number that the host counts: as an optimizer's step."""
    x, w, count, more = buffer("x", SHAPE), buffer("w", SHAPE), _number("count"), _number("more")
    scaled = buffer("scaled", SHAPE)
    first, middle = _links(x, w, before, "a")
    second, last = _links(scaled, w, after, "b")
    both = buffer("both", SHAPE)
    statements = [
        *first,
        ExternCall(ATEN.add.Tensor, (view(count), 1), (), (more,)),
        ExternCall(ATEN.mul.Scalar, (view(middle), _as_number(more)), (), (scaled,)),
        *second,
        ExternCall(ATEN.add.Tensor, (view(last), view(middle)), (), (both,)),
    ]
    outputs = [view(both), view(middle), view(x)]
    return LoopProgram((x, w, count), (), tuple(statements), tuple(outputs), ((count, view(more)),))


def _expected(x: torch.Tensor, w: torch.Tensor, count: torch.Tensor) -> Any:
    middle = x
    for _ in range(4):
        middle = middle @ w + 1
    last = middle * (count.item() + 1)
    for _ in range(4):
        last = last @ w + 1
    return last + middle, middle, x


def _parts(plan: Schedule, role: Role = PLAIN) -> Parts | None:
    sources = launched(plan, itertools.repeat("next"))
    return recording_parts(plan, sources, role, lambda s: step_refused(s, "cpu"), DEVICE)


def _kinds(plan: Schedule) -> list[str]:
    return [s.call.op._schema.name if isinstance(s, ExternStep) else "k" for s in plan.steps]


@pytest.fixture
def recorded(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> list[Schedule]:
    """The schedules that would be recorded; they run as compiled."""
    found: list[Schedule] = []

    def plain(made: Any, _: Any, plan: Schedule, *rest: Any) -> Any:
        found.append(plan)
        return made

    monkeypatch.setattr(link_device, "_recorded", plain)
    return found


def _linked(plan: Schedule, options: Any = ASKED, role: Role = PLAIN) -> Any:
    sources = launched(plan, itertools.repeat("next"))
    return link_device.link_device(plan, sources, options, DEVICE, role)


def test_the_host_comes_first_and_last() -> None:
    parts = _parts(schedule(_step(), OPTIONS, CUDA))
    assert parts is not None
    kinds = [_kinds(part.schedule) for part in parts.parts]
    links = ["aten::mm", "k"] * 4
    assert kinds == [["aten::add"], links, ["aten::mul"], [*links, "aten::add"], []]
    assert [bool(part.why_not) for part in parts.parts] == [True, False, True, False, True]
    assert parts.recorded == 2 and len(parts.reasons) == 2
    assert [len(part.schedule.mutations) for part in parts.parts] == [0, 0, 0, 0, 1]
    for part in parts.parts:
        if not part.why_not:
            facts = recording_facts(part.schedule, part.sources, "cpu", part.role.saved_from)
            assert not isinstance(facts, str), facts


def test_draws_of_the_host_keep_their_order() -> None:
    """Up to the first that waits for the device they come first: a layer that BART's decoder may
    leave out asks for one at each layer."""
    x, w, chance = buffer("x", SHAPE), buffer("w", SHAPE), _number("chance")
    draws = [_number(f"draw{n}") for n in range(4)]
    back = Buffer("back", torch.float32, SHAPE, (8, 1), HOST)
    drawn = Buffer("drawn", torch.float32, SHAPE, (8, 1), HOST)
    first, middle = _links(x, w, 4, "a")
    second, last = _links(middle, w, 4, "b")

    def draw(number: int) -> ExternCall:
        return ExternCall(ATEN.bernoulli.p, (view(chance), 0.5), (), (draws[number],))

    statements = [
        draw(0),
        *first,
        draw(1),
        ExternCall(ATEN._to_copy.default, (view(middle),), (("device", HOST),), (back,)),
        ExternCall(ATEN.bernoulli.p, (view(back), 0.5), (), (drawn,)),
        *second,
        draw(2),
        ExternCall(ATEN.add.Tensor, (view(chance), 1), (), (draws[3],)),
    ]
    outputs = tuple([view(b) for b in (last, drawn, *draws)])
    parts = _parts(
        schedule(LoopProgram((x, w, chance), (), tuple(statements), outputs, ()), OPTIONS, CUDA)
    )
    assert parts is not None
    links = ["aten::mm", "k"] * 4
    assert [_kinds(part.schedule) for part in parts.parts] == [
        ["aten::bernoulli", "aten::bernoulli", "aten::add"],
        links,
        ["aten::_to_copy", "aten::bernoulli"],
        links,
        ["aten::bernoulli"],
    ]


@pytest.mark.parametrize("saved_from", [99, 1])
def test_parts_compute_what_the_whole_does(
    recorded: list[Schedule], caplog: pytest.LogCaptureFixture, saved_from: int
) -> None:
    role = PLAIN if saved_from == 99 else Role(kept_from=saved_from)
    with caplog.at_level(logging.INFO, "braze.perf_hints"):
        function = _linked(schedule(_step(), OPTIONS, CUDA), role=role)
    assert len(recorded) == 2
    assert (
        "parts of calls are recorded (CUDA graphs: 2): a part of it runs on the CPU; "
        in caplog.text
    )
    count, counted = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for _ in range(3):
        x, w = torch.randn(SHAPE), torch.randn(SHAPE)
        found = function([x, w, count])
        torch.testing.assert_close(found, list(_expected(x, w, counted)))
        counted += 1
        assert count.item() == counted.item()
        assert found[2].data_ptr() == x.data_ptr() and found[1].data_ptr() != x.data_ptr()


def test_values_between_parts_go_after_their_last_reader(recorded: list[Schedule]) -> None:
    function = _linked(schedule(_step(), OPTIONS, CUDA))
    x, w, count = torch.randn(SHAPE), torch.randn(SHAPE), torch.zeros((), dtype=torch.float64)
    found = function([x, w, count])
    assert all(tensor._use_count() == 1 for tensor in found[:2])


def test_a_result_whose_size_is_computed_later_stays_whole() -> None:
    """A part of a value that an early part makes, as large as a late one says."""
    plan = schedule(_step(), OPTIONS, CUDA)
    early = plan.outputs[1]
    size = Symbol("u0", 0, 4, hint=4)
    some = BufferView(early.buffer, (size, 4), (4, 1), 0, early.dtype)
    assert _parts(plan) is not None
    assert _parts(replace(plan, outputs=(plan.outputs[0], some))) is None


def test_what_is_given_a_computed_number_stays_behind_it() -> None:
    """All else that it reads is on the host, as a number is that is filled with a computed one."""
    plain = _step()
    size, filled = Symbol("u0", 0, 4, hint=4), _number("filled")
    counted = ExternCall(
        ATEN._local_scalar_dense.default, (view(plain.inputs[2]),), (), (), computes=size
    )
    fills = ExternCall(ATEN.fill.Scalar, (view(plain.inputs[2]), as_expr(size)), (), (filled,))
    statements = (*plain.statements, counted, fills)
    made = replace(plain, statements=statements, outputs=(*plain.outputs, view(filled)))
    parts = _parts(schedule(made, OPTIONS, CUDA))
    assert parts is not None
    assert _kinds(parts.parts[0].schedule) == ["aten::add"]
    (behind,) = [p for p in parts.parts if "aten::fill" in _kinds(p.schedule)]
    assert "aten::_local_scalar_dense" in _kinds(behind.schedule)


def test_short_runs_stay_with_the_host() -> None:
    parts = _parts(schedule(_step(2, 4), OPTIONS, CUDA))
    assert parts is not None and parts.recorded == 1
    assert _kinds(parts.parts[0].schedule)[-1] == "aten::mul"
    assert _parts(schedule(_step(2, 2), OPTIONS, CUDA)) is None


def test_what_changes_contents_stays_whole() -> None:
    plan = schedule(_step(), OPTIONS, CUDA)
    assert _parts(plan) is not None
    place = next(n for n, step in enumerate(plan.steps) if isinstance(step, ExternStep))
    steps = list(plan.steps)
    steps[place] = replace(steps[place], in_place_op=ATEN.index_add_.default)  # type: ignore[call-arg]
    assert _parts(replace(plan, steps=tuple(steps))) is None


def test_a_backward_s_parts_take_its_inputs_over(recorded: list[Schedule]) -> None:
    """Each input goes with the last part that reads it, or with its last reader there."""
    plan = schedule(_step(), OPTIONS, CUDA)
    role = Role(takes_inputs=True, kept_from=0, parameters=frozenset({1}))
    parts = _parts(plan, role)
    assert parts is not None and parts.recorded == 2
    assert {part.role.takes_inputs for part in parts.parts} == {True}
    for part in parts.parts:
        reads_w = [n for n, place in enumerate(part.reads) if place == 1]
        assert part.role.parameters == {*reads_w} and part.role.kept_from == 0
    function = _linked(plan, role=role)
    x, w, count = torch.randn(SHAPE), torch.randn(SHAPE), torch.zeros((), dtype=torch.float64)
    inputs, expected = [x.clone(), w.clone(), count], _expected(x, w, count)
    alive = [weakref.ref(value) for value in inputs]
    found = function(inputs)
    assert inputs == []
    torch.testing.assert_close(found, list(expected))
    assert alive[0]() is not None, "it is a result"
    assert alive[1]() is None, "nobody else has it"
    assert len(recorded) == 2


def test_writes_in_place_stay_at_the_end() -> None:
    plan = schedule(_step(), OPTIONS, CUDA)
    kernels = [n for n, step in enumerate(plan.steps) if isinstance(step, Kernel)]
    early = replace(plan, in_place=plan.inputs[:1], settled=kernels[0])
    assert _parts(early) is None
    late = replace(plan, in_place=plan.inputs[:1], settled=kernels[-1])
    parts = _parts(late)
    assert parts is not None
    assert [bool(part.schedule.in_place) for part in parts.parts] == [False] * 3 + [True, False]
    assert parts.parts[3].schedule.settled == 7


def test_exchanged_contents_stay_whole() -> None:
    made = _step()
    x, w, _ = made.inputs
    swapped = replace(made, mutations=((x, view(w)), (w, view(x)), *made.mutations))
    assert _parts(schedule(swapped, OPTIONS, CUDA)) is None


@pytest.mark.parametrize(("most", "recorded_steps"), [(1 << 20, [8, 9]), (8, [19])])
def test_what_is_saved_is_kept_unasked_where_it_is_small(
    recorded: list[Schedule],
    most: int,
    recorded_steps: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """most: bytes that may be held."""
    monkeypatch.setattr(link_device, "most_held", lambda asked, memory: most)
    plan = schedule(_step(), OPTIONS, CUDA)
    _linked(plan, replace(OPTIONS, mode=None), Role(kept_from=1))
    assert [len(part.steps) for part in recorded] == recorded_steps


def test_a_default_mode_cuts_nothing(recorded: list[Schedule]) -> None:
    function = _linked(schedule(_step(), OPTIONS, CUDA), replace(OPTIONS, mode="default"))
    assert not recorded and function.text.count("def call(") == 1


def test_what_holds_too_much_is_left_whole(
    recorded: list[Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_device, "total_memory", lambda device: 1000)
    _linked(schedule(_step(), OPTIONS, CUDA))
    assert [len(plan.steps) for plan in recorded] == [19]


def _run(function: Any, inputs: Sequence[torch.Tensor]) -> Any:
    return function(list(inputs))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_what_a_trial_has_refused_lies_between_parts(
    recorded: list[Schedule], mode: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before it was tried, a library call is part of one recording."""
    monkeypatch.setattr(link_device, "TRIALS", trials := CaptureTrials())
    x, w, tensor = buffer("x", SHAPE), buffer("w", SHAPE), buffer("t", SHAPE)
    first, middle = _links(x, w, 4, "a")
    second, last = _links(tensor, w, 4, "b")
    inverse = ExternCall(ATEN.tril.default, (view(middle),), (), (tensor,))
    made = LoopProgram((x, w), (), (*first, inverse, *second), (view(last),), ())
    plan = schedule(made, OPTIONS, CUDA)
    options = replace(OPTIONS, mode=mode, cache_dir=tmp_path / "cache")
    _linked(plan, options)
    assert [len(part.steps) for part in recorded] == [17]
    recorded.clear()
    (step,) = [s for s in plan.steps if isinstance(s, ExternStep) and "tril" in str(s.call.op)]
    trials.note(kind_of(step), "it waits", DEVICE, options)
    function = _linked(plan, options)
    assert [len(part.steps) for part in recorded] == [8, 8]
    given, weight = torch.randn(SHAPE), torch.randn(SHAPE)
    value = given
    for number in range(8):
        value = value.tril() if number == 4 else value
        value = value @ weight + 1
    torch.testing.assert_close(_run(function, [given, weight])[0], value)


def _random_program(seed: int) -> LoopProgram:
    """Products, kernels behind them, calls with numbers of the host, copies at the end."""
    draw = random.Random(seed)
    inputs = [buffer("x", SHAPE), buffer("y", SHAPE), _number("n"), _number("m")]
    pool, numbers, fresh, statements = inputs[:2], inputs[2:], [], []
    steps: list[int | Expr] = [1, 2, 3]
    kinds = ["mm", "mm", "kernel", "kernel", "tril", "scale", "count", "unused"]
    for number in range(draw.randrange(8, 30)):
        kind = draw.choice(kinds)
        if number > 8 and not draw.randrange(12):
            whole, size = Buffer(f"w{number}", torch.int64, (), (), HOST), Symbol(f"u{number}", 0)
            as_int = (view(draw.choice(numbers)), torch.int64)
            statements.append(ExternCall(ATEN.to.dtype, as_int, (), (whole,)))
            item = ATEN._local_scalar_dense.default
            statements.append(ExternCall(item, (view(whole),), (), (), computes=size))
            steps.append(as_expr(size))
        made = _number(f"c{number}") if kind == "count" else buffer(f"b{number}", SHAPE)
        a, b = (draw.choice(pool) for _ in "ab")
        if kind == "kernel" and fresh:
            source = fresh.pop()
            (i, _), (j, _) = over = axes(SHAPE)
            statements.append(define(made, over, apply("add", load(source, i, j), 1.0)))
        elif kind == "count":
            args = (view(draw.choice(numbers)), draw.choice(steps))
            statements.append(ExternCall(ATEN.add.Tensor, args, (), (made,)))
        elif kind == "scale":
            args = (view(a), _as_number(draw.choice(numbers)))
            statements.append(ExternCall(ATEN.mul.Scalar, args, (), (made,)))
        elif kind == "tril":
            statements.append(ExternCall(ATEN.tril.default, (view(a),), (), (made,)))
        else:
            args = (view(a), view(b))
            statements.append(ExternCall(ATEN.mm.default, args, (), (made,)))
            fresh.append(made)
        (numbers if kind == "count" else pool).append(made)
    rows = BufferView(made := draw.choice(pool), (2, 4), (4, 1), 4, made.dtype)
    outputs = [*[view(draw.choice(pool)) for _ in range(4)], rows, view(draw.choice(numbers))]
    writes = [(inputs[0], view(draw.choice(pool[2:] or pool[:1])))]
    writes.append((inputs[2], view(draw.choice(numbers[2:] or numbers[:1]))))
    return LoopProgram(
        tuple(inputs), (), tuple(statements), tuple(outputs), tuple(writes[: draw.randrange(3)])
    )


def _shared(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Which share their memory: of each the first that does."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_in_parts(
    recorded: list[Schedule], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(recording_parts_module, "LEAST_STEPS", 1 + seed % 4)
    plan = schedule(_random_program(seed), OPTIONS, CUDA)
    role = Role(kept_from=seed % 7)
    if seed % 3 == 0:  # a backward
        role = Role(takes_inputs=True, kept_from=0)
    whole, parted = (
        _linked(plan, replace(OPTIONS, mode="default"), role),
        _linked(plan, ASKED, role),
    )
    for _ in range(2):
        torch.manual_seed(seed)
        mine = [torch.randn(SHAPE) / 4, torch.randn(SHAPE) / 4]
        mine += [torch.randn(()).double(), torch.randn(()).double()]
        theirs = [x.clone() for x in mine]
        found, right = parted([*mine]), whole([*theirs])
        for a, b in zip([*found, *mine], [*right, *theirs], strict=True):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
            assert torch.equal(a, b)
        assert _shared([*found, *mine]) == _shared([*right, *theirs])


def test_random_programs_are_cut(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_parts_module, "LEAST_STEPS", 2)
    found = [_parts(schedule(_random_program(seed), OPTIONS, CUDA)) for seed in range(60)]
    counts = [parts.recorded for parts in found if parts is not None]
    assert len(counts) > 30 and max(counts) > 3


@pytest.mark.parametrize(
    ("op", "shape", "refused"),
    [
        (torch.ops.aten._to_copy.default, (), "copies from the CPU"),
        (torch.ops.aten._to_copy.default, (3,), "copies from the CPU"),
        (torch.ops.aten.mul.Tensor, (), ""),
        (torch.ops.aten.mul.Tensor, (3,), "copies from the CPU"),
    ],
)
def test_what_is_copied_from_the_host_is_not_recorded(
    op: Any, shape: tuple[int, ...], refused: str
) -> None:
    """A copy of memory that is not pinned ends a recording; a number is passed by value."""
    cuda = torch.device("cuda", 0)
    number, made = buffer("n", shape), replace(buffer("y", shape), device=cuda)
    x = replace(buffer("x", (3,)), device=cuda)
    given = (view(number),) if op is torch.ops.aten._to_copy.default else (view(x), view(number))
    step = ExternStep(ExternCall(op, given, (), (made,)))
    assert step_refused(step, "cuda").endswith(refused)
    assert bool(step_refused(step, "cuda")) is bool(refused)


@pytest.mark.parametrize(
    ("bounds", "waits"), [((), True), ((0,), True), ((2, 2.0), True), ((0, 7), False)]
)
def test_a_histogram_without_bounds_waits_for_the_device(
    bounds: tuple[float, ...], waits: bool
) -> None:
    x, made = buffer("x", (8,)), buffer("y", (4,))
    step = ExternStep(ExternCall(ATEN.histc.default, (view(x), 4, *bounds), (), (made,)))
    assert step_refused(step, "cpu") == ("aten.histc.default waits for the device" * waits)
