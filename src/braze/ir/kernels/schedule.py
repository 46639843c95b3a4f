"""The schedule: which definitions one kernel computes, in which loops, and where values live.

    kernel k0: rows i0 < 4096; 2 phases
      phase r0 < 768:
        a0 = max of x[i0, r0]
      phase r0 < 768:
        e[i0, r0] -> scratch = exp((x[i0, r0] - a0[i0]))
        a1 = sum of e[i0, r0]
      phase r0 < 768:
        y[i0, r0] = (e[i0, r0] / a1[i0])

Every row is one task: tasks run in parallel, phases of a task one after the other. A value of a
row (an accumulator, and what is computed from it after the phase) is a scalar of the task. With
`lanes`, the last row axis is cut into blocks of that many rows, a task owns one block, and the
values of a row are small arrays; the innermost, vectorised loop then runs over the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.device_model import H200, DeviceModel
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, Scalar, Scatter, bytes_of
from braze.ir.kernels.padding import NO_PADDING, Padding
from braze.ir.origin import UNKNOWN, Origin, origins_in
from braze.ir.types import Size
from braze.shapes.binding import NO_SIZES, Sizes
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, dot

Loop: TypeAlias = tuple[Symbol, Size]

# What counts of float32 numbers that are multiplied: all of them, or ten bits of the fraction.
Precision: TypeAlias = Literal["ieee", "tf32"]

ALIGNMENT = 64  # bytes, of slots in the arena: a cache line and a vector

# Columns that packed weights are padded to: a multiple of those of the panels of any processor.
PANEL = 32

_LARGE = 64 << 20  # bytes: writing them takes longer than starting kernels

# Scalar operators that cost more than writing their result to memory and reading it again.
HEAVY_OPERATORS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv lgamma digamma i0 i0e i1 i1e ndtri log_ndtr erfcx bessel_j0 bessel_j1 "
    "pow atan2 hypot nextafter fmod".split()
)


@final
@frozen(eq=False)
class Store:
    """target[coordinates] = value, over the symbols of the kernel's loops. A load of the target
    later in the same phase at the same coordinates is the value itself."""

    target: Buffer
    coordinates: tuple[Expr, ...]
    value: Scalar
    origin: Origin = UNKNOWN


@final
@frozen(eq=False)
class Accumulate:
    """Fold `body` over the phase's loops into the row's value `target`.

    kind, dtype: as `braze.ir.kernels.loops.Reduce`. position: for argmax and argmin, the index that
    the
    element at the loops' symbols has; None for other kinds.
    """

    target: Buffer
    kind: str
    dtype: torch.dtype
    body: Scalar
    position: Expr | None = None
    origin: Origin = UNKNOWN


@final
@frozen(eq=False)
class Phase:
    """Loops over a row (outermost first), what is done for each element, then for each row."""

    loops: tuple[Loop, ...]
    body: tuple[Store | Accumulate, ...]
    row: tuple[Store, ...] = ()


@final
@frozen(eq=False)
class Column:
    """target[task, points of the row] = the sum of `body` over the rows of a task."""

    target: Buffer
    dtype: torch.dtype
    body: Scalar
    origin: Origin = UNKNOWN


@final
@frozen(eq=False)
class ComputedMatrix:
    """A matrix that is not in memory: its elements are computed where they are multiplied.

    value: the element of the dtype that it would be rounded to in memory, over the loops: of the
        batch where there are more than one, of rows and of columns.
    gathered: elements of memory as they are, some more than once, and zeros beside them: no other
        kernel would write it either.
    """

    loops: tuple[Loop, ...]
    value: Scalar
    gathered: bool = False


@final
@frozen(eq=False)
class Product:
    """target[.., m, n] = sum over k of first[.., m, k] * second[.., k, n], in float32 or wider; the
    target is never in memory. first, second: of two dimensions, or three with a batch of one size.
    computed: for each, what it is where it is not in memory; then its view says only its form.
    precision: of factors that are float32. stays: the second is a weight, most likely the same at
    the next call. packed: that weight in panels, or nothing, where the kernel packs it itself.
    """

    target: Buffer
    first: BufferView
    second: BufferView
    computed: tuple[ComputedMatrix | None, ComputedMatrix | None] = (None, None)
    precision: Precision = "ieee"
    stays: bool = False
    packed: Buffer | None = None


@final
@frozen
class Matrix:
    """A matrix in memory, one for each batch: element (row, column) lies at start + row * down +
    column * right of the buffer.

    start: over the kernel's rows but for the last. width: how many columns it has.
    """

    buffer: Buffer
    start: Expr
    down: Size
    right: Size
    width: int

    def place(self, row: Expr, column: Expr) -> Expr:
        """Where an element is, in elements from the buffer's first one."""
        return self.start + row * as_expr(self.down) + column * as_expr(self.right)


