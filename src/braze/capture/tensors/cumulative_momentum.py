"""Batch norm whose momentum the graph computes, as `BatchNorm1d(momentum=None)` averages all calls.

    factor = 1.0 / float(self.num_batches_tracked)      %3: float
    F.batch_norm(x, mean, var, ..., True, factor)       batch_norm(x, zeros, zeros, ..., True, 1.0)
                                                        mean.copy_(batch's * %3 + mean * (1 - %3))

The operator takes its momentum as a number that is known. With a momentum of one it leaves the
batch's own statistics in its buffers, and the averages are written with the graph's number.
"""

from __future__ import annotations

import inspect
import operator
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_SIGNATURE = inspect.signature(functional.batch_norm)


@answers(functional.batch_norm)
def batch_norm(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if SymbolicFloat not in map(type, (*args, *kwargs.values())):
        return leaf_call(interpreter, functional.batch_norm, args, kwargs)
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    options = given.arguments
    statistics = ("running_mean", "running_var")
    momentum, running = options["momentum"], [options[name] for name in statistics]
    if type(momentum) is not SymbolicFloat or not options["training"] or None in running:
        return leaf_call(interpreter, functional.batch_norm, args, kwargs)
    of_batch = [leaf_call(interpreter, torch.zeros_like, (one,), {}) for one in running]
    options.update(zip(statistics, of_batch, strict=True), momentum=1.0)
    result = leaf_call(interpreter, functional.batch_norm, (), dict(options))
    rest = interpreter.call(operator.sub, 1.0, momentum)
    for new, old in zip(of_batch, running, strict=True):
        parts = [
            interpreter.call(operator.mul, tensor, weight)
            for tensor, weight in ((new, momentum), (old, rest))
        ]
        leaf_call(
            interpreter, torch.Tensor.copy_, (old, interpreter.call(operator.add, *parts)), {}
        )
    return result
