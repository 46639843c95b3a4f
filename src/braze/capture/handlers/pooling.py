"""Pooling whose window is a symbolic size: over a whole image it is a mean, or a maximum.

    avg_pool2d(x, x.shape[2:])    x.mean((-2, -1), keepdim=True)

PyTorch's pooling takes windows as numbers, which would compile the program for one size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS
from braze.shapes.symbolic import ProgramInt
from braze.tracing.python_decompositions import MAX_POOL

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _of_average(
    input: object,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    ceil_mode: object = False,
    count_include_pad: object = True,
    divisor_override: object = None,
) -> None: ...


def _mean(interpreter: Interpreter, image: object, rank: int) -> object:
    dims = tuple(range(-rank, 0))
    return leaf_call(interpreter, torch.mean, (image, dims, True), {})


def _maximum(interpreter: Interpreter, image: Any, rank: int) -> object:
    """Of equal values the first one gets the gradient, as in pooling: so not `amax`."""
    ahead = image.shape[:-rank]
    flat = leaf_call(interpreter, torch.flatten, (image, -rank), {})
    values = leaf_call(interpreter, torch.max, (flat, -1), {})[0]
    return leaf_call(interpreter, torch.reshape, (values, (*ahead, *([1] * rank))), {})


_Pooling = Callable[[Any, Any, int], Any]
_AVERAGE = inspect.signature(_of_average)
# By function: its dimensions, its signature, and what it is of a whole image.
_POOLINGS: dict[Any, tuple[int, inspect.Signature, _Pooling]] = {
    torch.avg_pool1d: (1, _AVERAGE, _mean),
    functional.avg_pool2d: (2, _AVERAGE, _mean),
    functional.avg_pool3d: (3, _AVERAGE, _mean),
    functional.max_pool1d: (1, MAX_POOL, _maximum),
    functional.max_pool2d: (2, MAX_POOL, _maximum),
    functional.max_pool3d: (3, MAX_POOL, _maximum),
}


def _answer_for(
    function: object, rank: int, signature: inspect.Signature, pooling: _Pooling
) -> None:
    @answers(function)
    def pool(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return leaf_call(interpreter, function, args, kwargs)
        given.apply_defaults()
        if _is_of_whole_image(given.arguments, rank):
            return pooling(interpreter, given.arguments["input"], rank)
        return leaf_call(interpreter, function, args, kwargs)


for _function, (_rank, _signature, _whole) in _POOLINGS.items():
    _answer_for(_function, _rank, _signature, _whole)


def _is_of_whole_image(given: dict[str, Any], rank: int) -> bool:
    """Whether a window is symbolic, and is all of the image."""
    image, window = given["input"], _each(given["kernel_size"], rank)
    if type(image) not in TENSORS or not rank < image.dim() <= rank + 2:
        return False
    if not any(type(size) is ProgramInt for size in window):
        return False
    plain = all(pad == 0 for pad in _each(given["padding"], rank))
    plain = plain and all(step == 1 for step in _each(given.get("dilation", 1), rank))
    if not plain or given.get("return_indices") or given.get("divisor_override") is not None:
        return False
    return all(map(_is_same, window, image.shape[-rank:]))


def _each(value: object, rank: int) -> tuple[object, ...]:
    """One value a dimension, as pooling reads its arguments."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


def _is_same(window: object, size: object) -> bool:
    """Two symbols that are equal now are taken to stay so; a symbol is no number."""
    return type(window) is type(size) and bool(window == size)
