"""The loop program: every tensor of the graph as a pure definition over index variables.

A `Definition` gives each element of (a region of) its target buffer by a scalar expression over
index symbols. Nothing says yet what is computed together, in which order, or what is stored at
all: that is the schedule. What has no definition is an `ExternCall` of an ATen operator.

    buffer b2: f32[4, 8][8, 1]cpu
    b2[i0, i1] = exp(load b0[i0, i1] - load b1[i0])            # model.py:7 torch.exp
    b3[i0]     = sum over r0 in 8: load b2[i0, r0]             # model.py:7 torch.sum
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import Size
from braze.shapes.binding import NO_SIZES, Sizes
from braze.shapes.expr import Expr, Symbol, constant_value, symbols

# --- buffers ---------------------------------------------------------------------------------


@final
@frozen(eq=False)
class Buffer:
    """A strided piece of memory; compared by identity. shape and stride are in elements and, for
    a value of the graph, are those that eager would give it."""

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    device: torch.device

    def __str__(self) -> str:
        return self.name


def bytes_of(buffer: Buffer) -> int:
    """Bytes of a buffer's elements; 0 where its sizes are not known."""
    return math.prod([constant_value(n) or 0 for n in buffer.shape]) * buffer.dtype.itemsize


def has_known_sizes(buffer: Buffer) -> bool:
    """Whether no size of a buffer is a symbol."""
    return None not in map(constant_value, buffer.shape)


@final
@frozen(eq=False)
class BufferView:
    """`as_strided` of a buffer; offset in elements from the buffer's first element. `dtype`
    differs from the buffer's only for `view(dtype)`, complex/real views included; then shape,
    stride and offset are in elements of `dtype`. is_number: among an operator's arguments, it
    stands for the number in its one element."""

    buffer: Buffer
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype
    is_number: bool = False


# --- scalar expressions ----------------------------------------------------------------------
#
# Every node has one dtype. Arithmetic on float16, bfloat16 and floats of a byte happens in float32:
# lowering wraps loads in Cast(float32) and rounds with Cast where eager would; there is no node
# of arithmetic in those dtypes.


@final
@frozen(eq=False)
class Literal:
    """A constant of the dtype; floats may be inf or nan. Those of equal bits are equal: 0.0 and
    -0.0 are two constants, nan is one."""

    value: bool | int | float
    dtype: torch.dtype

    def __eq__(self, other: object) -> bool:
        if type(other) is not Literal or self.dtype is not other.dtype:
            return False
        one, two = self.value, other.value
        if one != two:
            return one != one and two != two
        return bool(one) or math.copysign(1, one) == math.copysign(1, two)

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.dtype))


@final
@frozen
class Index:
    """An index expression as an int64 value (arange, iota, positions)."""

    expr: Expr
    dtype: torch.dtype = torch.int64


