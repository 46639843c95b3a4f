"""Writes to views of complex tensors are differentiated in a graph, as in eager.

PyTorch has formulas for the write, and none for `slice_scatter` and its like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from tests.recorded import recorded

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda z: z[1:3],
    "slice of the last dimension": lambda z: z[..., 1:-1],
    "steps": lambda z: z[:, ::2],
    "slice of slices": lambda z: z[1:, :2, 1:3],
    "select": lambda z: z[2],
    "select by a negative dimension": lambda z: z.select(-1, -2),
    "select by name": lambda z: torch.select(z, dim=-2, index=1),
    "narrow": lambda z: z.narrow(-2, 1, 2),
    "diagonal": lambda z: z.diagonal(),
    "diagonal of the last dimensions": lambda z: z.diagonal(1, -2, -1),
    "diagonal by names": lambda z: z.diagonal(offset=-1, dim1=-1, dim2=0),
    "transposed": lambda z: z.transpose(0, -1)[1:, 2],
    "permuted": lambda z: z.permute(2, 0, 1)[..., 1],
    "flat": lambda z: z.view(-1)[5:40:3],
    "unfold": lambda z: z.unfold(1, 2, 2)[0],
    "as_strided": lambda z: z.as_strided((2, 3), (7, 2), 3),
    "real parts": lambda z: torch.view_as_real(z)[1:, ..., 0],
    "part of a part": lambda z: z[1:].diagonal(0, 0, 2)[1],
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", VIEWS)
def test_gradients_flow_through_writes(name: str, dtype: torch.dtype) -> None:
    view = VIEWS[name]

    def scaled(z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made = z * 2
        view(made).mul_(w)
        view(made).copy_(view(made) * (1.5 if name == "real parts" else 1.5j) + view(z))
        return made * z

    _check(scaled, dtype)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_memory_in_another_order(order: tuple[int, ...]) -> None:
    def written(z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(z.permute(order)).fill_(0)
        made[1:3, :, 1] = z[1:3, :, 2] * w
        made.select(-1, 0)[:] = w * 1j
        return made

    _check(written, torch.complex64)


def _check(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    z = torch.randn(4, 4, 4, dtype=dtype, requires_grad=True)
    w = torch.randn((), dtype=torch.float64 if dtype.itemsize == 16 else torch.float32)
    w.requires_grad_()
    braze.reset()
    with recorded() as journal:
        found = _outcome(braze.compile(function, fullgraph=True), z, w)
    wanted = _outcome(function, z, w)
    torch.testing.assert_close(found, wanted)
    assert found[0].stride() == wanted[0].stride()
    assert [record.outcome for record in journal.records()] == ["graph", "backward"]
    assert not any(record.fallbacks for record in journal.records())


def _outcome(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[Any]:
    made = function(*inputs)
    loss = torch.view_as_real(made).square().sum()
    return [made.detach(), *torch.autograd.grad(loss, inputs)]
