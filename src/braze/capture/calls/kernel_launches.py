"""Launches of a program's own Triton kernels: nodes of the graph.

    add_kernel[grid](x, y[1:], out, n, BLOCK=64)

Triton's `run` is answered here, of a `@triton.jit` function and of what `@triton.autotune` and
`@triton.heuristics` make of it. A grid that is a function is called while the frame is captured,
for each configuration that an autotuner may choose. A launch writes to memory as `x.data` does:
autograd does not see it, and versions do not count it. To which arguments it writes is read from
the kernel's source; where the source does not tell, all count as written.

The operator is given memory whole (`y`): kernels take addresses, and what they reach from a view is
for them to know. Two arguments in one piece of memory are one tensor of the operator.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import call_name, traced
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import NUMBERS
from braze.compat.torch.tensor_abi import DATA
from braze.compat.triton.kernels import LayerKind, TritonKernel, constant_of, describe, is_kernel
from braze.compat.triton.launch_operator import (
    ConstantArgument,
    LaunchArgument,
    LaunchForm,
    NumberArgument,
    TensorArgument,
    TupleArgument,
    launch_function,
    launch_operator,
)
from braze.compat.triton.written_parameters import written_parameters
from braze.ir.captured.frame import TorchCall
from braze.ir.captured.guard import GuardKind
from braze.shapes.symbolic import ProgramInt
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


WRAP_TRITON: Any = getattr(torch.library, "wrap_triton", None)


def call_launch(
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[None, None]:
    """`kernel.run(*args, grid=grid, warmup=False, **kwargs)`. Triton gives the machine code, which
    no graph has: the program gets None. Returned as by `dispatch.prepare`: no frame, and that."""
    launched, *given = args
    _guard_object(interpreter, launched)
    kernel = describe(launched)
    if kernel is None or kwargs.get("warmup") or "grid" not in kwargs:
        raise BreakRequested("unseen-callable", f"{call_name(function)} of a Triton kernel")
    if interpreter.transforms:
        raise _refused(kernel, "under a transform of torch.func")
    keywords = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
    grids, choices = _grids(interpreter, kernel, kwargs["grid"], tuple(given), keywords)
    arguments = _Arguments(interpreter, kernel)
    names = list(kernel.signature.parameters)
    if len(given) > len(names):
        raise _refused(kernel, f"with {len(given)} arguments")
    positional = tuple([arguments.described(n, value) for n, value in zip(names, given)])
    named = tuple([(name, arguments.described(name, v)) for name, v in keywords.items()])
    arguments.check_apart()
    memories = tuple([(name, is_written) for name, is_written, _ in arguments.memories.values()])
    rank = len(grids) // max(1, len(choices))
    launch = LaunchForm(kernel, positional, named, memories, choices, rank)
    _record(interpreter, launch, arguments, grids)
    return None, None


@answers(WRAP_TRITON)
def wrap_triton(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`torch.library.wrap_triton(kernel)`, which marks a kernel for compilers that look into
    operators: launches are seen as they are."""
    kernel = (*args, *kwargs.values())[0]
    if not is_kernel(kernel):
        raise ProgramRaised(_refusal_of(interpreter, kernel))
    return kernel


# --- private -------------------------------------------------------------------------------------


def _guard_object(interpreter: Interpreter, value: object) -> None:
    """The graph is of this object: a kernel, or what is compiled into one."""
    guard_context = interpreter.guard_context
    guard_context.guard_identity(value)
    source = guard_context.source_of(value)
    if source is not None:
        guard_context.guard(source, GuardKind.ID_MATCH, value)


def _refused(kernel: TritonKernel, problem: str) -> BreakRequested:
    return BreakRequested("triton-kernel", f"{kernel.name} {problem}")


def _refusal_of(interpreter: Interpreter, kernel: object) -> Exception:
    try:
        WRAP_TRITON(kernel)
    except Exception as error:
        return error
    raise BreakRequested("triton-kernel", f"torch.library.wrap_triton of a {type(kernel).__name__}")


