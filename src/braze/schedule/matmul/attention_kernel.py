"""Joins attention that a program writes out to one kernel, which has no scores in memory.

    b5 = aten.bmm(q, k transposed)
    kernel k1: rows .., i1 < length
      for r0 < count: t0[r0] = score(b5[.., i1, r0], i1, r0); b6 max= t0[r0]; b7 all= t0[r0] == -inf
      for r0 < count: t1[r0] = exp(t0[r0] - b6); b8 sum= t1[r0]
      for r0 < count: b9[.., i1, r0] = where(b7, 0, t1[r0] / b8)
    b10 = aten.bmm(b9, v)
becomes
    kernel k1: rows .., i1 < length: attention of q, k, v by score(..)

The function of the score is any that has no fold: masks, biases, caps, what it looks up. What the
softmax's kernel stores of a row's largest score, and of the sum, the kernel stores, too.
Refused: few queries; scores of float64; probabilities or scores that others read; a product that
the rows of the softmax do not number by (batch, query).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Cast,
    Literal,
    Load,
    LoopProgram,
    Scalar,
)
from braze.ir.kernels.scalars import loads, rebuild, replace_children, substitute_symbols
from braze.ir.kernels.schedule import (
    Accumulate,
    AttentionProducts,
    ExternStep,
    Kernel,
    Loop,
    Matrix,
    Phase,
    Step,
    Store,
    offset,
)
from braze.schedule.analysis.cost import estimated
from braze.schedule.matmul.matrices import matrix_of, read_through
from braze.schedule.memory.allocate import memory_of, written
from braze.shapes.expr import (
    Expr,
    Symbol,
    as_expr,
    constant_value,
    floor_div,
    simplified,
    symbols,
)
from braze.shapes.substitution import substitute

_LOG = logging.getLogger("braze.fusion")
_PRODUCTS = ("aten::bmm", "aten::mm")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_AROUND = "it is not between two products that alone read what it reads and makes"
IN_MEMORY = "the library's products of float32 are quicker, and its scores fit in memory"
_FEWEST = 32  # queries: a kernel computes blocks of 64
WIDEST = 256  # of queries and values: what a tile keeps is on the stack


def fuse_attention_kernels(
    program: LoopProgram,
    steps: Sequence[Step],
    settled: int,
    through: bool = False,
    float32_scores: int = 0,
) -> tuple[list[Step], int]:
    """The steps, and `settled` as it is then. through: what only converts or repeats queries, keys
    or values is not made. float32_scores: bytes of scores of float32 queries, below which they stay
    in memory."""
    kept = {view.buffer for view in program.outputs} | {v.buffer for _, v in program.mutations}
    found: list[Step | None] = list(steps)
    for number, step in enumerate(steps[: settled if settled >= 0 else len(steps)]):
        if isinstance(step, Kernel) and len(step.phases) == 3:
            places = _around(steps, number, kept)
            made = (
                _AROUND
                if places is None
                else _attention(steps, places, step, through, float32_scores)
            )
            if places is None or isinstance(made, str):
                _LOG.info("attention at %s: not one kernel: %s", step.name, made)
            else:
                found[places[0]] = found[number] = None
                found[places[1]] = made
                _LOG.info("attention at %s: one kernel, no scores in memory", step.name)
    if through:
        drop_unread(found, kept | {*program.inputs}, steps)
    gone = sum(step is None for step in found[: max(settled, 0)])
    return [step for step in found if step is not None], settled - gone


# --- private -------------------------------------------------------------------------------------


def drop_unread(found: list[Step | None], kept: set[Buffer], before: Sequence[Step]) -> None:
    """Leave out kernels whose results were read, and now are by nobody."""
    while True:
        read = {b for s in found if s is not None for b in {*memory_of(s)} - {*_only_written(s)}}
        was_read = {b for s in before for b in {*memory_of(s)} - {*_only_written(s)}}
        gone = [
            number
            for number, step in enumerate(found)
            if isinstance(step, Kernel)
            and not step.attention
            and all(b in was_read and b not in read | kept for b in written(step))
        ]
        if not gone:
            return
        for number in gone:
            found[number] = None


def _only_written(step: Step) -> set[Buffer]:
    """What a kernel writes and does not read before."""
    return {*written(step)} if isinstance(step, Kernel) else set()


@final
@frozen
class _Softmax:
    """score: of a row's keys, over `rows` and `keys`; empty_is_zero: rows of -inf; row: what is
    stored of each row's largest score and sum, which are read as loads of `_MOST` and `_SUMS`."""

    rows: tuple[Loop, ...]
    score: Scalar
    keys: tuple[Symbol, Expr | int]
    store: Store
    empty_is_zero: bool
    row: tuple[Store, ...] = ()


