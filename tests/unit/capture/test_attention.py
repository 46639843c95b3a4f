"""Masks of attention that mask nothing, or are causal."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import braze


def _positions(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.arange(q.shape[2])
    return index[:, None], index[None]


def nothing(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, _ = _positions(q)
    mask = (rows >= 0)[None, None].expand(q.shape[0], 1, q.shape[2], q.shape[2])
    return attention(q, q, q, attn_mask=mask)


def nothing_by_position(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions(q)
    return attention(q, q, q, (rows - columns) < 100, 0.0)


def causal(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions(q)
    return attention(q, q, q, rows >= columns)


def causal_by_numbers(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    mask = torch.full((q.shape[2], q.shape[2]), -torch.inf, dtype=q.dtype).triu(1)
    return attention(q, q, q, attn_mask=mask, scale=0.3)


def causal_of_fewer_queries(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions(q)
    return attention(q[:, :, :5], q, q, (rows >= columns)[:5])


def below_the_diagonal(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions(q)
    return attention(q, q, q, (rows > columns) | (rows == 0))


def other_numbers(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    mask = torch.full((q.shape[2], q.shape[2]), -1.0, dtype=q.dtype).triu(1)
    return attention(q, q, q, attn_mask=mask)


def causal_twice(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """Some kernels raise."""
    rows, columns = _positions(q)
    return attention(q, q, q, (rows >= columns)[None, None], 0.0, True)


def padded(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, _ = _positions(q)
    return attention(q, q, q, attn_mask=(rows >= 0) & padding)


# Program -> what it says of a mask that is left out: is_causal; None: it stays.
CASES = {
    nothing: False,
    nothing_by_position: False,
    causal: True,
    causal_by_numbers: True,
    causal_of_fewer_queries: None,
    below_the_diagonal: None,
    other_numbers: None,
    causal_twice: None,
    padded: None,
}


@pytest.mark.parametrize(("program", "is_causal"), CASES.items())
def test_masks_of_which_all_is_known_are_left_out(
    program: Callable[..., torch.Tensor], is_causal: bool | None
) -> None:
    q, padding = torch.randn(2, 3, 16, 8), torch.rand(16) > 0.3
    q.requires_grad_()
    calls: list[torch.fx.Node] = []

    def backend(module: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        calls.extend(node for node in module.graph.nodes if node.target is attention)
        return module

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    try:
        wanted = program(q, padding)
    except RuntimeError as error:  # `causal_twice` from PyTorch 2.14 on
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            compiled(q, padding)
        return
    found = compiled(q, padding)
    torch.testing.assert_close(found, wanted)
    (call,) = calls
    is_left_out = is_causal is not None
    assert (call.kwargs.get("attn_mask") is None and len(call.args) < 4) is is_left_out
    assert not is_left_out or call.kwargs["is_causal"] is is_causal


@pytest.mark.parametrize("program", [causal, causal_by_numbers, padded])
def test_gradients(program: Callable[..., torch.Tensor]) -> None:
    q, padding = torch.randn(2, 3, 16, 8, requires_grad=True), torch.rand(16) > 0.3
    (wanted,) = torch.autograd.grad(program(q, padding).sin().sum(), q)
    (found,) = torch.autograd.grad(braze.compile(program)(q, padding).sin().sum(), q)
    torch.testing.assert_close(found, wanted)
