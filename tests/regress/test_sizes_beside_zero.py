"""Operands with a dimension of zero beside sizes that are symbols: their bytes are a known number,
their shapes are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "product": lambda x, w: ((x * 2) @ (w + 1)).sin() @ (w + 1).t(),
    "batched": lambda x, w: torch.bmm((x * 2)[None], (w + 1)[None]).relu(),
    "sorted": lambda x, w: (x * 2).sort(0)[0] @ (w * 3),
    "linear": lambda x, w: torch.nn.functional.linear(x + 1, w.t() * 2).exp(),
    "sliced": lambda x, w: (x * 2)[2:] @ (w * 2)[:, 1:],
    "joined": lambda x, w: torch.cat([x, x + 1]) @ w,
    "softmax": lambda x, w: torch.softmax(x @ w, 1) @ (w.t() * 2),
    "normalized": lambda x, w: torch.nn.functional.layer_norm(x @ w, (w.shape[1],)) @ w.t(),
    "condition": lambda x, w: torch.cond(
        x.sum() > 0, lambda x: x @ w, lambda x: (x @ w).sin(), (x,)
    ),
}
SIZES = ((3, 4, 5), (0, 4, 5), (3, 4, 0), (7, 0, 5))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_zero_beside_symbols(name: str, trains: bool) -> None:
    function = PROGRAMS[name]
    compiled = braze.compile(
        function, fullgraph=True, dynamic=True, options={"recompile_limit": 64}
    )
    for rows, inner, columns in SIZES:
        x, w = torch.randn(rows, inner), torch.randn(inner, columns)
        results = []
        for f in (function, compiled):
            a, b = x.clone().requires_grad_(trains), w.clone().requires_grad_(trains)
            y = f(a, b)
            if trains:
                y.sum().backward()
            results.append((y.detach(), *([a.grad, b.grad] if trains else [])))
        torch.testing.assert_close(results[1], results[0], equal_nan=True)
