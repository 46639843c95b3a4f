"""Tensors that differ by a flag only, at each place where guards find tensors, at each stage of an
entry's guards: asked one by one, generated Python, a snapshot in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.runtime.guards.native_extension import LOADER
from braze.trace import Journal

NUMBERS = torch.complex(torch.arange(3.0), torch.arange(3.0) + 1)


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.arange(3.0)


# (a tensor, the same metadata with the flag)
FLAGS: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
    "negative": (lambda: NUMBERS.imag, lambda: NUMBERS.conj().imag),
    "conjugate": (NUMBERS.clone, NUMBERS.conj),
    "zero": (lambda: torch.arange(3.0), lambda: torch._efficientzerotensor((3,))),
    "inference": (lambda: torch.arange(3.0), _inference),
}


def in_argument(x: Any) -> tuple[Any, Callable[[], Any]]:
    compiled = braze.compile(lambda t: (t * 2, t.is_inference()))
    return compiled, lambda: compiled(x())


def in_buffer(x: Any) -> tuple[Any, Callable[[], Any]]:
    module = torch.nn.Module()
    compiled = braze.compile(lambda: (module.kept * 2, module.kept.is_inference()))

    def call() -> Any:
        module.kept = x()
        return compiled()

    return compiled, call


def in_list(x: Any) -> tuple[Any, Callable[[], Any]]:
    compiled = braze.compile(lambda ts: (ts[0] * 2, ts[0].is_inference()))
    return compiled, lambda: compiled([x()])


def in_dict_of_call(x: Any) -> tuple[Any, Callable[[], Any]]:
    compiled = braze.compile(lambda **ts: (ts["t"] * 2, ts["t"].is_inference()))
    return compiled, lambda: compiled(t=x())


PLACES = [in_argument, in_buffer, in_list, in_dict_of_call]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("calls", [1, 2, 8])
@pytest.mark.parametrize("flag", FLAGS)
def test_flags_are_told_apart(flag: str, calls: int, place: Any, journal: Journal) -> None:
    plain, flagged = FLAGS[flag]
    assert LOADER.wait() is not None
    given = [plain]
    _, call = place(lambda: given[0]())
    for _ in range(calls):
        _same(call(), plain())
    given[0] = flagged
    _same(call(), flagged())
    given[0] = plain
    _same(call(), plain())
    assert journal.records()[0].outcome == "graph"


def _same(answer: tuple[Tensor, bool], x: Tensor) -> None:
    assert torch.equal(answer[0].resolve_conj().resolve_neg(), (x * 2).resolve_conj().resolve_neg())
    assert answer[1] is x.is_inference()


def test_writes_to_inference_tensors_raise() -> None:
    compiled = braze.compile(lambda x: x.add_(1))
    compiled(torch.ones(3))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(_inference())
