"""Equal blocks are scheduled once: the schedule is the one of the whole graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import braze
from braze import pipeline
from braze.codegen.cpp.nest import kernel_text
from braze.codegen.segments import size_symbols
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.rerolled import RerolledGraph
from braze.ir.kernels.loops import Buffer, LoopProgram
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.ir.kernels.step_form import StepForms
from braze.trace import JOURNAL

_LAYERS = 18


class PreNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(F.gelu(self.fc(self.norm(x))))


class PostNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.tanh(self.fc(x)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.LayerNorm(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(b, t, d))


class Dropping(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.fc(x).relu(), 0.25, self.training)


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return x + F.silu(self.gate(normed)) * self.up(normed)


class Convolved(nn.Module):
    """A residual block of images, its normalisation without state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv1d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.one(self.norm(x)))


BLOCKS = [PreNorm, PostNorm, Attention, Dropping, Gated, Convolved]


class Stack(nn.Module):
    def __init__(
        self, block: Callable[[int], nn.Module], width: int, layers: int = _LAYERS
    ) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList([block(width) for _ in range(layers)])
        self.last = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Differs(AssertionError):
    """Two schedules are not one up to the names of buffers."""


def require_same(one: Schedule, other: Schedule) -> None:
    """The same steps on the same buffers, in the same memory."""
    forms, named = StepForms(), dict[Buffer, Buffer]()

    def pair(buffer: Buffer, its: Buffer, place: object) -> None:
        if named.setdefault(buffer, its) is not its:
            raise Differs(f"{buffer} is {named[buffer]} and {its}, at {place}")

    assert len(one.steps) == len(other.steps)
    for buffers in zip(one.inputs, other.inputs, strict=True):
        pair(*buffers, "the inputs")
    for number, (step, its) in enumerate(zip(one.steps, other.steps, strict=True)):
        here, there = forms.of(step), forms.of(its)
        assert here.number == there.number, f"step {number} has another form"
        for buffers in zip(here.touched, there.touched, strict=True):
            pair(*buffers, f"step {number}")
    for view, its_view in zip(one.outputs, other.outputs, strict=True):
        pair(view.buffer, its_view.buffer, "the results")
        for name in ("shape", "stride", "offset", "dtype"):
            assert getattr(view, name) == getattr(its_view, name)
    assert len({*named.values()}) == len(named)
    require_one_text(one)
    assert {named[b]: slot for b, slot in one.slots} == dict(other.slots)
    assert {named[b]: n for b, n in one.last_use} == dict(other.last_use)
    assert {named[b] for b in one.fresh} == {*other.fresh}
    assert (one.arena_size, one.settled) == (other.arena_size, other.settled)


def require_one_text(plan: Schedule) -> None:
    """Kernels that are said to be alike have one text, and most of them are said to be."""
    sizes = {symbol: f"n{n}" for n, symbol in enumerate(size_symbols(plan))}
    for kernel, like in plan.alike:
        assert kernel_text(kernel, sizes) == kernel_text(like, sizes)
    kernels = {step for step in plan.steps if isinstance(step, Kernel)}
    assert {kernel for pair in plan.alike for kernel in pair} <= kernels
    assert len(kernels) - len(plan.alike) <= 5 * len({kernel_text(k, sizes) for k in kernels})


@contextmanager
def compared_with_whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Within, each graph with equal blocks is scheduled whole, too. Gives how many blocks were left
    out of each graph."""
    left_out: list[int] = []
    plan, unroll = pipeline._plan, pipeline.schedule_blocks
    made: list[tuple[Schedule | None, int]] = []

    def unrolled(program: LoopProgram, rerolled: RerolledGraph, *rest: Any) -> Schedule | None:
        found = unroll(program, rerolled, *rest)
        made.append((found, rerolled.dropped))
        return found

    def planned(graph: Graph, options: Any, *rest: Any) -> Schedule:
        found = plan(graph, options, *rest)
        if made:
            whole, dropped = made.pop()
            left_out.append(dropped if whole is not None else 0)
            if whole is not None:
                skipping = dataclasses.replace(options, skip_passes=("reroll_blocks",))
                require_same(whole, plan(graph, skipping, *rest))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "schedule_blocks", unrolled)
        patch.setattr(pipeline, "_plan", planned)
        yield left_out


@pytest.mark.parametrize("width", [8, 256])  # 256: values that take over each other's memory
@pytest.mark.parametrize("block", BLOCKS)
def test_inference_is_scheduled_as_a_whole(
    block: Callable[[int], nn.Module], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Stack(block, width).eval()
    x = torch.randn(64 if width > 8 else 2, 8, width)
    with compared_with_whole(monkeypatch) as left_out, torch.no_grad():
        found = braze.compile(model, fullgraph=True)(x)
    assert len(left_out) == 1 and left_out[0] >= 4
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


TRAINED = [(PreNorm, 8), (PostNorm, 256), (Attention, 256), (Dropping, 8), (Dropping, 256)]


@pytest.mark.parametrize("block, width", [*TRAINED, (Gated, 8), (Convolved, 8)])
def test_training_is_scheduled_as_a_whole(
    block: Callable[[int], nn.Module], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Stack(block, width)
    x = torch.randn(64 if width > 8 else 2, 8, width)
    grads = []
    with compared_with_whole(monkeypatch) as left_out:
        for run in (braze.compile(model, fullgraph=True), model):
            model.zero_grad(set_to_none=True)
            torch.manual_seed(0)
            result = run(x)
            result.square().sum().backward()
            grads.append([result.detach(), *[p.grad for p in model.parameters()]])
    if block is Gated:  # what its backward computes again hangs together from layer to layer
        assert len(left_out) == 1 and left_out[0]
    elif block is Dropping and width == 8:  # small masks are filled two layers before their use
        assert [bool(count) for count in left_out] == [False, True]
    else:
        assert len(left_out) == 2 and all(left_out)
    for ours, eager in zip(*grads, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-4, atol=2e-4 * float(eager.abs().max()))


def test_counters_tell_what_was_left_out() -> None:
    JOURNAL.clear()
    with torch.no_grad():
        braze.compile(Stack(PreNorm, 8))(torch.randn(2, 8))
    (record,) = JOURNAL.records()
    assert record.counters["repeated_blocks"] >= 4
    # All blocks' kernels and calls, though those of four were scheduled.
    assert record.extern_ops.count("aten.addmm.default") == 2 * _LAYERS + 2
    assert record.counters["kernels"] >= 2 * _LAYERS


class Masked(nn.Module):
    """Its mask is one of all layers, of which each saves a copy at the end of the forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[-2:]).triu(1).bool()
        return x + self.fc(x).masked_fill(mask, 0.5)


