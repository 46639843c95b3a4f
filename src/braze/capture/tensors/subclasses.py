"""Tensor subclasses that inherit `Tensor.__torch_function__`: results of torch calls on them are
of their class. A class with a `__torch_function__` of its own breaks the graph where it is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.compat.python.iterator_state import base_items
from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import TorchFunction, torch_function_enabled, torch_function_of
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


# These ask no `__torch_function__`: what they make is no tensor of a subclass.
PLAIN_RESULTS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


def result_class(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> type | None:
    """The class that a call's results get, or None: of the arguments' classes, the most derived,
    which all others must be bases of."""
    classes = interpreter.guard_context.classes_of
    found: list[type] = []
    for fake in _fakes((args, tuple(kwargs.values()))):
        cls = classes.get(id(fake))
        if cls is not None and torch_function_of(cls) is TorchFunction.DEFAULT:
            found.append(cls)
    if not found or not torch_function_enabled():
        return None
    chosen = found[0]
    for cls in found[1:]:
        chosen = cls if issubclass(cls, chosen) else chosen
    if not all(issubclass(chosen, cls) for cls in found):
        raise BreakRequested("unsupported-tensor", "a call on tensors of unrelated subclasses")
    return chosen


def check_made_plainly(interpreter: Interpreter, cls: type, args: tuple[object, ...]) -> None:
    """A break unless `cls(*args)` is what `torch.Tensor(*args)` of plain tensors is, but for the
    class."""
    classes = interpreter.guard_context.classes_of
    of_args = {classes.get(id(fake), torch.Tensor) for fake in _fakes(args)}
    is_own = cls is not torch.Tensor and torch_function_of(cls) is not TorchFunction.DEFAULT
    if is_own or not of_args <= {torch.Tensor}:
        raise BreakRequested("unsupported-tensor", f"making a {cls.__qualname__}")


def of_class(interpreter: Interpreter, result: Any, cls: type, args: tuple[Any, ...]) -> object:
    """A call's results as tensors of the class; arguments among them that are not stay as they
    are, and another tensor object is given."""
    if type(result) is TracedTensor:
        guard_context = interpreter.guard_context
        known = guard_context.classes_of.get(id(result))
        if known is not None and issubclass(known, cls):
            return result
        if known is not None or any(result is fake for fake in _fakes(args)):
            result = aten.alias.default(result)
        guard_context.give_class(result, cls)
        return result
    if type(result) in (list, tuple):
        return type(result)([of_class(interpreter, item, cls, args) for item in result])
    if isinstance(result, tuple):
        raise BreakRequested("unsupported-tensor", "several results of a tensor subclass by name")
    return result


@answers(torch.Tensor.as_subclass)
def as_subclass(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Another tensor object on the same memory."""
    tensor, cls = args if not kwargs else (*args, kwargs["cls"])
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        return interpreter.native(torch.empty(0, device="cpu").as_subclass, cls)
    if torch_function_of(cls) is TorchFunction.OWN:
        raise BreakRequested("unsupported-tensor", f"as_subclass({cls.__qualname__})")
    made = interpreter.native(aten.alias.default, tensor)
    interpreter.guard_context.give_class(made, cls)
    return made


def _fakes(value: object) -> Iterator[object]:
    if type(value) is TracedTensor:
        yield value
    elif issubclass(type(value), (list, tuple)):
        for item in base_items(value):
            yield from _fakes(item)
    elif type(value) is dict:
        yield from _fakes(tuple(value.values()))
