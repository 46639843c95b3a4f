"""Fake arrays for NumPy's arrays: a tensor's fake array for the values, and a real array for the
rest.

    y = np.sum(x * 2, axis=0)     x  tensor %0 beside an array of zeros, like the program's
                                  y  tensor %2 beside what NumPy gives for that array

Shape, data type, strides, whether the result is a scalar and which memory it is a view of are
NumPy's own answers, for the arrays of zeros; the graph computes the values. Where the tensor is
not such a one, or NumPy raises, the graph breaks, and NumPy does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.capture.arrays.fake_array import FakeArray, memory_of, refusal
from braze.capture.calls.torch_calls import leaf_call
from braze.compat.numpy.interface import (
    ARRAY,
    SCALARS,
    TENSOR_DTYPES,
    array_facts,
    is_traceable,
    numpy,
    tensor_of_array,
)
from braze.compat.torch.ambient_state import call_untraced
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ArrayMemorySource, Source
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# (the engine, what NumPy gives, arguments, keywords) -> tensors in the form of that
ArrayFunction: TypeAlias = Callable[["Arrays", Any, tuple[Any, ...], dict[str, Any]], Any]
# By the name of a function (`sum`, `linalg.norm`), which methods of arrays share.
ARRAY_FUNCTIONS: dict[str, ArrayFunction] = {}


def computes(*names: str) -> Callable[[ArrayFunction], ArrayFunction]:
    """Register what computes the tensors of functions of NumPy's."""

    def register(function: ArrayFunction) -> ArrayFunction:
        for name in names:
            if name in ARRAY_FUNCTIONS:
                raise RuntimeError(f"two implementations of numpy.{name}")
            ARRAY_FUNCTIONS[name] = function
        return function

    return register


