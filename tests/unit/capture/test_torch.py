"""Torch itself: transforms, custom functions, questions about compilers, leaf calls."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch

import braze
from braze.ir.captured.frame import CapturedCall, Refused
from tests.recorded import recorded
from tests.unit.capture.replay import agree, captured_once, outcome, same

X = torch.arange(6.0).reshape(2, 3)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def vmapped(x):
    return torch.vmap(lambda row: row.sum() + row * len(row.shape))(x)


def gradient(x):
    return torch.func.grad(lambda y: (y**2).sum())(x)


def custom_function(x):
    return Square.apply(x) + 1


def checkpointed(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda y, k=1: y.sin() * k, x, use_reentrant=False, k=3)


def attention(x):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])


def labelled(x):
    with torch.profiler.record_function("label"):
        return x + 1


def modes(x):
    @torch.no_grad()
    def inner(y):
        return y * 2, torch.is_grad_enabled()

    with torch.enable_grad():
        a = torch.is_grad_enabled()
    return inner(x), a


@pytest.mark.parametrize(
    "program",
    [vmapped, gradient, custom_function, checkpointed, attention, labelled, modes],
    ids=lambda p: p.__name__,
)
def test_program(program):
    agree(lambda: (program, (X.clone(),)))


def test_is_compiling_is_answered():
    def f(x):
        return x + 1 if torch.compiler.is_compiling() else x - 1

    _, result = captured_once(f, X)
    assert same(result, X + 1)
    assert not torch.compiler.is_compiling()


def test_custom_function_with_gradients():
    captured = outcome(custom_function, X.clone().requires_grad_(True))
    assert "custom_gradient<Square>" in map(str, (node.op for node in captured.graph.nodes))


def test_gradients_flow_through_the_graph():
    def f(x, w):
        return torch.nn.functional.gelu(x @ w.T).sum()

    w = torch.randn(4, 3, requires_grad=True)
    _, result = captured_once(f, X, w)
    (got,) = torch.autograd.grad(result, w)
    (want,) = torch.autograd.grad(f(X, w), w)
    assert same(got, want)


def test_warnings_and_logs_come_after_the_graph():
    logger = logging.getLogger("braze.test")

    def f(x):
        warnings.warn("careful", stacklevel=1)
        logger.info("line %s", 3)
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured, _ = captured_once(f, X)
    calls = [effect.function for effect in captured.effects if isinstance(effect, CapturedCall)]
    warn, log = [later.args[-1] for later in calls]
    assert (warn.func, log) == (warnings.warn, logging.Logger.info)


def test_torch_calls_name_tensors_by_object():
    def f(x):
        y = x.clone()
        z = y.view(-1)
        z.add_(1)
        return y * 2, y

    captured, result = captured_once(f, X)
    clone, view, add, multiply = captured.calls
    assert add.result is add.args[0] is view.result
    assert multiply.args[0] is clone.result
    assert captured.call_results == (multiply.result, clone.result)
    assert same(result, f(X))


def test_operators_know_where_they_come_from():
    def f(x):
        return torch.relu(x)

    captured, _ = captured_once(f, X)
    (node,) = captured.graph.nodes
    assert node.origin.file == __file__
    assert node.origin.line == f.__code__.co_firstlineno + 1
    assert node.origin.call == "torch.relu"


def test_foreign_mode_means_eager():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        assert isinstance(outcome(labelled, X), Refused)


def test_the_question_for_an_export_is_answered() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.onnx.is_in_onnx_export() else x * 2

    _, result = captured_once(f, torch.ones(3))
    assert result.tolist() == [2.0, 2.0, 2.0]


def test_a_part_of_a_package_that_is_not_loaded_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "of_two_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rate.py").write_text("RATE = 3.0")
    monkeypatch.syspath_prepend(tmp_path)

    def f(x: torch.Tensor) -> torch.Tensor:
        from of_two_parts import rate  # type: ignore[import-not-found]

        return x * rate.RATE

    with recorded():
        explanation = braze.explain(f)(torch.ones(2))
    assert explanation.break_count == 1 and not explanation.fallbacks
    assert braze.compile(f)(torch.ones(2)).tolist() == [3.0, 3.0]
    monkeypatch.delitem(sys.modules, "of_two_parts.rate")
    monkeypatch.delitem(sys.modules, "of_two_parts")
