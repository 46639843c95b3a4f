"""Tensors that no graph takes: what is guarded of one at which a frame breaks, so that arguments of
another kind are captured."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.frames.control_signals import BreakRequested
from braze.compat import private_names as private
from braze.compat.torch.dispatcher import TorchFunction, torch_function_of
from braze.ir.captured.source import LocalSource, Source

_off = private.disabled_torch_functions


def refused_tensor(real: torch.Tensor, source: Source, detail: str) -> BreakRequested:
    """The break at a tensor. Only a local variable's kind is guarded: what lies in an object could
    not be read again without asking the object."""
    found = BreakRequested("unsupported-tensor", f"{source}: {detail}")
    if type(source) is LocalSource:
        cls = type(real)
        # Where the program answers for the class, its other facts are not asked.
        facts = () if torch_function_of(cls) is TorchFunction.OWN else _facts(real)
        found.because = ((source, (is_of_kind, (cls, facts), True)),)
    return found


def check_strided(real: torch.Tensor, source: Source) -> None:
    """Break at a tensor that has no sizes and strides to ask for."""
    if real.layout is not torch.strided:
        raise refused_tensor(real, source, f"a tensor of layout {real.layout}")
    if real.is_nested or real.is_quantized:
        kind = "nested" if real.is_nested else "quantized"
        raise refused_tensor(real, source, f"a {kind} tensor")


def is_of_kind(value: object, cls: type, facts: tuple[object, ...]) -> bool:
    """Whether a value is refused as a tensor of this class was that had these facts."""
    return type(value) is cls and (not facts or _facts(value) == facts)


# --- private ---------------------------------------------------------------------------------


def _facts(tensor: Any) -> tuple[object, ...]:
    with _off():
        lazy = tensor.is_conj() or tensor.is_neg()
        return tensor.layout, tensor.is_quantized, tensor.is_nested, lazy, tensor._is_zerotensor()
