"""Items of tensors at symbolic integers: `x[i]` and `x[:, i]` are `select`, of any `i` in range.

C++ asks an index for its number, which would make each one another program.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.leaf_calls import leaf_call
from braze.shapes.symbolic import ProgramInt


def tensor_item(interpreter: Any, tensor: Any, key: Any) -> Any:
    """`tensor[key]`."""
    places = _symbolic_places(tensor, key)
    if not places:
        return leaf_call(interpreter, operator.getitem, (tensor, key), {})
    return _selected(interpreter, tensor, key, places)


def store_tensor_item(interpreter: Any, tensor: Any, key: Any, value: Any) -> None:
    """`tensor[key] = value`."""
    places = _symbolic_places(tensor, key)
    if places:
        tensor, key = _selected(interpreter, tensor, key, places), ...
    leaf_call(interpreter, operator.setitem, (tensor, key, value), {})


def _symbolic_places(tensor: Any, key: Any) -> Sequence[int]:
    """Which dimensions of the result the symbolic integers of a key would be, were they slices;
    none where there are none, or the key has more than slices and integers."""
    if type(key) is ProgramInt:
        return (0,) if tensor.dim() else ()
    if type(key) is not tuple or ProgramInt not in map(type, key):
        return ()
    taking = sum(type(part) in _TAKING for part in key)
    others = all(type(part) in _TAKING or part is None or part is ... for part in key)
    if not others or taking > tensor.dim() or sum(part is ... for part in key) > 1:
        return ()
    places, dim = [], 0
    for part in key:
        if type(part) is ProgramInt:
            places.append(dim)
        if part is ...:
            dim += tensor.dim() - taking
        elif type(part) is not int:
            dim += 1
    return places


_TAKING = (slice, int, ProgramInt)


def _selected(interpreter: Any, tensor: Any, key: Any, places: Sequence[int]) -> Any:
    """The view of one row for each symbolic integer."""
    parts = key if type(key) is tuple else (key,)
    numbers = [part for part in parts if type(part) is ProgramInt]
    if len(parts) > 1:
        rest = tuple([slice(None) if type(part) is ProgramInt else part for part in parts])
        tensor = leaf_call(interpreter, operator.getitem, (tensor, rest), {})
    for place, number in zip(reversed(places), reversed(numbers)):
        tensor = leaf_call(interpreter, torch.select, (tensor, place, number), {})
    return tensor
