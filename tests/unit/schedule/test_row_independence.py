"""Which changing sizes may be padded: a table of programs, and their values if they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from braze.ir.kernels.loops import Definition, Guarded, InRange, LoopProgram
from braze.ir.kernels.scalars import apply, cast
from braze.options import config
from braze.runtime.cuda_graphs import padded_callable as padded_graph
from braze.runtime.cuda_graphs.padded_callable import PaddedGraph, padding_plan
from braze.schedule.padding.row_independence import find_padding
from braze.shapes.expr import Symbol, as_expr
from tests.unit.codegen.programs import F32, buffer, load, program
from tests.unit.schedule.rows_programs import MULTIPLE, compiled, filled_by_nan

Function = Callable[..., Any]


def rows(*shape: int, dtype: torch.dtype = F32) -> Function:
    """Inputs of n rows."""

    def made(n: int) -> list[Tensor]:
        x = torch.randn(n, *shape)
        return [x if dtype == F32 else (x * 2).abs().to(dtype)]

    return made


def columns(n: int) -> list[Tensor]:
    return [torch.randn(12, n)]


def places(n: int) -> list[Tensor]:
    return [torch.randint(0, 10, (n,))]


def words(n: int) -> list[Tensor]:
    return [torch.randint(0, 10, (3, n))]


torch.manual_seed(0)
TABLE, POSITIONS = torch.randn(10, 12), torch.randn(12, 12)
WEIGHT, BATCHES = torch.randn(12, 4), torch.randn(3, 12, 5)
LAYERS = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
ATTENTION = nn.MultiheadAttention(16, 2, batch_first=True).eval()
IMAGES = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).eval()


def _attend(x: Tensor, causal: bool, batch: bool = False) -> Tensor:
    length = x.shape[0]
    parts = (x @ torch.ones(12, 24)).view(length, 3, 2, 4).permute(1, 2, 0, 3).unsqueeze(1)
    if batch:  # the changing size is the batch, of sequences of two
        parts = (x @ torch.ones(12, 24)).view(length, 3, 2, 1, 4).permute(1, 0, 3, 2, 4)
    return F.scaled_dot_product_attention(*parts, is_causal=causal)


ACCEPTED: dict[str, tuple[Function, Function]] = {
    "points": (lambda x: x.exp() * 2 + WEIGHT[:, 0], rows(12)),
    "softmax": (lambda x: torch.softmax(x, -1), rows(12)),
    "layers": (LAYERS, rows(12)),
    "images": (IMAGES, rows(3, 8, 8)),
    "row zero": (lambda x: x * x[0], rows(12)),
    "transposed": (lambda x: x.t() * 2, rows(12)),
    "columns": (lambda x: x.relu() + 1, columns),
    "of longer rows": (lambda x: x * 2, lambda n: [torch.randn(n, 40)[:, 3:15]]),
    "a part of the rows": (lambda x: x * 2, lambda n: [torch.randn(99, 12)[7 : 7 + n]]),
    "turned": (lambda x: x @ WEIGHT, lambda n: [torch.randn(12, n).t()]),
    "columns of a product": (lambda x: WEIGHT.t() @ x, columns),
    "two results": (lambda x: (x + 1, (x + 1).relu().sum(1)), rows(12)),
    "joined": (lambda x: torch.cat([x, x * 2], 1), rows(12)),
    "joined along": (lambda x: torch.cat([x, x * 2], 0), rows(12)),
    "stacked": (lambda x: torch.stack([x, x + 1], 1).flatten(0, 1) * 2, rows(12)),
    "flat": (lambda x: x.view(-1) * 2, rows(12)),
    "taken apart": (lambda x: x.reshape(-1, 2, 6).relu().reshape(-1, 12) + 1, rows(12)),
    "batches": (lambda x: torch.bmm(x, x.transpose(1, 2)), rows(4, 6)),
    "rows of batches": (lambda x: torch.bmm(x.expand(3, -1, -1), BATCHES), rows(12)),
    "positions": (lambda x: x + torch.arange(x.shape[0])[:, None], rows(12)),
    "looked up": (lambda i: TABLE[i] * 2, places),
    "looked up and moved": (lambda i: F.embedding((i + 3) % 10, TABLE), places),
    "interleaved": (lambda i: F.embedding(i, TABLE) @ WEIGHT, words),
    "twice as long": (lambda x: F.interpolate(x[None, None], scale_factor=2), rows(12)),
    "by its positions": (
        lambda x: x[torch.arange(len(x))[:, None], torch.arange(12)] * 2,
        rows(12),
    ),
    "a layer of attention": (lambda x: ATTENTION(x, x, x, need_weights=False)[0], rows(4, 16)),
    "along another": (lambda x: x.cumsum(1) + x.sort(1)[0], rows(12)),
    "attention of a batch": (lambda x: _attend(x, causal=False, batch=True), rows(12)),
    "integers": (lambda x: x // 2, rows(12, dtype=torch.int64)),
    "choices": (lambda x: x > 0.5, rows(12)),
    "masked": (lambda x: torch.where(x > 0, x, x[:1]).masked_fill(x < -1, 0.0), rows(12)),
}

REFUSED: dict[str, tuple[Function, Function, str]] = {
    "mean": (lambda x: x - x.mean(0), rows(12), "folded over (sum)"),
    "largest": (lambda x: x / x.amax(), rows(12), "folded over (max)"),
    "counted": (lambda x: x / x.shape[0], rows(12), "its value is used"),
    "last": (lambda x: x * x[-1], rows(12), "another row is read"),
    "next": (lambda x: x[:-1] + x[1:], rows(12), "a size is"),
    "reversed": (lambda x: x.flip(0) + 1, rows(12), "another row is read"),
    "countdown": (lambda x: x + torch.arange(x.shape[0], 0, -1)[:, None], rows(12), "value is"),
    "filled": (lambda x: x + torch.full((12,), x.shape[0]), rows(12), "its value is used"),
    "squared": (lambda x: x.t() @ x, rows(12), "does not compute these rows"),
    "scores": (lambda x: torch.softmax(x @ x.t(), -1), rows(12), "does not compute these rows"),
    "attention": (lambda x: _attend(x, causal=False), rows(12), "does not compute these rows"),
    "causal": (lambda x: _attend(x, causal=True), rows(12), "does not compute these rows"),
    "along": (lambda x: x.cumsum(0) + 1, rows(12), "does not compute these rows"),
    "sorted": (lambda x: x.sort(0)[0], rows(12), "does not compute these rows"),
    "moved positions": (lambda x: x[torch.arange(len(x)) - 1] * 2, rows(12), "are looked up"),
    "rows looked up": (lambda x: x[torch.tensor([0, 2])] * 2, rows(12), "are looked up"),
    "beyond the table": (lambda i: TABLE[i - 15], lambda n: [places(n)[0] + 5], "in range"),
    "scattered": (lambda i: torch.zeros(10).index_add(0, i, i.float()), places, ""),
    "drawn": (lambda x: F.dropout(x, 0.5), rows(12), "random"),
    "written": (lambda x: x.mul_(2), rows(12), "is written to"),
    "written row": (lambda x: x.add_(x[0].exp()).sum(1), rows(12), "is written to"),
    "input": (lambda x: (x * 2, x[:, 1:]), rows(12), "result 1 is an input"),
    "shared": (lambda x: (lambda y: (y, y[:, 1:]))(x * 2), rows(12), "part of another value"),
    "part": (lambda x: (x * 2)[:, 1:], rows(12), "part of another value"),
    "padded": (lambda x: F.pad(x, (0, 0, 0, 3)), rows(12), "a size is"),
    "of a wider one": (lambda x: x * 2, lambda n: [torch.randn(12, 40)[:, :n]], "several rows"),
    "expanded": (lambda x: x * 2, lambda n: [torch.randn(12).expand(n, 12)], "is expanded"),
    "neighbours": (lambda x: F.avg_pool1d(x.t(), 3, 1, 1), rows(12), ""),
    "singular": (lambda x: torch.linalg.svdvals(x[:, None] * x[:, :, None]), rows(12), "not known"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_rows_by_themselves_are_padded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded calls give what calls at the size give, whatever lies behind it."""
    function, make = ACCEPTED[name]
    made = compiled(monkeypatch, function, make(5), make(7))
    assert len(made.plan.padding.sizes) == 1, made.plan.padding.refused
    sizes: list[torch.Size] = []

    def run(inputs: Sequence[Any]) -> list[Tensor]:
        sizes.append(inputs[plan.inputs[0][0]].shape)
        return list(made.run(inputs))

    padded = PaddedGraph(run, padding_plan(made.plan), MULTIPLE)
    plan = made.plan.padding.sizes[0]
    for fill in (padded_graph._filled, filled_by_nan):
        monkeypatch.setattr(padded_graph, "_filled", fill)
        for n in (5, 3, 8, 9, 31):
            inputs = list(made.inputs)
            (inputs[plan.inputs[0][0]],) = make(n)
            wanted, found = made.run(list(inputs)), padded(inputs)
            assert sizes[-1][plan.inputs[0][1]] % MULTIPLE == 0
            for mine, right in zip(found, wanted, strict=True):
                assert mine.stride() == right.stride()
                assert mine._base is None or right._base is not None
                assert mine.untyped_storage().nbytes() == right.untyped_storage().nbytes()
                torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_meet_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, make, reason = REFUSED[name]
    made = compiled(monkeypatch, function, make(5), make(7))
    padding = made.plan.padding
    assert not padding.sizes
    if made.plan.inputs and any(type(n) is not int for b in made.plan.inputs for n in b.shape):
        assert len(padding.refused) == 1 and reason in padding.refused[0], padding.refused


