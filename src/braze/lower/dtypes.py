"""The dtype that eager computes a mixed operation in, where the result's dtype does not tell."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from braze.ir.graphs.graph import Value
from braze.ir.types import ScalarType, TensorType


def result_dtype(*operands: Value | bool | int | float) -> torch.dtype:
    """`torch.result_type` over graph values and Python numbers: tensors with dimensions rule,
    then those without, then numbers; a later one counts only by a higher kind."""
    dimensioned, single, numbers = [], [], []
    for operand in operands:
        if not isinstance(operand, Value) or not isinstance(operand.type, TensorType):
            numbers.append(_number_dtype(operand))
        elif operand.type.shape:
            dimensioned.append(operand.type.dtype)
        else:
            single.append(operand.type.dtype)
    groups = [_promoted(group) for group in (dimensioned, single, numbers) if group]
    result = groups[0]
    for dtype in groups[1:]:
        if _kind(dtype) > _kind(result):
            result = torch.promote_types(result, dtype) if _kind(result) == 0 else dtype
    return result


def _promoted(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    result: torch.dtype | None = None
    for dtype in dtypes:
        result = dtype if result is None else torch.promote_types(result, dtype)
    assert result is not None
    return result


def _number_dtype(operand: Value | bool | int | float) -> torch.dtype:
    python_type: type = type(operand)
    if isinstance(operand, Value):
        assert isinstance(operand.type, ScalarType)
        python_type = operand.type.python_type
    if python_type is bool:
        return torch.bool
    return torch.int64 if python_type is int else torch.get_default_dtype()


def _kind(dtype: torch.dtype) -> int:
    if dtype == torch.bool:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1
