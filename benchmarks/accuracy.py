"""How far a result is from eager's, and how far both are from a float64 run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.models import Case, place, tensors_in
from benchmarks.work import WORKS, Work

# What torch.testing.assert_close allows: (relative, absolute).
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
_ALLOWED_RATIO = 2.0
_LOW_PRECISION = (torch.float32, torch.float16, torch.bfloat16)


@final
@dataclass(frozen=True, slots=True)
class Accuracy:
    """A system's result beside eager's.

    largest_error: the greatest absolute difference to eager over all outputs.
    relative_error: the same, over the greatest absolute value of eager's output it occurs in.
    float64_ratio: the greatest error against float64 over eager's own, of the worst output;
        None where no float64 run was made. Between equally exact programs it is 0.8 to 1.25.
    float64_rms_ratio: the same of root mean squares (0.99 to 1.05).
    right: every output is within the dtype's tolerance of eager, or its greatest error against
        float64 is at most twice eager's own.
    """

    largest_error: float
    relative_error: float
    float64_ratio: float | None
    float64_rms_ratio: float | None
    right: bool


class Float64Everywhere(TorchDispatchMode):
    """Turns every conversion to a shorter floating type into one to float64.

    Models cast to float32 inside (normalisation, rotary embedding, softmax): without this, what
    is called a float64 run would carry float32's errors.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        changed = {
            name: torch.float64 if value in _LOW_PRECISION else value
            for name, value in (kwargs or {}).items()
            if isinstance(value, torch.dtype)
        }
        return func(*args, **{**(kwargs or {}), **changed})


def float64_outputs(case: Case, seed: int = 0, work: Work = WORKS["forward"]) -> list[torch.Tensor]:
    """The outputs of the same weights and inputs, computed in float64 throughout; those of the
    second call, where a call changes the model."""
    model = copy.deepcopy(case.model).double()
    device = next(model.parameters()).device
    call = work.make(replace(case, model=model), lambda function: function)
    torch.manual_seed(0)
    with torch.set_grad_enabled(work.grad_mode == "grad"), Float64Everywhere():
        for each in (0, seed) if work.changes_model else (seed,):
            args, kwargs = case.arguments(each)
            args = tuple(_widened(value, device) for value in args)
            kwargs = {name: _widened(value, device) for name, value in kwargs.items()}
            found = call(*args, **kwargs)
        return [tensor.clone() for tensor in tensors_in(found)]


def _widened(value: Any, device: torch.device) -> Any:
    if hasattr(value, "layers"):  # a key/value cache of transformers
        pairs = [(layer.keys.double(), layer.values.double()) for layer in value.layers]
        return type(value)(pairs)
    return place(value, torch.float64, device)


def compare(
    outputs: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor] | None = None,
) -> Accuracy:
    """Judge `outputs` against eager's; `reference` are the float64 outputs, in the same order."""
    if _signature(outputs) != _signature(eager):
        return Accuracy(math.inf, math.inf, None, None, right=False)
    references = [None] * len(eager) if reference is None else list(reference)
    judged = [
        _compare_one(output, expected, exact)
        for output, expected, exact in zip(outputs, eager, references, strict=True)
    ]
    return Accuracy(
        _worst(part.largest_error for part in judged) or 0.0,
        _worst(part.relative_error for part in judged) or 0.0,
        _worst(part.float64_ratio for part in judged),
        _worst(part.float64_rms_ratio for part in judged),
        all(part.right for part in judged),
    )


def _worst(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _signature(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in tensors]


def _compare_one(
    output: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None
) -> Accuracy:
    if not eager.is_floating_point():
        differs = float((output != eager).sum())
        return Accuracy(differs, differs, None, None, right=differs == 0)
    relative, absolute = TOLERANCES[eager.dtype]
    close = torch.allclose(output, eager, rtol=relative, atol=absolute, equal_nan=True)
    error = float(_differences(output, eager).max()) if eager.numel() else 0.0
    scale = float(eager.double().abs().max()) if eager.numel() else 0.0
    ratio = rms_ratio = None
    if reference is not None and eager.numel():
        own, others = _differences(eager, reference), _differences(output, reference)
        ratio = _ratio(others.max(), own.max())
        rms_ratio = _ratio(others.square().mean().sqrt(), own.square().mean().sqrt())
        close = close or ratio <= _ALLOWED_RATIO
    return Accuracy(error, error / (scale or 1.0), ratio, rms_ratio, close)


def _ratio(error: torch.Tensor, own: torch.Tensor) -> float:
    if own == 0:
        return 1.0 if error == 0 else math.inf
    return float(error / own) if own.isfinite() else 1.0


def _differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Absolute differences in float64; infinite where NaN or infinity is on one side only."""
    first, second = a.double(), b.double()
    same = (first == second) | (first.isnan() & second.isnan())
    difference = torch.where(same, torch.zeros_like(first), (first - second).abs())
    return torch.nan_to_num(difference, nan=math.inf, posinf=math.inf)
