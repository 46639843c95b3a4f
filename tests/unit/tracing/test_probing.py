"""Results that are fitted to what meta kernels say at several sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze
from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.report.explain import summarise
from braze.shapes.expr import as_expr, constant_value
from braze.shapes.facts import Facts
from braze.shapes.symbolic import of_expression
from braze.trace import Journal
from braze.tracing.shape_rules.infer import infer
from braze.tracing.shape_rules.meta_fallback import infer_by_meta
from braze.tracing.symbolic.infer_by_sampling import _line, _numbers, _probes


def test_probes_vary_every_symbol() -> None:
    """The sixth symbol had two values at all probes, and any line goes through two points."""
    facts = Facts()
    free = [facts.new_symbol(f"x{number}", 6) for number in range(12)]
    probes = list(itertools.islice(_probes(facts, free), 6))
    for symbol in free:
        assert len({probe[symbol] for probe in probes}) >= 5, symbol


def test_two_points_are_no_line() -> None:
    assert _line([3, 4, 5], [7, 9, 11]) == (2, 1)
    assert _line([3, 4, 3, 4], [7, 9, 7, 9]) is None


def in_windows(x: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.shape
    padding = (0, -width % 4, 0, -height % 4)
    x = torch.nn.functional.pad(x, padding)
    rows, columns = x.shape[2] // 4, x.shape[3] // 4
    x = x.view(batch, channels, rows, 4, columns, 4).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(-1, 16, channels).mean(1)


def test_gradient_of_a_pad_to_windows(journal: Journal) -> None:
    """The width that the gradient of the pad has was fitted to two widths."""
    compiled = braze.compile(in_windows, dynamic=True, backend="aot_eager")
    for height, width in ((8, 15), (11, 21), (14, 27), (19, 37), (10, 23)):
        mine, theirs = (torch.ones(2, 4, height, width).requires_grad_() for _ in range(2))
        compiled(mine).square().sum().backward()
        in_windows(theirs).square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    frames = [r for r in journal.records() if "backward" not in r.function]
    assert len(frames) <= 2  # paddings by nothing may be programs of their own


def rows_of_masked(x: torch.Tensor, mask: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The mask is as long as x at least: x alone cannot be longer than it is now."""
    if mask.shape[1] < x.shape[1]:
        raise ValueError(mask.shape)
    places = x.long().unsqueeze(-1).repeat(1, 1, table.shape[-1])
    rows = torch.gather(table.repeat(x.shape[0], 1, 1), 1, places)
    return torch.cat([torch.tensor([]), rows], 1) + mask[:, : x.shape[1], None]


def test_sizes_that_are_tied_are_probed_together(journal: Journal) -> None:
    compiled = braze.compile(rows_of_masked)
    table = torch.randn(8, 4)
    for batch, length in ((2, 16), (3, 24), (5, 56), (4, 40)):
        x, mask = torch.randint(0, 8, (batch, length)), torch.ones(batch, length)
        torch.testing.assert_close(compiled(x, mask, table), rows_of_masked(x, mask, table))
    assert len(journal.records()) == 2


def test_a_number_among_results_is_fitted() -> None:
    """Attention on a GPU gives the longest query and key of a batch beside its result: as numbers
    of the capture's own sizes, they let none of these change."""
    facts = Facts()
    length = of_expression(facts, as_expr(facts.new_symbol("L['q'].size()[2]", 64)))
    steps = (16 * 64 * length, 64 * length, 64, 1)
    kind = TensorType(torch.bfloat16, (4, 16, length, 64), steps, torch.device("cuda:0"))
    cudnn = aten._scaled_dot_product_cudnn_attention.default
    flash = aten._scaled_dot_product_flash_attention.default
    for op, rest in ((cudnn, (None, True, 0.0, True)), (flash, (0.0, True))):
        result = infer(op, [kind, kind, kind, *rest], {})
        assert result[0].shape == (4, 16, length, 64)
        assert result[4] is length and result[5] is length
    assert constant_value(length.now()) is None


@pytest.mark.parametrize("computes_sums", [False, True])
@pytest.mark.parametrize("hint", [33, 64, 100])
def test_sums_of_attention_are_padded(hint: int, computes_sums: bool) -> None:
    """From 33 on, the next sizes are all padded to 64: that looked like a constant."""
    efficient = aten._scaled_dot_product_efficient_attention.default

    def asked(length: Any, ask: Any) -> Any:
        steps = (16 * 64 * length, 64 * length, 64, 1)
        kind = TensorType(torch.bfloat16, (4, 16, length, 64), steps, torch.device("cuda:0"))
        return ask(efficient, [kind, kind, kind, None, computes_sums, 0.0, True], {})

    facts = Facts()
    symbol = facts.new_symbol("L['q'].size()[2]", hint)
    length = of_expression(facts, as_expr(symbol))
    result = asked(length, infer)
    assert constant_value(length.now()) is None
    for other in (2, 31, 32, 33, 500):
        values = facts.assignment({symbol: other})
        assert values is not None
        assert _numbers(result, facts, values) == asked(other, infer_by_meta)


@pytest.fixture
def longest() -> Iterator[Any]:
    """An operator of the user's with a number among its results."""
    library = torch.library.Library("braze_lengths", "DEF")
    library.define("longest(Tensor x) -> (Tensor, SymInt, Tensor)")
    library.impl("longest", lambda x: (x * 2, 3 * x.shape[1] + 1, x[:1] + 1), "CPU")
    library.impl("longest", lambda x: (x * 2, 3 * x.shape[1] + 1, x[:1] + 1), "Meta")
    yield torch.ops.braze_lengths.longest
    library._destroy()


def test_numbers_among_results_follow_sizes(longest: Any, journal: Journal) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        doubled, number, first = longest(x)
        return doubled * number + first

    compiled = braze.compile(program)
    for length in (33, 64, 100, 128, 200, 257, 300):
        x = torch.randn(2, length)
        torch.testing.assert_close(compiled(x), program(x))
    told = summarise("", journal, None)
    assert told.graph_count == 2 and not told.left_to_eager and not told.break_reasons