@final
class Arrays:
    """The arrays of one attempt to capture a frame.

    traces: whether NumPy code is traced at all. in_use: whether there are any arrays.
    device: where constants are made. call: what calls do (`array_calls.py`).
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        options = interpreter.request.options
        self.traces = options is None or bool(options.trace_numpy)
        self.in_use = False
        self.device = torch.device("cpu")
        self._known: dict[int, tuple[Any, FakeArray]] = {}
        self.call: Any = None
        self.operator: Any = None

    def release(self) -> None:
        """Let go of the fake arrays, and of what holds this."""
        self._known.clear()
        self.call = self.operator = None

    # --- taking in -------------------------------------------------------------------------------

    def wrap_value(self, array: object, source: Source) -> FakeArray | None:
        """The fake array of an array from outside; None for one that no tensor can share."""
        if not self.traces or not is_traceable(array):
            return None
        guard_context = self.interpreter.guard_context
        known = self._known.get(id(array))
        if known is not None:
            first = guard_context.known[id(known[1])][1]
            if first != source:
                guard_context.guard(source, GuardKind.SAME_OBJECT, first)
            return known[1]
        guard_context.guard(source, GuardKind.ARRAY_MATCH, array_facts(array))
        real = call_untraced(tensor_of_array, (array,), {})
        memory = ArrayMemorySource(source)
        tensor = guard_context.tracer.add_input(real)
        guard_context.input_sources.append(memory)
        guard_context.fakes[id(real)] = tensor
        guard_context.known[id(real)] = (real, memory)
        guard_context.known[id(tensor)] = (tensor, memory)
        guard_context.give_class(tensor, torch.Tensor)
        found = self.wrap(tensor, _zeros_like(array))
        guard_context.known[id(found)] = (found, source)
        self._known[id(array)] = (array, found)
        return found

    def wrap(self, tensor: object, like: object, base: object = None) -> FakeArray:
        """The fake array with the values of a tensor's."""
        if not self.in_use:  # NumPy may be told to raise where a graph gives infinities
            self.in_use = True
            asked = numpy.geterr, (), numpy.geterr()
            self.interpreter.guard_context.guard(None, GuardKind.ANSWER, asked)
        made = FakeArray(self, tensor, like, base)
        self.interpreter.guard_context.keep(made)
        return made

    def of_tensor(self, tensor: Any) -> FakeArray:
        """The array that shares the memory of a tensor: `tensor.numpy()`."""
        if tensor.device.type != "cpu":
            raise refusal(f"an array of a tensor on {tensor.device}")
        return self.wrapped(tensor)

    def wrapped(self, tensor: Any) -> FakeArray:
        """An array where the tensor is; gradients flow through it."""
        if not self.traces:
            raise refusal("trace_numpy=False")
        dtypes = [found for found, dtype in TENSOR_DTYPES.items() if dtype is tensor.dtype]
        if not dtypes or tensor.layout is not torch.strided:
            raise refusal(f"an array of a {tensor.dtype} tensor")
        if tensor.device.type != "cpu":
            self.device = tensor.device
        if tensor.is_conj() or tensor.is_neg():
            raise refusal("an array of a tensor that is lazily conjugated or negated")
        size = dtypes[0].itemsize
        shape = tuple([int(n) for n in tensor.shape])
        strides = tuple([int(n) * size for n in tensor.stride()])
        alias = self.leaf(torch.Tensor.view_as, tensor, tensor)
        return self.wrap(alias, _zeros(dtypes[0], shape, strides))

    # --- use -------------------------------------------------------------------------------------

    def leaf(self, function: object, *args: object, **kwargs: object) -> Any:
        """A call of torch's on tensors, in the graph."""
        return leaf_call(self.interpreter, function, args, kwargs)

    def tensor(self, array: FakeArray) -> Any:
        """The values of an array, to be read."""
        base = array.base_array
        if base is not None and memory_of(base._tensor).version != array.version:
            raise refusal("a reversed view whose memory was written to since")
        return array._tensor

    def written(self, array: FakeArray) -> Any:
        """The tensor of an array that is written to."""
        if array.is_scalar or array.base_array is not None:
            raise refusal("writing to a reversed view")
        if not array.like.flags.writeable:
            raise refusal("writing to a read-only array")
        return array._tensor

    def as_tensor(self, array: FakeArray, copies: bool, options: dict[str, object]) -> object:
        """`torch.tensor` and `torch.as_tensor` of an array; options: further arguments."""
        if options.keys() - {"dtype"} or torch.get_default_device().type != "cpu":
            raise refusal("a tensor of an array elsewhere")
        if not array.is_scalar and not copies and not array.like.flags.writeable:
            raise refusal("a tensor of a read-only array")
        tensor = self.tensor(array)
        if array.base_array is not None:
            raise refusal("a tensor of a reversed view")
        if options.get("dtype") not in (None, tensor.dtype):
            return self.leaf(torch.Tensor.to, tensor, options["dtype"], copy=True)
        if copies or array.is_scalar:
            return self.leaf(torch.clone, tensor, memory_format=torch.contiguous_format)
        return self.leaf(torch.Tensor.view_as, tensor, tensor)

    def full(self, value: object, dtype: object, shape: tuple[int, ...] = ()) -> Any:
        """A number as a tensor."""
        return self.leaf(torch.full, shape, value, dtype=dtype, device=self.device)

    def constant(self, value: Any) -> FakeArray:
        """What NumPy computed from constants alone, of the graph."""
        if (
            type(value) is not ARRAY
            or value.dtype not in TENSOR_DTYPES
            or not value.flags.writeable
        ):
            raise refusal(f"a constant of {type(value).__qualname__}")
        fitting = numpy.array(value, order="C", copy=True)
        # It is the frame's own memory: the constant must never change.
        tensor = self.leaf(torch.clone, self._constant_tensor(fitting))
        return self.wrap(in_layout_of(self, tensor, value), value)

    def _constant_tensor(self, value: Any) -> object:
        dtype = TENSOR_DTYPES[value.dtype]
        is_uniform = value.size and value.tobytes() == value.flat[0].tobytes() * value.size
        if is_uniform and value.dtype.kind != "c":
            return self.full(value.flat[0].item(), dtype, value.shape)
        held = call_untraced(torch.from_numpy, (value,), {})
        constant = self.interpreter.tracer.add_constant(held)
        return self.leaf(torch.Tensor.to, constant, self.device)

    # --- results ---------------------------------------------------------------------------------

    def matched(self, name: str, found: Any, tensors: Any, operands: list[FakeArray]) -> object:
        """The fake arrays of a call's results: `found` is what NumPy gave for the operands'
        likes."""
        cls = type(found)
        if cls is tuple or cls is list or issubclass(cls, tuple):
            if type(tensors) not in (tuple, list) or len(tensors) != len(found):
                raise refusal(f"{name}: the form of its result")
            items = [self.matched(name, f, t, operands) for f, t in zip(found, tensors)]
            return cls(items) if cls in (tuple, list) else cls(*items)
        if cls is not ARRAY and cls not in SCALARS:
            raise refusal(f"{name} gives a {cls.__qualname__}")
        for operand in operands:
            if found is operand.like and cls is ARRAY:
                return operand
        return self._matched_array(name, found, tensors, operands)

    def _matched_array(
        self, name: str, found: Any, tensor: object, operands: list[FakeArray]
    ) -> FakeArray:
        if type(tensor) is not TracedTensor:
            raise refusal(f"{name}: the form of its result")
        if tensor.dtype is not TENSOR_DTYPES.get(found.dtype) or tensor.shape != found.shape:
            raise refusal(f"{name}: {found.dtype} of {found.shape}")
        if cls_is_array := type(found) is ARRAY:
            for operand in operands:
                if not operand.is_scalar and numpy.may_share_memory(found, operand.like):
                    return self._matched_view(name, found, tensor, operand)
        if tensor.is_conj() or tensor.is_neg():
            tensor = self.leaf(torch.clone, self.leaf(torch.resolve_neg, tensor))
            tensor = self.leaf(torch.resolve_conj, tensor)
        memory = memory_of(tensor)
        if any(memory_of(operand._tensor) is memory for operand in operands):
            tensor = self.leaf(torch.clone, tensor)
        return self.wrap(in_layout_of(self, tensor, found) if cls_is_array else tensor, found)

    def _matched_view(
        self, name: str, found: Any, tensor: TracedTensor, operand: FakeArray
    ) -> FakeArray:
        size = found.itemsize
        base = operand if operand.base_array is None else operand.base_array
        shares = memory_of(tensor) is memory_of(operand._tensor)
        strides = tuple([int(n) * size for n in tensor.stride()])
        if shares and operand.base_array is None and same_strides(found, strides):
            return self.wrap(tensor, found)
        if shares:
            tensor = self.leaf(torch.clone, tensor)
        return self.wrap(tensor, found, base)


