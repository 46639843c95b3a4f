"""Gradients of a compiled backward share memory with each other, and with what the caller gives,
only where eager's do: a step that adds to one changes no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

import braze

pytestmark = pytest.mark.usefixtures("process_group")

PASSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda a: a + 1,
    "copy": lambda a: a.clone(),
    "negative": lambda a: -a,
    "row": lambda a: a.view(1, -1),
    "transposed": lambda a: a.view(2, 2).t(),
    "unsqueezed": lambda a: a[None],
    "part": lambda a: a[1:],
    "doubled": lambda a: a * 2,
}
TOGETHER: dict[str, Callable[..., Any]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "stacked": lambda a, b: torch.stack([a, b]),
    "stacked sum": lambda a, b: torch.stack([a, b]).sum(0),
    "pair": lambda a, b: (a, b),
    "pair with sum": lambda a, b: (a * 2, a + b),
}


class Program(torch.nn.Module):
    def __init__(self, passed: str, together: str) -> None:
        super().__init__()
        self.a, self.b = Parameter(torch.zeros(4)), Parameter(torch.ones(4))
        self.passed, self.together = PASSED[passed], TOGETHER[together]

    def forward(self) -> Any:
        return self.together(self.passed(self.a), self.passed(self.b))


def _given(results: Sequence[torch.Tensor]) -> None:
    """One tensor as the gradient of all results of one shape, kept by the caller."""
    kept = {y.shape: torch.ones(y.shape) for y in results}
    for _ in range(2):
        gradients = [kept[y.shape] for y in results]
        torch.autograd.backward(results, gradients, retain_graph=True)
    assert all(bool((g == 1).all()) for g in kept.values())


def _summed(results: Sequence[torch.Tensor]) -> None:
    sum(y.sum() for y in results).backward()  # type: ignore[union-attr]


def _squared(results: Sequence[torch.Tensor]) -> None:
    sum(y.square().sum() for y in results).backward()  # type: ignore[union-attr]


def _played(model: Any, module: Program, backward: Any) -> tuple[Any, ...]:
    """The gradients behind each of three steps, and whether they lie in one memory."""
    seen: list[Any] = []
    for _ in range(3):
        results = model()
        backward(results if isinstance(results, tuple) else (results,))
        a, b = module.a.grad, module.b.grad
        assert a is not None and b is not None
        seen.append((a.tolist(), b.tolist(), a.data_ptr() == b.data_ptr()))
    return tuple(seen)


CASES = [*itertools.product(PASSED, TOGETHER, [False])]
CASES += itertools.product(["itself", "transposed"], TOGETHER, [True])


@pytest.mark.parametrize("backward", (_given, _summed, _squared))
@pytest.mark.parametrize(("passed", "together", "wrapped"), CASES)
def test_as_in_eager(passed: str, together: str, backward: Any, wrapped: bool) -> None:
    eager, module = Program(passed, together), Program(passed, together)
    model: Any = braze.compile(module, fullgraph=True)
    right: Any = eager
    if wrapped:
        model = DistributedDataParallel(model, bucket_cap_mb=1e-6)
        right = DistributedDataParallel(eager, bucket_cap_mb=1e-6)
    try:
        wanted = _played(right, eager, backward)
    except AssertionError:
        pytest.skip("eager itself writes to what the caller keeps")
    found = _played(model, module, backward)
    for own, other in zip(found, wanted, strict=True):
        assert other[2] or not own[2]
        if own[2] == other[2]:  # where eager's share memory, a step adds to both
            assert own == other
