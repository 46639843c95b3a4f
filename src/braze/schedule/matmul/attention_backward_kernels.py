"""Joins the backward of attention to two kernels, which have no scores in memory.

    b5 = aten.bmm(q, k transposed)
    b6 = aten.bmm(t, v transposed)                      t: the gradient that comes in
    kernel k1: b7[..] = p(b5[..], ..); b8[..] = s(b5[..], b6[..], ..)
    b9 = aten.bmm(b7 transposed, t); b10 = aten.bmm(b8 transposed, q)
    b11 = aten.bmm(b8, k)
becomes
    kernel k2: rows .., n: b9, b10: sums over queries, weighed by p and s of b5, b6
    kernel k3: rows .., m: b11: sums over keys, weighed by s

The functions are any that have no fold: what is computed of a score alone, or of its row. Refused:
what others read; sizes that the loops do not tell apart; wide matrices; few scores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

from braze.frozen import frozen
from braze.ir.kernels.hidden_scores import visible_where
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Cast,
    Guarded,
    Literal,
    Load,
    LoopProgram,
    Scalar,
)
from braze.ir.kernels.scalars import loads, rebuild, replace_children, substitute_symbols, walk
from braze.ir.kernels.schedule import (
    AttentionGradients,
    ExternStep,
    Kernel,
    Matrix,
    Phase,
    Step,
    Store,
    TileProduct,
    WeighedSum,
    offset,
)
from braze.schedule.matmul.attention_kernel import (
    DTYPES,
    IN_MEMORY,
    WIDEST,
    drop_unread,
    is_better_in_memory,
    is_dense,
    is_product,
)
from braze.schedule.matmul.matrices import inverse_of, matrix_of, read_through
from braze.schedule.memory.allocate import memory_of, written
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value
from braze.shapes.substitution import substitute

_LOG = logging.getLogger("braze.fusion")


def fuse_attention_backward(
    program: LoopProgram, steps: Sequence[Step], settled: int, float32_scores: int = 0
) -> tuple[list[Step], int]:
    """The steps, and `settled` as it is then. float32_scores: as for the forward."""
    kept = {view.buffer for view in program.outputs} | {v.buffer for _, v in program.mutations}
    made, tried = [*steps], set[Buffer]()
    while (group := _next_group(made, kept, tried, settled, float32_scores)) is not None:
        before = made
        made = group.joined()
        found: list[Step | None] = [*made]
        drop_unread(found, kept | {*program.inputs}, before)
        made = [step for step in found if step is not None]
        settled -= (len(before) - len(made)) * (settled >= 0)
    return made, settled


# --- private -------------------------------------------------------------------------------------


def _next_group(
    steps: Sequence[Step], kept: set[Buffer], tried: set[Buffer], settled: int, least: int
) -> _Group | None:
    """The first products that one kernel computes with what is made of them."""
    early = steps[: settled if settled >= 0 else len(steps)]
    for step in early:
        (buffer, *others) = written(step) or (None,)
        if buffer is None or others or buffer in tried or not is_product(step):
            continue
        try:
            group = _Group(steps, len(early), kept, buffer, least)
        except _NoGroup as reason:
            tried.add(buffer)
            if str(reason):
                _LOG.info("backward of attention at %s: scores in memory: %s", buffer, reason)
            continue
        tried |= {*group.products}
        _LOG.info("backward of attention at %s: no scores in memory", buffer)
        return group
    return None


class _NoGroup(Exception):
    """Why products are not computed by a kernel; nothing is said of those that are no scores."""


@final
@frozen(eq=False)
class _Reader:
    """A product of weights and a matrix: the step's number, its weights' buffer, the sum that it
    is, whether over keys, and where it stores it, over the batch, its row and column."""

    number: int
    weights: Buffer
    matrix: Matrix
    over_keys: bool
    target: Buffer
    turned: bool


@final
class _Group:
    """Products of one batch of scores, what is computed of them, and the sums that it weighs.

    products: by their results. values: of what kernels store of them, over b, m and n.
    """

    def __init__(
        self, steps: Sequence[Step], limit: int, kept: set[Buffer], first: Buffer, least: int
    ) -> None:
        self._steps, self._limit, self._kept = steps, limit, kept
        self._makers = {b: number for number, s in enumerate(steps) for b in written(s)}
        if len(first.shape) != 3:
            raise _NoGroup
        self._shape = tuple(as_expr(size) for size in first.shape)
        self._symbols = tuple(
            Symbol(name, 0, None if (known := constant_value(size)) is None else known - 1)
            for name, size in zip(("b0", "m0", "n0"), self._shape, strict=True)
        )
        self.products: dict[Buffer, TileProduct] = {}
        self._values: dict[Buffer, Scalar] = {}
        self._readers: dict[Buffer, _Reader] = {}
        self._gone: set[int] = set()
        self._collect(first)
        if not self._readers or len(self._readers) + len(self.products) < 3:
            raise _NoGroup
        self._check_closed()
        weights = [self._whole(self._values[reader.weights]) for reader in self._readers.values()]
        if not any(_exponents(weight) for weight in weights):
            raise _NoGroup  # of no softmax: not known to be quicker
        if any(is_better_in_memory(p.rows, b, least) for b, p in self.products.items()):
            raise _NoGroup(IN_MEMORY)
        self._sums = {
            over_keys: [r for r in self._readers.values() if r.over_keys is over_keys]
            for over_keys in (False, True)
        }
        self._place = self._find_place()

    # --- what belongs to it ----------------------------------------------------------------------

    def _collect(self, first: Buffer) -> None:
        """Follow readers of scores to products, and from those back to what they read."""
        pending, seen = [first], {first}
        while pending:
            buffer = pending.pop()
            step = self._steps[self._makers[buffer]]
            self._gone.add(self._makers[buffer])
            if isinstance(step, ExternStep):
                self.products[buffer] = self._product(step, buffer)
            else:
                self._values[buffer] = self._value(step, buffer)
                pending += [b for b in self._scores_read(step) if b not in seen]
                seen.update(pending)
            for number, reader in enumerate(self._steps):
                if number == self._makers[buffer] or buffer not in memory_of(reader):
                    continue
                if isinstance(reader, Kernel):
                    fresh = [b for b in written(reader) if b not in seen]
                    pending += fresh
                    seen.update(fresh)
                else:
                    self._add_reader(number, reader, buffer)

    def _scores_read(self, kernel: Kernel) -> list[Buffer]:
        """What a kernel reads that is as large as the scores, and made by steps that it may go
        with."""
        return [
            buffer
            for buffer in kernel.memory
            if buffer in self._makers
            and self._is_as_large(buffer)
            and (
                is_product(self._steps[self._makers[buffer]])
                or _is_pointwise(self._steps[self._makers[buffer]])
            )
        ]

    def _is_as_large(self, buffer: Buffer) -> bool:
        total, wanted = as_expr(1), as_expr(1)
        for size in buffer.shape:
            total = total * as_expr(size)
        for size in self._shape:
            wanted = wanted * size
        return total == wanted and total != as_expr(1)

    def _product(self, step: ExternStep, buffer: Buffer) -> TileProduct:
        b = as_expr(self._symbols[0])
        shape = tuple(as_expr(size) for size in buffer.shape)
        if not is_product(step) or shape != self._shape:
            raise _NoGroup
        first, second = step.call.args
        rows, columns = matrix_of(first, b), matrix_of(second, b, transposed=True)
        if rows is None or columns is None:
            raise _NoGroup("a width is not known")
        _, length, count = self._shape
        rows = read_through(rows, length, self._steps)
        columns = read_through(columns, count, self._steps)
        self._check(rows, columns)
        return TileProduct(buffer, rows, columns)

    def _check(self, *matrices: Matrix) -> None:
        if any(matrix.buffer.dtype not in DTYPES for matrix in matrices):
            raise _NoGroup("a product is of another dtype")
        if len({matrix.buffer.dtype for matrix in matrices}) > 1:
            raise _NoGroup("a product is of several dtypes")
        if not all(0 < matrix.width <= WIDEST for matrix in matrices):
            raise _NoGroup("it is wide")

    def _add_reader(self, number: int, step: Step, buffer: Buffer) -> None:
        """A product of weights, of which either operand may be turned."""
        if not is_product(step) or buffer in self.products:
            raise _NoGroup("a call reads scores" if len(self._values) else "")
        assert isinstance(step, ExternStep)
        (target,) = written(step)
        first, second = step.call.args
        if (first.buffer is buffer) == (second.buffer is buffer):
            raise _NoGroup("weights are multiplied with themselves")
        weights, other, turned = (first, second, False)
        if second.buffer is buffer:
            weights, other, turned = (second, first, True)
        dense = self._order(weights)
        matrix = matrix_of(other, as_expr(self._symbols[0]), transposed=turned)
        if dense is None or matrix is None:
            raise _NoGroup("weights lie in another order")
        over_keys = (dense == "rows") is not turned
        count = self._shape[2 if over_keys else 1]
        matrix = read_through(matrix, count, self._steps)
        self._check(matrix)
        self._readers[target] = _Reader(number, buffer, matrix, over_keys, target, turned)
        self._gone.add(number)

    def _order(self, view: BufferView) -> str | None:
        """Whether a view of weights has queries as rows, or as columns."""
        if constant_value(view.offset) != 0 or len(view.shape) != 3:
            return None
        if is_dense(view) and tuple(map(as_expr, view.shape)) == self._shape:
            return "rows"
        turned = BufferView(
            view.buffer,
            (view.shape[0], view.shape[2], view.shape[1]),
            (view.stride[0], view.stride[2], view.stride[1]),
            view.offset,
            view.dtype,
        )
        is_turned = is_dense(turned) and tuple(map(as_expr, turned.shape)) == self._shape
        return "columns" if is_turned else None

    # --- what is computed of scores --------------------------------------------------------------

    @property
    def _point(self) -> Expr:
        """The number of a score."""
        b, m, n = map(as_expr, self._symbols)
        _, length, count = self._shape
        return (b * length + m) * count + n

    def _value(self, kernel: Step, buffer: Buffer) -> Scalar:
        """What a kernel stores, over b, m and n."""
        if not _is_pointwise(kernel):
            raise _NoGroup("a kernel that reads scores folds")
        assert isinstance(kernel, Kernel)
        stores = [s for s in kernel.phases[0].body if s.target is buffer]
        (store,) = stores
        assert isinstance(store, Store)
        moves = self._moves(kernel, store)
        place = substitute(offset(buffer, store.coordinates), moves)
        if constant_value(place - self._point) != 0:
            raise _NoGroup("what is made of scores lies in another order")
        return substitute_symbols(store.value, moves)

    def _moves(self, kernel: Kernel, store: Store) -> dict[Symbol, Expr]:
        """The kernel's loops at one score."""
        loops = (*kernel.rows, *kernel.phases[0].loops)
        if len(loops) == 3 and tuple(as_expr(size) for _, size in loops) == self._shape:
            return {s: as_expr(mine) for (s, _), mine in zip(loops, self._symbols, strict=True)}
        moves = inverse_of(kernel, store, self._point)
        if moves is None:
            raise _NoGroup("its loops are in another order")
        return moves

    def _whole(self, scalar: Scalar) -> Scalar:
        """A value with those that kernels stored in place of loads of them."""

        def replaced(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
            if isinstance(node, Load) and node.buffer in (*self._values, *self.products):
                place = offset(node.buffer, node.coordinates)
                if constant_value(place - self._point) != 0:
                    raise _NoGroup("scores are read at another place")
                if node.buffer in self._values:
                    return self._whole(self._values[node.buffer])
                at = tuple([as_expr(symbol) for symbol in self._symbols])
                return Load(node.buffer, at)
            return replace_children(node, below)

        return rebuild(scalar, replaced)

    # --- whether it may be one -------------------------------------------------------------------

    def _check_closed(self) -> None:
        inner = {*self.products, *self._values}
        if inner & self._kept:
            raise _NoGroup("scores are results")
        if max(self._gone) >= self._limit:
            raise _NoGroup("they are computed late")
        for number in self._gone:
            step = self._steps[number]
            if isinstance(step, Kernel) and {*written(step)} - inner:
                raise _NoGroup("a kernel computes something else, too")

    def _memory(self) -> list[Buffer]:
        """What is read and not computed inside."""
        found = [m.buffer for p in self.products.values() for m in (p.rows, p.columns)]
        found += [reader.matrix.buffer for reader in self._readers.values()]
        for reader in self._readers.values():
            value = self._whole(self._values[reader.weights])
            found += [load.buffer for load in loads(value) if load.buffer not in self.products]
        return [*dict.fromkeys(found)]

    def _find_place(self) -> int:
        """The number of the step before which the kernels may come."""
        memory = {*self._memory()}
        if memory & {*self._readers}:
            raise _NoGroup("sums are read in it")
        ready = 1 + max([self._makers[b] for b in memory if b in self._makers], default=-1)
        place = max(ready, min(self._gone))
        for number in range(place, len(self._steps)):
            if number not in self._gone and {*self._readers} & {*memory_of(self._steps[number])}:
                break
            place = number + 1
            if number == max(self._gone):
                break
        if ready > place:
            raise _NoGroup("sums are read before all is there")
        for number in range(min(self._gone), place):
            again = {*written(self._steps[number])} & memory
            if any(self._makers[b] != number or self._is_written_before(b, number) for b in again):
                raise _NoGroup("what it reads is written in place")
        return place

    def _is_written_before(self, buffer: Buffer, number: int) -> bool:
        return any(buffer in memory_of(step) for step in self._steps[:number])

    # --- the kernels -----------------------------------------------------------------------------

    def joined(self) -> list[Step]:
        """The steps with kernels in place of those that are gone."""
        made = [self._kernel(over_keys) for over_keys, sums in self._sums.items() if sums]
        kept = [step for n, step in enumerate(self._steps[: self._place]) if n not in self._gone]
        rest = enumerate(self._steps[self._place :], self._place)
        return [*kept, *made, *(step for n, step in rest if n not in self._gone)]

    def _kernel(self, over_keys: bool) -> Kernel:
        """The kernel of the sums over keys, or over queries."""
        b, m, n = self._symbols
        batch, length, count = self._shape
        own, size = (m, length) if over_keys else (n, count)
        readers = self._sums[over_keys]
        weights = [self._whole(self._values[reader.weights]) for reader in readers]
        visible = _visible(weights)
        sums, phases = [], []
        for number, (reader, weight) in enumerate(zip(readers, weights, strict=True)):
            e = Symbol(f"e{number}", 0, reader.matrix.width - 1)
            at = (as_expr(own), as_expr(e))
            coordinates = (as_expr(b), *(at[::-1] if reader.turned else at))
            sums.append(WeighedSum(reader.target, weight, reader.matrix))
            step, made = self._steps[reader.number], Load(reader.target, coordinates)
            assert isinstance(step, ExternStep)
            store = Store(reader.target, coordinates, made, step.call.origin)
            phases.append(Phase(((own, size), (e, reader.matrix.width)), (store,)))
        used = {load.buffer for weight in weights for load in loads(weight)}
        products = tuple(p for p in self.products.values() if p.target in used)
        gradients = AttentionGradients(products, (m, length), (n, count), visible, tuple(sums))
        read = [matrix.buffer for p in products for matrix in (p.rows, p.columns)]
        read += [each.matrix.buffer for each in sums]
        read += [
            load.buffer for w in weights for load in loads(w) if load.buffer not in self.products
        ]
        memory = tuple(dict.fromkeys([*read, *(reader.target for reader in readers)]))
        name = f"k{min(reader.number for reader in readers)}"
        return Kernel(name, ((b, batch), (own, size)), tuple(phases), memory, attention=gradients)


def _is_pointwise(step: Step) -> bool:
    """Whether a kernel has one phase that folds nothing, and nothing else."""
    if not isinstance(step, Kernel) or len(step.phases) != 1 or step.phases[0].row:
        return False
    plain = not (step.product or step.attention or step.columns or step.spread or step.scratch)
    return plain and all(isinstance(s, Store) for s in step.phases[0].body)


def _visible(weights: Sequence[Scalar]) -> Scalar | None:
    """The condition outside which all weights are zero, since exp(-inf) is."""
    scores = [node.operands[0] for weight in weights for node in _exponents(weight)]
    conditions = [condition for s in scores if (condition := visible_where(s)) is not None]
    if not conditions:
        return None
    first = conditions[0]
    return first if all(_vanishes(weight, first) for weight in weights) else None


def _exponents(weight: Scalar) -> list[Apply]:
    """The differences of which it has exponentials."""
    powers = [n.operands[0] for n in walk(weight) if isinstance(n, Apply) and n.op == "exp"]
    return [power for power in powers if isinstance(power, Apply) and power.op == "sub"]


def _vanishes(scalar: Scalar, condition: Scalar) -> bool:
    """Whether a value is zero where the condition does not hold."""
    if isinstance(scalar, Literal):
        return scalar.value == 0
    if isinstance(scalar, Cast):
        return scalar.dtype.is_floating_point and _vanishes(scalar.operand, condition)
    if isinstance(scalar, Guarded):
        other = _vanishes(scalar.other, condition)
        return other and (scalar.condition == condition or _vanishes(scalar.value, condition))
    if not isinstance(scalar, Apply):
        return False
    operands = scalar.operands
    if scalar.op == "where":
        other = _vanishes(operands[2], condition)
        return other and (operands[0] == condition or _vanishes(operands[1], condition))
    if scalar.op == "exp" and isinstance(operands[0], Apply) and operands[0].op == "sub":
        return visible_where(operands[0].operands[0]) == condition
    if scalar.op == "mul":
        return any(_vanishes(operand, condition) for operand in operands)
    if scalar.op in ("neg", "truediv"):
        return _vanishes(operands[0], condition)
    return scalar.op in ("add", "sub") and all(_vanishes(o, condition) for o in operands)
