"""Variables of a context: read, set, reset in a frame, and set outside of it between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import torch

import braze

PLAIN: ContextVar[Any] = ContextVar("plain")
WITH_DEFAULT: ContextVar[Any] = ContextVar("with default", default=3)
X = torch.ones(2)


@contextmanager
def _held(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _read(x: torch.Tensor) -> Any:
    return x + WITH_DEFAULT.get(), WITH_DEFAULT.get(5), PLAIN.get(7), PLAIN.get(None)


def _balanced(x: torch.Tensor) -> Any:
    with _held(PLAIN, 2), _held(WITH_DEFAULT, "text"):
        with _held(PLAIN, 4):
            y = x * PLAIN.get()
        return y + PLAIN.get(), WITH_DEFAULT.get()


def _left_set(x: torch.Tensor) -> Any:
    WITH_DEFAULT.set(WITH_DEFAULT.get() + 1)
    return x * WITH_DEFAULT.get()


def _missing(x: torch.Tensor) -> Any:
    try:
        return x + PLAIN.get()
    except LookupError as error:
        return x, error.args[0] is PLAIN


def _outcome(function: Callable[..., Any], setting: Any) -> Any:
    with _held(WITH_DEFAULT, setting[0]):
        if len(setting) > 1:
            with _held(PLAIN, setting[1]):
                found = function(X)
        else:
            found = function(X)
        return repr(found), WITH_DEFAULT.get(), PLAIN.get("nothing")


SETTINGS = ((1,), (1, 2), (True,), (1.0, 2), (1,), (4, None))


@pytest.mark.parametrize("program", [_read, _balanced, _left_set])
def test_what_is_set_outside_is_seen(program: Callable[..., Any]) -> None:
    options = {"recompile_limit": 16}
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True, options=options)
    for setting in SETTINGS * 2:
        assert _outcome(compiled, setting) == _outcome(program, setting), setting


def test_one_graph_serves_while_nothing_changes() -> None:
    report = braze.explain(_balanced)(X)
    assert report.graph_count == 1 and not report.break_reasons
    compiled = braze.compile(_balanced, backend="eager", fullgraph=True, name="balanced")
    for _ in range(3):
        compiled(X)
    assert braze.status()["balanced"].recompiles == 0


def test_a_variable_without_a_value_raises() -> None:
    compiled = braze.compile(_missing, backend="aot_eager")
    for setting in ((1,), (1, 2), (1,)):
        assert _outcome(compiled, setting) == _outcome(_missing, setting)


def test_a_break_among_set_variables() -> None:
    """What is set before a break is set behind it, and reset at the end."""

    def program(x: torch.Tensor) -> Any:
        with _held(PLAIN, 2):
            y = x * PLAIN.get()
            braze.graph_break()
            return y + PLAIN.get(), PLAIN.get()

    def without_manager(x: torch.Tensor) -> Any:
        token = PLAIN.set(2)
        y = x * 2
        braze.graph_break()
        found = y + PLAIN.get()
        PLAIN.reset(token)
        return found, PLAIN.get("nothing")

    for each in (program, without_manager):
        compiled = braze.compile(each, backend="aot_eager")
        for setting in ((1,), (1, 5)):
            assert _outcome(compiled, setting) == _outcome(each, setting)


def test_tokens_and_variables_made_in_the_frame() -> None:
    def token(x: torch.Tensor) -> Any:
        return x + 1, type(PLAIN.set(4)).__name__

    def variable(x: torch.Tensor) -> Any:
        made: ContextVar[int] = ContextVar("made", default=3)
        return x + made.get()

    def kept(x: torch.Tensor) -> Any:
        token = PLAIN.set(4)
        return x + 1, token.old_value is token.MISSING, token

    for each in (token, variable):
        with _held(PLAIN, 1):
            compiled = braze.compile(each, backend="aot_eager")
            assert repr(compiled(X)) == repr(each(X))
    with _held(PLAIN, 1):
        PLAIN.reset(braze.compile(kept, backend="aot_eager")(X)[2])
        assert PLAIN.get() == 1
