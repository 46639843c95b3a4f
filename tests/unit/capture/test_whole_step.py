"""A whole training step in one function: one graph, no recompile when the rate changes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import braze
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.symbolic.symbolic_float import SymbolicFloat
from tests.unit.capture.test_backward import breaks_of

Make = Callable[[list[Any]], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "foreach sgd": lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "adam": lambda p: optim.Adam(p, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p),
    "foreach adamw": lambda p: optim.AdamW(p, foreach=True),
    "maximize": lambda p: optim.AdamW(p, maximize=True),
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.1, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "adamax": lambda p: optim.Adamax(p),
    "nadam": lambda p: optim.NAdam(p),
    "rprop": lambda p: optim.Rprop(p),
    "adafactor": lambda p: optim.Adafactor(p),
    "muon": lambda p: optim.Muon([q for q in p if q.dim() == 2], lr=0.1),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Training:
    """A model, its optimizer and schedule, and the step that trains it."""

    def __init__(self, make: Make) -> None:
        self.model = net()
        self.optimizer = make(list(self.model.parameters()))
        self.schedule = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Callable[..., Any], count: int) -> list[Any]:
        losses = []
        for seed in range(count):
            torch.manual_seed(seed)
            losses.append(step(torch.randn(8, 6), torch.randint(0, 3, (8,))))
            self.schedule.step()
        return losses


def compiles_of(compiled: Any) -> int:
    """How many ways through it were compiled."""
    function = getattr(compiled, "__func__", compiled)
    return sum(len(cache.entries) for cache in function.dispatcher.caches())


def assert_same_state(actual: Training, expected: Training) -> None:
    """Parameters, gradients, and every entry of the optimizer's state, with its kind and order."""
    pairs = zip(actual.model.parameters(), expected.model.parameters(), strict=True)
    for p, q in pairs:
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
        assert (p.grad is None) is (q.grad is None)
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6)
        mine, theirs = actual.optimizer.state.get(p), expected.optimizer.state.get(q)
        assert (mine is None) is (theirs is None)
        if mine is None or theirs is None:
            continue
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            assert type(mine[name]) is type(value)
            if isinstance(value, Tensor):
                torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-6)
                assert mine[name].stride() == value.stride()
            else:
                assert mine[name] == value
    assert [g["lr"] for g in actual.optimizer.param_groups] == [
        g["lr"] for g in expected.optimizer.param_groups
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    """Two compiles: one makes the state, one meets it. Then the rate changes at each step."""
    eager, ours = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    compiled = braze.compile(ours.step)
    expected, actual = eager.run(eager.step, 5), ours.run(compiled, 5)
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), rtol=1e-4, atol=1e-6)
    assert_same_state(ours, eager)
    assert breaks_of(compiled) == []
    assert compiles_of(compiled) == 2


def test_parameters_are_written_in_their_memory() -> None:
    training = Training(OPTIMIZERS["adamw"])
    parameters = list(training.model.parameters())
    before = [(p.data_ptr(), p._version) for p in parameters]
    training.run(braze.compile(training.step), 3)
    for p, (address, version) in zip(parameters, before, strict=True):
        assert p.data_ptr() == address
        assert p._version > version


def test_clipped_gradients() -> None:
    class Clipped(Training):
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
            self.optimizer.step()
            return norm

    eager, ours = Clipped(OPTIMIZERS["sgd"]), Clipped(OPTIMIZERS["sgd"])
    compiled = braze.compile(ours.step)
    expected, actual = eager.run(eager.step, 4), ours.run(compiled, 4)
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected))
    assert_same_state(ours, eager)
    assert breaks_of(compiled) == []


def test_moving_average_of_parameters() -> None:
    class Averaged(Training):
        def __init__(self, make: Make) -> None:
            super().__init__(make)
            self.average = [p.detach().clone() for p in self.model.parameters()]

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = super().step(x, y)
            with torch.no_grad():
                for mean, p in zip(self.average, self.model.parameters()):
                    mean.lerp_(p, 0.1)
            return loss

    eager, ours = Averaged(OPTIMIZERS["adamw"]), Averaged(OPTIMIZERS["adamw"])
    compiled = braze.compile(ours.step)
    eager.run(eager.step, 3)
    ours.run(compiled, 3)
    assert_same_state(ours, eager)
    for mean, expected in zip(ours.average, eager.average, strict=True):
        torch.testing.assert_close(mean, expected)
    assert breaks_of(compiled) == []


