"""The explanation: sums over compile records, and how it prints."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch

import braze
from braze.compile_records import BreakNote
from braze.report.explain import Explanation, summarise
from braze.trace import CompileRecorder, Journal
from tests.regress.test_wrapper_subclasses import Pair
from tests.unit.diagnose.faults import FAULTS

NOTE = BreakNote("explicit", "the program asks for a break", "remove it", "model.py:12")


@pytest.fixture
def explanation() -> Explanation:
    journal = Journal(detailed=True)
    first = CompileRecorder(journal, "forward", "model.py:10")
    with first.stage("capture"):
        first.note_ops(["aten.add", "aten.add", "aten.mm"])
    first.note_extern_ops(["aten.mm"])
    first.note_guards([f"L['x{i}'] is {i}" for i in range(30)])
    first.note_break(NOTE)
    first.count("kernels", 2)
    first.finish()
    second = CompileRecorder(journal, "forward", "model.py:10")
    with second.stage("capture"), second.stage("lower"):
        second.note_ops(["aten.relu"])
    second.count("kernels")
    second.finish()
    CompileRecorder(journal, "forward", "model.py:10").finish()  # a frame without any operator
    return summarise("Model.forward", journal, result=7)


def test_sums(explanation: Explanation) -> None:
    assert explanation.graph_count == 2
    assert explanation.break_count == 1
    assert explanation.break_reasons == (NOTE,)
    assert explanation.op_count == 4
    assert explanation.ops_per_graph == (
        Counter({"aten.add": 2, "aten.mm": 1}),
        Counter({"aten.relu": 1}),
    )
    assert len(explanation.guards) == 30
    assert set(explanation.stage_seconds) == {"capture", "lower"}
    assert explanation.counters == {"kernels": 3}
    assert explanation.extern_ops == ("aten.mm",)
    assert explanation.fallbacks == ()
    assert explanation.result == 7


def test_text(explanation: Explanation) -> None:
    text = str(explanation)
    assert text.startswith("Model.forward: 2 graphs, 1 break, 4 operators, compiled in ")
    assert "Break 1: model.py:12 the program asks for a break [explicit]\n  remove it" in text
    assert "aten.mm" in text and "ATen" in text
    assert "30 guards" in text and "... 10 more" in text
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert repr(explanation) == text


def test_an_empty_explanation_prints() -> None:
    text = str(summarise("f", Journal(), result=None))
    assert text.startswith("f: 0 graphs, 0 breaks, 0 operators")


def test_fallbacks_of_compiles_and_calls() -> None:
    journal = Journal()
    recorder = CompileRecorder(journal, "f", "model.py:1")
    recorder.note_fallback("needs gradients")
    recorder.finish("failed")
    journal.note_fallback("a foreign mode is active")
    fallbacks = summarise("f", journal, None).fallbacks
    assert fallbacks == ("needs gradients", "f was left to eager", "a foreign mode is active")


def test_it_shows_on_the_terminal(
    explanation: Explanation, capsys: pytest.CaptureFixture[str]
) -> None:
    explanation.show()
    assert "2 graphs" in capsys.readouterr().out


def test_explain_shows_passes_and_kernels() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    found = braze.explain(function)(torch.randn(6, 8))
    (kernel,) = found.kernels
    line = function.__code__.co_firstlineno + 1
    assert kernel.name == "fused_relu_mul_0" and kernel.bytes == 2 * 4 * 48
    assert kernel.places == (f"{__file__}:{line}",)
    names = [note.name for note in found.passes]
    assert names.index("remove_dead_nodes") < names.index("inline")
    text = str(found)
    assert "(unchanged)" in text and f"test_explain.py:{line}" in text and "384" in text


def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    print(end="")
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_the_guides_fields() -> None:
    """`torch._dynamo.explain`'s, of the function that its documentation explains."""
    found = braze.explain(broken)(torch.randn(10), torch.ones(10))
    assert found.graph_break_count == 2 and found.graph_count == len(found.graphs) == 3
    targets = [[n.target for n in g.graph.nodes if n.op == "call_function"] for g in found.graphs]
    assert torch.abs in targets[0] and sum(map(len, targets)) >= 5
    first, second = found.break_reasons
    line = broken.__code__.co_firstlineno
    assert [first.user_stack[-1].lineno, second.user_stack[-1].lineno] == [line + 2, line + 3]
    assert first.graph_break and first.user_stack[-1].name == "broken"
    assert "1 value goes through memory (40 B)" in first.cost
    assert found.out_guards == found.guards and any("L['a']" in g for g in found.out_guards)
    stages = [row.split() for row in found.compile_times.splitlines()[1:]]
    named = [row[2] for row in stages]
    assert {"capture", "link", "total"} <= {*named}
    text = str(found)
    assert f"{__file__}:{line + 3} in broken: if b.sum() < 0:" in text and "costs: " in text


def test_graphs_compute_what_the_program_does() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    for backend in ("braze", "eager", "aot_eager"):
        found = braze.explain(model, x, backend=backend)
        (graph,) = found.graphs
        inputs = {"input": x, **{n.replace(".", "_"): p for n, p in model.named_parameters()}}
        given = [
            next(v for name, v in inputs.items() if node.target.rstrip("_").endswith(name))
            for node in graph.graph.nodes
            if node.op == "placeholder"
        ]
        torch.testing.assert_close(graph(*given)[0], found.result)


