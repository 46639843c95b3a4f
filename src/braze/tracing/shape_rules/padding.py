"""Shape rules of padding by reflection, replication and wrapping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.compat.torch.aten import aten
from braze.shapes.demands import must_be_positive
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import Operand


@rule(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def _reflected(x: Operand, padding: Sequence[Any]) -> object:
    """Asks whether sizes are larger than what is reflected; the meta kernel says all else."""
    for dim, pair in enumerate(zip(padding[::2], padding[1::2]), start=1):
        if dim > len(x.shape) or not all(must_be_positive(x.shape[-dim] - n) for n in pair):
            break
    return NotImplemented
