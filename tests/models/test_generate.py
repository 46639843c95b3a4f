"""transformers' `generate`, greedy, of compiled models: the tokens of eager."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import Size, build, find

import braze
from braze.trace import JOURNAL

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning"),
]
NEW_TOKENS = 20
# The prompt is one program, a step with a cache another; each further length is one more, up to
# the limit of recompiles, and those after that run eagerly.
MOST_GRAPHS = 8


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_tokens_of_eager(name: str) -> None:
    case = build(find(name), size=Size.TINY)
    _, keywords = case.arguments(0)
    settings = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    prompt = {
        "input_ids": keywords["input_ids"],
        "attention_mask": torch.ones_like(keywords["input_ids"]),
    }
    expected = case.model.generate(**prompt, **settings)
    compiled = braze.compile(case.model)
    JOURNAL.clear()
    for _ in range(2):
        assert torch.equal(compiled.generate(**prompt, **settings), expected)
    records = [record for record in JOURNAL.records() if record.graph_break is not None]
    assert records == []
    graphs = [record for record in JOURNAL.records() if record.ops]
    assert 2 <= len(graphs) <= MOST_GRAPHS
