"""Tensors whose strides change while their sizes stay: few compiles, whatever is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import braze
from tests.recorded import recorded

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, y: x * y,
    "matrix product": lambda x, y: x @ y + x,
    "transposed": lambda x, y: (x.t() * 2).sum(0) + y.softmax(1)[0],
    "reshaped": lambda x, y: x.reshape(-1) + y.reshape(-1),
    "copied": lambda x, y: x.clone() + 1,
    "like it": lambda x, y: torch.zeros_like(x) + x,
    "beside another": lambda x, y: torch.cat([x, y]),
    "written": lambda x, y: y.clone().copy_(x),
    "its stride": lambda x, y: x + x.stride(0),
    "whether it is contiguous": lambda x, y: x + 1 if x.is_contiguous() else y + x,
    "sorted": lambda x, y: x.sort(0).values,
}


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_strides_alone_are_symbols(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    y = torch.randn(4, 4)
    with recorded() as journal:
        compiled = braze.compile(program, backend=backend, fullgraph=True)
        for wide in (6, 8, 9, 16, 4, 11):
            x = torch.randn(4, wide)[:, :4]
            actual, expected = compiled(x, y), program(x, y)
            torch.testing.assert_close(actual, expected)
            assert actual.stride() == expected.stride()
    assert len(journal.records()) <= 3  # one of the inputs is contiguous
