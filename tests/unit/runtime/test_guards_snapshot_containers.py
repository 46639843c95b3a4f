"""Containers that calls bring along, in snapshots: batches, caches, `*args` and `**kwargs`."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from braze.interop.backends import Backend, Level
from braze.ir.captured.guard import Guard
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from braze.targets import make_dispatcher
from braze.trace import Journal
from tests.unit.runtime.residual_guards import note_residual_guards

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Table(dict[str, Any]):
    pass


class Items(list[Any]):
    pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[Guard]]:
    """Of each snapshot the guards that it leaves to generated Python."""
    return note_residual_guards(monkeypatch)


def use(batch: Any, past: Any, *rest: Any, **more: Any) -> torch.Tensor:
    """Reads all of what it is given, and writes to some of it."""
    total = batch["x"] * batch.get("scale", 5)
    if "mask" in batch and batch["mask"] is not None:
        total = total.where(batch["mask"], total.new_zeros(()))
    for place, key in enumerate(batch):
        total = total + place * len(str(key))
    if type(past) is tuple:
        total = total + 0.5
    for keys, values in past:
        total = total + keys.sum() * values
    for index, tensor in enumerate(rest):
        total = total - tensor * index
    if more.get("doubled"):
        total = total * 2
    for number in more.get("numbers", ()):
        total = total + 1 / number if number else total - math.copysign(1, number)
    batch["x"].add_(1)
    past[-1][1].mul_(2)
    return total + batch["x"] + past[0][0].sum() + past[-1][1]


class Call:
    """One call's arguments, all of them new."""

    def __init__(self, seed: int = 0) -> None:
        drawn = torch.Generator().manual_seed(seed)
        new = self.new = lambda *shape: torch.randn(*(shape or (3,)), generator=drawn)
        self.batch: Any = {"x": new(), "mask": new() > 0, "scale": 3}
        self.past: Any = tuple((new(2), new()) for _ in range(3))
        self.rest: Any = (new(), new())
        self.more: Any = {"doubled": True, "numbers": (1, 0.0), "name": "a"}

    def of(self, function: Callable[..., torch.Tensor]) -> Any:
        """The result and what was written, or the kind of the exception."""
        try:
            result = function(self.batch, self.past, *self.rest, **self.more)
        except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as failure:
            return type(failure)
        return [result, self.batch.get("x"), self.past[-1][1]]


def _past(call: Call, layer: int, *pair: Any) -> None:
    call.past = (*call.past[:layer], pair, *call.past[layer + 1 :])


CHANGES: dict[str, Callable[[Call], Any]] = {
    "nothing": lambda c: None,
    "a key less": lambda c: c.batch.pop("scale"),
    "no mask": lambda c: c.batch.update(mask=None),
    "a mask less": lambda c: c.batch.pop("mask"),
    "a key more": lambda c: c.batch.update(y=1),
    "another key": lambda c: c.batch.update(shift=c.batch.pop("scale")),
    "another order": lambda c: setattr(c, "batch", dict(reversed(c.batch.items()))),
    "another number": lambda c: c.batch.update(scale=4),
    "a number of another type": lambda c: c.batch.update(scale=3.0),
    "a truth for a number": lambda c: c.batch.update(scale=True),
    "a key that is no string": lambda c: c.batch.update({1: 2}),
    "an ordered dict": lambda c: setattr(c, "batch", OrderedDict(c.batch)),
    "a dict of a class": lambda c: setattr(c, "batch", Table(c.batch)),
    "another shape": lambda c: c.batch.update(x=c.new(2, 3)),
    "another dtype": lambda c: c.batch.update(x=c.new().double()),
    "strides": lambda c: c.batch.update(x=c.new(6)[::2]),
    "a leaf": lambda c: _past(c, 0, c.new(2).requires_grad_(), c.new()),
    "a parameter": lambda c: _past(c, 0, torch.nn.Parameter(c.new(2)), c.new()),
    "a number for a tensor": lambda c: _past(c, 1, c.new(2), 2),
    "a layer less": lambda c: setattr(c, "past", c.past[1:]),
    "a layer more": lambda c: setattr(c, "past", (*c.past, (c.new(2), c.new()))),
    "no layer": lambda c: setattr(c, "past", ()),
    "a list of layers": lambda c: setattr(c, "past", [*c.past]),
    "a list of a class": lambda c: setattr(c, "past", Items(c.past)),
    "a layer as a list": lambda c: setattr(c, "past", (*c.past[:2], [*c.past[2]])),
    "a named pair": lambda c: setattr(c, "past", (*c.past[:2], Pair(*c.past[2]))),
    "one layer twice": lambda c: setattr(c, "past", (c.past[0], c.past[1], c.past[0])),
    "one tensor twice": lambda c: _past(c, 1, c.new(2), c.past[2][1]),
    "one memory twice": lambda c: _past(c, 1, c.new(2), c.past[2][1].view(3)),
    "the batch's tensor": lambda c: _past(c, 2, c.new(2), c.batch["x"]),
    "the batch's memory": lambda c: _past(c, 2, c.new(2), c.batch["x"].view(3)),
    "the batch's tensor behind": lambda c: setattr(c, "rest", (c.new(), c.batch["x"])),
    "one argument less": lambda c: setattr(c, "rest", c.rest[1:]),
    "one argument more": lambda c: setattr(c, "rest", (*c.rest, c.new())),
    "not doubled": lambda c: c.more.update(doubled=False),
    "one for true": lambda c: c.more.update(doubled=1),
    "other numbers": lambda c: c.more.update(numbers=(3, 0.0)),
    "a negative zero": lambda c: c.more.update(numbers=(1, -0.0)),
    "a whole zero": lambda c: c.more.update(numbers=(1, 0)),
    "more numbers": lambda c: c.more.update(numbers=(1, 0.0, 3)),
    "another name": lambda c: c.more.update(name="b"),
    "another keyword": lambda c: c.more.update(other=c.new()),
}


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, type) or isinstance(right, type):
        return left is right
    return all(
        torch.equal(a, b) and a.requires_grad == b.requires_grad
        for a, b in zip(left, right, strict=True)
    )


