"""Items of tensors at symbolic integers: `x[i]` and `x[:, i]` are `select`, of any `i` in range.

C++ asks an index for its number, which would make each one another program. So are tensors that
hold one integer, where `capture_scalar_outputs` is set.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS
from braze.capture.tensors.data_dependent_scalars import read_number, reads_number
from braze.compat.private_names import pytree
from braze.compat.torch.aten import aten
from braze.shapes.symbolic import ProgramInt

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def tensor_item(interpreter: Interpreter, tensor: object, key: object) -> object:
    """`tensor[key]`."""
    if interpreter.index_modes:
        lookup = _lookup(interpreter, tensor, key)
        if lookup is not None:
            return leaf_call(interpreter, aten.index.Tensor, (tensor, lookup), {})
    key = _with_indices(interpreter, _with_numbers(interpreter, key))
    dims = _symbolic_dims(tensor, key)
    if dims:
        tensor, key = _selected(interpreter, tensor, dims, key), _without_symbols(key)
    if dims and not key:
        return tensor
    return leaf_call(interpreter, operator.getitem, (tensor, key), {})


def store_tensor_item(interpreter: Interpreter, tensor: object, key: object, value: object) -> None:
    """`tensor[key] = value`."""
    key = _with_indices(interpreter, _with_numbers(interpreter, key))
    dims = _symbolic_dims(tensor, key)
    if dims:
        tensor, key = _selected(interpreter, tensor, dims, key), _without_symbols(key) or ...
    leaf_call(interpreter, operator.setitem, (tensor, key, value), {})


def _lookup(interpreter: Interpreter, tensor: Any, key: object) -> list[object] | None:
    """The tensors that a key consists of, integers among them; None if it has other parts."""
    parts = pytree.tree_leaves(key)
    if not parts or not all(
        type(part) in TENSORS or type(part) in _INTEGER_TYPES for part in parts
    ):
        return None
    options = {"dtype": torch.int64, "device": tensor.device}
    return [
        part if type(part) in TENSORS else leaf_call(interpreter, torch.tensor, (part,), options)
        for part in parts
    ]


def _with_indices(interpreter: Interpreter, key: object) -> object:
    """The key with tensors in place of lists among whose integers are symbols: C++ makes such of
    lists, and asks for the numbers."""
    if type(key) is tuple:
        parts = tuple([_with_indices(interpreter, part) for part in key])
        return key if all(map(operator.is_, parts, key)) else parts
    kinds = set(map(type, key)) if type(key) is list else ()
    has_symbols = ProgramInt in kinds and _INTEGER_TYPES.issuperset(kinds)
    return interpreter.call(torch.tensor, key) if has_symbols else key


_INTEGER_TYPES = frozenset({int, ProgramInt})


def _with_numbers(interpreter: Interpreter, key: Any) -> object:
    """The key with the integers that its tensors without dimensions hold, as eager reads them,
    where the user asked for numbers in the graph."""
    if not interpreter.tracer.gives_integers:
        return key
    if type(key) is tuple:
        return tuple([_with_numbers(interpreter, part) for part in key])
    if type(key) is slice:
        return slice(*[_with_numbers(interpreter, n) for n in (key.start, key.stop, key.step)])
    if type(key) in TENSORS and not key.dim() and key.dtype in _INTEGERS:
        return read_number(interpreter, int, key) if reads_number(interpreter, int, key) else key
    return key


# Of `bool` and `uint8`, an index is a mask.
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


def _symbolic_dims(tensor: Any, key: object) -> Sequence[int]:
    """The tensor's dimensions that the symbolic integers of a key are for; none where there are
    none, or the key has parts of another kind than tensors, slices and integers."""
    parts = key if type(key) is tuple else (key,)
    if ProgramInt not in map(type, parts) or sum(part is ... for part in parts) > 1:
        return ()
    taken = [_dims_taken(part) for part in parts]
    total = sum(count for count in taken if count is not None)
    if None in taken or total > tensor.dim():
        return ()
    dims, dim = [], 0
    for part, count in zip(parts, taken):
        if type(part) is ProgramInt:
            dims.append(dim)
        dim += tensor.dim() - total if part is ... else count or 0
    return dims


def _dims_taken(part: Any) -> int | None:
    """How many dimensions a part of a key is for; None where that is not known here."""
    if type(part) in (slice, int, ProgramInt):
        return 1
    if type(part) in TENSORS:
        return 1 if part.dtype in _INTEGERS else part.dim() or None
    return 0 if part is None or part is ... else None


def _selected(interpreter: Interpreter, tensor: object, dims: Sequence[int], key: object) -> object:
    """The view of one row for each symbolic integer: eager takes integers first, too."""
    parts = key if type(key) is tuple else (key,)
    numbers = [part for part in parts if type(part) is ProgramInt]
    for dim, number in zip(reversed(dims), reversed(numbers)):
        tensor = leaf_call(interpreter, torch.select, (tensor, dim, number), {})
    return tensor


def _without_symbols(key: object) -> tuple[object, ...]:
    parts = key if type(key) is tuple else (key,)
    return tuple([part for part in parts if type(part) is not ProgramInt])
