"""Views of what requires grad, made under `no_grad`: they require grad, too, and have no history.

A graph break behind one (inference, a transposed weight, a check of the card) left the whole
call to eager for good: a graph could not give such a view to what follows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import braze
from tests.recorded import recorded

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda w: w.transpose(0, 1),
    "sliced": lambda w: w[1:, ::2],
    "flat": lambda w: w.view(-1),
    "row": lambda w: w[0],
    "chunk": lambda w: w.chunk(2)[1],
    "in steps": lambda w: w.t()[2:].t(),
}
BASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "parameter": lambda w, x: w,
    "computed": lambda w, x: w * 2,
    "input": lambda w, x: x,
}


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    history = tensor.grad_fn is not None
    return tensor.requires_grad, history, tensor.is_leaf, tensor._is_view(), tensor.stride()


def _run(function: Any, x: Tensor, grad: bool, stop: Callable[[], None]) -> tuple[Any, ...]:
    with torch.set_grad_enabled(grad):
        view, total = function(x, stop)
    return _facts(view), _facts(total), view.tolist(), round(total.item(), 2)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", VIEWS)
def test_views_without_gradients_are_eager_s(name: str, base: str) -> None:
    torch.manual_seed(0)
    weight, x = nn.Parameter(torch.randn(4, 8)), torch.randn(4, 8)

    def program(x: Tensor, stop: Callable[[], None]) -> tuple[Tensor, Tensor]:
        whole = BASES[base](weight, x)
        with torch.no_grad():
            view = VIEWS[name](whole)
        tripled = view * 3
        stop()
        return view, (view * 2).sum() + tripled.sum()

    cases = itertools.product((False, True), (braze.graph_break, lambda: None), ("braze", "eager"))
    for grad, stop, backend in cases:
        with recorded() as journal:
            compiled = braze.compile(program, backend=backend)
            for _ in range(2):
                found = _run(compiled, x, grad, stop)
                assert found == _run(program, x, grad, lambda: None)
        assert journal.records() and not journal.fallbacks()
        assert all(record.outcome == "graph" for record in journal.records())
