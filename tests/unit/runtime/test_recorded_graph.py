"""Which calls are recorded, replayed or run as compiled; and patching a recording's pointers."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from braze.codegen.segments import host_sources
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import Kernel
from braze.options import Options
from braze.runtime.cuda_graphs import graphed_callable as recorded_graph
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts, recording_facts
from braze.runtime.cuda_graphs.cuda_graph import CallRefused, NoRoom, NotRecordable
from braze.runtime.cuda_graphs.graphed_callable import MOST_RECORDINGS, MOST_SIZES, RecordedGraph
from braze.runtime.cuda_graphs.kernel_params import GraphPatches, load_graph_patches
from braze.runtime.launch.program_text import NewTensor
from braze.runtime.launch.result_storage import fills, fresh_results, whole_results
from braze.schedule import schedule
from tests.unit.codegen.programs import axes, buffer, define, load, program, scattered, view
from tests.unit.codegen.running import OPTIONS

FACTS = RecordingFacts(
    2, (), (), (), {}, (0, 1), frozenset(), (), frozenset(), (), {}, {}, {}, frozenset()
)
SIZED = dataclasses.replace(FACTS, sized=(0, 1))


@dataclass
class FakeRecording:
    """Agrees with the pointers that it was made with, but for those that are copied."""

    pointers: list[int]
    moving: frozenset[int]
    free: bool = True
    replays: int = 0
    is_reset: bool = False
    refuses: str = ""

    def agrees(self, inputs: Sequence[torch.Tensor]) -> bool:
        here = [x.data_ptr() for x in inputs]
        return all(
            a == b for n, (a, b) in enumerate(zip(here, self.pointers)) if n not in self.moving
        )

    def is_free(self, inputs: Sequence[Any] = ()) -> bool:
        return self.free

    def is_alive(self) -> bool:
        return not self.is_reset

    def graph_handle(self) -> int:
        return 0

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        if self.refuses:
            raise NotRecordable(self.refuses)
        self.replays += 1
        return ["replayed"]

    def reset(self) -> None:
        self.is_reset = True


@dataclass
class FakeApart:
    """What happens to calls in memory apart."""

    events: list[str] = field(default_factory=list)

    def run(self, call: Callable[[Sequence[Any]], list[Any]], inputs: Sequence[Any]) -> list[Any]:
        self.events.append("run")
        return call(inputs)

    def end(self) -> None:
        self.events.append("end")


@dataclass
class Setting:
    facts: RecordingFacts = FACTS
    takes_inputs: bool = False
    fails: str = ""
    refuses_call: str = ""
    has_room: bool = True
    is_full: bool = False
    decide: Callable[[float], str] | None = None
    made: list[FakeRecording] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    addresses: set[int] = field(default_factory=set)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    apart: FakeApart | None = None

    def graph(self) -> RecordedGraph:
        def record(inputs: Sequence[Any], moving: frozenset[int]) -> Any:
            if self.is_full:
                raise torch.OutOfMemoryError("out of memory")
            if not self.has_room:
                raise NoRoom("no room")
            if self.refuses_call:
                raise CallRefused(self.refuses_call)
            if self.fails:
                raise NotRecordable(self.fails)
            self.made.append(FakeRecording([x.data_ptr() for x in inputs], moving))
            return self.made[-1]

        def plain(inputs: Sequence[Any]) -> Any:
            return ["plain"]

        def instead() -> Any:
            return None if self.refuses_call == "alone" else lambda inputs: ["in parts"]

        arguments = (plain, record, self.facts, self, self.takes_inputs, self.said.append)
        return RecordedGraph(
            *arguments,  # type: ignore[arg-type]
            self.decide,
            apart=self.apart,  # type: ignore[arg-type]
            instead=instead,
        )


@pytest.fixture(autouse=True)
def _no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def _tensors(count: int) -> list[torch.Tensor]:
    return [torch.zeros(64) for _ in range(count)]


def test_the_second_call_is_recorded() -> None:
    setting = Setting()
    graph, inputs = setting.graph(), _tensors(2)
    assert [graph(inputs)[0] for _ in range(5)] == ["plain"] + ["replayed"] * 4  # type: ignore[comparison-overlap]
    (only,) = setting.made
    assert only.replays == 4 and only.moving == frozenset() and not setting.said


def test_what_lies_elsewhere_than_the_device_is_copied() -> None:
    """Seeds of a dropout that was not recorded, wherever the host has them."""
    setting = Setting()
    graph, inputs = setting.graph(), [torch.zeros(64), torch.empty((), device="meta")]
    assert inputs[1].data_ptr() == 0  # the same at each call
    assert [graph(inputs)[0] for _ in range(3)] == ["plain"] + ["replayed"] * 2  # type: ignore[comparison-overlap]
    assert [made.moving for made in setting.made] == [{1}]


def test_the_time_of_the_second_call_decides() -> None:
    asked: list[float] = []
    setting = Setting(decide=lambda seconds: asked.append(seconds) or "")
    graph, (weight, *images) = setting.graph(), _tensors(7)
    answers = [graph([weight, image])[0] for image in images]
    assert answers == ["plain"] * 2 + ["replayed"] * 4  # type: ignore[comparison-overlap]
    assert len(asked) == 1 and asked[0] > 0
    (only,) = setting.made
    assert only.moving == {1}, "what moved before the decision counts"


def test_calls_that_gain_nothing_stay_as_compiled() -> None:
    setting = Setting(decide=lambda seconds: "the device is busy anyway")
    graph, inputs = setting.graph(), _tensors(2)
    assert [graph(inputs)[0] for _ in range(5)] == ["plain"] * 5  # type: ignore[comparison-overlap]
    assert not setting.made and len(setting.said) == 1
    assert setting.said[0].endswith("the device is busy anyway")


@pytest.mark.parametrize(
    ("setting", "events"),
    [
        (Setting(), ["run"]),  # making the recording releases the memory
        (Setting(decide=lambda _: ""), ["run", "run"]),
        (Setting(decide=lambda _: "no use"), ["run", "run", "end"]),
        (Setting(fails="it waits"), ["run", "end"]),
        (Setting(has_room=False), ["run", "end"]),
        (Setting(is_full=True), ["run", "end"]),
    ],
)
def test_calls_before_the_first_recording(setting: Setting, events: list[str]) -> None:
    setting.apart = FakeApart()
    graph, inputs = setting.graph(), _tensors(2)
    for _ in range(5):
        graph(inputs)
    assert setting.apart.events == events


def test_what_finds_no_room_leaves_other_sizes_as_they_are() -> None:
    setting = Setting(facts=SIZED)
    graph, small, large = setting.graph(), _tensors(2), [torch.zeros(128) for _ in range(2)]
    for inputs in (small, small, large):
        graph(inputs)
    setting.has_room = False
    assert [graph(inputs)[0] for inputs in (large, small, large)] == [  # type: ignore[comparison-overlap]
        "plain",
        "replayed",
        "plain",
    ]
    setting.has_room = True
    assert graph(large)[0] == "replayed"  # type: ignore[comparison-overlap]
    assert len(setting.said) == 1 and "no room" in setting.said[0]


def test_a_device_that_is_full_is_no_error() -> None:
    setting = Setting(is_full=True)
    graph, inputs = setting.graph(), _tensors(2)
    assert [graph(inputs)[0] for _ in range(3)] == ["plain"] * 3  # type: ignore[comparison-overlap]
    assert len(setting.said) == 1 and "out of memory" in setting.said[0]


def test_an_input_that_is_new_each_time_is_copied() -> None:
    setting = Setting()
    graph, (weight, *images) = setting.graph(), _tensors(8)
    answers = [graph([weight, image])[0] for image in images]
    assert answers == ["plain"] + ["replayed"] * 6  # type: ignore[comparison-overlap]
    (only,) = setting.made
    assert only.moving == {1}


def test_an_input_that_moves_later_costs_one_recording_more() -> None:
    setting = Setting()
    graph, (weight, *images) = setting.graph(), _tensors(8)
    for image in [images[0]] * 3 + images:
        graph([weight, image])
    assert [made.moving for made in setting.made] == [frozenset(), {1}]


def test_results_of_another_recording_are_not_copied() -> None:
    setting = Setting()
    graph, (first, *saved) = setting.graph(), _tensors(3)
    setting.addresses = {x.data_ptr() for x in saved}
    graph([first, first])
    for _ in range(3):
        for one in saved:
            graph([first, one])
    assert [made.moving for made in setting.made] == [frozenset(), frozenset()]
    assert [made.replays for made in setting.made] == [3, 3]


def test_results_that_are_held_ask_for_another_recording() -> None:
    setting = Setting()
    graph, inputs = setting.graph(), _tensors(2)
    graph(inputs)
    for _ in range(MOST_RECORDINGS):
        assert graph(inputs) == ["replayed"]
        setting.made[-1].free = False
    assert len(setting.made) == MOST_RECORDINGS
    assert graph(inputs) == ["plain"] and graph(inputs) == ["plain"]
    assert len(setting.said) == 1 and "still in use" in setting.said[0]
    setting.made[2].free = True
    assert graph(inputs) == ["replayed"] and setting.made[2].replays == 2


def test_what_moved_before_it_had_a_place_is_not_copied() -> None:
    """A forward that is recorded later than its backward's first call."""
    setting = Setting(decide=lambda seconds: "")
    graph, (first, *saved) = setting.graph(), _tensors(4)
    for one in saved[:2]:
        graph([first, one])
    setting.addresses = {saved[2].data_ptr()}
    assert graph([first, saved[2]]) == ["replayed"]
    assert [made.moving for made in setting.made] == [frozenset()]