def _grids(
    interpreter: Interpreter,
    kernel: TritonKernel,
    grid: object,
    given: tuple[object, ...],
    keywords: dict[str, object],
) -> tuple[tuple[object, ...], tuple[dict[str, object], ...]]:
    """The numbers of the grid; of each configuration where it is a function that may ask for one,
    and then what these set."""
    if not callable(grid):
        return _extent(interpreter, kernel, grid), ()
    parameters = {
        name: value.default
        for name, value in kernel.signature.parameters.items()
        if value.default is not value.empty
    }
    parameters |= {**dict(zip(kernel.signature.parameters, given)), **keywords}
    settings: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, parameters)]
    for layer in kernel.layers:
        if layer.kind is LayerKind.AUTOTUNE:
            settings = [({**c, **n}, {**p, **n}) for c, p in settings for n in layer.choices]
            continue
        for name, compute in layer.functions:
            for _, found in settings:
                interpreter.guard_context.source_of_function(compute)
                found[name] = interpreter.call(compute, dict(found))
    if len(settings) == 1:
        asked = _in_order(kernel, settings[0][1])
        return _extent(interpreter, kernel, interpreter.call(grid, asked)), ()
    extents = [
        _extent(interpreter, kernel, interpreter.call(grid, _in_order(kernel, p)))
        for _, p in settings
    ]
    rank = max(map(len, extents))
    filled = [(*extent, *[1] * (rank - len(extent))) for extent in extents]
    return tuple([n for extent in filled for n in extent]), tuple([c for c, _ in settings])


def _in_order(kernel: TritonKernel, parameters: dict[str, object]) -> dict[str, object]:
    """The parameters of the kernel alone, in its order, as Triton gives them to a grid."""
    names = kernel.signature.parameters
    return {name: constant_of(parameters[name]) for name in names if name in parameters}


def _extent(interpreter: Interpreter, kernel: TritonKernel, grid: object) -> tuple[object, ...]:
    numbers = interpreter.side_effects.contents(grid) if type(grid) is list else grid
    if not isinstance(numbers, (tuple, list)) or not 1 <= len(numbers) <= 3:
        raise _refused(kernel, f"with a grid of {type(grid).__name__}")
    numbers = tuple(map(constant_of, numbers))
    if not all(type(n) in (int, ProgramInt) for n in numbers):
        raise _refused(kernel, "with a grid of other things than integers")
    return numbers


