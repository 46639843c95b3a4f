"""`torch.tensor` of numbers some of which are symbols: operators of the graph compute it.

torch.tensor([n, 2])      stack([full([], s0), full([], 2)])
torch.tensor([0.5, lr])   stack([full([], 0.5), %lr])
torch.tensor([a[0], a[2]])  stack([select(%a, 0, 0), select(%a, 0, 2)])    # of an array `a`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call, unnoted_call
from braze.compat.torch.ambient_state import call_untraced
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import SymbolicFloat, number_value

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Integers of more are constants: each would be an operator, and a guard on its range.
_LONG = 64
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16})
# PyTorch's classes for one dtype, on the CPU.
LEGACY_DTYPES: dict[type, torch.dtype] = {
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.LongTensor: torch.int64,
}
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _tensor_of(make: object) -> None:
    @answers(make)
    def apply(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        given = dict(zip(("data", "dtype", "device"), args)) | kwargs
        data, asks = given.pop("data", None), given.pop("requires_grad", False)
        if type(data) is FakeArray:
            if asks:
                raise refusal("a tensor of an array that requires gradients")
            return interpreter.arrays.as_tensor(data, make is torch.tensor, given)
        is_row = type(data) in (list, tuple, torch.Size)
        numbers = list(interpreter.side_effects.contents(data)) if is_row else [data]
        kinds = set(map(type, numbers))
        if is_row and FakeArray in kinds and not asks:
            return _of_scalars(interpreter, numbers, given)
        changing = kinds & {SymbolicFloat, ProgramInt}
        if not changing or asks or not kinds <= {float, int, SymbolicFloat, ProgramInt}:
            return leaf_call(interpreter, make, args, kwargs)
        if given.pop("pin_memory", False) or not given.keys() <= {"dtype", "device"}:
            return leaf_call(interpreter, make, args, kwargs)
        wanted: dict[str, Any]
        whole = not kinds & {float, SymbolicFloat}
        wanted = {
            "dtype": given.get("dtype") or (torch.int64 if whole else torch.get_default_dtype()),
            "device": given.get("device") or torch.get_default_device(),
        }
        if SymbolicFloat in kinds and wanted["dtype"] not in _WHOLE:
            return _of_floats(interpreter, numbers, is_row, wanted)
        is_long = len(numbers) > _LONG
        if SymbolicFloat in kinds or is_long or not _fit(numbers, wanted["dtype"], whole):
            known = [interpreter.native(_settled, number) for number in numbers]
            items = type(data)(known) if is_row else known[0]
            return leaf_call(interpreter, make, (items,), given)
        items = [leaf_call(interpreter, torch.full, ((), n), wanted) for n in numbers]
        return leaf_call(interpreter, torch.stack, (items,), {}) if is_row else items[0]


def holds_scalars(data: Any) -> bool:
    """Whether a list holds a number of NumPy's that the graph computes."""
    return type(data) in (list, tuple) and FakeArray in map(type, data)


def _of_scalars(interpreter: Interpreter, items: list[object], given: dict[str, object]) -> object:
    """A row of NumPy's numbers, and Python's."""
    if given.keys() - {"dtype"} or torch.get_default_device().type != "cpu":
        raise refusal("a tensor of NumPy's numbers elsewhere")
    if not all(type(n) in (int, float, bool) or _is_scalar(n) for n in items):
        raise refusal("a tensor of a list of arrays")
    examples = [n.like if type(n) is FakeArray else n for n in items]
    asked: torch.dtype = call_untraced(torch.tensor, (examples,), given).dtype
    dtype, arrays = asked, interpreter.arrays
    own = [arrays.tensor(n).dtype if type(n) is FakeArray else dtype for n in items]
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    if is_whole and any(kind is not dtype for kind in own):  # eager looks at the range of values
        raise refusal(f"a tensor of {dtype} of a list of other numbers")
    tensors = [arrays.tensor(n) if type(n) is FakeArray else arrays.full(n, dtype) for n in items]
    same = [t if t.dtype is dtype else arrays.leaf(torch.Tensor.to, t, dtype) for t in tensors]
    return arrays.leaf(torch.stack, same)


def _is_scalar(number: object) -> bool:
    return type(number) is FakeArray and number.is_scalar


def _settled(number: object) -> object:
    """The number that a symbol is: its dtype may not hold another one, and C++ that makes tensors
    takes no more than 32 bits of a symbol."""
    if type(number) is SymbolicFloat:
        return float(number)
    return int(number) if type(number) is ProgramInt else number


def _fit(numbers: list[Any], dtype: torch.dtype, whole: bool) -> bool:
    """Whether no number is beyond the type, which may become a guard."""
    if dtype is torch.int32 and whole:
        ends = torch.iinfo(dtype)
        return all(ends.min <= n and n <= ends.max for n in numbers)
    return dtype in _WIDE or (dtype is torch.int64 and whole)


def _of_floats(
    interpreter: Interpreter, numbers: list[object], is_row: bool, wanted: dict[str, object]
) -> object:
    tracer = interpreter.tracer
    if ProgramInt in map(type, numbers):
        numbers = [interpreter.call(float, n) if type(n) is ProgramInt else n for n in numbers]
    items = [tracer.fake_for(number_value(tracer, number)) for number in numbers]
    whole = unnoted_call(interpreter, torch.stack, (items,), {}) if is_row else items[0]
    plain = unnoted_call(interpreter, torch.Tensor.detach, (whole,), {})  # a number's history
    return unnoted_call(interpreter, torch.Tensor.to, (plain,), {**wanted, "copy": True})


_tensor_of(torch.tensor)
_tensor_of(torch.as_tensor)
