"""A snapshot never says yes where the generated check says no: the world is changed, both asked."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from braze.compat.torch.ambient_guards import quick_questions
from braze.compat.torch.ambient_state import ambient_state
from braze.compat.torch.tracers import FX_QUESTION
from braze.interop.backends import Backend, Level
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.guard_tree import build_guard_tree
from braze.ir.captured.source import LocalSource
from braze.options import config
from braze.runtime.dispatch.argument_binding import make_binder
from braze.runtime.guards.evaluate import evaluate
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.guards.snapshot_cache import SnapshotMemory
from braze.targets import make_dispatcher
from braze.trace import Journal

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")

GAIN = 2.0


def double(x: torch.Tensor, by: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
    return x * by + shift


class Settings:
    slope = 0.5

    def __init__(self) -> None:
        self.offset = 1.0


class Scale(nn.Module):
    factor = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.bias: nn.Parameter | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight - self.mean
        return y * self.factor if self.training else y + self.factor


class OtherScale(Scale):
    factor = 4.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        self.blocks = nn.ModuleList([Scale(), Scale()])
        self.terms = [1.0, 2.0]
        self.table = {"gain": 1.5}
        self.settings = Settings()
        self.pair = (1.0, [2.0])
        self.steps = 0
        cell = 5.0

        def closed(x: torch.Tensor) -> torch.Tensor:
            return x + cell

        self.closed = closed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = double(self.stack(self.scale(x))) * GAIN
        for block in self.blocks:
            x = block(x)
        for term in self.terms:
            x = x + term
        x = x * self.table["gain"] + self.settings.offset * self.settings.slope
        x = x + self.pair[0] + self.pair[1][0]
        return self.closed(x)


class Stack(nn.Module):
    """Nothing in it is known by identity, so entries serve all instances."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Scale(), Scale()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class GuardContext:
    """A model whose guards passed twice: the second time left a snapshot."""

    def __init__(self, kind: type[nn.Module] = Model) -> None:
        self.model: Any = kind().eval()
        self.x = torch.randn(2, 3)
        forward: Any = kind.forward
        # Globals of its own, so that a test may change them.
        self.globals = dict(forward.__globals__)
        forward = types.FunctionType(forward.__code__, self.globals)
        dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
        dispatcher.compiled(forward)(self.model, self.x)
        (entry,) = dispatcher.caches()[0].entries
        self.entry = entry
        self.bind = make_binder(forward)
        self.frame = FrameValues(self.bind(self.model, self.x), (), self.globals)
        self.memory: SnapshotMemory = entry.memory
        self.memory.remember(self.frame)

    def answer(self) -> list[Any] | None:
        """What the snapshot says."""
        assert self.memory.checks
        return self.memory.checks[0](self.frame)

    def compare(self) -> None:
        """Where the snapshot says yes, so does the generated check, and the inputs are the same;
        asking guard by guard always gives what the generated check gives."""
        expected = self.memory.generated(self.frame)
        asked = evaluate(self.memory.tree, self.frame)
        assert (asked is None) is (expected is None)
        assert expected is None or list(map(id, asked or ())) == list(map(id, expected))
        for _ in range(3):
            answer = self.answer()
            if answer is not None:
                assert expected is not None
                assert list(map(id, answer)) == list(map(id, expected))


@pytest.fixture
def world() -> GuardContext:
    return GuardContext()


def replaced(value: Any, name: str, new: Any) -> None:
    setattr(value, name, new)


def set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
    tensor.data = other


