"""`torch.cond` in a graph: both branches are computed, and `torch.where` selects.

That is the same as running one of them where the branches only compute: no writes, no random
numbers, no gradients (those of the branch that is not taken may be infinite, and zero times
infinity is no number). Costly branches are selected in the graph only where no break is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.capture.handler_table import answers
from braze.capture.leaf_calls import leaf_call
from braze.capture.signals import BreakRequested
from braze.capture.truth import truth
from braze.capture.world import CONSTANTS, TENSORS
from braze.compat.higher_order import COND
from braze.ir.op_effects import has_effects

_COSTLY = (
    "mm addmm bmm baddbmm addmv mv dot convolution _convolution _scaled_dot_product linalg_ "
    "_fft embedding_bag grid_sampler lstm gru rnn"
).split()


@answers(torch.cond, COND)
def condition(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The branch that a number or a bool chooses; both, where a tensor does."""
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args)) | kwargs
    predicate, branches = given["pred"], (given["true_fn"], given["false_fn"])
    operands = tuple(interpreter.overlay.contents(given.get("operands", ())))
    if type(predicate) not in TENSORS:
        return interpreter.call(branches[not truth(interpreter, predicate)], *operands)
    if predicate.numel() != 1:
        raise BreakRequested("condition", "its predicate is not one number")
    if interpreter.transforms:
        raise BreakRequested("condition", "it is transformed by torch.func")
    results = [_pure_result(interpreter, branch, operands) for branch in branches]
    if predicate.dtype is not torch.bool:
        predicate = leaf_call(interpreter, torch.ne, (predicate, 0), {})
    if predicate.dim():
        predicate = leaf_call(interpreter, torch.reshape, (predicate, ()), {})
    return _selected(interpreter, predicate, *results)


def _pure_result(interpreter: Any, branch: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    recorder, overlay = interpreter.tracer.recorder, interpreter.overlay
    calls, writes = recorder.progress
    state = overlay.extent()
    effects = _effects(interpreter)
    result = interpreter.call(branch, *operands)
    if recorder.progress[1] != writes or overlay.extent() != state:
        raise BreakRequested("condition", "a branch writes to what existed before")
    if _effects(interpreter) != effects:
        raise BreakRequested("condition", "a branch logs, raises or draws numbers of Python's")
    ops = [call[0] for call in recorder.calls[calls:]]
    if any(has_effects(op) for op in ops):
        raise BreakRequested("condition", "a branch draws random numbers, or has other effects")
    options = interpreter.request.options
    names = [op.name().partition("::")[2] for op in ops]
    costly = [name for name in names if any(_is_costly(name, word) for word in _COSTLY)]
    if costly and not (options is not None and options.fullgraph):
        raise BreakRequested("condition", f"a branch is costly ({costly[0]}): one is left out")
    return result


def _effects(interpreter: Any) -> tuple[int, ...]:
    """How often so far something was put off, drawn or assumed."""
    return len(interpreter.late_calls), len(interpreter.draws), len(interpreter.assumed)


def _is_costly(name: str, word: str) -> bool:
    return (
        name.startswith(word) if word[0] == "_" or word[-1] == "_" else name.split(".")[0] == word
    )


def _selected(interpreter: Any, predicate: Any, first: Any, second: Any) -> Any:
    """What `where` gives, item by item; BreakRequested where the branches give other things."""
    if type(first) in TENSORS and type(second) in TENSORS:
        if torch.is_grad_enabled() and (first.requires_grad or second.requires_grad):
            raise BreakRequested("condition", "gradients flow through a branch")
        if (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device):
            return leaf_call(interpreter, torch.where, (predicate, first, second), {})
    elif type(first) is type(second) and type(first) in (tuple, list):
        if len(first) == len(second):
            pairs = zip(first, second)
            return type(first)([_selected(interpreter, predicate, *pair) for pair in pairs])
    elif type(first) is type(second) is dict:
        if list(first) == list(second):
            return {k: _selected(interpreter, predicate, first[k], second[k]) for k in first}
    elif type(first) is type(second) and type(first) in CONSTANTS and first == second:
        return first
    raise BreakRequested("condition", "its branches give other kinds of results")
