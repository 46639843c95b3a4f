"""Every row of the table of models, in its small size."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import EIGHT, MODELS, Size, build, find, tensors_in

each_model = pytest.mark.parametrize("name", MODELS)


def _run(case, seed=0):
    args, kwargs = case.arguments(seed)
    return case.model(*args, **kwargs)


def test_eight_models_and_their_variants():
    assert len(EIGHT) == 8
    assert {MODELS[name].variant_of for name in MODELS if name not in EIGHT} <= set(EIGHT)


@each_model
def test_same_model_is_built_twice_and_gives_the_same(name):
    random_state = torch.get_rng_state()
    cases = [build(MODELS[name], size=Size.TINY) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), random_state)
    with torch.no_grad():
        first, second, other = _run(cases[0]), _run(cases[1]), _run(cases[0], seed=1)
    for a, b in zip(tensors_in(first), tensors_in(second), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(tensors_in(first)[0], tensors_in(other)[0])


@each_model
def test_outputs_have_the_dtype_and_spread(name):
    case = build(MODELS[name], torch.bfloat16, size=Size.TINY)
    with torch.no_grad():
        outputs = tensors_in(_run(case))
    assert not case.model.training
    assert {output.dtype for output in outputs} == {torch.bfloat16}
    assert all(float(output.float().std()) > 0.05 for output in outputs)


@each_model
def test_loss_reaches_the_parameters(name):
    case = build(MODELS[name], size=Size.TINY)
    loss = case.loss(_run(case))
    loss.backward()
    assert loss.ndim == 0
    reached = sum(parameter.grad is not None for parameter in case.model.parameters())
    assert reached > 0.5 * len(list(case.model.parameters()))


def test_each_call_of_a_model_that_changes_its_cache_gets_a_new_one():
    case = build(MODELS["llama_decode"], size=Size.TINY)
    caches = [case.arguments(0)[1]["past_key_values"] for _ in range(2)]
    assert caches[0] is not caches[1]
    assert torch.equal(caches[0].layers[0].keys, caches[1].layers[0].keys)


def test_unknown_output_is_not_passed_over():
    with pytest.raises(TypeError, match="object"):
        tensors_in({"logits": object()})


def test_unknown_model_lists_the_models():
    with pytest.raises(ValueError, match="no model 'bart'; there are: densenet121"):
        find("bart")
