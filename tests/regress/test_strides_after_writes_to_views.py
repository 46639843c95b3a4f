"""What a write through a view gave its base had the strides of the functional operator's result in
dimensions of size one, and so had what was computed from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

Program = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def _new_tensor(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = z[:1] * 2
    base.t().relu_()
    return base, base * 2


def _view(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    view = (z[:1] * 2).t()
    view.relu_()
    return (view,)


def _new_copy(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row = z.detach()[:1].clone()
    row.t().relu_()
    return row, row + 1


def _copy(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = z[:1] * 2
    base.t().copy_(torch.ones(3, 1))
    return base, base * 3


def _empty(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = z[:0] * 2
    base.t().relu_()
    return base, base * 2


def _copied_into_another_order(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = torch.empty_strided((1, 2, 3), (1, 1, 2)).zero_()
    base[0].add_(z)
    base.permute(2, 0, 1).mul_(3)
    return base, base * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program",
    [_new_tensor, _view, _new_copy, _copy, _empty, _copied_into_another_order],
)
def test_strides_of_a_base(program: Program, grad: bool, dynamic: bool, backend: str) -> None:
    z = torch.arange(6.0).reshape(2, 3).sub(1).requires_grad_(grad)
    expected = program(z)
    found = braze.compile(program, backend=backend, dynamic=dynamic)(z)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad
        if other.requires_grad:
            wanted = torch.autograd.grad(other.sum(), z, retain_graph=True)
            assert torch.equal(torch.autograd.grad(one.sum(), z, retain_graph=True)[0], wanted[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_what_a_written_input_gives(dynamic: bool, backend: str) -> None:
    def program(row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row.t().relu_()
        return row.neg(), row * 2

    eager, compiled = torch.randn(1, 3), torch.empty(1, 3)
    compiled.copy_(eager)
    expected = program(eager)
    found = braze.compile(program, backend=backend, dynamic=dynamic)(compiled)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert compiled.stride() == eager.stride()
    assert torch.equal(compiled, eager)
