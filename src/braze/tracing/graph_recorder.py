"""Records nodes, their result types and writes; knows values only, no fake tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import with_data
from braze.frozen import frozen
from braze.ir.graphs.graph import Argument, Node, Value
from braze.ir.graphs.region import RegionOp
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import ScalarType, TensorType, ValueType
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, Step, is_detached
from braze.tracing.op_schema import OperatorKind, describe_op
from braze.tracing.shape_rules.infer import infer
from braze.tracing.shape_rules.strides import is_dense, memory_order, same_layout
from braze.tracing.shape_rules.views import view_stride
from braze.tracing.view_inverse import INVERSE_STEPS, scatter_strided

if TYPE_CHECKING:
    from braze.ir.graphs.custom_gradient import CustomGradient

_is_grad_enabled = torch.is_grad_enabled
# What becomes a node if it is alive at the end: building nodes at once would cost a third of the
# time of a trace. (op, args, kwargs, outputs, origin, grad_enabled)
Call: TypeAlias = tuple[
    Any, Sequence[Argument], dict[str, Argument], tuple[Value | None, ...], Origin, bool
]


@final
@frozen
class DataWrite:
    """A write through `x.data`. base: of the memory; before: what it held; calls: how many were
    recorded; step: of the program, at which it took `x.data`."""

    base: Place
    before: Value
    calls: int
    step: int


def node_of(call: Call) -> Node:
    """The node of a recorded call."""
    op, args, kwargs, outputs, origin, grad_enabled = call
    return Node(op, tuple(args), tuple(kwargs.items()), outputs, origin, grad_enabled)


class GraphRecorder:
    """Appends nodes. A value is never changed; a place (see `Place`) names its newest value."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.input_values: list[Value] = []
        self.origin: Origin = UNKNOWN
        self._numbers = itertools.count()
        self._continued: set[Value] = set()
        self._writes = 0
        # Memory whose newest value has a smaller number may not be written to.
        self.fence = 0
        # What memory held before the first write to it, while somebody asks.
        self.first_values: dict[Place, Value] | None = None
        self.data_writes: list[DataWrite] = []
        # Told of an input that is written to and has elements in common with another.
        self.refuse_shared_write: Callable[[Place], None] = lambda base: None
        # `Graph.used_once`.
        self.used_once: set[Value] = set()
        # From which call to which one a region was recorded, whose operators are not the trace's.
        self.regions: list[tuple[int, int]] = []

    @property
    def next_number(self) -> int:
        """Values made from now on have this number, or a larger one."""
        return next(self._numbers)

    @property
    def progress(self) -> tuple[int, int]:
        """How many calls and writes there have been: what two moments did not change, did nothing
        to tensors in between."""
        return len(self.calls), self._writes

    def new_value(self, type: ValueType) -> Value:
        """A value that no node makes: an input, a constant, or a number of another graph."""
        return Value(next(self._numbers), type)

    def emit(
        self, op: torch._ops.OpOverload, args: Sequence[Argument], kwargs: dict[str, Argument]
    ) -> Any:
        """Record a call on values; returns its results nested as the operator returns them."""
        types = infer(op, _types(args), {name: _type(a) for name, a in kwargs.items()})
        return self.emit_typed(op, args, kwargs, types)

    def emit_value(
        self, op: torch._ops.OpOverload, args: Sequence[Argument], kwargs: dict[str, Argument]
    ) -> Value:
        """`emit` of an operator that returns one tensor or number."""
        value: Value = self.emit(op, args, kwargs)
        return value

    def emit_typed(
        self,
        op: torch._ops.OpOverload | RegionOp | CustomGradient,
        args: Sequence[Argument],
        kwargs: dict[str, Argument],
        types: Any,
    ) -> Any:
        """Record a call whose result types are known."""
        numbers = self._numbers
        if type(types) is TensorType or type(types) is ScalarType:
            result: Any = Value(next(numbers), types)
            outputs: tuple[Value | None, ...] = (result,)
        elif types is None and not op._schema.returns:
            result, outputs = None, ()
        else:
            result = _values_for(types, numbers)
            outputs = tuple(_flatten(result))
        self.calls.append((op, args, kwargs, outputs, self.origin, _is_grad_enabled()))
        return result

    def maker(self, value: Value) -> Call | None:
        """The call that made a value; None of an input or a constant. Values are numbered in the
        order of the calls, so that it is found by halves."""
        calls = self.calls
        first, end = 0, len(calls)
        while first < end:
            middle = place = (first + end) // 2
            while place > first and not any(calls[place][3]):
                place -= 1  # what makes nothing has no number
            made = calls[place][3]
            if value in made:
                return calls[place]
            if any(made) and value.index < next(v.index for v in made if v is not None):
                end = place
            else:
                first = middle + 1
        return None

    # --- reading and writing places -----------------------------------------------------------

    def read(self, place: Place) -> Value:
        """What the place holds now."""
        base = place.base
        if base is None or place.version == base.version:
            return place.value
        assert place.parent is not None and place.step is not None
        place.value = self.apply(place.step, self.read(place.parent), place.type)
        place.version = base.version
        return place.value

    def has_new_history(self, base: Place) -> bool:
        """Whether what autograd sees of a base, behind writes that it did not see, began in this
        trace: it is not an input's own history."""
        history, index = base.history, base.input_index
        if history is None or history in self._continued:
            return False
        return index < 0 or history is not self.input_values[index]

    def read_with_gradient(self, place: Place) -> Value:
        """What the place holds, with the history that autograd sees: for reads that gradients
        flow through."""
        base = place.base or place
        if base.history is not None:
            is_new = self.has_new_history(base)
            base.tracked_write = base.tracked_write or is_new
            base.value = self.emit(with_data, (base.history, base.value), {})
            if not is_new:
                self._continued.add(base.value)
            base.history = None
            base.version += 1
        return self.read(place)

    def apply(self, step: Step, parent: Value, wanted: TensorType) -> Value:
        """The view `step` of a value, or its contents in other strides where memory forbids it."""
        if step.op in _SHAPE_VIEWS:
            return self.reshape(parent, wanted.shape)  # as a copy, if the strides need one
        result: Value = self.emit(step.op, (parent, *step.args), step.kwargs)
        return result

    def write(self, place: Place, value: Value) -> None:
        """Give the place (and so its base, and every view of it) new contents: a value of the
        same shape and dtype."""
        base = place.base or place
        if base.shares_memory:
            self.refuse_shared_write(base)
            raise Untraceable("a write to memory that another input, or a lazy conjugate, shares")
        if base.value.index < self.fence:
            raise Untraceable("a write to what existed before")
        if self.first_values is not None:
            self.first_values.setdefault(base, base.value)
        detached = is_detached(place)
        step = data_step(place) if detached else -1
        if step >= 0:
            self.data_writes.append(DataWrite(base, base.value, len(self.calls), step))
        tracked = torch.is_grad_enabled() and not detached
        if base.is_piece and step < 0:
            raise Untraceable("a write to one of several views that one call made")
        forgets = base.forgets_itself or (base.forgets_views and self._has_views(base))
        if forgets and not tracked and step < 0:
            raise Untraceable("a write by which autograd loses the history of a leaf's views")
        if tracked:
            base.history = None
        elif base.history is None:
            base.history = base.value
        base.tracked_write = tracked
        if place.base is None:
            base.value = self.restride(value, base.type)
        else:
            base.value = self._scatter(place, value)
        base.version += 1
        self._writes += 1

    def _has_views(self, base: Place) -> bool:
        """Whether views of an input were made whose history autograd keeps."""
        original = self.input_values[base.input_index]
        return any(
            grad_enabled
            and (len(args) and args[0] is original)
            and (op is not aten.detach.default and describe_op(op).kind is OperatorKind.VIEW)
            for op, args, _, _, _, grad_enabled in self.calls
        )

    def _scatter(self, place: Place, value: Value) -> Value:
        assert place.parent is not None and place.step is not None
        parent = place.parent
        before = self.read(parent)
        inverse = INVERSE_STEPS.get(place.step.op)
        if inverse is None:
            after = self._scatter_strided(place, before, value)
        else:
            after = inverse(self, place.step, before, value)
        if parent.base is None:
            return self.restride(after, parent.type)
        return self._scatter(parent, after)

    def _scatter_strided(self, place: Place, before: Value, value: Value) -> Value:
        assert place.parent is not None
        start = place.offset - place.parent.offset
        return scatter_strided(self, place.parent.type, before, place.type, value, start)

    # --- shapes and strides ---------------------------------------------------------------------

    def reshape(self, value: Value, shape: tuple[object, ...]) -> Value:
        """`value.reshape(shape)`: a view where the strides allow it."""
        assert isinstance(value.type, TensorType)
        if value.type.shape == shape:
            return value
        result: Value
        try:
            result = self.emit(aten.view.default, (value, shape), {})
        except (RuntimeError, ValueError):
            copy = self.emit(
                aten.clone.default, (value,), {"memory_format": torch.contiguous_format}
            )
            result = self.emit(aten._unsafe_view.default, (copy, shape), {})
        return result

    def restride(self, value: Value, wanted: TensorType) -> Value:
        """The value in the wanted strides, copied if it has others; left as it is where the
        wanted memory has gaps."""
        found = value.type
        assert isinstance(found, TensorType)
        shape, stride = wanted.shape, wanted.stride
        if found.stride == stride:
            return value
        if not same_layout(shape, stride, found.stride):
            if not is_dense(shape, stride):
                return value
            value = self._copy_in_order(value, memory_order(shape, stride))
        return self._with_strides(value, wanted)

    def _copy_in_order(self, value: Value, order: tuple[object, ...]) -> Value:
        """A dense copy; order: its dimensions from the largest stride to the smallest."""
        contiguous: dict[str, Argument] = {"memory_format": torch.contiguous_format}
        if order == tuple(range(len(order))):
            return self.emit_value(aten.clone.default, (value,), contiguous)
        back = tuple(order.index(d) for d in range(len(order)))
        permuted = self.emit(aten.permute.default, (value, order), {})
        copy = self.emit(aten.clone.default, (permuted,), contiguous)
        return self.emit_value(aten.permute.default, (copy, back), {})

    def _with_strides(self, value: Value, wanted: TensorType) -> Value:
        """The same memory with strides that differ at most where no element is reached by them, in
        dimensions of size one: programs read those too, and kernels hand them on to results."""
        found = value.type
        assert isinstance(found, TensorType)
        shape, stride = wanted.shape, wanted.stride
        if found.stride == stride:
            return value
        if view_stride(shape, found.stride, shape) == stride:
            return self.emit_value(aten.view.default, (value, shape), {})
        return self.emit_value(aten.as_strided.default, (value, shape, stride), {})

    def convert(self, value: Value, wanted: TensorType) -> Value:
        """The value cast to a dtype and device, then broadcast to a shape: no more than there is
        comes from another device."""
        found = value.type
        assert isinstance(found, TensorType)
        if found.dtype is not wanted.dtype or found.device != wanted.device:
            target: dict[str, Argument] = {}
            if found.dtype is not wanted.dtype:
                target["dtype"] = wanted.dtype
            if found.device != wanted.device:
                target["device"] = wanted.device
            value = self.emit(aten._to_copy.default, (value,), target)
        if found.shape != wanted.shape:
            value = self.emit(aten.expand.default, (value, wanted.shape), {})
        return value


def data_step(place: Place) -> int:
    """The program's step that took `x.data`, on the way to the place; -1 if none did."""
    walk: Place | None = place
    while walk is not None and walk.data_step < 0:
        walk = walk.parent
    return -1 if walk is None else walk.data_step


_SHAPE_VIEWS = frozenset({aten.view.default, aten._reshape_alias.default})


_SOME_NUMBER = 0.5  # what shape rules get of a number that is not known


def _type(argument: Argument) -> object:
    if type(argument) is Value:
        return argument.type if type(argument.type) is TensorType else _SOME_NUMBER
    if isinstance(argument, (list, tuple)):
        return _types(argument)
    return argument


def _types(args: Sequence[Argument]) -> tuple[object, ...]:
    return tuple([_type(a) for a in args])


def _values_for(types: object, numbers: Any) -> object:
    if type(types) is TensorType:
        return Value(next(numbers), types)
    if isinstance(types, (tuple, list)):
        return tuple(_values_for(t, numbers) for t in types)
    return types


def _flatten(result: object) -> list[Value | None]:
    if isinstance(result, tuple):
        return [value for r in result for value in _flatten(r)]
    return [result] if result is None or type(result) is Value else []
