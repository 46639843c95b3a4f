"""A conjugate that leaves a compiled function shares memory with its source, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def _returned(x: torch.Tensor) -> Any:
    return x.conj()


def _negative(x: torch.Tensor) -> Any:
    return x.conj().imag


def _piece(x: torch.Tensor) -> Any:
    return (x * 2, x.conj()[1:])


def _adjoint(x: torch.Tensor) -> Any:
    return x[None].mH


def _written(x: torch.Tensor) -> Any:
    y = x.conj()
    y.mul_(2j)
    return y


def _source_written(x: torch.Tensor) -> Any:
    y = x.conj()
    x.zero_()
    return y


def _of_intermediate(x: torch.Tensor) -> Any:
    y = x * 1
    z = y.conj()
    z[0] = 0
    return y, z


PROGRAMS = (
    _returned,
    _negative,
    _piece,
    _adjoint,
    _written,
    _source_written,
    _of_intermediate,
)


def _observed(function: Callable[..., Any], conjugate: bool) -> list[Any]:
    x = torch.tensor([1 + 2j, 3 - 1j])
    x = x.conj() if conjugate else x
    made = function(x)
    results = made if isinstance(made, tuple) else (made,)
    storages = [t.untyped_storage().data_ptr() for t in (x, *results)]
    found: list[Any] = [[storages.index(s) for s in storages]]
    for _ in range(2):
        found += [t.resolve_conj().resolve_neg().tolist() for t in (x, *results)]
        found += [(t.is_conj(), t.is_neg(), t.stride()) for t in results]
        x.fill_(7 + 3j)
    return found


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_conjugate_shares_memory(program: Callable[..., Any], conjugate: bool) -> None:
    compiled = braze.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert _observed(compiled, conjugate) == _observed(program, conjugate)
    status = braze.explain(program)(torch.tensor([1 + 2j, 3 - 1j]))
    is_written_or_asked = program not in (_returned, _piece, _adjoint)
    assert (status.break_count > 0) is is_written_or_asked  # which is counted, and said


def test_conjugates_inside_stay_in_one_graph() -> None:
    report = braze.explain(lambda x: (x.conj() * x).real + x.mH.imag)(torch.ones(2, 2) * 1j)
    assert (report.graph_count, report.break_count) == (1, 0)


def test_view_of_expanded_leaf_has_eagers_gradient() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x[::2]

    gradients = []
    for function in (program, braze.compile(program)):
        leaf = torch.ones(1).expand(6).detach().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(leaf).sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
