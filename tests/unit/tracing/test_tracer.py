"""The trace against eager: functional nodes, writes through views, aliases, refusals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from braze.ir.graphs.run_graph import run_graph
from braze.tracing import DataDependent, FinishedTrace, Tracer, UnknownTensor, Untraceable


def trace(
    function: Callable[..., Any], *inputs: torch.Tensor
) -> tuple[FinishedTrace, list[torch.Tensor]]:
    """The finished trace of `function` and the real tensors that its graph takes."""
    tracer = Tracer()
    with tracer:
        fakes = [tracer.add_input(t) for t in inputs]
        results = function(*fakes)
    if isinstance(results, torch.Tensor):
        results = (results,)
    finished = tracer.finish(list(results))
    return finished, [inputs[i] for i in finished.inputs]


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> FinishedTrace:
    """Trace, replay, and compare results, strides and mutated inputs with eager."""
    eager_inputs = [t.detach().clone() for t in inputs]
    expected = function(*eager_inputs)
    expected = (expected,) if isinstance(expected, torch.Tensor) else tuple(expected)
    finished, kept = trace(function, *[t.detach() for t in inputs])
    got = run_graph(finished.graph, kept)[: len(expected)]
    for want, have in zip(expected, got, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        assert have.stride() == want.stride()
        assert torch.equal(have, want)
    for real, eager in zip(inputs, eager_inputs, strict=True):
        assert torch.equal(real, eager)
    return finished


def test_pure_calls() -> None:
    check(lambda x, y: torch.relu(x @ y) + 2.0, torch.randn(3, 4), torch.randn(4, 5))


def test_the_maker_of_each_value_is_found() -> None:
    tracer, early, other = Tracer(), torch.randn(4, 6), torch.randn(4, 3)
    with tracer:
        x = tracer.add_input(early)
        first, _ = (x + 1).split(3, 1)
        torch._assert_async((first.sum() > 0).any())  # a call that makes nothing
        late = tracer.add_input(other)
        torch.relu(first + late).topk(2)
    recorder = tracer.recorder
    made = [(value, call) for call in recorder.calls for value in call[3] if value is not None]
    assert any(not call[3] for call in recorder.calls)
    assert all(recorder.maker(value) is call for value, call in made)
    assert [recorder.maker(value) for value in recorder.input_values] == [None, None]
    tracer.finish([first])
    assert not recorder.calls  # nodes take their place


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: (x.add_(1), x * 2),
    "row": lambda x: (x[0].mul_(3), x.sum()),
    "column": lambda x: (x[:, 1].fill_(7), x + 1),
    "slice": lambda x: (x[1:3, ::2].zero_(), x + 1),
    "setitem": lambda x: (x.__setitem__((slice(None), 2), 5.0), x.clone())[1],
    "transposed": lambda x: (x.t().copy_(torch.ones(4, 6).cumsum(0)[:, : x.shape[0]]), x + 1)[1],
    "flat": lambda x: (x.view(-1)[3:7].mul_(2), x + 0),
    "diagonal": lambda x: (x.diagonal().add_(1), x * 1),
    "nested": lambda x: (x[1:].t()[0].sub_(1), x * 1),
    "index_put": lambda x: (x.__setitem__(torch.tensor([0, 2]), 1.0), x * 1)[1],
    "mask": lambda x: x.masked_fill_(x > 0, 0.5) + 1,
    "out": lambda x: torch.mul(x, 2, out=torch.empty_like(x)) + x,
    "chunks": lambda x: [c.add_(i) for i, c in enumerate(x.chunk(2, dim=1))],
    "unbind": lambda x: (x.unbind(0)[1].mul_(10), x * 1),
    "strided": lambda x: (x.as_strided((2, 2), (1, 4), 1).add_(5), x * 1),
    "dtype": lambda x: x.long().add_(2).float(),
    "expand": lambda x: x.unsqueeze(0).expand(2, -1, -1) + 1,
}


@pytest.mark.parametrize("name", sorted(WRITES))
def test_writes_to_an_intermediate(name: str) -> None:
    check(lambda x: WRITES[name](x.clone()), torch.randn(4, 4))


@pytest.mark.parametrize("name", sorted(WRITES))
def test_writes_to_an_input(name: str) -> None:
    check(WRITES[name], torch.randn(4, 4))


def test_random_fills_match_eager() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noise = torch.empty(5).normal_().uniform_(0, 2)
        return noise, torch.rand(3), torch.nn.functional.dropout(x, 0.5), x.bernoulli(0.3)

    x = torch.rand(4, 6)
    finished, kept = trace(program, x)
    torch.manual_seed(3)
    expected = program(x)
    torch.manual_seed(3)
    for want, have in zip(expected, run_graph(finished.graph, kept), strict=True):
        assert torch.equal(want, have)


def test_views_of_inputs_are_aliases() -> None:
    x = torch.randn(4, 6)
    finished, kept = trace(lambda x: (x.t()[1:], x), x)
    first, second = run_graph(finished.graph, kept)
    first.fill_(0)
    assert x[:, 1:].abs().sum() == 0
    assert second.data_ptr() == x.data_ptr()


def test_results_that_share_memory() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y[0], y[:, 1]

    finished, kept = trace(program, torch.randn(3, 3))
    first, second, *_ = run_graph(finished.graph, kept)
    first[1] = 100.0
    assert second[0] == 100.0


def test_data_is_refused() -> None:
    for function in (
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.data_ptr(),
        lambda x: torch.unique(x),
        lambda x: torch.equal(x, x),
    ):
        with pytest.raises(DataDependent):
            trace(function, torch.randn(3))


def test_a_real_tensor_is_refused() -> None:
    stranger = torch.ones(3)
    with pytest.raises(UnknownTensor) as caught:
        trace(lambda x: x + stranger, torch.randn(3))
    assert caught.value.tensor is stranger


def test_metadata_changes_are_refused() -> None:
    with pytest.raises(Untraceable):
        trace(lambda x: x.set_(torch.ones(3)), torch.randn(3))


def test_constants() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        table = torch.tensor([1.0, 2.0, 3.0])
        return x + table, table

    finished = check(program, torch.randn(3))
    assert len(finished.graph.constants) == 1
    again = run_graph(finished.graph, [torch.zeros(3)])
    again[1].fill_(9)
    assert run_graph(finished.graph, [torch.zeros(3)])[1].tolist() == [1.0, 2.0, 3.0]


def test_no_standin_survives() -> None:
    tracer = Tracer()
    made = []
    x = torch.randn(3, 3, requires_grad=True)
    with tracer:
        fake = tracer.add_input(x)
        y = (fake @ fake).relu()
        made = [weakref.ref(fake), weakref.ref(y)]
    finished = tracer.finish([y])
    del fake, y, tracer
    gc.collect()
    assert finished.graph.nodes
    assert [ref() for ref in made] == [None, None]


def test_parameters_and_leaves() -> None:
    parameter = torch.nn.Parameter(torch.randn(2))
    product = parameter * 2
    tracer = Tracer()
    with tracer:
        fake = tracer.add_input(parameter)
        assert isinstance(fake, torch.nn.Parameter)
        assert fake.is_leaf and fake.requires_grad
        with pytest.raises(RuntimeError, match="leaf Variable"):
            fake.add_(1)
        other = tracer.add_input(product)
        assert not other.is_leaf
        other.add_(1)


def test_writes_to_shared_memory_are_refused() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(Untraceable, match="shares"):
        trace(lambda a, b: (a.add_(1), b * 1), x, x[0])
    check(lambda a, b: (a.add_(1), b * 1), x[:2], x[2:])
    finished, kept = trace(lambda a, b: a + b, x, x[0])
    assert torch.equal(run_graph(finished.graph, kept)[0], x + x[0])


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "gaps": lambda: torch.randn(4, 8)[:, ::2],
    "offset": lambda: torch.randn(6, 4)[2:],
    "transposed": lambda: torch.randn(4, 4).t(),
    "row of three": lambda: torch.randn(4, 3, 4)[:, 1],
}


def several_writes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    x[1].add_(x[0])
    x.t()[2].copy_(x[0].clone())
    return x.t().contiguous(), x + 1, x.reshape(-1) * 2, x[0], (x[:, 1:3] * 2).reshape(-1)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_writes_to_inputs_of_any_layout(layout: str) -> None:
    x = LAYOUTS[layout]()
    eager = LAYOUTS[layout]()
    eager.copy_(x)
    expected = several_writes(eager)
    finished, kept = trace(several_writes, x)
    for want, have in zip(expected, run_graph(finished.graph, kept), strict=True):
        assert torch.equal(want, have) and want.stride() == have.stride()
    assert torch.equal(x, eager)


def test_out_takes_the_result_s_shape() -> None:
    check(lambda x: torch.add(x, 1, out=torch.empty(0)) * 2, torch.randn(3, 2))
    with pytest.raises(Untraceable, match="changes the sizes"):
        trace(lambda x: torch.add(x, 1, out=torch.empty(5)), torch.randn(3))


def test_custom_operators_that_write() -> None:
    library = torch.library.Library("braze_test", "DEF")
    library.define("bump(Tensor(a!) x, Tensor y) -> Tensor")

    def bump(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    library.impl("bump", bump, "CompositeExplicitAutograd")
    op = torch.ops.braze_test.bump.default

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = op(x, y)
        return doubled, x[0] + y[0]

    check(program, torch.randn(3), torch.randn(3))
    finished = check(lambda x, y: (op(x * 1, y), y)[0], torch.randn(3), torch.randn(3))
    assert any(node.op is op for node in finished.graph.nodes)
    unused, _ = trace(lambda x, y: (op(x * 1, y), y + 1)[1], torch.randn(3), torch.randn(3))
    assert any(node.op is op for node in unused.graph.nodes)
