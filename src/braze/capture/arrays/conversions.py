"""Where tensors become arrays and arrays tensors, and functions of NumPy's that are builtins or
Python code."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

import braze.capture.arrays.methods  # noqa: F401
from braze.capture.arrays.calls import mapped
from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.calls.handler_registry import CALL_HANDLERS, answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS
from braze.compat.numpy.interface import (
    DTYPE_CLASSES,
    FUNCTION_NAMES,
    SCALARS,
    TENSOR_DTYPES,
    numpy,
)
from braze.compat.numpy.wrappers import arrays_of, tensors_of

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(torch.Tensor.numpy)
def _numpy(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeArray:
    tensor = args[0]
    if type(tensor) not in TENSORS or interpreter.transforms:
        raise refusal("Tensor.numpy of such a tensor")
    if tensor.requires_grad and not kwargs.get("force"):
        raise refusal("Tensor.numpy of a tensor that requires gradients")
    if tensor.requires_grad:
        tensor = leaf_call(interpreter, torch.Tensor.detach, (tensor,), {})
    return interpreter.arrays.of_tensor(tensor)


@answers(torch.from_numpy)
def _from_numpy(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    (array,) = args
    if type(array) is not FakeArray:
        return leaf_call(interpreter, torch.from_numpy, args, kwargs)
    if array.is_scalar or not array.like.flags.writeable or array.base_array is not None:
        raise refusal("torch.from_numpy of such an array")
    tensor = interpreter.arrays.tensor(array)
    return leaf_call(interpreter, torch.Tensor.view_as, (tensor, tensor), {})


@answers(arrays_of)
def _arrays_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Of tensors on any device, and of such as gradients flow through."""
    given = interpreter.side_effects.native(args[0])
    return mapped(given, lambda v: interpreter.arrays.wrapped(v) if type(v) in TENSORS else v)


@answers(tensors_of)
def _tensors_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    given = interpreter.side_effects.native(args[0])
    return mapped(given, lambda v: _tensor_of(interpreter, v))


def _tensor_of(interpreter: Interpreter, value: object) -> object:
    if type(value) is FakeArray:
        tensor = interpreter.arrays.tensor(value)
        return leaf_call(interpreter, torch.Tensor.view_as, (tensor, tensor), {})
    if isinstance(value, (tuple, numpy.generic, numpy.ndarray)):
        raise refusal(f"a {type(value).__qualname__} as tensors")
    return value


def _register_functions() -> None:
    for function in FUNCTION_NAMES:
        builtin = isinstance(function, (types.BuiltinFunctionType, types.FunctionType))
        if builtin and function not in CALL_HANDLERS:

            @answers(function)
            def call(
                interpreter: Interpreter,
                args: tuple[object, ...],
                kwargs: dict[str, object],
                function: object = function,
            ) -> object:
                return interpreter.arrays.call(function, args, kwargs)


def _register_scalars() -> None:
    for cls in SCALARS:

        @answers(cls)
        def make(
            interpreter: Interpreter,
            args: tuple[object, ...],
            kwargs: dict[str, object],
            cls: type = cls,
        ) -> object:
            if len(args) == 1 and not kwargs and type(args[0]) is FakeArray:
                return interpreter.arrays.call.converted(cls, args[0])
            plain = all(type(value) in _NUMBERS or type(value) in SCALARS for value in args)
            if kwargs or not plain:
                raise refusal(f"numpy.{cls.__name__} of such arguments")
            return interpreter.native(cls, *args)


def _register_types() -> None:
    """Data types, and what is known of them."""
    for cls in (numpy.dtype, numpy.finfo, numpy.iinfo):

        @answers(cls)
        def make(
            interpreter: Interpreter,
            args: tuple[object, ...],
            kwargs: dict[str, object],
            cls: Any = cls,
        ) -> object:
            plain = [_names_dtype(value) for value in args]
            if kwargs or len(args) != 1 or not all(plain):
                raise refusal(f"numpy.{cls.__name__} of such arguments")
            return interpreter.native(cls, *args)


def _names_dtype(value: object) -> bool:
    """Whether a constant stands for a data type that is traced."""
    if type(value) is str:
        return _is_traced_name(value)
    return (isinstance(value, type) and value in _DTYPES) or type(value) in DTYPE_CLASSES


def _is_traced_name(name: str) -> bool:
    """Whether NumPy takes a text for a data type that tensors have: it knows many aliases."""
    try:
        return numpy.dtype(name) in TENSOR_DTYPES
    except TypeError:
        return False


_DTYPES = {*SCALARS, bool, int, float, complex}
_NUMBERS = frozenset({bool, int, float, complex, str})
if numpy is not None:
    _register_functions()
    _register_scalars()
    _register_types()
