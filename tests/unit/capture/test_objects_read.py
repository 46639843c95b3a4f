"""What a program reads of containers and classes of its own: dicts keyed by objects, strings of
subclasses, subclasses of a class, read-only views, and modules whose dicts are of another class."""

from __future__ import annotations

import collections
import functools
import inspect
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class Plain:
    """Hashes and compares as `object` does."""


class Equal:
    """Compares by what it holds."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


KEYS: tuple[Callable[[], Any], ...] = (
    lambda: typing.TypeVar("made"),  # type: ignore[misc]
    Plain,
    object,
    lambda: functools.partial(print),
    lambda: types.SimpleNamespace,
    lambda: torch.nn.Linear(1, 1),
    lambda: lambda: None,
)


@pytest.mark.parametrize("make", KEYS)
def test_dicts_keyed_by_objects(make: Callable[[], Any]) -> None:
    """Keys are found by identity; other keys, another order and other values are seen."""

    def program(held: dict[Any, torch.Tensor], key: Any, x: torch.Tensor) -> Any:
        found = held.get(key)
        return (x if found is None else x + found), key in held, len(held)

    options = {"recompile_limit": 64}
    compiled = braze.compile(program, backend="eager", fullgraph=True, options=options)
    first, second, other = make(), make(), make()
    one, two = torch.ones(2), torch.full((2,), 2.0)
    dicts: list[dict[Any, torch.Tensor]] = [
        {first: one, second: two},
        {second: one, first: two},
        {second: one},
        {first: two, other: one},
        {first: one, "text": two},
    ]
    for held in dicts * 2:
        for key in (first, second, other):
            (ours, *rest), (eager, *others) = compiled(held, key, one), program(held, key, one)
            torch.testing.assert_close(ours, eager)
            assert rest == others


def test_keys_that_compare_by_value() -> None:
    def program(held: dict[Any, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return x + held[Equal(1)]

    compiled, x = braze.compile(program, backend="eager", fullgraph=True), torch.ones(2)
    for number in (1.0, 2.0):
        held = {Equal(1): torch.full((2,), number)}
        torch.testing.assert_close(compiled(held, x), x + number)
    with pytest.raises(KeyError):
        compiled({Equal(2): x}, x)


class Text(str):
    """A string with a class."""


class Backwards(str):
    """A string that is iterated otherwise."""

    def __iter__(self) -> Any:
        return reversed(str(self))


@pytest.mark.parametrize("cls", [Text, Backwards])
def test_strings_of_subclasses_are_iterated(cls: Any) -> None:
    space = {"text": cls("123")}

    def program(x: torch.Tensor) -> Any:
        return [x + int(letter) for letter in space["text"]], list(space["text"])

    compiled = braze.compile(program, backend="eager", fullgraph=cls is Text)
    for text in ("123", "321", ""):
        space["text"] = cls(text)
        (ours, letters), (eager, others) = compiled(torch.ones(1)), program(torch.ones(1))
        torch.testing.assert_close(ours, eager)
        assert letters == others


def test_subclasses_are_asked_at_each_call() -> None:
    class Base:
        pass

    def program(x: torch.Tensor) -> Any:
        found = Base.__subclasses__()
        return x + len(found), found

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    kept = []
    for count in range(3):
        ours, eager = compiled(torch.zeros(1)), program(torch.zeros(1))
        assert ours[0].item() == count and ours[1] == eager[1] == kept
        kept.append(type("Sub", (Base,), {}))


def test_subclasses_beside_a_class_made_here() -> None:
    class Base:
        pass

    def program(x: torch.Tensor) -> torch.Tensor:
        class Sub(Base):
            pass

        return x + len(Sub.__mro__) + len(Base.__subclasses__())

    eager = program(torch.zeros(1)).item()
    assert braze.compile(program, backend="eager")(torch.zeros(1)).item() >= eager


def test_read_only_views_leave() -> None:
    def program(x: torch.Tensor) -> Any:
        held = {"x": x + 1}
        view = types.MappingProxyType(held)
        held["y"] = x + 2
        return view, held, inspect.signature(test_read_only_views_leave).parameters

    view, held, parameters = braze.compile(program, backend="eager", fullgraph=True)(torch.ones(1))
    assert type(view) is types.MappingProxyType and view == held and not parameters
    held["z"] = 3
    assert view["z"] == 3


class Counting(collections.OrderedDict):
    """Counts what is taken."""

    def __init__(self, counts: list[str], *given: Any) -> None:
        super().__init__(*given)
        self.counts = counts

    def __getitem__(self, key: str) -> Any:
        self.counts.append(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("kind", ["_parameters", "_buffers", "_modules"])
def test_modules_with_dicts_of_other_classes(kind: str) -> None:
    counts: list[str] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.scale = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("moved", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> Any:
            missing = hasattr(self, "missing")
            return self.inner(x) * self.scale + self.moved, missing

    model = Model()
    setattr(model, kind, Counting(counts, vars(model)[kind]))
    compiled = braze.compile(model, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        counts.clear()
        expected = model(x)
        eager = counts.copy()
        counts.clear()
        torch.testing.assert_close(compiled(x), expected)
        assert counts == eager and eager
    model.missing = torch.nn.Parameter(torch.ones(2))
    assert model(x)[1]
    torch.testing.assert_close(compiled(x), model(x))


class Own(threading.local):
    """Thread-local data with a method."""

    def put(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize("cls", [threading.local, Own])
def test_thread_local_data_is_written_in_its_thread(cls: Any) -> None:
    def program(local: Any, x: torch.Tensor) -> Any:
        before = getattr(local, "value", None)
        local.value = x + 1
        if hasattr(local, "put"):
            local.put(local.value * 2)
        return before, local.value

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    found: list[Any] = []

    def run(function: Any, local: Any) -> None:
        for number in range(3):
            before, value = function(local, torch.full((1,), float(number)))
            assert local.value is value
            found.append((None if before is None else before.item(), value.item()))

    for function in (program, compiled):
        local = cls()
        run(function, local)
        thread = threading.Thread(target=run, args=(function, local))
        thread.start()
        thread.join()
    assert len(found) == 12 and found[:6] == found[6:]
