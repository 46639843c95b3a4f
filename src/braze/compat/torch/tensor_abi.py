"""Where C code may ask tensors for their metadata: libtorch's stable C interface.

Each function takes the address of a pointer to a tensor's implementation and the address of the
answer; it returns 0 where the tensor can answer.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from braze.compat import private_names as private

# In the order that `guard_native.cpp` expects.
_FUNCTIONS = (
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_get_layout",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_storage_offset",
    "torch_get_const_data_ptr",
    "aoti_torch_get_storage_size",
)
# c10::TensorImpl::requires_grad() const and at::TensorBase::is_leaf() const; not of the stable
# interface, so a build may lack them.
_FLAGS = (
    ("libc10.so", "_ZNK3c1010TensorImpl13requires_gradEv"),
    ("libtorch_cpu.so", "_ZNK2at10TensorBase7is_leafEv"),
)
# try_get_grad_accumulator(const TensorBase&) and hooks(const Tensor&) of torch::autograd::impl.
_HOOKS = (
    "_ZN5torch8autograd4impl24try_get_grad_accumulatorERKN2at10TensorBaseE",
    "_ZN5torch8autograd4impl5hooksERKN2at6TensorE",
)
_DATA = "aoti_torch_get_data_ptr"
# Of the stable interface: an empty tensor, its end, where its data are; and the Python object of a
# tensor, THPVariable_Wrap(const TensorBase&), which is not of that interface.
_ALLOCATION = (
    ("libtorch_cpu.so", "aoti_torch_empty_strided"),
    ("libtorch_cpu.so", "aoti_torch_delete_tensor_object"),
    ("libtorch_cpu.so", _DATA),
    ("libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),
)
_FOLDER = Path(torch.__file__).parent / "lib"

# Classes whose metadata no `__torch_function__` of a user's changes.
PLAIN_TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter)
# These getters are C functions behind attributes of every tensor.
REQUIRES_GRAD: Any = private.TensorBase.__dict__["requires_grad"]
IS_LEAF: Any = private.TensorBase.__dict__["is_leaf"]
GRAD: Any = private.TensorBase.__dict__["grad"]
DATA: Any = private.TensorBase.__dict__["data"]
GRAD_HOOKS: Any = private.grad_hooks


def metadata_functions() -> tuple[int, ...] | None:
    """The addresses of the functions, or None where this build of PyTorch lacks one. The last two
    tell `requires_grad` and `is_leaf`; they are 0 where they are not exported."""
    found = [exported_address("libtorch_cpu.so", name) for name in _FUNCTIONS]
    return (*found, *[exported_address(*flag) for flag in _FLAGS]) if all(found) else None


def hook_functions() -> tuple[int, int] | None:
    """The addresses of what finds a leaf's AccumulateGrad node, if it is alive, and a tensor's
    hooks; None where this build of PyTorch does not export them."""
    node, hooks = (exported_address("libtorch_cpu.so", name) for name in _HOOKS)
    return (node, hooks) if node and hooks else None


@functools.cache
def exported_address(library: str, name: str) -> int:
    """Where a function of one of PyTorch's libraries is; 0 where it is not exported. Asked once:
    ctypes makes a class each time, which only the cycle collector frees."""
    try:
        function = getattr(ctypes.CDLL(str(_FOLDER / library)), name)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The set of a tensor's dispatch keys, a bit each. All that PyTorch decides by a flag of the
    tensor is in it: a lazy conjugate or negation, zeros without memory, inference mode (whose
    tensors lack `ADInplaceOrView`)."""
    return int(private.dispatch_keys_of(tensor).raw_repr())


def key_names(keys: int) -> str:
    """The names of a set of dispatch keys."""
    return str(private.DispatchKeySet.from_raw_repr(keys))


def flagged_samples() -> list[torch.Tensor]:
    """Tensors that are conjugated, negated or zero by a flag, or made in inference mode."""
    numbers = torch.empty(2, dtype=torch.complex64, device="cpu")
    with torch.inference_mode():
        inference = torch.empty(2, device="cpu")
    lazy = numbers.conj()
    return [numbers, lazy, lazy.imag, private.zeros_by_flag((2,), device="cpu"), inference]


