"""`flex_attention` with the score and mask functions of PyTorch's documentation: one graph, and the
numbers of eager in float64."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import flex_attention as operator
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

import braze
from braze.trace import Journal

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*flex_attention:UserWarning", "ignore::FutureWarning"
)

# batch, heads, heads of keys, queries, keys, width, width of values
SHORT = {
    "square": (2, 4, 4, 48, 48, 16, 16),
    "odd": (1, 3, 3, 37, 53, 20, 12),
    "grouped": (2, 6, 2, 33, 33, 8, 8),
    "decode": (2, 4, 2, 1, 70, 16, 16),
    "single": (1, 1, 1, 1, 1, 4, 4),
}
# More than one block of queries and tile of keys.
LONG = {
    "long": (2, 3, 3, 150, 211, 20, 12),
    "plain": (1, 2, 2, 128, 128, 64, 64),
    "few_heads": (2, 4, 2, 70, 130, 16, 16),
    "short": (3, 2, 2, 32, 65, 256, 8),
}
SHAPES = SHORT | LONG
MOST = 128
_HEADS, _DOCUMENTS = 6, torch.arange(2 * MOST) // 19
SLOPES = 2.0 ** -torch.arange(1.0, _HEADS + 1)
TABLE = torch.linspace(-1, 1, _HEADS * 2 * MOST).reshape(_HEADS, 2 * MOST).cos()
LENGTHS = torch.tensor([23, 31])


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q - kv).abs() <= 9


def prefix(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv < 12


def document(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return _DOCUMENTS[q] == _DOCUMENTS[kv]


def padded(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv < LENGTHS[b]


def by_head(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return torch.where(h % 2 == 0, q >= kv, q <= kv)


def some_rows(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q % 3 != 0) & (kv % 2 == 0)


def alibi(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + SLOPES[h] * (kv - q)


def soft_cap(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return 3.0 * torch.tanh(score / 3.0)


def relative(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + (q - kv) * 0.1


def bias_of_table(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + TABLE[h, q - kv + MOST]


def bias_in_steps(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score * TABLE[h][q + kv] + TABLE[0, 3]


def long_bias(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + TABLE[h, (q - kv) % 97]


def causal_by_score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return torch.where(q >= kv, score, -float("inf"))


SCORES = (None, alibi, soft_cap, relative, bias_of_table, bias_in_steps, causal_by_score)
MASKS = {
    "none": None,
    "causal": causal,
    "window": window,
    "prefix": or_masks(prefix, causal),
    "documents": and_masks(document, causal),
    "padded": padded,
    "by_head": by_head,
    "some_rows": some_rows,
}


def operands(shape: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    batch, heads, fewer, length, count, width, out = SHAPES[shape]
    torch.manual_seed(7)
    sizes = ((heads, length, width), (fewer, count, width), (fewer, count, out))
    return tuple([torch.randn(batch, *size).to(dtype) for size in sizes])


def block_mask(mask: Any, shape: str) -> BlockMask | None:
    batch, heads, _, length, count, *_ = SHAPES[shape]
    if mask is None:
        return None
    return create_block_mask(mask, batch, heads, length, count, device="cpu", BLOCK_SIZE=16)


def by_eager(*args: Any, **kwargs: Any) -> Any:
    """In eager, which compiles the operator by itself: where it fails to compile a second call of
    other arguments, a new start helps."""
    torch.compiler.reset()
    return flex_attention(*args, **kwargs)


def in_one_graph(function: Callable[..., Any], *args: Any) -> Any:
    explanation = braze.explain(function)(*args)
    breaks = [reason.reason for reason in explanation.break_reasons]
    assert (explanation.graph_count, breaks, explanation.fallbacks) == (1, [], ())
    return explanation.result


def assert_judged(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Our error is at most twice eager's, beside a rounding or two of the dtype."""
    assert (found.dtype, found.shape, found.stride()) == (eager.dtype, eager.shape, eager.stride())
    assert torch.equal(found.isinf(), exact.isinf())
    found, eager = found.double(), eager.double()
    clean = ~exact.isinf()
    most = 2 * (eager - exact)[clean].abs().max() if clean.any() else 0.0
    step = 4 * torch.finfo(torch.float32 if eager.dtype is torch.float64 else eager.dtype).eps
    if clean.any():
        assert (found - exact)[clean].abs().max() <= most + step * (1 + exact[clean].abs().max())


def _cases() -> list[Any]:
    """Each score function under each mask, at shapes and dtypes by turns."""
    turns = itertools.cycle(
        itertools.product(SHORT, (torch.float32, torch.bfloat16, torch.float64))
    )
    cases = []
    for score, mask in itertools.product(SCORES, MASKS):
        shape, dtype = next(turns)
        name = getattr(score, "__name__", "plain")
        cases.append(pytest.param(score, mask, shape, dtype, id=f"{name}-{mask}-{shape}-{dtype}"))
    return _part(cases, 5)


def _long_cases() -> list[Any]:
    scores = (None, alibi, soft_cap, long_bias, causal_by_score)
    return _part(list(itertools.product(scores, MASKS, LONG)), 13)


