"""A call that fails leaves the state that eager leaves, and does nothing twice."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import braze
from braze.errors import BuildFailed
from tests.differential.failure_sweep import (
    CALLS,
    EFFECTS,
    FAILURES,
    Program,
    difference,
    note,
    programs,
    refuse,
)

# Each effect and each failure, in both orders, with gradients and without: an eighth of all.
_PART = [
    p
    for n, p in enumerate(programs())
    if (n // 4 + [*EFFECTS].index(p.effect) + 2 * p.fails_first + 5 * p.gradients) % 8 == 0
]


def test_part_has_all_kinds() -> None:
    assert {p.effect for p in _PART} == {*EFFECTS}
    assert {p.failure for p in _PART} == {*FAILURES}
    assert {(p.fails_first, p.gradients) for p in _PART} == {(a, b) for a in (0, 1) for b in (0, 1)}


@pytest.mark.parametrize("program", _PART, ids=str)
def test_failing_call_leaves_eagers_state(program: Program) -> None:
    assert difference(program) is None


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("effect", ["input", "operator", "operator-that-writes"])
def test_other_backends_do_nothing_twice(effect: str, backend: str) -> None:
    for failure in ("index", "operator"):
        found = difference(Program(effect, failure, False, False), backend=backend)
        assert found is None


def test_unbuilt_kernel_runs_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise BuildFailed("no compiler today")

    monkeypatch.setattr("braze.runtime.link.link_cpu.kernels_of", refuse)
    CALLS.clear()
    x, i = torch.ones(3), torch.tensor([1])

    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (note(x) * 2).index_select(0, i) + 1

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        result = braze.compile(program, options={"suppress_errors": True})(x, i)
    assert result.tolist() == [5.0]
    assert x.tolist() == [2.0] * 3
    assert CALLS == ["note"]


def test_view_that_fails_is_made_before_writes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        v = torch.norm(x, dim=0)
        v.mT.zero_()
        x.add_(1)
        return v.view(torch.int32)

    x, y = (torch.zeros(4, 8, 2, dtype=torch.float64) for _ in range(2))
    program(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        braze.compile(program)(y)
    assert torch.equal(x, y)


def test_checks_stay_in_the_graph_before_effects() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        assert (x > 0).all()
        return note(x) + 1

    compiled = braze.compile(program, fullgraph=True)
    CALLS.clear()
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(AssertionError):
        compiled(-torch.ones(2))
    assert CALLS == ["note"]


def test_index_is_checked_before_effects() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (note(x) + 1).index_select(0, i)

    compiled = braze.compile(program, fullgraph=True)
    x = torch.arange(3.0)
    assert compiled(x, torch.tensor([1])).tolist() == [2.0]
    with pytest.raises(IndexError, match="index out of range in self"):
        compiled(x, torch.tensor([5]))


def test_write_before_raising_operator_is_done() -> None:
    """`x.add_(1); raising(x); x.mul_(3)`: the first write is made, though nothing runs again."""
    CALLS.clear()

    def program(x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = refuse(x, code)
        x.mul_(3)
        return y

    compiled = braze.compile(program, fullgraph=True)
    x = torch.ones(3)
    compiled(x, torch.tensor([1]))
    with pytest.raises(ValueError, match="refused"):
        compiled(x, torch.tensor([7]))
    assert x.tolist() == [7.0] * 3 and CALLS == ["refuse", "refuse"]
    assert x._version == 4 - 1  # as in eager, whose second write of the second call is not made