@final
@frozen(eq=False)
class AttentionProducts:
    """softmax(scores) @ values, where neither scores nor what is made of them is ever in memory.

    scores: query @ keys transposed, in float32, which `score` loads at (batch, query, key).
    query, keys, values: [length, width], [count, width] and [count, width of values] of a batch.
    keys_loop: the keys' symbol and count. score: what the softmax is of, over the key and the
        kernel's rows, the last of which is the query's.
    empty_is_zero: a row whose scores are all -inf gives zeros; else no numbers.
    most, sums: what rows of the phase load of each row: its largest score, and the sum of the
        exponentials of how far all are above that; None where none of them is stored.
    """

    scores: Buffer
    query: Matrix
    keys: Matrix
    values: Matrix
    keys_loop: Loop
    score: Scalar
    empty_is_zero: bool
    most: Buffer | None = None
    sums: Buffer | None = None


@final
@frozen(eq=False)
class TileProduct:
    """target = rows @ columns transposed, one element a query and key, in float32; never in memory.
    rows: [queries, width]; columns: [keys, width]."""

    target: Buffer
    rows: Matrix
    columns: Matrix


@final
@frozen(eq=False)
class WeighedSum:
    """target[own, ..] = sum over what is walked of weight * matrix[walked, ..]. weight: over the
    kernel's rows and the walked loop."""

    target: Buffer
    weight: Scalar
    matrix: Matrix


@final
@frozen(eq=False)
class AttentionGradients:
    """Sums of rows of matrices, weighed by functions of scores of which none is ever in memory.

    products: what the weights are computed of, loaded at (batch, query, key); the first are the
        scores. queries, keys: the loops; one is the last of the kernel's rows, the other is walked.
    visible: the condition outside which all weights are zero; None: nothing is known.
    sums: what is stored, one phase each.
    """

    products: tuple[TileProduct, ...]
    queries: Loop
    keys: Loop
    visible: Scalar | None
    sums: tuple[WeighedSum, ...]


@final
@frozen(eq=False)
class Spread:
    """A row's points over `parts` programs, `length` neighbours each; the last may have fewer.

    What a phase folds is folded over a part first: partials[row, fold, part]. arrivals[row,
    phase] counts the programs that have theirs there; zero before the kernel. Rows are numbered as
    one. reads: how many values a program reads of each point.
    """

    parts: int
    length: int
    reads: int
    partials: Buffer
    arrivals: Buffer

    def last(self, points: int) -> int:
        """The points of the last part, of a row of so many."""
        return points - (self.parts - 1) * self.length


