"""An object from outside that a frame takes out of the place that held it may have ended: weak
references to it say so, and its callbacks ran, as in eager."""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import braze


class _Thing:
    __slots__ = ("__weakref__", "inner", "value")

    def __init__(self) -> None:
        self.value = 1.0


class _World:
    """The only holder of a thing, and those that watch it."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.log: list[str] = []


# holder of a new thing, how it gives it up
_GIVE_UPS: dict[str, tuple[Callable[[_Thing], Any], str]] = {
    "pop": (lambda thing: [thing], "h.pop()"),
    "clear": (lambda thing: [thing, 1], "h.clear()"),
    "del item": (lambda thing: [thing], "del h[0]"),
    "slice": (lambda thing: [1, thing], "h[1:] = []"),
    "nested": (lambda thing: [(thing, 2)], "h[0] = None"),
    "deque": (lambda thing: collections.deque([thing]), "h.popleft()"),
    "dict pop": (lambda thing: {"k": thing}, "h.pop('k')"),
    "dict del": (lambda thing: {"k": thing}, "del h['k']"),
    "dict set": (lambda thing: {"k": thing}, "h['k'] = 3"),
    "dict update": (lambda thing: {"k": thing}, "h.update(k=3)"),
    "attribute": (lambda thing: SimpleNamespace(k=thing), "h.k = None"),
    "del attribute": (lambda thing: SimpleNamespace(k=thing), "del h.k"),
    "slot": (lambda thing: _slotted(thing), "h.inner = None"),
}
# what watches, before the call; what is asked behind the giving up
_QUESTIONS: dict[str, tuple[Callable[[_World, _Thing], Any], str]] = {
    "reference": (lambda world, thing: weakref.ref(thing), "watch() is None"),
    "method": (lambda world, thing: weakref.WeakValueDictionary(k=thing), "watch.get('k') is None"),
    "set": (lambda world, thing: weakref.WeakSet([thing]), "len(watch)"),
    "members": (lambda world, thing: weakref.WeakSet([thing]), "len(list(watch))"),
    "callback": (
        lambda world, thing: weakref.ref(thing, lambda _: world.log.append("gone")),
        "list(world.log)",
    ),
    "finalizer": (
        lambda world, thing: weakref.finalize(thing, world.log.append, "end"),
        "watch.alive",
    ),
}


def _slotted(thing: _Thing) -> _Thing:
    holder = _Thing()
    holder.inner = thing  # type: ignore[misc]
    return holder


def _outcome(held: str, asked: str, wrap: Callable[[Any], Any]) -> Any:
    make, give_up = _GIVE_UPS[held]
    watch, question = _QUESTIONS[asked]
    thing = _Thing()
    world = _World(make(thing))
    space: dict[str, Any] = {"world": world, "watch": watch(world, thing), "h": world.holder}
    del thing
    source = (
        f"def program(x):\n    y = x + 1\n    {give_up}\n    y = y * 2\n    return {question}, y"
    )
    exec(source, space)
    found, y = wrap(space["program"])(torch.ones(2))
    return found, y.tolist(), world.log


@pytest.mark.parametrize("held, asked", [*itertools.product(_GIVE_UPS, _QUESTIONS)])
def test_what_is_given_up_has_ended(held: str, asked: str) -> None:
    expected = _outcome(held, asked, lambda program: program)
    assert (
        _outcome(held, asked, lambda program: braze.compile(program, backend="eager")) == expected
    )


def test_reference_made_in_the_frame() -> None:
    def program(x: torch.Tensor, box: list[_Thing]) -> Any:
        thing = box.pop()
        reference = weakref.ref(thing)
        y = x + thing.value
        del thing
        return reference() is None, y

    found, _ = braze.compile(program, backend="eager")(torch.ones(2), [_Thing()])
    assert found


def test_what_is_held_on_stays_in_the_graph() -> None:
    thing = _Thing()
    reference, box = weakref.ref(thing), [1]

    def program(x: torch.Tensor) -> Any:
        box.append(2)
        return x * reference().value  # type: ignore[union-attr]

    assert torch.equal(braze.compile(program, fullgraph=True)(torch.ones(2)), torch.ones(2))
    assert box == [1, 2]
