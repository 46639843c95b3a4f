"""Compiled code in a `torch.utils.checkpoint` that something changes between forward and backward:
the recomputation runs it as the forward did, or raises. Never other gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import braze
from braze.errors import RecomputedOtherwise

SCALE = [1.0]


def whole(x: Tensor, w: Tensor) -> Tensor:
    h = torch.tanh(x * w) * SCALE[0]
    return torch.exp(h).mul(h).sin() * w


def broken(x: Tensor, w: Tensor) -> Tensor:
    h = torch.tanh(x * w)
    braze.graph_break()
    return (torch.exp(h).mul(h).sin() * w) * SCALE[0]


def saves_late(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x * 2).sin().amax()
    braze.graph_break()
    return (torch.exp(x * scale).mul(w).sin() * w) * SCALE[0]


Compiled = Callable[[Tensor, Tensor], Tensor]


def _drawn(rows: int = 4) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(rows, 4, requires_grad=True) for _ in range(2))  # type: ignore[return-value]


def _nothing(compiled: Compiled) -> None: ...


def _force_eager(compiled: Compiled) -> None:
    braze.set_stance("force_eager")


def _compile_again(compiled: Compiled) -> None:
    braze.set_stance("default")


def _other_backend(compiled: Compiled) -> None:
    braze.set_stance("default", force_backend="eager")


def _forget(compiled: Compiled) -> None:
    braze.reset()


def _compile_all_sizes(compiled: Compiled) -> None:
    """Entries of other sizes, and one that serves all of them, come before the forward's."""
    for rows in (5, 6, 7):
        compiled(*_drawn(rows))
    compiled(*_drawn(4))


def _reach_limit(compiled: Compiled) -> None:
    for number in range(9):
        compiled(*(t.to(torch.float64 if number % 2 else torch.float32) for t in _drawn()))
        SCALE[0] = 2.0 + number
        compiled(*_drawn())
    SCALE[0] = 1.0


def _change_guarded(compiled: Compiled) -> None:
    SCALE[0] = 1.5


def _change_default_dtype(compiled: Compiled) -> None:
    torch.set_default_dtype(torch.float64)


CHANGES = (
    *(_nothing, _force_eager, _compile_again, _other_backend, _forget, _compile_all_sizes),
    *(_reach_limit, _change_guarded, _change_default_dtype),
)
# What the recomputation cannot follow: values that the forward's graph does not fit.
REFUSES = (_change_guarded, _change_default_dtype)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    braze.set_stance("default")
    torch.set_default_dtype(torch.float32)
    SCALE[0] = 1.0


def rows_named(name: str, calls: int) -> list[Any]:
    return [row for row in braze.status() if row.name == name and row.calls == calls]


def _outcome(
    function: Any,
    before: Callable[[Compiled], None],
    change: Callable[[Compiled], None],
    early_stop: bool,
    backend: str = "braze",
) -> tuple[Any, Any]:
    """The checkpoint's gradients, or what it raised; and eager's."""
    torch.manual_seed(0)
    compiled = braze.compile(function, backend=backend, options={"recompile_limit": 6})
    x, w = _drawn()
    expected = torch.autograd.grad(function(x, w).sum(), (x, w))
    before(compiled)
    y = checkpoint(compiled, x, w, use_reentrant=False, early_stop=early_stop)
    change(compiled)
    try:
        return torch.autograd.grad(y.sum(), (x, w)), expected
    except RecomputedOtherwise as error:
        return error, expected


@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("before", [_nothing, _force_eager, _compile_all_sizes])
@pytest.mark.parametrize(
    ("function", "backend"),
    [(whole, "braze"), (whole, "eager"), (broken, "eager"), (saves_late, "eager")],
)
def test_never_gives_other_gradients(
    function: Any, before: Callable[[Compiled], None], early_stop: bool, backend: str
) -> None:
    for change in CHANGES:
        braze.set_stance("default")
        torch.set_default_dtype(torch.float32)
        SCALE[0] = 1.0
        actual, expected = _outcome(function, before, change, early_stop, backend)
        if isinstance(actual, RecomputedOtherwise):
            assert change in REFUSES and before is not _force_eager, (change, actual)
        elif change is not _change_guarded:
            torch.testing.assert_close(actual, expected, msg=lambda m: f"{change.__name__}: {m}")  # noqa: B023


def test_error_names_both_ways() -> None:
    error, _ = _outcome(whole, _nothing, _change_guarded, True)
    assert isinstance(error, RecomputedOtherwise)
    assert "The forward ran: a compiled graph of whole" in str(error)
    assert "SCALE" in str(error).partition("The recomputation would run: ")[2]


def test_forward_entry_serves_recomputation() -> None:
    compiled: Any = braze.compile(whole, options={"recompile_limit": 6})
    x, w = _drawn()
    y = checkpoint(compiled, x, w, use_reentrant=False)
    with braze.set_stance("force_eager"):
        y.sum().backward()
    (row,) = rows_named("whole", calls=2)
    assert not row.left_to_eager


def test_eager_forward_is_recomputed_eagerly() -> None:
    compiled: Any = braze.compile(whole)
    x, w = _drawn()
    with braze.set_stance("force_eager"):
        y = checkpoint(compiled, x, w, use_reentrant=False)
    compiled(*_drawn())
    y.sum().backward()
    (row,) = rows_named("whole", calls=3)
    assert sorted(why.code for why in row.left_to_eager) == ["recomputed", "stance"]


def test_calls_of_other_checkpoints_do_not_matter() -> None:
    compiled: Any = braze.compile(whole)
    x, w = _drawn()
    expected = torch.autograd.grad(whole(whole(x, w), w).sum(), (x, w))

    def inner(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(compiled, x, w, use_reentrant=False)  # type: ignore[no-any-return]

    def outer(x: Tensor, w: Tensor) -> Tensor:
        return compiled(inner(x, w), w)  # type: ignore[no-any-return]

    y = checkpoint(outer, x, w, use_reentrant=False)
    with braze.set_stance("force_eager"):
        actual = torch.autograd.grad(y.sum(), (x, w))
    torch.testing.assert_close(actual, expected)
