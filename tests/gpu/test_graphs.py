"""Graphs on a device: kernels, streams, threads, sizes, parts on the CPU, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import braze
from braze.trace import Journal
from tests.gpu.checks import MODES, NEEDS_DEVICE, check, fallbacks, no_fallbacks, train_both

pytestmark = NEEDS_DEVICE


def _pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2 + y.sin()


def _write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    y[0] = 1
    return x @ y


def _products(x: torch.Tensor, y: torch.Tensor) -> Any:
    for _ in range(4):
        x = torch.relu(x @ y) + x
    return x, x.softmax(-1), x.sum(0)


def _layouts(x: torch.Tensor, y: torch.Tensor) -> Any:
    both = torch.cat([x.t(), y * 2], 1)
    return both, both[:, 3:9], functional.pad(x, (1, 2)), x[:, 0] + y[3], x.argmax(1)


def _factories(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = x.shape[1]
    made = torch.arange(n, device=x.device) + torch.ones(n, device="cuda")
    return x + made + torch.tensor([1.5], device=x.device), torch.zeros_like(y)


def _mixed(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * torch.tensor(3.0) + torch.ones(64).cuda(), (y * 2).cpu() + 1


PROGRAMS = (_pointwise, _write, _products, _layouts, _factories, _mixed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(
    journal: Journal, program: Callable[..., Any], dtype: torch.dtype, mode: str | None
) -> None:
    inputs = [[torch.randn(64, 64, device="cuda").div(8).to(dtype) for _ in "xy"] for _ in "abcd"]
    with torch.no_grad():
        if dtype is torch.float32:
            check(program, inputs, mode)
        else:
            compiled = braze.compile(program, mode=mode)
            for args in inputs:
                found, right = compiled(*[a.clone() for a in args]), program(*args)
                torch.testing.assert_close(found, right, rtol=5e-2, atol=5e-2)
    assert not [reason for reason in fallbacks(journal) if "failed" in reason]


@pytest.mark.parametrize("mode", MODES)
def test_a_number_on_the_cpu_is_read_at_each_call(journal: Journal, mode: str | None) -> None:
    x = torch.randn(100, device="cuda")
    with no_fallbacks(journal), torch.no_grad():
        compiled = braze.compile(lambda x, s: x * s + 1, mode=mode)
        for value in (2.0, 3.0, -1.5, 0.0, 7.0):
            s = torch.tensor(value, dtype=torch.float64)
            torch.testing.assert_close(compiled(x, s), x * value + 1)


def test_pointers_that_are_not_aligned(journal: Journal) -> None:
    memory = torch.randn(5000, device="cuda")
    with no_fallbacks(journal), torch.no_grad():
        compiled = braze.compile(lambda x: x * 2 + 1)
        for start in (0, 1, 2, 3, 4, 1):
            x = memory[start : start + 1000]
            torch.testing.assert_close(compiled(x), x * 2 + 1)


@pytest.mark.parametrize("mode", MODES)
def test_other_streams(mode: str | None) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    compiled = braze.compile(_products, mode=mode)
    w = torch.randn(512, 512, device="cuda") / 30
    torch.cuda.synchronize()
    results = []
    with torch.no_grad():
        for number in range(12):
            with torch.cuda.stream(streams[number % 3]):
                x = torch.full((512, 512), float(number), device="cuda")
                results.append((compiled(x, w), x))
        torch.cuda.synchronize()
        for found, x in results:
            torch.testing.assert_close(found, _products(x, w), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_threads(mode: str | None) -> None:
    compiled = braze.compile(_pointwise, mode=mode)
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(50):
                x = torch.full((64, 64), float(number), device="cuda")
                if not torch.allclose(compiled(x, x), _pointwise(x, x), atol=1e-5):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("mode", MODES)
def test_sizes_that_change(mode: str | None) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.softmax(-1) @ x.t(), x.sum(0), x[1:] * x.shape[0]

    inputs = [[torch.randn(n, 33, device="cuda")] for n in (3, 64, 3, 64, 3, 100, 64, 1, 100)]
    with torch.no_grad():
        check(program, inputs, mode, dynamic=True)


def test_random_numbers_are_eagers() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.3) + torch.rand_like(x) + x.bernoulli(0.5)

    x = torch.rand(1000, device="cuda")
    for mode in MODES:
        compiled = braze.compile(program, mode=mode)
        for seed in range(4):
            torch.manual_seed(seed)
            right = [program(x), program(x)]
            torch.manual_seed(seed)
            torch.testing.assert_close([compiled(x), compiled(x)], right)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_gradients_behind_random_numbers(mode: str | None) -> None:
    """The forward is run again, and has to draw what it drew."""
    weight = torch.rand(64, device="cuda")

    def program(x: torch.Tensor) -> torch.Tensor:
        return (functional.dropout(x * weight, 0.5) + torch.rand_like(x)).square().sum()

    found = []
    for call in (program, braze.compile(program, mode=mode)):
        torch.manual_seed(0)
        gradients = []
        for _ in range(4):
            x = torch.linspace(-1, 1, 64, device="cuda").requires_grad_()
            (gradient,) = torch.autograd.grad(call(x), x, create_graph=True)
            torch.rand(3, device="cuda")
            gradient.pow(3).sum().backward()
            gradients += [gradient.detach(), x.grad, torch.cuda.get_rng_state()]
        found.append(gradients)
    torch.testing.assert_close(*found)


def test_what_faults_draws_the_same_again() -> None:
    """A check that fails when numbers have been drawn: eager kernels run the call."""

    def program(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand_like(x)
        return drawn + x[:, : int(places.max())]

    compiled = braze.compile(program)
    x = torch.rand(4, 8, device="cuda")
    outcomes = []
    for call in (program, compiled):
        torch.manual_seed(0)
        drawn = []
        for most in (8, 8, 5, 8):
            try:
                drawn.append(call(x, torch.tensor([1, most])))
            except RuntimeError:
                drawn.append(torch.rand(3, device="cuda"))
        outcomes.append(drawn)
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("mode", MODES)
def test_training(journal: Journal, mode: str | None) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 8)]
    with no_fallbacks(journal):
        model = nn.Sequential(*layers).cuda()
        train_both(model, lambda n: torch.randn(32, 64, device="cuda"), 8, mode)


@pytest.mark.parametrize("mode", MODES)
def test_training_of_convolutions(journal: Journal, mode: str | None) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.AvgPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 7 * 7, 4)).cuda()
    with no_fallbacks(journal):
        train_both(model, lambda n: torch.randn(16, 3, 16, 16, device="cuda"), 8, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True}, {}])
def test_a_whole_step_of_adam(options: dict[str, Any], mode: str | None) -> None:
    x = torch.randn(32, 64, device="cuda")
    losses = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, **options)

        def step(model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = braze.compile(step, mode=mode) if compiles else step
        found = []
        for number in range(10):
            if number == 5:
                optimizer.param_groups[0]["lr"] = 5e-3
            found.append(run())
        losses.append(torch.stack(found))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-6)


def test_attention_in_half_precision(journal: Journal) -> None:
    def program(q: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with no_fallbacks(journal):
        found = braze.compile(program)(q)
        (mine,) = torch.autograd.grad(found.float().square().sum(), q)
    right = program(q)
    (theirs,) = torch.autograd.grad(right.float().square().sum(), q)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(mine, theirs)


def test_autocast(journal: Journal) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return functional.softmax(x @ w, -1)

    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    with no_fallbacks(journal), torch.no_grad():
        torch.testing.assert_close(braze.compile(program)(x, w), program(x, w))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one device")
def test_another_device_than_the_current_one(journal: Journal) -> None:
    x, y = torch.randn(64, 64, device="cuda:1"), torch.randn(64, 64, device="cuda:1")
    with no_fallbacks(journal), torch.no_grad():
        for mode in MODES:
            compiled = braze.compile(_products, mode=mode)
            for _ in range(4):
                torch.testing.assert_close(compiled(x, y / 8), _products(x, y / 8))
    assert torch.cuda.current_device() == 0


def _after_four_steps(name: str, foreach: bool, compiles: bool) -> list[torch.Tensor]:
    """The parameters, and the optimizer's state."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).cuda()
    x = torch.randn(5, 4, device="cuda")
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, foreach=foreach)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    call = braze.compile(step) if compiles else step
    for _ in range(4):
        call(x)
    states = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return [*model.parameters(), *[v for v in states if isinstance(v, torch.Tensor)]]


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "NAdam", "RAdam", "ASGD", "Rprop", "Adadelta", "Adagrad", "Adamax"]
)
@pytest.mark.parametrize("foreach", [False, True])
def test_steps_whose_numbers_are_the_cpu_s(name: str, foreach: bool) -> None:
    """NAdam scales a state on the CPU by a number that is computed there."""
    expected = _after_four_steps(name, foreach, compiles=False)
    found = _after_four_steps(name, foreach, compiles=True)
    for ours, eager in zip(found, expected, strict=True):
        assert ours.device == eager.device
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
