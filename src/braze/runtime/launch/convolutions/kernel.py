"""Convolutions by a kernel of our own (`codegen/cpp/convolution.cpp`), with what follows them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.kernels.convolution_sizes import ConvolutionSizes, convolution_sizes
from braze.ir.kernels.kernel import SourceUnit
from braze.ir.kernels.loops import ExternCall
from braze.options import Options
from braze.runtime.launch.build_cache import library_of
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels

_ACTIVATIONS = {
    "": 0,
    "relu": 1,
    "hardtanh": 2,
    "hardswish": 3,
    "hardsigmoid": 4,
    "sigmoid": 5,
    "silu": 6,
}


@final
@frozen(eq=False)
class PackedKernelWeights:
    """A weight in panels, and what its sums are multiplied by and added to: numbers a channel.

    tail: two rows, scale and shift, groups padded to panels."""

    panels: torch.Tensor
    tail: torch.Tensor
    places: tuple[int, int, int]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return 4 * (self.panels.numel() + self.tail.numel())


@final
@frozen(eq=False)
class _Plan:
    """What calls with images of one shape have in common. address: of the numbers in `held`. shape,
    stride: of the result; copy: elements of images with borders."""

    image: tuple[int, ...]
    held: Any
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    copy: int


@final
class ConvolutionKernel:
    """Convolves images by our kernel, on weights that it packed. Calls may come from several
    threads."""

    __slots__ = ("_call", "_library", "_plan", "_sizes", "_threads")

    def __init__(
        self, sizes: ConvolutionSizes, library: ctypes.CDLL, threads: Callable[[], int]
    ) -> None:
        """sizes: of the weight, and of some image. threads: that a call may use."""
        self._sizes, self._library, self._threads = sizes, library, threads
        library.bz_convolution_padded.restype = ctypes.c_int64
        library.bz_convolution_copy.restype = ctypes.c_int64
        library.bz_convolution.argtypes = _ARGUMENTS
        library.bz_convolution.restype = None
        self._call = library.bz_convolution
        self._plan = self._planned(sizes.image)

    def packed(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        norm: Sequence[torch.Tensor],
        eps: float,
    ) -> PackedKernelWeights:
        """A weight, float32 and as large as was said, with the bias and the batch norm in eval mode
        that follow: scale, shift, mean, variance; none without one."""
        made, own, *window = self._sizes.weight
        groups = 1 if self._sizes.is_depthwise else self._sizes.groups
        padded = int(self._library.bz_convolution_padded(self._plan.held))
        padded = made if self._sizes.is_depthwise else padded
        count = groups * padded * own * window[0] * window[1]
        panels = torch.empty(count, dtype=torch.float32, device="cpu")
        weight = weight.clone()  # `data_ptr()` of the program's own would count as an access
        steps = (ctypes.c_int64 * 4)(*weight.stride())
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, panels)]
        self._library.bz_pack_convolution(self._plan.held, steps, *pointers)
        tail = torch.zeros((2, groups, padded), dtype=torch.float32, device="cpu")
        for row, numbers in zip(tail, _scale_and_shift(bias, norm, eps, made), strict=True):
            row[:, : made // groups] = numbers.view(groups, -1)
        first = tail.data_ptr()
        places = (panels.data_ptr(), first, first + 4 * tail[0].numel())
        return PackedKernelWeights(panels, tail, places)

    def __call__(
        self,
        image: torch.Tensor,
        packed: PackedKernelWeights,
        added: torch.Tensor | None,
        activation: str,
        bounds: Sequence[float],
    ) -> torch.Tensor:
        """activation(norm(convolution + bias) + added), channels last. added: as the result, which
        is new."""
        plan = self._plan
        if plan.image != image.shape:
            plan = self._plan = self._planned(tuple(image.shape))
        if not image.is_contiguous(memory_format=torch.channels_last):
            image = image.contiguous(memory_format=torch.channels_last)
        if added is not None and not added.is_contiguous(memory_format=torch.channels_last):
            added = added.contiguous(memory_format=torch.channels_last)
        out = torch.empty_strided(plan.shape, plan.stride, dtype=torch.float32, device="cpu")
        scratch = None
        if plan.copy:
            scratch = torch.empty(plan.copy, dtype=torch.float32, device="cpu")
        self._call(
            plan.address,
            image.data_ptr(),
            *packed.places,
            None if added is None else added.data_ptr(),
            _ACTIVATIONS[activation],
            *(bounds or (0.0, 0.0)),
            out.data_ptr(),
            None if scratch is None else scratch.data_ptr(),
            self._threads(),
        )
        return out

    # --- private -----------------------------------------------------------------------------

    def _planned(self, image: tuple[int, ...]) -> _Plan:
        sizes = replace(self._sizes, image=image)  # type: ignore[arg-type]
        (high, wide), made = sizes.result, sizes.weight[0]
        held = (ctypes.c_int64 * 16)(*sizes.numbers())
        copy = int(self._library.bz_convolution_copy(held))
        stride = (high * wide * made, 1, wide * made, made)
        shape = (image[0], made, high, wide)
        return _Plan(image, held, ctypes.addressof(held), shape, stride, copy)


def kernel_of(
    call: ExternCall, unit: SourceUnit, threads: Callable[[], int], options: Options
) -> ConvolutionKernel | None:
    """A kernel for a call of `braze::convolution`; None where the library's is as quick, or none
    can be built. unit: its source."""
    image, weight, *_ = call.args
    sizes = convolution_sizes(image.shape, weight.shape, call.args[6:10])
    if sizes is None or not sizes.has_own_kernel:
        return None
    toolchain = find_for_kernels(options)
    if isinstance(toolchain, NoCompiler):
        return None
    return ConvolutionKernel(sizes, library_of((unit,), toolchain, options), threads)


# --- private ---------------------------------------------------------------------------------

_POINTER = ctypes.c_void_p
_ARGUMENTS: Any = (
    *[_POINTER] * 6,
    ctypes.c_int64,
    ctypes.c_float,
    ctypes.c_float,
    _POINTER,
    _POINTER,
    ctypes.c_int,
)


def _scale_and_shift(
    bias: torch.Tensor | None, norm: Sequence[torch.Tensor], eps: float, made: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a norm multiplies the sums by, and adds; computed in float64."""
    one = torch.ones(made, dtype=torch.float64, device="cpu")
    before = torch.zeros_like(one) if bias is None else bias.double()
    if not norm:
        return one, before
    scale, shift, mean, variance = (tensor.double() for tensor in norm)
    factor = scale / (variance + eps).sqrt()
    return factor, shift + (before - mean) * factor
