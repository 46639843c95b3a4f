"""Calls of torch, really made on stand-ins under the tracer, and noted at the torch level."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.signals import BreakRequested, ProgramRaised
from braze.capture.world import CONSTANTS
from braze.errors import CaptureError
from braze.ir.frame import TorchCall
from braze.standins import DataDependent, UnknownTensor, Untraceable
from braze.standins.standin import Standin


def leaf_call(
    interpreter: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a torch function, method or operator on stand-ins; note it as a TorchCall."""
    native = interpreter.overlay.native
    args = tuple([native(arg) for arg in args])
    if kwargs:
        kwargs = {name: native(value) for name, value in kwargs.items()}
    name = call_name(function)
    origin = interpreter.origin(name)
    tracer = interpreter.tracer
    tracer.origin = origin
    noted_args = _noted(tracer, args)
    noted_kwargs = tuple((key, _noted(tracer, value)) for key, value in kwargs.items())
    result = traced(function, args, kwargs)
    interpreter.calls.append(
        TorchCall(_target(function), noted_args, noted_kwargs, _noted(tracer, result), origin)
    )
    return result


def traced(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call real code on stand-ins: what cannot be traced breaks, other errors are the program's."""
    try:
        return function(*args, **kwargs)
    except DataDependent as request:
        raise BreakRequested("data-dependent-value", str(request)) from None
    except (Untraceable, UnknownTensor) as request:
        raise BreakRequested("unsupported-tensor", f"{call_name(function)}: {request}") from None
    except CaptureError:
        raise
    except Exception as exception:
        raise ProgramRaised(exception) from None


def call_name(function: Any) -> str:
    """The torch-level name of a callable, as a user writes it."""
    name = getattr(function, "__name__", None) or type(function).__name__
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return f"Tensor.{name}" if issubclass(owner, torch._C.TensorBase) else name
    module = getattr(function, "__module__", None) or ""
    if module in ("torch._C._nn", "torch._C._VariableFunctions"):
        module = "torch"
    return f"{module}.{name}" if module else name


def _target(function: Any) -> Any:
    owner = getattr(function, "__objclass__", None)
    if owner is not None and issubclass(owner, torch._C.TensorBase):
        return function.__name__
    return function


def _noted(tracer: Any, value: Any) -> Any:
    cls = type(value)
    if cls is Standin:
        return tracer.value_of(value)
    if cls in CONSTANTS:
        return value
    if cls is tuple or cls is list:
        return cls([_noted(tracer, item) for item in value])
    if cls is dict:
        return {key: _noted(tracer, item) for key, item in value.items()}
    if cls is slice:
        return slice(*[_noted(tracer, v) for v in (value.start, value.stop, value.step)])
    if isinstance(value, tuple):
        return tuple([_noted(tracer, item) for item in value])
    return value
