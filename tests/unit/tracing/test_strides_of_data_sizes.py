"""Results whose size depends on data have eager's strides: the samples of PyTorch's operator
database, in one graph."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import braze

# Not of `nonzero` and `argwhere`, which are row-major in a graph (docs/limits.md).
_NAMES = frozenset({"masked_select", "unique", "unique_consecutive", "bincount"})
_NAMES |= {"repeat_interleave"}
_OPERATORS = [info for info in op_db if info.name in _NAMES]


def _kinds(results: Any) -> list[tuple[Any, ...]]:
    results = results if isinstance(results, tuple) else (results,)
    return [(t.shape, t.stride(), t.dtype) for t in results]


def _called(op: Any, kwargs: dict[str, Any], x: torch.Tensor, *args: Any) -> Any:
    return op(x, *args, **kwargs)


@pytest.mark.parametrize("info", _OPERATORS, ids=lambda info: info.name)
def test_as_eager(info: Any) -> None:
    dtype = torch.int64 if torch.float32 not in info.dtypes else torch.float32
    seen = 0
    for sample in info.sample_inputs("cpu", dtype):
        if not isinstance(sample.input, torch.Tensor):
            continue
        function = functools.partial(_called, info.op, sample.kwargs)
        for given in (sample.input, sample.input.mT if sample.input.dim() > 1 else sample.input):
            try:
                wanted = function(given, *sample.args)
            except RuntimeError:
                continue
            braze.reset()
            found = braze.compile(function, fullgraph=True)(given, *sample.args)
            assert _kinds(found) == _kinds(wanted), sample
            torch.testing.assert_close(found, wanted)
            seen += 1
    assert seen


@pytest.mark.parametrize("follows", (torch.relu, torch.clone, lambda n: n.float().sum(0)))
def test_no_row_is_a_size_like_others(follows: Any) -> None:
    braze.reset()
    compiled = braze.compile(lambda x: follows(x.nonzero()), fullgraph=True)
    for x in (torch.ones(2, 3), torch.zeros(2, 3), torch.eye(3)):
        torch.testing.assert_close(compiled(x), follows(x.nonzero()))