def test_a_recording_whose_memory_went_is_replaced() -> None:
    setting = Setting()
    graph, inputs = setting.graph(), _tensors(2)
    for _ in range(3):
        graph(inputs)
    setting.made[0].is_reset, setting.made[0].pointers = True, [0, 0]
    assert graph(inputs) == ["replayed"] and len(setting.made) == 2


def test_pointers_that_the_driver_refuses_are_no_error() -> None:
    setting = Setting()
    graph, inputs = setting.graph(), _tensors(2)
    graph(inputs), graph(inputs)
    setting.made[0].refuses = "the driver refused new pointers: error 1"
    assert [graph(inputs)[0] for _ in range(2)] == ["plain"] * 2  # type: ignore[comparison-overlap]
    assert len(setting.said) == 1 and "refused new pointers" in setting.said[0]


@pytest.mark.parametrize(("reason", "then"), [("alone", "plain"), ("a call", "in parts")])
def test_a_call_that_is_refused_leaves_parts_around_it(reason: str, then: str) -> None:
    setting, inputs = Setting(refuses_call=reason), _tensors(2)
    graph = setting.graph()
    found = [graph(inputs) for _ in range(4)]
    assert found == [["plain"], [then], [then], [then]]
    assert len(setting.said) == 1 and not graph.replays()


