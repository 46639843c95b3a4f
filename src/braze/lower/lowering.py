"""Lowers a graph node by node: the state of one lowering, and what a rule may ask of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Constant, Graph, Node, Output, Value, computed_symbol, operands
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Definition,
    ExternCall,
    Guarded,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
    Statement,
)
from braze.ir.kernels.scalars import (
    FLOAT8,
    apply,
    cast,
    compute_dtype,
    literal,
    rebuild,
    replace_children,
    stored_number,
    walk,
    without_round_trips,
)
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import ScalarType, Size, TensorType
from braze.lower.coordinates import (
    Coordinate,
    Coordinates,
    address,
    axis_coordinates,
    contiguous_strides,
    make_axes,
    plus,
    strides_like,
)
from braze.lower.place import ComputedElements, Place, Stored, compose, whole
from braze.lower.rounding import rounds_like_eager
from braze.lower.rules import RULES, Body, Done, Folded, Lowered, Reinterpreted, RuleRow, View
from braze.shapes.expr import (
    ZERO,
    Expr,
    NotANumber,
    as_expr,
    constant_value,
    floor_div,
    simplified,
)
from braze.shapes.prove import is_nonnegative
from braze.shapes.substitution import substitute

# Operators on floats of a byte that are loops; ATen refuses most of the others.
_CONVERSIONS = frozenset({"aten._to_copy.default", "aten.clone.default"})

Supports: TypeAlias = Callable[[str, torch.dtype], bool]
Readable: TypeAlias = Value | Stored | ComputedElements | bool | int | float | Expr

SCALAR_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}

# Dtypes that loops compute with; operators on others are left to ATen.
LOOP_DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        *FLOAT8,  # conversions only
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


class Lowering:
    """The program so far, and where each value of the graph is.

    left_to_aten: nodes that are not to be lowered by their rules. `unsupported` collects the
    nodes whose rules used a scalar operator that `supports` refuses.
    """

    def __init__(
        self, graph: Graph, numerics: str, supports: Supports, left_to_aten: frozenset[Node]
    ) -> None:
        self.graph, self.numerics, self.supports = graph, numerics, supports
        self.left_to_aten = left_to_aten
        self.unsupported: set[Node] = set()
        self._node: Node | None = None
        self.statements: list[Statement] = []
        self.places: dict[Value, Place] = {}
        self.entries: set[Buffer] = set()
        self._loadable: dict[BufferView, Stored] = {}
        self._count = 0
        self.used = _used_values(graph)

    def run(self, seen: int) -> LoopProgram:
        """The whole graph as a loop program. seen: how many of its results the program sees."""
        inputs = tuple(map(self._entry, self.graph.inputs))
        constants = tuple((self._entry(c.value), c.tensor) for c in self.graph.constants)
        for constant in self.graph.constants:
            self._fold_constant(constant)
        for node in self.graph.nodes:
            if self.used.intersection(node.outputs) or not _is_view(node.op):
                self.lower_node(node)
        makers = {value: node for node in self.graph.nodes for value in node.outputs}
        for output in self.graph.outputs[:seen]:
            self._store_bases(output.value if output.alias is None else output.alias.base, makers)
        outputs = tuple(map(self._output, self.graph.outputs))
        mutations = []
        for mutation in self.graph.mutations:
            target = self.places[mutation.input]
            assert isinstance(target, Stored)
            mutations.append((target.root.buffer, self.view_of(mutation.value)))
        statements = tuple(self.statements)
        sizes = self.graph.sizes
        # What computes a value refers to this object; without, all of it is gone with its last use.
        self.places.clear()
        return LoopProgram(inputs, constants, statements, outputs, tuple(mutations), sizes)

    def lower_node(self, node: Node) -> None:
        """Lower by the operator's rule, or as a call of its ATen kernel."""
        number = computed_symbol(node)
        if number is not None:
            args = tuple(map(self._extern_argument, node.args))
            self.statements.append(ExternCall(node.op, args, (), (), node.origin, number))
            return
        row = RULES.get(str(node.op))
        if row is None or (not row.exact and self.numerics == "eager"):
            self.call_extern(node)
            return
        if node in self.left_to_aten and not (_is_view(node.op) and self._is_view_as_it_is(node)):
            self.call_extern(node)
            return
        self._node = node
        call = OperatorCall(self, node)
        emitted = len(self.statements)
        try:
            self._lower_by(row, call)
        except NotANumber:  # the rule needs the number of a symbolic size
            del self.statements[emitted:]
            self.call_extern(node)

    def _is_view_as_it_is(self, node: Node) -> bool:
        """Whether a view of what is in memory has strides there: no kernel has to copy it."""
        call, row, value = OperatorCall(self, node), RULES[str(node.op)], node.outputs[0]
        lowered = row.rule(call, *node.args, **dict(node.kwargs)) if call.fits(row) else None
        if not isinstance(lowered, (View, Reinterpreted)) or value is None:
            return False
        if not isinstance(self.places[lowered.base], Stored):
            return False
        if isinstance(lowered, Reinterpreted):
            return True
        place, kind = self._view_place(lowered, _tensor_type(value)), _tensor_type(value)
        assert isinstance(place, Stored) and place.index is not None
        origin = (ZERO,) * len(kind.shape)
        start = address(place.index(origin), place.root.stride, place.root.offset)
        return place.is_strided or 0 in kind.shape or _has_strides(place, kind, start)

    def _lower_by(self, row: RuleRow, call: OperatorCall) -> None:
        node = call.node
        lowered = row.rule(call, *node.args, **dict(node.kwargs)) if call.fits(row) else None
        if lowered is None:
            self.call_extern(node)
        elif not isinstance(lowered, Done):
            if self.numerics == "eager" and not _keeps_bits(lowered, node):
                self.call_extern(node)
                return
            value = node.outputs[0]
            assert value is not None
            self.places[value] = self._place(lowered, _tensor_type(value), call.origin)

    def call_extern(self, node: Node) -> None:
        """Emit a call of the operator's ATen kernel."""
        op = copying_form(node.op)
        args = tuple(map(self._extern_argument, node.args))
        kwargs = tuple((name, self._extern_argument(value)) for name, value in node.kwargs)
        outputs: list[Buffer | None] = []
        for value in node.outputs:
            if value is None:
                outputs.append(None)
                continue
            buffer = self.new_buffer(_tensor_type(value))
            self.places[value] = whole(buffer)
            outputs.append(buffer)
        origin = replace(node.origin, op=str(node.op))
        self.statements.append(ExternCall(op, args, kwargs, tuple(outputs), origin))

    # --- reading -------------------------------------------------------------------------------

    def read(self, source: Readable, at: Coordinates, dtype: torch.dtype | None = None) -> Scalar:
        """The element of a value or place at a point, or a Python number of `dtype`."""
        if isinstance(source, Expr):
            return literal(source, dtype or torch.int64)
        if isinstance(source, (bool, int, float)):
            return literal(source, dtype or SCALAR_DTYPES[type(source)])
        place = self.places[source] if isinstance(source, Value) else source
        checks = [c for c in at if type(c) is InRange and c.size == 1]
        if checks and not (isinstance(place, Stored) and place.index is None):
            # A view may drop the dimension, since all of its coordinates are zero, and the check.
            value = self.read(source, tuple([ZERO if c in checks else c for c in at]), dtype)
            for check in checks:
                value = Guarded(apply("eq", check, 0), value, literal(0, value.dtype))
            return value
        if isinstance(place, ComputedElements):
            return place.body(at)
        if place.is_window:
            place = self._made_loadable(place)
        return Load(place.root.buffer, at if place.index is None else place.index(at))

    def view_of(self, value: Value) -> BufferView:
        """The strided view of a buffer that holds the value, computed now if nothing does."""
        source = place = self.places[value]
        kind = _tensor_type(value)
        if isinstance(place, ComputedElements):
            place = place.stored or self.define(kind, place.body, place.origin)
            self.places[value] = place
        if place.index is None:
            return place.root
        root = place.root
        if 0 in kind.shape:
            return BufferView(root.buffer, kind.shape, kind.stride, 0, root.dtype)
        origin = (ZERO,) * len(kind.shape)
        start = address(place.index(origin), root.stride, root.offset)
        if not place.is_strided and not _has_strides(place, kind, start):
            stored = self.define(kind, lambda at: self.read(source, at), UNKNOWN)
            self.places[value] = stored
            return stored.root
        assert isinstance(start, Expr)
        return BufferView(root.buffer, kind.shape, kind.stride, simplified(start), root.dtype)

    # --- defining ------------------------------------------------------------------------------

    def new_buffer(self, kind: TensorType) -> Buffer:
        """A fresh buffer of the type."""
        name = f"b{self._count}"
        self._count += 1
        return Buffer(name, kind.dtype, kind.shape, kind.stride, kind.device)

    def define(self, kind: TensorType, body: Body, origin: Origin) -> Stored:
        """Emit the definition of a whole new buffer."""
        axes = make_axes("i", kind.shape)
        at = axis_coordinates(axes)
        scalar = cast(body(at), kind.dtype)
        target = self.new_buffer(kind)
        self.emit(target, axes, at, scalar, origin)
        return whole(target)

    def emit(self, target: Buffer, axes: Any, store: Any, body: Scalar, origin: Origin) -> None:
        """Emit one definition. Nothing is loaded for the sake of no elements: code that does not
        depend on an empty axis may stand, and run, outside of its loop."""
        if any(constant_value(size) == 0 for _, size in axes):
            body = literal(0, body.dtype)
        elif any(isinstance(node, Reduce) and _is_empty(node) for node in walk(body)):
            body = rebuild(body, _without_empty_folds)
        if self.numerics != "eager":
            body = without_round_trips(body)
        self._check_support(body)
        self.statements.append(Definition(target, axes, store, body, origin))

    # --- private -------------------------------------------------------------------------------

    def _check_support(self, body: Scalar) -> None:
        if self._node is not None and not all(
            self.supports(node.op, node.operands[-1].dtype)
            for node in walk(body)
            if isinstance(node, Apply)
        ):
            self.unsupported.add(self._node)

    def _entry(self, value: Value) -> Buffer:
        buffer = self.new_buffer(_tensor_type(value))
        self.entries.add(buffer)
        self.places[value] = whole(buffer)
        return buffer

    def _output(self, output: Output) -> BufferView:
        """What the caller gets: of a view of an input or of another output, the same memory."""
        if output.alias is None:
            return self.view_of(output.value)
        alias, dtype = output.alias, _dtype_of(output.value)
        base = self.view_of(alias.base)
        if base.offset == 0 or base.dtype == dtype:
            offset = simplified(as_expr(base.offset) + alias.offset)
        else:
            scaled = as_expr(base.offset) * base.dtype.itemsize
            offset = simplified(floor_div(scaled, dtype.itemsize) + alias.offset)
        return BufferView(base.buffer, alias.shape, alias.stride, offset, dtype)

    def _store_bases(self, value: Value, makers: Mapping[Value | None, Node]) -> None:
        """Have what a result is a view of in memory: the program sees that it lies there."""
        place = self.places[value]
        if (
            isinstance(place, ComputedElements)
            and place.stored is None
            and _is_view(makers[value].op)
        ):
            for base in operands(makers[value]):
                self._store_bases(base, makers)
                self.view_of(base)
            self.lower_node(makers[value])

    def _fold_constant(self, constant: Constant) -> None:
        """A captured CPU tensor of one element is a literal to its readers."""
        tensor = constant.tensor
        if tensor.dim() == 0 and tensor.device.type == "cpu" and tensor.dtype in LOOP_DTYPES:
            scalar = literal(tensor.item(), tensor.dtype)
            stored = self.places[constant.value]
            assert isinstance(stored, Stored)
            self.places[constant.value] = ComputedElements(
                lambda at: scalar, tensor.dtype, (), stored
            )

    def _place(self, lowered: Lowered, kind: TensorType, origin: Origin) -> Place:
        if isinstance(lowered, View):
            return self._view_place(lowered, kind)
        if isinstance(lowered, Folded):
            self._check_support(lowered.body(axis_coordinates(make_axes("i", kind.shape))))
            return ComputedElements(lowered.body, kind.dtype, kind.shape, None, origin)
        if isinstance(lowered, Reinterpreted):
            return self._reinterpreted_place(lowered, kind)
        assert callable(lowered)
        axes = make_axes("i", kind.shape)
        at = axis_coordinates(axes)
        scalar = cast(lowered(at), kind.dtype)
        if _is_cheap(scalar):
            self._check_support(scalar)
            body: Body = lambda at: cast(lowered(at), kind.dtype)  # noqa: E731
            return ComputedElements(body, kind.dtype, kind.shape, None, origin)
        target = self.new_buffer(kind)
        self.emit(target, axes, at, scalar, origin)
        return whole(target)

    def _view_place(self, view: View, kind: TensorType) -> Place:
        base = self.places[view.base]
        if isinstance(base, ComputedElements):
            body = base.body
            moved: Body = lambda at: body(view.index(at))  # noqa: E731
            return ComputedElements(moved, kind.dtype, kind.shape, None, base.origin)
        index = compose(view.index, base.index)
        return Stored(base.root, index, base.is_window, base.is_strided and view.is_strided)

    def _reinterpreted_place(self, lowered: Reinterpreted, kind: TensorType) -> Place:
        base = self.view_of(lowered.base)
        numerator, denominator = lowered.scale
        offset = lowered.offset
        if offset is None:
            offset = simplified(floor_div(as_expr(base.offset) * numerator, denominator))
        root = BufferView(base.buffer, kind.shape, kind.stride, offset, kind.dtype)
        return Stored(root, None, is_window=True)

    def _made_loadable(self, place: Stored) -> Stored:
        """A copy of a window, made by ATen: loads need a buffer of their own dtype and shape."""
        root = place.root
        if root not in self._loadable:
            stride = contiguous_strides(root.shape)
            device = root.buffer.device
            copy = self.new_buffer(TensorType(root.dtype, root.shape, stride, device))
            kwargs = (("memory_format", torch.contiguous_format),)
            clone = aten.clone.default
            self.statements.append(ExternCall(clone, (root,), kwargs, (copy,)))
            self._loadable[root] = whole(copy)
        return Stored(self._loadable[root].root, place.index)

    def _extern_argument(self, argument: object) -> object:
        if isinstance(argument, Value):
            view = self.view_of(argument)
            return replace(view, is_number=True) if _is_number(argument) else view
        if isinstance(argument, (list, tuple)):
            return type(argument)(map(self._extern_argument, argument))
        return argument


