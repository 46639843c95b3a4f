"""The face with the real pipeline behind it: small programs, compiled and compared with eager."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze

# A fallback would give the right result too.
pytestmark = pytest.mark.filterwarnings("error::braze.errors.BrazeWarning")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.linear(x)) + x)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + x.exp()


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:  # the break
        return y + 1
    return y.cos()


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with torch.no_grad():
        yield
    braze.reset()
    braze.set_logs()


@pytest.mark.parametrize("backend", ["braze", "eager", "aot_eager", "aot_eager_decomp_partition"])
def test_backends_agree_with_eager(backend: str) -> None:
    model, x = Block().eval(), torch.randn(3, 4)
    torch.testing.assert_close(braze.compile(model, backend=backend)(x), model(x))
    torch.testing.assert_close(braze.compile(pointwise, backend=backend)(x), pointwise(x))
    torch.testing.assert_close(
        braze.compile(branching, backend=backend)(-x.abs()), branching(-x.abs())
    )


def test_a_users_backend_gets_a_torch_level_graph() -> None:
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.append((graph, example_inputs))
        return graph.forward

    x = torch.randn(3)
    compiled = braze.compile(pointwise, backend=backend)
    torch.testing.assert_close(compiled(x), pointwise(x))
    torch.testing.assert_close(compiled(x + 1), pointwise(x + 1))
    ((graph, example_inputs),) = seen
    assert isinstance(graph, torch.fx.GraphModule)
    targets = [node.target for node in graph.graph.nodes]
    assert torch.sin in targets and "exp" in targets
    assert all(isinstance(example, torch.Tensor) for example in example_inputs)


@pytest.mark.slow
@pytest.mark.xdist_group("inductor")
def test_inductor_behind_our_capture() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(braze.compile(pointwise, backend="inductor")(x), pointwise(x))


def test_a_failing_backend_is_named() -> None:
    def broken(graph: Any, example_inputs: Any) -> Any:
        raise ValueError("out of order")

    x = torch.randn(3)
    with pytest.raises(braze.exc.BackendFailed, match="'broken' raised ValueError: out of order"):
        braze.compile(pointwise, backend=broken, fullgraph=True)(x)
    with pytest.warns(braze.exc.BrazeWarning, match="out of order"):
        torch.testing.assert_close(braze.compile(pointwise, backend=broken)(x), pointwise(x))


def test_explain() -> None:
    explanation = braze.explain(branching)(torch.ones(3))
    assert (explanation.graph_count, explanation.break_count) == (2, 1)
    (note,) = explanation.break_reasons
    assert note.code == "data-dependent-branch"
    assert note.origin.startswith(__file__)
    assert note.hint
    assert explanation.op_count == sum(sum(ops.values()) for ops in explanation.ops_per_graph)
    assert {"capture", "lower", "codegen"} <= set(explanation.stage_seconds)
    assert any("L['x']" in guard for guard in explanation.guards)
    assert explanation.fallbacks == ()
    torch.testing.assert_close(explanation.result, branching(torch.ones(3)))
    assert "2 graphs, 1 break" in str(explanation)


def test_fullgraph_names_the_line() -> None:
    with pytest.raises(
        braze.exc.GraphBreakError, match=r"test_whole_way\.py:\d+.*(\n.*){2}torch.where"
    ):
        braze.compile(branching, fullgraph=True)(torch.ones(3))


def test_logs(capsys: pytest.CaptureFixture[str]) -> None:
    braze.set_logs("graph_breaks,output_code,recompiles,guards,graph_code,compile_times")
    compiled = braze.compile(branching)
    compiled(torch.ones(3))
    compiled(torch.ones(3, 5))
    text = capsys.readouterr().err
    assert f"{__file__}:" in text and "[graph_breaks]" in text
    for artefact in ("output_code", "recompiles", "guards", "compile_times"):
        assert f"[{artefact}]" in text


def test_logs_of_guards_and_recompiles(capsys: pytest.CaptureFixture[str]) -> None:
    braze.set_logs("guards,recompiles")
    compiled = braze.compile(lambda x: x + 1, dynamic=False)
    compiled(torch.ones(3))
    line = compiled.__wrapped__.__code__.co_firstlineno  # type: ignore[attr-defined]
    guards = capsys.readouterr().err
    assert "\nL['x']\n  TENSOR_MATCH: Tensor f32[3][1]cpu" in guards
    assert f"# {__file__}:{line}" in guards and "[recompiles]" not in guards
    compiled(torch.ones(4))
    recompiles = capsys.readouterr().err
    assert f"{__file__}:{line} [recompiles] " in recompiles
    assert "\n  0: tensor 'L['x']' size mismatch at index 0. expected 3, actual 4" in recompiles


def test_a_compiled_module_is_still_the_model() -> None:
    model, x = Block(), torch.randn(3, 4)
    compiled = braze.compile(model)
    assert isinstance(compiled, Block)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert compiled.linear.weight is model.linear.weight
    compiled.eval()
    assert not model.training
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert isinstance(twin, Block)
        torch.testing.assert_close(twin(x), model(x))
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    Block().load_state_dict(torch.load(buffer))
    again = braze.compile(compiled)
    torch.testing.assert_close(again(x), model(x))


def test_disable_inside_a_compiled_function() -> None:
    seen: list[type] = []

    @braze.disable
    def left_out(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x))
        return x + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        return left_out(x * 2) * 3

    x = torch.randn(3)
    explanation = braze.explain(function)(x)
    assert seen == [torch.Tensor]
    assert explanation.break_count == 1
    torch.testing.assert_close(explanation.result, (x * 2 + 1) * 3)
    model = Block().eval()
    torch.testing.assert_close(braze.disable(model)(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_graph_break_and_is_compiling() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        braze.graph_break("here")
        return y * 2, braze.is_compiling()

    result, compiling = braze.compile(function)(torch.ones(2))
    assert compiling is True and function(torch.ones(2))[1] is False
    torch.testing.assert_close(result, torch.full((2,), 4.0))
    (note,) = braze.explain(function)(torch.ones(2)).break_reasons
    assert note.code == "explicit"


def test_other_marks() -> None:
    calls: list[int] = []

    @braze.assume_constant_result
    def width() -> int:
        calls.append(1)
        return 3

    @braze.allow_in_graph
    def whole(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    @braze.disallow_in_graph
    def never(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    compiled = braze.compile(lambda x: whole(x) * width(), fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.zeros(2)), torch.full((2,), 6.0))
    assert len(calls) == 1
    assert braze.explain(lambda x: never(x + 1) + 1)(torch.zeros(2)).break_count == 1


def test_methods_classes_and_partials() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @braze.compile
        def decorated(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

        def plain(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.factor

    x, scale = torch.randn(3), Scale(2.0)
    torch.testing.assert_close(scale.decorated(x), x * 2)
    torch.testing.assert_close(braze.compile(scale.plain)(x), x + 2)
    torch.testing.assert_close(braze.compile(torch.add)(x, x), x + x)

    @braze.compile
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch.testing.assert_close(Doubled()(x), x * 2)


def test_user_exceptions_come_out_as_in_eager() -> None:
    def faulty(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        raise KeyError("mine")
        return y

    compiled = braze.compile(faulty)
    with pytest.raises(KeyError, match="mine") as caught:
        compiled(torch.ones(2))
    lines = [(entry.path.name, entry.name) for entry in caught.traceback]
    assert ("test_whole_way.py", "faulty") in lines


def test_the_recompile_limit_warns_once_and_goes_on() -> None:
    compiled = braze.compile(lambda x, n: x * n, options={"recompile_limit": 2}, dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(5):
            torch.testing.assert_close(compiled(torch.ones(2), n), torch.ones(2) * n)
    assert len([w for w in caught if issubclass(w.category, braze.exc.BrazeWarning)]) == 1


def test_two_threads_compile_at_once() -> None:
    results: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        with torch.no_grad():
            results[n] = braze.compile(lambda x: (x + n).sin())(torch.ones(4))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        torch.testing.assert_close(results[n], (torch.ones(4) + n).sin())


def test_a_device_without_a_generator_runs_by_eager_kernels_and_says_so() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    explanation = braze.explain(scaled)(torch.empty(3, device="meta"))
    assert explanation.result.device.type == "meta"
    assert any("meta" in reason for reason in explanation.fallbacks)
