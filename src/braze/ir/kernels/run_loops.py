"""Runs a loop program element by element in meaning, tensor by tensor in fact: the oracle.

Every index symbol becomes an int64 grid, every load a gather, every reduction a PyTorch reduction
over the grid's trailing dimensions. Slow and plain: code generators are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.private_names import pytree
from braze.frozen import frozen
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Cast,
    Definition,
    ExternCall,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
    Scatter,
)
from braze.ir.types import Size
from braze.shapes.binding import bind_symbols, raise_unmet
from braze.shapes.expr import Expr, Extremum, FloorDiv, Mod, Symbol, symbols
from braze.shapes.substitution import evaluate


class OutOfBounds(RuntimeError):
    """A load or a store leaves its buffer: an index or a guard of the program is wrong."""


Tensor: TypeAlias = torch.Tensor
Grid: TypeAlias = Mapping[Symbol, Tensor]


def run_loops(program: LoopProgram, inputs: Sequence[object]) -> list[Tensor]:
    """The outputs for the inputs (tensors, then numbers), as views of the evaluator's buffers;
    mutated inputs are written last. Raises IndexError where a checked index is out of range,
    OutOfBounds where another leaves its buffer."""
    return run_loops_in_memory(program, inputs)[0]


def run_loops_in_memory(
    program: LoopProgram, inputs: Sequence[Any]
) -> tuple[list[Tensor], dict[Buffer, Tensor]]:
    """The same, and what every buffer holds at the end."""
    memory = dict(zip(program.inputs, inputs))
    sizes = _bind_sizes(program, inputs)
    memory.update(program.constants)
    for statement in program.statements:
        if isinstance(statement, Definition):
            _run_definition(statement, memory, sizes)
        else:
            _run_extern(statement, memory, sizes)
            _note_number(program, sizes)
    outputs = [_view(view, memory, sizes) for view in program.outputs]
    contents = [_view(view, memory, sizes).clone() for _, view in program.mutations]
    for (target, _), content in zip(program.mutations, contents, strict=True):
        memory[target].copy_(content)
    return outputs, memory


@final
@frozen
class _Point:
    """Where an expression is evaluated: the grid of the index symbols, and the number of its
    dimensions. taken: where the expression is a side of a guard, the points at which that side is
    taken; at others its loads may be out of range."""

    memory: Mapping[Buffer, Tensor]
    sizes: Mapping[Symbol, int]
    grid: Grid
    rank: int
    taken: Tensor | None = None


def evaluate_scalar(scalar: Scalar, symbol: Symbol, size: int) -> Tensor:
    """The values of a scalar that loads nothing, for each value of its only symbol in [0, size)."""
    point = _Point({}, {}, {symbol: torch.arange(size, device="cpu")}, 1)
    return _evaluate(scalar, point).expand(size)


# --- statements ------------------------------------------------------------------------------


def _run_definition(
    definition: Definition, memory: dict[Buffer, Tensor], sizes: Mapping[Symbol, int]
) -> None:
    target = definition.target
    if target not in memory:
        memory[target] = _allocate(target, sizes)
    shape = [_size(size, sizes) for _, size in definition.axes]
    if 0 in shape:
        return
    grid = _extend_grid({}, 0, definition.axes, sizes)
    point = _Point(memory, sizes, grid, len(shape))
    if isinstance(definition.body, Scatter):
        _run_scatter(definition, definition.body, point, shape)
        return
    value = _evaluate(definition.body, point)
    if value.dtype != target.dtype:
        raise TypeError(f"{target} is {target.dtype} but its definition gives {value.dtype}")
    value = value.expand(shape) if value.dim() == len(shape) else value.reshape(shape)
    if not definition.store:
        memory[target].copy_(value)
        return
    store = [_coordinate(c, point).expand(shape) for c in definition.store]
    _require_inside(store, memory[target].shape, f"store to {target}")
    memory[target][tuple(store)] = value


def _run_scatter(
    definition: Definition, body: Scatter, point: _Point, shape: Sequence[int]
) -> None:
    target = point.memory[definition.target]
    places = []
    for position, coordinate in zip(body.positions, definition.store, strict=True):
        found = _coordinate(coordinate if position is None else position, point)
        places.append(found.expand(shape).reshape(-1))
    _require_inside(places, target.shape, f"scatter into {definition.target}")
    value = _evaluate(body.value, point).expand(shape).reshape(-1)
    target.index_put_(tuple(places), value, accumulate=body.kind == "add")


def _run_extern(call: ExternCall, memory: dict[Buffer, Tensor], sizes: dict[Symbol, int]) -> None:
    schema = call.op._schema.arguments
    args = [
        _argument(value, memory, sizes, schema[n].type if n < len(schema) else None)
        for n, value in enumerate(call.args)
    ]
    types = {argument.name: argument.type for argument in schema}
    kwargs = {name: _argument(value, memory, sizes, types.get(name)) for name, value in call.kwargs}
    returned = _call(call.op, args, kwargs)
    if call.computes is not None:
        sizes[call.computes] = returned
    results = _flatten(returned) if call.outputs else []
    for buffer, result in zip(call.outputs, results, strict=True):
        if buffer is None:
            continue
        if not isinstance(result, Tensor):
            result = torch.tensor(result, dtype=buffer.dtype, device="cpu")
        memory[buffer] = _owned(result, buffer, sizes)


def _note_number(program: LoopProgram, sizes: dict[Symbol, int]) -> None:
    """Sizes that follow from numbers computed so far, and what has to hold of those."""
    for symbol, expr in program.sizes.derived:
        if symbol not in sizes and symbols(expr) <= sizes.keys():
            sizes[symbol] = evaluate(expr, sizes)
    for check in program.sizes.decided(sizes.keys(), ()):
        value = evaluate(check.expr, sizes)
        if not (value >= 0 if check.kind == ">=" else (value == 0) is (check.kind == "==")):
            raise_unmet(check.message, check.raises)


def _call(op: torch._ops.OpOverload, args: list[object], kwargs: dict[str, object]) -> Any:
    """Run the operator; what it writes to is cloned first and returned last."""
    schema = op._schema
    if not schema.is_mutable:
        return op(*args, **kwargs)
    clones = []
    for n, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[n] if n < len(args) else kwargs.get(argument.name)
        if given is None:
            continue
        clone = pytree.tree_map(torch.clone, given)
        if n < len(args):
            args[n] = clone
        else:
            kwargs[argument.name] = clone
        clones.append(clone)
    results = op(*args, **kwargs)
    listed = results if isinstance(results, tuple) else (results,)
    fresh = [r for r, d in zip(listed, schema.returns, strict=False) if d.alias_info is None]
    return [*fresh, *clones]


def _owned(result: Tensor, buffer: Buffer, sizes: Mapping[Symbol, int]) -> Tensor:
    """The result with exactly the buffer's strides, in storage of its own."""
    stride = tuple(_size(step, sizes) for step in buffer.stride)
    as_declared = result.stride() == stride and result.storage_offset() == 0
    if as_declared and not result.is_conj() and not result.is_neg():
        return result
    fresh = _allocate(buffer, sizes)
    return fresh.copy_(result)


