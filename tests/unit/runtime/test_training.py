"""Compiled backwards behave as eager autograd does: values, state, hooks, errors."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import braze
from braze.compat.torch.cuda import are_alone
from braze.devices import cpu
from braze.trace import Journal


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def twins(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)


@pytest.fixture(autouse=True)
def no_fallback(journal: Journal) -> Any:
    yield
    assert journal.fallbacks() == ()
    assert not any(record.fallbacks for record in journal.records())


def mixed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.tanh(x @ w)
    return y * y.sum(-1, keepdim=True), y.exp()


def compiled_and_eager(
    function: Callable[..., Any], *tensors: torch.Tensor
) -> list[tuple[Any, tuple[torch.Tensor, ...]]]:
    return [
        (f(*copies), copies)
        for f, copies in ((braze.compile(function), twins(*tensors)), (function, tensors))
    ]


def check_gradients(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)
            assert a.grad.stride() == b.grad.stride()


def test_backward_of_both_results() -> None:
    pairs = compiled_and_eager(mixed, leaf(4, 3), leaf(3, 5))
    for (a, b), _ in pairs:
        (a.sum() + (b * b).sum()).backward()
    check_gradients(pairs[0][1], pairs[1][1])


@pytest.mark.parametrize("used", [0, 1])
def test_results_that_no_gradient_reaches(used: int) -> None:
    def function(x: Any, y: Any) -> Any:
        return x.sin(), y.cos() * x.detach()

    pairs = compiled_and_eager(function, leaf(3), leaf(3))
    for results, _ in pairs:
        results[used].sum().backward()
    check_gradients(pairs[0][1], pairs[1][1])


def test_retain_graph_and_accumulation() -> None:
    pairs = compiled_and_eager(mixed, leaf(4, 3), leaf(3, 5))
    for (a, _), _ in pairs:
        a.sum().backward(retain_graph=True)
        a.sum().backward()
    check_gradients(pairs[0][1], pairs[1][1])
    for (a, _), _ in pairs:
        with pytest.raises(RuntimeError, match="second time"):
            a.sum().backward()


def test_gradients_of_some_inputs() -> None:
    (found, inputs), (expected, others) = compiled_and_eager(mixed, leaf(4, 3), leaf(3, 5))
    made = torch.autograd.grad(found[0].sum(), inputs[1])
    torch.testing.assert_close(made, torch.autograd.grad(expected[0].sum(), others[1]))
    assert inputs[0].grad is None


def test_tangents_in_other_strides() -> None:
    pairs = compiled_and_eager(lambda x, w: (x @ w).relu(), leaf(4, 3), leaf(3, 5))
    tangent = torch.randn(5, 4).t()
    for result, _ in pairs:
        result.backward(tangent)
    check_gradients(pairs[0][1], pairs[1][1])


def test_double_backward() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.tanh(x @ w).pow(2)

    pairs = compiled_and_eager(function, leaf(4, 3), leaf(3, 5))
    for result, inputs in pairs:
        (gradient,) = torch.autograd.grad(result.sum(), inputs[0], create_graph=True)
        (gradient.norm() - 1).square().backward()
    check_gradients(pairs[0][1], pairs[1][1])


def test_double_backward_with_dropout() -> None:
    def function(x: Any, w: Any) -> Any:
        return F.dropout(torch.tanh(x @ w), 0.5).pow(3)

    tensors = leaf(4, 3), leaf(3, 5)
    made = []
    for f, inputs in ((braze.compile(function), twins(*tensors)), (function, tensors)):
        torch.manual_seed(3)
        result = f(*inputs)
        (gradient,) = torch.autograd.grad(result.sum(), inputs[0], create_graph=True)
        gradient.square().sum().backward()
        made.append((inputs, torch.get_rng_state()))
    check_gradients(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])


def test_double_backward_through_what_is_above() -> None:
    """One input depends on the other: only the direct part is the graph's own."""

    def function(x: Any, y: Any) -> Any:
        return x * y * y

    results = []
    for f in (braze.compile(function), function):
        x = torch.full((2,), 3.0, requires_grad=True)
        (gradient,) = torch.autograd.grad(f(x, x * x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.sum(), x)[0])
    torch.testing.assert_close(*results)


