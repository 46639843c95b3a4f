"""`flex_attention` on a device: kernels without scores in memory, errors as small as eager's."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import braze

pytestmark = pytest.mark.gpu

_DOCUMENTS = torch.arange(4096) // 300
_SLOPES = 2.0 ** -torch.arange(1.0, 9)


def _functions(device: str) -> dict[str, tuple[Any, Any]]:
    documents, slopes = _DOCUMENTS.to(device), _SLOPES.to(device)

    def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv <= 100)

    def document(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (documents[q] == documents[kv]) & (q >= kv)

    def alibi(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + slopes[h] * (kv - q)

    def soft_cap(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return 20 * torch.tanh(score / 20)

    return {
        "causal": (None, causal),
        "window": (None, window),
        "document": (None, document),
        "alibi": (alibi, causal),
        "soft_cap": (soft_cap, causal),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", list(_functions("cpu")))
def test_attention_has_no_scores_in_memory(
    name: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    score, mask = _functions("cuda")[name]
    torch.manual_seed(3)
    q = torch.randn(2, 4, 1000, 64, device="cuda", dtype=dtype)
    k, v = (torch.randn(2, 2, 1000, 64, device="cuda", dtype=dtype) for _ in range(2))
    blocks = create_block_mask(mask, None, None, 1000, 1000, device="cuda")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Any) -> Any:
        return flex_attention(q, k, v, score, blocks, enable_gqa=True)

    with torch.no_grad(), caplog.at_level(logging.INFO, "braze.fusion"):
        found = braze.compile(attend, fullgraph=True)(q, k, v, blocks)
        eager = attend(q, k, v, blocks)
        exact = attend(q.double(), k.double(), v.double(), blocks)
    told = "scores fit in memory" if dtype == torch.float32 else "no scores in memory"
    assert [text for text in caplog.messages if told in text], caplog.messages
    step = torch.finfo(dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= 1.5 * (eager - exact).abs().max() + step


@pytest.mark.parametrize(
    ("name", "dtype", "lse"),
    [
        ("causal", torch.bfloat16, False),
        ("window", torch.float16, False),
        ("document", torch.bfloat16, True),
        ("alibi", torch.float16, True),
        ("soft_cap", torch.bfloat16, False),
        ("soft_cap", torch.float16, True),
    ],
)
def test_training_has_no_scores_in_memory(
    name: str, dtype: torch.dtype, lse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    score, mask = _functions("cuda")[name]
    torch.manual_seed(3)
    sizes = ((2, 4, 1000, 64), (2, 2, 1000, 64), (2, 2, 1000, 64))
    given = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in sizes]
    wide = [x.detach().double().requires_grad_() for x in given]
    blocks = create_block_mask(mask, None, None, 1000, 1000, device="cuda")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Any) -> Any:
        return flex_attention(q, k, v, score, blocks, enable_gqa=True, return_lse=lse)

    compiled = braze.compile(attend, fullgraph=True)
    tangents: list[torch.Tensor] = []

    def gradients(function: Any, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        results = function(*inputs, blocks)
        results = results if lse else (results,)
        if not tangents:
            tangents.extend(torch.randn_like(result) for result in results)
        return torch.autograd.grad(results, inputs, [t.to(r) for t, r in zip(tangents, results)])

    with caplog.at_level(logging.INFO, "braze.fusion"):
        found = gradients(compiled, given)
    for text in ("one kernel, no scores in memory", "backward of attention at"):
        assert [one for one in caplog.messages if text in one], caplog.messages
    eager, exact = gradients(attend, given), gradients(attend, wide)
    for mine, theirs, right in zip(found, eager, exact, strict=True):
        step = torch.finfo(dtype).eps * right.abs().max()
        assert (mine - right).abs().max() <= 2 * (theirs - right).abs().max() + step


def test_training_keeps_a_number_a_row() -> None:
    """Of 4,096 queries and keys, scores of eight heads in bfloat16 would be 256 MiB."""
    score, mask = _functions("cuda")["soft_cap"]
    sizes = [(1, 8, 4096, 64)] * 3
    given = [torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in sizes]
    blocks = create_block_mask(mask, None, None, 4096, 4096, device="cuda")
    compiled = braze.compile(lambda q, k, v: flex_attention(q, k, v, score, blocks))
    torch.autograd.grad(compiled(*given).sum(), given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(compiled(*given).sum(), given)
    assert torch.cuda.max_memory_allocated() - before < 64 << 20
