"""Inputs with their conjugate or negative bit set are part of a graph; what shows that they share
memory breaks it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

_NUMBERS = torch.complex(
    torch.arange(12.0).reshape(3, 4), torch.arange(12.0).flip(0).reshape(3, 4) + 1
)
INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugate": lambda z: z.conj(),
    "negative": lambda z: z.conj().imag,
    "both": lambda z: torch._neg_view(z.conj()),
    "transposed": lambda z: z.conj().t(),
    "stepped": lambda z: z.conj()[:, ::2],
    "expanded": lambda z: z.conj()[:1].expand(3, 4),
    "negative and transposed": lambda z: z.conj().imag.t(),
    "neither": lambda z: z,
}
ONE_GRAPH: dict[str, Callable[[torch.Tensor], Any]] = {
    "scaled": lambda x: x * 2,
    "reduced": lambda x: x.sum() + x.abs().amax(),
    "product": lambda x: x @ x.mT,
    "parts": lambda x: torch.view_as_real(x * 1) if x.is_complex() else x + 1,
    "cloned": lambda x: x.clone(),
    "itself": lambda x: (x * 2, x),
    "joined": lambda x: torch.cat([x, x[1:]]),
    "conjugated": lambda x: x.conj() * 1,
    "like": lambda x: torch.zeros_like(x) + x.new_ones(1),
    "flat": lambda x: x.flatten() * 2,
}


def _written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


BREAKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: (x * 2, x[1:]),
    "written": _written,
    "transposed in place": lambda x: x.t_() * 2,
    "asked": lambda x: (x.is_conj(), x.is_neg(), x * 2),
    "resolved": lambda x: x.resolve_conj().resolve_neg() + 0,
    "contiguous": lambda x: x.contiguous(),
}


def _facts(result: Any, x: torch.Tensor) -> Any:
    if isinstance(result, tuple):
        return [_facts(item, x) for item in result]
    if not isinstance(result, torch.Tensor):
        return result
    shared = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    bits = result.is_conj(), result.is_neg(), shared, result is x
    return result.dtype, result.stride(), bits, result.resolve_conj().resolve_neg()


def _outcome(run: Callable[[torch.Tensor], Any], make: Callable[..., torch.Tensor]) -> Any:
    x = make(_NUMBERS.clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _facts((run(x), x), x)
        except RuntimeError:
            return "an error"


def _assert_same(expected: Any, actual: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(actual)
        for one, other in zip(expected, actual):
            _assert_same(one, other)
    else:
        assert expected == actual


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("name", [*ONE_GRAPH, *BREAKS])
def test_lazy_inputs_agree_with_eager(name: str, backend: str) -> None:
    program = (ONE_GRAPH | BREAKS)[name]
    compiled = braze.compile(program, backend=backend)
    for make in (*INPUTS.values(), *INPUTS.values()):
        _assert_same(_outcome(program, make), _outcome(compiled, make))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_lazy_inputs_are_in_one_graph(name: str, kind: str) -> None:
    report = braze.explain(ONE_GRAPH[name])(INPUTS[kind](_NUMBERS))
    assert (report.graph_count, report.break_count) == (1, 0)


def test_dynamic_sizes_of_lazy_inputs() -> None:
    compiled = braze.compile(lambda x: x * 2 + x.sum(0), fullgraph=True, dynamic=True)
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4, dtype=torch.complex64).conj()
        torch.testing.assert_close(compiled(x), x * 2 + x.sum(0))
    (row,) = [row for row in braze.status() if row.calls]
    assert row.entries == 1 and not row.left_to_eager


@pytest.mark.parametrize("kind", ["conjugate", "negative", "stepped"])
def test_gradients_reach_what_is_lazy(kind: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).abs().sum()

    compiled = braze.compile(program, fullgraph=True)
    found = []
    for run in (program, compiled, compiled):
        z = _NUMBERS.clone().requires_grad_()
        w = torch.tensor(2.0, requires_grad=True)
        run(INPUTS[kind](z), w).backward()
        found.append((z.grad, w.grad))
    for gradients in found[1:]:
        _assert_same(found[0], gradients)
        assert gradients[0] is not None


def test_base_that_is_written_to_breaks() -> None:
    def program(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        z.mul_(2)
        return x + z

    made = []
    for run in (program, braze.compile(program)):
        z = _NUMBERS.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.append(run(z, z.conj()))
    assert torch.equal(*made)


def test_on_the_stack_at_a_break() -> None:
    """The rest of the call has the conjugate among its inputs before it has a frame."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.conj(), braze.graph_break())[0] * 3

    x = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(braze.compile(function, backend="eager")(x), x.conj() * 3)
    assert not braze.explain(function)(x).left_to_eager
