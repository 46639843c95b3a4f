from __future__ import annotations

import math

import pytest
import torch
from benchmarks.accuracy import (
    Float64Everywhere,
    compare,
    draws_random_numbers,
    float64_outputs,
    nearby_outputs,
)
from benchmarks.models import MODELS, Case, Size, build, find, tensors_in
from benchmarks.work import WORKS


def test_equal_outputs_are_right_without_error():
    x = torch.randn(3)
    found = compare([x], [x.clone()])
    assert found.right
    assert found.largest_error == 0


def test_error_within_tolerance_is_right_and_beyond_it_wrong():
    x = torch.ones(3)
    assert compare([x * (1 + 1e-6)], [x]).right
    assert not compare([x * 1.001], [x]).right


def test_error_beyond_tolerance_is_right_up_to_twice_eager_s_own():
    exact = torch.zeros(1, dtype=torch.float64)
    eager = torch.tensor([1e-3])
    assert compare([torch.tensor([-1.9e-3])], [eager], [exact]).right
    wrong = compare([torch.tensor([-2.1e-3])], [eager], [exact])
    assert not wrong.right
    assert wrong.float64_ratio == pytest.approx(2.1, rel=1e-3)


def test_eager_s_own_error_is_the_greatest_of_its_runs():
    exact = torch.zeros(1, dtype=torch.float64)
    lucky, usual, output = (torch.tensor([error]) for error in (1e-6, 1e-3, 1.9e-3))
    assert not compare([output], [lucky], [exact]).right
    assert compare([output], [lucky], [exact], [[usual]]).right
    assert not compare([output * 2], [lucky], [exact], [[usual]]).right


def test_nearby_runs_of_a_step_differ_in_the_last_bits_and_leave_the_model():
    case = build(find("resnet18"), size=Size.TINY)
    before = [parameter.clone() for parameter in case.model.parameters()]
    runs = [float(loss) for (loss,) in nearby_outputs(case, 1, WORKS["step"])]
    assert len(set(runs)) > 1
    assert all(map(torch.equal, before, case.model.parameters()))


@pytest.mark.parametrize(("name", "draws"), [("resnet18", False), ("bert", True)])
def test_training_with_dropout_draws_random_numbers(name, draws):
    case = build(find(name), size=Size.TINY)
    assert draws_random_numbers(case, WORKS["step"]) is draws
    assert not draws_random_numbers(case, WORKS["forward"])


def test_one_element_that_is_far_off_among_many_is_wrong():
    exact = torch.zeros(10_000, dtype=torch.float64)
    eager = torch.full((10_000,), 1e-3)
    output = eager.clone()
    output[7] = 3e-3
    found = compare([output], [eager], [exact])
    assert found.float64_ratio == pytest.approx(3)
    assert found.float64_rms_ratio < 1.01
    assert not found.right


def test_every_output_must_be_right():
    right, wrong = torch.ones(2), torch.zeros(2)
    found = compare([right, wrong], [right, right])
    assert not found.right
    assert found.largest_error == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_on_one_side_only_is_wrong(value):
    found = compare([torch.tensor([value])], [torch.tensor([1.0])])
    assert not found.right
    assert found.largest_error == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_same_value_that_is_not_finite_is_right(value):
    x = torch.tensor([value, 1.0])
    found = compare([x], [x.clone()], [x.double()])
    assert found.right
    assert found.largest_error == 0


def test_other_shape_dtype_or_count_is_wrong():
    x = torch.ones(2)
    assert not compare([x[:1]], [x]).right
    assert not compare([x.double()], [x]).right
    assert not compare([x, x], [x]).right


def test_integers_must_be_equal():
    x = torch.tensor([1, 2])
    assert compare([x], [x]).right
    assert not compare([x + 1], [x]).right


def test_conversions_to_short_types_become_float64():
    x = torch.ones(2, dtype=torch.float64)
    with Float64Everywhere():
        assert x.float().dtype == x.to(torch.bfloat16).dtype == torch.float64
        assert torch.softmax(x, 0, dtype=torch.float32).dtype == torch.float64
        assert torch.zeros(2, dtype=torch.int64).dtype == torch.int64


class _CastsInside(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() / self.weight).to(x.dtype)


def test_float64_outputs_are_exact_where_the_model_casts():
    case = Case(_CastsInside(), lambda seed: ((torch.ones(1),), {}), torch.sum)
    (output,) = float64_outputs(case)
    assert output.item() == 1 / 3


def test_float64_outputs_of_a_model_with_a_cache_leave_the_arguments_alone():
    case = build(MODELS["llama_decode"], size=Size.TINY)
    outputs = float64_outputs(case)
    args, kwargs = case.arguments(0)
    with torch.no_grad():
        eager = tensors_in(case.model(*args, **kwargs))
    assert {output.dtype for output in outputs} == {torch.float64}
    assert compare(eager, eager, outputs).right
    assert max(float((a - b).abs().max()) for a, b in zip(eager, outputs, strict=True)) < 1e-5
