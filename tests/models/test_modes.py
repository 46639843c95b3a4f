"""The eight models in the modes that their users switch: training, kinds of output, masks, labels.

Every forward pass is one graph, except where a model changes itself while it runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.accuracy import compare, float64_outputs
from benchmarks.models import EIGHT, Size, build, find, tensors_in

import braze

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*recursively_install_hooks:braze.exc.BrazeWarning"),
]

Change = Callable[[dict[str, Any]], dict[str, Any]]


def _mask(*padding: int) -> Change:
    """An attention mask over the tokens, without those at the given places of the first row."""

    def change(keywords: dict[str, Any]) -> dict[str, Any]:
        mask = torch.ones_like(keywords["input_ids"])
        mask[0, list(padding)] = 0
        return {"attention_mask": mask}

    return change


def _labels(keywords: dict[str, Any]) -> dict[str, Any]:
    return {"labels": keywords.get("decoder_input_ids", keywords["input_ids"])}


_LANGUAGE: dict[str, Change] = {
    "dict": lambda _: {"return_dict": True},
    "tuple": lambda _: {"return_dict": False},
    "mask of ones": _mask(),
    "padding right": _mask(-1, -2),
    "padding left": _mask(0, 1),
    "labels": _labels,
}
_CACHE: dict[str, Change] = {"cache": lambda _: {"use_cache": True}}
# The changes to the arguments of each model, by name of the mode.
MODES: dict[str, dict[str, Change]] = {
    "bert": {**_LANGUAGE, "types": lambda k: {"token_type_ids": torch.ones_like(k["input_ids"])}},
    "gpt2": {**_LANGUAGE, **_CACHE},
    "llama": {**_LANGUAGE, **_CACHE},
    "t5": {**_LANGUAGE, **_CACHE},
    "unet": {
        "dict": lambda _: {"return_dict": True},
        "tuple": lambda _: {"return_dict": False},
        "number as time": lambda _: {"timestep": 7},
    },
}
# Modes that are also run in training mode: the others differ in nothing that training changes.
_TRAINED = ("plain", "labels", "tuple", "padding right", "cache")
# In training, these normalise over a few numbers: float64 judges what differs from eager.
_WITHOUT_DROPOUT = ("densenet121", "resnet18")
CASES = [
    pytest.param(name, mode, training, marks=pytest.mark.xdist_group(name))
    for name in EIGHT
    for training in (False, True)
    for mode in ("plain", *MODES.get(name, {}))
    if (mode != "plain" if not training else mode in _TRAINED)
]


@pytest.mark.parametrize("name, mode, training", CASES)
def test_one_graph_and_right(name: str, mode: str, training: bool) -> None:
    case = build(find(name), size=Size.TINY)
    arguments, keywords = case.arguments(0)
    if mode != "plain":
        keywords = {**keywords, **MODES[name][mode](keywords)}
    model = case.model.train(training)
    twin = copy.deepcopy(model)
    explain = braze.explain(twin)
    with torch.no_grad():
        for seed in range(2):
            reference = float64_outputs(case) if name in _WITHOUT_DROPOUT else None
            torch.manual_seed(seed)
            explanation = explain(*arguments, **keywords)
            torch.manual_seed(seed)
            expected = model(*arguments, **keywords)
            assert type(explanation.result) is type(expected)
            found = tensors_in(explanation.result)
            accuracy = compare(found, tensors_in(expected), reference)
            assert accuracy.right, accuracy
            graphs = explanation.graph_count, explanation.break_count
            assert graphs == ((1, 0) if seed == 0 else (0, 0)), str(explanation)
            assert not explanation.fallbacks
    for (key, buffer), wanted in zip(twin.state_dict().items(), model.state_dict().values()):
        torch.testing.assert_close(buffer, wanted, msg=key)


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_training_flag_switches_between_two_programs(name: str) -> None:
    case = build(find(name), size=Size.TINY)
    arguments, keywords = case.arguments(0)
    explain = braze.explain(case.model)
    graphs = []
    with torch.no_grad():
        for training in (False, True, False, True):
            case.model.train(training)
            torch.manual_seed(0)
            explanation = explain(*arguments, **keywords)
            graphs.append(explanation.graph_count)
            if not training:
                expected = case.model(*arguments, **keywords)
                assert compare(tensors_in(explanation.result), tensors_in(expected)).right
    assert graphs == [1, 1, 0, 0]


def test_hidden_states_are_captured_by_hooks_that_the_first_call_adds() -> None:
    """transformers registers hooks in the first call, in the midst of it: from the second on, the
    model with its hooks is one graph."""
    case = build(find("gpt2"), size=Size.TINY)
    _, keywords = case.arguments(0)
    explain = braze.explain(case.model)
    counts = []
    with torch.no_grad():
        for _ in range(3):
            explanation = explain(**keywords, output_hidden_states=True)
            counts.append((explanation.graph_count, explanation.break_count))
            expected = case.model(**keywords, output_hidden_states=True)
            assert len(explanation.result.hidden_states) == 3
            assert compare(tensors_in(explanation.result), tensors_in(expected)).right
    assert counts[1:] == [(1, 0), (0, 0)]
