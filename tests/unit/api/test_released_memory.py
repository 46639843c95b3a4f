"""The last reference to a module, a parameter or an input frees its memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import braze
from tests.recorded import recorded
from tests.unit.api.ways_in import WAYS_OF_MODULES


def _straight(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x).relu()


def _broken(module: nn.Module, x: torch.Tensor) -> Any:
    y = module(x)
    print(end="")
    return y.relu()


def _branching(module: nn.Module, x: torch.Tensor) -> Any:
    return x * 2 if module(x).sum() > 0 else module(x)


def _catching(module: nn.Module, x: torch.Tensor) -> Any:
    try:
        x.view(7, 7)
    except RuntimeError:
        return module(x)


def _items(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for step in range(3):
        try:
            yield x * step
        finally:
            x.sum()


def _suspending(module: nn.Module, x: torch.Tensor) -> Any:
    items = _items(module(x))
    next(items)
    return next(items)


def _of_arrays(module: nn.Module, x: torch.Tensor) -> Any:
    return np.sin(x.detach().numpy()) + 1


def _closing_over(module: nn.Module, x: torch.Tensor) -> Any:
    return (lambda y: module(y) + x)(x)


def _hooking(module: nn.Module, x: torch.Tensor) -> Any:
    y = module(x)
    y.register_hook(lambda gradient: gradient * 2)
    return y


def _counting(module: Any, x: torch.Tensor) -> Any:
    module.count = getattr(module, "count", 0) + 1
    return module(x) * module.count


PROGRAMS = (
    *(_straight, _broken, _branching, _catching, _suspending),
    *(_of_arrays, _closing_over, _hooking, _counting),
)


class _Backend:
    """A user's backend that keeps nothing of the graph module."""

    def __call__(self, module: Any, inputs: Any) -> Callable[..., Any]:
        module.forward = None
        return lambda *args: (torch.ones(4, 4, requires_grad=True),)


@pytest.fixture
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch._dynamo.reset()  # else it gives a module of the class what was compiled for another


def _references(*objects: Any) -> list[weakref.ref[Any]]:
    return [weakref.ref(one) for one in objects]


def _alive(references: list[weakref.ref[Any]]) -> list[int]:
    return [index for index, one in enumerate(references) if one() is not None]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_arguments_go_without_a_collection(
    program: Callable[..., Any], backend: str, _no_collections: None
) -> None:
    """Modules and tensors that a function was given, at the compile and at later calls."""
    with recorded() as journal:
        compiled = braze.compile(program, backend=backend)
        for trained in (True, False, True):
            module, x = nn.Linear(4, 4), torch.rand(4, 4, requires_grad=True)
            references = _references(module, module.weight, x)
            result = compiled(module, x)
            if trained and isinstance(result, torch.Tensor):
                result.sum().backward()
            del module, x, result
            assert not _alive(references)
    assert any(record.outcome == "graph" for record in journal.records())


def test_backend_without_the_module_frees_it(_no_collections: None) -> None:
    compiled = braze.compile(_straight, backend=_Backend())
    module, x = nn.Linear(4, 4), torch.rand(4, 4)
    references = _references(module, module.weight, x)
    compiled(module, x)
    del module, x
    assert not _alive(references)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class _BrokenModel(_Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _broken(self.linear, x)  # type: ignore[no-any-return]


def _hooked_model() -> nn.Module:
    made = _Model()
    made.register_forward_hook(lambda module, args, result: result * 2)
    made.linear.weight.register_hook(lambda gradient: gradient * 2)
    return made


def _by_torch(module: nn.Module) -> Any:
    return torch.compile(module, backend="braze")


@pytest.mark.parametrize("reset", [False, True], ids=["", "reset"])
@pytest.mark.parametrize("make", [_Model, _BrokenModel, _hooked_model])
@pytest.mark.parametrize(
    "way",
    [WAYS_OF_MODULES["compile"], WAYS_OF_MODULES["in place"], _by_torch],
    ids=["compile", "in place", "torch.compile"],
)
def test_one_collection_frees_a_compiled_module(
    way: Callable[[Any], Any], make: Callable[[], Any], reset: bool, _no_collections: None
) -> None:
    with recorded() as journal:
        module, x = make(), torch.rand(3, 4, requires_grad=True)
        compiled = way(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            compiled(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert any(record.outcome == "graph" for record in journal.records())
        references = _references(compiled, module, module.linear, module.linear.weight, x)
        if reset:
            braze.reset()
        del compiled, module, x, optimizer
        gc.collect()
        assert not _alive(references)
