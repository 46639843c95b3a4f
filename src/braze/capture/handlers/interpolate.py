"""`torch.nn.functional.interpolate` of symbolic sizes: C++ would compute the result's size with
numbers, so its size is computed here."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS
from braze.compat.torch.aten import aten
from braze.shapes.symbolic import ProgramInt

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_SIGNATURE = inspect.signature(torch.nn.functional.interpolate)
# By (mode, spatial dimensions): the operator, and whether it takes align_corners.
_OPERATORS: dict[tuple[str, int], tuple[Any, bool]] = {
    ("nearest", 1): (aten.upsample_nearest1d.default, False),
    ("nearest", 2): (aten.upsample_nearest2d.default, False),
    ("nearest", 3): (aten.upsample_nearest3d.default, False),
    ("nearest-exact", 1): (aten._upsample_nearest_exact1d.default, False),
    ("nearest-exact", 2): (aten._upsample_nearest_exact2d.default, False),
    ("nearest-exact", 3): (aten._upsample_nearest_exact3d.default, False),
    ("linear", 1): (aten.upsample_linear1d.default, True),
    ("bilinear", 2): (aten.upsample_bilinear2d.default, True),
    ("trilinear", 3): (aten.upsample_trilinear3d.default, True),
    ("bicubic", 2): (aten.upsample_bicubic2d.default, True),
}


@answers(torch.nn.functional.interpolate)
def interpolate(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    function = torch.nn.functional.interpolate
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    image, options = given.arguments["input"], given.arguments
    if type(image) not in TENSORS or not _has_symbols(image.shape, options["size"]):
        return leaf_call(interpreter, function, args, kwargs)
    rank = image.dim() - 2
    row = _OPERATORS.get((options["mode"], rank))
    if (
        row is None
        or options["antialias"]
        or (options["size"] is None) is (options["scale_factor"] is None)
    ):
        return leaf_call(interpreter, function, args, kwargs)
    size, scale = (_repeated(options[name], rank) for name in ("size", "scale_factor"))
    if size is None:
        size = [_scaled(n, s) for n, s in zip(image.shape[2:], scale, strict=True)]
    if options["recompute_scale_factor"] or scale is None:
        scale = [None] * rank
    corners = [bool(options["align_corners"])] if row[1] else []
    return leaf_call(interpreter, row[0], (image, size, *corners, *scale), {})


_EXACT = 1 << 16  # with a size below 2**36, no float rounds


def _has_symbols(*values: Any) -> bool:
    return any(
        type(item) is ProgramInt
        for value in values
        for item in (value if issubclass(type(value), (tuple, list)) else (value,))
    )


def _repeated(value: object, rank: int) -> Any:
    if value is None or issubclass(type(value), (tuple, list)):
        return value
    return [value] * rank


def _scaled(size: Any, scale: float) -> object:
    """floor(size * scale): of a scale that is a small fraction, floats give it exactly."""
    if float(scale).is_integer():
        return size * int(scale)
    over, under = float(scale).as_integer_ratio()
    if 0 < over < _EXACT and under < _EXACT:
        return size * over // under
    return math.floor(float(int(size)) * scale)
