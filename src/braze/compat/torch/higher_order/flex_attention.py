"""`flex_attention` in plain operators: what its operator computes in eager, for the interpreter.

PyTorch's eager form is a Python function, too. This one differs in three ways: gradients of the
logarithm of sums are zero for rows that attend to nothing, as the operator's own backward has them,
where autograd of `logsumexp` would give NaN; strides are computed by Python's own `sorted`; nothing
is imported while it runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.private_names import safe_softmax

_MODE = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")

Modification: TypeAlias = Callable[..., Any]


def is_index_mode(mode: object) -> bool:
    """Whether a torch function mode is the one in which `tensor[i]`, `i` a tensor without
    dimensions, is a lookup in the graph instead of a view at a number that is read."""
    module, name = _MODE
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and type(mode) is kind


@final
class IndexingByTensors:
    """A region in which `tensor[i]`, `i` a tensor without dimensions, is a lookup in the graph.
    Capture answers both methods; in eager the functions around it are never called."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def attention_in_python(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Modification,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, object],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The attention, log2 of the sums of exponentials, and the largest scores over log(2).

    query: [batch, heads, length, width]; key, value: [batch or 1, fewer heads, count, width].
    block_mask: the last of it is the mask function, which alone decides, as in eager: what blocks
        say is implied by it.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = [
            x if x.dtype is torch.float64 else x.to(dtype) for x in (query, key, value)
        ]
    with torch.autocast(device, enabled=False):
        groups = query.size(1) // key.size(1)
        value = torch.repeat_interleave(value, groups, dim=1)
        key = torch.repeat_interleave(key, groups, dim=1)
        batch, theirs = query.size(0), key.size(0)
        if not (batch == theirs or (batch > 1 and theirs == 1)):
            raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={theirs}")
        key = key.expand((batch, *key.size()[1:]))
        value = value.expand((batch, *value.size()[1:]))
        mask_mod, buffers = block_mask[-1], (score_mod_other_buffers, mask_mod_other_buffers)
        scores = _modified_scores(query, key, score_mod, mask_mod, scale, *buffers)
        weights = safe_softmax(scores, dim=-1)
        out = weights.to(query.dtype) @ value.to(query.dtype)
        most = torch.max(scores, dim=-1)[0]
        sums = _logarithms(scores)
        return _laid_out(out, query.stride()), sums / math.log(2), most / math.log(2)


# --- private -------------------------------------------------------------------------------------


def _logarithms(scores: torch.Tensor) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials, by what its softmax is computed of; with
    gradients of zero where all are -inf."""
    most = torch.amax(scores, dim=-1, keepdim=True).detach()
    empty = most == -math.inf
    shift = torch.where(empty, 0.0, most)
    sums = torch.exp(scores - shift).sum(dim=-1, keepdim=True)
    found = torch.log(torch.where(empty, 1.0, sums)) + shift
    return torch.where(empty, -math.inf, found).squeeze(-1)


def _modified_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    score_mod: Modification,
    mask_mod: Modification,
    scale: float,
    score_buffers: tuple[object, ...],
    mask_buffers: tuple[object, ...],
) -> torch.Tensor:
    """The scores behind both functions, in float32, or in float64 of such a query."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1)
    places = [torch.arange(0, scores.size(dim), device=scores.device) for dim in range(4)]
    score_mod = _over_scores(score_mod, (0,), (None,) * len(score_buffers))
    mask_mod = _over_scores(mask_mod, (), (None,) * len(mask_buffers))
    with IndexingByTensors():
        scores = (scores * scale).to(dtype)
        hidden = torch.full((), -math.inf, dtype=dtype, device=scores.device)
        return torch.where(
            mask_mod(*places, *mask_buffers),
            score_mod(scores, *places, *score_buffers),
            hidden,
        )


def _over_scores(
    function: Modification, prefix: tuple[int | None, ...], suffix: tuple[int | None, ...]
) -> Modification:
    """A function of one score as one of all: keys innermost, then queries, heads, the batch."""
    for place in (3, 2, 1, 0):
        dims = tuple([0 if number == place else None for number in range(4)])
        function = torch.vmap(function, in_dims=prefix + dims + suffix)
    return function


def _laid_out(out: torch.Tensor, like: Sequence[int]) -> torch.Tensor:
    """A copy whose dimensions lie in memory in the order of the query's; the last one is innermost
    in any case."""
    last = len(like) - 1
    order = sorted(range(len(like)), key=lambda dim: (like[dim], -dim))
    strides = _strides_in(order, out.shape)
    if strides[last] != 1:
        order.remove(last)
        strides = _strides_in([last, *order], out.shape)
    if out.stride() == tuple(strides):
        return out
    laid = out.new_empty_strided(out.shape, strides)
    laid.copy_(out)
    return laid


def _strides_in(order: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Strides of a dense tensor whose dimensions are in this order, innermost first."""
    strides, step = [1] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return strides