def _argument(
    value: object, memory: Mapping[Buffer, Tensor], sizes: Mapping[Symbol, int], kind: object
) -> Any:
    if isinstance(value, BufferView):
        tensor = _view(value, memory, sizes)
        is_number = kind is not None and str(kind) in ("int", "float", "number", "bool", "SymInt")
        return tensor.item() if is_number or value.is_number else tensor
    if isinstance(value, (list, tuple)):
        return [_argument(item, memory, sizes, None) for item in value]
    if isinstance(value, (Expr, Symbol)):
        return _size(value, sizes)
    return value


def _flatten(results: object) -> list[Any]:
    if isinstance(results, (list, tuple)):
        return [leaf for item in results for leaf in _flatten(item)]
    return [results]


def _allocate(buffer: Buffer, sizes: Mapping[Symbol, int]) -> Tensor:
    shape = [_size(size, sizes) for size in buffer.shape]
    stride = [_size(step, sizes) for step in buffer.stride]
    return torch.empty_strided(shape, stride, dtype=buffer.dtype, device=buffer.device)


def _view(view: BufferView, memory: Mapping[Buffer, Tensor], sizes: Mapping[Symbol, int]) -> Tensor:
    tensor = memory[view.buffer]
    shape = [_size(size, sizes) for size in view.shape]
    stride = [_size(step, sizes) for step in view.stride]
    offset = _size(view.offset, sizes)
    if view.dtype == tensor.dtype:
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
    offset += tensor.storage_offset() * tensor.element_size() // view.dtype.itemsize
    again = torch.empty(0, dtype=view.dtype, device=tensor.device)
    return again.set_(tensor.untyped_storage(), offset, shape, stride)


def _bind_sizes(program: LoopProgram, inputs: Sequence[Any]) -> dict[Symbol, int]:
    """The values of symbols: from sizes and strides of inputs, and the numbers behind those."""
    numbers: list[tuple[int, Size]] = []
    for buffer, tensor in zip(program.inputs, inputs):
        actual = (*tensor.shape, *tensor.stride())
        numbers += zip(actual, (*buffer.shape, *buffer.stride), strict=True)
    numbers += zip(inputs[len(program.inputs) :], program.sizes.numbers, strict=True)
    found: dict[Symbol, int] = {}
    for binding in bind_symbols(numbers, program.sizes.derived):
        rest = evaluate(binding.rest, found)
        place = binding.place
        found[binding.symbol] = rest if place is None else (place - rest) // binding.factor
    return found


