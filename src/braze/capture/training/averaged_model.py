"""`AveragedModel.update_parameters()`: whether it is the first one is asked of a tensor.

    if self.n_averaged == 0: copy      %9 = eq(%n, 0); %20 = lerp(%mean, %p, 0.1)
    else: average                 ->   %21 = where(%9, %p, %20)     # written to the mean

Both are made, and chosen from, so that the update is part of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.swa_utils import AveragedModel

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import unnoted_call
from braze.capture.training.if_conversion import write_chosen, written_by
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_UPDATE: Any = AveragedModel.update_parameters


@answers(_UPDATE)
def update_parameters(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The update for the first time, and for all others."""
    count = interpreter.attribute(args[0], "n_averaged")
    tracer, counts = interpreter.tracer, interpreter.known_counts
    if type(count) is not TracedTensor or count.dim() or not tracer.gives_numbers or counts:
        return interpreter.call_python(_UPDATE, args, kwargs)
    is_first = tracer.value_of(unnoted_call(interpreter, torch.eq, (count, 0), {}))
    number = tracer.value_of(count)
    sides = []
    for known in (0, 1):
        counts[number] = known
        try:
            _, written = written_by(
                interpreter, lambda: interpreter.call_python(_UPDATE, args, kwargs)
            )
        finally:
            counts.clear()
        sides.append(written)
    write_chosen(tracer, is_first, *sides)
    return None
