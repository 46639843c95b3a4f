"""Fake tensors have the strides, dtypes and shapes of eager's results, however inputs lie.

What an ATen backend runs has eager's strides whatever was promised of it; kernels of our own write
what was promised. So promises are compared themselves, for every operator of torch.testing's
database and inputs that lie otherwise than row by row.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput

import braze
from braze.tracing import Tracer, reads_data
from tests.differential.memory_sweep import CRASHES, LAYOUTS
from tests.differential.test_trace_ops import NO_ORACLE, check_sample, label, map_tensors

SAMPLES = 4
SHARDS = 8
_LAYOUTS = [name for name in LAYOUTS if name != "empty"]
# Capture composes it in Python (`braze.tracing.python_decompositions`), which is not asked here.
_KNOWN = frozenset({"nn.functional.max_pool1d transposed"})
_NAMED = frozenset(
    "nn.functional.logsigmoid nn.functional.rrelu nn.functional.batch_norm normal "
    "native_batch_norm nn.functional.conv_transpose1d nn.functional.conv_transpose2d "
    "nn.functional.pad.replicate_negative nn.functional.pixel_shuffle "
    "nn.functional.pixel_unshuffle nn.functional.channel_shuffle fft.rfftn "
    "fft.fftshift angle heaviside ldexp view_copy native_dropout_backward "
    "nn.functional.conv1d nn.functional.pad.reflect nn.functional.pad.replicate roll".split()
)


def _differences(info: Any) -> dict[str, str]:
    """By operator and layout, what is the matter with the first sample that differs."""
    if info.name in NO_ORACLE | CRASHES or torch.float32 not in info.dtypes:
        return {}
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        every = list(info.sample_inputs("cpu", torch.float32))
        samples = every[:: max(1, len(every) // SAMPLES)][:SAMPLES]
        if samples and isinstance(samples[0].input, torch.Tensor) and _takes_one_tensor(samples[0]):
            samples.append(SampleInput(torch.rand(2, 3, 4, 5) * 0.5 + 0.25))
        for layout, all_tensors in itertools.product(_LAYOUTS, (False, True)):
            for sample in samples:
                if reason := _reason(info, sample, layout, all_tensors):
                    found.setdefault(f"{label(info)} {layout}", reason)
    return found


def _takes_one_tensor(sample: SampleInput) -> bool:
    """The database has but few shapes for such operators. Eager refuses what is not for them."""
    return not sample.args and not sample.kwargs


def _reason(info: Any, sample: Any, layout: str, all_tensors: bool) -> str | None:
    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        is_plain = tensor.layout is torch.strided and not tensor.is_quantized
        return LAYOUTS[layout](tensor.detach().clone()) if is_plain else tensor

    value, args, kwargs = map_tensors(laid_out, sample.input), sample.args, sample.kwargs
    if all_tensors:
        args = tuple(map_tensors(laid_out, list(args)))
        kwargs = map_tensors(laid_out, dict(kwargs))
    try:
        reason = check_sample(info.op, value, args, kwargs)
    except Exception as error:
        if reads_data(error):
            return None
        return f"{type(error).__name__}: {error}"
    is_refused = reason is not None and reason.startswith(
        ("DataDependent", "Untraceable", "Unknown")
    )
    # Values are for the sweeps of values; some are of memory that nobody writes.
    return None if is_refused or reason is None or reason.startswith("values") else reason


def _check(infos: Any) -> None:
    found: dict[str, str] = {}
    for info in infos:
        found |= _differences(info)
    assert not {key: reason for key, reason in found.items() if key not in _KNOWN}


def test_operators_promise_eagers_strides() -> None:
    named = [info for info in op_db if label(info) in _NAMED]
    assert len(named) >= len(_NAMED)
    _check([*named, *op_db[::60]])


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_operator_promises_eagers_strides(shard: int) -> None:
    _check(op_db[shard::SHARDS])


_DTYPES = (torch.bool, torch.int64, torch.float32, torch.complex64)
_SHAPES: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "rows expanded": lambda dtype: torch.ones(2, dtype=dtype).expand(3, 2),
    "columns expanded": lambda dtype: torch.ones(3, 1, dtype=dtype).expand(3, 2),
    "transposed": lambda dtype: torch.ones(2, 3, dtype=dtype).t(),
    "a row": lambda dtype: torch.ones(2, dtype=dtype),
}
_POINTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "div": torch.div,
    "less": torch.lt,
    "equal": torch.eq,
    "and": torch.logical_and,
    "where": lambda a, b: torch.where(a == a, a, b),
    "where expanded": lambda a, b: torch.where(a, b, b.to(torch.complex64)),
    "power": torch.pow,
}


@pytest.mark.parametrize("name", _POINTWISE)
def test_kernels_of_two_dtypes_promise_eagers_strides(name: str) -> None:
    """A kernel for CPUs converts operands before it looks at their strides."""
    function, asked = _POINTWISE[name], 0
    for first, second in itertools.product(_DTYPES, repeat=2):
        for one, other in itertools.product(_SHAPES.values(), repeat=2):
            given = one(first), other(second)
            try:
                expected = function(*given)
            except RuntimeError:  # not of these dtypes
                continue
            tracer = Tracer()
            with tracer:
                promised = function(*map(tracer.add_input, given))
            assert (promised.dtype, promised.stride()) == (expected.dtype, expected.stride()), given
            asked += 1
    assert asked >= 48


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def _matrices_transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def _channels_innermost(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def _one_for_all(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape)


_LYING = (_in_rows, _matrices_transposed, _channels_innermost, _one_for_all)


def _promised(function: Callable[..., Any], *given: torch.Tensor) -> list[Any]:
    tracer = Tracer()
    with tracer:
        return _strides(function(*map(tracer.add_input, given)))


def _strides(made: Any) -> list[Any]:
    results = made if isinstance(made, (tuple, list)) else (made,)
    return [None if each is None else each.stride() for each in results]


# Sizes of an image and of weights.
_CONVOLUTIONS = {
    1: ((2, 3, 5), (4, 3, 2)),
    2: ((2, 3, 5, 4), (4, 3, 2, 2)),
    3: ((2, 3, 4, 4, 4), (4, 3, 2, 2, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rank", _CONVOLUTIONS)
def test_convolutions_promise_eagers_strides(rank: int, dtype: torch.dtype) -> None:
    """Which operand decides depends on their dimensions and dtype; so for gradients."""
    sizes, weight_sizes = _CONVOLUTIONS[rank]
    convolve = getattr(torch.nn.functional, f"conv{rank}d")
    numbers: tuple[Any, ...] = ([1] * rank, [0] * rank, [1] * rank, False, [0] * rank, 1)

    def backward(gradient: Any, x: Any, weight: Any) -> Any:
        wanted = [True, True, False]
        return torch.ops.aten.convolution_backward(gradient, x, weight, [4], *numbers, wanted)

    for lie, other in itertools.product(_LYING, repeat=2):
        x, weight = lie(torch.rand(sizes, dtype=dtype)), other(torch.rand(weight_sizes).to(dtype))
        made = convolve(x, weight)
        assert _promised(convolve, x, weight) == _strides(made), (lie, other)
        gradient = _one_for_all(torch.rand(made.shape, dtype=dtype))
        expected = _strides(backward(gradient, x, weight))
        assert _promised(backward, gradient, x, weight) == expected, (lie, other)


_OF_IMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        f"pad {mode} {count}": functools.partial(
            torch.nn.functional.pad, pad=[1] * count, mode=mode
        )
        for mode, count in itertools.product(("reflect", "replicate"), (4, 6))
    },
    **{
        f"shuffle {groups}": functools.partial(torch.nn.functional.channel_shuffle, groups=groups)
        for groups in (1, 2, 4)
    },
    **{
        f"fft {dims}": functools.partial(torch.fft.rfftn, dim=dims)
        for dims in ((0, 1), (1, 2), (0, 2), (0, 1, 2), (3,))
    },
    "inverse fft": lambda x: torch.fft.irfftn(torch.complex(x, x), dim=(0, 2)),
    "reflected gradient": lambda x: torch.ops.aten.reflection_pad2d_backward(
        torch.ones(2, 4, 5, 6), x, [1, 1, 1, 1]
    ),
    "copied view": lambda x: torch.view_copy(x, (8, -1)),
    "roll of nothing": lambda x: torch.roll(x[:, :0], 1),
    "roll": lambda x: torch.roll(x, 1),
    # The sweep leaves out what is random.
    "poisson": torch.poisson,
    "gamma": torch._standard_gamma,
    "bernoulli": lambda x: torch.bernoulli(x, 0.5),
    "bernoulli of each": torch.bernoulli,
    "dropped": lambda x: torch.nn.functional.dropout(x, 0.5),
    "found": lambda x: torch.isin(x, torch.ones(3)),
    "losses of pixels": lambda x: torch.nn.functional.nll_loss(
        torch.ones(2, 5, 4, 4), x[:, :, 0].long(), reduction="none"
    ),
    "dropout of integers": lambda x: torch.ops.aten.native_dropout_backward(x.long(), x > 0.5, 2.0),
    "dropout": lambda x: torch.ops.aten.native_dropout_backward(x, x > 0.5, 2.0),
}


@pytest.mark.parametrize("lie", _LYING)
@pytest.mark.parametrize("name", _OF_IMAGES)
def test_images_lie_as_in_eager(name: str, lie: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = lie(torch.rand(2, 4, 3, 4))
    assert _promised(_OF_IMAGES[name], x) == _strides(_OF_IMAGES[name](x))


def test_one_hot_rows_are_of_zeros() -> None:
    """A fake tensor would be compared with all classes, which keeps the strides of its operand."""
    index = torch.tensor([[0, 1, 2], [2, 1, 0]]).t()
    compiled = braze.compile(lambda i: torch.nn.functional.one_hot(i, 4), fullgraph=True)
    made = compiled(index)
    assert torch.equal(made, torch.nn.functional.one_hot(index, 4))
    assert made.stride() == torch.nn.functional.one_hot(index, 4).stride()


@pytest.mark.parametrize("weights", [_matrices_transposed, _in_rows])
def test_rows_convolved_with_weights_that_lie_otherwise(weights: Any) -> None:
    """Kernels of our own behind the convolution read it as it lies."""
    x, weight = torch.rand(2, 3, 6), weights(torch.rand(4, 3, 2)).requires_grad_()

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, weight).sin() * 2

    made, expected = braze.compile(function, fullgraph=True)(x, weight), function(x, weight)
    assert made.stride() == expected.stride()
    assert torch.allclose(made, expected)
    (slope,) = torch.autograd.grad(made.square().sum(), weight)
    (wanted,) = torch.autograd.grad(expected.square().sum(), weight)
    assert slope.stride() == wanted.stride()
    assert torch.allclose(slope, wanted, rtol=1e-4)
