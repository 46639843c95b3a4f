"""What a program can say about itself means what it means for torch.compile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.marks import MARKS

X = torch.tensor([0.5, -1.0, 2.0, 3.0])


def graphs_of(function: Callable[..., Any], *args: Any) -> list[list[str]]:
    """The torch-level calls of each graph, after a run that agreed with eager."""
    graphs: list[list[str]] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        calls = [node for node in module.graph.nodes if node.op.startswith("call")]
        graphs.append([getattr(node.target, "__name__", node.target) for node in calls])
        return module

    compiled = braze.compile(function, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), function(*args), rtol=0, atol=0)
    return graphs


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@braze.disable
def left_out(x: torch.Tensor) -> torch.Tensor:
    return inner(x).cos()


@braze.disable(recursive=False, reason="slow to compile")
def own_code_left_out(x: torch.Tensor) -> torch.Tensor:
    y = inner(x).cos()
    return inner(y) + 1


@torch.compiler.disable
def left_out_of_torch(x: torch.Tensor) -> torch.Tensor:
    return inner(x).cos()


@braze.allow_in_graph
def taken_whole(x: torch.Tensor) -> torch.Tensor:
    return inner(x) * 2


def plain(x: torch.Tensor) -> torch.Tensor:
    return inner(x) * 2


@pytest.mark.parametrize("function", [left_out, left_out_of_torch])
def test_disable_keeps_a_call_and_what_it_calls_out_of_graphs(function: Any) -> None:
    assert graphs_of(lambda x: function(x + 1) * 2, X) == [["add"], ["mul"]]
    assert braze.compile(function) is function


def test_disable_of_one_frame_compiles_what_it_calls() -> None:
    graphs = graphs_of(lambda x: own_code_left_out(x + 1) * 2, X)
    assert graphs == [["add", "sin"], ["sin"], ["mul"]]
    assert graphs_of(own_code_left_out, X) == [["sin"], ["sin"]]
    assert torch.equal(own_code_left_out(X), X.sin().cos().sin() + 1)


def test_disable_of_one_frame_of_a_method() -> None:
    class Model(nn.Module):
        def part(self, x: torch.Tensor) -> torch.Tensor:
            return inner(x) + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x) * 2

    Model.part = braze.disable(Model.part, recursive=False)  # type: ignore[method-assign]
    assert graphs_of(Model(), X) == [["sin"], ["mul"]]
    bound = braze.disable(Model().forward, recursive=False)
    assert torch.equal(bound(X), (X.sin() + 1) * 2)
    with pytest.raises(braze.exc.UserError, match="Python function or method"):
        braze.disable(torch.sin, recursive=False)


def test_a_disabled_module_stays_out_of_graphs() -> None:
    layer = braze.disable(nn.Linear(4, 4))
    assert graphs_of(lambda x: layer(x + 1) * 2, X) == [["add"], ["mul"]]


def test_the_reason_of_disable_is_shown() -> None:
    @braze.disable(reason="a library of mine")
    def other(x: torch.Tensor) -> torch.Tensor:
        return x

    explanation = braze.explain(lambda x: other(x + 1))(X)
    assert "a library of mine" in str(explanation)


def test_allow_in_graph() -> None:
    assert graphs_of(lambda x: taken_whole(x) + 1, X) == [["taken_whole", "add"]]


@pytest.mark.parametrize("allow", [braze.allow_in_graph, torch.compiler.allow_in_graph])
def test_allow_in_graph_inside_of_compiled_code(allow: Any) -> None:
    def summed(x: torch.Tensor) -> torch.Tensor:
        return allow(torch.vmap(torch.sum))(x)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return allow(plain)(x) + 1

    assert len(graphs_of(summed, X.view(2, 2))) == 1
    assert graphs_of(whole, X) == [["plain", "add"]]


@pytest.fixture
def without_marks() -> Iterator[None]:
    """Takes back what a test marks."""
    marked = [torch.sub, plain]
    yield
    for function in marked:
        MARKS.entries.pop(id(function), None)


def test_disallow_in_graph(without_marks: None) -> None:
    braze.disallow_in_graph([torch.sub, plain])
    assert graphs_of(lambda x: torch.sub(x + 1, 2) * 3, X) == [["add"], ["mul"]]
    assert graphs_of(lambda x: plain(x + 1) * 3, X) == [["add"], ["mul"]]
    explanation = braze.explain(lambda x: plain(x + 1) * 3)(X)
    assert [note.code for note in explanation.break_reasons] == ["disallowed"]


@pytest.mark.parametrize(
    "assume", [braze.assume_constant_result, torch.compiler.assume_constant_result]
)
def test_assume_constant_result(assume: Any) -> None:
    calls = []

    @assume
    def scale() -> float:
        calls.append(1)
        return 2.0

    compiled = braze.compile(lambda x: x * scale())
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2)
    assert len(calls) == 1


def test_is_compiling() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        known = (braze.is_compiling(), torch.compiler.is_compiling())
        return x + 1 if known == (True, True) else x - 1

    assert torch.equal(braze.compile(asks)(X), X + 1)
    assert torch.equal(asks(X), X - 1)
    assert not braze.is_compiling()


def test_graph_break() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        braze.graph_break()
        return y * 2

    assert graphs_of(broken, X) == [["add"], ["mul"]]


# --- run, reset, export ---------------------------------------------------------------------------


class Counting:
    """A backend that counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return module