def _compiled(function: Any) -> Callable[..., torch.Tensor]:
    with config.patch(recompile_limit=64):
        backend = Backend("aten", Level.ATEN)
        return make_dispatcher(config.snapshot(), backend, Journal()).compiled(function)


def test_a_snapshot_answers_for_containers(made: list[list[Guard]]) -> None:
    compiled = _compiled(use)
    for seed in range(20):
        assert _same(Call(seed).of(compiled), Call(seed).of(use))
    assert made == [[]]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    compiled = _compiled(use)
    for seed in range(12):
        left, right = Call(seed), Call(seed)
        if seed % 3 == 2:
            CHANGES[change](left)
            CHANGES[change](right)
        assert _same(left.of(compiled), right.of(use)), seed


@pytest.mark.parametrize("seed", range(6))
def test_changes_in_any_order(seed: int) -> None:
    choose = random.Random(seed)
    compiled = _compiled(use)
    for number in range(60):
        left, right = Call(number), Call(number)
        for change in choose.sample([*CHANGES.values()], choose.choice((0, 0, 1, 1, 2))):
            for call in (left, right):
                try:
                    change(call)
                except LookupError:  # what it changes is not there any more
                    break
        assert _same(left.of(compiled), right.of(use)), number


@pytest.mark.parametrize("count", [3, 60])  # compared each with each, and by a table
@pytest.mark.parametrize("writes", [False, True])
def test_one_of_them_is_there_twice(count: int, writes: bool) -> None:
    def add_all(tensors: list[torch.Tensor]) -> torch.Tensor:
        if writes:
            tensors[0].add_(1)
        total = tensors[0] * (3 if tensors[0] is tensors[-1] else 2)
        for tensor in tensors[1:]:
            total = total + tensor
        return total

    compiled = _compiled(add_all)
    for seed in range(12):
        calls = []
        for _ in range(2):
            drawn = torch.Generator().manual_seed(seed)
            tensors = [torch.randn(3, generator=drawn) for _ in range(count)]
            if seed in (5, 9):
                tensors[-1] = tensors[seed // 9]
            if seed == 7:
                tensors[1] = tensors[0].view(3)
            calls.append(tensors)
        assert torch.equal(compiled(calls[0]), add_all(calls[1])), seed


def test_sizes_that_nothing_depends_on_are_free(made: list[list[Guard]]) -> None:
    def some(tensors: list[torch.Tensor], batch: dict[str, Any]) -> torch.Tensor:
        return tensors[1] * batch["x"] if "x" in batch else tensors[0]

    compiled = _compiled(some)
    for count in range(2, 14):
        tensors = [torch.full((3,), float(i)) for i in range(count)]
        batch = {**{f"k{i}": i for i in range(count % 3)}, "x": torch.ones(3) * count}
        assert torch.equal(compiled(tensors, batch), some(tensors, batch))
    assert made == [[]]
    with pytest.raises(IndexError):
        compiled(tensors[:1], batch)
    assert torch.equal(compiled(tensors, {"y": 1}), tensors[0])
    assert torch.equal(compiled(tensors, {"x": 2.0}), tensors[1] * 2)
    backwards = _compiled(lambda tensors: tensors[-1] + 1)
    for count in (3, 3, 3, 4, 2, 3):
        tensors = [torch.full((3,), float(i)) for i in range(count)]
        assert torch.equal(backwards(tensors), tensors[-1] + 1), count