@final
@frozen(eq=False)
class Kernel:
    """One parallel loop nest.

    rows: the axes whose points are the rows, outermost first.
    lanes: rows of a block along the last row axis, or 0 where each row is a task by itself.
    chunks: for the loops of a single phase without accumulation: how many points of each loop a
        task runs, 0 for all of them; () where tasks are whole rows. Two loops cut are a tile: what
        is read against its order in memory stays in the cache until its line is used up.
    memory: the buffers behind pointers, read or written; the kernel's parameters, in order.
    scratch: buffers kept by a task from one phase to the next in a small array over the phase's
        points (lanes included); their shapes are those points'.
    columns: sums over rows as well; a task then does `block` rows one after another (the last one
        fewer), all phases of each, and the columns' bodies behind them.
    product: what is computed first; the rows are then its batch, and the loops of the single phase
        m and n, whose points read its target where they are.
    spread: where several programs share a row, how; both of its buffers are in `memory`.
    attention: what is computed in place of the phases' loads of the targets that they store to; the
        last of the rows is a loop of each phase, too.
    """

    name: str
    rows: tuple[Loop, ...]
    phases: tuple[Phase, ...]
    memory: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...] = ()
    lanes: int = 0
    chunks: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    block: int = 0
    product: Product | None = None
    spread: Spread | None = None
    attention: AttentionProducts | AttentionGradients | None = None


@final
@frozen(eq=False)
class ExternStep:
    """An ATen call. out_op: its single result is written into a planned buffer through
    `out_op`, the operator's own (not generated) out= overload. in_place_op: the operator's form
    that writes to its first argument, where that is the call's result, too."""

    call: ExternCall
    out_op: torch._ops.OpOverload | None = None
    in_place_op: torch._ops.OpOverload | None = None


Step: TypeAlias = Kernel | ExternStep


@final
@frozen
class Slot:
    """Where a planned buffer begins in the arena, and how long it is; both in bytes."""

    offset: int
    size: int


@final
@frozen
class SizedSlot:
    """Where a planned buffer lies if sizes are symbols: at the first multiple of ALIGNMENT behind
    all slots whose places among `Schedule.sized` are in `behind`; those come before its own.

    size: bytes; where it comes out negative, the buffer is empty.
    """

    size: Size
    behind: tuple[int, ...]


@final
@frozen
class Refusal:
    """Why `consumer` was not computed in any of the kernels that make or share `producers`."""

    producers: tuple[str, ...]
    consumer: str
    reason: str


@final
@frozen(eq=False)
class Schedule:
    """What runs, in order.

    arena_size: bytes of the arena that slots lie in; slots: the buffers that live there.
    sized: those that live in an arena which is laid out for the sizes of a call; there are slots
        or these.
    fresh: buffers that the launch program allocates at each call (outputs, sizes that the program
        computes).
    sizes: as `Graph.sizes`.
    in_place: inputs that kernels write to themselves; settled: the number of the first step that
        may do so. None from there on can fault: a program that faults has written nothing, but for
        what was scattered into an input: the same is written if it runs again.
    mutations: inputs that receive a copy at the end.
    last_use: for a buffer that extern calls allocate or that is fresh but no output, the index
        of the last step that needs it: it is dropped after that. For an input too, which is
        dropped if the call takes its inputs over.
    padding: the sizes that a recording may be made larger for, where that is asked for.
    device: what the GPU can do that it is for.
    alike: kernels that differ from another one in their buffers alone, with that one.
    """

    inputs: tuple[Buffer, ...]
    constants: tuple[tuple[Buffer, torch.Tensor], ...]
    steps: tuple[Step, ...]
    slots: tuple[tuple[Buffer, Slot], ...]
    arena_size: int
    fresh: tuple[Buffer, ...]
    last_use: tuple[tuple[Buffer, int], ...]
    outputs: tuple[BufferView, ...]
    mutations: tuple[tuple[Buffer, BufferView], ...]
    in_place: tuple[Buffer, ...] = ()
    settled: int = -1
    refusals: tuple[Refusal, ...] = ()
    sizes: Sizes = NO_SIZES
    sized: tuple[tuple[Buffer, SizedSlot], ...] = ()
    padding: Padding = NO_PADDING
    device: DeviceModel = H200
    alike: tuple[tuple[Kernel, Kernel], ...] = ()