def _part(cases: list[Any], step: int) -> list[Any]:
    """Some of the cases, a second or two each; all where BRAZE_SWEEP is set."""
    return cases if os.environ.get("BRAZE_SWEEP") else cases[::step]


@pytest.mark.parametrize(("score", "mask", "shape", "dtype"), _cases())
def test_attention_is_eagers(score: Any, mask: str, shape: str, dtype: torch.dtype) -> None:
    blocks = block_mask(MASKS[mask], shape)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Any) -> Any:
        aux = AuxRequest(lse=True)
        return flex_attention(q, k, v, score, blocks, enable_gqa=True, return_aux=aux)

    given = operands(shape, dtype)
    exact, exact_aux = attend(*[x.double() for x in given], blocks)
    eager, eager_aux = attend(*given, blocks)
    found, found_aux = in_one_graph(attend, *given, blocks)
    assert_judged(found, eager, exact)
    lse = dtype if dtype is torch.float64 else torch.float32
    assert found_aux.lse.dtype is lse and found_aux.max_scores is None
    assert_judged(found_aux.lse, eager_aux.lse, exact_aux.lse)


@pytest.mark.parametrize(("score", "mask", "shape"), _long_cases())
def test_no_scores_are_in_memory(
    score: Any, mask: str, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks and tiles that are whole and not, some of them hidden, in one kernel."""
    dtype = torch.bfloat16 if mask in ("window", "prefix") else torch.float32
    given, blocks = operands(shape, dtype), block_mask(MASKS[mask], shape)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Any) -> Any:
        return flex_attention(q, k, v, score, blocks, enable_gqa=True)

    exact = attend(*[x.double() for x in given], blocks)
    eager = attend(*given, blocks)
    with caplog.at_level(logging.INFO, "braze.fusion"):
        found = in_one_graph(attend, *given, blocks)
    assert_judged(found, eager, exact)
    assert [text for text in caplog.messages if "no scores in memory" in text], caplog.messages


def test_tiles_keep_numbers_that_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """A row whose scores are all NaN is none that attends to nothing."""
    q, k, v = operands("plain", torch.float32)
    q[0, 0, 3], q[0, 1, 70, 0], k[0, 0, 100, 2] = torch.nan, torch.inf, -torch.inf
    blocks = block_mask(some_rows, "plain")
    with caplog.at_level(logging.INFO, "braze.fusion"):
        found = in_one_graph(lambda *args: flex_attention(*args, block_mask=blocks), q, k, v)
    expected = by_eager(q, k, v, block_mask=blocks)
    assert [text for text in caplog.messages if "no scores in memory" in text]
    assert torch.equal(found.isnan(), expected.isnan()) and found.isnan().any()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_attention_by_hand_takes_the_same_kernel(caplog: pytest.LogCaptureFixture) -> None:
    q, k, v = operands("long", torch.float32)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> Any:
        places = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        scores = (q @ k.transpose(-2, -1) * 0.2).tanh() * 9 + slopes[:, None, None] * places
        return torch.softmax(scores.masked_fill(places > 5, -torch.inf), -1) @ v

    with caplog.at_level(logging.INFO, "braze.fusion"):
        found = in_one_graph(attend, q, k, v, SLOPES[:3])
    assert [text for text in caplog.messages if "no scores in memory" in text]
    exact = attend(*[x.double() for x in (q, k, v, SLOPES[:3])])
    assert_judged(found, attend(q, k, v, SLOPES[:3]), exact)


def test_symbolic_lengths_keep_the_kernel(
    caplog: pytest.LogCaptureFixture, journal: Journal
) -> None:
    compiled, found = braze.compile(flex_attention, fullgraph=True), []
    with caplog.at_level(logging.INFO, "braze.fusion"):
        for length in (70, 81, 128):
            q = torch.randn(2, 3, length, 12)
            blocks = create_block_mask(window, None, None, length, length, "cpu", BLOCK_SIZE=16)
            found.append((q, blocks, compiled(q, q, q, alibi, blocks)))
    assert len(journal.records()) == 2
    messages = [text for text in caplog.messages if "attention at" in text]
    assert messages and all("no scores" in text for text in messages), messages
    for q, blocks, result in found:
        torch.testing.assert_close(result, by_eager(q, q, q, alibi, blocks))


@pytest.mark.parametrize("score", SCORES[:-1])
@pytest.mark.parametrize("mask", ["none", "documents", "some_rows"])
def test_gradients_are_those_of_the_operator(score: Any, mask: str) -> None:
    """By the operator: `flex_attention` itself refuses gradients on a CPU."""
    given = operands("grouped", torch.float32)
    blocks = block_mask(MASKS[mask] or (lambda b, h, q, kv: q >= 0), "grouped")
    assert blocks is not None
    score = score or (lambda score, b, h, q, kv: score)

    def attend(q: Any, k: Any, v: Any, blocks: Any) -> Any:
        options = {"BACKEND": "AUTO", "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False}
        out, lse, _ = operator(q, k, v, score, blocks.as_tuple(), 0.3, options)
        return (out * torch.arange(out.numel()).view(out.shape).cos()).sum() + torch.where(
            lse.isinf(), 0.0, lse.sin()
        ).sum()

    def gradients(function: Any, dtype: torch.dtype) -> Any:
        leaves = [x.to(dtype).requires_grad_() for x in given]
        return torch.autograd.grad(function(*leaves, blocks), leaves)

    exact = gradients(attend, torch.float64)
    eager = gradients(attend, torch.float32)
    found = gradients(lambda *args: in_one_graph(attend, *args), torch.float32)
    for ours, theirs, judge in zip(found, eager, exact, strict=True):
        assert not ours.isnan().any()
        assert_judged(ours, theirs, judge)


def test_gradients_reach_captured_tensors() -> None:
    given = operands("square", torch.float32)
    blocks = block_mask(causal, "square")

    def trained(function: Callable[..., Any], dtype: torch.dtype) -> Any:
        slopes = SLOPES.to(dtype).requires_grad_()
        table = TABLE.to(dtype).requires_grad_()

        def score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score + slopes[h] * (kv - q) + table[h, q - kv + MOST]

        def attend(q: Any, k: Any, v: Any) -> Any:
            return flex_attention(q, k, v, score, blocks).square().sum()

        return torch.autograd.grad(function(attend)(*[x.to(dtype) for x in given]), (slopes, table))

    exact = trained(lambda f: f, torch.float64)
    eager = trained(lambda f: f, torch.float32)
    found = trained(lambda f: lambda *args: in_one_graph(f, *args), torch.float32)
    for ours, theirs, judge in zip(found, eager, exact, strict=True):
        assert_judged(ours, theirs, judge)


def test_gradients_on_a_cpu_are_refused_as_in_eager() -> None:
    q = torch.randn(1, 1, 4, 4, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        braze.compile(flex_attention)(q, q, q)


def test_new_masks_do_not_recompile(journal: Journal) -> None:
    """By one function: their tensors, and those that it closes over, are inputs."""
    documents = torch.arange(64)

    def same(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (documents[q] == documents[kv]) & (q >= kv)

    q = torch.randn(1, 2, 64, 8)
    compiled, masks = braze.compile(flex_attention, fullgraph=True), []
    for length in (7, 20, 33, 50):
        documents = torch.arange(64) // length
        blocks = create_block_mask(same, 1, None, 64, 64, device="cpu", BLOCK_SIZE=16)
        masks.append((documents, blocks, compiled(q, q, q, block_mask=blocks)))
    assert len(journal.records()) == 1
    for given, blocks, found in masks:
        documents = given
        torch.testing.assert_close(found, by_eager(q, q, q, block_mask=blocks))


@pytest.mark.parametrize("mask", [name for name, mask in MASKS.items() if mask is not None])
def test_masks_are_made_in_a_graph(mask: str) -> None:
    batch, heads, _, length, count, *_ = SHAPES["square"]

    def make(device: str) -> BlockMask:
        function = MASKS[mask]
        return create_block_mask(function, batch, heads, length, count, device, BLOCK_SIZE=16)

    found, expected = in_one_graph(make, "cpu"), make("cpu")
    for ours, theirs in zip(found.as_tuple()[:-1], expected.as_tuple()[:-1], strict=True):
        if isinstance(theirs, torch.Tensor):
            assert ours.dtype is theirs.dtype and torch.equal(ours, theirs)
        else:
            assert ours == theirs


def test_blocks_say_nothing_that_the_mask_function_does_not() -> None:
    """As in eager, where blocks made by hand are not looked at."""
    q = torch.randn(1, 1, 32, 8)
    one = torch.ones(1, 1, 2, dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(
        one, torch.zeros(1, 1, 2, 2, dtype=torch.int32), BLOCK_SIZE=16
    )
    found = in_one_graph(lambda q: flex_attention(q, q, q, block_mask=blocks), q)
    torch.testing.assert_close(found, by_eager(q, q, q, block_mask=blocks))


def test_other_modes_break_the_graph() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            return function(*args, **(kwargs or {}))

    def enters(x: torch.Tensor) -> torch.Tensor:
        with Mode():
            return x + 1

    explanation = braze.explain(enters)(torch.ones(2))
    assert explanation.break_count and torch.equal(explanation.result, torch.full((2,), 2.0))


def test_a_break_in_a_score_function_is_before_the_attention() -> None:
    """Where a mode is in force that no eager code can be given, nothing goes on in the middle.
    (Eager refuses such a function.)"""
    q = torch.randn(1, 1, 8, 4)

    def score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        print(end="")
        return bias_of_table(score, b, h, q, kv)

    def attend(q: torch.Tensor, score: Any) -> torch.Tensor:
        return flex_attention(q * 2, q, q, score) + 1

    found = braze.compile(attend)(q, score)
    torch.compiler.reset()
    torch.testing.assert_close(found, attend(q, bias_of_table))
