"""What is written with gradients to a view of a detached tensor is the detached tensor's history.

Behind the break, and in what the caller got, each was a detached tensor of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Tensor = torch.Tensor
SOURCES: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "detach twice": lambda x: x.detach().detach(),
    "detach of a view": lambda x: x.t().detach(),
    "view of a detach": lambda x: x.detach().view(2, 2),
    "real": lambda x: x.detach().real,
    "contiguous": lambda x: x.detach().contiguous(),
    "piece": lambda x: x.detach().split(2)[0],
    "as_tensor": lambda x: torch.as_tensor(x.detach()),
}


def _added(v: Tensor, z: Tensor) -> Tensor:
    w = v[0]
    w += z[0]
    return w


def _element(v: Tensor, z: Tensor) -> Tensor:
    w = v[0]
    w[0] = z[0, 0]
    return w


WRITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add_": lambda v, z: v[0].add_(z[0]),
    "+=": _added,
    "element": _element,
    "select": lambda v, z: v.select(0, 1).lerp_(z[0], 0.5),
    "narrow": lambda v, z: v.narrow(0, 0, 1).addcmul_(z[:1], z[:1]),
    "flatten": lambda v, z: v.flatten()[:2].add_(z[0]),
    "chunk": lambda v, z: v.chunk(2)[0].copy_(z[:1]),
    "itself": lambda v, z: v.add_(z),
}
BACKENDS = ("braze", "aot_eager")


def _outcome(function: Callable[[Tensor, Tensor], Any]) -> Any:
    x, z = torch.ones(2, 2), torch.full((2, 2), 2.0, requires_grad=True)
    try:
        results = function(x, z)
        tracked = [tensor.requires_grad for tensor in results]
        sum(tensor.sum() for tensor in results if tensor.requires_grad).backward()
    except RuntimeError as error:
        return str(error).split("\n")[0]
    return tracked, z.grad, x, [tensor.detach() for tensor in results]


@pytest.mark.parametrize(("source", "write"), itertools.product(SOURCES, WRITES))
def test_gradients(source: str, write: str) -> None:
    def computed(x: Tensor, z: Tensor) -> Any:
        v = SOURCES[source](x * 1)
        w = WRITES[write](v, z)
        return v * z, w

    def given(x: Tensor, z: Tensor) -> Any:
        v = SOURCES[source](x)
        w = WRITES[write](v, z)
        return v, w

    for function, backend in itertools.product((computed, given), BACKENDS):
        found, expected = _outcome(braze.compile(function, backend=backend)), _outcome(function)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, msg=f"{function} {backend}")
        braze.reset()


def test_the_caller_writes_to_a_view_of_a_detached_result() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x.detach()
        return v[0], v

    compiled = braze.compile(function, fullgraph=True)
    z = torch.ones(2, requires_grad=True)
    w, v = compiled(torch.ones(2, 2))
    w.add_(z)
    assert v.requires_grad and v.tolist() == [[2.0, 2.0], [1.0, 1.0]]
    (v * 3).sum().backward()
    assert z.grad is not None and z.grad.tolist() == [3.0, 3.0]
