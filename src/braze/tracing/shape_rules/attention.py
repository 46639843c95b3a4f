"""What the operators of PyTorch's fast path for transformers demand of symbolic sizes."""

from __future__ import annotations

from typing import Any

from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import has_meta_kernel
from braze.shapes.demands import must_equal
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import Operand, contiguous

_PADDING_MASK = 1  # kind of a mask that hides keys, [batch, length]


@rule(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(src: Operand, embed_dim: int, *rest: Any, **options: Any) -> object:
    given = dict(zip(("mask", "mask_type"), rest[16:], strict=False)) | options
    made = _demanded(src, embed_dim, given.get("mask"), given.get("mask_type"))
    if len(src.shape) == 3 and not has_meta_kernel(aten._transformer_encoder_layer_fwd.default):
        return contiguous(src.dtype, src.shape, src.device)
    return made


@rule(aten._native_multi_head_attention.default)
def _multi_head_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    embed_dim: int,
    *rest: Any,
    **options: Any,
) -> object:
    names = ("mask", "need_weights", "average_attn_weights", "mask_type")
    given = dict(zip(names, rest[5:], strict=False)) | options
    return _demanded(query, embed_dim, given.get("mask"), given.get("mask_type"))


# --- private -------------------------------------------------------------------------------------


def _demanded(x: Operand, width: int, mask: Operand | None, kind: int | None) -> object:
    """Learns which sizes are the same, which kernels check and nothing else asks; the meta kernel
    says the rest."""
    if len(x.shape) != 3:
        return NotImplemented
    must_equal(x.shape[2], width)
    length = x.shape[1]
    if mask is not None:
        wanted = (x.shape[0], length) if kind == _PADDING_MASK else (length, length)
        for size, demanded in zip(mask.shape[-2:], wanted, strict=False):
            must_equal(size, demanded)
    return NotImplemented
