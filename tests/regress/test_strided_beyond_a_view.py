"""`as_strided` of a view that reaches elements which the view has not: eager drops gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x[0, 0].as_strided((2,), (1,)),
    lambda x: x[0].as_strided((2, 2), (1, 1)),
    lambda x: x[:, 1].as_strided((3,), (1,)) * 2,
    lambda x: x.t().as_strided((3, 2), (2, 1)) * 2,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_gradients_of_what_the_view_does_not_have(
    program: Callable[[torch.Tensor], torch.Tensor], backend: str
) -> None:
    gradients = []
    for function in (program, braze.compile(program, backend=backend)):
        x = torch.arange(6.0).reshape(2, 3).clone().requires_grad_()
        (function(x) * 3).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_gradients_it_is_one_graph(
    program: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.arange(6.0).reshape(2, 3).clone()
    torch.testing.assert_close(braze.compile(program, fullgraph=True)(x), program(x))
