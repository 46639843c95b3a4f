"""The data of stand-ins that depend on no input: `torch.tensor(3.0) * 2` has a value at capture."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir.graph import Value
from braze.ir.random_ops import is_random
from braze.ir.types import TensorType
from braze.standins.recorder import Call, Recorder

_MOST_ELEMENTS = 64


def known_data(
    recorder: Recorder,
    constants: dict[Value, torch.Tensor],
    value: Value,
    most: int | None = None,
) -> torch.Tensor | None:
    """The contents of a small CPU value whose operators read nothing but constants, else None.
    most: of that many elements, on any device."""
    makers = {made: call for call in recorder.calls for made in call[3] if made is not None}
    return _evaluate(value, constants, makers, most)


# --- private ---------------------------------------------------------------------------------


def _evaluate(
    value: Value,
    known: dict[Value, torch.Tensor],
    makers: dict[Value, Call],
    most: int | None,
) -> torch.Tensor | None:
    if value in known:
        return known[value]
    call = makers.get(value)
    if call is None or not _is_small(value, most):
        return None
    op, args, kwargs, outputs = call[:4]
    if is_random(op) or any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments):
        return None
    try:
        given = [_bind(argument, known, makers, most) for argument in args]
        named = {name: _bind(argument, known, makers, most) for name, argument in kwargs.items()}
    except _Unknown:
        return None
    result = op(*given, **named)
    results = result if isinstance(result, (tuple, list)) else [result]
    found: torch.Tensor = results[outputs.index(value)]
    known[value] = found
    return found


class _Unknown(Exception):
    pass


def _bind(
    argument: Any, known: dict[Value, torch.Tensor], makers: dict[Value, Call], most: int | None
) -> Any:
    if isinstance(argument, Value):
        found = _evaluate(argument, known, makers, most)
        if found is None:
            raise _Unknown
        return found
    if isinstance(argument, (tuple, list)):
        return [_bind(item, known, makers, most) for item in argument]
    if isinstance(argument, (torch.SymInt, torch.SymFloat)):
        raise _Unknown
    return argument


def _is_small(value: Value, most: int | None) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType) or (most is None and kind.device.type != "cpu"):
        return False
    total = 1
    for size in kind.shape:
        if not isinstance(size, int):
            return False
        total *= size
    return total <= (most or _MOST_ELEMENTS)
