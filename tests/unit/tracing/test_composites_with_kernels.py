"""Operators that PyTorch has as a composition and, on some device, as a kernel with a gradient of
its own: an RMS norm on a GPU, `silu_backward` on a CPU. Autograd has its say before the tracer sees
them, so the parts would have no history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.compat.torch import dispatcher

_ARGUMENTS: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "aten::silu_backward": lambda x: (x * 1.5, x),
    "aten::mish_backward": lambda x: (x * 1.5, x),
    "aten::native_channel_shuffle": lambda x: (x, 2),
}


def _with_own_kernels() -> list[str]:
    """The operators, asked of the dispatcher: one that PyTorch adds has to get a row above."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    keys = ("CompositeImplicitAutograd", "Autograd", "CPU")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return sorted([name for name in names if all(has(name, key) for key in keys)])


def test_each_has_a_row() -> None:
    assert _with_own_kernels() == sorted(_ARGUMENTS)


def _outcome(function: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | str:
    """The result and the gradient, or the error's first line."""
    try:
        result = function(x)
        result.sum().backward()
    except RuntimeError as error:
        return str(error).split("\n")[0]
    assert x.grad is not None
    return result.detach(), x.grad


@pytest.mark.parametrize("name", sorted(_ARGUMENTS))
def test_gradients_are_eagers_or_its_error(name: str) -> None:
    op = dispatcher.find_overload(name, "default")
    torch.manual_seed(0)
    x = torch.randn(2, 4, 3, 3, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = op(*_ARGUMENTS[name](x))
        return made.sin()

    right = _outcome(program, x.detach().clone().requires_grad_())
    compiled = braze.compile(program, fullgraph=True)
    found = _outcome(compiled, x)
    if isinstance(right, str):
        assert found == right
    else:
        torch.testing.assert_close(found, right)
    assert [row.graphs for row in braze.status() if "program" in row.name][-1] == 1