@final
class _Arguments:
    """The arguments of a launch as they are described.

    memories: per piece of memory (name, whether it is written to, the tensor for the operator).
    tensors: those that the program passed, in order, with what is said of each.
    """

    def __init__(self, interpreter: Interpreter, kernel: TritonKernel) -> None:
        self.interpreter, self.kernel = interpreter, kernel
        self.written = written_parameters(kernel)
        self.memories: dict[Any, tuple[str, bool, Place]] = {}
        self.tensors: list[tuple[TracedTensor, TensorArgument]] = []
        self.numbers: list[Any] = []

    def described(self, name: str, value: Any, item: str = "") -> LaunchArgument:
        """An argument, by what the operator is given of it. name: of the parameter; item: where in
        a tuple it is."""
        cls = type(value)
        if cls is TracedTensor:
            return self._tensor(name, name + item, value)
        if isinstance(value, torch.Tensor):
            raise _refused(self.kernel, f"with a {cls.__name__} as {name}")
        is_parameter = name in self.kernel.signature.parameters
        if name in self.kernel.constants or not is_parameter:
            return ConstantArgument(self._constant(value))
        if cls is SymbolicFloat or cls is float:
            return self._number(name + item, value, True)
        if cls is ProgramInt or cls is int:
            return self._number(name + item, value, False)
        if isinstance(value, tuple) and cls in (tuple, torch.Size):
            items = [self.described(name, x, f"{item}_{n}") for n, x in enumerate(value)]
            return TupleArgument(tuple(items))
        return ConstantArgument(self._constant(value))

    def _number(self, name: str, value: Any, is_float: bool) -> NumberArgument:
        self.numbers.append(value)
        return NumberArgument(name, len(self.numbers) - 1, is_float)

    def _constant(self, value: Any) -> object:
        kind = NUMBERS.get(type(value))
        if kind is not None:
            return traced(kind, (value,), {})  # it is compiled into the kernel
        if type(value) in (tuple, list):
            return type(value)(map(self._constant, value))
        if not isinstance(value, (int, float, str, bool, type(None))):
            _guard_object(self.interpreter, value)
        return value

    def _tensor(self, parameter: str, name: str, tensor: TracedTensor) -> TensorArgument:
        place = tensor.place
        if place.given_at >= 0 or (place.base or place).is_lazy:
            raise _refused(self.kernel, f"with {name}, whose memory is another tensor's")
        base = place.base or place
        memory = base if base.type.dtype is place.type.dtype else place
        is_written = self.written is None or parameter in self.written
        known = self.memories.get(memory)
        self.memories[memory] = (
            known[0] if known else name,
            is_written or (known is not None and known[1]),
            memory,
        )
        number = list(self.memories).index(memory)
        is_whole = memory is place or (
            memory.type.shape == place.type.shape
            and memory.type.stride == place.type.stride
            and memory.offset == place.offset
        )
        found = TensorArgument(name, number, len(place.type.shape), is_whole)
        self.tensors.append((tensor, found))
        return found

    def check_apart(self) -> None:
        """Break where memory that is written to is given under two dtypes."""
        pieces = [(name, w, m.base or m) for name, w, m in self.memories.values()]
        for name, is_written, base in pieces:
            if is_written and [other for _, _, other in pieces].count(base) > 1:
                raise _refused(self.kernel, f"with {name}, and its memory as another dtype")

    def layout(self) -> tuple[object, ...]:
        """Sizes, strides and offset of each tensor within its memory."""
        found: list[Any] = []
        memories = list(self.memories)
        for tensor, argument in self.tensors:
            place, memory = tensor.place, memories[argument.memory]
            offset = 0 if argument.is_whole else place.offset - memory.offset
            found += [*place.type.shape, *place.type.stride, offset]
        return tuple(found)


def _record(
    interpreter: Interpreter, launch: LaunchForm, arguments: _Arguments, grid: tuple[Any, ...]
) -> None:
    """The operator's call, in the trace; and, for user backends, the launch on the program's
    tensors."""
    name = f"{launch.kernel.name}[grid]"
    origin = interpreter.tracer.origin = interpreter.origin(name)
    for tensor, _ in arguments.tensors:
        interpreter.tensor_names.name(tensor)
    noted = interpreter.tensor_names.noted
    given = noted([tensor for tensor, _ in arguments.tensors])
    with torch.no_grad():  # a call that autograd does not see
        memories = [
            _memory(interpreter, place, is_written)
            for _, is_written, place in arguments.memories.values()
        ]
        values = (*memories, *arguments.numbers, list(grid), list(arguments.layout()))
        traced(launch_operator(launch), values, {})
    numbers = noted(list(arguments.numbers))
    call = TorchCall(
        launch_function(launch),
        (given, numbers, noted(list(grid))),
        (),
        None,
        origin,
        *interpreter.state_of_call(),
    )
    interpreter.calls.append(call)


def _memory(interpreter: Interpreter, place: Place, is_written: bool) -> TracedTensor:
    """A tensor of a piece of memory that autograd knows nothing of."""
    fake = new_fake(place)
    if is_written:
        fake = traced(DATA.__get__, (fake,), {})
        fake.place.data_step = interpreter.outer_step
    return fake