def _size(size: Size | Symbol, sizes: Mapping[Symbol, int]) -> int:
    return size if isinstance(size, int) else evaluate(size, sizes)


# --- index expressions -------------------------------------------------------------------------


def _extend_grid(
    grid: Grid, rank: int, axes: Sequence[tuple[Symbol, Size]], sizes: Mapping[Symbol, int]
) -> dict[Symbol, Tensor]:
    """The grid with further axes behind its dimensions; earlier ones broadcast."""
    extended = {symbol: t.reshape(*t.shape, *(1 for _ in axes)) for symbol, t in grid.items()}
    for n, (symbol, size) in enumerate(axes):
        shape = [1] * (rank + len(axes))
        shape[rank + n] = _size(size, sizes)
        extended[symbol] = torch.arange(shape[rank + n], device="cpu").reshape(shape)
    return extended


def _coordinate(coordinate: Expr | Scalar, point: _Point) -> Tensor:
    if isinstance(coordinate, Expr):
        return _index_value(coordinate, point)
    return _evaluate(coordinate, point)


def _index_value(expr: Expr, point: _Point) -> Tensor:
    total = torch.zeros([1] * point.rank, dtype=torch.int64, device="cpu")
    for monomial, coefficient in expr.terms:
        term = torch.tensor(coefficient, device="cpu")
        for atom in monomial:
            term = term * _atom_value(atom, point)
        total = total + term
    return total


def _atom_value(atom: object, point: _Point) -> Tensor:
    if isinstance(atom, Symbol):
        if atom in point.grid:
            return point.grid[atom]
        return torch.tensor(point.sizes[atom], device="cpu")
    if isinstance(atom, FloorDiv):
        dividend = _index_value(atom.dividend, point)
        return torch.div(dividend, _index_value(atom.divisor, point), rounding_mode="floor")
    if isinstance(atom, Mod):
        return _index_value(atom.dividend, point) % _index_value(atom.divisor, point)
    assert isinstance(atom, Extremum)
    choose = torch.maximum if atom.maximum else torch.minimum
    result = _index_value(atom.operands[0], point)
    for operand in atom.operands[1:]:
        result = choose(result, _index_value(operand, point))
    return result


# --- scalar expressions ------------------------------------------------------------------------


def _evaluate(scalar: Scalar, point: _Point) -> Tensor:
    return _EVALUATORS[type(scalar)](scalar, point)


def _evaluate_literal(scalar: Literal, point: _Point) -> Tensor:
    return torch.full([1] * point.rank, scalar.value, dtype=scalar.dtype, device="cpu")


def _evaluate_index(scalar: Index, point: _Point) -> Tensor:
    return _index_value(scalar.expr, point)


def _evaluate_load(scalar: Load, point: _Point) -> Tensor:
    tensor = point.memory[scalar.buffer]
    if not scalar.coordinates:
        return tensor.reshape([1] * point.rank)
    coordinates = [_coordinate(c, point) for c in scalar.coordinates]
    if point.taken is not None:
        _require_inside_where(point.taken, coordinates, tensor.shape, f"load of {scalar.buffer}")
        limits = [max(size - 1, 0) for size in tensor.shape]
        coordinates = [c.clamp(0, high) for c, high in zip(coordinates, limits, strict=True)]
        if 0 in tensor.shape:
            return torch.zeros([1] * point.rank, dtype=tensor.dtype, device="cpu")
    _require_inside(coordinates, tensor.shape, f"load of {scalar.buffer}")
    return tensor[tuple(torch.broadcast_tensors(*coordinates))]


def _require_inside(coordinates: Sequence[Tensor], shape: Sequence[int], what: str) -> None:
    for n, (coordinate, size) in enumerate(zip(coordinates, shape, strict=True)):
        if coordinate.numel() and not (0 <= int(coordinate.min()) <= int(coordinate.max()) < size):
            raise OutOfBounds(f"{what}: coordinate {n} leaves [0, {size})")


def _require_inside_where(
    taken: Tensor, coordinates: Sequence[Tensor], shape: Sequence[int], what: str
) -> None:
    for n, (coordinate, size) in enumerate(zip(coordinates, shape, strict=True)):
        if bool((taken & ((coordinate < 0) | (coordinate >= size))).any()):
            raise OutOfBounds(f"{what}: coordinate {n} leaves [0, {size})")


def _evaluate_apply(scalar: Apply, point: _Point) -> Tensor:
    operands = [_evaluate(operand, point) for operand in scalar.operands]
    result = _OPERATORS[scalar.op](*operands)
    if result.dtype != scalar.dtype:
        raise TypeError(f"{scalar.op} declared {scalar.dtype}, gave {result.dtype}")
    return result


