"""A gradient of another size or type was assigned behind the graph, which had written by then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import braze

GIVEN: dict[str, Any] = {
    "size": lambda w: w.detach()[0] * 2,
    "dtype": lambda w: w.detach().double(),
    "number": lambda w: 3.0,
    "itself": lambda w: w,
}


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("name", GIVEN)
def test_nothing_was_written(name: str, backend: str) -> None:
    def program(x: Tensor, w: Tensor, v: Tensor) -> None:
        loss = (x * v).sum()
        w.grad = GIVEN[name](w)
        loss.backward()

    found = []
    for function in (program, braze.compile(program, backend=backend)):
        x = torch.arange(3.0)
        w, v = (torch.ones(3, 3, requires_grad=True) for _ in range(2))
        v.grad = torch.ones(3, 3)
        with pytest.raises((RuntimeError, TypeError)) as raised:
            function(x, w, v)
        found.append((str(raised.value), type(raised.value), v.grad.tolist(), w.grad))
    assert found[0] == found[1]


def test_a_caught_error() -> None:
    def program(w: Tensor, x: Tensor) -> Tensor:
        try:
            w.grad = x
        except RuntimeError as error:
            return x * len(str(error))
        return x

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    for shape in ((3,), (2, 2), (3, 3)):
        w, x = torch.ones(3, 3, requires_grad=True), torch.ones(shape)
        assert torch.equal(compiled(w, x), program(w, x))
