"""First calls that end their own guards run eagerly, once; the next call is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import Journal

ALL = {"single_use_limit": 0}  # however small the graph


class Thing:
    """Something with state."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)


def outcomes(journal: Journal) -> list[str]:
    return ["once" if record.once else record.outcome for record in journal.records()]


class Training:
    """A model, its optimizer, and a step of both."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Callable[[torch.Tensor], torch.Tensor], count: int) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [step(torch.full((2, 4), number + 1.0)) for number in range(count)]


def test_an_optimizers_first_step(journal: Journal) -> None:
    ours, eager = Training(), Training()
    compiled = braze.compile(ours.step, fullgraph=True, options={**ALL, "recompile_limit": 1})
    losses = ours.run(compiled, 4)
    assert outcomes(journal) == ["once", "graph"]
    first = journal.records()[0]
    assert ".state' has 0 items, and 4 behind the call; a graph of " in first.once
    assert first.ops and first.counters["left_once"] == 1 and "kernels" not in first.counters
    expected = eager.run(eager.step, 4)
    assert torch.equal(losses[0], expected[0])  # eager itself, its draws of dropout too
    torch.testing.assert_close(losses, expected)
    for p, q in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_explain_says_so() -> None:
    ours = Training()
    said = braze.explain(ours.step, options=ALL)(torch.ones(2, 4))
    assert len(said.left_once) == 1 and "This call alone ran eagerly: " in str(said)
    again = braze.explain(ours.step, options=ALL)(torch.ones(2, 4))
    assert not again.left_once and again.graph_count == 1


def test_small_graphs_are_compiled(journal: Journal) -> None:
    ours = Training()
    ours.run(braze.compile(ours.step), 3)
    assert outcomes(journal) == ["graph", "graph"]


def test_state_that_is_there(journal: Journal) -> None:
    """A step that continues, with gradients."""
    ours = Training()
    ours.run(ours.step, 1)
    ours.run(braze.compile(ours.step, options=ALL), 2)
    assert outcomes(journal) == ["graph"]


def grows(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    if len(thing.items) < 100:
        thing.items.append(1)
    return x + len(thing.items)


def makes_a_key(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    if "mask" not in thing.items:
        thing.items["mask"] = x > 0
    return x * thing.items["mask"]


def makes_an_attribute(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(thing, "mask"):
        thing.mask = x > 0
    return x * thing.mask


def fills_an_attribute(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    if thing.mask is None:
        thing.mask = x > 0
    return x * thing.mask


def counts(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    thing.calls += 1
    return x * thing.calls


def drops(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    if "old" in thing.items:
        del thing.items["old"]
    return x + 1


def keeps_the_last(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    thing.items["last"] = x + 1
    thing.calls = 3
    return x * thing.calls


def writes_unasked(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    thing.items["mask"] = x > 0
    thing.mask = x > 1
    return x + 1


ENDED = [
    (grows, {"items": [1, 2]}, "has 2 items, and 3 behind the call"),
    (makes_a_key, {"items": {}}, "items' gets 'mask' in the call"),
    (makes_an_attribute, {}, "gets 'mask' in the call"),
    (fills_an_attribute, {"mask": None}, "mask' is None, and is made in the call"),
    (counts, {"calls": 1}, "calls' is 1, and 2 behind the call"),
    (drops, {"items": {"old": 1, "new": 2}}, "items' loses 'old' in the call"),
]
KEPT = [
    (keeps_the_last, {"items": {"last": 0}, "calls": 3}),
    (writes_unasked, {"items": {}}),
    (makes_a_key, {"items": {"mask": torch.ones(3)}}),
    (fills_an_attribute, {"mask": torch.ones(3)}),
]


@pytest.mark.parametrize(
    ("program", "state", "reason"), ENDED, ids=lambda v: getattr(v, "__name__", "")
)
def test_what_ends_a_guard(
    journal: Journal, program: Any, state: dict[str, Any], reason: str
) -> None:
    thing, other = Thing(**copy.deepcopy(state)), Thing(**copy.deepcopy(state))
    compiled = braze.compile(lambda x: program(thing, x), options=ALL)
    for number in range(3):
        x = torch.tensor([1.0, -2.0, number])
        torch.testing.assert_close(compiled(x), program(other, x))
    assert reason in journal.records()[0].once
    assert outcomes(journal)[0] == "once" and "once" not in outcomes(journal)[1:]
    assert {*thing.__dict__} == {*other.__dict__}


@pytest.mark.parametrize(("program", "state"), KEPT, ids=lambda v: getattr(v, "__name__", ""))
def test_what_ends_none(journal: Journal, program: Any, state: dict[str, Any]) -> None:
    thing = Thing(**copy.deepcopy(state))
    compiled = braze.compile(lambda x: program(thing, x), options=ALL)
    for number in range(3):
        compiled(torch.tensor([1.0, -2.0, number]))
    assert outcomes(journal) == ["graph"]


def test_other_backends_compile_it(journal: Journal) -> None:
    thing = Thing(mask=None)
    compiled = braze.compile(
        lambda x: fills_an_attribute(thing, x), backend="aot_eager", options=ALL
    )
    compiled(torch.ones(3))
    assert outcomes(journal) == ["graph"]


def takes_keywords(x: torch.Tensor, **keywords: Any) -> torch.Tensor:
    keywords.pop("scale", None)
    keywords["made"] = x + 1
    return keywords["made"] * len(keywords)


@pytest.mark.parametrize(
    ("program", "state", "reason"), ENDED, ids=lambda v: getattr(v, "__name__", "")
)
def test_arguments_are_other_ones_at_the_next_call(
    journal: Journal, program: Any, state: dict[str, Any], reason: str
) -> None:
    compiled = braze.compile(program, options=ALL)
    for _ in range(2):
        compiled(Thing(**copy.deepcopy(state)), torch.ones(3))
    assert outcomes(journal) == ["graph"]


def test_keywords_are_new_at_each_call(journal: Journal) -> None:
    compiled = braze.compile(takes_keywords, options=ALL)
    for _ in range(2):
        compiled(torch.ones(3), scale=2, other=1)
    assert outcomes(journal) == ["graph"]


def test_models_and_optimizers_that_are_arguments(journal: Journal) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    ours = Training()
    compiled = braze.compile(step, options=ALL)
    for _ in range(3):
        compiled(ours.model, ours.optimizer, torch.ones(2, 4))
    assert outcomes(journal) == ["once", "graph"]