def test_what_cannot_be_recorded_runs_as_compiled() -> None:
    setting = Setting(fails="it waits for the device")
    graph, inputs = setting.graph(), _tensors(2)
    assert [graph(inputs)[0] for _ in range(4)] == ["plain"] * 4  # type: ignore[comparison-overlap]
    assert setting.said == ["calls are not replayed as a CUDA graph: it waits for the device"]


def test_one_recording_a_size_and_no_more_than_so_many() -> None:
    facts = RecordingFacts(
        1, (0,), (0,), (), {0: 0}, (), frozenset(), (), frozenset(), (), {}, {}, {}, frozenset()
    )
    setting = Setting(facts)
    graph = setting.graph()
    for size in range(1, MOST_SIZES + 3):
        values = torch.zeros(size)
        for _ in range(3):
            graph([values])
    assert len(setting.made) == MOST_SIZES + 2
    assert [made.is_reset for made in setting.made] == [True] * 2 + [False] * MOST_SIZES


def test_inputs_are_taken_over_by_a_replay() -> None:
    setting = Setting(takes_inputs=True)
    graph, inputs = setting.graph(), _tensors(2)
    graph(list(inputs))
    given = list(inputs)
    assert graph(given) == ["replayed"] and given == []


def test_a_capture_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    graph, inputs = setting.graph(), _tensors(2)
    monkeypatch.setattr(recorded_graph.torch.cuda, "is_current_stream_capturing", lambda: True)
    assert [graph(inputs)[0] for _ in range(3)] == ["plain"] * 3  # type: ignore[comparison-overlap]


# --- facts ---------------------------------------------------------------------------------------


