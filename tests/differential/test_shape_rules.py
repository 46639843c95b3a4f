"""Every shape rule against eager: shapes, strides and dtypes of all ATen operators that the calls
of torch.testing's database make, forward and backward, on transposed, sliced and channels-last
inputs too."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from braze.compat.torch.dispatcher import TorchDispatchMode
from braze.ir.types import TensorType
from braze.tracing.shape_rules.infer import RULES
from braze.tracing.shape_rules.strides import tensor_type
from tests.shares import due_today

SAMPLES = 4
PARTS = 4


def described(value: Any) -> Any:
    """The value with TensorType in place of tensors and tuples in place of lists."""
    if isinstance(value, torch.Tensor):
        return tensor_type(value.dtype, tuple(value.shape), value.stride(), value.device)
    if isinstance(value, (list, tuple)):
        return tuple(described(item) for item in value)
    return value


def agree(want: Any, have: Any) -> bool:
    """Whether two described results are equal; strides of empty tensors do not matter."""
    if isinstance(want, TensorType):
        if not isinstance(have, TensorType) or (want.dtype, want.shape) != (have.dtype, have.shape):
            return False
        return want.stride == have.stride or 0 in want.shape
    if isinstance(want, tuple):
        return isinstance(have, tuple) and len(want) == len(have) and all(map(agree, want, have))
    return True


class Check(TorchDispatchMode):
    """Compares each operator's rule with what the operator then returns."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}
        self.checked = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(op)
        if rule is None:
            return op(*args, **kwargs)
        taken = described(args)
        try:
            have = rule(*taken, **{name: described(a) for name, a in kwargs.items()})
        except Exception as error:
            have = error
        result = op(*args, **kwargs)
        if have is not NotImplemented:
            self.checked += 1
            if not agree(described(result), have):
                self.wrong.setdefault(str(op), f"{taken} -> {described(result)}, rule: {have}")
        return result


def as_given(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:
        return tensor
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def other_memory(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return torch.stack([tensor, tensor], -1)[..., 0] if tensor.dim() else tensor


def laid_out(layout: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The value with each tensor in another layout, as a leaf that requires grad."""
    if isinstance(value, torch.Tensor):
        made = layout(value.detach()).detach()
        return made.requires_grad_(made.is_floating_point() and not made.is_inference())
    if type(value) in (list, tuple):
        return type(value)(laid_out(layout, item) for item in value)
    return value


def leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)


def run(info: Any, sample: Any, layout: Any, check: Check) -> None:
    """Forward and backward of one sample under the check."""
    value, args = laid_out(layout, sample.input), laid_out(layout, tuple(sample.args))
    with check:
        results = list(leaves(info.op(value, *args, **sample.kwargs)))
        inputs = list(leaves((value, args)))
        if results and inputs:
            ones = [torch.ones_like(result) for result in results]
            torch.autograd.grad(results, inputs, ones, allow_unused=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", due_today(range(PARTS), 2))
def test_rules_agree_with_eager(part: int) -> None:
    check = Check()
    for info, dtype in itertools.product(op_db[part::PARTS], (torch.float32, torch.int64)):
        if dtype not in info.dtypes:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                samples = list(itertools.islice(info.sample_inputs("cpu", dtype), SAMPLES))
            except Exception:
                continue
            for sample, layout in itertools.product(samples, (as_given, transposed, other_memory)):
                try:
                    run(info, sample, layout, check)
                except Exception:  # inputs that the operator refuses in this layout
                    continue
    assert not check.wrong, check.wrong
    assert check.checked > 10_000 / PARTS
