"""Private names of torch's CUDA interface, without the cost of its wrappers."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.compat import private_names as private


def _private(name: str) -> Callable[..., Any]:
    """PyTorch's function of that name; in a build without CUDA, one that says so."""

    def refuse(*_: object) -> None:
        raise RuntimeError(f"this build of PyTorch has no CUDA: {name}")

    found: Callable[..., Any]
    found = private.of_build(f"torch._C:{name}", "what a GPU runs", refuse)
    return found


# The stream that work of this thread goes to, on the device of that number, as the driver has it.
current_stream: Callable[[int], int] = _private("_cuda_getCurrentRawStream")
# The device that this thread works on.
current_device: Callable[[], int] = _private("_cuda_getDevice")
# copy_ of each of the second tensors into its partner among the first, in a few kernels.
copy_all: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = private.copy_all
# Have PyTorch free what it keeps for matrix products to work in, of all threads and streams; it
# makes it anew for the next product. A build without CUDA keeps none.
drop_product_workspaces: Callable[[], None] = private.of_build(
    "torch._C:_cuda_clearCublasWorkspaces", "memory of matrix products", lambda: None
)
# How many references there are to a storage, by its `_cdata`.
storage_references: Callable[[int], int] = private.storage_references
# How many references there are to the C++ object behind a tensor: one is the Python object's.
_TENSOR_REFERENCES: Callable[[torch.Tensor], int] = private.tensor_references


def are_alone(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether nobody refers to these tensors but the sequence and one other: in Python; and to what
    is behind each, in C++, nobody but Python."""
    if {*map(sys.getrefcount, tensors)} - {_OF_TWO_SEQUENCES}:
        return False
    return not {*map(_TENSOR_REFERENCES, tensors)} - {1}


def _references_of_two() -> int:
    """How many Python counts where two sequences have one each; it adds some of its own."""
    values = [object()]
    (found,) = map(sys.getrefcount, (*values,))
    return found


_OF_TWO_SEQUENCES = _references_of_two()


# From now on have what this thread allocates on the device of that number come from a pool, by its
# handle; that is one more use of the pool.
allocate_to_pool: Callable[[int, tuple[int, int]], object] = _private(
    "_cuda_beginAllocateCurrentThreadToPool"
)
# End that, or a capture that failed. The use stays.
end_allocation_to_pool: Callable[[int, tuple[int, int]], object] = _private(
    "_cuda_endAllocateToPool"
)
# End a use of a pool: behind the last one, what is idle there goes with what is idle elsewhere.
release_pool: Callable[[int, tuple[int, int]], object] = _private("_cuda_releasePool")


def in_use(pool: tuple[int, int]) -> int:
    """Bytes of a pool that somebody refers to."""
    segments: Any = torch.cuda.memory_snapshot(pool)
    return sum(segment["allocated_size"] for segment in segments)


def free_idle() -> bool:
    """Have PyTorch give what it holds idle to the device; False where it cannot, since another
    thread captures, or allocates to a pool."""
    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:
        if "captures_underway" not in str(error):
            raise
        return False
    return True


def storage_at(address: int, size: int, device: torch.device, keeper: object) -> Any:
    """Memory that somebody else owns as a storage, which keeps `keeper` alive."""
    kind = _HostMemory if device.type == "cpu" else _DeviceMemory
    return kind.tensor(address, size, device, keeper).untyped_storage()


class _DeviceMemory:
    """What PyTorch asks for memory that is not its own. It is kept by the tensor."""

    def __init__(self, address: int, size: int, keeper: object) -> None:
        self.keeper = keeper
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }

    @classmethod
    def tensor(cls, address: int, size: int, device: torch.device, keeper: object) -> torch.Tensor:
        return torch.as_tensor(cls(address, size, keeper), device=device)


class _HostMemory:
    """The same of the host's."""

    @staticmethod
    def tensor(address: int, size: int, device: torch.device, keeper: object) -> torch.Tensor:
        memory = (ctypes.c_char * size).from_address(address)
        memory.keeper = keeper  # type: ignore[attr-defined]
        return torch.frombuffer(memory, dtype=torch.uint8)
