"""Programs that write attention out, in the ways in which models do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

Program = Callable[..., torch.Tensor]


def divided(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def divided_by_tensor(q: Any, k: Any, v: Any) -> Any:
    scale = torch.full([], 4.0, dtype=q.dtype, device=q.device)
    return functional.softmax(torch.matmul(q, k.transpose(-1, -2)) / scale, dim=-1) @ v


def scaled_before(q: Any, k: Any, v: Any) -> Any:
    return functional.softmax((q * 0.25) @ k.mT, dim=-1) @ v


def unscaled(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT).softmax(-1) @ v


def by_einsum(q: Any, k: Any, v: Any) -> Any:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.25
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def heads_inside(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("blhd,bshd->bhls", q, k) * 0.25
    return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v).transpose(1, 2)


def in_float32(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT * 0.25
    return functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def joined_heads(q: Any, k: Any, v: Any) -> Any:
    batch, heads, length, width = q.shape
    q, k, v = (x.reshape(batch * heads, -1, width) for x in (q, k, v))
    found = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, -1), v)
    return found.view(batch, heads, length, width)


def copied_behind(q: Any, k: Any, v: Any) -> Any:
    """The product itself is swapped and copied."""
    first, second, values = (x.flatten(0, 1) for x in (q, k, v))
    found = torch.bmm(torch.softmax(torch.bmm(first, second.mT), -1), values)
    return found.transpose(1, 2).contiguous().mT.unflatten(0, q.shape[:2])


def repeated_heads(q: Any, k: Any, v: Any) -> Any:
    """As transformers' eager attention, of half as many heads of keys and values."""
    batch, heads, count, width = k.shape
    shape = (batch, heads // 2, 2, count, width)
    k, v = (x[:, ::2, None].expand(shape).reshape(k.shape) for x in (k, v))
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25
    weights = functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = functional.dropout(weights, p=0.0, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().transpose(1, 2)


def causal(q: Any, k: Any, v: Any) -> Any:
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT * 0.25).masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ v


def causal_by_numbers(q: Any, k: Any, v: Any) -> Any:
    least = torch.finfo(q.dtype).min
    mask = torch.full((q.shape[-2], k.shape[-2]), least, dtype=q.dtype, device=q.device).triu(1)
    return torch.softmax(q @ k.mT * 0.25 + mask[None, None], -1) @ v


def window(q: Any, k: Any, v: Any) -> Any:
    """Known, and no kind that kernels know."""
    rows, columns = (torch.arange(n, device=q.device) for n in (q.shape[-2], k.shape[-2]))
    near = (rows[:, None] - columns).abs() < 20
    return torch.softmax(torch.where(near, q @ k.mT * 0.25, -torch.inf), -1) @ v


PLAIN: dict[str, Program] = {
    program.__name__: program
    for program in (
        divided,
        divided_by_tensor,
        scaled_before,
        unscaled,
        by_einsum,
        heads_inside,
        in_float32,
        joined_heads,
        copied_behind,
        repeated_heads,
        causal,
        causal_by_numbers,
        window,
    )
}


# --- with a mask of booleans: true is hidden ----------------------------------------------------


def filled(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return torch.softmax((q @ k.mT * 0.25).masked_fill(hidden, float("-inf")), -1) @ v


def filled_before_scale(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return torch.softmax((q @ k.mT).masked_fill(hidden == 1, float("-inf")) * 0.25, -1) @ v


def chosen(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return torch.softmax(torch.where(hidden, -torch.inf, q @ k.mT * 0.25), -1) @ v


def filled_with_least(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    least = torch.finfo(q.dtype).min
    return torch.softmax(torch.where(~hidden, q @ k.mT * 0.25, least), -1) @ v


def filled_twice(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(60)
    scores = (q @ k.mT * 0.25).masked_fill(hidden, -torch.inf).masked_fill(later, -torch.inf)
    return torch.softmax(scores, -1) @ v


def filled_with_joined_heads(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    batch, heads, length, width = q.shape
    q, k, v = (x.reshape(batch * heads, -1, width) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, length, -1)
    scores = scores.masked_fill(hidden, -torch.inf).view(batch * heads, length, -1)
    return torch.bmm(torch.softmax(scores, -1), v).view(batch, heads, length, width)


def least_added(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """As transformers' eager attention has masks of padding: scores of a row of which all are
    hidden have gradients."""
    nothing = torch.zeros((), dtype=q.dtype, device=q.device)
    mask = torch.where(~hidden, nothing, torch.finfo(q.dtype).min)
    return torch.softmax(q @ k.mT * 0.25 + mask, -1) @ v


def least_subtracted(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    nothing = torch.zeros((), dtype=q.dtype, device=q.device)
    mask = torch.where(hidden, torch.finfo(q.dtype).max, nothing)
    return torch.softmax((q @ k.mT - mask.expand_as(mask)) * 0.25, -1) @ v


FILLED: dict[str, Program] = {
    program.__name__: program
    for program in (
        filled,
        filled_before_scale,
        chosen,
        filled_with_least,
        filled_twice,
        filled_with_joined_heads,
        least_added,
        least_subtracted,
    )
}


# --- with a mask that is added -------------------------------------------------------------------


def added(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.mT * 0.25 + bias, -1) @ v


def added_before_scale(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax((bias + q @ k.mT) * 0.25, -1) @ v


def subtracted(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.mT / 4 - bias, -1) @ v


def added_by_product(q: Any, k: Any, v: Any, bias: Any) -> Any:
    batch, heads, length, width = q.shape
    q, k, v = (x.reshape(batch * heads, -1, width) for x in (q, k, v))
    scores = torch.baddbmm(bias.reshape(-1, *bias.shape[-2:])[:1], q, k.mT, beta=0.5, alpha=0.25)
    return torch.bmm(scores.softmax(-1), v).view(batch, heads, length, width)


def added_and_filled(q: Any, k: Any, v: Any, bias: Any) -> Any:
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(60)
    return torch.softmax((q @ k.mT / 4 + bias).masked_fill(later, -torch.inf), -1) @ v


ADDED: dict[str, Program] = {
    program.__name__: program
    for program in (
        added,
        added_before_scale,
        subtracted,
        added_by_product,
        added_and_filled,
    )
}


def run_program(
    program: Any, inputs: Sequence[torch.Tensor], trains: bool, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """The result, and the gradients of query, keys and values; in another dtype where one is
    given."""
    given = [x.to(dtype) if dtype and x.is_floating_point() else x for x in inputs]
    leaves = [x.detach().requires_grad_(trains) for x in given[:3]]
    with torch.set_grad_enabled(trains):
        result = program(*leaves, *given[3:])
        if not trains:
            return [result]
        torch.manual_seed(7)
        tangent = torch.randn(result.shape).to(result)
        return [result, *torch.autograd.grad(result, leaves, tangent)]
