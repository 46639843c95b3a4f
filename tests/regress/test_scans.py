"""`scan`, `map` and `associative_scan` are one node, whatever the length: what is counted are the
operators of the graph, the graphs and the kernels.

The oracle is Python's own `for`, with gradients of everything that the functions close over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import braze
from braze.trace import Journal

Tensor = torch.Tensor


class Weights(nn.Module):
    """What the functions close over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)
        self.cell = nn.GRUCell(6, 6)
        self.scale = nn.Parameter(torch.rand(6))


class Pair(NamedTuple):
    """A tree of the program's own."""

    total: Tensor
    count: Tensor


def loop(step: Callable[..., Any], carried: Any, rows: Tensor) -> Any:
    """What `scan` means."""
    made = []
    for row in rows:
        carried, out = step(carried, row)
        made.append(out)
    return carried, torch.stack(made)


def recurrence(m: Weights, x: Tensor, over: Any) -> Any:
    return over(lambda c, row: (c * m.scale + row, (c * row).sin()), x[0] * 0, x)


def cell(m: Weights, x: Tensor, over: Any) -> Any:
    def step(state: Tensor, row: Tensor) -> Any:
        state = m.cell(row.unsqueeze(0), state)
        return state, m.linear(state)

    return over(step, torch.zeros(1, 6), x)


def tree(m: Weights, x: Tensor, over: Any) -> Any:
    def step(carried: Pair, row: Tensor) -> Any:
        made = Pair(carried.total + row * m.scale, carried.count + 1)
        return made, made.total.cumsum(0) * made.count

    last, rows = over(step, Pair(torch.zeros(6), torch.zeros(())), x)
    assert type(last) is Pair
    return last.total, last.count, rows


def branch(m: Weights, x: Tensor, over: Any) -> Any:
    def step(total: Tensor, row: Tensor) -> Any:
        made = torch.cond(row.sum() > 0, lambda t, r: t + m.linear(r), torch.sub, (total, row))
        return made, made * row

    def in_python(total: Tensor, row: Tensor) -> Any:
        made = total + m.linear(row) if row.sum() > 0 else total - row
        return made, made * row

    return over(step if over is scan else in_python, torch.ones(6), x)


def nested(m: Weights, x: Tensor, over: Any) -> Any:
    def outer(total: Tensor, row: Tensor) -> Any:
        last, inside = over(lambda c, r: (c * 0.5 + r, c * r), total.sum(), row * m.scale)
        return total + last, inside

    return over(outer, torch.ones(6), x)


def without_gradients(m: Weights, x: Tensor, over: Any) -> Any:
    def step(count: Tensor, row: Tensor) -> Any:
        return count + 1, row * count * m.scale

    return over(step, torch.tensor(0), x)


def sizes(m: Weights, x: Tensor, over: Any) -> Any:
    def step(total: Tensor, row: Tensor) -> Any:
        return total + row * x.shape[0], x[-1] * row

    return over(step, torch.zeros(6), x)


def nightly(*programs: Any) -> list[Any]:
    return [pytest.param(program, marks=pytest.mark.nightly) for program in programs]


SCANS = [tree, nested, *nightly(recurrence, cell, branch, without_gradients, sizes)]
LENGTHS = (5, 9, 1)


def same(found: Any, expected: Any, ours: Tensor, theirs: Tensor, model: nn.Module) -> None:
    """Values, and gradients of the input and of the weights."""
    torch.testing.assert_close(found, expected)
    grads = []
    for made, x in ((found, ours), (expected, theirs)):
        leaves = [made] if isinstance(made, Tensor) else made
        total = sum((t * t.detach().cos()).sum() for t in leaves if t.requires_grad)
        grads.append(
            torch.autograd.grad(total, [x, *model.parameters()], allow_unused=True)  # type: ignore[arg-type]
        )
    for mine, eagers in zip(*grads):
        zero = eagers if mine is None else torch.zeros_like(mine)
        torch.testing.assert_close(*(zero if g is None else g for g in (mine, eagers)))


@pytest.mark.parametrize("program", SCANS)
def test_scans_are_those_of_for(program: Callable[..., Any], journal: Journal) -> None:
    model = Weights()
    compiled = braze.compile(lambda x: program(model, x * 2, scan), fullgraph=True)
    for seed, length in enumerate(LENGTHS):
        torch.manual_seed(seed)
        x = torch.randn(length, 6)
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        same(compiled(ours), program(model, theirs * 2, loop), ours, theirs, model)
    graphs = sum(record.outcome == "graph" for record in journal.records())
    assert graphs <= 3, "one at one length, one at many, one at one row"


def halves(m: Weights, x: Tensor, over: Any = None) -> Tensor:
    made: Tensor = map_rows(lambda row, s: m.linear(row * s).relu(), x, m.scale)
    return made


def sums(m: Weights, x: Tensor, over: Any = None) -> Tensor:
    made: Tensor = associative_scan(lambda a, b: a + b, x * m.scale, 0, combine_mode="generic")
    return made


def linear_recurrence(m: Weights, x: Tensor, over: Any = None) -> Tensor:
    """As state space models have it: h = a h + b."""

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    decay = (x * m.scale).sigmoid()
    made: Tensor = associative_scan(combine, (decay, x), 0, reverse=True, combine_mode="generic")[1]
    return made


def _recurrence(m: Weights, x: Tensor) -> Tensor:
    state, made = torch.zeros(6), []
    for row in x.flip(0):
        state = state * (row * m.scale).sigmoid() + row
        made.append(state)
    return torch.stack(made).flip(0)


