"""Optimizers whose step branches on numbers of their state, fused ones, and those that break."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import braze
from braze.compat.python.bytecode import decode, meeting_point
from tests.unit.capture.test_backward import breaks_of
from tests.unit.capture.test_whole_step import (
    Make,
    Training,
    assert_same_state,
    compiles_of,
)

# RAdam takes its other branch from the sixth step on, ASGD from the fifth.
BRANCHING: dict[str, Make] = {
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "radamw": lambda p: optim.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "foreach radam": lambda p: optim.RAdam(p, lr=0.01, foreach=True, weight_decay=0.1),
    "asgd": lambda p: optim.ASGD(p, lr=0.1, t0=3, weight_decay=0.1),
    "asgd of two groups": lambda p: optim.ASGD(
        [{"params": p[:2], "t0": 3}, {"params": p[2:], "lr": 0.03}], lr=0.1
    ),
    "foreach asgd": lambda p: optim.ASGD(p, lr=0.1, t0=3, foreach=True),
}
FUSED: dict[str, Make] = {
    "adam": lambda p: optim.Adam(p, fused=True, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, fused=True),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, fused=True),
}
ALL = {**BRANCHING, **{f"fused {name}": make for name, make in FUSED.items()}}


@pytest.mark.parametrize("name", ALL)
def test_one_graph_while_the_step_changes(name: str) -> None:
    eager, ours = Training(ALL[name]), Training(ALL[name])
    compiled = braze.compile(ours.step, backend="aot_eager")
    expected, actual = eager.run(eager.step, 20), ours.run(compiled, 20)
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert_same_state(ours, eager)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


@pytest.mark.parametrize("name", ["radam", "asgd"])
def test_kernels_choose_between_both_sides(name: str) -> None:
    eager, ours = Training(BRANCHING[name]), Training(BRANCHING[name])
    compiled = braze.compile(ours.step)
    eager.run(eager.step, 8)
    ours.run(compiled, 8)
    assert_same_state(ours, eager)
    assert compiles_of(compiled) == 2


def test_a_scaler_skips_a_step_that_branches() -> None:
    class Scaled(Training):
        def __init__(self, make: Make) -> None:
            super().__init__(make)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.detach()

        def train(self, step: Any) -> None:
            for seed in range(12):
                torch.manual_seed(seed)
                x = torch.randn(8, 6)
                if seed in (3, 7):
                    x[0, 0] = float("inf")
                step(x, torch.randint(0, 3, (8,)))

    eager, ours = Scaled(BRANCHING["radam"]), Scaled(BRANCHING["radam"])
    compiled = braze.compile(ours.step, backend="aot_eager")
    eager.train(eager.step)
    ours.train(compiled)
    assert_same_state(ours, eager)
    assert ours.scaler.state_dict() == eager.scaler.state_dict()


class Closed(Training):
    """A step with a closure."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

        return self.optimizer.step(closure)  # type: ignore[return-value, no-any-return]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("behind_torch_compile", [False, True])
def test_lbfgs_breaks_once_and_compiles_its_closure(
    search: str | None, behind_torch_compile: bool
) -> None:
    if behind_torch_compile:  # loading it puts another step into the class
        assert torch.compile(lambda: 1, backend="eager")() == 1

    def make(parameters: list[Any]) -> optim.Optimizer:
        return optim.LBFGS(parameters, max_iter=4, line_search_fn=search)

    eager, ours = Closed(make), Closed(make)
    compiled = braze.compile(ours.step, backend="aot_eager")
    expected, actual = eager.run(eager.step, 3), ours.run(compiled, 3)
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected))
    for p, q in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    reason = "an optimizer decides by the values of tensors what it does next: LBFGS"
    assert breaks_of(compiled) == [reason]
    code = Closed.step.__code__.co_consts
    closure = next(c for c in code if hasattr(c, "co_name") and c.co_name == "closure")
    caches = compiled.__func__.dispatcher.caches()
    assert any(cache.code is closure and cache.entries for cache in caches)


