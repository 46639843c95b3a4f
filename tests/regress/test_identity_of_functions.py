"""`is` of functions that are made anew for each call: another function of the same code served by
the entry must get the answer that it gets in eager. What is told apart by its code costs no
recompile: the masks of flex_attention, compared with one that says "no mask", did at each call."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import braze
from tests.recorded import recorded

Function = Callable[[torch.Tensor], torch.Tensor]


def other(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def made(bias: float) -> Function:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + bias

    return add


def made_too(bias: float) -> Function:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x * bias

    return add


KEPT = made(1.0)


def applied(x: torch.Tensor, first: Function, second: object) -> torch.Tensor:
    return x.sin() if first is second else first(x)


@pytest.mark.parametrize(
    "second", [other, None, 3, "text", made_too(2.0)], ids=lambda v: type(v).__name__
)
def test_functions_that_are_told_apart_by_code_share_an_entry(second: object) -> None:
    with recorded() as journal:
        compiled = braze.compile(applied, fullgraph=True)
        x = torch.ones(3)
        for bias in (1.0, 1.0, 1.0):
            function = made(bias)
            assert torch.equal(compiled(x, function, second), applied(x, function, second))
    assert len(journal.records()) == 1, [str(r) for r in journal.records()]


def test_functions_of_one_code_are_told_apart_by_identity() -> None:
    """In every order of the same and others, as arguments and as globals."""
    first, second = made(1.0), made(1.0)
    pairs = [(first, first), (first, second), (second, first), (first, KEPT), (KEPT, KEPT)]
    x = torch.ones(3)
    for order in itertools.permutations(pairs):
        compiled = braze.compile(applied, options={"recompile_limit": 20})
        for pair in order[:3]:
            assert torch.equal(compiled(x, *pair), applied(x, *pair)), order


def test_the_code_of_the_other_function_may_change() -> None:
    def against(x: torch.Tensor, function: Function) -> torch.Tensor:
        return x.sin() if function is victim else x.cos()

    def victim(x: torch.Tensor) -> torch.Tensor:
        return x - 2

    compiled, x = braze.compile(against), torch.ones(3)
    function = made(1.0)
    torch.testing.assert_close(compiled(x, function), x.cos())
    bound = made(1.0)
    torch.testing.assert_close(compiled(x, bound), x.cos())
    torch.testing.assert_close(compiled(x, victim), x.sin())


class Holder:
    """What carries a function: a mask of attention, a configuration."""

    def __init__(self, function: Function) -> None:
        self.function = function


def by_holder(x: torch.Tensor, holder: Holder) -> torch.Tensor:
    return x if holder.function is other else holder.function(x)


def test_functions_that_arguments_carry_are_told_apart_by_code() -> None:
    compiled, x = braze.compile(by_holder, fullgraph=True), torch.ones(3)
    with recorded() as journal:
        for holder in (Holder(made(2.0)), Holder(made(2.0)), Holder(made(2.0))):
            assert torch.equal(compiled(x, holder), by_holder(x, holder))
    assert len(journal.records()) <= 1
    for holder in (Holder(made(3.0)), Holder(made_too(4.0)), Holder(other), Holder(made(2.0))):
        assert torch.equal(compiled(x, holder), by_holder(x, holder))


def test_new_mask_functions_of_one_code_share_an_entry() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def mask_of(documents: torch.Tensor):  # type: ignore[no-untyped-def]
        def same(b, h, q, kv):  # type: ignore[no-untyped-def]
            return (documents[q] == documents[kv]) & (q >= kv)

        return create_block_mask(same, 1, None, 64, 64, device="cpu", BLOCK_SIZE=16)

    compiled, q = braze.compile(flex_attention, fullgraph=True), torch.randn(1, 2, 64, 8)
    for length in (7, 20, 33, 50):
        mask = mask_of(torch.arange(64) // length)
        torch.testing.assert_close(
            compiled(q, q, q, block_mask=mask), flex_attention(q, q, q, block_mask=mask)
        )
    (row,) = [row for row in braze.status() if "flex_attention" in row.name]
    assert row.recompiles == 0, row.last_recompile


class Owner:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x


OWNER, ANOTHER = Owner(), Owner()
METHOD = OWNER.method


def by_identity(x: torch.Tensor, first: object, second: object) -> torch.Tensor:
    return x + (1 if first is second else 2)


def by_equality(x: torch.Tensor, first: object, second: object) -> torch.Tensor:
    return x + (1 if first == second else 2)


def against_a_global(x: torch.Tensor, first: object, second: object) -> torch.Tensor:
    return x + (1 if first is METHOD else 2)


@pytest.mark.parametrize("function", [by_identity, by_equality, against_a_global])
def test_bound_methods_are_told_apart_as_in_eager(function: Callable[..., torch.Tensor]) -> None:
    """An entry compiled for two methods served one method twice, and methods of two objects."""
    x = torch.zeros(1)
    calls: list[Callable[[], tuple[object, object]]] = [
        lambda: (OWNER.method, OWNER.method),
        lambda: (METHOD, METHOD),
        lambda: (OWNER.method, ANOTHER.method),
        lambda: (METHOD, OWNER.method),
    ]
    for order in itertools.permutations(calls):
        compiled = braze.compile(function, options={"recompile_limit": 20})
        for make in order:
            first, second = make()
            assert torch.equal(compiled(x, first, second), function(x, first, second)), order
