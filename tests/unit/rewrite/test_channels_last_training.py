"""Channels-last layout where gradients are computed: results, gradients and their strides are
those of eager, and what is saved for the backward is in the layout in which it is read. By the
prices of a GPU, on the CPU."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.autograd import backward_graph, partition, trace_joint
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.joint_graph import ForwardBackward, JointGraph, SavedInput, joint_as_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.graphs.verify_joint_graph import verify_pair
from braze.ir.types import TensorType
from braze.options import Options
from braze.rewrite import passes, rewrite_joint
from braze.rewrite.prefer_channels_last import (
    PRICES,
    prefer_channels_last,
    prefer_channels_last_in_joint,
)
from braze.runtime.link.link_cpu import _restride
from braze.tracing import Tracer

ON_GPU = {"cpu": PRICES["cuda"]}


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch._C._get_cudnn_allow_tf32()
    torch._C._set_cudnn_allow_tf32(True)
    for function in (prefer_channels_last, prefer_channels_last_in_joint):
        monkeypatch.setattr(function, "__defaults__", (ON_GPU,))
    yield
    torch._C._set_cudnn_allow_tf32(before)


class Dense(nn.Module):
    """Two layers that read all before them, and a transition: the gradients of joins are pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (8, 12, 16)])
        self.convs = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(12, 4, 1)])
        self.last = nn.Conv2d(16, 8, 1, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = [nn.functional.max_pool2d(self.stem(x), 3, 2, 1)]
        for norm, conv in zip(self.norms, self.convs):
            features.append(conv(norm(torch.cat(features, 1)).relu()))
        joined = torch.cat(features, 1)
        y = nn.functional.avg_pool2d(self.last(self.norms[2](joined).relu()), 2)
        return y.mean((2, 3)), joined


def _traced(net: nn.Module, x: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """The graph of a call, and the tensors that it takes."""
    tracer = Tracer(replayable=False)
    given = [x, *net.parameters(), *net.buffers()]
    with tracer:
        fakes = [tracer.add_input(t) for t in given]
        names = [name for name, _ in (*net.named_parameters(), *net.named_buffers())]
        results = torch.func.functional_call(net, dict(zip(names, fakes[1:])), (fakes[0],))
        finished = tracer.finish(list(results))
    return finished.graph, [given[number] for number in finished.inputs]


def _joint(seed: int = 0) -> tuple[JointGraph, list[torch.Tensor]]:
    torch.manual_seed(seed)
    graph, given = _traced(Dense(), torch.randn(2, 3, 16, 16, requires_grad=True))
    return trace_joint(graph), given


def _results(joint: JointGraph, given: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    tangents = [torch.randn(t.type.shape) for t in joint.tangents if t is not None]  # type: ignore[union-attr]
    inputs = [t.detach().clone() for t in given]
    found = run_graph(joint_as_graph(joint), [*inputs, *tangents])
    return [*found, *inputs]


def test_both_graphs_together() -> None:
    joint, given = _joint()
    moved = rewrite_joint(joint, Options())
    assert moved is not joint
    verify_graph(joint_as_graph(moved))
    for mine, before in zip(_results(moved, given), _results(joint, given), strict=True):
        torch.testing.assert_close(mine, before, rtol=1e-4, atol=1e-4)
    nodes = (*moved.forward.nodes, *moved.backward)
    layouts = {
        node.args[n].type.stride[1]
        for node in nodes
        if "convolution_backward" in str(node.op)
        for n in (0, 1)
    }
    assert layouts == {1}
    for value, gradient in zip(joint.forward.inputs, moved.gradients, strict=True):
        if gradient is not None:
            assert gradient.type.stride == value.type.stride  # type: ignore[union-attr]


def test_what_is_saved_is_not_copied_and_no_more_than_before() -> None:
    joint, _ = _joint()
    before, after = partition(joint), partition(rewrite_joint(joint, Options()))
    verify_pair(rewrite_joint(joint, Options()), after)
    assert _saved_bytes(after) <= _saved_bytes(before) + _bytes_of_results(joint)
    copied = [n for n in after.backward.graph.nodes if str(n.op) == "aten.clone.default"]
    inputs = {*after.backward.graph.inputs[: len(after.saved)]}
    kept = {after.backward.graph.inputs[n] for n, s in enumerate(after.saved) if _is_input(s)}
    assert all(node.args[0] in kept or node.args[0] not in inputs for node in copied)


def _is_input(saved: Any) -> bool:
    return isinstance(saved, SavedInput)


def _saved_bytes(pair: ForwardBackward) -> int:
    kinds = [pair.forward.outputs[s.index].value.type for s in pair.saved if not _is_input(s)]  # type: ignore[union-attr]
    return sum(_bytes(kind) for kind in kinds)


def _bytes_of_results(joint: JointGraph) -> int:
    return sum(_bytes(value.type) for value in joint.results)


def _bytes(kind: Any) -> int:
    assert isinstance(kind, TensorType)
    return torch.Size(kind.shape).numel() * kind.dtype.itemsize  # type: ignore[arg-type]


def test_another_choice_of_gradients_reads_what_was_saved() -> None:
    joint, given = _joint()
    pair = partition(rewrite_joint(joint, Options()))
    chosen = (False, True, *[False] * (len(joint.results) - 2))
    other = backward_graph(trace_joint(joint.source, chosen), pair.saved_values, pair.moved)
    verify_graph(other.graph)
    plain = partition(joint)
    wanted = backward_graph(trace_joint(joint.source, chosen), plain.saved_values)
    found = [_backward_of(p, b, given) for p, b in ((pair, other), (plain, wanted))]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def _backward_of(pair: ForwardBackward, backward: Any, given: list[torch.Tensor]) -> Any:
    inputs = [t.detach().clone() for t in given]
    made = run_graph(pair.forward, inputs)
    saved = [inputs[s.index] if _is_input(s) else made[s.index] for s in pair.saved]
    torch.manual_seed(2)
    tangents = [torch.randn_like(made[n]) for n in backward.tangents]
    results = run_graph(backward.graph, [*saved, *tangents])
    return [results[n] for n in backward.gradients if n is not None]


def test_eager_numerics_and_skipped_passes_move_nothing() -> None:
    joint, _ = _joint()
    assert rewrite_joint(joint, Options(numerics="eager")) is joint
    assert rewrite_joint(joint, Options(skip_passes=("prefer_channels_last",))) is joint


def _steps(net: nn.Module, call: Callable[..., Any], whole: bool) -> Iterator[list[Any]]:
    """Calls, with gradients of one result or of both."""
    draws = torch.Generator().manual_seed(3)
    for both in (True, False, True):
        x = torch.randn(2, 3, 16, 16, generator=draws).requires_grad_()
        net.zero_grad()
        first, second = call(x)
        if not whole:
            ((first.sum() if both else 0) + second.square().sum()).backward()
        yield [first, second, x.grad, *[p.grad for p in net.parameters()], *net.buffers()]


@pytest.mark.parametrize("whole", [False, True])
def test_compiled(whole: bool) -> None:
    """whole: the backward is in the frame, and there is one graph."""
    torch.manual_seed(0)
    net = Dense()
    own = copy.deepcopy(net)

    def stepping(net: nn.Module) -> Callable[..., Any]:
        def step(x: torch.Tensor) -> Any:
            first, second = net(x)
            (first.sum() + second.square().sum()).backward()
            return first.detach(), second.detach()

        return step if whole else net

    found = _steps(own, braze.compile(stepping(own)), whole)
    for mine, theirs in zip(found, _steps(net, stepping(net), whole), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.stride() == b.stride()
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_steps_along_one_element_are_as_expected() -> None:
    made = torch.randn(8 * 16).as_strided((8, 16, 1, 1), (16, 1, 16, 16))
    found = _restride(made, (16, 1, 1, 1), torch.float32)
    assert found.stride() == (16, 1, 1, 1) and found.data_ptr() == made.data_ptr()
    assert found._base is None and torch.equal(found, made)


def test_one_graph_with_its_backward_converts_images_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copied are the image that comes in, two weights with windows, twice, and their gradients."""
    seen: list[Graph] = []

    def noting(graph: Graph) -> Graph:
        seen.append(prefer_channels_last(graph))
        return seen[-1]

    monkeypatch.setattr(passes, "PASSES", (passes.graph_pass(noting),))
    torch.manual_seed(0)
    net = Dense()

    def step(x: torch.Tensor) -> torch.Tensor:
        first, second = net(x)
        (first.sum() + second.square().sum()).backward()
        return first.detach()

    braze.compile(step, backend="aot_eager_decomp_partition")(torch.randn(2, 3, 16, 16))
    (graph,) = seen
    given = {*graph.inputs}
    copies = [n for n in graph.nodes if "memory_format" in dict(n.kwargs)]
    of_inputs = [n for n in copies if n.args[0] in given]
    gradients = {str(n.args[0].type.shape[2:]) for n in copies if n.args[0] not in given}
    assert len(of_inputs) == 6 and len(copies) == 8 and gradients == {"(3, 3)"}


def test_a_library_norms_backward_in_the_frame_is_ours() -> None:
    """On a GPU eager's batch norm is the library's, whose backward reads what only its own forward
    keeps."""
    tracer = Tracer()
    x, c, kept = torch.randn(2, 3, 4, 4), torch.ones(3), torch.empty(0, dtype=torch.uint8)
    with tracer:
        image, channel, reserve = map(tracer.add_input, (x, c, kept))
        given = (image, image, channel, channel, channel, channel, channel, 1e-5, reserve)
        made = torch.ops.aten.cudnn_batch_norm_backward(*given)
        graph = tracer.finish(list(made)).graph
    (node,) = graph.nodes
    assert str(node.op) == "aten.native_batch_norm_backward.default"
    assert node.args[3:5] == (None, None) and node.args[7] is True


class Grouped(nn.Module):
    """A residual block of diffusion models: norms over groups between convolutions with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 8) for _ in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = y + conv(nn.functional.silu(norm(y)))
        return (y.mean((2, 3)),)


def test_norms_over_groups_keep_the_layout() -> None:
    torch.manual_seed(0)
    net, x = Grouped(), torch.randn(2, 3, 16, 16)
    joint = trace_joint(_traced(net, x.clone().requires_grad_())[0])
    moved = rewrite_joint(joint, Options())
    nodes = (*moved.forward.nodes, *moved.backward)
    norms = [n for n in nodes if "native_group_norm" in str(n.op)]
    assert {n.outputs[0].type.stride[1] for n in norms} == {1}  # type: ignore[union-attr]
    assert len(norms) == 6
    images = [n for n in nodes if "clone" in str(n.op) and n.outputs[0].type.shape[2] == 16]  # type: ignore[union-attr]
    assert len(images) == 4, "the input, for forward and backward, and the first and last gradient"
    other = copy.deepcopy(net)
    for call in (net, braze.compile(other, fullgraph=True)):
        (made,) = call(x)
        made.square().sum().backward()
    for mine, theirs in zip(other.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        assert mine.grad.stride() == theirs.grad.stride()


class ChannelsFirst(nn.Module):
    """Norms over the channels of images, whose dimensions are permuted for them and back."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, stride=2)
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(2)])

    def normed(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return self.norms[number](x.permute(0, 2, 3, 1)).permute(0, -1, 1, 2)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.normed(self.stem(x), 0)
        for number, conv in enumerate(self.convs):
            y = y + self.normed(conv(y), number + 1)
        seen = self.convs[0](y).permute(0, 2, 3, 1)  # the caller's, as eager lays it out
        return y.mean((2, 3)), seen, seen.relu()


def test_norms_over_permuted_channels_read_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the images are."""
    always = {"cpu": dataclasses.replace(PRICES["cuda"], worth=0)}
    for function in (prefer_channels_last, prefer_channels_last_in_joint):
        monkeypatch.setattr(function, "__defaults__", (always,))
    torch.manual_seed(0)
    net, x = ChannelsFirst(), torch.randn(2, 3, 32, 32)
    joint = trace_joint(_traced(net, x)[0])
    moved = rewrite_joint(joint, Options())
    assert moved is not joint
    nodes = (*moved.forward.nodes, *moved.backward)
    read = [
        node.args["backward" in str(node.op)].type.stride  # type: ignore[union-attr]
        for node in nodes
        if "native_layer_norm" in str(node.op)
    ]
    assert len(read) == 6
    assert {stride[3] for stride in read} == {1}, "channels lie beside each other"
    other = copy.deepcopy(net)
    results = []
    for call in (net, braze.compile(other, fullgraph=True)):
        results.append(call(x))
        sum(made.square().mean() for made in results[-1]).backward()
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert mine.stride() == theirs.stride()
    for mine, theirs in zip(other.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
        assert mine.grad.stride() == theirs.grad.stride()


def test_the_gradient_of_a_turned_image_is_laid_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    always = {"cpu": dataclasses.replace(PRICES["cuda"], worth=0)}
    for function in (prefer_channels_last, prefer_channels_last_in_joint):
        monkeypatch.setattr(function, "__defaults__", (always,))
    torch.manual_seed(0)

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (self.second(self.first(x).relu().permute(0, 1, 3, 2).contiguous()),)

    net, x = Turned(), torch.randn(2, 3, 12, 10)
    moved = rewrite_joint(trace_joint(_traced(net, x)[0]), Options())
    read = [n.args[:2] for n in moved.backward if "convolution_backward" in str(n.op)]
    assert len(read) == 2
    assert all(value.type.stride[1] == 1 for pair in read for value in pair)  # type: ignore[union-attr]
    other = copy.deepcopy(net)
    for call in (net, braze.compile(other, fullgraph=True)):
        call(x)[0].square().mean().backward()
    for mine, theirs in zip(other.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
