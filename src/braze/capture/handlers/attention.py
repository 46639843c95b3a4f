"""Attention: a mask that masks nothing is left out, one that is causal is `is_causal=True`.

Libraries make such masks where they cannot look at the padding (they ask whether a compiler
traces), and attention with a mask runs by slower kernels. Left out is only what depends on no
input: positions compared with each other, say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.compat.torch.dispatcher import WithoutMode
from braze.tracing.attention_masks import MaskKind, kind_of_mask
from braze.tracing.constant_folding import known_data

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_POSITIONAL = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MOST_ELEMENTS = 1 << 26


@answers(_ATTENTION)
def attention(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """As it is called, or without its mask. What is called wrongly raises by itself."""
    named = dict(zip(_POSITIONAL, args))
    if len(args) <= len(_POSITIONAL) and not named.keys() & kwargs.keys():
        named |= kwargs
        kind = _kind_in_call(interpreter, named)
        if kind is not MaskKind.OTHER:
            named |= {"attn_mask": None, "is_causal": kind is MaskKind.CAUSAL}
            return leaf_call(interpreter, _ATTENTION, (), named)
    return leaf_call(interpreter, _ATTENTION, args, kwargs)


# --- private ---------------------------------------------------------------------------------


def _kind_in_call(interpreter: Interpreter, named: Mapping[str, object]) -> MaskKind:
    """What the mask of a call does that can do without it."""
    mask: Any
    query: Any
    key: Any
    mask, query, key = (named.get(name) for name in ("attn_mask", "query", "key"))
    if not all(interpreter.tracer.is_fake(x) and x.dim() >= 2 for x in (mask, query, key)):
        return MaskKind.OTHER
    # With some kernels both together raise, and numbers of another dtype do.
    if named.get("is_causal") or mask.dtype not in (torch.bool, query.dtype):
        return MaskKind.OTHER
    kind = _kind_of(interpreter, mask)
    # Where there are other numbers of queries and keys, kernels differ in what causal means.
    square = (query.shape[-2], key.shape[-2]) == (mask.shape[-2], mask.shape[-1])
    return kind if kind is MaskKind.NOTHING or square else MaskKind.OTHER


def _kind_of(interpreter: Interpreter, mask: Any) -> MaskKind:
    tracer = interpreter.tracer
    if interpreter.transforms or not tracer.is_fake(mask) or mask.requires_grad:
        return MaskKind.OTHER
    value = tracer.value_of(mask)
    known: dict[Any, MaskKind] = interpreter.masks
    if value not in known:
        constants = {constant.value: constant.tensor for constant in tracer.constants}
        with WithoutMode(tracer), torch.no_grad():
            data = known_data(tracer.recorder, constants, value, _MOST_ELEMENTS)
            known[value] = MaskKind.OTHER if data is None else kind_of_mask(data)
    return known[value]
