"""A Python float among an operator's arguments changes between calls, so that it is a symbol from
the second compile on: every operator of PyTorch's database that takes one agrees with eager, and
no stage fails.

The operators are listed: to look through the samples of all takes 46 s of processor time, in each
process that collects tests. A nightly test looks whether one is missing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

import braze
from tests.differential.graph_text import FAULT

# Random results, or memory that nobody wrote.
_LEFT_OUT = ("empty", "rand", "bernoulli", "multinomial", "normal", "dropout", "rrelu", "uniform")
_LEFT_OUT += ("cauchy", "exponential", "geometric", "log_normal", "new_empty", "fractional")


def _float_places(sample: Any) -> Iterator[tuple[int | str, float]]:
    """Where a sample has a float that is finite."""
    for place, value in (*enumerate(sample.args), *sample.kwargs.items()):
        if type(value) is float and math.isfinite(value):
            yield place, value


# Operators with such a sample.
_OPERATORS = """
_batch_norm_with_update _native_batch_norm_legit _unsafe_masked_index _upsample_bilinear2d_aa
add addbmm addcdiv addcmul addmm addmv addr allclose arange baddbmm cdist constant_pad_nd
copysign cumulative_trapezoid full full_like gradient index_fill isclose lerp linalg.matrix_rank
linalg.norm linalg.norm.subgradients_at_zero linalg.pinv linalg.vector_norm logit logspace
logspace.tensor_overload masked.norm masked.std masked.var nanquantile native_batch_norm
native_group_norm native_layer_norm new_full nn.functional.batch_norm
nn.functional.cosine_embedding_loss nn.functional.cosine_similarity nn.functional.embedding
nn.functional.embedding_bag nn.functional.gaussian_nll_loss nn.functional.group_norm
nn.functional.hardshrink nn.functional.hardtanh nn.functional.hinge_embedding_loss
nn.functional.huber_loss nn.functional.instance_norm nn.functional.interpolate.area
nn.functional.interpolate.bicubic nn.functional.interpolate.bilinear
nn.functional.interpolate.linear nn.functional.interpolate.nearest
nn.functional.interpolate.nearest-exact nn.functional.interpolate.trilinear
nn.functional.layer_norm nn.functional.local_response_norm nn.functional.margin_ranking_loss
nn.functional.multi_head_attention_forward nn.functional.multi_margin_loss
nn.functional.pad.constant nn.functional.pairwise_distance nn.functional.pdist
nn.functional.poisson_nll_loss nn.functional.rms_norm nn.functional.scaled_dot_product_attention
nn.functional.softplus nn.functional.softshrink nn.functional.threshold
nn.functional.triplet_margin_loss nn.functional.triplet_margin_with_distance_loss
nn.functional.upsample_bilinear nn.functional.upsample_nearest norm quantile renorm rsub scatter
searchsorted signal.windows.gaussian signal.windows.general_hamming signal.windows.kaiser
sparse.sampled_addmm std std_mean sub trapezoid trapz var var_mean
""".split()


def _name(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}".rstrip(".")


def _is_swept(info: OpInfo) -> bool:
    left_out = any(word in _name(info) for word in _LEFT_OUT)
    return torch.float32 in info.dtypes and not left_out


def _cases(info: OpInfo) -> dict[int | str, tuple[Any, float]]:
    """Each place of a float, with the first sample that has one there and its value."""
    found: dict[int | str, tuple[Any, float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in info.sample_inputs("cpu", torch.float32):
            for place, value in _float_places(sample):
                found.setdefault(place, (sample, value))
    return found


def _program(op: Callable[..., Any], sample: Any, place: int | str) -> Callable[..., Any]:
    def program(first: Any, number: float) -> Any:
        args, kwargs = list(sample.args), dict(sample.kwargs)
        if isinstance(place, int):
            args[place] = number
        else:
            kwargs[place] = number
        return op(first, *args, **kwargs)

    return program


def _outcome(call: Callable[[], Any]) -> Any:
    torch.manual_seed(0)  # some drop values at random
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", _OPERATORS)
def test_changing_float_gives_eagers_result(name: str) -> None:
    variants = [info for info in op_db if _name(info) == name]
    cases = [(info, *case) for info in variants for case in _cases(info).items()]
    if not cases:
        pytest.skip("this version of PyTorch has no sample of it with a float")
    for info, place, (sample, value) in cases:
        _check(info.op, sample, place, value)


@pytest.mark.nightly
def test_all_operators_with_floats_are_listed() -> None:
    found = {_name(info) for info in op_db if _is_swept(info) and _cases(info)}
    assert found <= {*_OPERATORS}, sorted(found - {*_OPERATORS})


def _check(op: Callable[..., Any], sample: Any, place: int | str, value: float) -> None:
    program = _program(op, sample, place)
    compiled = braze.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", FAULT, braze.errors.BrazeWarning)
        for number in (value, value * 0.5 + 0.25, value + 1.0, value):
            expected = _outcome(lambda n=number: program(sample.input, n))
            actual = _outcome(lambda n=number: compiled(sample.input, n))
            if isinstance(expected, type) or isinstance(actual, type):
                assert actual == expected, (place, number)
            else:
                torch.testing.assert_close(actual, expected, equal_nan=True)
