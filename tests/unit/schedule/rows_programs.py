"""Functions of which one size changes, compiled on the CPU as if calls were recorded there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import braze
from braze import pipeline
from braze.devices import cpu
from braze.ir.kernels.schedule import Schedule
from braze.runtime.link.link_cuda import paddings
from braze.schedule import CPU

MULTIPLE = 8
Run = Callable[[Sequence[Any]], Sequence[torch.Tensor]]


def filled_by_nan(
    tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """As `padded_graph` fills inputs up, with NaN where that is a number: nobody may see it."""
    made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    inside = made.fill_(float("nan")) if tensor.is_floating_point() else made.zero_()
    for dim, size in enumerate(tensor.shape):
        inside = inside.narrow(dim, 0, size)
    inside.copy_(tensor)
    return made


@dataclass
class Compiled:
    """What was compiled last, with changing sizes: the schedule, what it is called by, and the
    inputs of that call."""

    plan: Schedule
    run: Run
    inputs: Sequence[Any] = ()


def compiled(
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    *calls: Sequence[Any],
    dynamic: bool | None = None,
) -> Compiled:
    """The function after these calls; a size that is another one in the second is a symbol."""
    kept: list[Compiled] = []

    def link(plan: Schedule, *arguments: Any) -> Run:
        run: Any = cpu.DEVICE.link(plan, *arguments)
        made = Compiled(plan, run)
        kept.append(made)

        def noted(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            made.inputs = list(inputs)
            return run(inputs)  # type: ignore[no-any-return]

        return noted

    target = dataclasses.replace(CPU, records=True)
    row = dataclasses.replace(cpu.DEVICE, target=lambda _: target, link=link, paddings=paddings)
    monkeypatch.setattr(pipeline, "device_of_type", {"cpu": row}.get)
    options = {"pad_recordings_to": MULTIPLE, "suppress_errors": False}
    call = braze.compile(function, dynamic=dynamic, options=options)
    with torch.no_grad():
        for inputs in calls:
            call(*inputs)
    return kept[-1]
