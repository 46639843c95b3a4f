"""`torch.cond` took the truth of whatever it was given, where eager refuses all but numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import braze


class _Number(int):
    pass


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"fullgraph": True}], ids=str)
@pytest.mark.parametrize("predicate", ["s", "", None, [1], {}, b"x", 1, 0, 2.5, True, _Number(3)])
def test_predicates(predicate: Any, options: Any) -> None:
    def program(x: Tensor, predicate: Any) -> Tensor:
        made: Tensor = torch.cond(predicate, lambda y: y * 2, lambda y: y * 3, (x,))
        return made

    found: list[Any] = []
    for function in (program, braze.compile(program, **options)):
        for _ in range(2):
            try:
                found.append(function(torch.ones(3), predicate).tolist())
            except RuntimeError as error:
                found.append((type(error), str(error)))
    assert found[2:] == found[:2]


def test_a_comparison_of_sizes() -> None:
    def program(x: Tensor) -> Tensor:
        made: Tensor = torch.cond(x.shape[0] > 4, lambda y: y * 2, lambda y: y * 3, (x,))
        return made

    compiled = braze.compile(program, fullgraph=True, dynamic=True)
    for count in (3, 4, 5, 9):
        torch.testing.assert_close(compiled(torch.ones(count)), program(torch.ones(count)))
