"""Gradients in the snapshot of a training step: they are changed, and both checks are asked."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from braze.interop.backends import Backend, Level
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from braze.targets import make_dispatcher
from braze.trace import Journal
from tests.unit.runtime.residual_guards import note_residual_guards

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")


class Leaves:
    """Two of the same shape."""

    def __init__(self) -> None:
        self.first = nn.Parameter(torch.randn(3, 2))
        self.second = nn.Parameter(torch.randn(3, 2))

    def exchange(self) -> None:
        """One in the place of the other."""
        self.first, self.second = self.second, self.first


class Step:
    """A compiled training step, its frame, and both checks of its entry. forgets: whether it drops
    old gradients, or adds to them."""

    def __init__(self, forgets: bool) -> None:
        torch.manual_seed(0)
        self.leaves = Leaves()
        self.optimizer = torch.optim.SGD([self.leaves.first, self.leaves.second], lr=0.1)
        self.held: list[Any] = []
        dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
        function: Any = _forgetting if forgets else _adding
        self.compiled = dispatcher.compiled(function)
        for _ in range(5):
            self.run()
        self.entry = dispatcher.caches()[0].entries[0]
        names = {"leaves": self.leaves, "optimizer": self.optimizer}
        self.frame = FrameValues(names, (), function.__globals__)
        assert self.entry.check(self.frame) is not None
        self.memory = self.entry.memory

    def run(self) -> None:
        """One step."""
        self.compiled(self.leaves, self.optimizer)

    def compare(self) -> bool:
        """Whether the guards hold, by the generated check, which the snapshot agrees with."""
        expected = self.memory.generated(self.frame)
        found = [check(self.frame) for check in self.memory.checks]
        assert found
        if expected is None:
            assert found == [None] * len(found)
        for inputs in found:
            if inputs is not None and expected is not None:
                assert [*map(id, inputs)] == [*map(id, expected)]
        return any(inputs is not None for inputs in found)


def _forgetting(leaves: Leaves, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (leaves.first * leaves.second).sum().backward()
    optimizer.step()


def _adding(leaves: Leaves, optimizer: torch.optim.Optimizer) -> None:
    (leaves.first * leaves.second).sum().backward()
    optimizer.step()


def _give(step: Step, gradient: Any) -> None:
    step.leaves.first.grad = gradient


def _share_memory(step: Step) -> None:
    step.leaves.second.grad.data = step.leaves.first.grad.data  # type: ignore[union-attr]


def _hold_history(step: Step) -> None:
    step.held.append((step.leaves.first * step.leaves.first).sum())


def _hook_node(step: Step) -> Any:
    node = get_gradient_edge(step.leaves.first).node
    node.register_hook(print)
    return node


class _Mine(torch.Tensor):
    pass


Change = Callable[[Step], Any]
NOTICED: dict[str, Change] = {
    "none": lambda s: _give(s, None),
    "of other strides": lambda s: _give(s, torch.ones(2, 3).t()),
    "that requires grad": lambda s: s.leaves.first.grad.requires_grad_(),  # type: ignore[union-attr]
    "of another class": lambda s: _give(s, torch.ones(3, 2).as_subclass(_Mine)),
    "one for two": lambda s: _give(s, s.leaves.second.grad),
    "the other leaf itself": lambda s: _give(s, s.leaves.second.detach_()),
    "with a hook": lambda s: s.held.append(s.leaves.first.register_hook(print)),
    "with a hook for what is gathered": lambda s: s.held.append(
        s.leaves.first.register_post_accumulate_grad_hook(print)
    ),
    "with a hook of its node": lambda s: s.held.append(_hook_node(s)),
    "of a leaf that needs none": lambda s: s.leaves.first.requires_grad_(False),
    "of another leaf": lambda s: s.leaves.exchange(),
}
HARMLESS: dict[str, Change] = {
    "another": lambda s: _give(s, torch.ones(3, 2)),
    "the same again": lambda s: _give(s, s.leaves.first.grad),
    "written to": lambda s: s.leaves.first.grad.zero_(),  # type: ignore[union-attr]
    "of another step": lambda s: s.run(),
    "held by somebody": lambda s: s.held.append(s.leaves.first.grad),
    "with a history": _hold_history,
    "after a collection": lambda s: gc.collect(),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[Guard]]:
    """Of each snapshot the guards that it leaves to generated Python."""
    return note_residual_guards(monkeypatch)


_OF_GRADIENTS = {
    GuardKind.TENSOR_MATCH,
    GuardKind.ID_MATCH,
    GuardKind.NONE_WATCHED,
    GuardKind.DISTINCT,
    GuardKind.STORAGE_OVERLAP,
}


@pytest.mark.parametrize("forgets", [True, False])
def test_gradients_are_read_by_the_snapshot(forgets: bool, made: list[list[Guard]]) -> None:
    """None of them is left to generated Python, nor who watches them."""
    step = Step(forgets)
    assert step.compare()
    assert not [guard for guards in made for guard in guards if guard.kind in _OF_GRADIENTS]
    given = step.memory.checks[0](step.frame)
    assert any(x is step.leaves.first.grad for x in given) != forgets


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize("change", NOTICED)
def test_changes_of_gradients_are_noticed(change: str, forgets: bool) -> None:
    step = Step(forgets)
    assert step.compare()
    NOTICED[change](step)
    assert not step.compare()


def test_memory_of_two_gradients_that_are_added_to_is_noticed() -> None:
    step = Step(forgets=False)
    assert step.compare()
    _share_memory(step)
    assert not step.compare()


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize("change", HARMLESS)
def test_what_a_step_may_go_on_with_is_read_anew(change: str, forgets: bool) -> None:
    step = Step(forgets)
    for _ in range(3):
        assert step.compare()
        HARMLESS[change](step)
    assert step.compare()


def test_gradients_that_are_none_are_read_by_the_snapshot(made: list[list[Guard]]) -> None:
    """A step whose gradients are dropped outside of it."""
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    leaves, function = Leaves(), _backward
    compiled = dispatcher.compiled(function)
    for _ in range(4):
        leaves.first.grad = leaves.second.grad = None
        compiled(leaves)
    entry = dispatcher.caches()[0].entries[0]
    frame = FrameValues({"leaves": leaves}, (), function.__globals__)
    (check,) = entry.memory.checks
    assert check(frame) is None and entry.check(frame) is None
    leaves.first.grad = leaves.second.grad = None
    assert check(frame) is not None
    assert not [guard for guards in made for guard in guards if guard.kind in _OF_GRADIENTS]


def _backward(leaves: Leaves) -> None:
    (leaves.first * leaves.second).sum().backward()


def test_reading_a_gradient_keeps_nothing_alive() -> None:
    step = Step(forgets=True)
    gradient = torch.ones(3, 2)
    _give(step, gradient)
    assert step.compare()
    count = sys.getrefcount(gradient)
    for _ in range(100):
        assert step.compare()
    assert sys.getrefcount(gradient) == count