def test_facts_of_a_schedule() -> None:
    """y = 2x @ w + 1, z = 2x, and w itself: x is a kernel's alone, w the library's."""
    shape = (16, 16)
    x, w, a, p, y, z = (buffer(name, shape) for name in ("x", "w", "a", "p", "y", "z"))
    (i, _), (j, _) = over = axes(shape)
    call = ExternCall(torch.ops.aten.mm.default, (view(a), view(w)), (), (p,))
    statements = [
        define(a, over, apply("mul", load(x, i, j), 2.0)),
        define(z, over, apply("mul", load(x, i, j), 3.0)),
        call,
        define(y, over, apply("add", load(p, i, j), 1.0)),
    ]
    plan = schedule(program([x, w], statements, [y, p, z, w, z]), OPTIONS)
    function = DeviceFunction("k", "", (), (), (), 1)
    launches = [
        (Launch(function, (1, 1, 1), step.memory),) if isinstance(step, Kernel) else ()
        for step in plan.steps
    ]
    sources = host_sources(plan, launches)
    facts = recording_facts(plan, sources, "cpu")
    assert isinstance(facts, RecordingFacts)
    assert (facts.kernel_inputs, facts.fixed_inputs) == ((0,), (1,))
    assert facts.fresh_results == (0, 2) and facts.same_results == {4: 2}
    assert facts.input_results == {3: 1}
    assert facts.whole_results == {0, 1, 2}
    assert [sources.table[facts.result_places[n]] for n in facts.fresh_results] == [y, z]
    saving = recording_facts(plan, sources, "cpu", saved_from=1)
    assert isinstance(saving, RecordingFacts) and saving.fresh_results == (0,)
    assert saving.staying(1) == {1, 2, 4}, "beside the library's result a kernel's waits"
    none = recording_facts(plan, sources, "cpu", saved_from=2)
    assert isinstance(none, RecordingFacts) and none.fresh_results == (0, 2)


def test_a_result_in_another_shape_has_fresh_memory_too() -> None:
    """Logits that are computed by rows; not a part of them, nor what a library call made."""
    x, w, p, y = (buffer(name, (12, 4)) for name in ("x", "w", "p", "y"))
    (i, _), (j, _) = over = axes((12, 4))
    call = ExternCall(torch.ops.aten.mm.default, (view(x), view(w)), (), (p,))
    made = define(y, over, apply("add", load(p, i, j), 1.0))

    def seen(made: Buffer, shape: tuple[int, ...], stride: tuple[int, ...]) -> BufferView:
        return BufferView(made, shape, stride, 0, made.dtype)

    batched, part = seen(y, (3, 4, 1, 4), (16, 4, 4, 1)), seen(y, (3, 4, 3), (16, 4, 1))
    turned, foreign = seen(y, (4, 12), (1, 4)), seen(p, (48,), (1,))
    outputs = [part, turned, batched, view(y), foreign]
    given = dataclasses.replace(program([x, w], [call, made], [y]), outputs=tuple(outputs))
    plan = schedule(given, OPTIONS)
    assert fills(batched) and fills(seen(y, (48,), (1,)))
    assert not fills(part) and not fills(turned) and not fills(seen(y, (6, 4), (8, 1)))
    assert whole_results(plan) == fresh_results(plan) == {y: 2}
    assert fresh_results(plan, 5) == {y: 2} and whole_results(plan, 3) == {y: 3}


def test_what_waits_for_the_device_is_refused() -> None:
    x, a = buffer("x", (4,)), buffer("a", (4, 1), dtype=torch.int64)
    call = ExternCall(torch.ops.aten.nonzero.default, (view(x),), (), (a,))
    plan = schedule(program([x], [call], [a]), OPTIONS)
    facts = recording_facts(plan, host_sources(plan, [() for _ in plan.steps]), "cpu")
    assert facts == "aten.nonzero.default waits for the device"


def test_an_input_that_kernels_write_and_library_calls_read() -> None:
    """A recording that has a copy of it hands back what its kernel scattered there."""
    given = scattered("set", 3, 5, 8)
    y, z = given.outputs[0].buffer, buffer("z", (8, 5))
    call = ExternCall(torch.ops.aten.cumsum.default, (view(y), 1), (), (z,))
    made = program(given.inputs, [*given.statements, call], [z])
    plan = schedule(dataclasses.replace(made, mutations=((given.inputs[0], view(y)),)), OPTIONS)
    facts = recording_facts(plan, host_sources(plan, [() for _ in plan.steps]), "cpu")
    assert isinstance(facts, RecordingFacts)
    assert facts.fixed_inputs == (0,) and facts.copied_back == {0} and facts.written == (0,)


