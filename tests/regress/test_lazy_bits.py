"""Conjugate and negative bits: what leaves a frame, or is asked of, has them as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

NUMBERS = torch.complex(torch.ones(2, 3), torch.arange(6.0).reshape(2, 3))
STEPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "conj": lambda x: x.conj(),
    "of an input": lambda x: [NUMBERS.conj(), x * 2],
    "adjoint": lambda x: (x * 2).mH,
    "view": lambda x: (x * 2).conj()[:, 1:],
    "twice": lambda x: x.conj().conj(),
    "imaginary": lambda x: (x * 2).conj().imag,
    "real": lambda x: (x * 2).conj().real,
    "asked": lambda x: [x.conj().is_conj(), x.conj().imag.is_neg(), x.conj()._is_view(), x * 2],
    "resolved": lambda x: [x.conj().resolve_conj(), x.resolve_conj() is x],
    "as real": lambda x: torch.view_as_real(x.conj()),
    "computed with": lambda x: x.conj() * 2 + x.mH.sum(),
}


def _facts(result: Any) -> Any:
    if isinstance(result, list):
        return [_facts(item) for item in result]
    if not isinstance(result, torch.Tensor):
        return result
    shared = result.untyped_storage().data_ptr() == NUMBERS.untyped_storage().data_ptr()
    bits = result.is_conj(), result.is_neg(), result._is_view(), shared
    return bits, result.stride(), result.tolist()


def _play(run: Callable[[torch.Tensor], Any]) -> list[Any]:
    found = []
    for _ in range(3):
        try:
            found.append(_facts(run(NUMBERS)))
        except RuntimeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("name", STEPS)
def test_bits_are_those_of_eager(name: str, backend: str) -> None:
    braze.reset()
    assert _play(braze.compile(STEPS[name], backend=backend)) == _play(STEPS[name])


def test_lazy_results_that_stay_inside_are_one_graph() -> None:
    assert braze.explain(STEPS["computed with"])(NUMBERS).graph_count == 1


def test_conjugates_of_what_the_program_never_has_are_computed() -> None:
    """`ifft` of real numbers ends with one, of memory that nobody else has."""
    x = torch.arange(6.0)
    explanation = braze.explain(torch.fft.ifft)(x)
    assert (explanation.graph_count, explanation.break_count) == (1, 0)
    assert torch.allclose(explanation.result, torch.fft.ifft(x))
    asked = braze.compile(lambda x: (torch.fft.ifft(x).is_conj(), x + 1))
    assert asked(x)[0] is torch.fft.ifft(x).is_conj()


def test_write_through_a_lazy_result_reaches_its_base() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.mul(2).conj()

    for run in (step, braze.compile(step)):
        made = run(NUMBERS)
        made.mul_(1j)
        assert torch.allclose(made, NUMBERS.mul(2).conj() * 1j)