@final
@frozen
class OperatorCall:
    """One node being lowered, as a rule sees it."""

    lowering: Lowering
    node: Node

    def fits(self, row: Any) -> bool:
        """Whether loops can compute with every dtype in sight (views can carry any), and with
        numbers that the graph computes, if there are any."""
        values = operands(self.node)
        if not row.takes_numbers and any(map(_is_float, values)):
            return False
        if row.any_dtype:
            return True
        values += [value for value in self.node.outputs if value is not None]
        dtypes = {_dtype_of(value) for value in values}
        if not dtypes.isdisjoint(FLOAT8) and str(self.node.op) not in _CONVERSIONS:
            return False
        return dtypes <= LOOP_DTYPES

    def output(self, position: int = 0) -> TensorType:
        """The type of a result."""
        value = self.node.outputs[position]
        assert value is not None
        return _tensor_type(value)

    @property
    def origin(self) -> Origin:
        """Where the node came from, with its operator."""
        return replace(self.node.origin, op=str(self.node.op))

    def is_used(self, position: int) -> bool:
        """Whether anything reads a result."""
        return self.node.outputs[position] in self.lowering.used

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which the first result is computed."""
        return compute_dtype(self.output().dtype)

    def read(self, source: Readable, at: Coordinates, dtype: torch.dtype | None = None) -> Scalar:
        """An element, converted to `dtype` (a number is given that dtype directly)."""
        scalar = self.lowering.read(source, at, dtype)
        return scalar if dtype is None else cast(scalar, dtype)

    def read_as(
        self, source: Readable, at: Coordinates, dtype: torch.dtype, rounds_number: bool = False
    ) -> Scalar:
        """An element broadcast to the coordinates, converted to `dtype` and then to the dtype of
        its arithmetic, as eager's promotion does it. rounds_number: a number becomes what a tensor
        of a half type holds of it; else it stays as it is."""
        if isinstance(source, (bool, int, float, Expr)):
            number = literal(source, compute_dtype(dtype))
            return stored_number(source, dtype) if rounds_number else number
        here = self.broadcast(source, at)
        if isinstance(source, Value) and _is_number(source):
            number = self.lowering.read(source, here)
            number = cast(number, dtype) if rounds_number else number
            return cast(number, compute_dtype(dtype))
        element = self.lowering.read(source, here)
        if rounds_number and isinstance(element, Literal):
            return stored_number(element.value, dtype)
        return cast(cast(element, dtype), compute_dtype(dtype))

    @property
    def rounds_numbers(self) -> bool:
        """Whether ATen's kernel for two operands makes a tensor of its dtype of a number: those for
        CPUs do, others compute with the number as it is."""
        return self.output().device.type == "cpu"

    def read_factor(self, source: Readable, at: Coordinates, dtype: torch.dtype) -> Scalar:
        """The second operand of a product or quotient: what is one element on the CPU is not
        rounded to a half type."""
        kind = source.type if isinstance(source, Value) else None
        is_one = isinstance(kind, TensorType) and kind.shape == () and kind.device.type == "cpu"
        if is_one and dtype.is_floating_point:
            return cast(self.lowering.read(source, ()), compute_dtype(dtype))
        return self.read_as(source, at, dtype)

    def shape_of(self, source: Readable) -> tuple[Size, ...]:
        """The shape of a value or place; () of a number."""
        if isinstance(source, Value):
            return source.type.shape if isinstance(source.type, TensorType) else ()
        if isinstance(source, Stored):
            return source.root.shape
        return source.shape if isinstance(source, ComputedElements) else ()

    def dtype_of(self, source: Value) -> torch.dtype:
        """The dtype of a value; Python numbers have that of the tensor they would become."""
        return _dtype_of(source)

    def is_nonnegative(self, value: Size) -> bool:
        """Whether a number made of sizes surely is not negative."""
        derived = dict(self.lowering.graph.sizes.derived)
        return (
            value >= 0 if isinstance(value, int) else is_nonnegative(substitute(value, derived), {})
        )

    def device_of(self, source: Value) -> torch.device:
        """The device of a value."""
        return _tensor_type(source).device

    def is_contiguous(self, source: Value) -> bool:
        """Whether a value is laid out row by row."""
        kind = _tensor_type(source)
        return kind.stride == contiguous_strides(kind.shape)

    def is_entry(self, source: Value) -> bool:
        """Whether a value lives in memory that was there before: an input, or a view of one."""
        place = self.lowering.places[source]
        return isinstance(place, Stored) and place.root.buffer in self.lowering.entries

    def broadcast(self, source: Readable, at: Coordinates) -> Coordinates:
        """The coordinates in `source` of a point of a shape that it broadcasts to."""
        shape = self.shape_of(source)
        skipped = len(at) - len(shape)
        if not skipped and 1 not in shape:
            return at
        return tuple(ZERO if size == 1 else c for c, size in zip(at[skipped:], shape, strict=True))

    def temporary(
        self,
        dtype: torch.dtype,
        shape: Sequence[Size],
        body: Body,
        like: Sequence[Size] | None = None,
    ) -> Stored:
        """Define a buffer that no value of the graph names; contiguous, or dense with its
        dimensions in the order of these strides."""
        shape = tuple(shape)
        device = next(_tensor_type(v).device for v in self.node.outputs if v is not None)
        stride = contiguous_strides(shape) if like is None else strides_like(shape, like)
        kind = TensorType(dtype, shape, stride, device)
        return self.lowering.define(kind, body, self.origin)

    def result(self, position: int, body: Body) -> Stored:
        """Define one of several results."""
        value = self.node.outputs[position]
        assert value is not None
        place = self.lowering.define(_tensor_type(value), body, self.origin)
        self.lowering.places[value] = place
        return place

    def result_view(self, position: int, view: View) -> None:
        """Make one of several results a view."""
        value = self.node.outputs[position]
        assert value is not None
        self.lowering.places[value] = self.lowering._view_place(view, _tensor_type(value))

    def regions(self, parts: Sequence[tuple[Sequence[Size], Any, Body]]) -> None:
        """Define the first result by disjoint regions: (region's shape, map from its coordinates
        to the result's, body over the region's coordinates)."""
        value = self.node.outputs[0]
        assert value is not None
        kind = _tensor_type(value)
        target = self.lowering.new_buffer(kind)
        pending = []
        for shape, store, body in parts:
            axes = make_axes("i", shape)
            at = axis_coordinates(axes)
            pending.append((axes, store(at), cast(body(at), kind.dtype)))
        for axes, at, scalar in pending:
            self.lowering.emit(target, axes, at, scalar, self.origin)
        self.lowering.places[value] = whole(target)


# --- private ---------------------------------------------------------------------------------


def _is_empty(fold: Reduce) -> bool:
    return any(constant_value(size) == 0 for _, size in fold.axes)


def _without_empty_folds(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
    """A fold of nothing is its neutral element."""
    if not isinstance(node, Reduce) or not _is_empty(node):
        return replace_children(node, below)
    if node.kind in ("prod", "all"):
        return literal(1, node.dtype)
    if node.kind in ("max", "min") and node.dtype.is_floating_point:
        return literal(-math.inf if node.kind == "max" else math.inf, node.dtype)
    if node.kind in ("max", "min") and node.dtype != torch.bool:
        limits = torch.iinfo(node.dtype)
        return literal(limits.min if node.kind == "max" else limits.max, node.dtype)
    return literal(node.kind == "min", node.dtype)


def _keeps_bits(lowered: Lowered, node: Node) -> bool:
    """Whether a rule's body gives ATen's bits; views always do."""
    value = node.outputs[0]
    if not callable(lowered) or value is None:
        return True
    return rounds_like_eager(lowered(axis_coordinates(make_axes("i", _tensor_type(value).shape))))


def _has_strides(place: Stored, kind: TensorType, start: Coordinate) -> bool:
    """Whether the place's addresses are those of the type's strides, counted from `start`."""
    here = axis_coordinates(make_axes("i", kind.shape))
    assert place.index is not None
    reached = address(place.index(here), place.root.stride, place.root.offset)
    return reached == plus(address(here, kind.stride, 0), start)


def _is_cheap(scalar: Scalar) -> bool:
    """Whether a scalar needs no memory and little work: positions, masks, constants."""
    return all(
        not isinstance(node, (Load, Reduce, InRange)) and count < 24
        for count, node in enumerate(walk(scalar))
    )


@functools.cache
def _is_view(op: torch._ops.OpOverload) -> bool:
    """Whether the result is a view of an argument, by the schema."""
    return any(
        argument.alias_info is not None and not argument.alias_info.is_write
        for argument in op._schema.arguments
    )


@functools.cache
def copying_form(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator itself, or for one whose result is a view of an argument, its copying twin: a
    buffer has memory of its own."""
    namespace, name = op._schema.name.split("::")
    twin = getattr(getattr(torch.ops, namespace), f"{name}_copy", None) if _is_view(op) else None
    return op if twin is None else getattr(twin, op._overloadname, op)


def _tensor_type(value: Value) -> TensorType:
    if isinstance(value.type, ScalarType):
        dtype = SCALAR_DTYPES[value.type.python_type]
        return TensorType(dtype, (), (), torch.device("cpu"))
    return value.type


def _dtype_of(value: Value) -> torch.dtype:
    if isinstance(value.type, ScalarType):
        return SCALAR_DTYPES[value.type.python_type]
    return value.type.dtype


def _is_number(value: Value) -> bool:
    return isinstance(value.type, ScalarType)


def _is_float(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.python_type is float


def _used_values(graph: Graph) -> set[Value | None]:
    """What results, mutations and nodes read; views that nothing reads count for nothing."""
    used: set[Value | None] = {
        output.value if output.alias is None else output.alias.base for output in graph.outputs
    }
    used.update(mutation.value for mutation in graph.mutations)
    for node in reversed(graph.nodes):
        if _is_view(node.op) and not used.intersection(node.outputs):
            continue
        used.update(operands(node))
    return used
