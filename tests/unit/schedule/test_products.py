"""Which ways there are to compute a product with what makes its operands and what reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import kernel_alternatives, supports
from braze.ir.device_model import H200
from braze.ir.kernels.loops import Literal
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import ExternStep, Kernel, Phase, Schedule, Step, Store
from braze.lower import lower
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.schedule.matmul.matmul_fusion import fuse_products
from braze.schedule.simplify.normalize import new_names
from braze.shapes.expr import Symbol, as_expr, floor_div, modulo
from braze.tracing import Tracer
from tests.unit.codegen.running import OPTIONS

Given = list[torch.Tensor]


def listed(
    function: Callable[..., Any], given: Given, number: int = 0
) -> tuple[list[list[tuple[Step, ...]]], Schedule]:
    """The ways of each product, and the schedule in which the given one of each is taken."""
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        results = function(*[tracer.add_input(x) for x in given])
        finished = tracer.finish(list(results) if isinstance(results, tuple) else [results])
    seen: list[list[tuple[Step, ...]]] = []

    def choose(ways: Any) -> int:
        seen.append(list(ways))
        return min(number, len(ways) - 1)

    program = lower(rewrite(finished.graph, OPTIONS), OPTIONS, supports)
    return seen, schedule(program, OPTIONS, CUDA, choose)


def shown(steps: tuple[Step, ...]) -> str:
    """A letter for each step: k for a kernel, c for a call, p for a kernel that multiplies, with
    as many stars as it has computed operands."""
    letters = []
    for step in steps:
        if isinstance(step, ExternStep):
            letters.append("c")
        elif step.product is None:
            letters.append("k")
        else:
            letters.append("p" + "*" * sum(side is not None for side in step.product.computed))
    return " ".join(letters)


def _weight() -> Given:
    return [torch.randn(4, 16), torch.ones(64, 16, dtype=torch.int8), torch.rand(64)]


def _scaled(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, w.to(x.dtype) * s[:, None])


WAYS: dict[str, tuple[Callable[..., Any], Given, list[str]]] = {
    "an operand": (_scaled, _weight(), ["k c", "p*", "k p"]),
    "an operand and a reader": (
        lambda x, w, s: _scaled(x, w, s).relu(),
        _weight(),
        ["k c k", "p*", "k p"],
    ),
    "an operand and a fold": (
        lambda x, w, s: _scaled(x, w, s).softmax(1),
        _weight(),
        ["k c", "p*", "k p"],
    ),
    "a reader": (lambda x, w: (x @ w).relu(), [torch.randn(4, 8), torch.randn(8, 6)], ["c k", "p"]),
    "both operands, of one kernel": (
        lambda x, w: x.relu() @ w.exp(),
        [torch.randn(8, 8), torch.randn(8, 8)],
        ["k c", "p**", "k p*", "k p*", "k p"],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_ways_of(name: str) -> None:
    function, given, wanted = WAYS[name]
    (ways,), plan = listed(function, given)
    assert [shown(way) for way in ways] == wanted
    assert any(isinstance(step, ExternStep) for step in plan.steps)


def test_what_is_computed_is_nowhere_in_memory() -> None:
    _, plan = listed(_scaled, _weight(), 1)
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel) and kernel.product is not None
    assert kernel.product.second.buffer not in kernel.memory
    assert not plan.slots and plan.arena_size == 0
    assert print_schedule(plan).splitlines()[:3] == [
        f"kernel {kernel.name}: memory b0, b1, b2, b5",
        "  t0 = b0 @ b4{[16, 64][1, 16]}",
        "    b4 at [pr2, pc2]: (f32(b1[pc2, pr2]) * b2[pc2])",
    ]


def _two(x: Any, w: Any, s: Any) -> Any:
    wide = w.to(x.dtype) * s[:, None]
    return F.linear(x, wide), F.linear(x * 2, wide)


def test_a_small_source_is_read_by_both_and_written_for_none() -> None:
    """The first product leaves the operand where the second reads it; the second drops it."""
    given = [torch.randn(4, 64), torch.ones(32, 64, dtype=torch.int8), torch.rand(32)]
    ways, plan = listed(_two, given, 1)
    assert [shown(way) for way in ways[0]] == ["k c", "k p*", "k p"]
    written = {s.target for k in plan.steps if isinstance(k, Kernel) for s in k.phases[0].body}
    operands = {v.buffer for v in _operands(plan) if v.buffer not in plan.inputs}
    assert len(operands) == 2 and not operands & written, print_schedule(plan)


def _operands(plan: Schedule) -> list[Any]:
    products = [k.product for k in plan.steps if isinstance(k, Kernel) and k.product]
    return [view for p in products for view in (p.first, p.second)]


X = torch.randn(8, 8)
KEPT: dict[str, tuple[Callable[..., Any], Given]] = {
    "a fold": (lambda x, w: x.softmax(1) @ w, [torch.randn(8, 64), torch.randn(64, 8)]),
    "rows that are looked up": (lambda x, i, w: (x[i] * 2) @ w, [X, torch.arange(8), X]),
    "several stores": (lambda x, y, w: torch.cat([x.relu(), y], 1) @ w, [X, X, torch.randn(16, 4)]),
    "others read it": (lambda x, w: ((h := x.relu()) @ w, h.exp().sum(1)), [X, X]),
    "the caller gets it": (lambda x, w: ((h := x.relu()) @ w, h), [X, X]),
    "constants alone": (lambda w: torch.ones(8, 8) @ w, [X]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_in_memory(name: str) -> None:
    function, given = KEPT[name]
    found, plan = listed(function, given, 1)
    computed = [way for ways in found for way in ways if "*" in shown(way)]
    assert not computed, print_schedule(plan)


@pytest.mark.parametrize(
    ("function", "given", "number", "wanted"),
    [
        (
            _scaled,
            _weight(),
            1,
            "aten.mm.default to b5: a kernel of ours, b4 computed in it "
            "(not: separate; a kernel of ours)",
        ),
        (
            _scaled,
            _weight(),
            0,
            "aten.mm.default to b5: separate (not: a kernel of ours, b4 computed in it; a kernel "
            "of ours)",
        ),
        (*KEPT["a fold"], 0, "is not computed in aten.mm.default: what makes it is no kernel"),
        (*KEPT["the caller gets it"], 0, "others read it, and it is no larger than what it is"),
    ],
)
def test_the_log_says_what_and_why(
    function: Any, given: Given, number: int, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "braze.fusion"):
        listed(function, given, number)
    assert any(wanted in record.getMessage() for record in caplog.records), caplog.text


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_read_must_stay_until_it_is_read(place: int) -> None:
    """A kernel that writes to the input: before all, between what makes the operand and the
    product, and behind it."""
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        finished = tracer.finish([tracer.add_input(X).relu() @ tracer.add_input(X)])
    program = lower(rewrite(finished.graph, OPTIONS), OPTIONS, supports)
    steps = list(schedule(program, OPTIONS, CUDA).steps)
    (x, *_), number = program.inputs, Symbol("r", 0, 63)
    at = (floor_div(as_expr(number), 8), modulo(as_expr(number), 8))
    store = Store(x, at, Literal(0.0, x.dtype))
    steps.insert(place, Kernel("k", (), (Phase(((number, 64),), (store,)),), (x,)))
    seen: list[Any] = []

    def choose(ways: Any) -> int:
        seen.extend(ways)
        return 0

    assert fuse_products(program, steps, len(steps), new_names(), choose) == steps
    assert any("*" in shown(way) for way in seen) == (place != 1)


def test_each_layer_is_the_same_text() -> None:
    """Names of what is computed depend on the product alone: layers are tuned once."""

    def layers(x: Any, w: Any, s: Any, v: Any, t: Any) -> Any:
        return _scaled(_scaled(x, w, s).softmax(1), v, t)

    w, s = torch.ones(16, 16, dtype=torch.int8), torch.rand(16)
    _, plan = listed(layers, [torch.randn(4, 16), w, s, w, s], 1)
    kernels = [k for k in plan.steps if isinstance(k, Kernel) and k.product]
    assert len(kernels) == 2
    names = {tuple(x.function.name for x in kernel_alternatives(k, OPTIONS, H200)) for k in kernels}
    assert len(names) == 1
