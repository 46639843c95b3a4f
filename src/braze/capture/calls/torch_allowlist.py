"""Which callables of torch are called whole, on fake tensors, instead of being looked into."""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.capture.state.side_effects import EXACT
from braze.compat import private_names as private
from braze.compat.python.packages import is_of_package
from braze.compat.torch.state_setters import names_setter

# Python modules of torch whose functions only compute: leaves when their arguments are tensors
# and constants.
_LEAF_MODULES = frozenset(
    {
        "torch.nn.functional",
        "torch.functional",
        "torch._tensor",
        "torch.nn.init",
        "torch.special",
        "torch._VF",
        "torch.linalg",
        "torch.fft",
        "torch._C",
        "torch.nn.utils.rnn",
    }
)
# Functions of torch proper, defined in its package file, that only compute, or ask what the
# ambient vector has.
_TORCH_FUNCTIONS = frozenset(
    {
        "is_tensor",
        "sym_int",
        "sym_float",
        "sym_max",
        "sym_min",
        "sym_not",
        "sym_sum",
        "get_default_device",
        "_check",
    }
)
_PLAIN = TENSORS | CONSTANTS
# What a function bound by pybind11 has for its `__self__`: it is a free function all the same.
_RECORDS = ("PyCapsule", "pybind11_detail_function_record")


# Free functions of torch that start kernels past the dispatcher, on memory: fake tensors have none.
_STARTS_KERNELS = ("_cuda_jiterator_", "_nccl_")


def may_be_leaf(function: types.FunctionType) -> bool:
    """Whether a Python function is called natively where its arguments are plain."""
    module = function.__module__
    if not is_of_package(module, "torch") or names_setter(function.__code__):
        return False
    if module == "torch":
        return function.__name__ in _TORCH_FUNCTIONS
    return module in _LEAF_MODULES


def takes_as_leaf(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether arguments are plain: tensors, constants, containers of such."""
    if kwargs and not all(map(_is_plain, kwargs.values())):
        return False
    return _PLAIN.issuperset(map(type, args)) or all(map(_is_plain, args))


def _is_plain(value: Any) -> bool:
    cls = type(value)
    if cls in _PLAIN:
        return True
    if cls in (tuple, list):
        return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))
    if cls is dict:
        return all(map(_is_plain, value.values()))
    if cls is slice:
        return True
    return cls in EXACT or issubclass(type(value), (torch.Generator, type, tuple))


def is_leaf_builtin(function: Any) -> bool:
    """Whether a C callable is torch's own."""
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return issubclass(owner, private.TensorBase)
    bound_to = getattr(function, "__self__", None)
    if bound_to is torch._C and function.__name__.startswith(_STARTS_KERNELS):
        return False
    if is_binding_record(bound_to):
        return is_of_package(getattr(function, "__module__", None), "torch")
    if type(bound_to) in TENSORS:
        return True
    if isinstance(bound_to, type) and is_of_package(bound_to.__module__, "torch"):
        return True
    if is_of_package(getattr(function, "__module__", None), "torch"):
        return True
    name = getattr(bound_to, "__name__", None) or type(bound_to).__module__
    return is_of_package(name, "torch")


def is_binding_record(value: object) -> bool:
    """Whether a value is what pybind11 binds its free functions to."""
    return type(value).__name__.startswith(_RECORDS)
