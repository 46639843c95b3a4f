"""The recomputation cost of a value in the backward, by operator.

FREE        views, copies, constants: nothing or next to nothing
CHEAP       pointwise arithmetic, fused into its reader
HEAVY       pointwise operators whose arithmetic takes longer than reading their result
FOLD        reductions, normalisations, gathers: a pass over memory of their own
NEVER       matrix products, convolutions, attention, random numbers, all that is not known
"""

from __future__ import annotations

import enum
import functools

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.random_ops import is_random


class Price(enum.IntEnum):
    """Ordered: what is dearer is computed again later."""

    FREE = 0
    CHEAP = 1
    HEAVY = 2
    FOLD = 3
    NEVER = 4


_HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv lgamma digamma polygamma i0 sigmoid silu gelu elu celu selu mish "
    "softplus log_sigmoid_forward pow atan2 hypot fmod remainder xlogy logaddexp logaddexp2 logit "
    "sinc special_entr special_erfcx special_i0e special_i1 special_i1e special_ndtri "
    "special_log_ndtr".split()
)
_FOLD = frozenset(
    "sum mean prod amax amin max min argmax argmin any all var std var_mean std_mean norm "
    "linalg_vector_norm logsumexp cumsum cumprod _softmax _log_softmax native_layer_norm "
    "native_group_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
    "_fused_rms_norm index index_select gather embedding avg_pool2d "
    "_adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d constant_pad_nd cat stack "
    "roll flip".split()
)
_FREE = frozenset(
    "clone _to_copy full empty zeros ones arange full_like empty_like zeros_like ones_like "
    "new_empty new_zeros new_ones new_full scalar_tensor empty_strided new_empty_strided "
    "lift_fresh_copy expand_copy eye _local_scalar_dense".split()
)


@functools.cache
def price_of(op: torch._ops.OpOverload) -> Price:
    """The price of one operator."""
    schema = op._schema
    if is_random(op) or schema.is_mutable or not schema.name.startswith("aten::"):
        return Price.NEVER
    name = schema.name.removeprefix("aten::")
    if name in _FREE or any(a.alias_info is not None for a in schema.arguments):
        return Price.FREE
    if name in _HEAVY:
        return Price.HEAVY
    if name in _FOLD:
        return Price.FOLD
    return Price.CHEAP if torch.Tag.pointwise in op.tags else Price.NEVER


@functools.cache
def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether results share the memory of the first argument, or are the number in it."""
    schema = op._schema
    if op is aten._local_scalar_dense.default:
        return True
    return not schema.is_mutable and any(a.alias_info is not None for a in schema.arguments)
