"""Passes over a whole program cost in proportion to its length.

Counted are the instructions that Python executes in them, so that a loop in a comprehension counts.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, final

import pytest
import torch

import braze
from braze.ir.kernels.schedule import ALIGNMENT
from braze.runtime.link import link_cpu as link
from braze.schedule import passes as plan
from braze.schedule.memory import allocate as memory

SHORT, LONG = 80, 320
# Per layer, beside the short program; a tree over the steps is two levels higher.
MOST_GROWTH = 1.5


@final
class _Instructions:
    """Counts the bytecode instructions that are executed inside of `counted`, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(frame: FrameType, event: str, argument: Any) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.counts[name] += event == "opcode"
            return note

        def run(*arguments: Any, **options: Any) -> Any:
            before = sys.gettrace()
            sys.settrace(note)
            try:
                return function(*arguments, **options)
            finally:
                sys.settrace(before)

        return run


def _outputs(layers: int) -> Callable[..., Any]:
    """One input that every kernel reads, and a result a layer."""

    def made(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.sin(x + n) * torch.cos(x * n) for n in range(layers)]

    return made


def _kept_products(layers: int) -> Callable[..., Any]:
    """Products whose results live on and are read in turn: a forward's, for its backward."""

    def made(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        kept = []
        for _ in range(layers // 2):
            x = torch.relu(x @ w)
            kept.append(x)
        for saved in reversed(kept):
            x = (x * saved) @ w
        return x

    return made


def _scattered(layers: int) -> Callable[..., Any]:
    """Rows added at places that are looked up, into copies of an input."""

    def made(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.argsort(x[:, 0])
        return [x.index_add(0, rows, w * n) for n in range(layers)]

    return made


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        (_scattered, [(plan, "scatter_in_place")]),
        (_outputs, [(plan, "fuse")]),
        (_kept_products, [(plan, "place"), (link, "write_program")]),
    ],
)
def test_passes_cost_a_layer_the_same(
    kind: Callable[[int], Callable[..., Any]],
    passes: list[tuple[ModuleType, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    for layers in (SHORT, LONG):
        work = _Instructions()
        with monkeypatch.context() as patch:
            for module, name in passes:
                patch.setattr(module, name, work.counted(name, getattr(module, name)))
            with torch.no_grad():
                braze.compile(kind(layers), fullgraph=True)(torch.randn(8, 8), torch.randn(8, 8))
        counts.append(work.counts)
    short, long = counts
    assert short.keys() == {name for _, name in passes}
    growth = {name: long[name] / LONG / (short[name] / SHORT) for name in short}
    assert max(growth.values()) < MOST_GROWTH, growth


def test_lives_that_meet_lie_apart_at_the_lowest_offsets() -> None:
    """Beside a search through everything that is taken."""
    draw = random.Random(0)
    for _ in range(300):
        firsts = [draw.randrange(60) for _ in range(draw.randrange(1, 40))]
        lives = [_life(draw, first, first + draw.choice((0, 1, 3, 20, 60))) for first in firsts]
        placed, total = memory._fit(lives)
        expected: list[tuple[memory._Life, int]] = []
        for life, at in placed:
            stops = [-(-(o + other.about) // ALIGNMENT) * ALIGNMENT for other, o in expected]
            fitting = (at for at in sorted({0, *stops}) if _is_free(life, at, expected))
            assert at == next(fitting)
            expected.append((life, at))
        assert len(placed) == len(lives)
        assert total == max(at + life.about for life, at in placed)


def _life(draw: random.Random, first: int, last: int) -> memory._Life:
    size = draw.choice((0, 1, 64, 100, 4096, 5000))
    buffer = memory.Buffer("b", (size,), (1,), torch.uint8, torch.device("cpu"))
    return memory._Life(buffer, size, size, first, last)


def _is_free(life: memory._Life, at: int, placed: list[tuple[memory._Life, int]]) -> bool:
    return not any(
        other.meets(life) and o < at + life.about and at < o + other.about for other, o in placed
    )
