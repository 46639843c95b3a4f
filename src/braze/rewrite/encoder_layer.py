"""The operators of PyTorch's fast path for transformers, written out in operators that fuse.

`multi_head_attention` computes `_native_multi_head_attention`, and `encoder_layer`
`_transformer_encoder_layer_fwd`, in the order in which ATen computes them (`native/transformers`).
Both are called on fake tensors while a tracer records, and work on real ones.

Attention to few keys is written out: two batched products of small matrices take less time than
the library's kernel of attention takes to begin. Rows that attend to nothing are NaN, as in ATen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from braze.compat.torch.aten import aten

Given: TypeAlias = Mapping[str, Any]

# What `mask_type` says of a mask.
SOURCE_MASK, PADDING_MASK, SCORES_MASK = range(3)

# Keys from which the library's kernel is called. One thread of an AMD processor with AVX2, width
# 256, times over eager's, written out and called: 1 x 16 float32 0.54 and 0.71, with a padding mask
# 0.49 and 0.65; 16 x 64 float32 1.00 and 0.97, causal 0.88 and 0.85; bfloat16 1.07 and 0.80,
# 4 x 256 0.96 and 0.45.
FEW_KEYS = 64


def encoder_layer(given: Given, is_short: bool) -> torch.Tensor:
    """The result of `_transformer_encoder_layer_fwd`, [batch, length, width], by its arguments'
    names. is_short: attention is to fewer than `FEW_KEYS`."""
    x: torch.Tensor = given["src"]
    is_first, eps = given["norm_first"], given["eps"]

    def norm(x: torch.Tensor, number: int) -> torch.Tensor:
        weight, bias = given[f"norm_weight_{number}"], given[f"norm_bias_{number}"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    attended, _ = multi_head_attention(norm(x, 1) if is_first else x, given, is_short)
    x = attended + x
    x = x if is_first else norm(x, 1)
    hidden = _linear(norm(x, 2) if is_first else x, given["ffn_weight_1"], given["ffn_bias_1"])
    hidden = functional.gelu(hidden) if given["use_gelu"] else functional.relu(hidden)
    x = _linear(hidden, given["ffn_weight_2"], given["ffn_bias_2"]) + x
    return x if is_first else norm(x, 2)


def multi_head_attention(
    x: torch.Tensor, given: Given, is_short: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The results of `_native_multi_head_attention` of x, [batch, length, width], to itself: the
    projected result in the same shape, and the probabilities where `need_weights` asks for them.
    given: the other arguments, by either operator's names. is_short: as in `encoder_layer`."""
    batch, length, width = x.shape
    heads: int = given["num_head"] if "num_head" in given else given["num_heads"]
    projected = _linear(x, given["qkv_weight"], given["qkv_bias"])
    apart = projected.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    hidden = _hidden(given["mask"], given["mask_type"], batch, length)
    weights: torch.Tensor | None = None
    needs_weights: bool = given.get("need_weights", False)
    if needs_weights or is_short:
        attended, weights = _written_out(apart, hidden)
    else:
        attended = _called(apart, hidden)
    joined = attended.transpose(1, 2).contiguous().view(batch, length, width)
    result = _linear(joined, given["proj_weight"], given["proj_bias"])
    if not needs_weights or weights is None:
        return result, None
    return result, weights.sum(1) / heads if given["average_attn_weights"] else weights


# --- private -------------------------------------------------------------------------------------


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The rows of x times the transposed weight, plus the bias."""
    batch, length, width = x.shape
    rows = x.contiguous().view(batch * length, width)
    product = torch.addmm(bias, rows, weight.t())
    made: torch.Tensor = aten._unsafe_view.default(product, [batch, length, weight.shape[0]])
    return made


def _hidden(
    mask: torch.Tensor | None, kind: int | None, batch: int, length: int
) -> torch.Tensor | None:
    """Where scores are hidden, to be broadcast against [batch, heads, length, length]."""
    if mask is None:
        return None
    hidden = mask.to(torch.bool)
    if kind == SOURCE_MASK:
        return hidden.view(1, 1, length, length)
    return hidden.view(batch, 1, 1, length) if kind == PADDING_MASK else hidden


def _written_out(
    apart: torch.Tensor, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What attention gives, [batch, heads, length, width], and its probabilities. apart: query,
    keys and values, [3, batch, heads, length, width]."""
    _, batch, heads, length, width = apart.shape
    sizes = (batch * heads, length, width)
    query = (apart[0] * width**-0.5).contiguous().view(sizes)
    keys, values = (each.contiguous().view(sizes) for each in (apart[1], apart[2]))
    scores = torch.bmm(query, keys.transpose(1, 2)).view(batch, heads, length, length)
    if hidden is not None:
        scores = torch.where(hidden, -torch.inf, scores)
    weights = torch.softmax(scores, -1)
    made = torch.bmm(weights.view(batch * heads, length, length), values)
    return made.view(batch, heads, length, width), weights


def _called(apart: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """What the library's kernel gives, [batch, heads, length, width]. It gives zeros for rows that
    attend to nothing."""
    query, keys, values = apart[0], apart[1], apart[2]
    if hidden is None:
        return functional.scaled_dot_product_attention(query, keys, values)
    empty = hidden.all(-1, keepdim=True)
    made = functional.scaled_dot_product_attention(query, keys, values, ~hidden | empty)
    return torch.where(empty, torch.nan, made)