def test_parameter_without_gradient_is_left_alone() -> None:
    class Partial(Training):
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss: Tensor = self.model[0](x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    eager, ours = Partial(OPTIMIZERS["adamw"]), Partial(OPTIMIZERS["adamw"])
    compiled = braze.compile(ours.step)
    eager.run(eager.step, 3)
    ours.run(compiled, 3)
    for p, q in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None)
        torch.testing.assert_close(p, q)
    untouched = ours.model[2].weight
    assert untouched.grad is None and untouched not in ours.optimizer.state
    assert breaks_of(compiled) == []


def test_two_groups_of_parameters() -> None:
    def make(parameters: list[Any]) -> optim.Optimizer:
        decayed = [p for p in parameters if p.dim() > 1]
        rest = [p for p in parameters if p.dim() == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "lr": 0.03}]
        return optim.AdamW(groups, lr=0.01)

    eager, ours = Training(make), Training(make)
    compiled = braze.compile(ours.step)
    eager.run(eager.step, 4)
    ours.run(compiled, 4)
    assert_same_state(ours, eager)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


# --- symbolic floats -----------------------------------------------------------------------------


def test_a_float_that_changes_is_passed() -> None:
    def scale(x: Tensor, factor: float) -> tuple[Tensor, float]:
        return x * factor + (1 - factor) ** 2, factor / 3

    compiled = braze.compile(scale)
    x = torch.randn(5)
    for factor in (0.5, 0.25, 1.5, -2.0, 1e-3):
        actual, expected = compiled(x, factor), scale(x, factor)
        torch.testing.assert_close(actual[0], expected[0])
        assert type(actual[1]) is float and actual[1] == expected[1]
    assert compiles_of(compiled) == 2


def test_a_branch_on_a_float_is_guarded() -> None:
    def choose(x: Tensor, factor: float) -> Tensor:
        return x * factor if factor > 1 else x - factor

    compiled = braze.compile(choose)
    x = torch.randn(5)
    for factor in (0.5, 2.0, 0.25, 3.0, 0.5):
        torch.testing.assert_close(compiled(x, factor), choose(x, factor))


def test_a_number_of_a_tensor_is_of_double_precision() -> None:
    def decay(count: Tensor, x: Tensor) -> tuple[Tensor, float]:
        count += 1
        step = count.item()
        correction = 1 - 0.999**step
        return x / math.sqrt(correction), correction

    compiled = braze.compile(decay)
    count, other, x = torch.zeros(()), torch.zeros(()), torch.randn(4)
    for _ in range(4):
        actual, expected = compiled(count, x), decay(other, x)
        torch.testing.assert_close(actual[0], expected[0])
        assert actual[1] == pytest.approx(expected[1], rel=1e-15)
    assert count.item() == 4
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 1)


def test_what_needs_the_number_of_a_tensor_breaks() -> None:
    def branch(x: Tensor) -> Any:
        total = x.sum().item()
        return (x + 1, "more") if total > 0 else (x - 1, f"{total:.3f}")

    compiled = braze.compile(branch)
    for x in (torch.ones(3), -torch.ones(3)):
        actual, expected = compiled(x), branch(x)
        torch.testing.assert_close(actual[0], expected[0])
        assert actual[1] == expected[1]


def test_item_of_the_loss_is_a_float() -> None:
    training, eager = Training(OPTIMIZERS["sgd"]), Training(OPTIMIZERS["sgd"])

    def step(training: Training, x: Tensor, y: Tensor) -> float:
        return training.step(x, y).item()

    compiled = braze.compile(step)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    for _ in range(3):
        actual = compiled(training, x, y)
        assert type(actual) is float
        assert actual == pytest.approx(step(eager, x, y), rel=1e-5)
    assert breaks_of(compiled) == []


def test_gradients_flow_past_numbers() -> None:
    def scaled(x: Tensor, w: Tensor, s: Tensor, factor: float) -> Tensor:
        return (x * w * (s.item() + factor) + w / factor).sum()

    compiled = braze.compile(scaled)
    x, s = torch.randn(5), torch.tensor(0.7)
    for factor in (2.0, 3.0, 4.0):
        w, v = (torch.ones(5, requires_grad=True) for _ in range(2))
        found, expected = compiled(x, w, s, factor), scaled(x, v, s, factor)
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
        torch.testing.assert_close(w.grad, v.grad)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


