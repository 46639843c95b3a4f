"""Functions compiled for sm_90, which needs no GPU: types, and how wide memory is accessed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import generate
from braze.codegen.triton.operators import TYPES
from braze.ir.kernels.loops import SCALAR_OPS, LoopProgram
from braze.ir.kernels.scalars import apply, cast, literal
from braze.ir.kernels.schedule import Kernel
from braze.schedule import CUDA
from tests.unit.codegen import programs
from tests.unit.codegen.attention_programs import MASKS, SCORES, attention
from tests.unit.codegen.test_triton import FLOAT_OPS, all_of, gathered, supports
from tests.unit.codegen.test_triton_indices import turned
from tests.unit.codegen.test_triton_products import linear, planned
from tests.unit.codegen.triton_running import HAS_TRITON, OPTIONS, generated
from tests.unit.codegen.triton_running import planned as planned_as_it_comes

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="needs triton"),
    pytest.mark.xdist_group("triton"),
]


def _casts(source: torch.dtype) -> LoopProgram:
    x = programs.buffer("x", (4096,), source)
    over = programs.axes((4096,))
    outputs = [programs.buffer(f"y{k}", (4096,), target) for k, target in enumerate(TYPES)]
    body = programs.load(x, over[0][0])
    statements = [programs.define(y, over, cast(body, y.dtype)) for y in outputs]
    return programs.program([x], statements, outputs)


def _operators(dtype: torch.dtype) -> LoopProgram:
    names = [op for op in SCALAR_OPS if supports(op, dtype) and op != "where"]
    return all_of(names, dtype, 4096, 2)


def _power_of_a_number() -> LoopProgram:
    x, y = [programs.buffer(name, (4096,), torch.int64) for name in "xy"]
    over = programs.axes((4096,))
    body = apply("pow", literal(3, torch.int64), programs.load(x, over[0][0]))
    return programs.program([x], [programs.define(y, over, body)], [y])


PROGRAMS = {
    "power of a number": _power_of_a_number(),
    "softmax": programs.softmax(16384, 4096, torch.bfloat16),
    "long softmax": programs.softmax(512, 131072, torch.bfloat16),
    "shared softmax": programs.softmax(512, 131072, torch.float32),
    "odd softmax": programs.softmax(512, 50257, torch.bfloat16),
    "add and norm": programs.add_norm(4096, 1024),
    "channel norm": programs.channel_norm((32, 64, 3136)),
    "shared channel norm": programs.channel_norm((64, 256, 3136)),
    "column sum": programs.reduction("sum", (16384, 4096), (1,)),
    "full sum": programs.reduction("sum", (2**26,), ()),
    "transpose": programs.transposed_add(4096, 4096),
    "argmax": programs.reduction("argmax", (1000, 5000), (0,)),
    "gather": gathered(),
    "pairs": turned(4096, 64),
    "sums of float32": programs.scattered("add", 8192, 4096, 4096),
    "sums of float64": programs.scattered("add", 8192, 64, 4096, torch.float64),
    "sums of float16": programs.scattered("add", 8192, 4096, 4096, torch.float16),
    "sums of bfloat16": programs.scattered("add", 8192, 4096, 4096, torch.bfloat16),
    "sums of int64": programs.histogram(4096, 64),
    "sums of int32": programs.histogram(4096, 64, torch.int32),
    "values at places": programs.scattered("set", 8192, 4096, 4096, torch.bfloat16),
    "float operators": all_of(FLOAT_OPS, torch.float32, 4096),
    "unsigned operators": _operators(torch.uint8),
    "logical operators": _operators(torch.bool),
    "casts of half": _casts(torch.bfloat16),
    "casts of bool": _casts(torch.bool),
    "casts of a byte": _casts(torch.float8_e4m3fn),
}


# Products of matrices, and which instruction multiplies them.
PRODUCTS = {
    "product of bfloat16": (torch.bfloat16, "wgmma.mma_async"),
    "product of float32": (torch.float32, "fma.rn.f32"),
}


# Products that compute an operand: function, inputs, and which instruction multiplies.
_HALF = torch.bfloat16
PROLOGUES: dict[str, tuple[Any, list[tuple[tuple[int, ...], torch.dtype]], str]] = {
    "one row and a weight of bytes": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        [((1, 4096), _HALF), ((4096, 4096), torch.int8), ((4096,), _HALF)],
        "fma.rn.f32",
    ),
    "weight of bytes": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        [((16, 4096), _HALF), ((4096, 4096), torch.int8), ((4096,), _HALF)],
        "mma.sync.aligned.m16n8k16",
    ),
    "weight of float8": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
        [((16, 4096), _HALF), ((4096, 4096), torch.float8_e4m3fn), ((), _HALF)],
        "mma.sync.aligned.m16n8k16",
    ),
    "gated pair": (
        lambda a, b, w: (F.silu(a) * b) @ w,
        [((8192, 4096), _HALF), ((8192, 4096), _HALF), ((4096, 64), _HALF)],
        "wgmma.mma_async",
    ),
    "weight's gradient": (
        lambda h, g: F.gelu(h).t() @ g,
        [((4096, 1024), _HALF), ((4096, 128), _HALF)],
        "wgmma.mma_async",
    ),
    "numbers of float32": (
        lambda x, w: x.float() @ w,
        [((64, 512), _HALF), ((512, 256), torch.float32)],
        "fma.rn.f32",
    ),
}


def _windowed(**how: Any) -> Any:
    return lambda x, w, y: F.relu(F.conv2d(x, w, **how) + y)


# Convolutions with a residual and an activation: function, inputs, and what multiplies.
_TF32, _BF16 = "f32.tf32.tf32", "f32.bf16.bf16"
CONVOLUTIONS: dict[str, tuple[Any, tuple[tuple[int, ...], ...], str]] = {
    "window": (
        _windowed(padding=1),
        ((8, 128, 28, 28), (128, 128, 3, 3), (8, 128, 28, 28)),
        _BF16,
    ),
    "window of tf32": (
        _windowed(padding=1),
        ((8, 128, 28, 28), (128, 128, 3, 3), (8, 128, 28, 28)),
        _TF32,
    ),
    "window with steps": (
        _windowed(padding=1, stride=2),
        ((8, 128, 28, 28), (128, 128, 3, 3), (8, 128, 14, 14)),
        _BF16,
    ),
    "window across a block": (
        _windowed(padding=1),
        ((8, 48, 28, 28), (128, 48, 3, 3), (8, 128, 28, 28)),
        _BF16,
    ),
    "point with steps": (
        _windowed(stride=2),
        ((8, 256, 28, 28), (512, 256, 1, 1), (8, 512, 14, 14)),
        _BF16,
    ),
    "point of tf32": (
        _windowed(),
        ((8, 256, 28, 28), (64, 256, 1, 1), (8, 64, 28, 28)),
        _TF32,
    ),
}


def _convolution(name: str) -> Any:
    function, shapes, kind = CONVOLUTIONS[name]
    dtype = torch.float32 if kind == _TF32 else torch.bfloat16
    given = [torch.empty(shape, dtype=dtype) for shape in shapes]
    _, plan = planned(function, [x.to(memory_format=torch.channels_last) for x in given])
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel) and kernel.product is not None
    return generate(plan, OPTIONS)


def _prologue(name: str) -> Any:
    function, specs, _ = PROLOGUES[name]
    _, plan = planned(function, [torch.empty(shape, dtype=dtype) for shape, dtype in specs])
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel) and kernel.product is not None
    assert any(kernel.product.computed)
    return generate(plan, OPTIONS)


ATTENTION = {f"attention, {mask}, {score}": (mask, score) for mask, score in (
    ("causal", "plain"), ("documents", "alibi"), ("around", "soft cap"), ("padded", "plain"),
)}  # fmt: skip


def _attention(mask: str, score: str) -> Any:
    """Of 16,384 queries and keys of 64 numbers each."""
    given = [torch.empty(1, 4, 16384, 64, dtype=_HALF) for _ in range(3)]
    read = [torch.arange(16384), torch.rand(8), torch.rand(8, 1 << 15), torch.tensor([9])]
    attend = attention(SCORES[score], MASKS[mask])
    _, plan, _ = planned_as_it_comes(attend, [*given, *read], CUDA)
    return generate(plan, OPTIONS)


def _product(dtype: torch.dtype) -> Any:
    shapes = [(8, 512, 768), (3072, 768), (3072,)]
    _, plan = planned(linear, [torch.empty(shape, dtype=dtype) for shape in shapes])
    return generate(plan, OPTIONS)


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict[str, Any]]]:
    """What came of the functions of each program: one process compiles them all."""
    rows, owners = [], []
    made = {name: generated(program)[1] for name, program in PROGRAMS.items()}
    made |= {name: _product(dtype) for name, (dtype, _) in PRODUCTS.items()}
    made |= {name: _prologue(name) for name in PROLOGUES}
    made |= {name: _convolution(name) for name in CONVOLUTIONS}
    made |= {name: _attention(*kinds) for name, kinds in ATTENTION.items()}
    for name, sources in made.items():
        for function in {launch.function for step in sources.launches for launch in step}:
            fields = function.facts()
            del fields["stages"]
            rows.append(list(fields.values()))
            owners.append(name)
    command = [sys.executable, "-m", "tests.unit.codegen.triton_compiling"]
    done = subprocess.run(command, input=json.dumps(rows), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for owner, result in zip(owners, json.loads(done.stdout), strict=True):
        found.setdefault(owner, []).append(result)
    return found


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_uses_matrix_units(name: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    """Both products, of tiles that are on their way from memory while others are computed."""
    (found,) = [row for row in compiled[name] if any("wgmma" in x for x in row["arithmetic"])]
    assert found["copies"] and max(found["copies"]) == 16
    assert found["shared"] <= 160 << 10


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_multiplied_by(name: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    """Matrix units where halves are multiplied; never their shorter float32."""
    (result,) = compiled[name]
    assert any(found.startswith(PRODUCTS[name][1]) for found in result["arithmetic"])
    assert not any("tf32" in found for found in result["arithmetic"])
    assert "st.v4.b32" in result["widths"]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_images_are_read_16_bytes_at_a_time(
    name: str, compiled: dict[str, list[dict[str, Any]]]
) -> None:
    """As the weights are, blocks ahead, into shared memory; matrix units multiply."""
    (result,) = compiled[name]
    wanted = CONVOLUTIONS[name][2]
    assert any(found.startswith("wgmma.mma_async") for found in result["arithmetic"])
    assert all(found.endswith(wanted) for found in result["arithmetic"] if "wgmma" in found)
    assert result["copies"] == [16]
    assert {"ld.b16", "ld.b32"}.isdisjoint(result["widths"]) and "st.v4.b32" in result["widths"]


@pytest.mark.parametrize("name", PROLOGUES)
def test_operands_are_computed_beside_the_next_blocks_on_their_way(
    name: str, compiled: dict[str, list[dict[str, Any]]]
) -> None:
    """What they are computed from comes into shared memory 16 bytes at a time, blocks ahead."""
    (result,) = compiled[name]
    wanted = PROLOGUES[name][2]
    assert any(found.startswith(wanted) for found in result["arithmetic"])
    assert not any("tf32" in found for found in result["arithmetic"])
    assert max(result["copies"]) == 16
    # One by one a number takes as long as 8 additions: only results are converted so, up to
    # four by Triton 3.7; of operands it would be each number that a thread has.
    assert result["conversions"] <= 4
    assert result["shared"] <= 227 * 1024


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_compiles(name: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    assert compiled[name]


WIDE = [
    "softmax",
    "long softmax",
    "shared softmax",
    "odd softmax",
    "add and norm",
    "channel norm",
    "shared channel norm",
    "column sum",
    "full sum",
    "transpose",
    "pairs",
]


@pytest.mark.parametrize("name", WIDE)
def test_memory_is_read_16_bytes_at_once(
    name: str, compiled: dict[str, list[dict[str, Any]]]
) -> None:
    assert any("ld.v4.b32" in result["widths"] for result in compiled[name])
