"""The benchmark of attention on a GPU, its parts that run anywhere."""

from __future__ import annotations

import pytest
import torch
from benchmarks import attention_gpu
from benchmarks.attention_gpu import CASES, errors, inputs_of, step_of
from torch.nn.functional import scaled_dot_product_attention as attention


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_gpu, "TOKENS", 64)
    monkeypatch.setattr(attention_gpu, "HEADS", 2)


def test_cases_are_attention() -> None:
    q, k, v, mask = inputs_of(32, 8, torch.float32, "cpu")
    wanted = {
        "plain": attention(q, k, v),
        "causal": attention(q, k, v, is_causal=True),
        "masked": attention(q, k, v, mask != 0),
        "padded": attention(q, k, v, mask[-1:] != 0),
        "added": attention(q, k, v, mask != 0),
    }
    for name, program in CASES.items():
        torch.testing.assert_close(program(q, k, v, mask), wanted[name])


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_steps_and_errors(name: str, trains: bool) -> None:
    inputs = inputs_of(32, 8, torch.bfloat16, "cpu")
    step = step_of(CASES[name], trains)
    assert len(step(*inputs)) == (4 if trains else 1)
    wrong = step_of(lambda *given: CASES[name](*given) * 2, trains)
    found = errors({"eager": step, "same": step, "wrong": wrong}, step, inputs)
    assert found["same"] == ("1.00 1.00" if trains else "1.00")
    assert min(map(float, found["wrong"].split())) > 2