def test_a_write_to_what_was_saved_is_an_error() -> None:
    x = leaf(3)
    y = braze.compile(torch.exp)(x)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_may_be_written_to() -> None:
    def function(x: Any) -> Any:
        y = x * 3
        return y.view(-1), y.sum()

    for f in (function, braze.compile(function)):
        x = leaf(2, 2)
        flat, total = f(x)
        flat.add_(1)
        (flat.sum() + total).backward()
        torch.testing.assert_close(x.grad, torch.full((2, 2), 6.0))


def test_inputs_written_to_under_autograd() -> None:
    def function(x: Any, y: Any) -> Any:
        x.mul_(y)
        return x.sin()

    made = []
    for f in (function, braze.compile(function)):
        a, b = torch.linspace(0, 1, 4).requires_grad_(), torch.linspace(1, 2, 4).requires_grad_()
        x = a * 1
        result = f(x, b)
        (result.sum() + x.sum()).backward()
        made.append((x.detach(), a.grad, b.grad, x.requires_grad, x.grad_fn is None))
    for found, expected in zip(made[1], made[0], strict=True):
        torch.testing.assert_close(found, expected)


def test_views_of_inputs_and_results() -> None:
    def function(x: Any) -> Any:
        y = x.exp()
        return x[1], y, y.t()[0]

    made = []
    for f in (function, braze.compile(function)):
        x = torch.linspace(0, 1, 6).reshape(2, 3).clone().requires_grad_()
        a, y, b = f(x)
        assert a._base is x and b.data_ptr() == y.data_ptr()
        (a.sum() * 2 + (b * b).sum() + y.sum()).backward()
        made.append(x.grad)
    torch.testing.assert_close(*made)


def test_results_without_gradient() -> None:
    def function(x: Any) -> Any:
        values, places = x.max(-1)
        with torch.no_grad():
            scale = x.abs().mean()
        return values, places, scale, (x > 0)

    for f in (function, braze.compile(function)):
        x = leaf(3, 4)
        results = f(x)
        assert [r.requires_grad for r in results] == [True, False, False, False]
        assert [r.grad_fn is None for r in results] == [False, True, True, True]
        results[0].sum().backward()
        assert x.grad is not None and x.grad.sum() == 3


def test_hooks() -> None:
    seen: list[str] = []

    def function(x: Any, w: Any) -> Any:
        return (x @ w).relu()

    x, w = leaf(2, 3), leaf(3, 4)
    w.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    x.register_hook(lambda g: seen.append("tensor") or g * 2)
    y = braze.compile(function)(x, w)
    y.register_hook(lambda g: seen.append("result"))
    y.grad_fn.register_hook(lambda i, o: seen.append("node"))
    y.sum().backward()
    assert sorted(seen) == ["accumulated", "node", "result", "tensor"]
    expected = torch.autograd.grad(function(x, w).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_hooks_see_what_eager_saves(journal: Journal) -> None:
    """Hooks of the program, which may change what they are given, leave the call to eager; without
    them the graph serves it."""
    compiled = braze.compile(mixed)
    packed: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        assert type(tensor) in (torch.Tensor, nn.Parameter)
        packed.append(tensor.shape)
        return tensor * 2

    def gradient_and_packed(function: Any) -> tuple[Any, list[torch.Size]]:
        torch.manual_seed(5)
        x, w = leaf(2, 3), leaf(3, 4)
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            made = function(x, w)
        made[0].sum().backward()
        return x.grad, list(packed)

    (expected, seen), (gradient, packed_by_graph) = map(gradient_and_packed, (mixed, compiled))
    assert seen == packed_by_graph
    torch.testing.assert_close(gradient, expected)
    x, w = leaf(2, 3), leaf(3, 4)
    compiled(x, w)[0].sum().backward()
    assert [record.outcome for record in journal.records()] == ["graph", "backward"]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_checkpoint_of_compiled_code(early: bool, nested: bool, journal: Journal) -> None:
    """A recomputation ends by an exception out of a hook: the graph's fault it is not."""
    w = leaf(4, 4)
    block = braze.compile(lambda x: nn.functional.dropout(torch.tanh(x @ w), 0.5) * x)
    checkpoint = torch.utils.checkpoint.checkpoint

    def twice(function: Any) -> Any:
        inner = lambda t: checkpoint(function, t, use_reentrant=False)  # noqa: E731
        outer = lambda t: checkpoint(lambda u: inner(u).cos(), t, use_reentrant=False)  # noqa: E731
        return outer if nested else inner

    found = []
    for function in (lambda x: nn.functional.dropout(torch.tanh(x @ w), 0.5) * x, block):
        torch.manual_seed(5)
        x = leaf(4, 4)
        w.grad = None
        with torch.utils.checkpoint.set_checkpoint_early_stop(early):
            for _ in range(2):
                torch.manual_seed(5)
                twice(function)(x).sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[0], found[1])
    assert {record.outcome for record in journal.records()} == {"graph", "backward"}


