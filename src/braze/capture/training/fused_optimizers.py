"""Steps of torch.optim that are not interpreted as they are written.

fused=True: the kernel of ATen takes the learning rate as a number and cannot be joined with what is
around it, so the same step in Python is interpreted in its place. Of what the kernel writes
autograd counts nothing; only the counters of steps are counted, which are raised before it.
LBFGS, SparseAdam: what they do next depends on data all the way, so their step breaks the graph as
a whole; the closure that it calls has graphs of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.training.version_counters import WriteCounts
from braze.compat.torch.dynamo_interop import DATA_DEPENDENT_STEPS, FUSED_STEPS

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _replace(fused: Any, plain: Any) -> None:
    @answers(fused)
    def step(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        parameters = interpreter.side_effects.contents(args[0])
        on_cpu = all(p.device.type == "cpu" for p in parameters)
        # Where a scaler of gradients has told it to skip, the kernel looks at that itself.
        is_scaled = any(kwargs.get(name) is not None for name in ("grad_scale", "found_inf"))
        if not on_cpu or is_scaled:
            return interpreter.call_python(fused, args, kwargs)
        uncounted = WriteCounts(_written_by_kernel(interpreter, fused, args))
        result = interpreter.call_python(plain, args, kwargs)
        uncounted.put_back()
        return result


def _written_by_kernel(interpreter: Interpreter, fused: Any, args: tuple[object, ...]) -> list[Any]:
    """What the lists of tensors hold that a step is given, but the counters."""
    lists = [x for name, x in zip(fused.__code__.co_varnames, args) if name != "state_steps"]
    return [
        x
        for given in lists
        if type(given) is list
        for x in interpreter.side_effects.contents(given)
    ]


for _fused, _plain in FUSED_STEPS.items():
    _replace(_fused, _plain)


@answers(*DATA_DEPENDENT_STEPS)
def step_that_breaks(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    raise BreakRequested("optimizer", type(args[0]).__qualname__)
