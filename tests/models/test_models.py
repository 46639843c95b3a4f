"""The models of the benchmarks, made small: compiled by Braze they are one graph and right.

Values are compared with eager, and with a float64 run where they differ from it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from benchmarks.accuracy import Accuracy, compare, float64_outputs
from benchmarks.models import EIGHT, MODELS, Case, Size, build, tensors_in

import braze
from braze.errors import BrazeWarning

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEEDS = (0, 1)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
# With `pytest -n ... --dist loadgroup` the tests of one model stay in one process.
CASES = [
    pytest.param((name, dtype), marks=pytest.mark.xdist_group(f"{name}-{dtype}"))
    for name in MODELS
    for dtype in DTYPES
]


@dataclass(frozen=True)
class Compiled:
    """One model after two calls with different values: what was compiled for each, and the
    results. state_changed: names of parameters and buffers that are not as they were."""

    case: Case
    first: Any
    second: Any
    outputs: dict[int, list[torch.Tensor]]
    state_changed: list[str]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """One model in one dtype, compiled once for all its tests, which pytest runs in a row."""
    name, dtype = request.param
    case = build(MODELS[name], DTYPES[dtype], size=Size.TINY)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    explain = braze.explain(case.model)
    explanations, outputs = [], {}
    with torch.no_grad():
        for seed in SEEDS:
            args, kwargs = case.arguments(seed)
            explanations.append(explain(*args, **kwargs))
            outputs[seed] = [t.clone() for t in tensors_in(explanations[-1].result)]
    after = case.model.state_dict()
    changed = [key for key, value in before.items() if not torch.equal(value, after[key])]
    return Compiled(case, *explanations, outputs, changed)


def judge(case: Case, outputs: list[torch.Tensor], seed: int) -> Accuracy:
    args, kwargs = case.arguments(seed)
    with torch.no_grad():
        eager = tensors_in(case.model(*args, **kwargs))
    return compare(outputs, eager, float64_outputs(case, seed=seed))


def test_model_is_one_graph_without_a_break(compiled: Compiled) -> None:
    explanation = compiled.first
    assert (explanation.graph_count, explanation.break_count) == (1, 0), str(explanation)
    assert explanation.op_count > 10
    assert not explanation.fallbacks


def test_model_agrees_with_eager(compiled: Compiled) -> None:
    accuracy = judge(compiled.case, compiled.outputs[0], 0)
    assert accuracy.right, accuracy


def test_second_call_with_new_values_compiles_nothing_and_is_right(compiled: Compiled) -> None:
    assert not compiled.second.records
    assert not compiled.second.fallbacks
    accuracy = judge(compiled.case, compiled.outputs[1], 1)
    assert accuracy.right, accuracy
    assert not torch.equal(compiled.outputs[0][0], compiled.outputs[1][0])


def test_calls_leave_the_model_as_it_was(compiled: Compiled) -> None:
    assert compiled.state_changed == []


@pytest.mark.parametrize("name", EIGHT)
def test_a_user_backend_gets_one_graph_that_does_what_eager_does(name: str) -> None:
    """Its torch-level calls are eager's own, so the results are eager's to the last bit."""
    case = build(MODELS[name], size=Size.TINY)
    modules = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        modules.append(module)
        return module.forward

    compiled = braze.compile(case.model, backend=backend, options={"suppress_errors": False})
    args, kwargs = case.arguments(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", BrazeWarning)
        results, expected = compiled(*args, **kwargs), case.model(*args, **kwargs)
    assert len(modules) == 1
    pairs = zip(tensors_in(results), tensors_in(expected), strict=True)
    assert all(torch.equal(result, wanted) for result, wanted in pairs)


@pytest.mark.parametrize("name", ["resnet18", "gpt2"])
def test_compiled_module_returns_what_the_model_returns(name: str) -> None:
    case = build(MODELS[name], size=Size.TINY)
    module = braze.compile(case.model)
    args, kwargs = case.arguments(0)
    with torch.no_grad():
        result, expected = module(*args, **kwargs), case.model(*args, **kwargs)
    assert isinstance(module, type(case.model))
    assert type(result) is type(expected)
    assert compare(tensors_in(result), tensors_in(expected)).right


def test_llama_with_a_cache_makes_the_caller_s_cache_longer() -> None:
    case = build(MODELS["llama_decode"], size=Size.TINY)
    module = braze.compile(case.model)
    args, kwargs = case.arguments(0)
    length = kwargs["past_key_values"].get_seq_length()
    with torch.no_grad():
        result = module(*args, **kwargs)
    assert result.past_key_values is kwargs["past_key_values"]
    assert kwargs["past_key_values"].get_seq_length() == length + 1


def test_llama_decodes_the_same_tokens_as_eager() -> None:
    """Each step meets a longer cache, so sizes change from call to call."""
    case = build(MODELS["llama_prefill"], size=Size.TINY)
    _, kwargs = case.arguments(0)
    expected = _decode(case.model, kwargs["input_ids"], steps=4)
    decoded = _decode(braze.compile(case.model), kwargs["input_ids"], steps=4)
    assert torch.equal(decoded[0], expected[0])
    assert compare([decoded[1]], [expected[1]]).right


def _decode(model: Any, tokens: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy decoding: the tokens that were added, and the last logits."""
    added: list[torch.Tensor] = []
    cache = None
    with torch.no_grad():
        for _ in range(steps):
            output = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            tokens = output.logits[:, -1:].argmax(-1)
            added.append(tokens)
    return torch.cat(added, dim=1), output.logits
