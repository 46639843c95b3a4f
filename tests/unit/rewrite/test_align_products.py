"""Products of half-precision matrices with padded extents: the same numbers, in the same layout."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

import braze
from braze.ir.device_model import H200
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.kernels import unaligned_rows as odd_rows
from braze.options import GRAPH_PASSES
from braze.rewrite import rewrite
from braze.rewrite.align_products import Rates, align_products, rates_of
from braze.rewrite.passes import PASSES

module = sys.modules[align_products.__module__]
# Everything pays.
EAGER = {
    "cpu": Rates(
        aligned=1e12,
        unaligned={2: 1.0, 4: 1.0, 8: 1.0},
        memory=1e12,
        call=0.0,
        worth=1.0,
    )
}
# As on a GPU, for graphs whose types say CPU.
WEIGHED = {"cpu": rates_of(H200)}


def _graph(*lines: str) -> Graph:
    return parse_graph("\n".join(["graph {", *lines, "}\n"]))


def _product(m: int, k: int, n: int, first: str, second: str, dtype: str = "bf16") -> Graph:
    """(m, k) @ (k, n); first, second: "rows" or "columns", what is contiguous."""
    left = [k, 1] if first == "rows" else [1, m]
    right = [n, 1] if second == "rows" else [1, k]
    return _graph(
        f"input %0: {dtype}{[m, k]}{left}cpu",
        f"input %1: {dtype}{[k, n]}{right}cpu",
        f"%2: {dtype}{[m, n]}{[n, 1]}cpu = aten.mm.default(%0, %1)",
        "output %2",
    )


def _inputs(graph: Graph) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = []
    for value in graph.inputs:
        kind = value.type
        tensor = torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype)
        made.append(tensor.copy_(torch.randn(kind.shape)))
    return made


def _same_results(before: Graph, after: Graph) -> None:
    verify_graph(after)
    inputs = _inputs(before)
    for wanted, found in zip(run_graph(before, inputs), run_graph(after, inputs), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


def _strides_of_products(graph: Graph) -> list[int]:
    """The strides between rows, or columns, of all that products read and make."""
    found = []
    for node in graph.nodes:
        if node.op._schema.name in module._PRODUCTS:
            product = module._product_of(node)
            assert product is not None
            for kind, _ in product.matrices():
                found += [step for step in kind.stride if step != 1]
    return found


@pytest.mark.parametrize("first", ["rows", "columns"])
@pytest.mark.parametrize("second", ["rows", "columns"])
@pytest.mark.parametrize("sizes", [(16, 24, 21), (16, 21, 24), (21, 16, 24), (9, 10, 11)])
def test_every_row_begins_at_16_bytes(sizes: tuple[int, int, int], first: str, second: str) -> None:
    before = _product(*sizes, first, second)
    after = align_products(before, EAGER)
    assert all(step % 8 == 0 for step in _strides_of_products(after)), print_graph(after)
    _same_results(before, after)


def test_only_what_needs_it_is_padded() -> None:
    """The weight of a vocabulary is read along its rows, which are aligned: only their number
    changes."""
    after = align_products(_product(16, 24, 21, "rows", "columns"), EAGER)
    padded = [node.outputs[0].type for node in after.nodes if "pad" in str(node.op)]  # type: ignore[union-attr]
    assert [(kind.shape, kind.stride) for kind in padded] == [((24, 24), (1, 24))]  # type: ignore[union-attr]


PRODUCTS = {
    "a bias": ["input %2: bf16[21][1]cpu", "aten.addmm.default(%2, %0, %1)"],
    "a bias for all": ["input %2: bf16[1][1]cpu", "aten.addmm.default(%2, %0, %1)"],
    "a number": ["input %2: bf16[][]cpu", "aten.addmm.default(%2, %0, %1)"],
    "a matrix": [
        "input %2: bf16[19, 21][1, 19]cpu",
        "aten.addmm.default(%2, %0, %1, beta=0.5, alpha=2)",
    ],
    "a column": ["input %2: bf16[19, 1][1, 1]cpu", "aten.addmm.default(%2, %0, %1)"],
}


@pytest.mark.parametrize("lines", PRODUCTS.values(), ids=PRODUCTS)
def test_what_is_added(lines: list[str]) -> None:
    added, call = lines
    before = _graph(
        "input %0: bf16[19, 13][1, 19]cpu",
        "input %1: bf16[13, 21][21, 1]cpu",
        added,
        f"%3: bf16[19, 21][21, 1]cpu = {call}",
        "output %3",
    )
    after = align_products(before, EAGER)
    assert after is not before
    _same_results(before, after)


@pytest.mark.parametrize("call", ["bmm.default(%0, %1)", "baddbmm.default(%2, %0, %1)"])
def test_batches(call: str) -> None:
    before = _graph(
        "input %0: f16[3, 19, 13][247, 1, 19]cpu",
        "input %1: f16[3, 13, 21][273, 21, 1]cpu",
        "input %2: f16[3, 1, 21][21, 21, 1]cpu",
        f"%3: f16[3, 19, 21][399, 21, 1]cpu = aten.{call}",
        "output %3",
    )
    after = align_products(before, EAGER)
    assert all(step % 8 == 0 for step in _strides_of_products(after)), print_graph(after)
    _same_results(before, after)


def test_the_backward_of_a_vocabulary_pads_its_gradient_once() -> None:
    before = _graph(
        "input %0: bf16[16, 21][21, 1]cpu",
        "input %1: bf16[21, 24][24, 1]cpu",
        "input %2: bf16[16, 24][24, 1]cpu",
        "%3: bf16[16, 24][24, 1]cpu = aten.mm.default(%0, %1)",
        "%4: bf16[21, 16][1, 21]cpu = aten.t.default(%0)",
        "%5: bf16[21, 24][24, 1]cpu = aten.mm.default(%4, %2)",
        "output %3",
        "output %5",
    )
    after = align_products(before, EAGER)
    pads = [node.args[0] for node in after.nodes if "pad" in str(node.op)]
    assert pads == [before.inputs[0], before.inputs[1]]
    _same_results(before, after)


REFUSED = {
    "aligned": _product(16, 24, 32, "rows", "columns"),
    "float32": _product(16, 24, 21, "rows", "columns", "f32"),
    "gaps": _graph(
        "input %0: bf16[16, 24][25, 1]cpu",
        "input %1: bf16[24, 32][32, 1]cpu",
        "%2: bf16[16, 32][32, 1]cpu = aten.mm.default(%0, %1)",
        "output %2",
    ),
    "nothing contiguous": _graph(
        "input %0: bf16[16, 21][50, 2]cpu",
        "input %1: bf16[21, 32][32, 1]cpu",
        "%2: bf16[16, 32][32, 1]cpu = aten.mm.default(%0, %1)",
        "output %2",
    ),
}


@pytest.mark.parametrize("graph", REFUSED.values(), ids=REFUSED)
def test_stays_as_it_is(graph: Graph) -> None:
    assert align_products(graph, EAGER) is graph


def test_a_copy_of_an_aligned_view_is_aligned_too() -> None:
    """The first matrix has gaps that align it, and is padded for the second one's sake."""
    before = _graph(
        "input %0: bf16[16, 21][32, 1]cpu",
        "input %1: bf16[21, 32][1, 21]cpu",
        "%2: bf16[16, 32][32, 1]cpu = aten.mm.default(%0, %1)",
        "output %2",
    )
    after = align_products(before, EAGER)
    assert all(step % 8 == 0 for step in _strides_of_products(after)), print_graph(after)
    _same_results(before, after)


