"""Arithmetic on complex numbers as arithmetic on their parts: same numbers, same layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from braze.ir.graphs.graph import Graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.options import Options
from braze.rewrite import rewrite
from braze.rewrite.complex_as_pairs import complex_as_pairs
from braze.tracing import Tracer

C64, C128 = torch.complex64, torch.complex128


def _traced(function: Callable[..., Any], *given: torch.Tensor) -> Graph:
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        results = function(*[tracer.add_input(x) for x in given])
        return tracer.finish(list(results) if isinstance(results, tuple) else [results]).graph


def _on_cpu(graph: Graph) -> Graph:
    return complex_as_pairs(graph, ("cpu",))


def _computes_complex(graph: Graph) -> bool:
    views = ("view", "select", "unsqueeze", "expand", "transpose", "t.", "clone")
    return any(
        value is not None and value.type.dtype.is_complex
        for node in graph.nodes
        for value in node.outputs
        if not any(f"aten.{name}" in str(node.op) for name in views)
    )


def _rotary(q: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(q)


CASES: dict[str, tuple[Callable[..., Any], list[torch.Size | tuple[int, ...]], torch.dtype]] = {
    "product": (lambda x, y: x * y, [(3, 4), (3, 4)], C64),
    "product that broadcasts": (lambda x, y: x * y, [(3, 1, 4), (5, 1)], C64),
    "product of a chain": (lambda x, y: (x * y + x) * y - x, [(3, 4), (3, 4)], C128),
    "conjugate": (lambda x, y: x.conj() * y, [(3, 4), (4,)], C64),
    "negated": (lambda x: -(x * x), [(7,)], C64),
    "sum that broadcasts": (lambda x, y: x + y, [(3, 4), (1, 4)], C64),
    "difference of one row": (lambda x, y: x - y, [(4,), (3, 4)], C64),
    "a view of the result": (lambda x: (x * x)[1:].abs(), [(3, 4)], C64),
    "the parts": (lambda x: ((x * x).real, (x * x).imag), [(3, 4)], C64),
}


def _of_pairs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of complex numbers that are given as pairs."""
    return lambda *pairs: function(*map(torch.view_as_complex, pairs))


@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name: str) -> None:
    function, shapes, dtype = CASES[name]
    torch.manual_seed(0)
    given = [torch.view_as_real(torch.randn(shape, dtype=dtype)) for shape in shapes]
    of_pairs = _of_pairs(function)
    graph = _on_cpu(_traced(of_pairs, *given))
    verify_graph(graph)
    assert not _computes_complex(graph) or "view" in name
    wanted = of_pairs(*given)
    for found, right in zip(
        run_graph(graph, given), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        torch.testing.assert_close(found, right)
        assert found.stride() == right.stride()


def test_a_rotary_embedding_computes_nothing_complex() -> None:
    q, turns = torch.randn(2, 6, 3, 8).bfloat16(), torch.randn(6, 4, dtype=C64)
    graph = rewrite(_on_cpu(_traced(_rotary, q, turns)), Options())
    verify_graph(graph)
    assert not _computes_complex(graph)
    assert not any("view_as_complex" in str(node.op) for node in graph.nodes)
    torch.testing.assert_close(run_graph(graph, [q, turns])[0], _rotary(q, turns))


def test_a_real_factor_keeps_its_parts_apart() -> None:
    z, x = torch.randn(3, 4, 2), torch.randn(4)
    graph = _on_cpu(_traced(lambda z, x: x * torch.view_as_complex(z), z, x))
    assert sum(str(node.op) == "aten.mul.Tensor" for node in graph.nodes) == 2
    torch.testing.assert_close(run_graph(graph, [z, x])[0], x * torch.view_as_complex(z))


def _chain(z: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        z = z * z + z
    return z


@pytest.mark.parametrize(
    ("function", "pays"),
    [
        (lambda z, c: z * c, False),
        (lambda z, c: z.exp() * z.sin() * c, False),
        (lambda z, c: torch.view_as_real(z * c), False),
        (lambda z, c: torch.view_as_real(z * c).flatten(1).half(), True),
        (lambda z, c: _chain(z) * c, True),
        (lambda z, c: torch.view_as_complex(torch.view_as_real(z) * 2) * c, True),
    ],
)
def test_complex_operands_are_copied_where_it_pays(
    function: Callable[..., Any], pays: bool
) -> None:
    """Loops read the parts of a copy: a product alone of complex numbers is one call of ATen's."""
    z, c = torch.randn(3, 4, dtype=C64), torch.randn(4, dtype=C64)
    graph = _on_cpu(_traced(function, z, c))
    assert _computes_complex(graph) is not pays
    torch.testing.assert_close(run_graph(graph, [z, c])[0], function(z, c))


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z * 2.0,
        lambda z: z * z.real.double(),
        lambda z: torch.add(z, z, alpha=2),
        lambda z: z[0, 0] * z[1, 1],
        lambda z: z.exp(),
        lambda z: z.t() * z.t(),
    ],
)
def test_what_is_left_as_it_is(function: Callable[..., Any]) -> None:
    graph = _traced(function, torch.randn(3, 4, dtype=C64))
    assert [node.op for node in _on_cpu(graph).nodes] == [node.op for node in graph.nodes]


def test_the_cpu_keeps_atens_kernels() -> None:
    graph = _traced(lambda z: z * z, torch.randn(3, dtype=C64))
    assert complex_as_pairs(graph) is graph
