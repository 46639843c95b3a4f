"""Traces operators whose result size depends on data, and integers read from tensors.

    nonzero(x)     %1: i64[u0, 2] = nonzero(%0);  %2: int(u0) = sym_size(%1, 0)
    n.item()       %1: int(u1) = _local_scalar_dense(%0)

The symbol stands for the number in every size from there on. Only where the user asked for it
(`capture_dynamic_output_shape_ops`, `capture_scalar_outputs`); else these calls break the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Value
from braze.ir.types import MASKS, ScalarType, TensorType
from braze.shapes.expr import Symbol
from braze.shapes.facts import Facts
from braze.shapes.symbolic import symbol_size
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.shape_rules.strides import contiguous_stride, tensor_type

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
# (tensor argument's type, further arguments by name, the size) -> types of the results
_Types: TypeAlias = Callable[[TensorType, dict[str, Any], Any], Any]


def holds_integer(tracer: Tracer, tensor: object) -> bool:
    """Whether the integer that a tensor holds can be a symbol."""
    if not tracer.gives_integers or type(tensor) is not TracedTensor:
        return False
    kind = tensor.place.type
    return kind.dtype in _INTEGERS and all(type(n) is int and n == 1 for n in kind.shape)


def integer_of(
    tracer: Tracer,
    tensor: TracedTensor,
    bounds: tuple[int, int] | None = None,
    source: str = "item()",
) -> Any:
    """`tensor.item()` of a tensor that holds one integer; the same for the same value. bounds: the
    least and the greatest that it can be."""
    value = tracer.recorder.read(tensor.place)
    known = tracer.integers.get(value)
    if known is None:
        least = 0 if tensor.place.type.dtype is torch.uint8 else None
        facts, symbol = _new_symbol(tracer, source, *(bounds or (least, None)))
        kind = ScalarType(int, symbol)
        tracer.recorder.emit_typed(aten._local_scalar_dense.default, (value,), {}, kind)
        known = tracer.integers[value] = symbol_size(facts, symbol)
    return known


def indexed_by_masks(tracer: Tracer, args: Sequence[Any]) -> object:
    """`x[mask]` as `x[i, j]`, where `i, j` are the columns of `nonzero(mask)`."""
    indices: list[Any] = []
    with tracer:
        for index in args[1]:
            if index is None or index.dtype not in MASKS:
                indices.append(index)
                continue
            places = aten.nonzero.default(index)
            indices += [aten.select.int(places, 1, column) for column in range(index.dim())]
        return aten.index.Tensor(args[0], indices)


def _new_symbol(
    tracer: Tracer, source: str, lower: int | None, upper: int | None = None
) -> tuple[Facts, Symbol]:
    facts = tracer.facts
    if facts is None:
        assert tracer.open_facts is not None
        facts = tracer.open_facts()
    return facts, facts.data_symbols().new_symbol(source, lower, upper)


def _data_sized(types: _Types) -> Callable[..., object]:
    """The special call of an operator that returns results of these types."""

    def call(tracer: Tracer, op: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        names = [argument.name for argument in op._schema.arguments]
        given = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
        given |= {**dict(zip(names, args)), **kwargs}
        told = given.get("output_size")
        if told is None and not tracer.gives_sizes:
            return NotImplemented
        values, differentiable = tracer.bind_tracked(args)
        keywords, _, _ = tracer.bind_keywords(kwargs, torch.is_grad_enabled())
        kind = tracer.fake_of(args[0]).place.type
        if told is not None:  # by the program, and the kernel checks it
            made = types(kind, given, told)
            return _fakes(tracer.recorder.emit_typed(op, values, keywords, made), differentiable)
        key = (op, *values, *keywords.items())
        if key in tracer.integers:  # of the same values, of the same size
            made = types(kind, given, tracer.integers[key])
            return _fakes(tracer.recorder.emit_typed(op, values, keywords, made), differentiable)
        facts, symbol = _new_symbol(tracer, op.name(), given.get("minlength", 0))
        size = tracer.integers[key] = symbol_size(facts, symbol)
        result = tracer.recorder.emit_typed(op, values, keywords, types(kind, given, size))
        sized = result[0] if isinstance(result, tuple) else result
        dim = next(d for d, n in enumerate(sized.type.shape) if n is size)
        number = ScalarType(int, symbol)
        tracer.recorder.emit_typed(aten.sym_size.int, (sized, dim), {}, number)
        return _fakes(result, differentiable)

    return call


def _fakes(result: object, differentiable: bool) -> tuple[object, ...] | TracedTensor:
    if isinstance(result, tuple):
        rest = tuple([_fakes(r, False) for r in result[1:]])
        return (_fakes(result[0], differentiable), *rest)
    assert isinstance(result, Value) and isinstance(result.type, TensorType)
    return new_fake(Place(result.type, result, 0, differentiable))


def _dense(
    kind: TensorType, shape: tuple[object, ...], dtype: torch.dtype | None = None
) -> TensorType:
    return tensor_type(dtype or kind.dtype, shape, contiguous_stride(shape), kind.device)


def _nonzero(kind: TensorType, given: dict[str, object], size: object) -> object:
    """Row-major; eager's is transposed. What follows would have to know that there are rows."""
    return _dense(kind, (size, len(kind.shape)), torch.int64)


def _row(kind: TensorType, given: dict[str, object], size: object) -> object:
    return _dense(kind, (size,))


def _bincount(kind: TensorType, given: dict[str, Any], size: object) -> object:
    weights = given["weights"]
    if weights is None:
        return _dense(kind, (size,), torch.int64)
    single = weights.dtype is torch.float32
    return _dense(kind, (size,), torch.float32 if single else torch.float64)


def _unique(kind: TensorType, given: dict[str, object], size: object) -> object:
    """Of `_unique2` and `unique_consecutive`: results that are not asked for are empty."""
    if given.get("dim") is not None:
        return _unique_dim(kind, given, size)
    inverse = kind.shape if given["return_inverse"] else (0,)
    counts = (size,) if given["return_counts"] else (0,)
    return (
        _dense(kind, (size,)),
        _dense(kind, inverse, torch.int64),
        _dense(kind, counts, torch.int64),
    )


def _unique_dim(
    kind: TensorType, given: dict[str, Any], size: object
) -> tuple[TensorType, object, object]:
    """Slices lie one behind the other in the result, if there are any."""
    dim = given["dim"] % len(kind.shape)
    shape = (*kind.shape[:dim], size, *kind.shape[dim + 1 :])
    stride = contiguous_stride(kind.shape)
    if 0 not in kind.shape:
        of_slice, *inner = contiguous_stride((size, *kind.shape[:dim], *kind.shape[dim + 1 :]))
        stride = (*inner[:dim], of_slice, *inner[dim:])
    return (
        tensor_type(kind.dtype, shape, stride, kind.device),
        _dense(kind, (kind.shape[dim],), torch.int64),
        _dense(kind, (size,), torch.int64),
    )


DATA_SIZED: dict[Any, Any] = {
    aten.nonzero.default: _data_sized(_nonzero),
    aten.masked_select.default: _data_sized(_row),
    aten.repeat_interleave.Tensor: _data_sized(_row),
    aten.bincount.default: _data_sized(_bincount),
    aten._unique2.default: _data_sized(_unique),
    aten.unique_consecutive.default: _data_sized(_unique),
    aten.unique_dim.default: _data_sized(_unique_dim),
}
