"""Private names of torch's CUDA interface, without the cost of its wrappers."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _absent(name: str) -> Callable[..., int]:
    def refuse(*_: int) -> int:
        raise RuntimeError(f"this build of PyTorch has no CUDA: {name}")

    return refuse


# The stream that work of this thread goes to, on the device of that number, as the driver has it.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _absent("_cuda_getCurrentRawStream")
)
# The device that this thread works on.
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _absent("_cuda_getDevice"))
# copy_ of each of the second tensors into its partner among the first, in a few kernels.
copy_all: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = torch._foreach_copy_
# How many references there are to a storage, by its `_cdata`.
storage_references: Callable[[int], int] = torch._C._storage_Use_Count


def end_allocation_to_pool(device: int, pool: tuple[int, int]) -> None:
    """Have the allocator forget a capture that failed."""
    torch._C._cuda_endAllocateToPool(device, pool)
