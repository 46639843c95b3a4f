"""Where tensors become arrays and arrays tensors, and functions of NumPy's that are builtins or
Python code."""

from __future__ import annotations

import types
from typing import Any

import torch

import braze.capture.array_methods  # noqa: F401
from braze.capture.array_standin import ArrayStandin, refusal
from braze.capture.handler_table import CALL_HANDLERS, answers
from braze.capture.leaf_calls import leaf_call
from braze.capture.world import TENSORS
from braze.compat.numpy_interface import FUNCTION_NAMES, SCALARS, numpy


@answers(torch.Tensor.numpy)
def _numpy(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if type(tensor) not in TENSORS or interpreter.transforms:
        raise refusal("Tensor.numpy of such a tensor")
    if tensor.requires_grad and not kwargs.get("force"):
        raise refusal("Tensor.numpy of a tensor that requires gradients")
    if tensor.requires_grad:
        tensor = leaf_call(interpreter, torch.Tensor.detach, (tensor,), {})
    return interpreter.arrays.of_tensor(tensor)


@answers(torch.from_numpy)
def _from_numpy(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (array,) = args
    if type(array) is not ArrayStandin:
        return leaf_call(interpreter, torch.from_numpy, args, kwargs)
    if array.is_scalar or not array.like.flags.writeable or array.base_array is not None:
        raise refusal("torch.from_numpy of such an array")
    tensor = interpreter.arrays.tensor(array)
    return leaf_call(interpreter, torch.Tensor.view_as, (tensor, tensor), {})


def _register_functions() -> None:
    for function in FUNCTION_NAMES:
        builtin = isinstance(function, (types.BuiltinFunctionType, types.FunctionType))
        if builtin and function not in CALL_HANDLERS:

            @answers(function)
            def call(
                interpreter: Any,
                args: tuple[Any, ...],
                kwargs: dict[str, Any],
                function: Any = function,
            ) -> Any:
                return interpreter.arrays.call(function, args, kwargs)


def _register_scalars() -> None:
    for cls in SCALARS:

        @answers(cls)
        def make(
            interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cls: type = cls
        ) -> Any:
            if len(args) == 1 and not kwargs and type(args[0]) is ArrayStandin:
                return interpreter.arrays.call.converted(cls, args[0])
            plain = all(type(value) in _NUMBERS or type(value) in SCALARS for value in args)
            if kwargs or not plain:
                raise refusal(f"numpy.{cls.__name__} of such arguments")
            return interpreter.native(cls, *args)


_NUMBERS = frozenset({bool, int, float, complex, str})
if numpy is not None:
    _register_functions()
    _register_scalars()
