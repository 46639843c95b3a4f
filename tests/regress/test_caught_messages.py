"""What a program catches speaks of the sizes of the call, not of symbols."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def message_of_a_view(x: torch.Tensor) -> Any:
    try:
        return x.view(x.shape[0] * 2, 2)
    except RuntimeError as error:
        return x * 2, str(error), error.args


def message_of_an_index(x: torch.Tensor) -> Any:
    try:
        return x[x.shape[0] + 2]
    except IndexError as error:
        return x * 2, str(error)


def squared(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y @ y


def message_of_a_callee(x: torch.Tensor) -> Any:
    try:
        made = squared(x)
    except (ValueError, RuntimeError) as error:
        return x * 2, str(error)
    return made


def messages_in_a_loop(x: torch.Tensor) -> Any:
    found: list[Any] = []
    for columns in (2, 3, 4):
        try:
            found.append(x.view(-1, columns) + 1)
        except RuntimeError as error:
            found.append(str(error))
    return found


def behind_finally(x: torch.Tensor) -> Any:
    with torch.no_grad():
        try:
            return x.view(x.shape[0] * 2, 2)
        except RuntimeError as error:
            return str(error)
        finally:
            x.add_(1)


def messages_of_joins(x: torch.Tensor) -> Any:
    """The meta kernels' words are Python's, and C++'s are others."""
    joins: list[Any] = [
        lambda: torch.cat([x, x[0]]),
        lambda: torch.cat([x, x[:, :1]]),
        lambda: torch.cat([x, x, x[:1]], -1),
        lambda: torch.cat([]),
        lambda: torch.cat([x, x.sum()]),
        lambda: torch.cat([x.sum(), x.sum()]),
        lambda: torch.cat([torch.empty(0), x, x[0]]),
        lambda: torch.cat([x, x], 5),
        lambda: torch.stack([x, x[0]]),
        lambda: torch.stack([x, x[:, :1]], 1),
        lambda: torch.stack([]),
        lambda: torch.hstack([x, x[:1]]),
        lambda: torch.vstack([x, x[:, :1]]),
        lambda: torch.add(x, x, out=torch.empty(x.shape, dtype=torch.int16)),
        lambda: x.int().add_(x * 1j),
    ]
    found = [x * 2]
    for join in joins:
        try:
            found.append(join())
        except (RuntimeError, ValueError, IndexError) as error:
            found.append(f"{type(error).__name__}: {error}")  # type: ignore[arg-type]
    return found


PROGRAMS = [
    messages_of_joins,
    message_of_a_view,
    message_of_an_index,
    message_of_a_callee,
    messages_in_a_loop,
    behind_finally,
]


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_messages_are_eagers(program: Any, dynamic: bool | None) -> None:
    compiled = braze.compile(program, dynamic=dynamic, backend="aot_eager")
    for shape in ((4, 3), (5, 3), (7, 3), (6, 6)):
        x = torch.arange(float(shape[0] * shape[1])).view(shape)
        mine = x.clone()
        torch.testing.assert_close(_flat(compiled(mine)), _flat(program(x)))
        assert torch.equal(mine, x)


def _flat(value: Any) -> Any:
    """Texts as the numbers of their letters, which can be compared beside tensors."""
    if isinstance(value, str):
        return [*map(ord, value)]
    return [*map(_flat, value)] if isinstance(value, (list, tuple)) else value


def test_an_exception_that_nobody_looks_at_breaks_nothing() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.view(x.shape[0] * 2, 2)
        except RuntimeError:
            return x * 2

    compiled = braze.compile(program, dynamic=True, backend="aot_eager", fullgraph=True)
    for n in (4, 5):
        assert torch.equal(compiled(torch.ones(n, 3)), torch.full((n, 3), 2.0))