def _evaluate_cast(scalar: Cast, point: _Point) -> Tensor:
    return _evaluate(scalar.operand, point).to(scalar.dtype)


def _evaluate_guarded(scalar: Guarded, point: _Point) -> Tensor:
    condition = _evaluate(scalar.condition, point)
    sides = []
    for side, taken in ((scalar.value, condition), (scalar.other, ~condition)):
        if point.taken is not None:
            taken = taken & point.taken
        there = _Point(point.memory, point.sizes, point.grid, point.rank, taken)
        sides.append(_evaluate(side, there))
    return torch.where(condition, sides[0], sides[1])


def _evaluate_in_range(scalar: InRange, point: _Point) -> Tensor:
    value = _evaluate(scalar.operand, point)
    size = _size(scalar.size, point.sizes)
    inside = (value >= 0) & (value < size)
    outside = ~inside if point.taken is None else ~inside & point.taken
    if bool(outside.any()):
        bad = int(value.expand(outside.shape)[outside][0])
        raise IndexError(f"index {bad} is out of bounds for dimension with size {size}")
    return value


def _evaluate_reduce(scalar: Reduce, point: _Point) -> Tensor:
    grid = _extend_grid(point.grid, point.rank, scalar.axes, point.sizes)
    lengths = [_size(size, point.sizes) for _, size in scalar.axes]
    outer = [1] * point.rank
    for symbol in point.grid:
        for n, length in enumerate(point.grid[symbol].shape):
            outer[n] = max(outer[n], length)
    full = outer + lengths
    if 0 in full:
        folded = torch.empty(*outer, 0, dtype=scalar.body.dtype, device="cpu")
    else:
        taken = point.taken
        if taken is not None:
            taken = taken.reshape(*taken.shape, *(1 for _ in lengths))
        inner = _Point(point.memory, point.sizes, grid, len(full), taken)
        folded = _evaluate(scalar.body, inner).expand(full).reshape(*outer, -1)
    return _FOLDS[scalar.kind](folded, scalar.dtype)


_FOLDS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "sum": lambda x, dtype: x.sum(-1, dtype=dtype),
    "prod": lambda x, dtype: x.prod(-1, dtype=dtype),
    "max": lambda x, dtype: x.amax(-1),
    "min": lambda x, dtype: x.amin(-1),
    "any": lambda x, dtype: x.any(-1),
    "all": lambda x, dtype: x.all(-1),
    "argmax": lambda x, dtype: x.argmax(-1),
    "argmin": lambda x, dtype: x.argmin(-1),
}


def _special(name: str) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = getattr(torch.special, name)
    return function


def _operators() -> dict[str, Callable[..., Tensor]]:
    same = (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
        "tanh asinh acosh atanh erf erfc erfinv lgamma digamma floor ceil trunc round isnan isinf "
        "signbit neg abs sign add sub mul fmod pow atan2 hypot copysign nextafter maximum minimum "
        "fmax fmin eq ne lt le gt ge where gcd"
    )
    special = "i0 i0e i1 i1e ndtri log_ndtr erfcx bessel_j0 bessel_j1 bessel_y0 bessel_y1 zeta"
    degrees = "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
    degrees += "chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he "
    degrees += "laguerre_polynomial_l legendre_polynomial_p"
    table: dict[str, Callable[..., Tensor]] = {name: getattr(torch, name) for name in same.split()}
    table |= {name: _special(name) for name in special.split()}
    table |= {name.replace("_polynomial", ""): _special(name) for name in degrees.split()}
    for order in "01":
        table[f"bessel_k{order}"] = _special(f"modified_bessel_k{order}")
        table[f"bessel_k{order}e"] = _special(f"scaled_modified_bessel_k{order}")
    table |= {
        "trigamma": lambda x: torch.polygamma(1, x),
        "frexp_mantissa": lambda x: torch.frexp(x).mantissa,
        "frexp_exponent": lambda x: torch.frexp(x).exponent.to(x.dtype),
        "not": torch.bitwise_not,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
        "shl": torch.bitwise_left_shift,
        "shr": torch.bitwise_right_shift,
        "truediv": torch.true_divide,
        "mod": torch.remainder,
        "floordiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "truncdiv": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "fma": lambda x, y, z: torch.addcmul(z, x, y),
    }
    return table


_OPERATORS = _operators()

_EVALUATORS: dict[type, Callable[[Any, _Point], Tensor]] = {
    Literal: _evaluate_literal,
    Index: _evaluate_index,
    Load: _evaluate_load,
    Apply: _evaluate_apply,
    Cast: _evaluate_cast,
    Guarded: _evaluate_guarded,
    InRange: _evaluate_in_range,
    Reduce: _evaluate_reduce,
}
