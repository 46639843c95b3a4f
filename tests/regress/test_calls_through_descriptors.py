"""What C code calls of the program is interpreted: by `__call__` of bound methods and functions, by
`__get__` of properties; and half a descriptor, and copies that share dicts, are Python's."""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import pytest
import torch
from torch import nn

import braze


class Counter:
    """Counts its calls."""

    calls = 0

    def __call__(self, value: Any, *rest: Any) -> Any:
        self.calls += 1
        return value

    def read(self) -> int:
        self.calls += 1
        return 3

    def write(self, value: int) -> None:
        self.calls += value

    def remove(self) -> None:
        self.calls += 100


COUNTER = Counter()


def through_a_bound_method(x: Any) -> Any:
    return types.MethodType(COUNTER, x).__call__()


def through_a_call_of_a_call(x: Any) -> Any:
    return COUNTER.__call__.__call__.__call__(x)


def through_a_partial(x: Any) -> Any:
    return functools.partial(COUNTER).__call__(x)


def through_a_static_method(x: Any) -> Any:
    return staticmethod(COUNTER)(x)


def through_a_property(x: Any) -> Any:
    return x * property(Counter.read).__get__(COUNTER)


def through_a_written_property(x: Any) -> Any:
    property(None, Counter.write).__set__(COUNTER, 5)
    property(None, None, Counter.remove).__delete__(COUNTER)
    return x + 1


def through_a_builtin(x: Any) -> Any:
    return x + sorted.__call__([2, 1], key=COUNTER)[0]


@pytest.mark.parametrize(
    "program",
    [
        *(through_a_bound_method, through_a_call_of_a_call, through_a_partial),
        *(through_a_static_method, through_a_property, through_a_written_property),
        through_a_builtin,
    ],
)
def test_effects_of_each_call_are_kept(program: Any) -> None:
    x = torch.ones(2)
    COUNTER.calls = 0
    expected = [program(x + 1) + 0 for _ in range(3)]
    counted, COUNTER.calls = COUNTER.calls, 0
    compiled = braze.compile(lambda x: program(x + 1) + 0, backend="eager", fullgraph=True)
    for value in expected:
        torch.testing.assert_close(compiled(x), value)
    assert COUNTER.calls == counted


class Compared:
    def __eq__(self, other: object) -> bool:
        COUNTER.calls += 1
        return True

    __hash__ = None  # type: ignore[assignment]


def test_comparison_of_cells_asks_their_contents() -> None:
    cells = types.CellType(Compared()), types.CellType(Compared())
    compiled = braze.compile(lambda x: (x + 1, cells[0] == cells[1]), backend="eager")
    COUNTER.calls = 0
    assert [compiled(torch.ones(2))[1] for _ in range(3)] == [True] * 3
    assert COUNTER.calls == 3


class Deleter:
    def __get__(self, instance: Any, owner: Any = None) -> int:
        return 3

    def __delete__(self, instance: Any) -> None:
        instance.seen = "deleted"


class Setter:
    def __set__(self, instance: Any, value: Any) -> None:
        instance.seen = value


class Halves:
    deleter = Deleter()
    setter = Setter()


@pytest.mark.parametrize("from_outside", [False, True])
def test_half_a_descriptor_refuses_the_other_half(from_outside: bool) -> None:
    outside = Halves()

    def step(x: Any) -> Any:
        held = outside if from_outside else Halves()
        held.__dict__["deleter"] = 7
        said = [held.deleter]
        for change in (
            lambda: setattr(held, "deleter", 1),
            lambda: delattr(held, "setter"),
            lambda: delattr(held, "deleter"),
        ):
            try:
                said.append(change())
            except AttributeError as error:
                said.append(str(error))
        return x + 1, said, sorted(vars(held))

    compiled = braze.compile(step, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1:] == step(torch.ones(2))[1:]
    assert step(torch.ones(2))[1] == [3, "__set__", "__delete__", None]


class Members(frozenset[int]): ...


def test_frozen_set_of_a_subclass_is_plain() -> None:
    members = Members([1, 2])
    compiled = braze.compile(lambda x: (x + 1, frozenset(members)), backend="eager", fullgraph=True)
    assert type(compiled(torch.ones(2))[1]) is frozenset
    assert compiled(torch.ones(2))[1] == {1, 2}


class Registered:
    def __init_subclass__(cls, **named: Any) -> None:
        KINDS.append(cls)


KINDS: list[Any] = []


@pytest.mark.parametrize("bases", [(), (Registered,)])
def test_class_made_behind_a_break_is_of_its_module(bases: tuple[type, ...]) -> None:
    def step(x: Any) -> Any:
        print(end="")
        made = type("Made", bases, {"factor": 2})
        return x * made.factor, made

    made = braze.compile(step, backend="eager")(torch.ones(2))[1]
    assert made.__module__ == __name__ == step(torch.ones(2))[1].__module__


def test_shallow_copy_of_a_module_has_its_parameters() -> None:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, out: out * SCALE[0])

    def step(x: Any) -> Any:
        made = copy.copy(layer)
        return made.weight is layer.weight, made(x)

    compiled = braze.compile(step, backend="eager", fullgraph=True)
    for scale in (1.0, 3.0):
        SCALE[0] = scale
        same, value = compiled(torch.ones(2, 3))
        assert same
        torch.testing.assert_close(value, step(torch.ones(2, 3))[1])
    layer._forward_hooks.clear()
    torch.testing.assert_close(compiled(torch.ones(2, 3))[1], step(torch.ones(2, 3))[1])


SCALE = [1.0]


def test_copied_partial_reads_its_keywords() -> None:
    part = functools.partial(lambda v, k: v * k, k=2)
    compiled = braze.compile(lambda x: copy.copy(part)(x), backend="eager")
    for factor in (2, 3, 5):
        part.keywords["k"] = factor
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), float(factor)))


def test_state_of_a_tensor_is_its_own() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.tag = 2  # type: ignore[attr-defined]
    compiled = braze.compile(lambda x: (x + copy.copy(weight), weight.__getstate__()))
    _, state = compiled(torch.ones(3))
    assert state == weight.__getstate__() == {"tag": 2}
