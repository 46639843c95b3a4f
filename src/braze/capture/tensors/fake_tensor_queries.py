"""Which calls of PyTorch's are made on fake tensors, and which of their results are believed.

x * 2, F.relu(x)      tensors, from the dispatcher: the tracer recorded them
x.dim()               a row of `tracing/fake_tensor_queries.py` says what keeps the number true
x.data_ptr()          no row: a graph break
torch._C._f(x)        no operator of ATen, and no row: a graph break before it is called
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from braze.capture.frames.control_signals import BreakRequested
from braze.compat.private_names import OpOverload, OpOverloadPacket
from braze.compat.python.packages import is_of_package
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.fake_tensor_queries import (
    QUESTIONS,
    QUESTIONS_OF_MODULES,
    gives_nothing,
    is_known,
)
from braze.tracing.wrapper_fake import WrapperFake

# Where PyTorch binds its operators, under ATen's names.
_OPERATOR_HOMES = frozenset(
    {
        "torch",
        "torch._C._nn",
        "torch._C._linalg",
        "torch._C._fft",
        "torch._C._special",
        "torch._C._sparse",
        "torch._C._nested",
        "torch._C._VariableFunctions",
    }
)
_OPERATORS = (OpOverload, OpOverloadPacket)
_LASTING = frozenset(
    {
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType),
        *(types.MethodWrapperType, types.FunctionType, *_OPERATORS),
    }
)
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def check_question(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Break before a call of PyTorch's C code on tensors that is neither an operator nor known."""
    refused = _refused_name(function) if type(function) in _LASTING else None
    if refused is not None and (_has_tensor(args) or _has_tensor(tuple(kwargs.values()))):
        raise BreakRequested("unsupported-tensor", refused)


def check_foreign(function: Any, args: tuple[object, ...]) -> None:
    """Break before C code that is not PyTorch's asks a fake tensor for what it is as an object: its
    size in memory, its references, what it would be pickled as."""
    owner = getattr(function, "__objclass__", None)
    is_asked = function.__name__ in _OF_OBJECTS if owner is object else _asks_objects(function)
    if is_asked and _has_tensor(args):
        raise BreakRequested("unsupported-tensor", f"{_label(function)} of a tensor")


_OF_OBJECTS = frozenset({"__sizeof__", "__reduce__", "__reduce_ex__", "__getstate__", "__dir__"})


def _asks_objects(function: object) -> bool:
    return getattr(function, "__module__", None) in ("sys", "gc")


def check_answer(
    function: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    result: object,
    wrapped: bool,
) -> None:
    """Break where a call on tensors gave something that neither the tracer recorded nor a row
    knows. wrapped: results may be functorch's wrappers of fake tensors."""
    if _is_of_tensors(result, wrapped):
        return
    if type(function) in _LASTING:
        is_believed = _may_answer(function)
    else:  # a scripted function is the program's: no cache keeps it alive
        is_believed = type(function) is not torch.jit.ScriptFunction
    if is_believed:
        return
    if _has_tensor(args) or _has_tensor(tuple(kwargs.values())):
        kind = type(result).__qualname__
        raise BreakRequested("unsupported-tensor", f"{_label(function)} gives a {kind}")


def _is_of_tensors(result: Any, wrapped: bool) -> bool:
    cls = type(result)
    if cls is TracedTensor or cls is WrapperFake:
        return True
    if cls is tuple or cls is list or issubclass(cls, tuple):
        return all(item is None or _is_of_tensors(item, wrapped) for item in result)
    return wrapped and cls is torch.Tensor


def _has_tensor(values: Any) -> bool:
    for value in values:
        cls = type(value)
        if cls is TracedTensor or cls is WrapperFake or cls is torch.Tensor:
            return True
        if (cls is tuple or cls is list) and _has_tensor(value):
            return True
        if cls is dict and _has_tensor(value.values()):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _refused_name(function: object) -> str | None:
    """The name of a C function that may not be called on tensors; None for others."""
    if isinstance(function, _DESCRIPTORS):
        owner = function.__objclass__
        is_asked = issubclass(torch.Tensor, owner) and not is_known(function.__name__)
        return f"Tensor.{function.__name__}" if is_asked else None
    label = _label(function)
    if type(function) is types.FunctionType:
        is_asked = label.startswith("torch._tensor.") and function.__qualname__[:7] == "Tensor."
        return (
            f"Tensor.{function.__name__}" if is_asked and not is_known(function.__name__) else None
        )
    if isinstance(function, _OPERATORS):
        home, _, name = label.partition(".")
        return label if home == "aten" and not is_known(name) else None
    if type(function) is not types.BuiltinFunctionType:
        return None
    if not is_of_package(label, "torch") or label in QUESTIONS_OF_MODULES:
        return None
    home, _, name = label.rpartition(".")
    return None if home in _OPERATOR_HOMES and is_known(name) else label


@functools.lru_cache(maxsize=4096)
def _may_answer(function: object) -> bool:
    """Whether what a function gives is believed, though it is no tensor."""
    if isinstance(function, _DESCRIPTORS):
        return function.__name__ in QUESTIONS
    if type(function) is types.MethodWrapperType:  # of an attribute, asked by name before
        return True
    label = _label(function)
    if isinstance(function, _OPERATORS):
        home, _, name = label.partition(".")
        return home != "aten" or name in QUESTIONS or gives_nothing(name)
    if type(function) is types.FunctionType and function.__qualname__.startswith("Tensor."):
        return function.__name__ in QUESTIONS
    if not is_of_package(label, "torch") or label in QUESTIONS_OF_MODULES:
        return True
    home, _, name = label.rpartition(".")
    return home in _OPERATOR_HOMES and (name in QUESTIONS or gives_nothing(name))


def _label(function: object) -> str:
    """Module and name of a function; namespace and name of an operator."""
    if isinstance(function, OpOverload):
        return function._schema.name.replace("::", ".")
    if isinstance(function, OpOverloadPacket):
        return function._qualified_op_name.replace("::", ".")
    name = getattr(function, "__name__", None) or type(function).__name__
    module = getattr(function, "__module__", None)
    if module is None:
        home = getattr(function, "__self__", None)
        module = getattr(home, "__name__", None) or type(home).__module__
    return f"{module}.{name}"