def resized(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.resize_(4)


def non_leaf(tensor: torch.Tensor) -> None:
    tensor.requires_grad_(False)
    tensor.add_(torch.ones(3, requires_grad=True))


def new_dict(module: nn.Module) -> None:
    module.__dict__ = {**module.__dict__, "training": True}


def swapped(model: Model) -> None:
    torch.utils.swap_tensors(model.scale.weight, nn.Parameter(torch.ones(7)))


def freed_and_made_again(model: Model) -> None:
    """The old module's memory may serve the new one."""
    model.scale = None  # type: ignore[assignment]
    gc.collect()
    model.scale = OtherScale().train()


def class_attribute(name: str, value: Any) -> Callable[[Any], Any]:
    def change(world: GuardContext) -> Callable[[], None]:
        before = Scale.__dict__.get(name)
        setattr(Scale, name, value)

        def undo() -> None:
            delattr(Scale, name) if before is None else setattr(Scale, name, before)

        return undo

    return change


def function_part(name: str, value: Any) -> Callable[[Any], Any]:
    def change(world: GuardContext) -> Callable[[], None]:
        before = getattr(double, name)
        setattr(double, name, value)
        return lambda: setattr(double, name, before)

    return change


def slope(world: GuardContext) -> Callable[[], None]:
    Settings.slope = 0.75
    return lambda: setattr(Settings, "slope", 0.5)


def global_hook(world: GuardContext) -> Any:
    return nn.modules.module.register_module_forward_hook(lambda *_: None).remove


def hook_in_dict(model: Model) -> None:
    model.scale._forward_hooks[77] = lambda *_: None


def other_function(model: Model) -> None:
    cell = 6.0
    model.closed = lambda x: x - cell


def cell_contents(model: Model) -> None:
    model.closed.__closure__[0].cell_contents = 6.0  # type: ignore[index]


CHANGES: dict[str, Callable[[GuardContext], Any]] = {
    "p.data of another shape": lambda w: set_data(w.model.scale.weight, torch.ones(1)),
    "p.data of another dtype": lambda w: set_data(
        w.model.scale.weight, torch.ones(3, dtype=torch.float64)
    ),
    "p.data of other strides": lambda w: set_data(w.model.stack[0].weight, torch.ones(3, 3).t()),
    "a buffer on another device": lambda w: torch.utils.swap_tensors(
        w.model.scale.mean, torch.ones(3, device="meta")
    ),
    "requires_grad_": lambda w: w.model.scale.weight.requires_grad_(False),
    "a buffer requires grad": lambda w: w.model.scale.mean.requires_grad_(True),
    "resize_": lambda w: resized(w.model.scale.mean),
    "unsqueeze_": lambda w: w.model.scale.mean.unsqueeze_(0),
    "t_": lambda w: w.model.stack[2].weight.data.t_() is None,
    "set_": lambda w: w.model.scale.mean.set_(torch.ones(5)),
    "no leaf any more": lambda w: non_leaf(w.model.scale.weight),
    "swap_tensors": lambda w: swapped(w.model),
    "the input in another shape": lambda w: w.x.resize_(4, 3),
    "the input requires grad": lambda w: w.x.requires_grad_(True),
    "a parameter replaced": lambda w: replaced(
        w.model.scale, "weight", nn.Parameter(torch.ones(1))
    ),
    "a parameter replaced by one alike": lambda w: replaced(
        w.model.scale, "weight", nn.Parameter(torch.ones(3))
    ),
    "a parameter deleted": lambda w: delattr(w.model.scale, "weight"),
    "a parameter shadowed": lambda w: w.model.scale.__dict__.update(weight=torch.ones(3)),
    "a buffer reassigned": lambda w: replaced(w.model.scale, "mean", torch.ones(3)),
    "a buffer reassigned wider": lambda w: replaced(w.model.scale, "mean", torch.ones(2, 3)),
    "a parameter registered": lambda w: w.model.scale.register_parameter(
        "extra", nn.Parameter(torch.ones(3))
    ),
    "train()": lambda w: w.model.train(),
    "one module's training flag": lambda w: w.model.blocks[1].train(),
    "an attribute": lambda w: replaced(w.model.settings, "offset", 7.0),
    "an attribute made anew": lambda w: replaced(w.model.settings, "offset", float("1.0")),
    "an attribute deleted": lambda w: delattr(w.model.settings, "offset"),
    "an unread attribute": lambda w: replaced(w.model, "steps", 1),
    "an instance attribute over the class's": lambda w: replaced(w.model.scale, "factor", 9.0),
    "a forward of the instance": lambda w: replaced(w.model.scale, "forward", lambda x: x),
    "a slope over the class's": lambda w: replaced(w.model.settings, "slope", 9.0),
    "a class attribute": class_attribute("factor", 9.0),
    "a class attribute over a parameter": class_attribute("weight", torch.ones(3)),
    "a property over a parameter": class_attribute("mean", property(lambda self: torch.ones(3))),
    "a method": class_attribute("forward", lambda self, x: x),
    "a __getattr__": class_attribute("__getattr__", lambda self, name: 1),
    "a __getattribute__": class_attribute("__getattribute__", lambda self, name: 1),
    "a plain class's attribute": slope,
    "__class__": lambda w: replaced(w.model.scale, "__class__", OtherScale),
    "__dict__": lambda w: new_dict(w.model.scale),
    "a hook": lambda w: w.model.scale.register_forward_hook(lambda *_: None),
    "a hook in the dict": lambda w: hook_in_dict(w.model),
    "a pre-hook": lambda w: w.model.stack.register_forward_pre_hook(lambda *_: None),
    "a backward hook": lambda w: w.model.stack[1].register_full_backward_hook(lambda *_: None),
    "another hooks dict": lambda w: replaced(
        w.model.scale, "_forward_hooks", OrderedDict({1: lambda *_: None})
    ),
    "a hook for all modules": global_hook,
    "a module replaced": lambda w: replaced(w.model, "scale", Scale().train()),
    "a module replaced by one alike": lambda w: replaced(w.model, "scale", Scale().eval()),
    "a module freed and another made": lambda w: freed_and_made_again(w.model),
    "a module of the sequence": lambda w: w.model.stack.__setitem__(1, nn.Sigmoid()),
    "a module more": lambda w: w.model.stack.append(nn.ReLU()),
    "a block less": lambda w: w.model.blocks.__delitem__(0),
    "blocks exchanged": lambda w: w.model.stack._modules.update(
        {"0": w.model.stack[2], "2": w.model.stack[0]}
    ),
    "another _modules": lambda w: w.model.__dict__.update(_modules={}),
    "a list's item": lambda w: w.model.terms.__setitem__(0, 4.0),
    "a list's length": lambda w: w.model.terms.append(4.0),
    "a list replaced": lambda w: replaced(w.model, "terms", [1.0, 3.0]),
    "a dict's entry": lambda w: w.model.table.update(gain=3.5),
    "a dict's new entry": lambda w: w.model.table.update(other=3.5),
    "a list in a tuple": lambda w: w.model.pair[1].__setitem__(0, 4.0),
    "another tuple": lambda w: replaced(w.model, "pair", (1.5, [2.0])),
    "a function's defaults": function_part("__defaults__", (5.0,)),
    "a function's keyword defaults": function_part("__kwdefaults__", {"shift": 1.0}),
    "a function's code": function_part("__code__", (lambda x, by=1.0, *, shift=0.0: x).__code__),
    "another function": lambda w: other_function(w.model),
    "a cell": lambda w: cell_contents(w.model),
    "a global": lambda w: w.globals.update(GAIN=3.0),
    "a global function": lambda w: w.globals.update(double=lambda x: x),
    "a global deleted": lambda w: w.globals.pop("GAIN"),
    "a global unread": lambda w: w.globals.update(unread=1),
    "another model": lambda w: w.frame.locals.update(self=Model().eval()),
    "no model": lambda w: w.frame.locals.update(self=None),
    "no input": lambda w: w.frame.locals.pop("x"),
    "an input that is no tensor": lambda w: w.frame.locals.update(x=1.0),
}
# After these the guards still hold, and the snapshot finds it out by itself.
IRRELEVANT = ("an unread attribute", "a global unread", "a dict's new entry")


def test_a_snapshot_answers_what_the_generated_check_answers(world: GuardContext) -> None:
    answer = world.answer()
    assert answer is not None
    world.compare()
    assert any(value is world.x for value in answer)


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(world: GuardContext, change: str) -> None:
    undo = CHANGES[change](world)
    try:
        world.compare()
        if change in IRRELEVANT:
            assert world.answer() is not None
    finally:
        if callable(undo) and not isinstance(undo, nn.Module):
            undo()
    world.compare()


def test_python_is_generated_when_snapshots_do_not_serve() -> None:
    x = LocalSource("x")
    guard = Guard(x, GuardKind.EQUALS_MATCH, "text")
    generated: list[int] = []

    def generate(guards: Any, inputs: Any, known: Any) -> Any:
        generated.append(len(guards))
        return lambda frame: None

    memory = SnapshotMemory(build_guard_tree([guard]), [], generate)
    for call in range(20):
        assert memory.check_all(FrameValues({"x": "other"}, (), {})) is None
        assert generated == ([] if call < 9 else [1])


def test_most_changes_fail_both_checks() -> None:
    """The table is worth something: few of its rows leave the guards holding."""
    holding = []
    for name, change in CHANGES.items():
        here = GuardContext()
        undo = change(here)
        if here.memory.generated(here.frame) is not None:
            holding.append(name)
        if callable(undo) and not isinstance(undo, nn.Module):
            undo()
    assert len(holding) <= len(CHANGES) // 5, holding


def test_ambient_state_is_compared(world: GuardContext) -> None:
    for change in (torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.inference_mode()):
        with change:
            world.compare()
            assert world.answer() is None
    assert world.answer() is not None


class Watching(TorchDispatchMode):
    """A mode of somebody else."""


@contextlib.contextmanager
def called(change: Callable[[Any], object], other: Any, before: Any) -> Iterator[None]:
    change(other)
    try:
        yield
    finally:
        change(before)


SWITCHES: list[Callable[[bool], None]] = [
    torch.use_deterministic_algorithms,
    lambda on: torch.use_deterministic_algorithms(on, warn_only=on),
    torch.backends.cuda.enable_flash_sdp,
    torch.backends.cuda.enable_mem_efficient_sdp,
    torch.backends.cuda.enable_math_sdp,
    torch.backends.cuda.enable_cudnn_sdp,
    torch.set_autocast_cache_enabled,
    torch._C._set_cudnn_enabled,
    torch._C._set_cudnn_allow_tf32,
]


@pytest.mark.parametrize("number", range(len(SWITCHES)))
def test_each_switch_is_compared(world: GuardContext, number: int) -> None:
    on = number < 2  # those are off at first
    with called(SWITCHES[number], on, not on):
        world.compare()
        assert world.answer() is None
    assert world.answer() is not None


@pytest.mark.parametrize("depth", [1, 2])
def test_modes_are_counted(world: GuardContext, depth: int) -> None:
    for mode in (Watching, lambda: torch.device("cpu")):
        with contextlib.ExitStack() as stack:
            for _ in range(depth):
                stack.enter_context(mode())
            assert world.answer() is None
        assert world.answer() is not None


def test_the_default_dtype_and_anomalies_are_compared(world: GuardContext) -> None:
    with called(torch.set_default_dtype, torch.float64, torch.float32):
        assert world.answer() is None
    with called(torch.autograd.set_detect_anomaly, True, False):
        assert world.answer() is None
    assert world.answer() is not None


def test_what_python_is_asked_of_the_ambient_state() -> None:
    """Whether errors are looked for, the level of forward mode and whether torch.fx traces, which
    are globals of Python's. (With the builds of PyTorch that are tested: where one lacks a
    function, Python is asked.)"""
    questions = quick_questions(ambient_state())
    assert questions is not None
    slow, quick = questions
    levels = vars(torch.autograd.forward_ad)
    asked = [(row[0], row[1]) for row in slow]
    assert asked == [
        (torch.is_anomaly_enabled, None),
        (levels.__getitem__, "_current_level"),
        FX_QUESTION,
    ]
    assert quick


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_autocast_would_do_is_compared(world: GuardContext, device: str) -> None:
    before = torch.get_autocast_dtype(device)
    torch.set_autocast_dtype(device, torch.float64)
    try:
        world.compare()
        assert world.answer() is None
    finally:
        torch.set_autocast_dtype(device, before)
    assert world.answer() is not None


def test_a_change_of_the_class_that_is_undone_is_forgiven(world: GuardContext) -> None:
    Scale.factor = 9.0
    assert world.answer() is None
    Scale.factor = 3.0
    world.compare()


def test_a_counter_beside_what_is_read_costs_no_snapshot(world: GuardContext) -> None:
    for step in range(5):
        world.model.steps = step
        assert world.answer() is not None


def test_models_that_alternate_have_a_snapshot_each() -> None:
    world = GuardContext(Stack)
    models = [Stack().eval() for _ in range(3)]
    frames = [FrameValues(world.bind(model, world.x), (), world.globals) for model in models]
    for _ in range(3):
        for frame in frames:
            inputs, expected = world.entry.check(frame), world.memory.generated(frame)
            assert inputs is not None and expected is not None
            assert list(map(id, inputs)) == list(map(id, expected))
    assert len(world.memory.checks) == 4
    assert all(any(check(frame) for check in world.memory.checks) for frame in frames)


def test_snapshots_keep_no_model_alive() -> None:
    world = GuardContext()
    gone = [weakref.ref(world.model), weakref.ref(world.model.scale.weight)]
    memory, frame = world.memory, world.frame
    world.model = frame.locals["self"] = None
    del world
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert memory.checks[0](frame) is None


def test_a_freed_models_place_may_be_taken_by_another() -> None:
    world = GuardContext(Stack)
    for _ in range(20):
        world.frame.locals["self"] = world.model = None
        gc.collect()
        other = Stack()
        world.frame.locals["self"] = world.model = other
        world.compare()
        other.eval()
        world.compare()
        assert world.entry.check(world.frame) is not None


def test_a_tensor_that_is_given_twice_is_noticed() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    forward: Any = Counter.forward
    model, x = Counter(), torch.zeros(3)
    dispatcher.compiled(forward)(model, x)
    entry = dispatcher.caches()[0].entries[0]
    frame = FrameValues({"self": model, "x": x}, (), forward.__globals__)
    assert entry.check(frame) is not None
    assert entry.memory.checks[0](frame) is not None
    frame.locals["x"] = model.count
    assert entry.check(frame) is None
    frame.locals["x"] = torch.zeros(3)
    assert entry.check(frame) is not None
    frame.locals["x"].data = model.count.data
    assert entry.check(frame) is None
