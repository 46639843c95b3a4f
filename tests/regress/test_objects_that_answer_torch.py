"""Objects that are no tensors and have a `__torch_function__`: it runs as often as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

LOG: list[str] = []


class Like:
    """A wrapper of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        LOG.append(function.__name__)
        flat = args[0] if isinstance(args[0], (list, tuple)) else args
        plain = [each.tensor if isinstance(each, cls) else each for each in flat]
        return function(plain, *args[1:]) if flat is not args else function(*plain)


class Plain:
    """An instance that is given one of its own later."""


def _answer(function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    LOG.append("instance")
    return torch.zeros(3)


class Answering:
    """A class that is an argument itself."""

    __torch_function__ = staticmethod(_answer)


LIKE = Like(torch.ones(3))
OBJECT = Plain()
STEPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "function": lambda x: torch.add(x, LIKE) * 2,
    "method": lambda x: x.add(LIKE) * 2,
    "operator": lambda x: (x + LIKE) * 2,
    "reflected": lambda x: torch.mul(LIKE, x) * 2,
    "sequence": lambda x: torch.cat([x, LIKE]) * 2,
    "python": lambda x: torch.nn.functional.relu(LIKE) + x,
    "instance": lambda x: torch.add(x, OBJECT) * 2,
    "class": lambda x: torch.add(x, Answering) * 2,
}


def _play(run: Callable[[torch.Tensor], Any]) -> list[str]:
    LIKE.tensor = torch.ones(3)
    vars(OBJECT)["__torch_function__"] = _answer
    LOG.clear()
    for number in range(4):
        if number == 2:
            LIKE.tensor = torch.zeros(3)
            del vars(OBJECT)["__torch_function__"]
        try:
            LOG.append(str(run(torch.full((3,), 2.0)).tolist()))
        except (TypeError, AttributeError) as error:
            LOG.append(type(error).__name__)
    return list(LOG)


@pytest.mark.filterwarnings("ignore:Defining your `__torch_function__`")
@pytest.mark.parametrize("name", STEPS)
def test_override_runs_as_in_eager(name: str) -> None:
    braze.reset()
    assert _play(braze.compile(STEPS[name], backend="eager")) == _play(STEPS[name])


def test_override_that_comes_later_is_noticed() -> None:
    class Later:
        pass

    owner = Later()

    def step(x: torch.Tensor) -> Any:
        try:
            return torch.add(x, owner)
        except TypeError:
            return x.sin()

    run = braze.compile(step, backend="eager")
    x = torch.ones(3)
    assert torch.equal(run(x), x.sin())
    owner.__torch_function__ = _answer  # type: ignore[attr-defined]
    assert torch.equal(run(x), torch.zeros(3))
    del owner.__torch_function__  # type: ignore[attr-defined]
    Later.__torch_function__ = staticmethod(_answer)  # type: ignore[attr-defined]
    assert torch.equal(run(x), torch.zeros(3))


LEGACY = ["HalfTensor", "FloatTensor", "DoubleTensor", "LongTensor", "IntTensor", "BoolTensor"]


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_type_as_an_argument_is_no_override(name: str) -> None:
    kind = getattr(torch, name)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.type(kind)
        return y, x.type(y.type())

    x = torch.tensor([0.0, 1.0, 2.0])
    compiled = braze.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
