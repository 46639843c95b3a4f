"""Warnings and log lines named Braze's files where eager names the program's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import braze

LOGGER = logging.getLogger(__name__)
LINEAR = nn.Linear(3, 3)


def warns_natively(x: Tensor) -> Tensor:
    y = x * 2
    return F.softmax(y)


def warns_natively_in_a_callee(x: Tensor) -> Tensor:
    return warns_natively(x) + 1


def warns_of_a_class(x: Tensor) -> Tensor:
    with torch.cpu.amp.autocast(enabled=False):
        return x + 1


def warns_itself(x: Tensor) -> Tensor:
    warnings.warn("mine", DeprecationWarning, stacklevel=1)
    return x + 1


def warns_its_caller(x: Tensor) -> Tensor:
    warnings.warn("yours", stacklevel=2)
    return x + 1


def warns_in_between(x: Tensor) -> Tensor:
    x = x + 1
    return warns_its_caller(x)


def deprecated(x: Tensor) -> Tensor:
    return x + nn.utils.clip_grad_norm(LINEAR.parameters(), 1.0)


PROGRAMS = [
    warns_natively,
    warns_natively_in_a_callee,
    warns_of_a_class,
    warns_itself,
    warns_its_caller,
    warns_in_between,
    deprecated,
]


def lines(function: Callable[..., Any], *args: Any) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    return [(w.filename, w.lineno, w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_line_is_eagers(program: Callable[[Tensor], Tensor]) -> None:
    compiled = braze.compile(program, backend="aot_eager")
    found = []
    for function in (program, compiled):
        found.append(lines(function, torch.ones(3)))
    assert found[0] == found[1] != []


def test_a_module_is_named_where_it_is_called() -> None:
    softmax = nn.Softmax()

    def program(x: Tensor) -> Tensor:
        return softmax(x * 2)

    ((filename, line, *_),) = lines(braze.compile(program, backend="aot_eager"), torch.ones(3))
    assert (filename, line) == (__file__, program.__code__.co_firstlineno + 1)


def test_a_warning_is_shown_once_a_line() -> None:
    def twice(x: Tensor) -> Tensor:
        for _ in range(2):
            x = F.softmax(x)
        return F.softmax(x)

    compiled = braze.compile(twice, backend="aot_eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        compiled(torch.ones(3))
    start = twice.__code__.co_firstlineno
    assert [w.lineno - start for w in caught] == [2, 3]


def test_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    def program(x: Tensor) -> Tensor:
        LOGGER.warning("seen %d", 3)
        return x + 1

    compiled = braze.compile(program, backend="aot_eager")
    for function in (program, compiled, compiled):
        function(torch.ones(3))
    places = {(r.pathname, r.lineno, r.funcName, r.getMessage()) for r in caplog.records}
    assert len(caplog.records) == 3
    assert places == {(__file__, program.__code__.co_firstlineno + 1, "program", "seen 3")}
