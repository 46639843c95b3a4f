"""`braze.export` of programs whose sizes, and numbers, are other ones at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Program = Callable[..., Any]
ASKED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def exported(program: Program, *given: Any, **named: Any) -> torch.fx.GraphModule:
    return braze.export(program, **named)(*given).graph_module


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x.view(x.shape[0], -1, 2).transpose(1, 2)
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 8))
    halves = [half * 2 for half in x.chunk(2)]
    return {"a": z[:, :, : x.shape[1] // 4] + y[:1].sum(), "b": (x[1:], padded)}, halves


def test_all_sizes() -> None:
    module = exported(views, torch.randn(4, 8), torch.randn(3, 1), dynamic=True)
    for sizes in ((6, 12, 2), (2, 4, 5), (8, 16, 3)):  # what halves evenly, as at first
        x, y = torch.randn(sizes[:2]), torch.randn(sizes[2], 1)
        torch.testing.assert_close(module(x, y), views(x, y))


def test_marked_sizes() -> None:
    x = torch.randn(4, 3)
    braze.mark_dynamic(x, 0)
    module = exported(lambda x: (x.flatten() * x.shape[0], x[: x.shape[0] // 2]), x)
    x = torch.randn(7, 3)
    torch.testing.assert_close(module(x), (x.flatten() * 7, x[:3]))
    assert "size(0)" in module.code and "size(1)" not in module.code


def test_an_argument_that_is_a_number() -> None:
    module = exported(lambda x, k: x[:k] * k, torch.randn(6), 2, dynamic=True)
    x = torch.randn(9)
    torch.testing.assert_close(module(x, 5), x[:5] * 5)


def test_sizes_that_depend_on_data() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.nonzero() * 2, x[x > 0].sum(), x[x < 0]

    module = exported(program, torch.tensor([1.0, 0.0, -2.0]), options=ASKED)
    for values in ([1.0, 2.0, 3.0], [-1.0, 0.0, -3.0], [0.0, 0.0, 0.0]):
        x = torch.tensor(values)
        torch.testing.assert_close(module(x), program(x))


def test_what_was_promised_is_asserted() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 2)
        torch._check(k <= x.shape[0])
        return x[:k] * k

    x = torch.randn(6)
    module = exported(program, x, torch.tensor(3), options=ASKED)
    torch.testing.assert_close(module(x, torch.tensor(5)), x[:5] * 5)
    with pytest.raises(RuntimeError, match=r"test_export_sizes.py:\d+.*u0 >= 2"):
        module(x, torch.tensor(1))


def test_a_result_that_is_a_size_is_refused() -> None:
    with pytest.raises(braze.exc.UserError, match="size"):
        exported(lambda x: (x * 2, x.shape[0]), torch.randn(3), dynamic=True)
    assert exported(lambda x: (x * 2, x.shape[0]), torch.randn(3))(torch.ones(3))[1] == 3