@final
@frozen
class Load:
    """buffer[coordinates], one coordinate a dimension of the buffer. A coordinate is an index
    expression, or an int64 scalar expression (a gather), already in range."""

    buffer: Buffer
    coordinates: tuple[Expr | Scalar, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype


@final
@frozen
class Apply:
    """A scalar operator of `SCALAR_OPS` on operands that all have the dtype its row asks for."""

    op: str
    operands: tuple[Scalar, ...]
    dtype: torch.dtype


@final
@frozen
class Cast:
    """Conversion as `Tensor.to(dtype)` does it (float to integer truncates, to bool tests != 0);
    to float16/bfloat16 rounds to nearest even."""

    operand: Scalar
    dtype: torch.dtype


@final
@frozen
class Guarded:
    """`value` where `condition` holds, else `other`; `value` must not be evaluated (its loads may
    be out of bounds) where the condition is false: padding, cat, triangular masks."""

    condition: Scalar
    value: Scalar
    other: Scalar

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype


@final
@frozen
class InRange:
    """`operand`, an int64 index, checked: outside [0, size) the program stops with IndexError
    (the call is then replayed by eager, which words the error)."""

    operand: Scalar
    size: Size
    dtype: torch.dtype = torch.int64


@final
@frozen
class Reduce:
    """A fold of `body` over `axes` (symbols with ranges [0, size)); only at the root of a
    definition's expression or under Cast/Apply there.

    kind: sum, prod, max, min (NaN wins), any, all, argmax, argmin (first index in the order of
        the axes, row-major over them; NaN wins; dtype int64).
    dtype is the accumulator's: float32 for half types.
    """

    kind: str
    axes: tuple[tuple[Symbol, Size], ...]
    body: Scalar
    dtype: torch.dtype


@final
@frozen
class Scatter:
    """`value` for elements that are looked up; only at the root of a definition's body.

    positions: one a dimension of the target: an int64 scalar already in range, or None where the
        definition's `store` says it (which is zero at the others).
    kind: "set", or "add" to what is there, in the target's dtype, each sum rounded. Several points
        may meet on one element. in_order: on the CPU they do so in the order of the axes; on a
        device sums are atomic and come in any order, and any of several values stays.
    """

    kind: str
    positions: tuple[Scalar | None, ...]
    value: Scalar
    in_order: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype


Scalar: TypeAlias = Literal | Index | Load | Apply | Cast | Guarded | InRange | Reduce | Scatter


@final
@frozen
class ScalarOp:
    """arity; `result`: "same" dtype as the operands or "bool"; `domain`: dtypes it takes."""

    arity: int
    result: str
    domain: str  # "float", "integer", "bool", "number" (float or integer), "any", "bits"


def _table() -> dict[str, ScalarOp]:
    table: dict[str, ScalarOp] = {}

    def define(names: str, arity: int, result: str, domain: str) -> None:
        for name in names.split():
            assert name not in table, name
            table[name] = ScalarOp(arity, result, domain)

    define(
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan",
        1,
        "same",
        "float",
    )
    define("sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma", 1, "same", "float")
    define("i0 i0e i1 i1e ndtri log_ndtr erfcx trigamma", 1, "same", "float")
    define("bessel_j0 bessel_j1 bessel_y0 bessel_y1", 1, "same", "float")
    define("bessel_k0 bessel_k1 bessel_k0e bessel_k1e", 1, "same", "float")  # k0e: exp(x) * k0
    define("frexp_mantissa frexp_exponent", 1, "same", "float")
    define("floor ceil trunc round", 1, "same", "float")  # round: half to even
    define("isnan isinf signbit", 1, "bool", "float")
    define("neg abs sign", 1, "same", "number")
    define("not", 1, "same", "bits")  # bitwise on integers, logical on bool
    define("add sub mul", 2, "same", "number")
    define("truediv", 2, "same", "float")
    define("floordiv mod", 2, "same", "number")  # Python's: the sign is the divisor's
    define("truncdiv fmod", 2, "same", "number")  # C's: the sign is the dividend's
    define("pow", 2, "same", "number")
    define("atan2 hypot copysign nextafter", 2, "same", "float")
    define("zeta", 2, "same", "float")  # Hurwitz's
    define("chebyshev_t chebyshev_u chebyshev_v chebyshev_w", 2, "same", "float")  # x, degree
    define("hermite_h hermite_he laguerre_l legendre_p", 2, "same", "float")
    define("gcd", 2, "same", "integer")
    define("maximum minimum", 2, "same", "number")  # NaN wins
    define("fmax fmin", 2, "same", "float")  # NaN loses
    define("and or xor", 2, "same", "bits")
    define("shl shr", 2, "same", "integer")
    define("eq ne lt le gt ge", 2, "bool", "any")
    define("where", 3, "same", "any")  # operand 0 is bool, 1 and 2 of the result's dtype; both
    # sides may be evaluated
    define("fma", 3, "same", "float")
    return table


# The vocabulary that lowering may use and that every code generator and the evaluator implement.
SCALAR_OPS: dict[str, ScalarOp] = _table()

# --- statements ------------------------------------------------------------------------------


@final
@frozen(eq=False)
class Definition:
    """target[store] = body, for every point of `axes`.

    axes: (symbol, size) outermost first; the symbols' ranges are [0, size).
    store: one coordinate a dimension of the target. The usual definition covers the whole target
        with store == axes; several definitions with disjoint regions may share one target (cat).
    Where the body is a `Scatter`, it changes elements of a target that has contents already: in a
    loop program, those that the definitions of the target before it gave.
    """

    target: Buffer
    axes: tuple[tuple[Symbol, Size], ...]
    store: tuple[Expr, ...]
    body: Scalar
    origin: Origin = UNKNOWN


@final
@frozen(eq=False)
class ExternCall:
    """An operator run by its ATen kernel.

    args, kwargs: as `braze.ir.graphs.graph.Node`, with BufferViews where values stood.
    outputs: the buffers it allocates and returns, flattened; None for undefined tensors.

    Where the schema says that the operator writes to arguments, it is given clones of them, and
    `outputs` are its fresh results, then the clones' contents (as in `run_graph`).
    A BufferView of a one-element CPU buffer in the place of a number is read for its value.
    computes: the symbol of the number that it returns, in place of outputs: sizes of statements
    behind it name it.
    """

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[Buffer | None, ...]
    origin: Origin = UNKNOWN
    computes: Symbol | None = None


Statement: TypeAlias = Definition | ExternCall


def given_symbols(call: ExternCall) -> set[Symbol]:
    """Those of the numbers among a call's arguments; what views have is left out."""
    return set().union(*_symbols_in((*call.args, *(value for _, value in call.kwargs))))


def _symbols_in(values: Iterable[object]) -> Iterator[frozenset[Symbol]]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _symbols_in(value)
        elif isinstance(value, (Expr, Symbol)):
            yield symbols(value)


@final
@frozen(eq=False)
class LoopProgram:
    """inputs, constants: buffers that hold data on entry; outputs: views of what the caller gets
    (position by position those of the graph); mutations: (input, view whose contents it takes).

    sizes: as `Graph.sizes`.
    statements are in an order that respects their dependencies; each buffer has either one
    extern call or definitions over disjoint regions, all before its first use.
    """

    inputs: tuple[Buffer, ...]
    constants: tuple[tuple[Buffer, torch.Tensor], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[BufferView, ...]
    mutations: tuple[tuple[Buffer, BufferView], ...]
    sizes: Sizes = NO_SIZES