def test_sizes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns may be padded where rows may not; and both of a model of words."""
    inputs = (torch.randn(5, 12),)
    padding = compiled(monkeypatch, lambda x: x - x.mean(0), inputs, dynamic=True).plan.padding
    assert [size.inputs for size in padding.sizes] == [((0, 1),)]
    assert len(padding.refused) == 1 and padding.refused[0].startswith("s0: ")


def test_sizes_beside_computed_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call does not bring the number along that a result's strides follow from."""

    def function(x: Tensor, i: Tensor) -> Tensor:
        count = i.item()
        torch._check(count >= 2)
        return x[:, None] + torch.zeros(count)

    calls = [(torch.randn(n), torch.tensor(3)) for n in (5, 7)]
    with config.patch(capture_scalar_outputs=True):
        padding = compiled(monkeypatch, function, *calls).plan.padding
    assert not padding.sizes and "computes a number" in padding.refused[0]


def test_positions_reach_as_far_as_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(i: Tensor) -> Tensor:
        return F.embedding(i, TABLE) + F.embedding(torch.arange(1, len(i) + 1), POSITIONS)

    made = compiled(monkeypatch, function, places(5), places(7))
    (size,) = made.plan.padding.sizes
    assert size.most == 11, "the last of twelve rows is for the eleventh word"
    made = compiled(monkeypatch, lambda i: i + TABLE[: len(i), 0], places(5), places(7))
    assert made.plan.padding.sizes[0].most == 10


