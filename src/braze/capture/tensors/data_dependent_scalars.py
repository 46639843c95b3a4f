"""Numbers of tensors that the program reads, as symbols, and what it promises about them.

n = x.argmax().item()           u0, where `capture_scalar_outputs` is set
torch._check(n < 8)             u0 <= 7 from here on, checked when the program runs
assert n > 0                    the same
if n > 3: ...                   a graph break
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS
from braze.capture.tensors.torch_check import promise
from braze.compat.torch.torch_check import ASSERTIONS, CHECKS, SIZE_CHECKS
from braze.shapes.data_symbols import SymbolicTruth
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.size_constants import known_size

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_MOST_WHOLE = 1 << 53  # below it each whole number is a float
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


def reads_number(interpreter: Interpreter, cls: type, value: Any) -> bool:
    """Whether `cls(value)`, or `value.item()`, is a number that becomes a symbol."""
    tracer = interpreter.tracer
    if type(value) not in TENSORS or interpreter.transforms:
        return False
    if cls is int and known_size(tracer, value) is not None:
        return True
    if not tracer.gives_integers:
        return False
    one = all(type(n) is int and n == 1 for n in value.shape)
    if not one or tracer.known_data(value) is not None:
        return False
    if cls is int:
        return value.dtype in _INTEGERS or value.dtype in _FLOATS
    return cls is float and value.dtype in _INTEGERS


def read_number(interpreter: Interpreter, cls: type, tensor: Any) -> Any:
    """`int(tensor)` or `float(tensor)`."""
    wanted = torch.int64 if cls is int else torch.float64
    if (cls is int) is (tensor.dtype in _FLOATS):
        tensor = leaf_call(interpreter, torch.Tensor.to, (tensor, wanted), {})
    return interpreter.call(torch.Tensor.item, tensor)


def read_whole_number(interpreter: Interpreter, tensor: object) -> object:
    """`int(tensor.item())` of a float. Of NaN, infinities and what 64 bits do not hold eager raises
    or counts further: checked when the program runs."""
    number = read_number(interpreter, int, tensor)
    for holds in (number > -_MOST_WHOLE, number < _MOST_WHOLE):
        if type(holds) is SymbolicTruth:
            promise(interpreter, holds)
    return number


@answers(torch.Tensor.tolist)
def to_list(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Of integers, symbols, each read by itself: where the user asked for numbers, and for few of
    them where no break is allowed."""
    tensor = args[0]
    if kwargs or len(args) > 1 or type(tensor) not in TENSORS or not _are_read(interpreter, tensor):
        return leaf_call(interpreter, torch.Tensor.tolist, args, kwargs)
    return _numbers_of(interpreter, tensor)


def _numbers_of(interpreter: Interpreter, tensor: Any) -> Any:
    if not tensor.dim():
        return interpreter.call(torch.Tensor.item, tensor)
    rows = leaf_call(interpreter, torch.Tensor.unbind, (tensor,), {})
    return [_numbers_of(interpreter, row) for row in rows]


_MOST = 1024  # each is a node, a symbol and a result of the graph


def _are_read(interpreter: Interpreter, tensor: Any) -> bool:
    tracer = interpreter.tracer
    if not tracer.gives_integers or interpreter.transforms or tracer.known_data(tensor) is not None:
        return False
    if tensor.dtype not in _INTEGERS or not all(type(size) is int for size in tensor.shape):
        return False
    return bool(tensor.numel() <= _MOST)


# --- promises ------------------------------------------------------------------------------------


def _check_of(function: Any, name: str) -> None:
    @answers(function)
    def check(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        condition = args[0] if args else kwargs.get(name)
        if condition is True:
            return None
        if type(condition) is SymbolicTruth and promise(interpreter, condition):
            return None
        if type(condition) is SymbolicTruth:
            message = (*args[1:], *[v for key, v in kwargs.items() if key != name])
            return interpreter.call_python(function, (False, *message), {})
        return interpreter.call_python(function, args, kwargs)


def _size_check_of(function: Any) -> None:
    @answers(function)
    def check(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        number = args[0] if args else kwargs.get("i")
        if type(number) is not ProgramInt:
            return interpreter.call_python(function, args, kwargs)
        most = kwargs.get("max")
        for holds in (number >= 0, True if most is None else number <= most):
            if type(holds) is SymbolicTruth:
                holds = promise(interpreter, holds)
            if not holds:
                return interpreter.call_python(function, args, kwargs)
        return None


for _function in CHECKS:
    _check_of(_function, "cond")
for _function in ASSERTIONS:
    _check_of(_function, "condition")
for _function in SIZE_CHECKS:
    _size_check_of(_function)
