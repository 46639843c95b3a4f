"""What an operator's kernel refuses it refuses where sizes are symbols, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import braze

_PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "where": lambda x: torch.where(x, x, x),
    "masked_fill": lambda x: x.masked_fill(x, 1),
    "masked_fill_tensor": lambda x: x.masked_fill(x, torch.ones(())),
    "index_select": lambda x: x.index_select(0, x[0]),
    "gather": lambda x: x.gather(0, x),
    "scatter": lambda x: x.scatter(0, x, 1.0),
    "index_add": lambda x: x.index_add(0, x[:, 0], x),
    "take_along_dim": lambda x: torch.take_along_dim(x, x, 0),
    "embedding": lambda x: functional.embedding(x, x),
    "bitwise_and": lambda x: x & x,
    "mean_of_integers": lambda x: x.long().mean(),
    "softmax_of_integers": lambda x: x.long().softmax(0),
    "layer_norm_of_integers": lambda x: functional.layer_norm(x.long(), x.shape[-1:]),
    "linear_of_two_dtypes": lambda x: functional.linear(x, x.double()),
    "matmul_of_two_dtypes": lambda x: x @ x.double().t(),
    "minus_of_bool": lambda x: (x > 0) - (x > 1),
    "negative_of_bool": lambda x: -(x > 0),
    "clamp_of_complex": lambda x: x.to(torch.complex64).clamp(min=0),
    "sort_of_complex": lambda x: x.to(torch.complex64).sort(),
    "nll_loss": lambda x: functional.nll_loss(x, x[:, 0]),
    "binary_cross_entropy": lambda x: functional.binary_cross_entropy(x, x.long()),
    "dot": lambda x: torch.dot(x[0], x[0].long()),
    "lerp": lambda x: torch.lerp(x, x.double(), 0.5),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_refused_as_in_eager(name: str) -> None:
    program = _PROGRAMS[name]
    compiled = braze.compile(program, dynamic=True)
    for size in (3, 5):
        x = torch.full((size, size), 0.5)
        with pytest.raises(Exception) as expected:
            program(x)
        with pytest.raises(type(expected.value)) as raised:
            compiled(x)
        assert str(raised.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_negative_classes_are_refused() -> None:
    compiled = braze.compile(lambda: functional.one_hot(torch.tensor([-1])))
    with pytest.raises(RuntimeError, match="Class values must be non-negative"):
        compiled()
