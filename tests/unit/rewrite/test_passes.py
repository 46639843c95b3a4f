"""Graph passes: what they may remove, and what must stay because someone could tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.options import Options
from braze.rewrite import rewrite
from braze.rewrite.constants.fold_batch_norms import fold_batch_norms
from braze.rewrite.constants.fold_constants import fold_constants
from braze.rewrite.constants.fold_host_values import fold_host_values
from braze.rewrite.merge_common_subexpressions import merge_common_subexpressions
from braze.rewrite.remove_dead_nodes import remove_dead_nodes
from braze.rewrite.remove_redundant_copies import remove_redundant_copies


def _graph(*lines: str) -> Graph:
    return parse_graph("graph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")


def _ops(graph: Graph) -> list[str]:
    return [str(node.op).removeprefix("aten.") for node in graph.nodes]


def test_keeps_the_copy_that_is_returned() -> None:
    graph = _graph(
        "input %0: f32[3][1]cpu", "%1: f32[3][1]cpu = aten.clone.default(%0)", "output %1"
    )
    assert _ops(rewrite(graph, Options())) == ["clone.default"]


def test_keeps_the_copy_behind_a_returned_view() -> None:
    graph = _graph(
        "input %0: f32[4][1]cpu",
        "%1: f32[4][1]cpu = aten.clone.default(%0)",
        "%2: f32[2, 2][2, 1]cpu = aten.view.default(%1, [2, 2])",
        "output %2",
    )
    assert _ops(remove_redundant_copies(graph)) == ["clone.default", "view.default"]


def test_keeps_the_copy_of_what_is_written() -> None:
    graph = _graph(
        "input %0: f32[3][1]cpu",
        "%1: f32[3][1]cpu = aten.clone.default(%0)",
        "%2: f32[3][1]cpu = aten.add.Tensor(%1, 1)",
        "output %1",
        "write %0 <- %2",
    )
    x = torch.zeros(3)
    (result,) = run_graph(rewrite(graph, Options()), [x])
    assert result.tolist() == [0, 0, 0] and x.tolist() == [1, 1, 1]


def test_keeps_a_copy_that_changes_the_layout() -> None:
    graph = _graph(
        "input %0: f32[2, 3][1, 2]cpu",
        "%1: f32[2, 3][3, 1]cpu = aten.clone.default(%0, memory_format=contiguous_format)",
        "%2: f32[2, 3][3, 1]cpu = aten.exp.default(%1)",
        "output %2",
    )
    assert _ops(remove_redundant_copies(graph)) == ["clone.default", "exp.default"]


def test_merges_through_removed_copies() -> None:
    graph = _graph(
        "input %0: f32[3][1]cpu",
        "%1: f32[3][1]cpu = aten.clone.default(%0)",
        "%2: f32[3][1]cpu = aten.exp.default(%1)",
        "%3: f32[3][1]cpu = aten.exp.default(%0)",
        "%4: f32[3][1]cpu = aten.add.Tensor(%2, %3)",
        "output %4",
    )
    assert _ops(rewrite(graph, Options())) == ["exp.default", "add.Tensor"]


def test_merges_arguments_only_if_they_are_the_same_bits() -> None:
    graph = _graph(
        "input %0: f32[3][1]cpu",
        "%1: f32[3][1]cpu = aten.mul.Tensor(%0, 1)",
        "%2: f32[3][1]cpu = aten.mul.Tensor(%0, 1.0)",
        "%3: f32[3][1]cpu = aten.mul.Tensor(%0, 0.0)",
        "%4: f32[3][1]cpu = aten.mul.Tensor(%0, -0.0)",
        "%5: f32[3][1]cpu = aten.cat.default([%1, %2, %3, %4])",
        "output %5",
    )
    assert len(merge_common_subexpressions(graph).nodes) == 5


def test_never_merges_random_numbers() -> None:
    graph = _graph(
        "input %0: f32[3][1]cpu",
        "%1: f32[3][1]cpu = aten.rand_like.default(%0)",
        "%2: f32[3][1]cpu = aten.rand_like.default(%0)",
        "%3: f32[3][1]cpu = aten.sub.Tensor(%1, %2)",
        "output %3",
    )
    assert len(rewrite(graph, Options()).nodes) == 3


def test_never_returns_one_tensor_twice() -> None:
    graph = _graph(
        "input %0: f32[3][1]cpu",
        "%1: f32[3][1]cpu = aten.exp.default(%0)",
        "%2: f32[3][1]cpu = aten.exp.default(%0)",
        "output %1",
        "output %2",
    )
    first, second = run_graph(rewrite(graph, Options()), [torch.zeros(3)])
    assert first.data_ptr() != second.data_ptr()


def test_unchanged_graphs_are_the_same_object() -> None:
    graph = _graph("input %0: f32[3][1]cpu", "%1: f32[3][1]cpu = aten.exp.default(%0)", "output %1")
    assert remove_dead_nodes(graph) is graph
    assert rewrite(graph, Options()) is graph


def test_evaluates_what_frozen_constants_decide() -> None:
    graph = _graph(
        "input %0: f32[2][1]cpu",
        "constant %1: f32[2][1]cpu = [1.0, 2.0]",
        "%2: f32[2][1]cpu = aten.mul.Tensor(%1, 3)",
        "%3: f32[2][1]cpu = aten.add.Tensor(%0, %2)",
        "%4: f32[2][1]cpu = aten.neg.default(%2)",
        "output %3",
        "output %4",
    )
    folded = fold_constants(graph)
    assert _ops(folded) == ["add.Tensor", "neg.default"], "a result is the caller's own"
    assert [constant.tensor.tolist() for constant in folded.constants] == [[3.0, 6.0]]
    assert _ops(rewrite(graph, Options())) == ["mul.Tensor", "add.Tensor", "neg.default"]
    for made, expected in zip(run_graph(folded, [torch.ones(2)]), ([4.0, 7.0], [-3.0, -6.0])):
        assert made.tolist() == expected


def test_evaluates_what_is_made_on_the_cpu_for_a_device() -> None:
    lines = (
        "input %0: f32[4][1]meta",
        "%1: i64[4][1]cpu = aten.arange.default(4, device=device('cpu'), pin_memory=False)",
        "%2: i64[2, 2][2, 1]cpu = aten.view.default(%1, [2, 2])",
        "%3: i64[4][1]cpu = aten.add.Tensor(%1, 1)",
        "%4: f32[4][1]cpu = aten.rand.default([4], device=device('cpu'), pin_memory=False)",
        "%5: f32[4][1]meta = aten._to_copy.default(%4, device=device('meta'))",
        "%6: i64[4][1]meta = aten._to_copy.default(%3, device=device('meta'))",
        "%7: f32[4][1]meta = aten.mul.Tensor(%0, %6)",
        "%8: f32[4][1]meta = aten.add.Tensor(%7, %5)",
    )
    folded = fold_host_values(_graph(*lines, "output %8"))
    assert _ops(folded) == ["rand.default", "_to_copy.default", "mul.Tensor", "add.Tensor"]
    assert [(c.tensor.device.type, c.tensor.shape) for c in folded.constants] == [("meta", (4,))]
    given = fold_host_values(_graph(*lines, "output %3", "output %8"))
    assert _ops(given)[0] == "add.Tensor", "a result is the caller's own"
    seen = fold_host_values(_graph(*lines, "output %2 view of %1 [2, 2][2, 1] + 0", "output %8"))
    assert _ops(seen)[:2] == ["arange.default", "view.default"]
    alone = [line.replace("meta", "cpu") for line in lines]
    assert len(_ops(fold_host_values(_graph(*alone, "output %8")))) == 8, "kernels compute it"


@pytest.mark.parametrize(("fold", "first"), [(fold_host_values, 1), (fold_constants, 9)])
def test_what_is_folded_may_be_anything_to_the_caller(
    fold: Callable[[Graph], Graph], first: int
) -> None:
    """A result, or written back: it is defined, and computed in each call if the
    caller gets it."""
    kinds = {1: "i64[4][1]cpu", 2: "i64[4][1]cpu", 3: "i64[4][1]meta", 4: "f32[4][1]meta"}
    head = [
        f"input %0: {kinds[4]}",
        *(f"input %{n + 10}: {kind}" for n, kind in kinds.items()),
        f"constant %9: {kinds[1]} = [1, 2, 3, 4]",
        f"%1: {kinds[1]} = aten.arange.default(4, device=device('cpu'), pin_memory=False)",
        f"%2: {kinds[2]} = aten.add.Tensor(%{first}, 1)",
        f"%3: {kinds[3]} = aten._to_copy.default(%2, device=device('meta'))",
        f"%4: {kinds[4]} = aten.mul.Tensor(%0, %3)",
    ]
    for n in kinds:
        for use in (
            [f"output %{n}"],
            [f"write %{n + 10} <- %{n}"],
            [f"write %{n + 10} <- %{n}", f"output %{n}"],
        ):
            verify_graph(fold(_graph(*head, *use, "output %4")))


def test_leaves_what_is_large_on_the_cpu() -> None:
    lines = (
        "input %0: f32[4][1]meta",
        "%1: f64[4000000][1]cpu = aten.ones.default([4000000], dtype=f64)",
        "%2: f64[4000000][1]meta = aten._to_copy.default(%1, device=device('meta'))",
        "output %2",
    )
    assert len(_ops(fold_host_values(_graph(*lines)))) == 2


def test_folds_batch_norms_into_constants() -> None:
    graph = _graph(
        "input %0: f32[2, 2][2, 1]cpu",
        "constant %1: f32[2, 2][2, 1]cpu = [[1.0, 0.0], [0.0, 2.0]]",
        "constant %2: f32[2][1]cpu = [1.0, 3.0]",
        "%3: f32[2, 2][2, 1]cpu = aten.mm.default(%0, %1)",
        "(%4: f32[2, 2][2, 1]cpu, %5: f32[0][1]cpu, %6: f32[0][1]cpu) = "
        "aten._native_batch_norm_legit_no_training.default(%3, %2, %2, %2, %2, 0.1, 1.0)",
        "output %4",
    )
    folded = fold_batch_norms(graph)
    assert _ops(folded) == ["addmm.default"]
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(run_graph(folded, [x]), run_graph(graph, [x]))
