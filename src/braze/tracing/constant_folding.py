"""Constant propagation: values of fake tensors that depend on no input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from braze.ir.graphs.graph import Value
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType
from braze.shapes.expr import Expr
from braze.tracing.graph_recorder import Call, GraphRecorder

_MOST_ELEMENTS = 64
_Maker: TypeAlias = Callable[[Value], "Call | None"]


def known_data(
    recorder: GraphRecorder,
    constants: dict[Value, torch.Tensor],
    value: Value,
    most: int | None = None,
) -> torch.Tensor | None:
    """The contents of a small CPU value whose operators read nothing but constants, else None.
    most: of that many elements, on any device."""
    return evaluated(value, constants, recorder.maker, most)


def evaluated(
    value: Value,
    known: dict[Value, torch.Tensor],
    maker: _Maker,
    most: int | None,
) -> torch.Tensor | None:
    """The same for values of any program. known: the data of constants, and of what was evaluated;
    maker: the call that makes a value."""
    return _evaluate(value, known, maker, most)


# --- private ---------------------------------------------------------------------------------


def _evaluate(
    value: Value,
    known: dict[Value, torch.Tensor],
    maker: _Maker,
    most: int | None,
) -> torch.Tensor | None:
    if value in known:
        return known[value]
    call = maker(value) if _is_small(value, most) else None
    if call is None:
        return None
    op, args, kwargs, outputs = call[:4]
    if has_effects(op):
        return None
    try:
        given = [_bind(argument, known, maker, most) for argument in args]
        named = {name: _bind(argument, known, maker, most) for name, argument in kwargs.items()}
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
    argument: object, known: dict[Value, torch.Tensor], maker: _Maker, most: int | None
) -> object:
    if isinstance(argument, Value):
        found = _evaluate(argument, known, maker, most)
        if found is None:
            raise _Unknown
        return found
    if isinstance(argument, (tuple, list)):
        return [_bind(item, known, maker, most) for item in argument]
    if isinstance(argument, (torch.SymInt, torch.SymFloat, Expr)):
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
