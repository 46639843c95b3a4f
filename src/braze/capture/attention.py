"""Attention: a mask that masks nothing is left out.

Libraries make such masks where they cannot look at the padding (they ask whether a compiler
traces), and attention with a mask runs by slower kernels. Left out is only what depends on no
input: positions compared with each other, say.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.handler_table import answers
from braze.capture.leaf_calls import leaf_call
from braze.compat.dispatch import WithoutMode
from braze.standins.known_data import known_data

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_MASK = 3  # the mask's place among the arguments
_MOST_ELEMENTS = 1 << 26


@answers(_ATTENTION)
def attention(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As it is called, or without its mask."""
    mask = args[_MASK] if len(args) > _MASK else kwargs.get("attn_mask")
    if mask is not None and _masks_nothing(interpreter, mask):
        args = (*args[:_MASK], None, *args[_MASK + 1 :]) if len(args) > _MASK else args
        kwargs = {**kwargs, "attn_mask": None} if "attn_mask" in kwargs else kwargs
    return leaf_call(interpreter, _ATTENTION, args, kwargs)


def _masks_nothing(interpreter: Any, mask: Any) -> bool:
    """Whether a mask is true everywhere, whatever the inputs are."""
    tracer = interpreter.tracer
    if interpreter.transforms or not tracer.is_standin(mask) or mask.dtype is not torch.bool:
        return False
    constants = {constant.value: constant.tensor for constant in tracer.constants}
    with WithoutMode(tracer), torch.no_grad():
        data = known_data(tracer.recorder, constants, tracer.value_of(mask), _MOST_ELEMENTS)
        return data is not None and bool(data.all())