_MOST, _SUMS = (
    Buffer(name, torch.float32, (), (), torch.device("cpu")) for name in ("most", "sums")
)


def _around(steps: Sequence[Step], number: int, kept: set[Buffer]) -> tuple[int, int] | None:
    """The places of the product before a softmax and of the one behind it, if nobody else reads
    what is between, and nothing that they read is written between them."""
    kernel = steps[number]
    assert isinstance(kernel, Kernel)
    makers = {b: place for place, s in enumerate(steps[:number]) for b in written(s)}
    first = [makers[b] for b in kernel.memory if b in makers and is_product(steps[makers[b]])]
    inner = {s.target for s in kernel.phases[-1].body} & {*kernel.memory}
    rows = {*written(kernel)} - inner
    readers = [
        place
        for place, s in enumerate(steps)
        if place != number and inner & {*memory_of(s), *written(s)}
    ]
    if len(first) != 1 or len(readers) != 1 or readers[0] < number or inner & kept:
        return None
    ((before,), (behind,)) = first, readers
    (scores,) = written(steps[before])
    others = [
        p for p, s in enumerate(steps) if scores in memory_of(s) and p not in (before, number)
    ]
    # All of it is computed where the second product is: what its parts read is to be the same then.
    is_same = not _written_between(steps, before, behind) & ({*memory_of(steps[before])} - {scores})
    is_same &= not _written_between(steps, number, behind) & {*kernel.memory}
    # Nor are its rows read before.
    is_same &= not any(rows & {*memory_of(s)} for s in steps[number + 1 : behind + 1])
    is_closed = not others and scores not in kept and is_same
    # What others compute between does not need it: it is late, and they may be read by it.
    return (before, behind) if is_closed and is_product(steps[behind]) else None


def _written_between(steps: Sequence[Step], first: int, last: int) -> set[Buffer]:
    """What the steps behind the first and before the last write."""
    return {b for s in steps[first + 1 : last] for b in written(s)}


def is_better_in_memory(query: Matrix, scores: Buffer, least: int) -> bool:
    """Whether scores of float32 queries are fewer bytes than `least`, at the sizes at hand."""
    if query.buffer.dtype != torch.float32:
        return False
    return estimated(scores.shape) * scores.dtype.itemsize < least


def is_product(step: Step) -> bool:
    """Whether a step is a call that multiplies two matrices, or two batches of them."""
    if not isinstance(step, ExternStep) or len(written(step)) != 1:
        return False
    call = step.call
    is_plain = call.op._schema.name in _PRODUCTS and not call.kwargs and len(call.args) == 2
    return is_plain and all(type(view) is BufferView for view in call.args)


def _attention(
    steps: Sequence[Step], places: tuple[int, int], kernel: Kernel, through: bool, least: int
) -> Kernel | str:
    before, behind = (steps[place] for place in places)
    assert isinstance(before, ExternStep) and isinstance(behind, ExternStep)
    softmax = _softmax(kernel)
    if isinstance(softmax, str):
        return softmax
    (scores,), (target,) = written(before), written(behind)
    softmax = _with_queries_last(softmax, scores)
    place = _place_of(scores, softmax)
    if isinstance(place, str):
        return place
    matrices = _matrices(steps, before, behind, softmax, place, through)
    if isinstance(matrices, str):
        return matrices
    if is_better_in_memory(matrices[0], scores, least):
        return IN_MEMORY
    (m, length), (n, count) = softmax.rows[-1], softmax.keys
    weights = behind.call.args[0]
    expected = (place * as_expr(length) + m) * as_expr(count) + n
    there = offset(softmax.store.target, softmax.store.coordinates)
    if weights.buffer is not softmax.store.target or constant_value(there - expected) != 0:
        return "its probabilities lie in another order"
    if not (is_dense(weights) and constant_value(weights.offset) == 0):
        return "its probabilities lie in another order"
    width = matrices[2].width
    e = Symbol("e0", 0, width - 1)
    at = (place, as_expr(m), as_expr(e))[-len(target.shape) :]
    inner = (_MOST, _SUMS) if softmax.row else ()
    attention = AttentionProducts(
        scores, *matrices, softmax.keys, softmax.score, softmax.empty_is_zero, *inner
    )
    store = Store(target, at, Load(target, at), behind.call.origin)
    read = [matrix.buffer for matrix in matrices] + [load.buffer for load in loads(softmax.score)]
    made = (target, *(each.target for each in softmax.row))
    memory = tuple(dict.fromkeys([*(b for b in read if b is not scores), *made]))
    phase = Phase(((m, length), (e, width)), (store,), softmax.row)
    return Kernel(kernel.name, softmax.rows, (phase,), memory, attention=attention)