def sized(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 4:
        y = y[: x.shape[0]] * 2
    return torch.cat([x, y]).sin()


def test_symbols_say_where_they_come_from() -> None:
    found = braze.explain(sized, torch.randn(6, 3), torch.randn(8, 3), dynamic=True)
    line = sized.__code__.co_firstlineno + 1
    texts = {note.text: note for note in found.symbols}
    made = texts["s0 = L['x'].size()[0] in [2, inf] (6 now)"]
    assert made.origin == f"{__file__}:{line}" and made.function == "sized"
    assert made.source == "if x.shape[0] > 4:"
    assert "s0 >= 5 is guarded (s0 is 6 now)" in texts
    assert f"{made.origin} in sized: s0 = L['x'].size()[0]" in str(found)
    assert not braze.explain(sized, torch.randn(6, 3), torch.randn(8, 3)).symbols


def test_memory_before_and_after() -> None:
    """Of a chain that is one kernel, two values at a time become none but the result."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos().exp().tanh()

    x = torch.randn(1000)
    (note,) = braze.explain(chain, x).memory
    assert (note.before, note.after, note.is_whole) == (2 * x.nbytes, x.nbytes, True)
    assert "Memory at most" in str(braze.explain(chain, x))

    def views(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().view(10, 100).t() * 2).sum()

    (note,) = braze.explain(views, x).memory
    assert note.before == 2 * x.nbytes and note.after < x.nbytes


def test_what_is_not_fused_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() / x.sum(0)).softmax(-1)

    found = braze.explain(function, torch.rand(3, 4))
    place = f"(test_explain.py:{function.__code__.co_firstlineno + 1})"
    assert any(text.startswith("aten.") and place in text for text in found.unfused), found.unfused
    assert "Not fused" in str(found)


def test_what_it_was_compiled_with_is_explained() -> None:
    """Options and backend of the callable; fullgraph reports breaks; what is given comes first."""
    x, y = torch.randn(10), torch.ones(10)
    whole = braze.explain(braze.compile(broken, fullgraph=True, dynamic=True))(x, y)
    assert whole.break_count == 2 and any("s0 = " in note.text for note in whole.symbols)
    assert not braze.explain(braze.compile(broken, dynamic=True), x, y, dynamic=False).symbols
    assert "backend" in braze.explain(braze.compile(broken, backend="eager"))(x, y).stage_seconds
    seen: list[torch.fx.GraphModule] = []

    def own(module: torch.fx.GraphModule, inputs: object) -> object:
        seen.append(module)
        return module.forward

    braze.explain(braze.compile(broken, backend=own))(x, y)
    assert len(seen) == 3
    module = torch.nn.Linear(3, 3)
    for compiled in (
        braze.compile(module, dynamic=True),
        braze.compile_in_place(module, dynamic=True),
        braze.compile(module.forward, dynamic=True),
    ):
        assert braze.explain(compiled, torch.randn(5, 3)).symbols


def test_explaining_changes_no_graph() -> None:
    """What keeps the program's calls compiles the same operators and kernels."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    for target, inputs in ((layer, (x,)), (broken, (x[0, 0], -x[0, 0])), (sized, (x[0], x[1]))):
        braze.reset()
        braze.compile(target)(*inputs)
        records = [r for r in braze.trace.JOURNAL.records() if r.outcome == "graph"]
        found = braze.explain(target)(*inputs).records
        assert [r.ops for r in found] == [r.ops for r in records]
        assert [r.counters["kernels"] for r in found] == [r.counters["kernels"] for r in records]
        assert all(r.program is None and not r.memory and not r.sizes for r in records)


@pytest.mark.parametrize("dynamic", [None, True])
def test_explaining_and_logging_change_no_graph_of_subclasses(dynamic: bool | None) -> None:
    """A log of the graph as Python code, too: it asks for the calls that other backends get."""
    x = Pair(torch.randn(3, 4), torch.randn(3, 4))

    def function(x: Any) -> Any:
        return (x + 1).sin() * x

    found = braze.explain(function, x, dynamic=dynamic)
    assert (found.graph_count, found.break_count, len(found.graphs)) == (1, 0, 1)
    braze.set_logs("graph_code")
    try:
        assert braze.explain(function, x, dynamic=dynamic).ops_per_graph == found.ops_per_graph
    finally:
        braze.set_logs()


def test_autocast_is_in_the_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y.float() @ x

    x = torch.randn(4, 4)
    found = braze.explain(function, x)
    assert found.graph_count == 1
    assert torch.equal(found.graphs[0](x)[0], function(x))
    with torch.autocast("cpu", torch.bfloat16):
        found = braze.explain(torch.mm, x, x)
        (graph,) = found.graphs
        given = (x,) * sum(node.op == "placeholder" for node in graph.graph.nodes)
        assert graph(*given)[0].dtype is torch.bfloat16 is found.result.dtype


@pytest.mark.parametrize("fault", ("no compiler", "crash in lowering", "none"))
def test_operators_of_eager_graphs(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a graph runs by eager kernels, none of its operators is said to be in a kernel."""
    options: dict[str, Any] = {"compiler": "/no/such/compiler"} if fault == "no compiler" else {}
    if fault in FAULTS:
        FAULTS[fault].plant(monkeypatch)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", braze.exc.BrazeWarning)
        compiled = braze.compile(lambda x: (x.sigmoid() * 2).sum(-1), options=options)
        explained = braze.explain(compiled, torch.rand(3, 5))
    (ops,) = explained.ops_per_graph
    by_eager = fault != "none"
    assert len(ops) == 3 and set(explained.extern_ops) == (set(ops) if by_eager else set())
    assert bool(explained.fallbacks) == by_eager
    assert (explained.counters.get("kernels", 0) == 0) == by_eager
    rows = [line.split() for line in str(explained).splitlines() if "aten." in line]
    assert {row[-1] for row in rows[:3]} == {"ATen" if by_eager else "Braze"}