MEANINGS: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
    halves: lambda m, x: torch.stack([m.linear(row * m.scale).relu() for row in x]),
    sums: lambda m, x: (x * m.scale).cumsum(0),
    linear_recurrence: _recurrence,
}


@pytest.mark.parametrize("program", [halves, linear_recurrence, *nightly(sums)])
def test_maps_and_associative_scans(program: Callable[..., Tensor], journal: Journal) -> None:
    model = Weights()
    compiled = braze.compile(lambda x: program(model, x * 2), fullgraph=True)
    for length in LENGTHS:
        ours, theirs = (torch.randn(length, 6).requires_grad_() for _ in range(2))
        ours.data.copy_(theirs)
        same(compiled(ours), MEANINGS[program](model, theirs * 2), ours, theirs, model)
    graphs = sum(record.outcome == "graph" for record in journal.records())
    assert graphs <= 3, "one at one length, one at many, one at one row"


@pytest.mark.parametrize(
    "program",
    [tree, halves, linear_recurrence]
    + nightly(recurrence, cell, branch, nested, without_gradients, sizes, sums),
)
def test_cost_of_compiling_is_that_of_one_turn(program: Callable[..., Any]) -> None:
    """As many operators and kernels for 12 rows as for 3."""
    counted = []
    for length in (3, 12):
        model, x = Weights(), torch.randn(length, 6, requires_grad=True)
        explanation = braze.explain(lambda x, m=model: program(m, x, scan))(x)  # type: ignore[misc]
        assert explanation.graph_count == 1 and not explanation.break_reasons
        counted.append((explanation.op_count, explanation.counters["kernels"]))
    assert counted[0] == counted[1]


def test_turns_that_do_more_than_compute_are_unrolled() -> None:
    """Random numbers are eager's; what the program notes is noted a turn."""
    seen: list[str] = []

    def draws(x: Tensor) -> Any:
        return scan(lambda c, row: (c + torch.rand_like(c), row * 2), torch.zeros(3), x)

    def notes(x: Tensor) -> Any:
        def step(c: Tensor, row: Tensor) -> Any:
            seen.append("turn")
            return c + row, row * 2

        return scan(step, torch.zeros(3), x)

    x = torch.randn(4, 3)
    torch.manual_seed(0)
    expected = sum(torch.rand(3) for _ in range(4))
    torch.manual_seed(0)
    torch.testing.assert_close(braze.compile(draws, fullgraph=True)(x)[0], expected)
    torch.testing.assert_close(braze.compile(notes, fullgraph=True)(x)[0], x.sum(0))
    assert seen == ["turn"] * 4


@pytest.mark.parametrize(
    "step",
    [
        lambda c, row: ((c + row)[:2], row * 2),
        lambda c, row: ((c + row).double(), row * 2),
        lambda c, row: (c + row, row * 2, c),
        lambda c, row: c + row,
    ],
)
def test_mismatches_are_refused(step: Callable[..., Any]) -> None:
    """By an exception of PyTorch's kind."""

    def program(x: Tensor) -> Any:
        return scan(step, torch.zeros(3), x)

    x = torch.randn(4, 3)
    with pytest.raises(RuntimeError):  # PyTorch's UncapturedHigherOrderOpError is one
        braze.compile(program, fullgraph=True)(x)


def test_a_step_of_training_is_one_graph() -> None:
    """With the backward in the frame, at lengths that change."""
    model = Weights()

    def step(x: Tensor) -> Tensor:
        loss = cell(model, x, scan)[1].square().mean()
        loss.backward()
        return loss.detach()

    compiled = braze.compile(step)
    for length in (3, 5, 7):
        x = torch.randn(length, 6)
        model.zero_grad()
        found = compiled(x), [p.grad for p in model.parameters()]
        model.zero_grad()
        loss = cell(model, x, loop)[1].square().mean()
        loss.backward()
        torch.testing.assert_close(found, (loss.detach(), [p.grad for p in model.parameters()]))


ALONG_COLUMNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda a, b: associative_scan(torch.add, a, 1, combine_mode="generic") * b,
    "product": lambda a, b: associative_scan(torch.mul, a, 1, combine_mode="generic") * b,
    "moved": lambda a, b: associative_scan(torch.add, a.mT, 0, combine_mode="generic") * b.mT,
    "scan": lambda a, b: scan(lambda c, r: (c * r, c + r), a[:, 0] * 0 + 1, a, dim=1)[1] * b,
}


@pytest.mark.parametrize("name", ALONG_COLUMNS)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_gradients_along_columns_of_changing_sizes(name: str, dynamic: bool | None) -> None:
    """What a turn is given lies in memory otherwise than what the turn before gave."""
    f = ALONG_COLUMNS[name]
    compiled = braze.compile(f, dynamic=dynamic)
    for columns in (3, 8, 5):
        a, b = torch.rand(2, columns, requires_grad=True), torch.rand(2, columns)
        expected = torch.autograd.grad(f(a, b).sum(), a)
        torch.testing.assert_close(torch.autograd.grad(compiled(a, b).sum(), a), expected)


def test_gradients_of_a_loop_over_a_transposed_tensor() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        turns = torch.tensor(3)
        _, made = while_loop(
            lambda n, y: n > 0, lambda n, y: (n - 1, (y * 2).clone()), (turns, x.t())
        )
        return made * w

    compiled = braze.compile(f, dynamic=True)
    for rows in (3, 5):
        x, w = torch.rand(rows, 4, requires_grad=True), torch.rand(4, rows)
        (found,) = torch.autograd.grad(compiled(x, w).sum(), x)
        torch.testing.assert_close(found, 8 * w.t())