def _matrices(
    steps: Sequence[Step],
    before: ExternStep,
    behind: ExternStep,
    softmax: _Softmax,
    place: Expr,
    through: bool,
) -> tuple[Matrix, Matrix, Matrix] | str:
    """Queries, keys and values, where they lie. through: copies of them need not be."""
    (_, length), (_, count) = softmax.rows[-1], softmax.keys
    first, second = before.call.args
    found = [
        matrix_of(first, place),
        matrix_of(second, place, transposed=True),
        matrix_of(behind.call.args[1], place),
    ]
    if through:
        sizes = (length, count, count)
        found = [m and read_through(m, size, steps) for m, size in zip(found, sizes, strict=True)]
    query, keys, values = found
    if query is None or keys is None or values is None:
        return "its width is not known"
    if any(m.buffer.dtype not in DTYPES for m in (query, keys, values)):
        return "its products are of another dtype"
    if through and query.buffer.dtype != keys.buffer.dtype:
        return "its products are of several dtypes"
    if not 0 < max(query.width, values.width) <= WIDEST or not values.width:
        return "it is wide"
    queries = constant_value(length)
    return (
        f"its queries are {queries}"
        if queries is not None and queries < _FEWEST
        else (query, keys, values)
    )


def _softmax(kernel: Kernel) -> _Softmax | str:
    """The softmax that a kernel computes."""
    if kernel.lanes or kernel.columns or kernel.product or kernel.spread or not kernel.rows:
        return "its rows are cut"
    loops = {phase.loops for phase in kernel.phases}
    if len(loops) != 1 or len(kernel.phases[0].loops) != 1:
        return "it is no softmax over rows"
    values: dict[Buffer, tuple[tuple[Expr | Scalar, ...], Scalar]] = {}
    folds: dict[Buffer, tuple[str, Scalar]] = {}
    rows: list[Store] = []
    for phase in kernel.phases:
        for statement in (*phase.body, *phase.row):
            whole = _resolved(
                statement.value if isinstance(statement, Store) else statement.body, values
            )
            if whole is None:
                return "what it computes is read at another place"
            if isinstance(statement, Accumulate):
                folds[statement.target] = statement.kind, whole
                continue
            values[statement.target] = statement.coordinates, whole
            if statement in phase.row:
                rows.append(replace(statement, value=whole))
    last = kernel.phases[-1].body
    if len(last) != 1 or not isinstance(last[0], Store):
        return "it stores something else"
    found = _matched(values[last[0].target][1], folds)
    if found is None:
        return "it is no softmax"
    kept = [statement for statement in rows if statement.target in kernel.memory]
    row = [_row_store(statement, found[0], folds) for statement in kept]
    if None in row:
        return "it computes something else of each row"
    stores = tuple([store for store in row if store is not None])
    return _Softmax(kernel.rows, found[0], kernel.phases[0].loops[0], last[0], found[1], stores)