def plain_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A view of what a tensor's memory holds, without lazy conjugate and negative bits; gradients
    go through it to the tensor."""
    with torch.set_grad_enabled(tensor.requires_grad):
        if tensor.is_conj():
            tensor = tensor.conj()
        return private.negative_view(tensor) if tensor.is_neg() else tensor


def shared_memory(
    tensors: Sequence[torch.Tensor], starts: Sequence[int], length: int
) -> torch.Tensor:
    """The memory of several tensors as one of a single dimension, in which they begin at `starts`:
    a view of the first, which counts writes to any of them. Raises ValueError where they lie
    otherwise, or are no views of one tensor, so that autograd counts writes to each alone."""
    first = tensors[0]
    root, width = _root(first), first.element_size()
    begin = first.storage_offset() - starts[0]
    for tensor, start in zip(tensors, starts):
        distance = (start - starts[0]) * width
        if _root(tensor) is not root or tensor.data_ptr() - first.data_ptr() != distance:
            raise ValueError("the tensors lie otherwise in their memory")
    if root.requires_grad or begin < 0:
        raise ValueError("the tensors are views of one with gradients")
    with torch.no_grad():
        return first.as_strided((length,), (1,), begin)


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def implementation_address(tensor: torch.Tensor) -> int:
    """The address of the C++ object behind a tensor."""
    return int(tensor._cdata)


@functools.cache
def implementation_offset() -> int | None:
    """Where a tensor's Python object keeps the address of its implementation: at one place in
    several objects of each class; None where that is not so."""
    samples = [
        cls(torch.empty(size, device="cpu")) for cls in PLAIN_TENSOR_CLASSES for size in (1, 2, 3)
    ]
    found = {_place_of_address(sample) for sample in samples}
    return found.pop() if len(found) == 1 else None


def _place_of_address(sample: torch.Tensor) -> int | None:
    width = ctypes.sizeof(ctypes.c_void_p)
    for place in range(object.__basicsize__, type(sample).__basicsize__ - width + 1, width):
        address = ctypes.c_void_p.from_address(id(sample) + place).value
        if address == implementation_address(sample):
            return place
    return None


def data_of_tensors() -> tuple[type, int, int] | None:
    """What C code needs to ask any tensor for its `data_ptr()`: the class of all, the offset of an
    implementation's address, and the address of a function of the stable interface; None where this
    build of PyTorch lacks one, or it answers otherwise."""
    offset, ask = implementation_offset(), exported_address("libtorch_cpu.so", _DATA)
    if offset is None or not ask:
        return None
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(ask)
    whole = torch.arange(6.0, device="cpu")
    for tensor in (whole, whole[2:], torch.nn.Parameter(whole), torch.empty(0, device="cpu")):
        found = ctypes.c_void_p()
        if function(id(tensor) + offset, ctypes.addressof(found)):
            return None
        if (found.value or 0) != tensor.data_ptr():
            return None
    return private.TensorBase, offset, ask


# Methods of a process group that write to tensors.
_COLLECTIVES = (
    "allreduce allreduce_coalesced broadcast reduce allgather _allgather_base gather scatter "
    "reduce_scatter _reduce_scatter_base alltoall alltoall_base recv recv_anysource"
).split()


def memory_functions() -> tuple[Any, ...] | None:
    """The C functions by which a program gets hold of a tensor's memory, moves its version or
    writes to it, past the version counter, beside `.data`: the first two tell a storage and an
    address. None where this PyTorch has not got one."""
    named = private.TensorBase.__dict__
    methods = ("untyped_storage", "data_ptr", "const_data_ptr", "numpy", "set_")
    found = [named.get(name) for name in methods]
    found += [private.set_versions, private.to_dlpack, private.to_versioned_dlpack]
    found += private.FUSED_STEPS
    if None in found:
        return None
    group = vars(torch.distributed.ProcessGroup) if torch.distributed.is_available() else {}
    collectives = [getattr(group.get(name), "__func__", None) for name in _COLLECTIVES]
    return (*found, *[function for function in collectives if function is not None])


def allocation_functions() -> tuple[int, ...] | None:
    """The addresses of what makes tensors, or None where this build of PyTorch lacks one."""
    found = tuple([exported_address(*function) for function in _ALLOCATION])
    return found if all(found) else None


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """The number that the stable C interface has for a dtype."""
    ask: Any = ctypes.CDLL(str(_FOLDER / "libtorch_cpu.so")).aoti_torch_get_dtype
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    place, code = ctypes.c_void_p(implementation_address(tensor)), ctypes.c_int32()
    if ask(ctypes.byref(place), ctypes.byref(code)):
        raise TypeError(f"PyTorch has no number for {dtype}")
    return int(code.value)


# The metaclass of `torch.FloatTensor` and the like.
LEGACY_TYPE: type = type(torch.FloatTensor)