def test_sparse_gradients_break_and_are_right() -> None:
    class Embedded:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.table = nn.Embedding(20, 4, sparse=True)
            self.head = nn.Linear(4, 2)
            self.sparse = optim.SparseAdam(self.table.parameters(), lr=0.1)
            self.dense = optim.Adam(self.head.parameters(), lr=0.1)

        def step(self, x: Tensor) -> Tensor:
            self.sparse.zero_grad()
            self.dense.zero_grad()
            loss = self.head(self.table(x)).square().mean()
            loss.backward()
            self.sparse.step()
            self.dense.step()
            return loss.detach()

    eager, ours = Embedded(), Embedded()
    compiled = braze.compile(ours.step, backend="aot_eager")
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randint(0, 20, (5,))
        torch.testing.assert_close(compiled(x), eager.step(x))
        gradient = ours.table.weight.grad
        assert gradient is not None and gradient.is_sparse
    torch.testing.assert_close(ours.table.weight, eager.table.weight)
    assert any("SparseAdam" in reason for reason in breaks_of(compiled))
    assert compiles_of(compiled) <= 8


def test_numbers_of_tensors_become_tensors() -> None:
    def scaled(x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        number = max(1.0, rate.item() - 2)
        single = torch.tensor(number, dtype=torch.float64)
        return x * torch.as_tensor(number), single.add_(1), torch.tensor([number, 3, 0.5])

    compiled = braze.compile(scaled, backend="aot_eager", fullgraph=True)
    for rate in (0.5, 7.25):
        x, number = torch.randn(3), torch.tensor(rate)
        for found, wanted in zip(compiled(x, number), scaled(x, number), strict=True):
            torch.testing.assert_close(found, wanted)


def test_where_two_sides_meet() -> None:
    def loop(items: list[int]) -> list[int]:
        found = []
        for item in items:
            if item > 2:
                found.append(1)
            else:
                found.append(2)
        return found

    def returns(a: int) -> int:
        if a > 2:
            return 1
        return 2

    def plain(a: int) -> int:
        b = 1 if a > 2 else 2
        return b + a

    def point(function: Any) -> str | None:
        instructions = decode(function.__code__).instructions
        at = next(i for i, one in enumerate(instructions) if one.name == "COMPARE_OP") + 1
        meets = meeting_point(function.__code__, at + 1, instructions[at].target)
        return instructions[meets].name if meets >= 0 else None

    assert point(loop) == "FOR_ITER"
    assert point(plain) == "STORE_FAST"
    assert point(returns) is None


class Decaying:
    """A second moment that decays by a power of the count of steps, as Adafactor's of transformers:
    the count is an integer of Python's."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"step": 0, "moment": torch.zeros(3)}

    def step(self, x: Tensor) -> Tensor:
        self.state["step"] += 1
        decay = 1.0 - math.pow(self.state["step"], -0.8)
        moment: Tensor = self.state["moment"]
        moment.mul_(decay).add_(x.square(), alpha=1 - decay)
        return x / moment.sqrt()


def test_a_power_of_a_count_is_one_graph() -> None:
    eager, ours = Decaying(), Decaying()
    compiled = braze.compile(ours.step)
    for seed in range(6):
        x = torch.rand(3, generator=torch.Generator().manual_seed(seed)) + 1
        torch.testing.assert_close(compiled(x), eager.step(x), rtol=1e-6, atol=1e-7)
    assert ours.state["step"] == 6 and compiles_of(compiled) == 2


@pytest.mark.parametrize("base, exponent", [(-2, 0.5), (0, -1), (-2, 3), (0, 0.5), (3, 700)])
def test_powers_raise_and_round_as_python_s(base: int, exponent: float) -> None:
    """Behind two calls the base is a number of the graph."""

    def scaled(x: Tensor, number: int) -> Tensor:
        return x * math.pow(number, exponent)

    compiled, x = braze.compile(scaled), torch.ones(2, dtype=torch.float64)
    for number in (2, 5, base):
        outcomes: list[Any] = []
        for run in (scaled, compiled):
            try:
                outcomes.append(run(x, number).tolist())
            except (ValueError, OverflowError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]
