"""Which operators scatter by kernels, on which device, and what stays a call of ATen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from braze.codegen import cpp, triton
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import Definition, LoopProgram, Scatter
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.options import Options, config

OPTIONS = config.snapshot()


def lowered(
    call: str, *inputs: str, device: str = "cuda:0", options: Options = OPTIONS
) -> LoopProgram:
    lines = [f"input %{n}: {kind}{device}" for n, kind in enumerate(inputs)]
    lines += [f"%9: {inputs[0]}{device} = aten.{call}", "output %9"]
    graph = parse_graph("graph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    supports = triton.supports if device != "cpu" else cpp.supports
    program = lower(graph, options, supports)
    verify_loops(program)
    return program


def scattered(program: LoopProgram) -> list[Scatter]:
    definitions = [s for s in program.statements if isinstance(s, Definition)]
    return [d.body for d in definitions if isinstance(d.body, Scatter)]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i64"])
def test_sums_are_atomic_on_a_device(dtype: str) -> None:
    add = lowered(
        "index_add.default(%0, 0, %1, %2)",
        f"{dtype}[9, 4][4, 1]",
        "i64[3][1]",
        f"{dtype}[3, 4][4, 1]",
    )
    (scatter,) = scattered(add)
    assert scatter.kind == "add"


@pytest.mark.parametrize("dtype", ["i16", "i8", "u8", "b8"])
def test_what_no_memory_adds_up_is_left_to_aten(dtype: str) -> None:
    given = (f"{dtype}[9, 4][4, 1]", "i64[3][1]", f"{dtype}[3, 4][4, 1]")
    assert not scattered(lowered("index_add.default(%0, 0, %1, %2)", *given))
    (scatter,) = scattered(lowered("index_copy.default(%0, 0, %1, %2)", *given))
    assert scatter.kind == "set"


PUT = "index_put.default(%0, [%1], %2, True)"
EMBEDDED = "embedding_dense_backward.default(%1, %2, 9, -1, False)"


def _put(rows: int, points: int, dtype: str = "f32") -> tuple[str, ...]:
    return (f"{dtype}[{rows}, 4][4, 1]", f"i64[{points}][1]", f"{dtype}[{points}, 4][4, 1]")


def _embedded(rows: int, points: int, dtype: str = "f32") -> tuple[str, ...]:
    target, indices, gradient = _put(rows, points, dtype)
    return target, gradient, indices


def test_sums_that_eager_sorts_are_atomic_on_a_device() -> None:
    for call, given in ((PUT, _put(9, 30)), (EMBEDDED, _embedded(9, 30))):
        (scatter,) = scattered(lowered(call, *given))
        assert scatter.kind == "add"
    assert scattered(lowered(PUT, *_put(9, 30), device="cpu"))
    assert not scattered(lowered(EMBEDDED, *_embedded(9, 30), device="cpu"))
    assert scattered(lowered(PUT.replace("True", "False"), *_put(9, 30)))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_of_half_types_are_taken_in_float32(dtype: str) -> None:
    for call, make in ((PUT, _put), (EMBEDDED, _embedded)):
        (scatter,) = scattered(lowered(call, *make(9, 30, dtype)))
        assert scatter.dtype == torch.float32
        many = 1 << 25  # rows of four: they would be gone through three times, for few points
        large = call.replace(" 9,", f" {many},")
        assert not scattered(lowered(large, *make(many, 30, dtype)))
        assert scattered(lowered(large, *make(many, many, dtype)))


def test_points_that_would_wait_for_each_other_are_sorted() -> None:
    assert scattered(lowered(PUT, *_put(9, 9 << 14)))
    assert not scattered(lowered(PUT, *_put(9, 10 << 14)))


def test_eager_numerics_keep_the_order() -> None:
    for call, given in ((PUT, _put(9, 30)), (EMBEDDED, _embedded(9, 30))):
        assert not scattered(lowered(call, *given, options=replace(OPTIONS, numerics="eager")))


def test_counted_gradients_of_embeddings_are_left_to_aten() -> None:
    """Each is divided by how often its row is read."""
    assert not scattered(lowered(EMBEDDED.replace("False", "True"), *_embedded(9, 30)))


def test_what_threads_share_is_left_to_aten() -> None:
    given = ("f32[9, 4096][4096, 1]", "i64[30][1]", "f32[30, 4096][4096, 1]")
    call = "index_add.default(%0, 0, %1, %2)"
    assert scattered(lowered(call, *given))
    assert not scattered(lowered(call, *given, device="cpu"))
    assert scattered(lowered(call.replace("add", "copy"), *given, device="cpu"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_of_half_types_are_left_to_aten_on_the_cpu(dtype: str) -> None:
    """It may take float32 for them."""
    given = (f"{dtype}[9, 4][4, 1]", "i64[3, 4][4, 1]", f"{dtype}[3, 4][4, 1]")
    call = "scatter_add.default(%0, 0, %1, %2)"
    assert scattered(lowered(call, *given))
    assert not scattered(lowered(call, *given, device="cpu"))


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
def test_deterministic_algorithms(_deterministic: None, name: str) -> None:
    given = ("f32[9, 4][4, 1]", "i64[3][1]", "f32[3, 4][4, 1]")
    assert not scattered(lowered(f"{name}.default(%0, 0, %1, %2)", *given))


def test_sums_are_sorted_where_deterministic_algorithms_are_asked_for(
    _deterministic: None,
) -> None:
    for call, given in ((PUT, _put(9, 30)), (EMBEDDED, _embedded(9, 30))):
        assert not scattered(lowered(call, *given))
