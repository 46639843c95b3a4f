"""What a replay does in C++ (graph_patches.cpp): it compares pointers, makes tensors, and gives
kernels their pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.options import Options
from braze.runtime.cuda.output_allocation import NewTensors, connect_allocation, described
from braze.runtime.launch.cpp_compiler import NoCompiler, find_toolchain
from braze.runtime.launch.kernel_launcher import load_connected
from braze.runtime.launch.program_text import NewTensor

# -> new tensors.
Maker = Callable[[], Sequence[torch.Tensor]]


@final
@frozen
class GraphPatches:
    """agrees: (inputs, address of expected pointers) -> whether they have these. patch: (address of
    a program, tensor, ...) -> the driver's code. new_tensors: None where Python makes them."""

    agrees: Callable[[Sequence[Any], int], bool]
    patch: Callable[..., int]
    new_tensors: NewTensors | None = None

    def maker(self, tensors: Sequence[NewTensor], device: torch.device) -> Maker:
        """What makes these, in fresh memory."""
        make = self.new_tensors
        if make is None:
            # A method of an empty tensor costs half of a function that is told dtype and device.
            empty = [torch.empty(0, dtype=t.dtype, device=device) for t in tensors]
            calls = [(e.new_empty_strided, t.shape, t.stride) for e, t in zip(empty, tensors)]
            return lambda: [call(shape, stride) for call, shape, stride in calls]
        numbers = described(tensors, device)

        def made() -> Sequence[torch.Tensor]:
            return make(ctypes.addressof(numbers), 0)

        return made


def load_graph_patches(options: Options) -> GraphPatches | None:
    """None where the extension cannot be built."""
    toolchain = find_toolchain(options)
    if isinstance(toolchain, NoCompiler):
        return None
    module = load_connected("graph_patches", toolchain, options, ("new_tensors",))
    if module is None:
        return None
    makes = connect_allocation(module)
    return GraphPatches(module.agrees, module.patch, module.new_tensors if makes else None)
