"""Random sums over rows beside work on the rows: slices, axes in any order of memory, sums of what
is computed; by Triton's interpreter (on a GPU where there is one)."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import pytest
import torch

from braze.codegen.triton import generate
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.schedule import Kernel
from braze.schedule import CUDA
from tests.unit.codegen.triton_running import MARKS, OPTIONS, planned, run_sources

COUNT = int(os.environ.get("BRAZE_FUZZ_PROGRAMS", "30"))
TARGETS = [
    replace(CUDA, least_work=1000, least_part=part, merges_columns=tasks)
    for part, tasks in ((256, 2), (128, 7))
]

pytestmark = MARKS

Tensor = torch.Tensor


@dataclass
class _Program:
    """A function of `inputs`, the same at each call with one seed. lines: what it does."""

    seed: int
    inputs: list[Tensor] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        torch.manual_seed(self.seed)
        points = rng.choice([20, 24, 32])
        self.shape = (*rng.choice([(91,), (89,), (96,), (9, 13), (10, 10), (16, 6)]), points)
        dtype = rng.choice([torch.float32, torch.bfloat16])
        for _ in range(3):
            order = list(range(len(self.shape) - 1))
            rng.shuffle(order)
            made = torch.randn([self.shape[n] for n in order] + [points], dtype=dtype)
            self.inputs.append(made.permute(*[order.index(n) for n in range(len(order))], -1))
        self.inputs.append(torch.randn(points, dtype=dtype))

    def __call__(self, x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        rng, self.lines = random.Random(self.seed + 1), []
        rows = {"x": x, "y": y, "z": z}
        name = rng.choice([*rows])
        if rng.random() < 0.5:
            rows["g"] = rows["x"] + rows[name]
            self.lines.append(f"g = x + {name}")
        cut = self._slice(rng) if rng.random() < 0.4 else slice(None)
        first, second = (rng.choice([*rows]) for _ in range(2))
        self.lines.append(f"n = {first}, {second} of {cut}")
        one, other = rows[first][cut], rows[second][cut]
        dot = (one * other).sum(-1, keepdim=True)
        results = [other - one * w * dot.tanh()]
        if rng.random() < 0.5:
            rows["n"] = results[0]
        for _ in range(rng.randint(1, 3)):
            a, b = (rng.choice([*rows]) for _ in range(2))
            part = self._slice(rng) if rng.random() < 0.4 else slice(None)
            summed = rows[a][part]
            if rows[a].shape == rows[b].shape and rng.random() < 0.5:
                summed = summed * rows[b][part]
                self.lines.append(f"sum of {a} * {b} of {part}")
            else:
                self.lines.append(f"sum of {a} of {part}")
            results.append(summed.sum(tuple(range(x.dim() - 1))))
        if "g" in rows and rng.random() < 0.3:
            results.append(rows["g"])
        return tuple(results)

    def _slice(self, rng: random.Random) -> slice:
        """Most of the first axis."""
        length = self.shape[0]
        begin = rng.randint(0, length // 8)
        return slice(begin, length - rng.randint(0, length // 8))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_sums(seed: int) -> None:
    program = _Program(seed)
    for target in TARGETS:
        given = [x.clone() for x in program.inputs]
        made, plan, used = planned(program, given, target)
        expected = run_loops(made, used)
        found = run_sources(made, plan, generate(plan, OPTIONS), used)
        merged = sum(len(s.columns) for s in plan.steps if isinstance(s, Kernel))
        for own, right in zip(found, expected, strict=True):
            unit = torch.finfo(own.dtype).eps * (1 + right.double().abs().max().item())
            gap = (own.double() - right.double()).abs().max().item()
            assert gap <= 16 * unit, (gap, unit, merged, program.shape, program.lines)


def test_sums_are_merged_in_some() -> None:
    """What the random programs are for happens in them."""
    plans = [planned(_Program(seed), _Program(seed).inputs, TARGETS[0])[1] for seed in range(30)]
    merged = [any(isinstance(s, Kernel) and s.columns for s in plan.steps) for plan in plans]
    assert sum(merged) >= 8, merged
