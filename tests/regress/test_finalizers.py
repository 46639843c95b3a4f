"""Objects with a `__del__` are made for real: each is finalized once, only what was made is, and
behind a graph break it happens where it does in eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze


@pytest.mark.parametrize("made", ["called", "new"])
def test_each_object_is_finalized_once(made: str) -> None:
    log: list[float] = []

    class Noticed:
        value = 0.0

        def __del__(self) -> None:
            log.append(self.value)

    def program(x: torch.Tensor, keep: bool) -> object:
        one = Noticed() if made == "called" else object.__new__(Noticed)
        y = x * 2
        one.value = len(log)
        return (y + 1, one) if keep else y + 1

    compiled = braze.compile(program)
    x = torch.ones(2)
    for call in range(3):
        assert torch.equal(compiled(x, False), x * 2 + 1)
        assert log == list(range(call + 1))
    kept = compiled(x, True)
    assert len(log) == 3
    del kept
    assert len(log) == 4


# --- behind graph breaks --------------------------------------------------------------------------

_LOG: list[str] = []


class _Named:
    """Says when it ends."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        _LOG.append(self.name)


class _Plain:
    """Nothing of it notices its end."""


_HOLDER = _Plain()


def _deleted(x: torch.Tensor) -> torch.Tensor:
    one, y = _Named("one"), x + 1
    braze.graph_break()
    del one
    _LOG.append("after")
    return y * 2


def _replaced(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    for turn in range(3):
        one = _Named(f"turn {turn}")
        braze.graph_break()
        _LOG.append(f"made {turn}")
    one = None  # noqa: F841
    _LOG.append("after")
    return y * 2


def _never_held(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    _Named("one")
    _LOG.append("after one")
    _LOG.append(_Named("two").name + " is read")
    _LOG.append("after two")
    return y * 2


def _told_by_callback(x: torch.Tensor) -> torch.Tensor:
    one, y = _Plain(), x + 1
    reference = weakref.ref(one, lambda _: _LOG.append("gone"))
    braze.graph_break()
    del one
    _LOG.append(str(reference() is None))
    return y * 2


def _asked_by_reference(x: torch.Tensor) -> torch.Tensor:
    y, one = x + 1, _Plain()
    reference, of_tensor = weakref.ref(one), weakref.ref(y)
    braze.graph_break()
    del one
    y = y * 2
    _LOG.append(f"{reference() is None} {of_tensor() is None}")
    return y


def _let_go_by_a_callee(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    _let_go(_Named("one"))
    _LOG.append("after")
    return y * 2


def _let_go(one: object) -> None:
    braze.graph_break()
    one = None  # noqa: F841
    _LOG.append("let go")
    braze.graph_break()


def _local_of_a_callee(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    _keep_one()
    _LOG.append("after")
    return y * 2


def _keep_one() -> None:
    one = _Named("one")  # noqa: F841
    braze.graph_break()
    _LOG.append("kept")


def _in_a_cell(x: torch.Tensor) -> torch.Tensor:
    one: object = _Named("one")

    def keep() -> object:
        return one

    y = x + 1
    braze.graph_break()
    keep()
    one = None
    _LOG.append("after")
    return y * 2


def _held_by_an_error(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    try:
        braze.graph_break()
        _raise_with(_Named("one"))
    except ValueError:
        _LOG.append("handled")
    _LOG.append("after")
    braze.graph_break()
    _LOG.append("at the end")
    return y * 2


def _raise_with(one: object) -> None:
    raise ValueError(one)


def _rest_runs_natively(x: torch.Tensor) -> torch.Tensor:
    one, y = _Named("one"), x + 1
    braze.graph_break()
    try:
        int("no number")
    except ValueError:
        one = None  # noqa: F841
        _LOG.append("handled")
    exec("_LOG.append('native')")  # looks at the frame: the rest of it runs as it is
    two = _Named("two")
    del two
    _LOG.append("after")
    return y * 2


def _in_a_generator(x: torch.Tensor) -> torch.Tensor:
    def numbers() -> Iterator[int]:
        one = _Named("one")  # noqa: F841
        yield 1
        yield 2

    some, y = numbers(), x + 1
    next(some)
    braze.graph_break()
    del some
    _LOG.append("after")
    return y * 2


def _held_from_outside(x: torch.Tensor) -> torch.Tensor:
    _HOLDER.one = _Named("one")
    y = x + 1
    braze.graph_break()
    _HOLDER.one = None
    _LOG.append("after")
    return y * 2


@pytest.mark.parametrize(
    "program",
    [
        _deleted,
        _replaced,
        _never_held,
        _told_by_callback,
        _asked_by_reference,
        _let_go_by_a_callee,
        _local_of_a_callee,
        _in_a_cell,
        _held_by_an_error,
        _rest_runs_natively,
        _in_a_generator,
        _held_from_outside,
    ],
)
def test_ends_come_when_they_do_in_eager(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(2)
    compiled = braze.compile(program, backend="aot_eager")
    _LOG.clear()
    expected = program(x)
    wanted = list(_LOG)
    assert wanted
    for _ in range(3):  # the first call compiles
        _LOG.clear()
        assert torch.equal(compiled(x), expected)
        assert wanted == _LOG


def test_a_weak_reference_is_read_at_each_call() -> None:
    """What it refers to is not kept alive by the entry, and may be gone."""
    scale = nn.Linear(2, 2)

    def program(x: torch.Tensor, reference: Any) -> torch.Tensor:
        module = reference()
        return x * 2 if module is None else module(x)

    compiled = braze.compile(program, backend="aot_eager")
    x = torch.ones(1, 2)
    assert torch.equal(compiled(x, weakref.ref(scale)), scale(x))
    dead = weakref.ref(_Plain())
    assert torch.equal(compiled(x, dead), x * 2)
    assert torch.equal(compiled(x, weakref.ref(scale)), scale(x))
    reference = weakref.ref(scale)
    del scale
    gc.collect()  # a module refers to itself
    assert reference() is None
    assert torch.equal(compiled(x, reference), x * 2)


def test_an_object_of_one_break_needs_no_second_one() -> None:
    """Only what gives up the last place breaks the graph."""

    def program(x: torch.Tensor) -> torch.Tensor:
        one = _Named("one")
        other = one
        y = x + 1
        del other
        return y * 2 + len(one.name)

    assert braze.explain(program)(torch.ones(2)).break_count == 1
