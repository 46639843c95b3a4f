"""Scatters into copies of expanded tensors, which the backward of a written view makes.

PyTorch 2.11's meta kernels gave the copy the expanded tensor's strides: one location for all rows,
and gradients of zero.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import braze

WRITTEN = {
    "slice": lambda y: y[1:],
    "select": lambda y: y[1],
    "column": lambda y: y[:, 1],
    "diagonal": lambda y: y.diagonal(),
    "as_strided": lambda y: y.as_strided((2,), (1,)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_of_a_written_view(name: str, backend: str) -> None:
    def f(x: Tensor) -> Tensor:
        y = x + 1
        WRITTEN[name](y).mul_(2)
        return y.sum() * 3

    x, again = (torch.ones(3, 3, requires_grad=True) for _ in range(2))
    f(x).backward()
    braze.compile(f, backend=backend)(again).backward()
    assert torch.equal(again.grad, x.grad)


SCATTERS = {
    "slice": lambda x: torch.slice_scatter(x, torch.ones(2, 3), 0, 1),
    "select": lambda x: torch.select_scatter(x, torch.ones(3), 1, 1),
    "diagonal": lambda x: torch.diagonal_scatter(x, torch.ones(3)),
    "as_strided": lambda x: torch.as_strided_scatter(x, torch.ones(2), (2,), (1,)),
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("shape", [(), (3, 1), (1, 3)], ids=str)
def test_scatters(name: str, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 2.0).expand(3, 3)
    expected = SCATTERS[name](x)
    actual = braze.compile(SCATTERS[name])(x)
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()


MISFITS = {
    "slice": lambda x: torch.slice_scatter(x, torch.ones(5, 3), 0, 1),
    "select": lambda x: torch.select_scatter(x, torch.ones(5), 0, 1),
    "index": lambda x: torch.select_scatter(x, torch.ones(3), 0, 7),
    "diagonal": lambda x: torch.diagonal_scatter(x, torch.ones(9)),
    "as_strided": lambda x: torch.as_strided_scatter(x, torch.ones(5), (2,), (1,)),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("shape", [(), (3, 3)], ids=str)
def test_what_does_not_fit_is_refused(name: str, shape: tuple[int, ...]) -> None:
    """The kernels believe the shapes that capture found: they would write outside the copy."""
    x = torch.full(shape, 2.0).expand(3, 3)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        MISFITS[name](x)
    with pytest.raises(expected.type) as actual:
        braze.compile(MISFITS[name])(x)
    assert str(actual.value).startswith(str(expected.value))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gradient_of_scatter_add_by_differences(dtype: torch.dtype) -> None:
    """PyTorch's own kernel of the backward reads other rows where the index is expanded and has 32
    bits, so that differences of eager's sums are the judge; the function is linear."""

    def f(source: Tensor, index: Tensor) -> Tensor:
        made = torch.zeros(4, 3, dtype=source.dtype).scatter_add(0, index, source)
        return (made * torch.arange(12.0, dtype=source.dtype).reshape(4, 3)).sum()

    index = torch.tensor([2, 0, 1], dtype=dtype)[:, None].expand(3, 3)
    source = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(braze.compile(f, fullgraph=True)(source, index), source)
    with torch.no_grad():
        steps = torch.eye(9, dtype=torch.float64).reshape(9, 3, 3)
        differences = torch.stack([f(step, index) for step in steps]).reshape(3, 3)
    torch.testing.assert_close(found, differences)
