"""Loops over lanes become vector instructions, whatever conditions are in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from braze.codegen.cpp import generate
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    Definition,
    Guarded,
    Index,
    Literal,
    LoopProgram,
    Scalar,
)
from braze.ir.kernels.scalars import apply, cast, literal
from braze.ir.types import known_sizes
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.schedule import schedule
from braze.shapes.expr import Expr, as_expr
from tests.unit.codegen.programs import F32, axes, buffer, define, load, program
from tests.unit.codegen.running import OPTIONS, check

DTYPES = [F32, torch.float64, torch.int64, torch.int32, torch.int16, torch.bfloat16, torch.uint8]


def _is_inside(*places: Expr) -> Scalar:
    """Whether places are in an image of 6 x 6."""
    tests = [
        Apply(op, (Index(place), Literal(limit, torch.int64)), torch.bool)
        for place in places
        for op, limit in (("ge", 0), ("lt", 6))
    ]
    whole: Scalar = tests[0]
    for test in tests[1:]:
        whole = apply("and", whole, test)
    return whole


def _window(dtype: torch.dtype, name: str = "") -> tuple[list[Buffer], Definition]:
    """A corner's neighbour in an image of 40 channels, which lie side by side; where there is none,
    another; or else zeros."""
    x, y = buffer(f"x{name}", (6, 6, 40), dtype), buffer(f"y{name}", (6, 6, 40), dtype)
    (i, _), (j, _), (c, _) = over = axes((6, 6, 40))
    body: Scalar = literal(0, dtype)
    for down, right in ((1, 1), (2, -1), (-1, -1)):
        place = (as_expr(i) + down, as_expr(j) + right)
        body = Guarded(_is_inside(*place), load(x, *place, c), body)
    return [x, y], define(y, over, body)


def _rows(name: str) -> tuple[list[Buffer], Definition]:
    """Rows of 40, or zeros, by a number of each."""
    x, m, y = buffer(f"x{name}", (36, 40)), buffer(f"m{name}", (36,)), buffer(f"y{name}", (36, 40))
    (i, _), (c, _) = over = axes((36, 40))
    chosen = Apply("gt", (load(m, i), Literal(0.0, F32)), torch.bool)
    return [x, m, y], define(
        y, over, Apply("where", (chosen, load(x, i, c), Literal(0.0, F32)), F32)
    )


def _counts() -> tuple[list[Buffer], Definition]:
    """Truths and positions as numbers."""
    x, m, y = buffer("xc", (99,)), buffer("mc", (99,), torch.bool), buffer("yc", (99,))
    ((i, _),) = over = axes((99,))
    above = cast(Apply("gt", (load(x, i), Literal(0.0, F32)), torch.bool), F32)
    body = apply("add", apply("mul", above, cast(Index(as_expr(i)), F32)), cast(load(m, i), F32))
    return [x, m, y], define(y, over, body)


def _vectorised(text: str, toolchain: Toolchain, folder: Path) -> tuple[int, int]:
    """The loops of kernels that are marked for vectors, and how many of them GCC says have some."""
    report = folder / "vectors"
    command = [toolchain.compiler, *toolchain.flags, f"-fopt-info-vec-optimized={report}"]
    command += ["-", "-o", str(folder / "unit.so"), *toolchain.libraries]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=300)
    found = re.findall(r":(\d+):\d+: optimized: loop vectorized", report.read_text())
    at = set(map(int, found))
    lines = text.split("\n")
    marked = [n for n, line in enumerate(lines) if "#pragma omp simd" in line]
    first = next(n for n, line in enumerate(lines) if "--- kernels ---" in line)
    loops = []
    for start in (n + 1 for n in marked if n > first):
        indent = re.match(" *", lines[start])
        assert indent is not None
        end = lines.index(f"{indent[0]}}}", start)
        loops.append(any(line - 1 in range(start, end) for line in at))
    return len(loops), sum(loops)


def _all() -> tuple[LoopProgram, list[Buffer]]:
    """Windows of every width of elements, rows and counts; and what they read."""
    made = [_window(dtype, f"{k}") for k, dtype in enumerate(DTYPES)]
    made += [_rows("rows"), _counts()]
    inputs = [b for buffers, _ in made for b in buffers[:-1]]
    return program(inputs, [each for _, each in made], [b[-1] for b, _ in made]), inputs


def test_conditions_leave_vectors(tmp_path: Path) -> None:
    toolchain = find_toolchain(OPTIONS)
    if not isinstance(toolchain, Toolchain) or "-ftree-loop-vectorize" not in toolchain.flags:
        pytest.skip("GCC says which loops it vectorises")
    units = generate(schedule(_all()[0], OPTIONS), OPTIONS).units
    counts = [_vectorised(unit.text, toolchain, tmp_path) for unit in units]
    # Windows of one shape are one loop.
    assert tuple(map(sum, zip(*counts, strict=True))) == (3, 3)


def test_values_by_conditions() -> None:
    whole, inputs = _all()
    check(whole, [torch.randn(known_sizes(b.shape) or ()).mul(50).to(b.dtype) for b in inputs])


def test_choices_between_truths_by_conditions_of_rows() -> None:
    (x, y), statement = _window(torch.bool)
    check(program([x], [statement], [y]), [torch.randn(6, 6, 40) > 0])
