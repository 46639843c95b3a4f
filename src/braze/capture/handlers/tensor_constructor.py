"""`torch.tensor` of numbers some of which are symbols: operators of the graph compute it.

torch.tensor([n, 2])      stack([full([], s0), full([], 2)])
torch.tensor([0.5, lr])   stack([full([], 0.5), %lr])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call, unnoted_call
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import SymbolicFloat, number_value

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Integers of more are constants: each would be an operator, and a guard on its range.
_LONG = 64
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16})
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _tensor_of(make: Any) -> None:
    @answers(make)
    def apply(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("data", "dtype", "device"), args)) | kwargs
        data, asks = given.pop("data", None), given.pop("requires_grad", False)
        if type(data) is FakeArray:
            if asks:
                raise refusal("a tensor of an array that requires gradients")
            return interpreter.arrays.as_tensor(data, make is torch.tensor, given)
        is_row = type(data) in (list, tuple, torch.Size)
        numbers = list(interpreter.side_effects.contents(data)) if is_row else [data]
        kinds = set(map(type, numbers))
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


def _settled(number: Any) -> Any:
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
    interpreter: Interpreter, numbers: list[Any], is_row: bool, wanted: dict[str, Any]
) -> Any:
    tracer = interpreter.tracer
    if ProgramInt in map(type, numbers):
        numbers = [interpreter.call(float, n) if type(n) is ProgramInt else n for n in numbers]
    items = [tracer.fake_for(number_value(tracer, number)) for number in numbers]
    whole = unnoted_call(interpreter, torch.stack, (items,), {}) if is_row else items[0]
    plain = unnoted_call(interpreter, torch.Tensor.detach, (whole,), {})  # a number's history
    return unnoted_call(interpreter, torch.Tensor.to, (plain,), {**wanted, "copy": True})


_tensor_of(torch.tensor)
_tensor_of(torch.as_tensor)
