"""How far a result is from eager's, and how far both are from a float64 run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn
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
_DRAWS = 4
_LOW_PRECISION = (torch.float32, torch.float16, torch.bfloat16)


@final
@dataclass(frozen=True, slots=True)
class Accuracy:
    """A system's result beside eager's.

    largest_error: the greatest absolute difference to eager over all outputs.
    relative_error: the same, over the greatest absolute value of eager's output it occurs in.
    float64_ratio: the greatest error against float64 over eager's own, of the worst output;
        None where no float64 run was made. Between equally exact programs it is 0.8 to 1.25.
        Eager's own is the greatest of several runs, where a work amplifies rounding.
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


def draws_random_numbers(case: Case, work: Work) -> bool:
    """Whether an eager call advances the CPU's or the device's generator (dropout does)."""
    own = work.case_for(case)
    args, kwargs = case.arguments(0)
    device = next(own.model.parameters()).device
    call = work.make(own, lambda function: function)
    before = _random_state(device)
    call(*args, **kwargs)
    return not torch.equal(before, _random_state(device))


def _random_state(device: torch.device) -> torch.Tensor:
    states = [torch.get_rng_state()]
    return torch.cat(
        [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
    )


def nearby_outputs(case: Case, seed: int, work: Work) -> list[list[torch.Tensor]]:
    """Eager's outputs of the second call, for parameters that are up to two units in the last place
    away, once a draw.

    A step of AdamW moves a parameter by the sign of its gradient at first, so that the loss behind
    it is another one for any rounding: a single run of eager may be right by chance. With
    parameters so close, or in another memory format, eager's ResNet-18 is off by 4e-6 to 4e-3.
    """
    found = []
    for draw in range(_DRAWS):
        own = work.case_for(case)
        move_parameters(own.model, draw)
        call = work.make(own, lambda function: function)
        torch.manual_seed(0)
        for each in (0, seed):
            args, kwargs = case.arguments(each)
            outputs = call(*args, **kwargs)
        found.append([tensor.clone() for tensor in tensors_in(outputs)])
    return found


def move_parameters(model: nn.Module, draw: int) -> None:
    """Each by up to two units in the last place, in place, otherwise for each `draw`."""
    generator = torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for parameter in model.parameters():
            units = torch.randint(-1, 2, parameter.shape, generator=generator)
            size = 2 * torch.finfo(parameter.dtype).eps
            parameter.mul_(1 + units.to(parameter.device) * size)


def _widened(value: Any, device: torch.device) -> Any:
    if hasattr(value, "layers"):  # a key/value cache of transformers
        pairs = [(layer.keys.double(), layer.values.double()) for layer in value.layers]
        return type(value)(pairs)
    return place(value, torch.float64, device)


def compare(
    outputs: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor] | None = None,
    nearby: Sequence[Sequence[torch.Tensor]] = (),
) -> Accuracy:
    """Judge `outputs` against eager's; `reference` are the float64 outputs, in the same order;
    `nearby`: further runs of eager, each in this order, whose errors are eager's own, too."""
    if _signature(outputs) != _signature(eager):
        return Accuracy(math.inf, math.inf, None, None, right=False)
    references = [None] * len(eager) if reference is None else list(reference)
    runs = list(zip(*nearby, strict=True)) if nearby else [()] * len(eager)
    judged = [
        _compare_one(output, expected, exact, others)
        for output, expected, exact, others in zip(outputs, eager, references, runs, strict=True)
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
    output: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor | None,
    nearby: Sequence[torch.Tensor],
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
        own = [_differences(run, reference) for run in (eager, *nearby)]
        others = _differences(output, reference)
        ratio = _ratio(others.max(), torch.stack([run.max() for run in own]).max())
        rms_ratio = _ratio(_rms(others), torch.stack(list(map(_rms, own))).max())
        close = close or ratio <= _ALLOWED_RATIO
    return Accuracy(error, error / (scale or 1.0), ratio, rms_ratio, close)


def _rms(errors: torch.Tensor) -> torch.Tensor:
    return errors.square().mean().sqrt()


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
