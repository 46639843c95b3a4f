"""Fake tensors have the strides, dtypes and shapes of eager's results, however inputs lie.

What an ATen backend runs has eager's strides whatever was promised of it; kernels of our own write
what was promised. So promises are compared themselves, for every operator of torch.testing's
database and inputs that lie otherwise than row by row.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput

from braze.tracing import Tracer, reads_data
from tests.differential.memory_sweep import CRASHES, LAYOUTS
from tests.differential.test_trace_ops import NO_ORACLE, check_sample, label, map_tensors

SAMPLES = 4
SHARDS = 8
_LAYOUTS = [name for name in LAYOUTS if name != "empty"]
# Found and not mended.
_KNOWN = frozenset(
    {
        *(f"fft.rfftn {layout}" for layout in ("transposed", "stepped", "expanded")),
        "native_dropout_backward transposed",
        *(f"nn.functional.{name} transposed" for name in ("conv1d", "conv_transpose1d")),
        "nn.functional.max_pool1d transposed",
        *(f"view_copy {layout}" for layout in ("transposed", "stepped", "expanded")),
    }
)
_NAMED = frozenset(
    "nn.functional.logsigmoid nn.functional.rrelu nn.functional.batch_norm normal "
    "native_batch_norm nn.functional.conv_transpose1d nn.functional.conv_transpose2d "
    "nn.functional.pad.replicate_negative nn.functional.pixel_shuffle "
    "nn.functional.pixel_unshuffle nn.functional.channel_shuffle fft.rfftn "
    "fft.fftshift angle".split()
)


def _differences(info: Any) -> dict[str, str]:
    """By operator and layout, what is the matter with the first sample that differs."""
    if info.name in NO_ORACLE | CRASHES or torch.float32 not in info.dtypes:
        return {}
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        samples = list(itertools.islice(info.sample_inputs("cpu", torch.float32), SAMPLES))
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