@pytest.mark.parametrize(
    ("sizes", "pays"),
    [
        ((4096, 768, 50257), True),  # the head of GPT-2
        ((8192, 768, 30522), True),  # of BERT
        ((4096, 64, 50257), False),  # writes more than it computes
        ((64, 768, 1001), False),  # small
        ((1, 768, 50257), False),  # one token: reading the weight is all
    ],
)
def test_pays_where_copies_cost_less_than_is_gained(
    sizes: tuple[int, int, int], pays: bool
) -> None:
    graph = _graph(
        *print_graph(_product(*sizes, "rows", "columns")).splitlines()[1:-2],
        f"%3: bf16[{sizes[0]}][1]cpu = aten.sum.dim_IntList(%2, [1])",
        "output %3",
    )
    assert (align_products(graph, WEIGHED) is not graph) is pays
    assert align_products(graph) is graph  # on a CPU nothing does


@pytest.mark.parametrize("view", ["view", "_unsafe_view"])
def test_a_large_result_that_the_caller_sees_is_left(
    view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a kernel of ours; one that nobody sees is padded, and a small one, and operands."""
    monkeypatch.setattr(odd_rows, "_LEAST_BYTES", 2 * 128 * 75)
    lines = [
        "input %0: bf16[128, 256][256, 1]cpu",
        "input %1: bf16[256, 75][1, 256]cpu",
        "%2: bf16[128, 75][75, 1]cpu = aten.mm.default(%0, %1)",
        f"%3: bf16[1, 128, 75][9600, 75, 1]cpu = aten.{view}.default(%2, [1, 128, 75])",
        "%4: bf16[1, 128][128, 1]cpu = aten.sum.dim_IntList(%3, [2])",
    ]
    seen = _graph(*lines, "output %3")
    assert align_products(seen, EAGER) is seen
    for other in (
        _graph(*lines, "output %4"),
        _graph(*[line.replace("75", "74") for line in lines], "output %3"),
        _graph(lines[0], lines[1].replace("[1, 256]", "[75, 1]"), *lines[2:], "output %3"),
    ):
        after = align_products(other, EAGER)
        assert sum("mm" in str(node.op) for node in after.nodes) == 1
        assert any("pad" in str(node.op) for node in after.nodes)
        _same_results(other, after)


def test_large_logits_are_left_and_small_ones_are_padded() -> None:
    for sizes, count in [((4096, 768, 50257), 0), ((2048, 768, 15001), 1)]:
        after = align_products(_product(*sizes, "rows", "columns"), WEIGHED)
        assert sum("pad" in str(node.op) for node in after.nodes) == count


def test_symbolic_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align_products, "__defaults__", (EAGER,))
    layer = torch.nn.Linear(24, 21, dtype=torch.bfloat16)
    compiled = braze.compile(layer, dynamic=True)
    for rows in (16, 7):
        x = torch.randn(rows, 24, dtype=torch.bfloat16)
        found, wanted = compiled(x), layer(x)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(21, 24)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.words(tokens).sin(), self.words.weight)


@pytest.mark.parametrize("with_loss", [False, True])
def test_training_a_language_model(monkeypatch: pytest.MonkeyPatch, with_loss: bool) -> None:
    torch.manual_seed(0)
    model = Head().to(torch.bfloat16)
    tokens = torch.randint(0, 21, (3, 16))

    def step(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens)
        if not with_loss:
            return logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def run(function: object) -> list[torch.Tensor]:
        out = function(tokens)  # type: ignore[operator]
        (gradient,) = torch.autograd.grad(out.float().square().sum(), model.words.weight)
        return [out.detach(), gradient]

    wanted = run(step)
    monkeypatch.setattr(align_products, "__defaults__", (EAGER,))
    log: list[Graph] = []
    original = module._ProductRewriter.__init__
    monkeypatch.setattr(
        module._ProductRewriter,
        "__init__",
        lambda self, graph: (log.append(graph), original(self, graph))[1],
    )
    found = run(braze.compile(step, options={"verify": True}))
    assert len(log) == 2  # forward and backward
    for mine, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, eager, rtol=2e-2, atol=1e-3)
        assert mine.stride() == eager.stride()


def test_passes_can_be_skipped() -> None:
    elsewhere = {"reroll_blocks", "recompute_attention"}
    assert {*GRAPH_PASSES} <= {graph_pass.name for graph_pass in PASSES} | elsewhere
    twice = _graph(
        "input %0: f32[4][1]cpu",
        "%1: f32[4][1]cpu = aten.exp.default(%0)",
        "%2: f32[4][1]cpu = aten.exp.default(%0)",
        "%3: f32[4][1]cpu = aten.add.Tensor(%1, %2)",
        "output %3",
    )
    options = braze.options.Options()
    assert len(rewrite(twice, options).nodes) == 2
    skipping = dataclasses.replace(options, skip_passes=("merge_common_subexpressions",))
    assert len(rewrite(twice, skipping).nodes) == 3
    with pytest.raises(braze.errors.InvalidOption, match="align_products"):
        braze.compile(torch.sin, options={"skip_passes": "align_product"})


def test_products_stay_where_every_rounding_is_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align_products, "__defaults__", (EAGER,))
    graph = _product(16, 24, 21, "rows", "columns")
    options = braze.options.Options()
    assert len(rewrite(graph, options).nodes) > 1
    assert len(rewrite(graph, dataclasses.replace(options, numerics="eager")).nodes) == 1
