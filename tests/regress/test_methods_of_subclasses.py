"""Methods that a tensor subclass defines, and inherits `__torch_function__` beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from tests.surface.tensor_kinds import Plain


class Own(torch.Tensor):
    """Has methods of its own under names that tensors have."""

    def __add__(self, other: Any) -> Any:  # type: ignore[override]
        return "added"

    def __len__(self) -> int:
        return 7

    def sin(self) -> Any:
        return super().sin() * 2

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return 11


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_methods_of_a_subclass_hide_those_of_tensors(backend: str) -> None:
    asked: dict[str, Any] = {
        "x + 1": lambda x: (x.cos(), x + 1),
        "len(x)": lambda x: (x.cos(), len(x)),
        "x.sin()": lambda x: (x.cos(), x.sin()),
        "x.ndim": lambda x: (x.cos(), x.ndim),
    }
    x = torch.ones(3).as_subclass(Own)
    for text, ask in asked.items():
        expected, answered = ask(x), braze.compile(ask, backend=backend)(x)
        assert str(answered[1]) == str(expected[1]), text


def test_methods_that_a_subclass_gets_later_are_noticed() -> None:
    cls: Any = type("Later", (torch.Tensor,), {})
    x = torch.ones(3).as_subclass(cls)
    compiled = braze.compile(lambda x: (x.cos(), x + 1, x.dim(), x.ndim), backend="eager")
    assert type(compiled(x)[1]) is cls
    cls.__add__ = lambda self, other: "added"
    assert compiled(x)[1:] == ("added", 1, 1)
    cls.ndim = property(lambda self: 11)
    assert compiled(x)[1:] == ("added", 1, 11)


def test_subclasses_are_seen_by_has_torch_function() -> None:
    def ask(x: torch.Tensor) -> Any:
        asking = torch.overrides
        return (
            asking.has_torch_function((x,)),
            asking.has_torch_function_unary(x * 2),
            asking.has_torch_function_variadic(1, x),
            torch.nn.functional.layer_norm(x, (3,)),
        )

    compiled = braze.compile(ask, backend="eager", fullgraph=True)
    for x in (torch.ones(3), torch.ones(3).as_subclass(Plain)):
        assert compiled(x)[:3] == ask(x)[:3]
        assert type(compiled(x)[3]) is type(ask(x)[3])


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
@pytest.mark.filterwarnings("ignore")
def test_constructors_ask_no_subclass(make: Any) -> None:
    def ask(x: torch.Tensor) -> Any:
        return make(x), make(x, dtype=torch.float64), make(x * 2)

    x = torch.ones(3).as_subclass(Plain)
    found = braze.compile(ask, backend="eager", fullgraph=True)(x)
    assert [*map(type, found)] == [*map(type, ask(x))]
