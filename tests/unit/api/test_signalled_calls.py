"""What a handler of a signal raises while a graph runs or is compiled goes through the program's
own `try` and `with`, and is never taken for a fault of the graph."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze

LOG: list[str] = []
SECONDS = 0.05  # of a call that takes several times as long


class Timeout(Exception):
    pass


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        raise Timeout


def plain_handler(number: int, frame: Any) -> None:
    raise Timeout


@pytest.fixture(params=[plain_handler, Handler(), Handler().__call__])
def handled(request: Any) -> Iterator[None]:
    LOG.clear()
    before = signal.signal(signal.SIGALRM, request.param)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Manager:
    def __enter__(self) -> None:
        LOG.append("enter")

    def __exit__(self, *exception: object) -> None:
        LOG.append("exit")


def products(x: torch.Tensor) -> torch.Tensor:
    for _ in range(150):
        x = x @ x
        x = x / x.norm()
    return x


def tries(x: torch.Tensor) -> Any:
    try:
        y = products(x)
    except Timeout:
        LOG.append("except")
        return "caught"
    finally:
        LOG.append("finally")
    return y


def manages(x: torch.Tensor) -> Any:
    with Manager():
        return products(x)


def has_none(x: torch.Tensor) -> Any:
    return products(x)


EXPECTED: dict[Callable[[torch.Tensor], Any], Any] = {
    tries: ("caught", ["except", "finally"]),
    manages: ("Timeout", ["enter", "exit"]),
    has_none: ("Timeout", []),
}


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("function", EXPECTED)
def test_handlers_of_the_program_run(function: Callable[[torch.Tensor], Any]) -> None:
    """The first call is cut short as it is compiled, the others as the graph runs."""
    compiled = braze.compile(function, dynamic=False)
    x = torch.randn(256, 256)
    for is_compiled in (False, True, True):
        if is_compiled:
            compiled(x)
        LOG.clear()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            outcome = compiled(x)
        except Timeout:
            outcome = "Timeout"
        assert (outcome, LOG) == EXPECTED[function]
    assert torch.is_tensor(compiled(x))
