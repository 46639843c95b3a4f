"""Tensors that a segment of kernels writes, made by the launcher in the call that starts them.

    fault, t1, t2, = launch_making(segment0, made0, table, sizes, stream, 0, x0)

In C++ that costs two thirds of a call from Python, and nothing asks the tensors for their addresses
again; what a replay hands out is made so, too (graph_patches.py). Where libtorch's functions are
not exported, and in a call that is recorded, Python makes them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from braze.compat.torch.tensor_abi import allocation_functions, dtype_code
from braze.frozen import frozen
from braze.options import Options
from braze.runtime.cuda.launch_plan import LaunchPlan, launch_by_ctypes
from braze.runtime.launch.cpp_compiler import Toolchain
from braze.runtime.launch.kernel_launcher import load_connected
from braze.runtime.launch.program_text import NewTensor

# As libtorch numbers types of devices.
_DEVICES = {"cpu": 0, "cuda": 1}
# (plan, what is made, table, sizes, stream, place, tensor, ...) -> (fault, tensor, ...)
LaunchMaking = Callable[..., tuple[Any, ...]]
# (address of a description, of a table of pointers or 0) -> the tensors.
NewTensors = Callable[[int, int], tuple[torch.Tensor, ...]]
# (shape, stride, dtype) -> an empty tensor.
Make = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


@final
@frozen
class DeviceLauncher:
    """What starts a plan. making: the same with new tensors; None where Python makes them."""

    launch: LaunchPlan
    making: LaunchMaking | None

    def names_for(
        self, made: Mapping[str, Sequence[NewTensor]], device: torch.device
    ) -> dict[str, object]:
        """What the launch program calls, and its descriptions of new tensors."""
        if self.making is None:

            def make(
                shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
            ) -> torch.Tensor:
                return torch.empty_strided(shape, stride, dtype=dtype, device=device)

            return made_by_python(made, self.launch, make, make)
        arrays = {name: described(tensors, device) for name, tensors in made.items()}
        names: dict[str, Any] = {name: ctypes.addressof(array) for name, array in arrays.items()}
        return {**names, "launch": self.launch, "launch_making": self.making, "keep_made": arrays}


def load_launcher_for_devices(toolchain: Toolchain | None, options: Options) -> DeviceLauncher:
    """The extension's functions, or the same in ctypes where it cannot be built."""
    module = None
    if toolchain is not None:
        module = load_connected("device_launcher", toolchain, options, ("new_tensors",))
    if module is None:
        return DeviceLauncher(launch_by_ctypes, None)
    makes = connect_allocation(module)
    return DeviceLauncher(module.launch, module.launch_making if makes else None)


def connect_allocation(module: Any) -> bool:
    """Have an extension with new_tensors.cpp in it make tensors; whether it does, as described."""
    functions = allocation_functions()
    if functions is None:
        return False
    module.connect(*functions, torch.OutOfMemoryError)
    return _makes_right(module.new_tensors)


def made_by_python(
    made: Mapping[str, Sequence[NewTensor]], launch: LaunchPlan, make: Make, make_result: Make
) -> dict[str, object]:
    """As `names_for`, with tensors that Python makes: by `make_result` those that are results."""

    def launch_making(
        plan: int, tensors: Sequence[NewTensor], table: int, sizes: int, stream: int, *bound: object
    ) -> tuple[Any, ...]:
        found = []
        for new in tensors:
            making = make_result if new.is_result else make
            found.append(making(new.shape, new.stride, new.dtype))
        pairs = [x for new, tensor in zip(tensors, found) for x in (new.place, tensor)]
        return (launch(plan, table, sizes, stream, *bound, *pairs), *found)

    return {**made, "launch": launch, "launch_making": launch_making}


def described(tensors: Sequence[NewTensor], device: torch.device) -> Any:
    """As new_tensors.cpp reads it."""
    index = -1 if device.index is None or device.type == "cpu" else device.index
    numbers = [len(tensors), _DEVICES[device.type], index]
    for new in tensors:
        numbers += [new.place, dtype_code(new.dtype), len(new.shape), *new.shape, *new.stride]
    return (ctypes.c_long * len(numbers))(*numbers)


# --- private ---------------------------------------------------------------------------------


def _makes_right(new_tensors: NewTensors) -> bool:
    """Whether tensors come out as they were described, at the addresses that the table has."""
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    wanted = [NewTensor(n, (2, 3), (1, 2), dtype, False) for n, dtype in enumerate(dtypes)]
    wanted.append(NewTensor(len(wanted), (), (), torch.float64, False))
    table, numbers = (ctypes.c_void_p * len(wanted))(), described(wanted, torch.device("cpu"))
    found = new_tensors(ctypes.addressof(numbers), ctypes.addressof(table))
    return all(
        type(tensor) is torch.Tensor
        and (tensor.shape, tensor.stride(), tensor.dtype) == (new.shape, new.stride, new.dtype)
        and tensor.data_ptr() == table[new.place]
        and not tensor.requires_grad
        for new, tensor in zip(wanted, found, strict=True)
    )
