"""Complex numbers written to parts of a tensor, with gradients: a Fourier layer's modes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import braze
from braze.report.explain import summarise
from braze.trace import Journal

Write = Callable[[Tensor, Tensor], None]


def modes(whole: Tensor, part: Tensor) -> None:
    whole[:, :3] = part[:, :3]


def steps(whole: Tensor, part: Tensor) -> None:
    whole[..., ::2] = part[..., ::2] * 2


def negative_dimension(whole: Tensor, part: Tensor) -> None:
    whole.select(-1, 1).copy_(part[..., 0])


def of_transposed(whole: Tensor, part: Tensor) -> None:
    whole.transpose(0, 1)[1:3] = part.transpose(0, 1)[1:3]


def added(whole: Tensor, part: Tensor) -> None:
    whole[1:, -1] += part[1:, 0]


def a_number(whole: Tensor, part: Tensor) -> None:
    whole[:, 1] = 2 - 1j
    whole[0] *= part[0]


def conjugate(whole: Tensor, part: Tensor) -> None:
    whole[:, 2:] = part[:, 2:].conj()


def diagonal(whole: Tensor, part: Tensor) -> None:
    whole.diagonal()[1:] = part.diagonal()[1:]


WRITES = [
    modes, steps, negative_dimension, of_transposed, added, a_number, conjugate, diagonal
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("write", WRITES)
def test_gradients_of_writes(write: Write, dtype: torch.dtype, journal: Journal) -> None:
    """PyTorch has no derivative of `slice_scatter` and `select_scatter` of complex numbers."""

    def program(x: Tensor, part: Tensor) -> Tensor:
        whole = x * 2
        write(whole, part)
        return whole

    compiled = braze.compile(program)
    given = [torch.randn(4, 5, dtype=dtype) for _ in range(2)]
    found = []
    for function in (program, compiled):
        inputs = [x.clone().requires_grad_() for x in given]
        result = function(*inputs)
        torch.view_as_real(result).square().sum().backward()
        found.append((result.detach(), *(x.grad for x in inputs)))
        assert result.requires_grad
    for right, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, equal_nan=True)
        assert right is None or mine.stride() == right.stride()
    told = summarise("", journal, None)
    assert told.graph_count == 1 and not told.fallbacks and not told.left_to_eager


def fourier_layer(x: Tensor, weight: Tensor) -> Tensor:
    spectrum = torch.fft.rfft2(x)
    kept = torch.zeros_like(spectrum)
    kept[:, :, :6, :6] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :6, :6], weight)
    return torch.nn.functional.gelu(torch.fft.irfft2(kept, s=x.shape[-2:]))


def test_a_fourier_layer_trains_in_one_graph(journal: Journal) -> None:
    x, weight = torch.randn(2, 4, 16, 16), torch.randn(4, 4, 6, 6, dtype=torch.cfloat) * 0.05
    found = []
    for function in (fourier_layer, braze.compile(fourier_layer)):
        inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        result = function(*inputs)
        result.square().sum().backward()
        found.append((result.detach(), *(t.grad for t in inputs)))
    for right, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, right)
    told = summarise("", journal, None)
    assert told.graph_count == 1 and not told.fallbacks and not told.left_to_eager
