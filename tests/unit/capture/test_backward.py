"""`backward()` and `autograd.grad()` in a compiled function: one graph, eager's state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import braze
from braze.ir.captured.frame import Break
from braze.runtime.dispatch.compiled_function import CompiledCallable


def breaks_of(compiled: Any) -> list[str]:
    """The reasons of all breaks and refusals that compiling met."""
    compiled = getattr(compiled, "__func__", compiled)
    assert isinstance(compiled, CompiledCallable)
    found = []
    for cache in compiled.dispatcher.caches():
        exits = [entry.compiled.exit for entry in cache.entries]
        found += [e.reason.reason for e in exits if isinstance(e, Break)]
        found += [refusal.reason for refusal in cache.refusals if refusal.kind != "raises"]
    return found


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def assert_same(actual: Any, expected: Any) -> None:
    """Two gradients: both absent, or of equal values and layout, none with a history."""
    if expected is None or actual is None:
        assert actual is expected
        return
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()
    assert actual.requires_grad == expected.requires_grad
    assert actual.is_leaf == expected.is_leaf


Step = Callable[[nn.Module, Tensor, Tensor], Any]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


def cleared(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()


def zeroed(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    model.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()


def twice(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    (2 * loss).backward()


def two_batches(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    for part, target in zip(x.chunk(2), y.chunk(2)):
        (F.cross_entropy(model(part), target) / 2).backward()


def weighted(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    out = model(x)
    out.backward(torch.linspace(0, 1, out.numel()).view_as(out))
    return out.detach().sum()


def part_of_it(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    model[2](torch.tanh(model[0](x))).sum().backward()


def given_inputs(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward(inputs=[model[0].weight])


def reads_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    F.cross_entropy(model(x), y).backward()
    return model[0].weight.grad.norm()


def same_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    (model[0].bias + model[2].bias).sum().backward()
    model[0].bias.grad.mul_(3)


def from_autograd(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    loss = F.cross_entropy(model(x), y)
    torch.autograd.backward([loss, loss * 2])
    return loss.detach()


def autocast(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


def backward_under_autocast(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
        loss.backward()


STEPS: list[Step] = [
    plain,
    cleared,
    zeroed,
    twice,
    two_batches,
    weighted,
    part_of_it,
    given_inputs,
    reads_gradient,
    same_gradient,
    from_autograd,
    autocast,
    backward_under_autocast,
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_gradients_are_eagers(step: Step) -> None:
    """Three calls: gradients are made, then added to."""
    eager, model = net(), net()
    compiled = braze.compile(step)
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        expected, actual = step(eager, x, y), compiled(model, x, y)
        assert_same(actual, expected)
        for g, h in zip(gradients(model), gradients(eager), strict=True):
            assert_same(g, h)
    assert breaks_of(compiled) == []


def test_gradient_object_stays_where_it_is_added_to() -> None:
    model = net()
    compiled = braze.compile(plain)
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    compiled(model, x, y)
    first = gradients(model)
    version = first[0]._version  # type: ignore[union-attr]
    compiled(model, x, y)
    assert all(a is b for a, b in zip(gradients(model), first))
    assert first[0]._version > version  # type: ignore[union-attr]


def test_gradients_do_not_share_memory() -> None:
    model = net()
    braze.compile(same_gradient)(model, torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(model[0].bias.grad, torch.full((8,), 3.0))
    torch.testing.assert_close(model[2].bias.grad, torch.ones(8))


def test_loss_that_is_returned_has_a_history_that_is_used_up() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().sum()
        loss.backward()
        return loss

    model, x = net(), torch.randn(4, 6)
    compiled = braze.compile(step)
    loss = compiled(model, x)
    assert loss.requires_grad and loss.grad_fn is not None and not loss.is_leaf
    assert loss.item() == pytest.approx(step(copy.deepcopy(model), x).item())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    assert breaks_of(compiled) == []


def test_history_that_can_still_be_used_leaves_the_graph() -> None:
    """What is returned beside the loss shares with it only leaves, which keep nothing."""

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss, other = model(x).square().sum(), model(x * 2)
        loss.backward()
        return other

    model, eager, x = net(), net(), torch.randn(4, 6)
    compiled = braze.compile(step)
    other, expected = compiled(model, x), step(eager, x)
    assert other.grad_fn is not None
    torch.testing.assert_close(other, expected)
    for g, h in zip(gradients(model), gradients(eager), strict=True):
        assert_same(g, h)
    assert breaks_of(compiled) == []
    other.square().sum().backward()
    expected.square().sum().backward()
    for g, h in zip(gradients(model), gradients(eager), strict=True):
        torch.testing.assert_close(g, h)


def test_retained_history_that_leaves_the_frame_breaks() -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().sum()
        loss.backward(retain_graph=True)
        return loss

    model, eager, x = net(), net(), torch.randn(4, 6)
    compiled = braze.compile(step)
    compiled(model, x).backward()
    step(eager, x).backward()
    for g, h in zip(gradients(model), gradients(eager), strict=True):
        assert_same(g, h)


def test_gradients_flow_on_to_what_is_outside() -> None:
    def tail(hidden: Tensor) -> None:
        hidden.square().sum().backward()

    model, eager, x = net(), net(), torch.randn(4, 6)
    braze.compile(tail)(model(x))
    tail(eager(x))
    for g, h in zip(gradients(model), gradients(eager), strict=True):
        assert_same(g, h)


@pytest.mark.parametrize("kind", ["tensor", "accumulator", "after"])
def test_hooks_on_leaves_are_called(kind: str) -> None:
    """Hooks put on before the first call, or after: the gradient goes through them."""
    for late in (False, True):
        models = net(), net()
        compiled = braze.compile(plain)
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        seen: list[list[float]] = [[], []]
        kept = []
        for model, step, found in zip(models, (compiled, plain), seen):
            if late:
                step(model, x, y)
            weight = model[0].weight

            def note(gradient: Any, *rest: Any, found: list[float] = found) -> None:
                found.append((rest[0][0] if rest else gradient).sum().item())

            if kind == "tensor":
                weight.register_hook(note)
            elif kind == "after":
                weight.register_post_accumulate_grad_hook(lambda w, note=note: note(w.grad))
            else:
                node = torch.autograd.graph.get_gradient_edge(weight).node
                node.register_hook(note)
                kept.append(node)
            for _ in range(2):
                step(model, x, y)
        assert len(seen[0]) == len(seen[1]) == 2
        assert seen[0] == pytest.approx(seen[1], rel=1e-4, abs=1e-5)
        for g, h in zip(gradients(models[0]), gradients(models[1]), strict=True):
            assert_same(g, h)


def test_autograd_grad() -> None:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        made = torch.autograd.grad(loss, list(model.parameters()))
        return loss.detach(), *made

    eager, model = net(), net()
    compiled = braze.compile(step)
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    for actual, expected in zip(compiled(model, x, y), step(eager, x, y), strict=True):
        assert_same(actual, expected)
    assert gradients(model) == [None] * 6
    assert breaks_of(compiled) == []


def test_autograd_grad_of_what_is_unused() -> None:
    def step(model: nn.Module, x: Tensor) -> Any:
        loss = model[0](x).sum()
        return torch.autograd.grad(loss, [model[0].bias, model[2].bias], allow_unused=True)

    model, x = net(), torch.randn(4, 6)
    compiled = braze.compile(step)
    first, second = compiled(model, x)
    assert second is None
    assert_same(first, torch.full((8,), 4.0))
    assert breaks_of(compiled) == []


def test_errors_are_eagers() -> None:
    def no_history(x: Tensor) -> None:
        x.sum().backward()

    def not_a_scalar(x: Tensor, w: Tensor) -> None:
        (x * w).backward()

    def freed(x: Tensor, w: Tensor) -> None:
        loss = (x * w * w).sum()
        loss.backward()
        loss.backward()

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    for function, args, words in (
        (no_history, (x,), "does not require grad"),
        (not_a_scalar, (x, w), "only for scalar outputs"),
        (freed, (x, w), "a second time"),
    ):
        with pytest.raises(RuntimeError, match=words):
            braze.compile(function)(*args)  # type: ignore[arg-type]


def test_dropout_is_drawn_once() -> None:
    def step(w: Tensor, x: Tensor) -> Tensor:
        out = F.dropout(x * w, 0.5)
        out.sum().backward()
        return out.detach()

    w, v = torch.ones(64, requires_grad=True), torch.ones(64, requires_grad=True)
    x = torch.rand(64)
    compiled = braze.compile(step)
    torch.manual_seed(3)
    actual = compiled(w, x)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert_same(actual, step(v, x))
    assert_same(w.grad, v.grad)
    assert torch.equal(after, torch.get_rng_state())
