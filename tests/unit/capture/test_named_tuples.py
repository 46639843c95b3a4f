"""Classes of named tuples that a compiled function makes, and that leave it."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError

FIELDS = ("one two", ["one", "two"], ("one", "two"), "one,_two", ["one", "class"])
DEFAULTS = (None, (), (3,), (None, 4.5))


def described(value: Any) -> Any:
    cls = type(value)
    names = ("__name__", "__qualname__", "__module__", "__doc__", "_fields", "__match_args__")
    said = [getattr(cls, name) for name in names]
    return [*said, cls._field_defaults, cls.__new__.__defaults__, cls.__bases__, *map(str, value)]


@pytest.mark.parametrize(("fields", "defaults"), [*itertools.product(FIELDS, DEFAULTS)])
def test_class_and_instances_leave(fields: Any, defaults: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = collections.namedtuple("made", fields, rename=True, defaults=defaults)
        first = made(x, x + 1)
        again = made._make(first) if defaults is None else first._replace(one=x * 2)
        return again, made(x.sin(), 2), made

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for _ in range(2):
        (*values, cls), (*eager, _) = compiled(x), program(x)
        assert all(type(value) is cls for value in values)
        assert list(map(described, values)) == list(map(described, eager))
        assert values[0] is not values[1] and values[0]._asdict().keys() == {*cls._fields}


def test_default_that_the_graph_computes() -> None:
    def program(x: torch.Tensor) -> Any:
        return collections.namedtuple("made", "one two", defaults=[x * 2])(x)

    made = braze.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert type(made)._field_defaults["two"] is made.two and made.two.tolist() == [2, 2]


def write_attribute(made: Any) -> None:
    made.extra = 1


def write_default(made: Any) -> None:
    made._field_defaults["two"] = 7


@pytest.mark.parametrize("change", [write_attribute, write_default])
def test_changed_class_breaks(change: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = collections.namedtuple("made", "one two", defaults=(1,))
        change(made)
        return made(x + 1)

    eager, found = (f(torch.ones(2)) for f in (program, braze.compile(program, backend="eager")))
    assert vars(type(found)).keys() == vars(type(eager)).keys()
    assert type(found)._field_defaults == type(eager)._field_defaults
    with pytest.raises(GraphBreakError):
        braze.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
