"""The verifier of schedules finds each kind of mistake, planted in schedules of real programs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import braze
from braze.errors import InvalidIR
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Slot, Store
from braze.ir.kernels.verify_schedule import InvalidSchedule, verify_schedule
from braze.options import config
from braze.rewrite import passes as graph_passes
from braze.schedule import CPU, CUDA, schedule
from braze.schedule import passes as schedule_passes
from tests.recorded import recorded
from tests.unit.codegen import programs

PROGRAMS = {
    "softmax": programs.softmax(64, 1000),
    "norm": programs.add_norm(4096, 1024),
    "sum": programs.reduction("sum", (1 << 20,), ()),
    "sums of columns": programs.reduction("sum", (65536, 300), (1,)),
    "batch norm": programs.channel_norm((64, 256, 3136)),
    "transpose": programs.transposed_add(512, 2048),
}


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_accepts_what_is_scheduled(name: str, target) -> None:  # type: ignore[no-untyped-def]
    verify_schedule(schedule(PROGRAMS[name], config.snapshot(), target))


def _layers() -> Schedule:
    """Two products with kernels around them, whose values lie in the arena; the last is read by
    two steps."""
    x = torch.randn(64, 64)

    def layers(x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(x @ x)
        second = torch.tanh(first @ x) + first
        return torch.softmax(second @ x, 1)

    with recorded_schedules() as seen:
        braze.compile(layers, fullgraph=True)(x)
    (plan,) = seen
    assert len(plan.slots) > 2 and sum(isinstance(s, Kernel) for s in plan.steps) > 2
    return plan


class recorded_schedules:
    """A block whose compiles leave their schedules in a list."""

    def __enter__(self) -> list[Schedule]:
        self.seen: list[Schedule] = []
        self.patch = pytest.MonkeyPatch()

        def noting(plan: Schedule) -> None:
            verify_schedule(plan)
            self.seen.append(plan)

        self.patch.setattr(schedule_passes, "verify_schedule", noting)
        return self.seen

    def __exit__(self, *raised: object) -> None:
        self.patch.undo()


def _kernel_number(plan: Schedule) -> int:
    """Of a kernel that reads what an earlier step made."""
    made: set[object] = set()
    for number, step in enumerate(plan.steps):
        if isinstance(step, Kernel):
            if made & {*step.memory}:
                return number
            made |= {*step.memory}
        else:
            made |= {*step.call.outputs}
    raise AssertionError("every kernel reads only inputs")


def _with_step(plan: Schedule, number: int, **changes: object) -> Schedule:
    steps = list(plan.steps)
    steps[number] = replace(steps[number], **changes)  # type: ignore[arg-type]
    return replace(plan, steps=tuple(steps))


def _without_first_step(plan: Schedule) -> Schedule:
    return replace(plan, steps=plan.steps[1:])


def _in_another_order(plan: Schedule) -> Schedule:
    return replace(plan, steps=plan.steps[::-1])


def _with_a_parameter_lost(plan: Schedule) -> Schedule:
    number = _kernel_number(plan)
    return _with_step(plan, number, memory=plan.steps[number].memory[1:])  # type: ignore[union-attr]


def _with_a_parameter_more(plan: Schedule) -> Schedule:
    number = _kernel_number(plan)
    step = plan.steps[number]
    assert isinstance(step, Kernel)
    other = next(b for b in plan.inputs if b not in step.memory)
    return _with_step(plan, number, memory=(*step.memory, other))


def _with_a_loop_lost(plan: Schedule) -> Schedule:
    number = next(n for n, s in enumerate(plan.steps) if isinstance(s, Kernel) and _loops(s))
    kernel = plan.steps[number]
    assert isinstance(kernel, Kernel)
    phases = tuple(replace(phase, loops=()) for phase in kernel.phases)
    return _with_step(plan, number, phases=phases, rows=())


def _loops(kernel: Kernel) -> bool:
    stores = [s for p in kernel.phases for s in p.body if isinstance(s, Store)]
    return any(store.coordinates for store in stores)


def _with_slots_at_one_place(plan: Schedule) -> Schedule:
    slots = tuple((buffer, Slot(0, slot.size)) for buffer, slot in plan.slots)
    return replace(plan, slots=slots)


def _with_a_small_arena(plan: Schedule) -> Schedule:
    return replace(plan, arena_size=plan.arena_size // 2)


def _with_small_slots(plan: Schedule) -> Schedule:
    return replace(plan, slots=tuple((b, Slot(s.offset, s.size // 2)) for b, s in plan.slots))


def _without_slots(plan: Schedule) -> Schedule:
    return replace(plan, slots=())


def _with_results_dropped(plan: Schedule) -> Schedule:
    return replace(plan, last_use=((plan.outputs[0].buffer, 0),))


def _with_values_dropped_early(plan: Schedule) -> Schedule:
    return replace(plan, last_use=((plan.inputs[0], 0),))


def _with_a_result_of_nobody(plan: Schedule) -> Schedule:
    nobody = replace(plan.outputs[0].buffer, name="nobody")
    return replace(plan, outputs=(replace(plan.outputs[0], buffer=nobody),))


def _with_an_input_written(plan: Schedule) -> Schedule:
    number = max(n for n, s in enumerate(plan.steps) if isinstance(s, ExternStep))
    step = plan.steps[number]
    assert isinstance(step, ExternStep)
    call = replace(step.call, outputs=(plan.inputs[0],))
    return _with_step(plan, number, call=call)


PLANTED: dict[Callable[[Schedule], Schedule], str] = {
    _without_first_step: "before it is written",
    _in_another_order: "before it is written",
    _with_a_parameter_lost: "neither parameter nor made|is no parameter",
    _with_a_parameter_more: "neither read nor written",
    _with_a_loop_lost: "is bound by no loop",
    _with_slots_at_one_place: "alive together and share bytes",
    _with_a_small_arena: "leaves the arena",
    _with_small_slots: "needs [0-9]+ bytes of",
    _without_slots: "without memory",
    _with_results_dropped: "the result .* is dropped",
    _with_values_dropped_early: "is dropped behind step 0",
    _with_a_result_of_nobody: "nobody is computed by no step",
    _with_an_input_written: "unannounced|computed by no step|before it is written",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_finds(plant: Callable[[Schedule], Schedule]) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        verify_schedule(plant(_layers()))
    assert re.search(PLANTED[plant], str(caught.value)), caught.value


def _spoilt_graph(graph):  # type: ignore[no-untyped-def]
    return replace(graph, nodes=graph.nodes[1:])


@pytest.mark.parametrize("number", range(len(graph_passes.PASSES)))
def test_a_graph_pass_that_breaks_a_rule_is_named(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(graph_passes.PASSES)
    sound = rows[number].run
    broken = replace(rows[number], run=lambda g, options: _spoilt_graph(sound(g, options)))
    rows[number] = broken
    monkeypatch.setattr(graph_passes, "PASSES", tuple(rows))
    with pytest.raises(InvalidIR, match=f"stage 'rewrite' failed: pass '{broken.name}': "):
        options = {"freeze": True}  # with which every pass runs
        braze.compile(lambda x: (x @ x).relu(), fullgraph=True, options=options)(torch.ones(3, 3))


@pytest.mark.parametrize("table", ["STATEMENT_PASSES", "STEP_PASSES", "MEMORY_PASSES"])
def test_a_schedule_pass_that_breaks_a_rule_is_named(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that runs on a CPU loses the first statement or step that it makes."""
    ran = {note.name for note in _passes_of_layers() if note.stage == "schedule"}
    rows = getattr(schedule_passes, table)
    chosen = [number for number, row in enumerate(rows) if row.name in ran]
    assert chosen
    for number in chosen:
        sound = rows[number].run
        broken = replace(rows[number], run=lambda p, s, sound=sound: _spoilt(sound(p, s)))
        changed = (*rows[:number], broken, *rows[number + 1 :])
        monkeypatch.setattr(schedule_passes, table, changed)
        with pytest.raises(InvalidIR, match=f"stage 'schedule' failed: pass '{broken.name}': "):
            _passes_of_layers()


def _spoilt(made):  # type: ignore[no-untyped-def]
    if dataclasses.is_dataclass(made):
        return replace(made, steps=made.steps[1:])  # type: ignore[type-var]
    return made[1:]


def _passes_of_layers():  # type: ignore[no-untyped-def]
    def layers(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x @ x) @ x, 1)

    with recorded() as journal:
        braze.compile(layers, fullgraph=True)(torch.ones(8, 8))
    return [note for record in journal.records() for note in record.passes]


def test_each_pass_says_whether_it_changed_anything() -> None:
    notes = {note.name: note for note in _passes_of_layers()}
    assert notes["inline"].changed and not notes["prefer_channels_last"].changed
    assert "(unchanged)" in str(notes["prefer_channels_last"])
    assert all(note.seconds >= 0 for note in notes.values())


def test_a_program_without_statements_is_accepted() -> None:
    x = programs.buffer("x", (4,))
    verify_schedule(schedule(LoopProgram((x,), (), (), (), ()), config.snapshot()))
