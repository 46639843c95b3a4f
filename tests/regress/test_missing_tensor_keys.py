"""C code that raises KeyError for a tensor, beside a dict's own lookups: the program's exception,
which was taken for a fault of the compiler."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class Members(set[Any]):
    """A set of a program's own class."""


FROM_OUTSIDE = Members({1})


@pytest.mark.parametrize(
    "look_up",
    [
        lambda key: {1}.remove(key),
        lambda key: {key + 1}.remove(key),
        lambda key: FROM_OUTSIDE.remove(key),
        lambda key: OrderedDict(a=1).pop(key),
        lambda key: OrderedDict(a=1).move_to_end(key),
        lambda key: {1: 2}.pop(key),
        lambda key: {}[key],
    ],
)
def test_the_program_catches_it(look_up: Callable[[torch.Tensor], Any]) -> None:
    def step(key: torch.Tensor) -> torch.Tensor:
        try:
            look_up(key)
        except KeyError as error:
            assert error.args[0] is key
            return error.args[0] + 1
        return key - 1

    compiled = braze.compile(step, backend="aot_eager", options={"suppress_errors": False})
    key = torch.tensor(2.0)
    assert compiled(key).item() == step(key).item() == 3.0


def test_nobody_catches_it() -> None:
    def step(key: torch.Tensor) -> None:
        {1}.remove(key)

    compiled = braze.compile(step, backend="aot_eager", options={"suppress_errors": False})
    key = torch.tensor(2.0)
    with pytest.raises(KeyError) as caught:
        compiled(key)
    assert caught.value.args[0] is key
