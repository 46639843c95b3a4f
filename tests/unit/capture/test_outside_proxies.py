"""Read-only views of dicts from outside: their entries are guarded, and read without a break."""

from __future__ import annotations

import collections
import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Table = dict[str, Any]


def by_key(view: Any, x: torch.Tensor) -> Any:
    return x * view["a"]


def by_length(view: Any, x: torch.Tensor) -> Any:
    return x * len(view)


def by_membership(view: Any, x: torch.Tensor) -> Any:
    return x * (2 if "c" in view else 3)


def by_iteration(view: Any, x: torch.Tensor) -> Any:
    for name in view:
        x = x * (len(name) + ord(name[0]))
    return x, len(list(view)), len([*reversed(view)])


def by_items(view: Any, x: torch.Tensor) -> Any:
    for name, value in view.items():
        x = x * value + len(name)
    return x


def by_values(view: Any, x: torch.Tensor) -> Any:
    return x + sum(view.values())


def by_get(view: Any, x: torch.Tensor) -> Any:
    return x * view.get("a") + view.get("c", 1)


def by_copies(view: Any, x: torch.Tensor) -> Any:
    return x * view.copy()["a"] + dict(view)["b"] + {**view, "d": 2}["d"]


def by_missing_key(view: Any, x: torch.Tensor) -> Any:
    try:
        return x * view["c"]
    except KeyError as error:
        return x, len(error.args[0])


READS = (
    by_key,
    by_length,
    by_membership,
    by_iteration,
    by_items,
    by_values,
    by_get,
    by_copies,
    by_missing_key,
)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
def test_reads_are_guarded(read: Callable[..., Any], kind: type) -> None:
    table: Table = kind(a=2.0, b=torch.ones(2))
    view = types.MappingProxyType(table)

    def f(x: torch.Tensor) -> Any:
        return read(view, x)

    compiled = braze.compile(f, fullgraph=True, recompile_limit=20)
    x = torch.arange(2.0)
    torch.testing.assert_close(compiled(x), f(x))
    changes: tuple[Callable[[], object], ...] = (
        lambda: table.update(a=5.0),
        lambda: table.update(b=torch.zeros(2)),
        lambda: table.update(c=3.0),
        lambda: table.update(a=table.pop("a")),  # behind the others
        lambda: table.pop("c"),
    )
    for change in changes:
        change()
        torch.testing.assert_close(compiled(x), f(x))


def test_writes_show_in_views() -> None:
    table: Table = {"a": 2.0}
    view = types.MappingProxyType(table)

    def written_before(x: torch.Tensor) -> Any:
        table["a"] = table["a"] + 1
        return x * view["a"]

    def written_behind(x: torch.Tensor) -> Any:
        first = x * view["a"]
        table["a"] = 7.0
        return first, x * view["a"]

    x = torch.ones(2)
    torch.testing.assert_close(braze.compile(written_before)(x), x * 3)
    table["a"] = 2.0
    torch.testing.assert_close(braze.compile(written_behind)(x), (x * 2, x * 7))


def test_the_view_itself_is_returned() -> None:
    view = types.MappingProxyType({"a": 2.0})

    def f(x: torch.Tensor) -> Any:
        return x * view["a"], view

    assert braze.compile(f)(torch.ones(2))[1] is view


def test_decorators_that_bind_signatures() -> None:
    """As libraries that check annotations do."""

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name, value in bound.arguments.items():
                kind = signature.parameters[name].annotation
                if not isinstance(value, kind):
                    raise TypeError(f"{name} is no {kind.__name__}")
            return function(*bound.args, **bound.kwargs)

        return call

    def scaled(x: torch.Tensor, n: int = 2) -> Any:
        return x.sin() * n

    scaled.__annotations__ = {"x": torch.Tensor, "n": int}
    f = checked(scaled)
    compiled = braze.compile(f, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    torch.testing.assert_close(compiled(x, n=3), x.sin() * 3)
    with pytest.raises(TypeError, match="n is no int"):
        compiled(x, "two")