def test_checkpoint_writes_twice() -> None:
    """What a checkpointed function writes to Python state, it writes again in the backward."""
    seen: list[int] = []

    def block(x: Any) -> Any:
        seen.append(len(seen))
        return x.sin() * x

    counts = []
    for function in (block, braze.compile(block)):
        seen.clear()
        y = torch.utils.checkpoint.checkpoint(function, leaf(3), use_reentrant=False)
        y.sum().backward()
        counts.append(list(seen))
    assert counts[0] == counts[1] == [0, 1]


def test_pack_hook_raises() -> None:
    """What a checkpoint's hook raises comes out; what the program's own raises, too."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        raise LookupError("of the hook")

    for function in (mixed, braze.compile(mixed)):
        with (
            pytest.raises(LookupError, match="of the hook"),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        ):
            function(leaf(2, 3), leaf(3, 4))


def test_anomaly_mode_names_the_function() -> None:
    def function(x: Any) -> Any:
        return (x - x).sqrt()

    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="CompiledFunctionBackward"),
        pytest.warns(UserWarning),
    ):
        (braze.compile(function)(leaf(3)).sum() * 0).backward()


def test_saved_tensors_go_while_the_backward_runs() -> None:
    alive: list[StorageWeakRef] = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gc.collect()
            assert all(memory.expired() for memory in alive)
            return gradient

    y = braze.compile(lambda x: (x.sin().exp() @ x).tanh())(Watch.apply(leaf(3, 3)))
    saved = [tensor for tensor in y.grad_fn.saved_tensors if not tensor.requires_grad]
    alive += [StorageWeakRef(tensor.untyped_storage()) for tensor in saved]
    assert not any(memory.expired() for memory in alive)
    del saved
    y.sum().backward()
    assert alive


def test_dropout_draws_as_eager() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.GELU(), nn.Dropout(0.2))
    twin = copy.deepcopy(model)
    compiled = braze.compile(twin)
    x = torch.randn(4, 6)
    for _ in range(2):
        states = []
        for m in (model, compiled):
            torch.manual_seed(1)
            m(x).square().sum().backward()
            states.append(torch.get_rng_state())
        assert torch.equal(*states)
    check_gradients(twin.parameters(), model.parameters())


def test_no_gradient_reaches_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    compiled = braze.compile(model)
    compiled(torch.randn(5, 3)).sum().backward()
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False]


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_graphs_by_eager_kernels(backend: str) -> None:
    x, w = leaf(4, 3), leaf(3, 5)
    a, b = twins(x, w)
    sum(r.sum() for r in mixed(x, w)).backward()
    found = braze.compile(mixed, backend=backend)(a, b)
    assert found[0].grad_fn.name() == "CompiledFunctionBackward"
    sum(r.sum() for r in found).backward()
    check_gradients((a, b), (x, w))


def test_autocast() -> None:
    x, w = leaf(4, 8), leaf(8, 5)
    a, b = twins(x, w)
    for f, inputs in ((mixed, (x, w)), (braze.compile(mixed), (a, b))):
        with torch.autocast("cpu", torch.bfloat16):
            made = f(*inputs)
        sum(r.float().sum() for r in made).backward()
    for found, expected in ((a, x), (b, w)):
        torch.testing.assert_close(found.grad, expected.grad, rtol=2e-2, atol=2e-2)
        assert found.grad.dtype is torch.float32


def test_threads_compile_one_backward_once(journal: Journal) -> None:
    import threading

    compiled = braze.compile(mixed)
    w = leaf(3, 5)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            x = leaf(4, 3)
            (gradient,) = torch.autograd.grad(compiled(x, w)[0].sum(), x)
            (expected,) = torch.autograd.grad(mixed(x, w)[0].sum(), x)
            torch.testing.assert_close(gradient, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert [r.outcome for r in journal.records()].count("backward") == 1


def test_user_compilers_get_forward_and_backward() -> None:
    seen: list[tuple[str, set[str], int]] = []

    def compiler(kind: str) -> Any:
        def compile_graph(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
            targets = {str(n.target) for n in module.graph.nodes if n.op == "call_function"}
            seen.append((kind, targets, len(example_inputs)))
            return module.forward

        return compile_graph

    backend = braze.aot_backend(compiler("forward"), compiler("backward"))
    pairs = []
    tensors = leaf(4, 3), leaf(3, 5)
    for f, inputs in ((braze.compile(mixed, backend=backend), twins(*tensors)), (mixed, tensors)):
        sum(r.sum() for r in f(*inputs)).backward()
        pairs.append(inputs)
    check_gradients(*pairs)
    assert [kind for kind, _, _ in seen] == ["forward", "backward"]
    assert "aten.mm.default" in seen[0][1] and "aten.mm.default" in seen[1][1]


def test_a_user_compiler_that_fails_is_told_of(journal: Journal) -> None:
    def broken(module: Any, example_inputs: Any) -> Any:
        raise ValueError("not today")

    x, w = leaf(4, 3), leaf(3, 5)
    with pytest.warns(braze.exc.BrazeWarning, match="not today"):
        made = braze.compile(mixed, backend=braze.aot_backend(broken))(x, w)
        made[0].sum().backward()
    assert len(journal.fallbacks()) == 1
    journal.clear()
    (expected,) = torch.autograd.grad(mixed(x, w)[0].sum(), x)
    torch.testing.assert_close(x.grad, expected)


def test_lstm() -> None:
    """Its kernel keeps a workspace for the backward only where it sees the grad mode on."""
    model = nn.LSTM(8, 6, batch_first=True, num_layers=2)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 4, 8)
    for m in (model, braze.compile(twin)):
        m(x)[0].square().sum().backward()
    check_gradients(twin.parameters(), model.parameters())


def test_an_input_that_retains_its_gradient_and_is_written_to(journal: Journal) -> None:
    """Its gradient is that of what it is after the write: the call runs eagerly, and says so."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x * torch.arange(3.0)

    compiled = braze.compile(program, backend="aot_eager")
    compiled(leaf(3) * 2).sum().backward()
    hidden = leaf(3) * 2
    hidden.retain_grad()
    with pytest.warns(braze.exc.BrazeWarning, match="retains its gradient"):
        compiled(hidden).sum().backward()
    assert hidden.grad is not None and hidden.grad.tolist() == [0.0, 1.0, 2.0]
    assert len(journal.fallbacks()) == 1
    journal.clear()


@pytest.mark.parametrize("retain", [False, True])
def test_a_backward_has_the_only_references_to_what_was_saved(
    retain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be used again: a recording on a GPU relies on that."""
    seen: list[list[bool]] = []
    real = cpu.link

    def spying(plan: Any, sources: Any, options: Any, takes_inputs: bool, *more: Any) -> Any:
        linked = real(plan, sources, options, takes_inputs, *more)

        def call(inputs: list[Any]) -> Any:
            if takes_inputs:
                numbers = [n for n, x in enumerate(inputs) if not x.requires_grad]
                seen.append([are_alone([inputs[n]]) for n in numbers])
            return linked(inputs)  # type: ignore[operator]

        return call

    monkeypatch.setattr(cpu, "link", spying)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    loss = braze.compile(model)(torch.randn(3, 8)).square().sum()
    loss.backward(retain_graph=retain)
    (alone,) = seen
    # The gradient that comes in is the engine's, too.
    assert sum(alone) == (0 if retain else len(alone) - 1)
    assert len(alone) > 3
