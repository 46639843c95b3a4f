"""`tensor.copy_(number)`, which eager takes: capture's own error left the program's `try` as one of
the program's, so that the write was lost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import braze
from braze.capture.calls import torch_calls as leaf_calls
from braze.errors import BrazeWarning, CaptureError
from braze.tracing import special_ops as special


def copied(x: torch.Tensor, number: Any) -> torch.Tensor:
    try:
        x[0].copy_(number)
    except Exception:
        return x
    return x + 1


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        *itertools.product(
            [(0.5, 0.25, -3.75), (3, 300, -7), (True, False)],
            [torch.float32, torch.int8, torch.bool, torch.complex64],
        ),
        ((2j, 1j), torch.complex64),  # of others eager warns that it drops a part
    ],
)
def test_copy_of_a_number(numbers: tuple[Any, ...], dtype: torch.dtype, backend: str) -> None:
    compiled = braze.compile(copied, backend=backend, fullgraph=True)
    for number in numbers:
        mine, right = (torch.ones(2, 3, dtype=dtype) for _ in range(2))
        torch.testing.assert_close(compiled(mine, number), copied(right, number), rtol=0, atol=0)
        torch.testing.assert_close(mine, right, rtol=0, atol=0)


@pytest.mark.parametrize("fault", [AttributeError, KeyError, NameError, AssertionError])
def test_a_program_does_not_catch_our_faults(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise fault("ours")

    monkeypatch.setattr(leaf_calls, "_OWN_FILES", __file__)
    monkeypatch.setitem(special.SPECIAL_CALLS, torch.ops.aten.copy_.default, broken)
    with pytest.raises(CaptureError, match="ours"):
        braze.compile(copied, options={"suppress_errors": False})(torch.ones(2, 3), 0.5)
    x = torch.ones(2, 3)
    with pytest.warns(BrazeWarning, match="ours"):
        braze.compile(copied)(x, 0.5)
    assert x[0, 0] == 0.5


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda row: row * 2 + 0.5)(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_number_beside_numbers_of_a_batch(dtype: torch.dtype) -> None:
    """Of a batch of numbers, C++ casts the number by an operator that takes tensors."""
    x = torch.arange(3).to(dtype)
    torch.testing.assert_close(braze.compile(doubled, fullgraph=True)(x), doubled(x))
