"""Numbers refuse attributes, in a graph where a symbol stands for them as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def _store(v: Any) -> None:
    v.name = 1


def _delete(v: Any) -> None:
    del v.name


_USES: tuple[Callable[[Any], Any], ...] = (
    _store,
    _delete,
    lambda v: setattr(v, "real", 2),
    lambda v: delattr(v, "imag"),
    lambda v: object.__setattr__(v, "name", 1),
    lambda v: v.name,
    lambda v: hasattr(v, "name"),
)


@pytest.mark.parametrize("values", [(0.5, 1.5, 2.5), (3, 4, 5), (True, False, True)], ids=str)
@pytest.mark.parametrize("use", range(len(_USES)))
def test_numbers_refuse_attributes(use: int, values: tuple[Any, ...]) -> None:
    action = _USES[use]

    def program(x: torch.Tensor, v: Any) -> Any:
        y = x * v
        try:
            found = action(v)
        except Exception as error:
            found = type(error).__name__, str(error)
        return found, y

    compiled, x = braze.compile(program), torch.ones(2)
    for value in values:
        (found, made), (expected, wanted) = compiled(x, value), program(x, value)
        assert found == expected
        assert torch.equal(made, wanted)
