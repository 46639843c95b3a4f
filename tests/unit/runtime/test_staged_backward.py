"""A module in DistributedDataParallel: its gradients leave the compiled backward bucket by bucket,
and are eager's whatever DDP is told and whoever watches them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import braze
from braze.runtime.autograd import staged_backward

WIDTH, LAYERS = 16, 6
SMALL = 0.002  # MiB: a bucket for about two layers


pytestmark = pytest.mark.usefixtures("process_group")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.nn.functional.gelu(self.linear(x)))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One weight at both ends, a parameter that nobody uses, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.layers[2].linear.weight.requires_grad_(False)  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.abs() * 3).long().clamp(max=10)[:, 0]
        return self.layers(x + self.embedding(tokens)) @ self.embedding.weight.t()  # type: ignore[no-any-return]


class SameGradient(nn.Module):
    """Gradients that are one value, and views of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.ParameterList([torch.randn(8, WIDTH) for _ in range(2 * LAYERS)])
        self.table = nn.Parameter(torch.randn(4, WIDTH // 4))
        self.whole = nn.Parameter(torch.randn(8, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:8]
        for bias in self.biases:
            x = x + bias
        return (x + self.whole) * x.shape[0] + self.table.flatten()


class TwoResults(nn.Module):
    """The second result does not depend on the last layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = plain(), plain()

    def forward(self, x: torch.Tensor) -> Any:
        features = self.first(x)
        return self.last(features), features


def plain() -> nn.Module:
    return nn.Sequential(*[Layer() for _ in range(LAYERS)])


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(LAYERS)]
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "two_results": TwoResults,
    "with_batch_norm": with_batch_norm,
    "tied": Tied,
    "same_gradient": SameGradient,
    "checkpointed": lambda: nn.Sequential(*[Checkpointed(Layer()) for _ in range(LAYERS)]),
}
WAYS: dict[str, Callable[..., Any]] = {
    "eager": DistributedDataParallel,
    "wrapped": lambda module, **told: DistributedDataParallel(braze.compile(module), **told),
    "whole": lambda module, **told: braze.compile(DistributedDataParallel(module, **told)),
}
COMPILED = ["wrapped", "whole"]


def steps(model: Any, module: nn.Module, batches: tuple[int, ...] = (12, 12, 12)) -> list[Any]:
    """Losses and gradients of a few steps."""
    seen = []
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        x = torch.randn(batch, WIDTH, dtype=torch.float64)
        optimizer.zero_grad()
        result = model(x)
        results = result if isinstance(result, tuple) else (result,)
        loss = sum(one.square().mean() for one in results)
        loss.backward()
        seen += [
            loss.detach(),
            [p.grad if p.grad is None else p.grad.clone() for p in module.parameters()],
        ]
        optimizer.step()
    return seen


def compared(make: Callable[[], nn.Module], way: str, run: Callable[..., Any], **told: Any) -> None:
    torch.manual_seed(0)
    module = make().double()
    other = copy.deepcopy(module)
    expected = run(WAYS["eager"](module, bucket_cap_mb=SMALL, **told), module)
    found = run(WAYS[way](other, bucket_cap_mb=SMALL, **told), other)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(list(other.parameters()), list(module.parameters()))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in a backward, in order: "stage" where a part of it is run."""
    found: list[str] = []
    run = staged_backward._Stage.__call__

    def recorded(stage: Any, *arguments: Any) -> Any:
        found.append("stage")
        return run(stage, *arguments)

    monkeypatch.setattr(staged_backward._Stage, "__call__", recorded)
    return found


def recording(events: list[str]) -> Callable[[Any, Any], Any]:
    def hook(state: Any, bucket: Any) -> Any:
        events.append("bucket")
        return allreduce_hook(state, bucket)

    hook.__annotations__ = {}  # DDP compares them with classes, and here they are texts
    return hook


def test_buckets_leave_between_stages(events: list[str]) -> None:
    module = plain()
    model = DistributedDataParallel(braze.compile(module, fullgraph=True), bucket_cap_mb=SMALL)
    model.register_comm_hook(None, recording(events))
    for _ in range(3):  # DDP orders its buckets behind the first
        events.clear()
        model(torch.randn(12, WIDTH)).square().mean().backward()
    assert events == ["stage", "bucket"] * (len(events) // 2) and len(events) >= 6


@pytest.mark.parametrize("way", COMPILED)
@pytest.mark.parametrize(
    "told",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", MODELS)
def test_steps_are_eagers(model: str, told: dict[str, Any], way: str, events: list[str]) -> None:
    if model == "tied" and not (told.get("static_graph") or told.get("find_unused_parameters")):
        told = {**told, "find_unused_parameters": True}  # DDP asks for it
    compared(MODELS[model], way, steps, **told)
    assert len(events) >= 6


def test_results_of_different_inputs(events: list[str]) -> None:
    """Buckets leave between stages there, too; and one result alone has its own."""
    module = TwoResults()
    model = DistributedDataParallel(
        braze.compile(module, fullgraph=True), bucket_cap_mb=SMALL, find_unused_parameters=True
    )
    model.register_comm_hook(None, recording(events))
    for _ in range(2):
        events.clear()
        both = model(torch.randn(12, WIDTH))
        sum(one.square().mean() for one in both).backward()
    stages = [n for n, event in enumerate(events) if event == "stage"]
    buckets = [n for n, event in enumerate(events) if event == "bucket"]
    assert len(stages) >= 6 and len(buckets) >= 4
    assert buckets[0] < stages[len(stages) // 3] and buckets[-2] < stages[-1] + 2

    def alone(model: Any, module: nn.Module) -> Any:
        torch.manual_seed(0)
        x = torch.randn(12, WIDTH, dtype=torch.float64, requires_grad=True)
        with model.no_sync():
            logits, features = model(x)
        features.square().mean().backward(retain_graph=True)
        first = [p.grad if p.grad is None else p.grad.clone() for p in module.parameters()]
        logits.square().mean().backward()
        return first, [p.grad for p in module.parameters()], x.grad

    compared(TwoResults, "wrapped", alone)


def test_one_of_several_results(events: list[str]) -> None:
    """All of them depend on all inputs, and one has a gradient."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = plain()

        def forward(self, x: torch.Tensor) -> Any:
            y = self.layers(x)
            return y.sin(), y * 2

    def second(model: Any, module: nn.Module) -> Any:
        torch.manual_seed(0)
        model(torch.randn(12, WIDTH, dtype=torch.float64))[1].square().mean().backward()
        return [p.grad for p in module.parameters()]

    compared(Twice, "wrapped", second)
    assert len(events) >= 3


def test_batches_of_many_sizes(events: list[str]) -> None:
    compared(plain, "wrapped", lambda *both: steps(*both, batches=(8, 9, 11, 8, 13)))
    assert len(events) >= 10


@pytest.mark.parametrize("way", COMPILED)
def test_no_sync(way: str) -> None:
    def accumulated(model: Any, module: nn.Module) -> Any:
        wrapper = getattr(model, "_orig_mod", model)
        for number in range(4):
            torch.manual_seed(number)
            x = torch.randn(12, WIDTH, dtype=torch.float64)
            if number % 2:
                model(x).square().mean().backward()
            else:
                with wrapper.no_sync():
                    model(x).square().mean().backward()
        return [p.grad for p in module.parameters()]

    compared(plain, way, accumulated)


def test_optimizers_in_hooks(events: list[str]) -> None:
    """A hook that steps its parameter: what the backward still reads is the old one."""

    def stepped(model: Any, module: nn.Module) -> Any:
        def step(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad.zero_()

        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for number in range(3):
            torch.manual_seed(number)
            with model.no_sync():
                model(torch.randn(12, WIDTH, dtype=torch.float64)).square().mean().backward()
        return [p.detach() for p in module.parameters()]

    compared(plain, "wrapped", stepped)
    compared(SameGradient, "wrapped", stepped)
    assert events


@pytest.mark.parametrize("kind", ["retained", "inputs", "grad", "create_graph", "batched"])
def test_ways_to_ask_for_gradients(kind: str, events: list[str]) -> None:
    def asked(model: Any, module: nn.Module) -> Any:
        torch.manual_seed(1)
        x = torch.randn(12, WIDTH, dtype=torch.float64, requires_grad=True)
        parameters = list(module.parameters())
        result = model(x)
        loss = result.square().mean()
        match kind:
            case "retained":
                loss.backward(retain_graph=True)
                loss.backward()
                with pytest.raises(RuntimeError, match="second time"):
                    loss.backward()
                return [p.grad for p in parameters]
            case "inputs":
                loss.backward(inputs=parameters[-2:])
                return [p.grad for p in parameters]
            case "grad":
                last = torch.autograd.grad(loss, parameters[-3:], retain_graph=True)
                return last, torch.autograd.grad(loss, [parameters[0], x])
            case "create_graph":
                first = torch.autograd.grad(loss, [x, *parameters], create_graph=True)
                return torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
            case _:
                units = torch.eye(12, dtype=torch.float64)[:, :, None] * torch.ones(WIDTH)
                return torch.autograd.grad(result, parameters, units, is_grads_batched=True)

    compared(
        lambda: nn.Sequential(
            *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        ),
        "wrapped",
        asked,
    )
    assert events or kind in ("create_graph", "batched")


def test_without_a_wrapper_one_node() -> None:
    module = plain()
    y = braze.compile(module, fullgraph=True)(torch.randn(12, WIDTH))
    below = {type(node).__name__ for node, _ in y.grad_fn.next_functions if node is not None}
    assert below == {"AccumulateGrad"}


def test_random_backward_is_whole(events: list[str]) -> None:
    """What draws random numbers in its backward is not divided, and hands over all the same."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (1 + torch.rand_like(gradient))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = plain(), plain()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(Noisy.apply(self.first(x)))  # type: ignore[no-any-return]

    compared(Model, "wrapped", steps)
    assert not events