def test_results_that_wait_for_the_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Masked, 8)
    x = torch.randn(2, 4, 8)
    with compared_with_whole(monkeypatch) as left_out:
        ours = braze.compile(model)(x)
        ours.sum().backward()
    assert left_out[0] == 0
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(ours, model(x))
    torch.testing.assert_close(grads, [p.grad for p in model.parameters()])


class Taught(nn.Module):
    """A layer that can be unlike the others."""

    def __init__(self, number: int, change: str) -> None:
        super().__init__()
        self.fc, self.change = nn.Linear(8, 8), change
        self.factor = 3.0 if change == "constant" and number == 6 else 2.0
        self.fill = -0.0 if change == "sign" and number == 6 else 0.0
        self.register_buffer("scale", torch.full((8,), 1.0 + number))
        if change == "dtype" and number == 6:
            self.scale = self.scale.double()
        if change == "buffer" and number == 6:
            self.scale = self.scale[:1]
        if change == "training" and number == 6:
            self.eval()
        if change == "hook" and number == 6:
            self.fc.register_forward_hook(lambda module, args, result: result * 1.5)
        if change == "frozen" and number == 6:
            self.fc.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.fc(x) * self.factor) * self.scale.to(x.dtype) / 8
        y = torch.where(y > 0.1, y, self.fill)
        return x + (F.dropout(y, 0.5, self.training) if self.change == "training" else y)


class TaughtStack(nn.Module):
    def __init__(self, change: str, layers: int = 13) -> None:
        super().__init__()
        self.change = change
        self.layers = nn.ModuleList([Taught(n, change) for n in range(layers)])

    def forward(self, x: torch.Tensor) -> Any:
        seen = []
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if self.change == "shown" and number == 6:
                seen.append(x)
            if self.change == "all shown":
                seen.append(x)
        return (x, *seen)


CHANGES = ["", "constant", "sign", "dtype", "buffer", "training", "hook", "frozen", "shown"]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("change", [*CHANGES, "all shown"])
def test_blocks_that_differ_are_kept(
    change: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer in the middle is unlike the others: no graph is shortened across it."""
    torch.manual_seed(0)
    model, x = TaughtStack(change), torch.randn(4, 8)
    compiled = braze.compile(model, fullgraph=True)
    results = []
    with compared_with_whole(monkeypatch) as left_out:
        for run in (compiled, model):
            model.zero_grad(set_to_none=True)
            torch.manual_seed(1)
            with torch.set_grad_enabled(trains):
                found = run(x)
            if trains:
                sum(value.square().sum() for value in found).backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            results.append([value.detach() for value in found] + grads)
    torch.testing.assert_close(*results, rtol=2e-4, atol=2e-5)
    is_alike = change in ("", "all shown")
    if change in ("dtype", "sign") and trains:  # of which the backward sees nothing
        assert len(left_out) == 1
    else:
        assert any(left_out) == is_alike, left_out


def test_other_sizes_and_weights_are_followed() -> None:
    """One compile with symbolic sizes serves all; new values of weights are seen."""
    model = Stack(PreNorm, 8)
    compiled = braze.compile(model, fullgraph=True, dynamic=True)
    JOURNAL.clear()
    for batch in (3, 5, 8):
        x = torch.randn(batch, 4, 8)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.add_(torch.randn_like(parameter), alpha=0.01 * (number % 3))
    forwards = [r for r in JOURNAL.records() if r.outcome == "graph"]
    assert len(forwards) == 1 and forwards[0].counters["repeated_blocks"] > 4


def test_cost_does_not_grow_with_layers() -> None:
    """The passes of the schedule see as many statements for 40 layers as for 20."""
    seen = []
    for layers in (20, 40):
        JOURNAL.clear()
        with torch.no_grad():
            braze.compile(Stack(PreNorm, 8, layers))(torch.randn(2, 8))
        (record,) = JOURNAL.records()
        seen.append(record.counters["repeated_blocks"])
    assert seen[1] - seen[0] == 20
