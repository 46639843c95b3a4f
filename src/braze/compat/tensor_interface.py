"""Where C code may ask tensors for their metadata: libtorch's stable C interface.

Each function takes the address of a pointer to a tensor's implementation and the address of the
answer; it returns 0 where the tensor can answer.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

# In the order that `guard_native.cpp` expects.
_FUNCTIONS = (
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_get_layout",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
)
_LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"

# Classes whose metadata no `__torch_function__` of a user's changes.
PLAIN_TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter)
# These getters are C functions behind attributes of every tensor.
REQUIRES_GRAD: Any = torch._C.TensorBase.__dict__["requires_grad"]
IS_LEAF: Any = torch._C.TensorBase.__dict__["is_leaf"]


def metadata_functions() -> tuple[int, ...] | None:
    """The addresses of the functions, or None where this build of PyTorch lacks one."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except (OSError, AttributeError):
        return None
    return tuple([pointer.value or 0 for pointer in found])


def implementation_address(tensor: torch.Tensor) -> int:
    """The address of the C++ object behind a tensor."""
    return int(tensor._cdata)
