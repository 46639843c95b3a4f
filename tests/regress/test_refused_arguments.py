"""A call with a tensor that no graph takes is left to eager; calls with others are compiled, before
it and behind it, and the next one of its kind costs no capture."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.errors import BrazeWarning


class Tagged(torch.Tensor):
    """A class that answers for its operators."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def _quantized(n: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(n), 0.1, 0, torch.qint8)


def _ragged(n: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(n, 3), torch.ones(n + 1, 3)])


REFUSED: dict[str, Callable[[int], torch.Tensor]] = {
    "__torch_function__": lambda n: torch.ones(n).as_subclass(Tagged),
    "sparse_coo": lambda n: torch.eye(n).to_sparse(),
    "sparse_csr": lambda n: torch.eye(n).to_sparse_csr(),
    "mkldnn": lambda n: torch.ones(n, n).to_mkldnn(),
    "quantized": _quantized,
    "nested": _ragged,
}


def _class_of(x: Any, y: torch.Tensor) -> tuple[str, torch.Tensor]:
    return type(x).__name__, y.sin() * 2 + 1


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_others_are_compiled(name: str, comes_first: bool) -> None:
    compiled = braze.compile(_class_of)
    refused = [REFUSED[name](n) for n in (3, 4, 5)]
    plain = [torch.ones(n) for n in (3, 4, 5)]
    order = [*refused[:1], *plain, *refused] if comes_first else [*plain, *refused, *plain]
    y = torch.arange(4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrazeWarning)
        for x in order:
            (kind, found), (right, expected) = compiled(x, y), _class_of(x, y)
            assert kind == right
            torch.testing.assert_close(found, expected)
    (row,) = braze.status().rows
    plainly = 3 if comes_first else 6
    assert row.calls - row.calls_left >= plainly, str(braze.status())
    assert row.entries <= 3, str(braze.status())  # plain ones, of any size; and the refused
