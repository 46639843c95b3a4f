"""Products that add a bias, where there is nothing to sum over or nothing is given."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import braze

# Of the operators: the shapes of the two factors, by their sizes.
FACTORS: dict[Any, Any] = {
    torch.addmv: lambda n, k, m: ((n, k), (k,)),
    torch.addmm: lambda n, k, m: ((n, k), (k, m)),
    torch.addr: lambda n, k, m: ((n,), (m,)),
    torch.baddbmm: lambda n, k, m: ((2, n, k), (2, k, m)),
    torch.addbmm: lambda n, k, m: ((2, n, k), (2, k, m)),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("op", FACTORS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("beta", [1, 0, 2])
def test_shapes_are_eagers(op: Any, beta: int) -> None:
    for n, k, m in itertools.product((0, 1, 5), (0, 1, 3), (0, 3)):
        if op in (torch.addmv, torch.addr) and (k if op is torch.addr else m) != 3:
            continue  # a size that it has not got
        a, b = (torch.ones(shape) for shape in FACTORS[op](n, k, m))
        for bias in (torch.ones(()), torch.ones(1), torch.ones(m), torch.ones(n)):

            def program(bias: Any, a: Any, b: Any) -> Any:
                result = op(bias, a, b, beta=beta)
                return result + 1, result.shape

            try:
                expected = program(bias, a, b)
            except RuntimeError:
                continue
            actual = braze.compile(program, dynamic=False)(bias, a, b)
            case = (n, k, m, bias.shape)
            assert actual[1] == expected[1] and torch.equal(actual[0], expected[0]), case
