"""What an operator raises for its arguments, compiled as in eager: whether or not its result is
read, in the program's own `except`, and call by call through one entry."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import braze
from braze.errors import BrazeWarning


def caught(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    try:
        x.index_select(0, i)
    except IndexError:
        return x * 3
    return x * 4


def unread(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    functional.embedding(i, x)
    return x * 4


def read_in_part(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return (functional.embedding(i, x) * 2)[:-1]


def written_before(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    x.gather(0, i[:, None])
    return x.mul_(2)


def classes(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return functional.one_hot(i, 4) + x[0, 0]


def divided(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    i // (i - 9)
    return x + 1


def outcome(function: Callable[..., Any], index: list[int], grad: bool) -> tuple[Any, ...]:
    """What a call gives or raises, and what it leaves in its argument."""
    leaf = torch.arange(8.0).reshape(4, 2).requires_grad_(grad)
    x = leaf * 1
    try:
        result = function(x, torch.tensor(index))
    except Exception as error:
        return type(error), str(error), x.tolist()
    if grad:
        result.sum().backward()
    return result.tolist(), leaf.grad, x.tolist()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function", [caught, unread, read_in_part, written_before, classes, divided]
)
def test_right_and_wrong_positions_alternate(function: Callable[..., Any], grad: bool) -> None:
    compiled: Any = braze.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrazeWarning)
        for index in ([0, 1, 2], [1, 2, 9], [3, 3, 1], [9, 9, 9]):
            want, got = (outcome(f, index, grad) for f in (function, compiled))
            assert str(want) == str(got)


def test_positions_that_are_known_have_no_check() -> None:
    def picks(x: torch.Tensor) -> torch.Tensor:
        x[torch.tensor([0, 2])]
        return x + 1

    report = braze.explain(picks)(torch.ones(3, 2))
    assert report.op_count == 1
    assert report.break_count == 0


def test_only_what_is_not_read_has_a_check() -> None:
    def embeds(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return functional.embedding(i, x).sum(-1)

    # A check is two comparisons, `logical_and`, `all` and what raises.
    for function, ops in ((embeds, 2), (unread, 1 + 5), (read_in_part, 3 + 5)):
        report = braze.explain(function)(torch.ones(4, 2), torch.tensor([0, 1]))
        assert report.op_count == ops


def test_a_caught_error_is_no_fault_of_the_compiler() -> None:
    def reads(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        try:
            return x.index_select(0, i) * 2
        except IndexError:
            return x * 3

    compiled: Any = braze.compile(reads)
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        assert compiled(x, torch.tensor([5])).tolist() == [3, 3, 3]
    assert not [one for one in noted if "bug" in str(one.message)]


def _shifted(x: torch.Tensor) -> None:
    x[1:].copy_(x[:-1])


def _by_item(x: torch.Tensor) -> None:
    x[:-1] = x[1:]


def _added(x: torch.Tensor) -> None:
    x[1:].add_(x[:-1])


def _into(x: torch.Tensor) -> None:
    torch.add(x[1:], 1, out=x[:-1])


def _transposed(x: torch.Tensor) -> None:
    x.view(3, 3).mul_(x.view(3, 3).t())


def _of_its_own(x: torch.Tensor) -> None:
    y = x * 1
    y[:-1] = y[1:]
    x.copy_(y)


def _apart(x: torch.Tensor) -> None:
    x[:4].copy_(x[4:8])
    x[0] += 1
    x.mul_(x)


@pytest.mark.parametrize("size", [9, 1 << 18])
@pytest.mark.parametrize(
    "function", [_shifted, _by_item, _added, _into, _transposed, _of_its_own, _apart]
)
def test_writes_that_overlap_in_part(function: Callable[..., Any], size: int) -> None:
    if function is _transposed and size != 9:
        pytest.skip("it has nine elements")
    eager, own = torch.arange(float(size)), torch.arange(float(size))
    raised = []
    for call, x in ((function, eager), (braze.compile(function), own)):
        try:
            call(x)
            raised.append("")
        except RuntimeError as error:
            raised.append(str(error))
    assert raised[0] == raised[1]
    assert bool(raised[0]) == (function is not _apart)
    assert torch.equal(eager, own)


def test_memory_that_does_not_overlap_keeps_one_graph() -> None:
    report = braze.explain(_apart)(torch.arange(9.0))
    assert report.break_count == 0
    assert report.graph_count == 1


# self, number of indices, source: what does not fit is refused by kernels, where shapes are
# compared whether or not there are rows.
_ROWS = [
    *(((4, 4), 0, (0, 3)), ((4, 4), 2, (2, 3)), ((4, 4), 0, (0, 4)), ((4,), 0, (0,))),
    *(((4, 4), 0, (0,)), ((4,), 1, (1, 1)), ((0, 4), 0, (0, 4)), ((0, 4), 1, (1, 4))),
    *(((4, 0), 0, (0, 0)), ((4, 0), 2, (2, 1)), ((4, 4), 2, (2, 4)), ((4, 4), 1, (2, 4))),
]


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
def test_shapes_of_rows_are_compared(name: str) -> None:
    def program(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> Any:
        return getattr(x, name)(0, index, source)

    for shape, count, rows in _ROWS:
        given = torch.ones(shape), torch.zeros(count, dtype=torch.int64), torch.ones(rows)
        outcomes = []
        for function in (program, braze.compile(program)):
            try:
                outcomes.append(function(*given).tolist())
            except Exception as error:
                outcomes.append([type(error), str(error)])
        assert outcomes[0] == outcomes[1], (shape, count, rows)