def test_run_compiles_nothing() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        braze.graph_break()
        return y * 2

    backend = Counting()
    compiled = braze.compile(broken, backend=backend)
    only = braze.run(compiled)
    assert torch.equal(only(X), broken(X))
    assert backend.graphs == 0
    compiled(X)
    assert backend.graphs == 2
    for x in (X, X[:2], X.double()):
        assert torch.equal(only(x), broken(x))
    assert backend.graphs == 2
    assert braze.run(broken) is broken


def test_run_of_a_module() -> None:
    backend = Counting()
    model = braze.compile(nn.Linear(4, 4), backend=backend)
    only = braze.run(model)
    model(X)
    assert isinstance(only, nn.Linear)
    assert only.weight is model.weight
    for x in (X, X.view(1, 4)):
        torch.testing.assert_close(only(x), nn.functional.linear(x, model.weight, model.bias))
    assert backend.graphs == 1


def test_reset_forgets() -> None:
    backend = Counting()
    compiled = braze.compile(lambda x: x + 1, backend=backend)
    compiled(X), compiled(X)
    braze.reset()
    compiled(X)
    assert backend.graphs == 2


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor, more: dict[str, Any], *, by: int = 1) -> Any:
        first = self.layer(x) * by * self.scale
        return {"first": first, "rest": [more["y"] + 1, (x, 3), first[0]]}


def test_export_gives_a_module_that_is_called_as_the_program() -> None:
    model = Nested()
    module, guards = braze.export(model)(X, {"y": X.clone()}, by=2)
    assert isinstance(module, torch.fx.GraphModule)
    assert {guard.kind.value for guard in guards} >= {"TENSOR_MATCH", "AMBIENT"}
    assert str(guards).startswith("AMBIENT: grad mode on\n")
    assert "  TENSOR_MATCH: Tensor f32[" in str(guards)
    x, y = torch.randn(4), torch.randn(4)
    found, expected = module(x, {"y": y}, by=2), model(x, {"y": y}, by=2)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found["rest"][1][0] is x
    assert {id(p) for p in module.parameters()} == {id(p) for p in model.parameters()}


def test_what_is_compiled_is_explained_and_compiled_afresh_by_its_original() -> None:
    compiled = braze.compile(plain, backend="eager")
    compiled(X)
    assert braze.compile(compiled, backend="eager").__wrapped__ is plain
    explanation = str(braze.explain(compiled, backend="eager")(X))
    assert "plain: 1 graph" in explanation and "L['x']" in explanation


def test_export_of_a_function_and_of_a_method() -> None:
    module = braze.export(plain)(X).graph_module
    assert torch.equal(module(X + 1), plain(X + 1))
    assert torch.equal(braze.export(Nested().layer.forward)(X).graph_module(X).detach()[:0], X[:0])


def test_export_raises_at_a_break_and_as_the_program_does() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y if y.sum() > 0 else -y

    with pytest.raises(braze.exc.GraphBreakError, match=r"\bsin\(") as raised:
        braze.export(branch)(torch.randn(10))
    assert "f32[10][1]cpu" in str(raised.value)
    with pytest.raises(TypeError, match=r"sin\(\) takes 1 positional argument but 2"):
        braze.export(lambda x: torch.sin(x, x))(X)  # type: ignore[call-overload]
    with pytest.raises(braze.exc.UserError, match="the result holds a"):
        braze.export(lambda x: (x + 1, object))(X)


# --- configuration -------------------------------------------------------------------------------


def failing_backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
    raise ValueError("no such luck")