def test_a_scaler_of_gradients_breaks_and_is_right() -> None:
    """Whether the step is skipped depends on the gradients: the graph breaks there."""

    class Scaled(Training):
        def __init__(self, make: Make) -> None:
            super().__init__(make)
            self.scaler = torch.amp.GradScaler("cpu")

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.detach()

    eager, ours = Scaled(OPTIMIZERS["sgd"]), Scaled(OPTIMIZERS["sgd"])
    compiled = braze.compile(ours.step)
    eager.run(eager.step, 3)
    ours.run(compiled, 3)
    assert_same_state(ours, eager)
    assert ours.scaler.state_dict() == eager.scaler.state_dict()


def test_rate_in_a_tensor() -> None:
    def make(parameters: list[Any]) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=torch.tensor(0.01))

    eager, ours = Training(make), Training(make)
    compiled = braze.compile(ours.step)
    for training, step in ((eager, eager.step), (ours, compiled)):
        for seed in range(4):
            torch.manual_seed(seed)
            step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
            training.optimizer.param_groups[0]["lr"].mul_(0.9)
    assert_same_state(ours, eager)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


@pytest.mark.parametrize("count", [8, 5])
def test_other_sizes_of_batches(count: int) -> None:
    eager, ours = Training(OPTIMIZERS["adamw"]), Training(OPTIMIZERS["adamw"])
    compiled = braze.compile(ours.step)
    for training, step in ((eager, eager.step), (ours, compiled)):
        for seed, size in enumerate((8, 8, count, 7, 3, 11)):
            torch.manual_seed(seed)
            step(torch.randn(size, 6), torch.randint(0, 3, (size,)))
            training.schedule.step()
    assert_same_state(ours, eager)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 3)


def test_schedule_in_the_step() -> None:
    class Scheduled(Training):
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = super().step(x, y)
            self.schedule.step()
            return loss

    eager, ours = Scheduled(OPTIMIZERS["sgd"]), Scheduled(OPTIMIZERS["sgd"])
    compiled = braze.compile(ours.step)
    for step in (eager.step, compiled):
        for seed in range(6):
            torch.manual_seed(seed)
            step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
    assert_same_state(ours, eager)
    assert ours.schedule.last_epoch == eager.schedule.last_epoch
    assert ours.schedule.get_last_lr() == pytest.approx(eager.schedule.get_last_lr())
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


def test_step_with_a_closure() -> None:
    class Closed(Training):
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            def closure() -> float:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
                return loss.detach()  # type: ignore[return-value]

            return self.optimizer.step(closure)  # type: ignore[return-value, no-any-return]

    eager, ours = Closed(OPTIMIZERS["adamw"]), Closed(OPTIMIZERS["adamw"])
    compiled = braze.compile(ours.step)
    expected, actual = eager.run(eager.step, 3), ours.run(compiled, 3)
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected))
    assert_same_state(ours, eager)
    assert breaks_of(compiled) == []


def test_arithmetic_that_may_raise_takes_a_float_as_it_is() -> None:
    def inverse(x: Tensor, factor: float) -> Tensor:
        return x + 1 / factor + math.sqrt(factor)

    compiled = braze.compile(inverse)
    x = torch.randn(3)
    for factor in (2.0, 3.0, 4.0):
        torch.testing.assert_close(compiled(x, factor), inverse(x, factor))
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        compiled(x, -1.0)


def test_no_stand_in_outlives_a_compiled_step() -> None:
    def alive() -> dict[int, object]:
        gc.collect()
        kinds = (TracedTensor, SymbolicFloat)
        return {id(found): found for found in gc.get_objects() if type(found) in kinds}

    before = alive()
    training = Training(OPTIMIZERS["adamw"])
    training.run(braze.compile(training.step), 3)
    assert not set(alive()) - set(before)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_eager_kernels_run_the_same_graph(backend: str) -> None:
    eager, ours = Training(OPTIMIZERS["adamw"]), Training(OPTIMIZERS["adamw"])
    compiled = braze.compile(ours.step, backend=backend)
    eager.run(eager.step, 3)
    ours.run(compiled, 3)
    assert_same_state(ours, eager)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)
