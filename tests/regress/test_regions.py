"""Branches and loops that stay in the graph: what is counted is what ran, and what was compiled.

The oracle is Python's own `if` and `while`. Bodies, predicates and sizes are tables; each program
is every one with every other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.profiler import ProfilerActivity, profile

import braze
from braze.trace import Journal

Tensor = torch.Tensor
BACKENDS = ("braze", "aot_eager", "eager")
IS_WHOLE = bool(os.environ.get("BRAZE_ALL_REGIONS"))  # each with each takes minutes
WAYS = [("braze", True), ("braze", False), *[("aot_eager", True), ("eager", True)][: 2 * IS_WHOLE]]


def products(function: Callable[[], Any]) -> list[str]:
    """The matrix products that a call runs."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        function()
    return [
        e.name for e in profiled.events() if e.name in ("aten::mm", "aten::addmm", "aten::conv2d")
    ]


class Weights(nn.Module):
    """What bodies close over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.register_buffer("table", torch.rand(5, 8))


Body = Callable[[Weights, Tensor], Tensor]
BODIES: dict[str, Body] = {
    "pointwise": lambda m, x: (x * m.scale).sin() + 1,
    "product": lambda m, x: m.linear(x).relu(),
    "two products": lambda m, x: m.other(torch.tanh(m.linear(x))),
    "view": lambda m, x: (x.t() + 1).t(),
    "expanded": lambda m, x: (m.scale * 2).expand(x.shape),
    "reduction": lambda m, x: x - x.mean(0, keepdim=True),
    "steep": lambda m, x: (x - x).sqrt() + x,
    "scratch": lambda m, x: torch.zeros_like(x).add_(x).mul_(m.scale),
    "without gradients": lambda m, x: x.detach() * 2,
    "constant": lambda m, x: x * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8]),
    "sizes": lambda m, x: x * x.shape[0] + x.new_full((x.shape[0], 1), 3.0),
    "nested": lambda m, x: torch.cond(
        x.sum() > 3, lambda x: m.linear(x) * 2, lambda x: m.other(x).exp(), (x,)
    ),
}
# As Python would, for the oracle.
PLAIN = {
    **BODIES,
    "nested": lambda m, x: m.linear(x) * 2 if x.sum() > 3 else m.other(x).exp(),
}
PREDICATES: dict[str, Callable[[Tensor], Any]] = {
    "of data": lambda x: x.sum() > 0,
    "of a mean": lambda x: (x.mean(0) > 0).all(),
    "of a shape": lambda x: x.shape[0] > 4,
}
STEP = 1 if IS_WHOLE else 6
PAIRS = [(a, b) for n, a in enumerate(BODIES) for b in list(BODIES)[n % STEP :: STEP] if a != b]


def batches() -> Iterator[Tensor]:
    torch.manual_seed(1)
    for rows in (3, 6, 1, 0):
        for sign in (1, -1):
            yield sign * torch.rand(rows, 8)


def gradients(made: Tensor, x: Tensor, model: nn.Module) -> list[Tensor]:
    leaves = [x, *model.parameters()]
    found = torch.autograd.grad(made.square().sum(), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found)]


@pytest.mark.parametrize(("backend", "training"), WAYS)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_branches_are_those_of_if(
    first: str, second: str, training: bool, backend: str, journal: Journal
) -> None:
    model, (chosen, predicate) = Weights(), list(PREDICATES.items())[len(first) % 3]

    def program(x: Tensor) -> Tensor:
        y = x * 2
        sides = (lambda y: BODIES[first](model, y)), (lambda y: BODIES[second](model, y))
        made: Tensor = torch.cond(predicate(x), *sides, (y,))
        return made + y

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for x in batches():
        side = first if predicate(x) else second
        ours, theirs = (x.clone().requires_grad_(training) for _ in range(2))
        made, expected = compiled(ours), PLAIN[side](model, theirs * 2) + theirs * 2
        torch.testing.assert_close(made, expected, msg=f"{side} {chosen} {tuple(x.shape)}")
        if training:
            found = gradients(made, ours, model)
            torch.testing.assert_close(found, gradients(expected, theirs, model), equal_nan=True)
    graphs = sum(record.outcome == "graph" for record in journal.records())
    assert graphs <= 5, "a graph for many sizes, with exceptions for 0 and 1"


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_taken_branch_runs(backend: str) -> None:
    model = Weights()

    def program(x: Tensor) -> Tensor:
        made: Tensor = torch.cond(
            x.sum() > 0, lambda x: model.linear(x), lambda x: model.other(model.linear(x) + 1), (x,)
        )
        return made

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    ones = torch.ones(4, 8)
    with torch.no_grad():
        for x in (ones, -ones):
            compiled(x)
        count = [len(products(lambda x=x: compiled(x))) for x in (ones, -ones)]  # type: ignore[misc]
        assert count[0] > 0 and count[1] == 2 * count[0]


def test_only_the_taken_branch_raises() -> None:
    def program(x: Tensor, rows: Tensor) -> Tensor:
        made: Tensor = torch.cond(x.sum() > 0, lambda: x.index_select(0, rows), lambda: x[:2] * 2)
        return made + 1

    compiled = braze.compile(program, fullgraph=True)
    wrong = torch.tensor([0, 7])
    torch.testing.assert_close(compiled(-torch.ones(3, 2), wrong), -torch.ones(2, 2))
    with pytest.raises(IndexError):
        compiled(torch.ones(3, 2), wrong)
    torch.testing.assert_close(compiled(torch.ones(3, 2), wrong % 2), torch.full((2, 2), 2.0))


def test_small_branches_are_one_kernel_with_what_is_around(journal: Journal) -> None:
    def program(x: Tensor) -> Tensor:
        made: Tensor = torch.cond(x[0] > 0, lambda x: x.sin(), lambda x: x.cos(), (x * 2,))
        return made + 1

    explanation = braze.explain(braze.compile(program, fullgraph=True))(torch.ones(16))
    assert explanation.graph_count == 1 and explanation.counters["kernels"] == 1
    apart = {"skip_passes": ("convert_conditions",)}
    braze.compile(program, fullgraph=True, options=apart)(torch.ones(16))
    assert journal.records()[-1].counters["kernels"] > 1
    large = braze.explain(braze.compile(program, fullgraph=True))(torch.ones(1 << 20))
    assert large.graph_count == 1 and large.counters["kernels"] > 1


# --- loops ---------------------------------------------------------------------------------------

TURNS: dict[str, Callable[[Weights, Tensor], Tensor]] = {
    "pointwise": lambda m, y: y * 1.5 + m.scale,
    "product": lambda m, y: torch.tanh(m.linear(y)) + y,
    "view": lambda m, y: (y.t() * 2).t(),
    "sizes": lambda m, y: y + y.shape[0],
    "nested": lambda m, y: torch.cond(
        y.sum() > 20, lambda y: m.linear(y) + 3, lambda y: y * 2 + 1, (y,)
    ),
}
PLAIN_TURNS = {**TURNS, "nested": lambda m, y: m.linear(y) + 3 if y.sum() > 20 else y * 2 + 1}


@pytest.mark.parametrize(("backend", "training"), WAYS)
@pytest.mark.parametrize("name", TURNS)
def test_loops_are_those_of_while(
    name: str, training: bool, backend: str, journal: Journal
) -> None:
    model = Weights()

    def program(x: Tensor, limit: Tensor) -> Any:
        count, y = while_loop(
            lambda n, y: (n < 7) & (y.abs().sum() < limit),
            lambda n, y: (n + 1, TURNS[name](model, y)),
            (torch.tensor(0), x * 0.5),
        )
        return count, y + 1

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for x in batches():
        for limit in map(torch.tensor, (0.0, 60.0, 1e9)):
            ours, theirs = (x.clone().requires_grad_(training) for _ in range(2))
            count, made = compiled(ours, limit)
            turns, y = 0, theirs * 0.5
            while turns < 7 and y.abs().sum() < limit:
                turns, y = turns + 1, PLAIN_TURNS[name](model, y)
            assert count.item() == turns
            torch.testing.assert_close(made, y + 1)
            if training:
                found = gradients(made, ours, model)
                torch.testing.assert_close(found, gradients(y + 1, theirs, model))
    graphs = sum(record.outcome == "graph" for record in journal.records())
    assert graphs <= 5


def test_body_is_compiled_once_and_run_a_hundred_times() -> None:
    model = Weights()

    def program(x: Tensor, turns: Tensor) -> Any:
        return while_loop(
            lambda n, y: n < turns, lambda n, y: (n + 1, model.linear(y)), (torch.tensor(0), x)
        )

    with torch.no_grad():
        compiled, x = braze.compile(program, fullgraph=True), torch.ones(4, 8)
        explanation = braze.explain(program)(x, torch.tensor(3))
        assert explanation.graph_count == 1 and not explanation.break_reasons
        compiled(x, torch.tensor(1))
        once = len(products(lambda: compiled(x, torch.tensor(1))))
        assert len(products(lambda: compiled(x, torch.tensor(100)))) == 100 * max(once, 1)


@pytest.mark.parametrize("turns", [0, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_loops_give_what_their_body_gives(backend: str, turns: int) -> None:
    """A tuple, a list or one tensor, whatever they begin with and however often they turn."""

    def program(x: Tensor, turns: Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        return (
            while_loop(lambda n, y: n < turns, lambda n, y: [n + 1, y * 2], (start, x)),
            while_loop(lambda n, y: n < turns, lambda n, y: (n + 1, y * 2), [start, x]),
            while_loop(lambda n: n < turns, lambda n: n + 1, (start,)),
            while_loop(lambda n: n < turns, lambda n: (n + 1,), [start]),
        )

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    listed, paired, bare, single = compiled(torch.ones(2), torch.tensor(turns))
    assert [type(made) for made in (listed, paired, bare, single)] == [list, tuple, Tensor, tuple]
    assert listed[0] == paired[0] == bare == single[0] == turns
    assert torch.equal(listed[1], torch.full((2,), 2.0**turns))
    assert torch.equal(paired[1], listed[1])


def test_other_metadata_is_refused() -> None:
    def program(x: Tensor) -> Any:
        return while_loop(lambda y: y.sum() < 9, lambda y: (y[:1],), (x,))

    with pytest.raises(Exception) as theirs:
        program(torch.ones(3))
    with pytest.raises(RuntimeError):
        braze.compile(program, fullgraph=True)(torch.ones(3))
    assert isinstance(theirs.value, RuntimeError)