def test_suppress_errors() -> None:
    with braze.config.patch(suppress_errors=False):
        compiled = braze.compile(inner, backend=failing_backend)
    with pytest.raises(braze.exc.BackendFailed, match="no such luck"):
        compiled(X)
    with braze.config.patch(suppress_errors=True):
        compiled = braze.compile(inner, backend=failing_backend)
    with pytest.warns(braze.exc.BrazeWarning, match="no such luck"):
        assert torch.equal(compiled(X), inner(X))


LINES: list[str] = []


def say(*parts: Any, end: str = "") -> None:
    """What a user's logging function might do."""
    LINES.append(" ".join(str(part) for part in parts) + end)


def talkative(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    say("y", y, [y, x], y.shape, end="!")
    y.add_(1)
    z = y * 2
    say("z", z)
    return z


@pytest.mark.parametrize("requires_grad", [False, True])
def test_reorderable_logging_functions(requires_grad: bool) -> None:
    x = X.clone().requires_grad_(requires_grad)
    backend = Counting()
    with braze.config.patch(reorderable_logging_functions={say}):
        compiled = braze.compile(talkative, backend=backend)
        for _ in range(2):
            LINES.clear()
            compiled(x)
            found = list(LINES)
            LINES.clear()
            talkative(x)
            assert found == LINES
    # A tensor with gradients that is written to afterwards is logged where it stands.
    assert backend.graphs == 1 + requires_grad


def test_print_breaks_unless_it_may_be_put_off(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("y is", y.shape)
        return y * 2

    assert graphs_of(prints, X) == [["add"], ["mul"]]
    with braze.config.patch(reorderable_logging_functions={print}):
        assert graphs_of(prints, X) == [["add", "mul"]]
    assert capsys.readouterr().out == "y is torch.Size([4])\n" * 8


def test_listing_backends_loads_no_other_compiler() -> None:
    text = (
        "import sys, braze; before = set(sys.modules); names = braze.list_backends(); "
        "assert 'inductor' in names and 'eager' not in names, names; "
        "new = set(sys.modules) - before; "
        "print(any(name.startswith('torch._dynamo') for name in new))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_torch_s_disable_takes_what_was_compiled() -> None:
    def asks(x: torch.Tensor) -> Any:
        return x * 2, torch.compiler.is_compiling()

    compiled = braze.compile(asks)
    disabled = torch.compiler.disable(compiled)
    assert compiled(torch.ones(1))[1] is True
    assert disabled(torch.ones(1))[1] is False
    by_torch = torch.compiler.disable(torch.compile(asks, backend="eager"))
    assert by_torch(torch.ones(1))[1] is False


def test_a_block_of_disable_runs_eagerly() -> None:
    """Under any stance, nested, entered again; what is compiled in it is compiled behind it."""
    seen: list[Any] = []

    def counted(module: Any, inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    compiled = braze.compile(plain, backend=counted)
    block = braze.disable()
    with block:
        torch.testing.assert_close(compiled(X), plain(X))
        with block:
            later = braze.compile(lambda x: x.cos() * 2, backend=counted)
            later(X)
        compiled(X)
        with braze.set_stance("fail_on_recompile"):
            compiled(X)
    assert not seen
    compiled(X), later(X)
    assert len(seen) == 2
    with braze.set_stance("fail_on_recompile"), pytest.raises(braze.exc.BrazeError):
        with braze.disable():
            compiled(X.double())
        compiled(X.double())


def test_blocks_of_several_threads_end_in_any_order() -> None:
    compiled = braze.compile(lambda x: x.sin() + 1)
    first, second = braze.disable(), braze.disable()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with second:
            inside.set()
            leave.wait(60)

    with first:
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(60)
    compiled(X)
    leave.set()
    thread.join()
    assert braze.status()[-1].graphs == 0 and braze.status()[-1].calls_left == 1
    compiled(X)
    assert braze.status()[-1].graphs == 1


def test_a_block_of_disable_in_a_compiled_function() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with braze.disable():
            z = y.cos()
        return z * 2

    found = braze.explain(function, X)
    torch.testing.assert_close(found.result, function(X))
    assert found.graph_count == 2 and [b.code for b in found.break_reasons] == ["disabled"]


def test_a_break_shows_its_message() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        braze.graph_break("first")
        y = y + 1
        braze.graph_break(msg="second")
        return y * 2

    first, second = braze.explain(function, X).break_reasons
    assert first.reason.endswith("first") and second.reason.endswith("second")


def test_the_limit_by_its_older_name() -> None:
    with braze.config.patch(cache_size_limit=3):
        assert braze.config.recompile_limit == braze.config.cache_size_limit == 3
        braze.config.cache_size_limit = 4
        assert braze.config.recompile_limit == 4
    assert braze.config.cache_size_limit == 8