# --- the extension -------------------------------------------------------------------------------


class _Parameters(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("shape", ctypes.c_uint * 7),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Parameters))


@pytest.fixture(scope="module")
def patches() -> GraphPatches:
    found = load_graph_patches(Options())
    assert found is not None and found.new_tensors is not None
    return found


def test_pointers_are_compared(patches: GraphPatches) -> None:
    a, b, c = _tensors(3)
    expected = (ctypes.c_long * 5)(2, 0, a.data_ptr(), 2, c.data_ptr())
    at = ctypes.addressof(expected)
    assert patches.agrees([a, b, c], at) is True
    assert patches.agrees((a, c, c, b), at) is True
    assert patches.agrees([b, b, c], at) is False
    with pytest.raises(IndexError):
        patches.agrees([a], at)


def test_only_kernels_with_other_pointers_are_patched(patches: GraphPatches) -> None:
    calls: list[tuple[int, int, int, list[int], list[int]]] = []
    code = 0

    def set_parameters(executable: int, node: int, given: Any) -> int:
        parameters = given.contents
        values = [ctypes.c_long.from_address(parameters.parameters[n]).value for n in range(3)]
        calls.append((executable, node, parameters.function, [*parameters.shape], values))
        return code

    callback = _SET(set_parameters)
    a, b, c, d = _tensors(4)
    p, q = a.data_ptr(), b.data_ptr()
    number = torch.tensor(2.5, dtype=torch.float64)
    bits = [ctypes.c_long.from_buffer(ctypes.c_double(x)).value for x in (2.5, 3.5)]
    numbers = [ctypes.cast(callback, ctypes.c_void_p).value, 77, 3, 1, 2, p, q, bits[0]]
    numbers += [1001, 5, 8, 2, 1, 128, 0, 3, 2, 0, 0, 2, 1, p, 42, q]
    numbers += [1002, 6, 9, 1, 1, 64, 512, 3, 2, 1, 1, 2, 2, 13, q, bits[0]]
    program_ = (ctypes.c_long * len(numbers))(*numbers)
    at = ctypes.addressof(program_)
    assert patches.patch(at, a, b, number) == 0 and calls == []
    assert patches.patch(at, c, b, number) == 0
    assert calls == [(77, 1001, 5, [8, 2, 1, 128, 1, 1, 0], [c.data_ptr(), 42, q])]
    calls.clear()
    assert patches.patch(at, c, d, number) == 0
    assert [call[1] for call in calls] == [1001, 1002]
    assert calls[1][-1] == [13, d.data_ptr(), bits[0]]
    calls.clear()
    assert patches.patch(at, c, torch.zeros(9)[1:], number) == -1 and not calls
    number.fill_(3.5)
    assert patches.patch(at, c, d, number) == 0
    assert calls == [(77, 1002, 6, [9, 1, 1, 64, 1, 1, 512], [13, d.data_ptr(), bits[1]])]
    code = 719
    assert patches.patch(at, a, d, number) == 719
    with pytest.raises(TypeError):
        patches.patch(at, a)


@pytest.mark.parametrize("in_python", [False, True])
def test_new_tensors_are_as_described(patches: GraphPatches, in_python: bool) -> None:
    if in_python:
        patches = dataclasses.replace(patches, new_tensors=None)
    layouts = [
        ((2, 3), (1, 2), torch.bfloat16),
        ((), (), torch.int64),
        ((0, 4), (4, 1), torch.bool),
    ]
    layouts.append(((5, 1, 7), (7, 3, 1), torch.complex64))
    wanted = [NewTensor(n, *layout, True) for n, layout in enumerate(layouts)]
    make = patches.maker(wanted, torch.device("cpu"))
    first, second = make(), make()
    for made in (first, second):
        assert [(tuple(x.shape), x.stride(), x.dtype) for x in made] == layouts
        assert all(type(x) is torch.Tensor and x.is_leaf and not x.requires_grad for x in made)
    assert {x.data_ptr() for x in first if x.numel()}.isdisjoint(x.data_ptr() for x in second)
    assert not patches.maker([], torch.device("cpu"))()
