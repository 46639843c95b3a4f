"""Greedy generation of 20 tokens by transformers: its loop is the library's, each step's forward is
compiled. One graph for the prompt, one for the first token with a cache, and one for all that
follow, whose length is symbolic."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import MODELS, Size, build

import braze
from braze.trace import Journal

SETTINGS = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
OF_MODEL = {"t5": {"decoder_start_token_id": 0}}


@pytest.mark.parametrize(
    ("name", "backend"),
    [("gpt2", "aot_eager"), ("llama", "aot_eager"), ("t5", "aot_eager"), ("llama", "braze")],
)
def test_three_graphs_and_no_break(journal: Journal, name: str, backend: str) -> None:
    model = build(MODELS[name], torch.float32, "cpu", Size.TINY).model.eval()
    settings = SETTINGS | OF_MODEL.get(name, {})
    compiled = braze.compile(model, backend=backend)
    torch.manual_seed(0)
    for _ in range(2):
        prompt = torch.randint(3, model.config.vocab_size, (1, 8))
        expected = model.generate(prompt, **settings)
        assert torch.equal(compiled.generate(prompt, **settings), expected)
        assert [record.outcome for record in journal.records()] == ["graph"] * 3
    assert not [record for record in journal.records() if record.graph_break]
    assert not journal.fallbacks()
