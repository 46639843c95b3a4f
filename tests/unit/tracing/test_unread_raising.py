"""Operators that raise for what their tensors hold, and whose results nobody reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, linalg

import braze

FAR = torch.tensor([0, 9])
COLUMN = FAR[:, None]
ZERO = torch.tensor([1, 0])
NUMBERS = torch.tensor([4, 5])
SINGULAR = torch.zeros(3, 3)
NEGATIVE = -torch.eye(3)
NOT_FINITE = torch.full((3, 3), float("nan"))
ONES = torch.ones(2, 3)
HUGE = torch.full((1, 1, 4, 3), 99)

# Not of NaN: eig and lstsq, which end the process in MKL.
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "index": lambda x: x[FAR],
    "index_put": lambda x: x.index_put((FAR,), torch.tensor(1.0)),
    "embedding": lambda x: F.embedding(FAR, x),
    "embedding_bag": lambda x: F.embedding_bag(FAR[None], x),
    "gather": lambda x: x.gather(0, COLUMN),
    "index_select": lambda x: x.index_select(0, FAR),
    "index_add": lambda x: x.index_add(0, FAR, ONES),
    "index_copy": lambda x: x.index_copy(0, FAR, ONES),
    "index_fill": lambda x: x.index_fill(0, FAR, 1.0),
    "index_reduce": lambda x: x.index_reduce(0, FAR, ONES, "prod"),
    "take": lambda x: x.take(torch.tensor([99])),
    "put": lambda x: x.put(torch.tensor([99]), torch.tensor([1.0])),
    "scatter": lambda x: x.scatter(0, COLUMN, 1.0),
    "scatter_add": lambda x: x.scatter_add(0, COLUMN, torch.ones(2, 1)),
    "scatter_reduce": lambda x: x.scatter_reduce(0, COLUMN, torch.ones(2, 1), "sum"),
    "masked_scatter": lambda x: x.masked_scatter(x == x, torch.ones(2)),
    "searchsorted": lambda x: torch.searchsorted(x[0], x, sorter=torch.tensor([9, 9, 9])),
    "one_hot": lambda x: F.one_hot(torch.tensor([7, 2]), 3),
    "floor_divide": lambda x: NUMBERS // ZERO,
    "floor_divide of a number": lambda x: 5 // ZERO,
    "floor_divide by zero": lambda x: NUMBERS // 0,
    "remainder": lambda x: NUMBERS % ZERO,
    "remainder of a number": lambda x: 5 % ZERO,
    "remainder by zero": lambda x: NUMBERS % 0,
    "fmod": lambda x: torch.fmod(NUMBERS, ZERO),
    "div trunc": lambda x: torch.div(NUMBERS, ZERO, rounding_mode="trunc"),
    "div floor": lambda x: torch.div(NUMBERS, ZERO, rounding_mode="floor"),
    "cholesky": lambda x: linalg.cholesky(NEGATIVE),
    "old cholesky": lambda x: torch.cholesky(NEGATIVE),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(SINGULAR),
    "inverse": lambda x: torch.inverse(SINGULAR),
    "solve": lambda x: linalg.solve(SINGULAR, SINGULAR),
    "matrix_power": lambda x: linalg.matrix_power(SINGULAR, -1),
    "eigh": lambda x: linalg.eigh(NOT_FINITE),
    "eigvalsh": lambda x: linalg.eigvalsh(NOT_FINITE),
    "svd": lambda x: linalg.svd(NOT_FINITE),
    "pinv": lambda x: linalg.pinv(NOT_FINITE),
    "nuclear norm": lambda x: linalg.matrix_norm(NOT_FINITE, "nuc"),
    "lu_unpack": lambda x: torch.lu_unpack(SINGULAR, torch.full((3,), 9, dtype=torch.int32)),
    "histc": lambda x: torch.histc(NOT_FINITE),
    "quantile": lambda x: torch.quantile(x, torch.tensor([3.0, 0.5])),
    "segment_reduce": lambda x: torch.segment_reduce(x[:, 0], "sum", lengths=torch.tensor([9])),
    "nll_loss": lambda x: F.nll_loss(x[:2], FAR),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x + 3),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[:2], FAR),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x[:2], FAR.repeat(2, 2)[:, :3]),
    "max_unpool2d": lambda x: F.max_unpool2d(x[None, None], HUGE, 2),
}


def _raised(program: Callable[[Tensor], Any], x: Tensor) -> tuple[type, str] | None:
    try:
        program(x)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_unread_operator_raises(name: str) -> None:
    call, x = PROGRAMS[name], torch.arange(12.0).reshape(4, 3) + 2

    def program(x: Tensor) -> Tensor:
        call(x)
        return x * 4

    expected = _raised(program, x)
    assert expected is not None, "eager does not raise"
    assert _raised(braze.compile(program), x) == expected
