"""The innermost loop of a kernel goes along neighbours in memory, where indices are looked up, too,
and where both parts of complex numbers are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from braze.codegen.triton import supports
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import Load, Scatter
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import Kernel, Store, offset
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.shapes.expr import Expr, symbols

OPTIONS = config.snapshot()


def _kernels(*lines: str) -> list[Kernel]:
    """The kernels of a graph in text whose tensors are on a GPU."""
    body = "".join(f"  {line.replace(']cuda', ']cuda:0')}\n" for line in lines)
    graph = parse_graph("graph {\n" + body + "}\n")
    made = schedule(lower(rewrite(graph, OPTIONS), OPTIONS, supports), OPTIONS, CUDA)
    return [step for step in made.steps if isinstance(step, Kernel)]


def _typed(dtype: str, *shape: int) -> str:
    steps, step = [], 1
    for size in reversed(shape):
        steps.insert(0, step)
        step *= size
    return f"{dtype}{list(shape)}{steps}cuda"


def _whole_steps(kernel: Kernel) -> Iterator[tuple[str, int | None]]:
    """Of each access that is made once a point: whether it is a load, or what is stored, and the
    elements from point to point along the innermost loop; None where they are looked up."""
    (phase,) = kernel.phases
    loops = [*kernel.rows, *phase.loops]
    innermost = loops[-1][0]

    def step(place: Expr) -> int | None:
        following = place - place_at_zero(place)
        if following.terms and len(following.terms) == 1:
            ((monomial, factor),) = following.terms
            return factor if monomial == (innermost,) else None
        return None if following.terms else 0

    def place_at_zero(place: Expr) -> Expr:
        return Expr(tuple(t for t in place.terms if innermost not in symbols(Expr((t,)))))

    for statement in phase.body:
        assert isinstance(statement, Store)
        body = statement.value
        place = offset(statement.target, statement.coordinates)
        yield ("scattered" if isinstance(body, Scatter) else "stored"), step(place)
        for load in loads(body):
            if isinstance(load, Load) and _moves_with(load, len(loops)):
                yield "loaded", step(offset(load.buffer, load.coordinates))


def _moves_with(load: Load, loops: int) -> bool:
    """Whether the load is of what has as many dimensions as there are loops: not of indices."""
    return len(load.buffer.shape) >= 2 and load.buffer.dtype.is_floating_point


SHAPES = [(700, 128), (700, 3), (40, 12, 64), (90, 4, 5, 8)]
OPERATORS = ["index_add", "index_copy", "scatter_add", "scatter"]


@pytest.mark.parametrize(("shape", "operator"), list(itertools.product(SHAPES, OPERATORS)))
def test_scattered_rows_are_written_along(shape: tuple[int, ...], operator: str) -> None:
    """Rows of any shape, scattered along the first dimension: neighbours are those of a row."""
    into, index = (50, *shape[1:]), _typed("i64", shape[0])
    lines = [f"input %0: {_typed('f32', *into)}", f"input %2: {_typed('f32', *shape)}"]
    if operator.startswith("scatter"):
        stride = f"[1{', 0' * (len(shape) - 1)}]"
        lines.append(f"input %1: i64{list(shape)}{stride}cuda")
        name = f"{operator}.{'default' if operator == 'scatter_add' else 'src'}"
    else:
        lines.append(f"input %1: {index}")
        name = f"{operator}.default"
    lines += [f"%9: {_typed('f32', *into)} = aten.{name}(%0, 0, %1, %2)", "output %9"]
    kernel = _kernels(*lines)[-1]
    steps = dict(_whole_steps(kernel))
    assert steps["scattered"] == 1 and steps["loaded"] == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_gathered_rows_are_scattered_along(shape: tuple[int, ...]) -> None:
    """What is scattered is looked up itself, as messages between nodes of a graph are."""
    nodes, edges = (50, *shape[1:]), _typed("i64", shape[0])
    kernel = _kernels(
        f"input %0: {_typed('f32', *nodes)}",
        f"input %1: {edges}",
        f"input %2: {edges}",
        f"%3: {_typed('f32', *shape)} = aten.index_select.default(%0, 0, %1)",
        f"%4: {_typed('f32', *nodes)} = aten.mul.Tensor(%0, 0.5)",
        f"%5: {_typed('f32', *nodes)} = aten.index_add.default(%4, 0, %2, %3)",
        "output %5",
    )[-1]
    found = list(_whole_steps(kernel))
    assert [kind for kind, _ in found] == ["scattered", "loaded"]
    assert all(step == 1 for _, step in found)


def test_sums_go_along_their_target() -> None:
    """An element that is added to is read and written; one of the source is read only."""
    kernel = _kernels(
        f"input %0: {_typed('f32', 50, 128)}",
        f"input %1: {_typed('i64', 700)}",
        "input %2: f32[700, 128][1, 700]cuda",
        f"%9: {_typed('f32', 50, 128)} = aten.index_add.default(%0, 0, %1, %2)",
        "output %9",
    )[-1]
    assert dict(_whole_steps(kernel))["scattered"] == 1


def test_places_in_rows_are_read_along() -> None:
    """Scattered along the last dimension, neighbours are those of the source."""
    kernel = _kernels(
        f"input %0: {_typed('f32', 60, 500)}",
        f"input %1: {_typed('i64', 60, 70)}",
        f"input %2: {_typed('f32', 60, 70)}",
        f"%9: {_typed('f32', 60, 500)} = aten.scatter_add.default(%0, 1, %1, %2)",
        "output %9",
    )[-1]
    assert dict(_whole_steps(kernel))["loaded"] == 1


@pytest.mark.parametrize("heads", [1, 4, 32])
@pytest.mark.parametrize("width", [16, 64])
def test_complex_numbers_are_read_along(heads: int, width: int) -> None:
    """A rotary embedding: its angles are the same for all heads, which is no reason to go along
    the heads, a row of memory apart."""
    whole, angles = (2, 128, heads, width), (1, 128, 1, width)
    (kernel,) = _kernels(
        f"input %0: {_typed('f32', *whole, 2)}",
        f"input %1: {_typed('c64', *angles)}",
        f"%2: {_typed('c64', *whole)} = aten.view_as_complex.default(%0)",
        f"%3: {_typed('c64', *whole)} = aten.mul.Tensor(%2, %1)",
        f"%4: {_typed('f32', *whole, 2)} = aten.view_as_real.default(%3)",
        "output %4",
    )
    assert {step for _, step in _whole_steps(kernel)} <= {1, 2}


def test_rows_that_are_summed_are_read_along() -> None:
    """A bag of embeddings: indices lie beside each other along the bag, what they lead to does
    not."""
    kernel = _kernels(
        f"input %0: {_typed('f32', 5000, 128)}",
        f"input %1: {_typed('i64', 4096, 20)}",
        f"%2: {_typed('f32', 4096, 20, 128)} = aten.embedding.default(%0, %1)",
        f"%3: {_typed('f32', 4096, 128)} = aten.sum.dim_IntList(%2, [1])",
        "output %3",
    )[-1]
    assert kernel.lanes and kernel.rows[-1][1] == 128
