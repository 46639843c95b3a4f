"""Kernels of attention: by Triton's interpreter, beside eager, with float64 as the judge."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from braze.ir.kernels.schedule import ExternStep, Kernel
from braze.schedule import CUDA
from tests.shares import due_today
from tests.unit.codegen.attention_programs import (
    MASKS,
    SCORES,
    SHAPES,
    TARGET,
    assert_judged,
    attention,
    exactly,
    operands,
)
from tests.unit.codegen.triton_running import (
    MARKS,
    OPTIONS,
    planned,
    run_sources,
)

pytestmark = MARKS


def _cases() -> list[Any]:
    """Each function of the score under each mask, by turns in shapes and dtypes; half a day."""
    turns = itertools.cycle(itertools.product(SHAPES, (torch.float32, torch.bfloat16)))
    cases = [
        pytest.param(score, mask, *next(turns), id=f"{score}-{mask}")
        for score, mask in itertools.product(SCORES, MASKS)
    ]
    return due_today(cases, 2)


@pytest.mark.parametrize(("score", "mask", "shape", "dtype"), _cases())
def test_attention_is_one_kernel(score: str, mask: str, shape: str, dtype: torch.dtype) -> None:
    from braze.codegen.triton import generate

    attend, given = attention(SCORES[score], MASKS[mask]), operands(shape, dtype)
    made, plan, inputs = planned(attend, given, TARGET)
    kernels = [s for s in plan.steps if isinstance(s, Kernel) and s.attention is not None]
    assert len(kernels) == 1, plan.steps
    assert not [s for s in plan.steps if isinstance(s, ExternStep) and "bmm" in str(s.call.op)]
    (found,) = run_sources(made, plan, generate(plan, OPTIONS), inputs)
    exact = attend(*exactly(given))
    assert_judged(found, attend(*given), exact)


def test_hidden_keys_are_never_read() -> None:
    """Where a mask hides whole tiles: no number there reaches a row, as one would by a product."""
    from braze.codegen.triton import generate

    attend, given = attention(None, MASKS["padded"]), operands("grouped", torch.float32)
    given[6] = torch.tensor([40, 60, 30])  # of 200 keys, in tiles of 32
    made, plan, inputs = planned(attend, given, TARGET)
    expected = attend(*given)
    given[2][:, :, 64:] = torch.nan
    (found,) = run_sources(made, plan, generate(plan, OPTIONS), inputs)
    torch.testing.assert_close(found, expected)


def test_masks_in_memory_hide_no_tile() -> None:
    """Nothing is known of it before it is read."""
    from braze.codegen.triton import generate

    given = operands("square", torch.float32)[:3]
    mask = torch.rand(128, 128) < 0.5

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        scores = torch.where(mask, (q @ k.transpose(-2, -1)).tanh(), -torch.inf)
        return torch.softmax(scores, -1) @ v

    made, plan, inputs = planned(attend, [*given, mask], TARGET)
    sources = generate(plan, OPTIONS)
    texts = [launch.function.text for row in sources.launches for launch in row]
    (text,) = [text for text in texts if "tl.dot" in text]
    assert "begin, end = 0, tiles" in text and "may = " not in text
    (found,) = run_sources(made, plan, sources, inputs)
    exact = attend(*[x.double() for x in given], mask)
    assert_judged(found, attend(*given, mask), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_float32_stay_where_they_fit(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """No matrix units compute such products: the library's take a tenth of a kernel's time."""
    attend, given = attention(None, None), operands("square", dtype)
    for least, is_kernel in ((CUDA.float32_scores, dtype != torch.float32), (1024, True)):
        with caplog.at_level(logging.INFO, "braze.fusion"):
            _, plan, _ = planned(attend, given, replace(CUDA, float32_scores=least))
        kernels = [s for s in plan.steps if isinstance(s, Kernel) and s.attention is not None]
        assert bool(kernels) is is_kernel
        said = [text for text in caplog.messages if "scores fit in memory" in text]
        assert bool(said) is not is_kernel
        caplog.clear()
