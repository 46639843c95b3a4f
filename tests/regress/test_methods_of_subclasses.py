"""Methods that a tensor subclass defines, and inherits `__torch_function__` beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.errors import BrazeWarning
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


_USES: dict[str, Any] = {
    "list": lambda x: list(x),
    "enumerate": lambda x: list(enumerate(x)),
    "zip": lambda x: list(zip(x, [1, 2])),
    "map": lambda x: list(map(str, x)),
    "sorted": lambda x: [float(item) for item in sorted(x)],
    "reversed": lambda x: list(reversed(x)),
    "for": lambda x: [item for item in x],  # noqa: C416
    "unpacked": lambda x: [*x],
    "len": lambda x: len(x),
    "smaller than": lambda x: 3 > x,  # noqa: SIM300
    "larger than": lambda x: 3 < x,  # noqa: SIM300
    "most": lambda x: 3 <= x,  # noqa: SIM300
    "least": lambda x: 3 >= x,  # noqa: SIM300
    "truth": lambda x: bool(x[:1]),
    "in": lambda x: 7 in x,
    "integer": lambda x: int(x[0]),
    "first": lambda x: x[0],
}
_SPECIAL: dict[str, Any] = {
    "__iter__": lambda self: iter([7]),
    "__reversed__": lambda self: iter([9]),
    "__len__": lambda self: 42,
    "__getitem__": lambda self, index: torch.tensor([5.0]) if index == 0 else torch.zeros(1),
    "__lt__": lambda self, other: "lt",
    "__gt__": lambda self, other: "gt",
    "__le__": lambda self, other: "le",
    "__ge__": lambda self, other: "ge",
    "__bool__": lambda self: False,
    "__contains__": lambda self, item: item == 7,
    "__int__": lambda self: 11,
    "unbind": lambda self, dim=0: (1, 2),
}


@pytest.mark.parametrize("name", _SPECIAL)
def test_special_methods_of_a_subclass_are_used(name: str) -> None:
    """By each use of them, at sizes that change."""
    cls = type("Special", (torch.Tensor,), {name: _SPECIAL[name]})
    for text, use in _USES.items():
        compiled = braze.compile(use, backend="eager")
        for size in (3, 4, 5):
            x = torch.arange(1.0, size + 1).as_subclass(cls)  # type: ignore[type-var]
            assert _answer(compiled, x) == _answer(use, x), text


def _answer(function: Any, x: torch.Tensor) -> str:
    try:
        found = function(x)
        return f"{type(found).__name__} {found!r}"
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("is_parameter", [False, True])
def test_attributes_of_one_tensor_hide_those_of_its_class(
    is_argument: bool, is_parameter: bool
) -> None:
    base: type = torch.nn.Parameter if is_parameter else torch.Tensor
    cls: Any = type("Scaled", (base,), {"scale": 2.0, "method": lambda self: 1.0})
    tensor: Any = torch.ones(2).as_subclass(cls)
    holder = torch.nn.Module()
    holder.tensor = tensor
    compiled = braze.compile(
        (lambda x, w: x * w.scale * w.method())
        if is_argument
        else (lambda x, _: x * holder.tensor.scale * holder.tensor.method()),
        fullgraph=True,
    )
    ask = lambda: compiled(torch.ones(1), tensor).item()  # noqa: E731
    assert ask() == 2
    tensor.scale = 7.0
    assert ask() == 7
    tensor.method = lambda: 3.0
    assert ask() == 21
    del tensor.scale
    assert ask() == 6


def test_a_method_of_one_tensor_is_called() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.mul = lambda other: "own"  # type: ignore[method-assign]
    assert braze.compile(lambda w: w.mul(2))(weight) == "own"


@pytest.mark.parametrize("name", ["is_leaf", "dtype", "shape", "requires_grad", "grad"])
def test_metadata_that_a_subclass_answers_itself(name: str) -> None:
    """It was taken for the tensor's, and a guard's text could not be read."""
    cls: Any = type("Answers", (torch.Tensor,), {name: property(lambda self: "own")})
    use = lambda x: (getattr(x, name), x.ndim)  # noqa: E731
    compiled = braze.compile(use)
    with pytest.warns(BrazeWarning, match=f"with a {name} of its own"):
        for size in (2, 3, 4):
            assert compiled(torch.ones(size).as_subclass(cls)) == ("own", 1)


def test_subclasses_that_are_called_or_asked_for_what_they_lack() -> None:
    class Callable(torch.Tensor):
        def __call__(self, factor: float) -> Any:
            return self * factor

        def __getattr__(self, name: str) -> Any:
            if name == "offset":
                return 3.0
            raise AttributeError(name)

    def program(x: Any) -> Any:
        return x(2.0) + x.offset, getattr(x, "other", 5)

    x: Any = torch.ones(2).as_subclass(Callable)
    compiled = braze.compile(program, fullgraph=True)
    for _ in range(2):
        found, default = compiled(x)
        assert type(found) is Callable and found.tolist() == [5.0, 5.0] and default == 5
    x.offset = 1.0
    assert compiled(x)[0].tolist() == [3.0, 3.0]
