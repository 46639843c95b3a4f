"""`torch.utils.checkpoint`, both kinds: eager's gradients and random numbers, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import braze
from tests.unit.capture.test_backward import breaks_of


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 8)
        self.rest = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=self.reentrant)
        return checkpoint_sequential(self.rest, 2, hidden * 2, use_reentrant=self.reentrant)


def trained(model: nn.Module, step: Callable[..., Any], count: int = 3) -> list[Any]:
    torch.manual_seed(0)
    found = []
    for _ in range(count):
        loss = step(model, torch.randn(5, 6))
        found += [loss.detach(), torch.rand(1), *[p.grad for p in model.parameters()]]
    return found


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("whole", [False, True], ids=["outer backward", "whole step"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_gradients_and_random_numbers(reentrant: bool, whole: bool) -> None:
    torch.manual_seed(1)
    model = Checkpointed(reentrant)
    twin = copy.deepcopy(model)

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().sum()

    def eager(model: nn.Module, x: Tensor) -> Tensor:
        loss = model(x).square().sum()
        if loss.requires_grad:
            loss.backward()
        return loss.detach()

    compiled = braze.compile(eager if whole else loss_of, fullgraph=whole)

    def compiled_step(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = compiled(model, x if whole else x.requires_grad_())
        if not whole:
            loss.backward()
        return loss

    def eager_step(model: nn.Module, x: Tensor) -> Tensor:
        return eager(model, x if whole else x.requires_grad_())

    expected = trained(model, eager_step)
    actual = trained(twin, compiled_step)
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b)
    if whole:
        assert breaks_of(compiled) == []


WEIGHT = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
NORM = nn.BatchNorm1d(4)
COUNTS = [0]
BUFFER = torch.zeros(1)
NOTED: list[str] = []


class Noting:
    def __enter__(self) -> None:
        NOTED.append("in")

    def __exit__(self, *exception: object) -> None:
        NOTED.append("out")


def counting(x: Tensor) -> Tensor:
    COUNTS[0] += 1
    return (x @ WEIGHT).tanh()


def writing(x: Tensor) -> Tensor:
    BUFFER.add_(1)
    return (x @ WEIGHT).tanh()


def dropping(x: Tensor) -> Tensor:
    return nn.functional.dropout((x @ WEIGHT).tanh(), 0.5)


def raising(x: Tensor) -> Tensor:
    raise LookupError("of the block")


BLOCKS = (counting, writing, dropping, raising, NORM)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "no state of generators": {"use_reentrant": False, "preserve_rng_state": False},
    "contexts": {"use_reentrant": False, "context_fn": lambda: (Noting(), Noting())},
    "debug": {"use_reentrant": False, "debug": True},
    "unknown": {"use_reentrant": False, "nothing": 1},
}


def left_by(step: Callable[[Tensor], Tensor]) -> Any:
    """Gradients, and all that a block may have changed."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    COUNTS[0], WEIGHT.grad = 0, None
    BUFFER.zero_()
    NOTED.clear()
    NORM.reset_running_stats()
    torch.manual_seed(2)
    try:
        step(x).sin().sum().backward()
        found: Any = [None if t.grad is None else t.grad.sum().item() for t in (x, WEIGHT)]
    except Exception as error:
        found = [type(error)]
    state = NORM.running_mean, BUFFER.clone(), torch.rand(1)
    return found, COUNTS[0], list(NOTED), [round(value, 5) for t in state for value in t.tolist()]


def same(found: list[Any], expected: list[Any]) -> bool:
    if not all(isinstance(value, float) for value in expected):
        return found == expected
    return found == pytest.approx(expected, abs=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("outside", [False, True], ids=["in the frame", "around compiled code"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: getattr(b, "__name__", "norm"))
def test_second_call_leaves_the_same(block: Any, way: str, outside: bool) -> None:
    """Eager calls the block again in the backward: what that writes, draws and notes shows."""
    options = WAYS[way]

    def program(x: Tensor) -> Tensor:
        return checkpoint(block, x, **options)  # type: ignore[no-any-return]

    expected = left_by(program)
    for backend in ("aot_eager", "eager"):
        if outside:
            inner = braze.compile(lambda x: block(x), backend=backend)
            compiled = lambda x, inner=inner: checkpoint(inner, x, **options)  # noqa: E731
        else:
            compiled = braze.compile(program, backend=backend)
        for _ in range(2):
            found = left_by(compiled)
            assert found[1:] == expected[1:]
            assert same(found[0], expected[0])