def _row_store(
    store: Store, score: Scalar, folds: Mapping[Buffer, tuple[str, Scalar]]
) -> Store | None:
    """What is stored of a row, computed of its largest score and its sum."""
    is_plain = store.target.dtype in (torch.float32, torch.bool)
    strange = [] if is_plain else [store]

    def replaced(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if not isinstance(node, Load):
            return replace_children(node, below)
        kind, body = folds.get(node.buffer, ("", node))
        if kind == "max" and body == score:
            return Load(_MOST, ())
        if kind == "all" and body == _hidden(score):
            return _hidden(Load(_MOST, ()))
        if kind != "sum" or _exponent(body, folds) != score:
            strange.append(store)
        return Load(_SUMS, ())

    value = rebuild(store.value, replaced)
    return None if strange else replace(store, value=value)


def _hidden(score: Scalar) -> Scalar:
    """Whether a score is -inf."""
    return Apply("eq", (score, Literal(-math.inf, torch.float32)), torch.bool)


def _resolved(
    scalar: Scalar, values: Mapping[Buffer, tuple[tuple[Expr | Scalar, ...], Scalar]]
) -> Scalar | None:
    """The scalar, with what was computed in place of loads of it."""
    strange = []

    def replaced(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Load) and node.buffer in values:
            coordinates, value = values[node.buffer]
            if coordinates != node.coordinates:
                strange.append(node)
            return value
        return replace_children(node, below)

    found = rebuild(scalar, replaced)
    return None if strange else found


def _matched(
    scalar: Scalar, folds: Mapping[Buffer, tuple[str, Scalar]]
) -> tuple[Scalar, bool] | None:
    """The score of exp(score - max) / sum, or of that where not all scores are -inf, else zero."""
    while isinstance(scalar, Cast) and scalar.dtype in DTYPES:
        scalar = scalar.operand
    empty = None
    if isinstance(scalar, Apply) and scalar.op == "where":
        condition, zero, scalar = scalar.operands
        if not (isinstance(zero, Literal) and zero.value == 0):
            return None
        empty = _fold(condition, "all", folds)
        if empty is None:
            return None
    if not (isinstance(scalar, Apply) and scalar.op == "truediv"):
        return None
    weight, sums = scalar.operands
    score = _exponent(weight, folds)
    if score is None or score.dtype != torch.float32 or _fold(sums, "sum", folds) != weight:
        return None
    if empty is not None and empty != _hidden(score):
        return None
    return score, empty is not None


def _exponent(weight: Scalar, folds: Mapping[Buffer, tuple[str, Scalar]]) -> Scalar | None:
    """The score of exp(score - max)."""
    if not (isinstance(weight, Apply) and weight.op == "exp"):
        return None
    (inner,) = weight.operands
    if not (isinstance(inner, Apply) and inner.op == "sub"):
        return None
    score, most = inner.operands
    if isinstance(most, Apply) and most.op == "where":  # no number would be subtracted
        condition, zero, most = most.operands
        if condition != _hidden(most) or not (isinstance(zero, Literal) and zero.value == 0):
            return None
    return score if _fold(most, "max", folds) == score else None


def _fold(scalar: Scalar, kind: str, folds: Mapping[Buffer, tuple[str, Scalar]]) -> Scalar | None:
    """What a value of a row folds, if it is of a kind."""
    if not isinstance(scalar, Load) or scalar.buffer not in folds:
        return None
    found, body = folds[scalar.buffer]
    return body if found == kind else None


def _with_queries_last(softmax: _Softmax, scores: Buffer) -> _Softmax:
    """The softmax with queries as its last rows: a loop that numbers them together with what is
    outside them becomes two."""
    *rows, (last, size) = softmax.rows
    length = as_expr(scores.shape[-2])
    m = Symbol("m0", 0, None if constant_value(length) is None else constant_value(length - 1))
    outside = floor_div(as_expr(size), length)
    if as_expr(size) == length or constant_value(outside * length - size) != 0:
        return softmax
    limit = constant_value(outside)
    b = Symbol("b0", 0, None if limit is None else limit - 1)
    moves = {last: as_expr(b) * length + m}
    at = tuple([substitute(c, moves) for c in softmax.store.coordinates])
    return replace(
        softmax,
        rows=(*rows, (b, simplified(outside)), (m, simplified(length))),
        score=substitute_symbols(softmax.score, moves),
        store=replace(softmax.store, coordinates=at),
        row=tuple([_moved(store, moves) for store in softmax.row]),
    )


def _moved(store: Store, moves: Mapping[Symbol, Expr]) -> Store:
    at = tuple([substitute(c, moves) for c in store.coordinates])
    return replace(store, coordinates=at, value=substitute_symbols(store.value, moves))


def _place_of(scores: Buffer, softmax: _Softmax) -> Expr | str:
    """The batch whose matrix of scores a row is in; scores are read at (batch, query, key)."""
    if scores.dtype != torch.float32:
        return "its scores are of another dtype"
    (m, length), (n, count) = softmax.rows[-1], softmax.keys
    places = {load.coordinates for load in loads(softmax.score) if load.buffer is scores}
    if len(places) != 1:
        return "it reads several scores at a time"
    (place,) = places
    *batch, row, key = place
    wanted = (as_expr(m), as_expr(n))
    sizes = [as_expr(size) for size in scores.shape[-2:]] == [as_expr(length), as_expr(count)]
    if not sizes or (row, key) != wanted or not all(isinstance(c, Expr) for c in batch):
        return "its rows are not those of the product"
    found = batch[0] if batch else as_expr(0)
    assert isinstance(found, Expr)
    return found if m not in symbols(found) and n not in symbols(found) else "rows are mixed"


def is_dense(view: BufferView) -> bool:
    """Whether the elements of a view lie row by row, none beside them."""
    step: Expr = as_expr(1)
    for size, stride in zip(reversed(view.shape), reversed(view.stride), strict=True):
        if constant_value(size) != 1 and as_expr(stride) != step:
            return False
        step = step * as_expr(size)
    return True
