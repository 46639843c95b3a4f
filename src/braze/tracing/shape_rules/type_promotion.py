"""Type promotion: result dtype and device of operators on tensors and numbers."""

from __future__ import annotations

import torch

from braze.ir.types import TensorType

_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
    torch.bfloat16: torch.complex64,
}
REAL_OF = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def number_dtype(number: object) -> torch.dtype:
    """The dtype that a Python number has in promotion."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    default = torch.get_default_dtype()
    if isinstance(number, float):
        return default
    if isinstance(number, complex):
        return _COMPLEX_OF[default]
    raise TypeError(f"no number: {number!r}")


def promoted(operands: tuple[object, ...]) -> torch.dtype:
    """The dtype of `operands` (TensorType or numbers) together: sized tensors come before 0-dim
    ones, which come before numbers, unless the later have a higher kind."""
    first = operands[0]
    if type(first) is TensorType:
        dtype = first.dtype
        for other in operands:
            if type(other) is not TensorType or other.dtype is not dtype:
                break
        else:
            return dtype
    ranked: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if type(operand) is TensorType:
            level, dtype = (0 if operand.shape else 1), operand.dtype
        else:
            level, dtype = 2, number_dtype(operand)
        known = ranked[level]
        ranked[level] = dtype if known is None else torch.promote_types(known, dtype)
    found = _combine(ranked[0], _combine(ranked[1], ranked[2]))
    assert found is not None, operands
    return found


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return _COMPLEX_OF.get(higher, higher) if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def floating(dtype: torch.dtype) -> torch.dtype:
    """The dtype, or the default one in place of integers."""
    if dtype.is_floating_point or dtype.is_complex:
        return dtype
    return torch.get_default_dtype()


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype of absolute values."""
    return REAL_OF.get(dtype, dtype)


def common_device(operands: tuple[object, ...]) -> torch.device:
    """The device of the result; a 0-dim CPU tensor may stand beside any, and numbers alone make a
    tensor on the CPU. Raises as eager."""
    found: torch.device | None = None
    scalar: torch.device | None = None
    for operand in operands:
        if type(operand) is not TensorType:
            continue
        device = operand.device
        if device is found:
            continue
        if not operand.shape and device.type == "cpu":
            scalar = device
        elif found is None:
            found = device
        elif found != device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{found} and {device}!"
            )
    return found or scalar or torch.device("cpu")