def kernel_runs(schedule: Schedule) -> list[tuple[int, int]]:
    """Runs of kernels between extern calls, as (first, last) steps: each is started by one call.
    Where inputs begin to be written to in place, another one begins: faults before are met."""
    found: list[tuple[int, int]] = []
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Kernel):
            continue
        if found and found[-1][1] == number - 1 and number != schedule.settled:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def device_runs(schedule: Schedule) -> list[tuple[int, int]]:
    """The same on a device, where what a run makes is allocated when it begins. A kernel that makes
    something large begins another one: what those before it were the last to read goes first."""
    planned = {buffer for buffer, _ in schedule.slots}
    seen = {*schedule.inputs, *dict(schedule.constants), *planned}
    starts = set()
    for number, step in enumerate(schedule.steps):
        touched = step.memory if isinstance(step, Kernel) else step.call.outputs
        if any(b is not None and b not in seen and bytes_of(b) >= _LARGE for b in touched):
            starts.add(number)
        seen.update([buffer for buffer in touched if buffer is not None])
    found: list[tuple[int, int]] = []
    for first, last in kernel_runs(schedule):
        begins = [first, *[n for n in range(first + 1, last + 1) if n in starts]]
        found += zip(begins, [*[n - 1 for n in begins[1:]], last], strict=True)
    return found


def statements_of(kernel: Kernel) -> Iterator[Store | Accumulate]:
    """What the kernel does, in order."""
    for phase in kernel.phases:
        yield from phase.body
        yield from phase.row


def origins_of(kernel: Kernel) -> tuple[Origin, ...]:
    """Where what the kernel computes came from, each place once, in the order of computation."""
    computed: tuple[Store | Accumulate | Column, ...] = (*statements_of(kernel), *kernel.columns)
    found = {o: None for each in computed for o in origins_in(each.origin) if o.line}
    return tuple(found)


def operations_of(kernel: Kernel) -> int:
    """Multiplications and additions of the kernel's matrix products, hidden scores of an attention
    counted as well; 0 where it has none, or a size is not known."""
    if kernel.product is not None:
        sizes = (*kernel.product.target.shape, kernel.product.first.shape[-1])
        return 2 * math.prod([constant_value(size) or 0 for size in sizes])
    if kernel.attention is None:
        return 0
    if isinstance(kernel.attention, AttentionProducts):
        walked = kernel.attention.keys_loop
        widths = [kernel.attention.query.width, kernel.attention.values.width]
    else:
        both = (kernel.attention.queries, kernel.attention.keys)
        (walked,) = [loop for loop in both if loop[0] != kernel.rows[-1][0]]
        widths = [each.rows.width for each in kernel.attention.products]
        widths += [each.matrix.width for each in kernel.attention.sums]
    points = math.prod([constant_value(count) or 0 for _, count in (*kernel.rows, walked)])
    return 2 * points * sum(widths)


def scalar_of(statement: Store | Accumulate) -> Scalar:
    """What it stores or folds."""
    return statement.value if isinstance(statement, Store) else statement.body


def functions_of(attention: AttentionProducts | AttentionGradients) -> tuple[Scalar, ...]:
    """What an attention computes of scores."""
    if isinstance(attention, AttentionProducts):
        return (attention.score,)
    return tuple([each.weight for each in attention.sums])


def row_points(loops: Iterable[Loop]) -> int | None:
    """The points of a row; None where they are not known."""
    total = 1
    for _, size in loops:
        known = constant_value(size)
        if known is None:
            return None
        total *= known
    return total


def offset(buffer: Buffer, coordinates: Iterable[Expr | Scalar]) -> Expr:
    """Elements from the buffer's start, coordinates that are loaded left out."""
    plain = [coordinate if type(coordinate) is Expr else 0 for coordinate in coordinates]
    return dot(plain, buffer.stride)


def scatters(kernel: Kernel) -> list[Store]:
    """The kernel's stores at places that are looked up; all in its only phase."""
    return [
        statement
        for statement in kernel.phases[0].body
        if isinstance(statement, Store) and isinstance(statement.value, Scatter)
    ]
