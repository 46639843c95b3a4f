"""What a compiled program may contain."""

from __future__ import annotations

import collections
import enum
import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import braze
from tests.guides.graphs import Counter, in_one_graph

BACKENDS = ["braze", "eager", "aot_eager", "own"]


def backend_of(name: str) -> Any:
    return Counter() if name == "own" else name


@pytest.mark.parametrize("backend", BACKENDS)
def test_item(backend: str) -> None:  # 000-18b
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        return x * n

    compiled = braze.compile(f, backend=backend_of(backend), fullgraph=True)
    for scale in (1, 2, 3):
        x = torch.arange(4) * scale
        torch.testing.assert_close(compiled(x), f(x))
        torch.testing.assert_close(compiled(x.float()), f(x.float()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tolist(backend: str) -> None:
    def f(x: torch.Tensor, sizes: torch.Tensor) -> Any:
        return [part * 2 for part in torch.split(x, sizes.tolist())]

    compiled = braze.compile(f, backend=backend_of(backend), fullgraph=True)
    x = torch.randn(6)
    for sizes in ([1, 2, 3], [2, 2, 2], [4, 1, 1]):
        torch.testing.assert_close(compiled(x, torch.tensor(sizes)), f(x, torch.tensor(sizes)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nonzero(backend: str) -> None:  # 000-19b, D-02
    def f(x: torch.Tensor) -> Any:
        return torch.nonzero(x > 0) * 2, x[x > 0] + 1, torch.masked_select(x, x < 0).sum()

    compiled = braze.compile(f, backend=backend_of(backend), fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(9)
        torch.testing.assert_close(compiled(x), f(x))


def test_lazy_modules() -> None:
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    x = torch.randn(2, 5)
    found = braze.compile(lazy)(x)
    assert type(lazy[0]) is nn.Linear and lazy[0].in_features == 5
    torch.testing.assert_close(found, lazy(x))
    in_one_graph(lazy, x)


def test_lazy_modules_of_the_frames_values() -> None:
    lazy = nn.LazyLinear(4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return lazy(x.relu() * 2) + 1

    x = torch.randn(2, 5)
    found = braze.compile(f)(x)
    torch.testing.assert_close(found, f(x))


def test_hooks_that_stay() -> None:
    """On what comes from outside, without a break; and on what is made inside."""
    seen: list[torch.Tensor] = []

    def f(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: gradient * 3)
        return (x * scale).sin()

    def of_intermediate(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: seen.append(gradient) or gradient * 3)
        return y.sin()

    x = torch.randn(4, requires_grad=True)
    braze.compile(f, fullgraph=True)(x, torch.tensor(2.0)).sum().backward()
    torch.testing.assert_close(x.grad, 6 * (x * 2).cos())
    x = torch.randn(4, requires_grad=True)
    braze.compile(of_intermediate)(x).sum().backward()
    torch.testing.assert_close(x.grad, 6 * (x * 2).cos())
    assert len(seen) == 1


def test_module_hooks_that_the_frame_sets() -> None:
    model = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        handle = model.register_forward_hook(lambda module, given, made: made * 2)
        result = model(x)
        handle.remove()
        return result + model(x)

    x = torch.randn(2, 3)
    torch.testing.assert_close(in_one_graph(f, x), f(x))


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_named_tuples() -> None:
    Local = collections.namedtuple("Local", "a b")

    def f(x: torch.Tensor) -> Any:
        Inside = collections.namedtuple("Inside", ["p", "q"])
        made = Inside(x + 1, q=x * 2)
        return Point(made.p, made.q), Local(*made)._replace(a=x), made._asdict()["q"]

    x = torch.randn(3)
    point, local, q = in_one_graph(f, x)
    assert type(point) is Point and type(local) is Local
    torch.testing.assert_close((point, local, q), f(x))


def test_classes_made_inside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        class Scale:
            factor = 3

            def __init__(self, y: torch.Tensor) -> None:
                self.y = y

            @property
            def scaled(self) -> torch.Tensor:
                return self.y * self.factor

        class Shifted(Scale):
            @property
            def scaled(self) -> torch.Tensor:
                return super().scaled + 1

        return Shifted(x).scaled

    x = torch.randn(3)
    torch.testing.assert_close(in_one_graph(f, x), x * 3 + 1)


def test_writes_through_data() -> None:
    weight = nn.Parameter(torch.ones(3))

    def f(x: torch.Tensor) -> torch.Tensor:
        weight.data.mul_(0.5).add_(1)
        return x * weight

    x = torch.randn(3)
    expected = [1.5, 1.75, 1.875]
    compiled = braze.compile(f, fullgraph=True)
    for value in expected:
        torch.testing.assert_close(compiled(x), x * value)
    torch.testing.assert_close(weight.data, torch.full((3,), 1.875))

    def assigned(x: torch.Tensor) -> torch.Tensor:
        weight.data = x.detach() + 1
        return x * 2

    torch.testing.assert_close(in_one_graph(assigned, x), x * 2)
    torch.testing.assert_close(weight.data, x + 1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_layers(kind: Any, layers: int) -> None:
    torch.manual_seed(0)
    model = kind(5, 7, num_layers=layers, batch_first=True, bidirectional=layers == 2)
    x = torch.randn(3, 6, 5, requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(in_one_graph(model, x), model(x))
    expected = model(x)[0]
    wanted = torch.autograd.grad(expected.square().sum(), [x, *model.parameters()])
    result = in_one_graph(model, x)[0]
    found = torch.autograd.grad(result.square().sum(), [x, *model.parameters()])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_dicts_keyed_by_objects() -> None:
    class Key:
        pass

    first, second = Key(), Key()
    layer = nn.Linear(2, 2)
    table: dict[Any, Any] = {first: 2.0, second: torch.ones(2), layer: "layer", Key: 3}

    def f(x: torch.Tensor) -> torch.Tensor:
        local = {first: x, layer: x + 1}
        y = local[first] * table[first] + table[second] + local[layer] * table[Key]
        return y + len(table[layer])

    x = torch.randn(2)
    torch.testing.assert_close(in_one_graph(f, x), f(x))


class Mode(enum.Enum):
    SIN = "sin"
    COS = "cos"


def test_members_of_enumerations() -> None:
    def f(x: torch.Tensor, name: str) -> torch.Tensor:
        total = x
        for key, member in Mode.__members__.items():
            total = total + (x.sin() if member is Mode.SIN else x.cos()) * len(key)
        return total * len(Mode) + (1 if Mode[name] is Mode.SIN else 2) + (Mode("cos") in Mode)

    x = torch.randn(3)
    torch.testing.assert_close(in_one_graph(f, x, "COS"), f(x, "COS"))


def test_caches_on_sizes() -> None:
    @functools.cache
    def half(n: int) -> int:
        return max(n // 2, 1)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x[: half(x.shape[0])] * half(x.shape[1])

    compiled = braze.compile(f, fullgraph=True)
    for shape in ((4, 3), (6, 3), (9, 5), (4, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x))


def test_copies_of_modules() -> None:
    import copy

    model = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(model)(x) + copy.copy(x)

    x = torch.randn(2, 3)
    torch.testing.assert_close(braze.compile(f)(x), f(x))