# --- by hand: what no operator lowers to -----------------------------------------------------

SIZE, ROW, COLUMN = Symbol("s0", 2, None, hint=5), Symbol("i0", 0, None), Symbol("i1", 0, 3)


def _by_hand(body: Callable[[Any, Any], Any], *, width: int = 4) -> LoopProgram:
    """y[i0 < s0, i1 < 4] = body, of x with the size and w without it."""
    n = as_expr(SIZE)
    x, w, y = (buffer(name, (1, 1)) for name in ("x", "w", "y"))
    x, y = (type(b)(b.name, F32, (n, 4), (4, 1), b.device) for b in (x, y))
    w = buffer("w", (width, 4))
    target = Definition(y, ((ROW, n), (COLUMN, 4)), (as_expr(ROW), as_expr(COLUMN)), body(x, w))
    return program([x, w], [target], [y])


def _accepts(given: LoopProgram) -> bool:
    padding = find_padding(given)
    return len(padding.sizes) == 1


def test_a_coordinate_is_of_the_row_or_of_row_zero() -> None:
    i, j, n = as_expr(ROW), as_expr(COLUMN), as_expr(SIZE)
    assert _accepts(_by_hand(lambda x, w: load(x, i, j)))
    assert _accepts(_by_hand(lambda x, w: load(x, 0, j)))
    for other in (i + 1, i - 1, n - 1, n - 1 - i, as_expr(1), j, 2 * i):
        assert not _accepts(_by_hand(lambda x, w, o=other: load(x, o, j))), str(other)


def test_what_is_looked_up_behind_the_size_is_in_range() -> None:
    def index(x: Any, moved: int) -> Any:
        number = buffer("k", (1,), torch.int64)
        rows = type(number)("k", torch.int64, x.shape[:1], (1,), x.device)
        return apply("add", load(rows, ROW), moved), rows

    for moved, right in ((0, True), (3, True), (4, False), (-1, False)):
        kept: list[Any] = []

        def body(x: Any, w: Any, moved: int = moved, kept: list[Any] = kept) -> Any:
            place, rows = index(x, moved)
            kept.append(rows)
            return load(w, InRange(place, 4), as_expr(COLUMN))

        given = _by_hand(body)
        given = program([*given.inputs, kept[0]], given.statements, [given.outputs[0].buffer])
        assert _accepts(given) is right, moved


def test_a_check_that_only_later_rows_make_is_refused() -> None:
    """`w[k[0]]` is checked in row three alone: a call of two rows has no such check."""

    def body(x: Any, w: Any, condition: Any) -> Any:
        place = InRange(cast(load(w, 0, 0), torch.int64), 4)
        return Guarded(condition, load(w, place, as_expr(COLUMN)), load(x, ROW, COLUMN))

    always = _by_hand(lambda x, w: body(x, w, apply("gt", load(w, 1, 1), 0.0)))
    later = _by_hand(lambda x, w: body(x, w, apply("gt", load(x, ROW, COLUMN), 0.0)))
    assert _accepts(always) and not _accepts(later)


def test_a_size_of_two_dimensions_is_refused() -> None:
    """y[i0 < s0, i1 < s0] = x[i0, 0]."""
    given = _by_hand(lambda x, w: load(x, ROW, 0))
    n, x, over = as_expr(SIZE), given.inputs[0], Symbol("i1", 0, None)
    y = type(x)("y", F32, (n, n), (n, 1), x.device)
    body = load(x, ROW, 0)
    target = Definition(y, ((ROW, n), (over, n)), (as_expr(ROW), as_expr(over)), body)
    padding = find_padding(program(given.inputs, [target], [y]))
    assert not padding.sizes and len(padding.refused) == 1