def same_strides(array: Any, strides: tuple[int, ...]) -> bool:
    """Whether an array has these strides, where it has more than one element."""
    pairs = zip(array.shape, array.strides, strides, strict=True)
    return not array.size or all(own == other for count, own, other in pairs if count > 1)


def in_layout_of(arrays: Arrays, tensor: Any, found: Any) -> object:
    """A new tensor, its elements in memory in the order of an array's."""
    size = found.itemsize
    if same_strides(found, tuple([int(n) * size for n in tensor.stride()])):
        return tensor
    order = sorted(range(found.ndim), key=lambda dim: (-found.strides[dim], dim))
    back = [order.index(dim) for dim in range(found.ndim)]
    turned = arrays.leaf(torch.Tensor.permute, tensor, order)
    dense = arrays.leaf(torch.clone, turned, memory_format=torch.contiguous_format)
    laid = arrays.leaf(torch.Tensor.permute, dense, back)
    if not same_strides(found, tuple([int(n) * size for n in laid.stride()])):
        raise refusal("an array with gaps in its memory")
    return laid


def _zeros_like(array: Any) -> object:
    made = _zeros(array.dtype, array.shape, array.strides)
    if not array.flags.writeable:
        made.setflags(write=False)
    return made


def _zeros(dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """An array of its own with these strides, in bytes."""
    steps = [(count - 1) * stride for count, stride in zip(shape, strides)]
    length = 0 if 0 in shape else sum(steps) // dtype.itemsize + 1
    return numpy.ndarray(shape, dtype, numpy.zeros(length, dtype), 0, strides)
