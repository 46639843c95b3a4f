"""Tracks which size a 0-dim integer tensor holds where it was computed from sizes.

    n = torch.div(x.size(1), 8, rounding_mode="trunc")     %1 = div(s1, 8, "trunc")
    x.view(-1, n)                                          asks %1 for its number: s1 // 8

Libraries divide sizes by `torch.div`, which gives a tensor. With numbers for sizes its contents are
known while the program is traced (`known_data`), with symbols they are an expression. Integers of
64 bits only; what rounds towards zero, of numbers that are never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import WithoutMode
from braze.ir.graphs.graph import Value
from braze.ir.types import TensorType
from braze.shapes.facts import Relation
from braze.shapes.symbolic import SymbolicSize
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.graph_recorder import GraphRecorder

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

_Rule: TypeAlias = Callable[..., Any]
_CPU = torch.device("cpu")


def known_size(tracer: Tracer, fake: object) -> SymbolicSize | None:
    """The symbolic integer that a fake tensor of one element on the CPU holds, where its operators
    read nothing but sizes and numbers; else None."""
    if tracer.facts is None or type(fake) is not TracedTensor:
        return None
    recorder = tracer.recorder
    literals = {constant.value: constant.tensor for constant in tracer.constants}
    with WithoutMode(tracer):
        found = _evaluate(recorder.read(fake.place), recorder, literals)
    return found if isinstance(found, SymbolicSize) else None


# --- private ---------------------------------------------------------------------------------


def _evaluate(value: Value, recorder: GraphRecorder, literals: dict[Value, torch.Tensor]) -> object:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype is not torch.int64 or kind.device != _CPU:
        return None
    if not all(type(n) is int and n == 1 for n in kind.shape):
        return None
    if value in literals:
        return literals[value].item()
    call = recorder.maker(value)
    if call is None:
        return None
    op, args, kwargs = call[:3]
    calculate = _RULES.get(op)
    if calculate is None:
        return None
    operands = [_evaluate(a, recorder, literals) if isinstance(a, Value) else a for a in args]
    if any(operand is None for operand in operands):
        return None
    return calculate(*operands, **kwargs)


def _same(number: object, *further: object, **options: object) -> object:
    return number if _is_integer(number) else None


def _full(shape: Sequence[object], number: object, **options: object) -> object:
    return _same(number)


def _added(left: object, right: Any, alpha: Any = 1) -> object:
    return left + alpha * right if _is_integer(left, right, alpha) else None


def _subtracted(left: object, right: Any, alpha: object = 1) -> object:
    return _added(left, -right, alpha)


def _multiplied(left: Any, right: Any) -> object:
    return left * right if _is_integer(left, right) else None


def _divided(left: Any, right: Any, rounding_mode: str | None = None) -> object:
    """Where both ways of rounding give the same."""
    if rounding_mode is None or not _is_integer(left, right):
        return None
    return left // right if _is_known(left, 0) and _is_known(right, 1) else None


def _floor_divided(left: object, right: object) -> object:
    return _divided(left, right, "floor")


def _remainder(left: Any, right: Any) -> object:
    if not _is_integer(left, right) or not _is_known(right, 1):
        return None
    return left % right


def _negated(number: Any) -> object:
    return -number


def _is_integer(*operands: object) -> bool:
    return all(type(n) is int or isinstance(n, SymbolicSize) for n in operands)


def _is_known(number: Any, least: int) -> bool:
    """Whether the number is never less, without asking anything of the sizes at hand."""
    if isinstance(number, SymbolicSize):
        return number.facts.follows(Relation(number.now() - least, ">=")) is True
    return bool(number >= least)


_RULES: dict[Any, _Rule] = {
    aten.full.default: _full,
    aten.scalar_tensor.default: _same,
    aten.clone.default: _same,
    aten._to_copy.default: _same,
    aten.view.default: _same,
    aten.unsqueeze.default: _same,
    aten.squeeze.default: _same,
    aten.add.Tensor: _added,
    aten.sub.Tensor: _subtracted,
    aten.mul.Tensor: _multiplied,
    aten.div.Tensor_mode: _divided,
    aten.floor_divide.default: _floor_divided,
    aten.remainder.Tensor: _remainder,
    aten.remainder.Scalar: _remainder,
    aten.neg.default: _negated,
}
