"""Weights of frozen graphs: packed when the graph is linked, and never compared with anything."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from braze.compat import private_names as private
from braze.ir.kernels.kernel import SourceUnit
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall
from braze.locks import make_lock
from braze.options import Options
from braze.runtime.launch.convolutions.kernel import ConvolutionKernel, PackedKernelWeights
from braze.runtime.launch.packed_matrices import PackedMatrices, packed_panels, places_of
from braze.runtime.launch.packed_weights import PackedConvolution, folded, run_convolution
from braze.trace import CompileRecorder

_ANY_BATCH = 8  # of images, where that is a symbol: the layout of weights hardly depends on it


@final
class FrozenMemory:
    """What the process holds for frozen graphs: copies of weights, and packed ones."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._held: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def add(self, tensor: torch.Tensor, size: int) -> None:
        """Count a tensor of so many bytes while it is alive."""
        with self._lock:
            self._held[id(tensor)] = weakref.ref(tensor), size

    def add_copies(
        self,
        constants: Sequence[tuple[Buffer, torch.Tensor]],
        given: Sequence[torch.Tensor],
        recorder: CompileRecorder,
    ) -> None:
        """Count a graph's constants, but for those that are the program's own tensors. given: all
        that the graph has; recorder: is told how many those are."""
        if given:
            recorder.count("frozen constants", len(given))
            recorder.count("frozen bytes", sum(tensor.nbytes for tensor in given))
        own = {id(tensor) for tensor in given}
        for _, tensor in constants if given else ():
            if id(tensor) not in own:
                self.add(tensor, tensor.nbytes)

    def bytes(self) -> int:
        """Bytes of all that is alive."""
        with self._lock:
            self._held = {n: pair for n, pair in self._held.items() if pair[0]() is not None}
            return sum(size for _, size in self._held.values())


FROZEN = FrozenMemory()


def convolution_of(
    call: ExternCall,
    constants: Mapping[Buffer, torch.Tensor],
    options: Options,
    kernel: ConvolutionKernel | None = None,
) -> PackedConvolution | FrozenConvolution | FrozenKernel:
    """What runs a call of `braze::convolution`: frozen where all its weights are constants. kernel:
    ours, where that is quicker than the library's."""
    image, weight, bias, norm, eps, _, stride, padding, dilation, groups, *_ = call.args
    views = [weight, *norm, *([] if bias is None else [bias])]
    if not options.freeze or not all(view.buffer in constants for view in views):
        return PackedConvolution(options, kernel)
    data = _contents(weight, constants)
    first = None if bias is None else _contents(bias, constants)
    with torch.no_grad():
        if kernel is not None:
            values = [_contents(view, constants) for view in norm]
            held = kernel.packed(data, first, values, eps)
            FROZEN.add(held.panels, held.nbytes)
            return FrozenKernel(kernel, held)
        data, made = folded(data, first, [_contents(view, constants) for view in norm], eps)
        shape = [size if type(size) is int else _ANY_BATCH for size in image.shape]
        window = (padding, stride, dilation, groups)
        packed = private.reorder_convolution_weight(data, *window, shape)
        made = None if made is None else made.clone()
    FROZEN.add(packed, data.nbytes)
    return FrozenConvolution(packed, made)


@final
class FrozenConvolution:
    """A call of `braze::convolution` on weights that stay."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(
        self,
        image: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        norm: Sequence[torch.Tensor],
        eps: float,
        added: torch.Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        activation: str,
        bounds: Sequence[float],
    ) -> torch.Tensor:
        """The result, channels last."""
        window = (padding, stride, dilation, groups)
        return run_convolution(image, self._weight, self._bias, added, window, activation, bounds)


@final
class FrozenKernel:
    """A call of `braze::convolution` by our kernel on weights that stay."""

    __slots__ = ("_kernel", "_packed")

    def __init__(self, kernel: ConvolutionKernel, packed: PackedKernelWeights) -> None:
        self._kernel, self._packed = kernel, packed

    def __call__(self, image: torch.Tensor, *given: Any) -> torch.Tensor:
        """The result, channels last. given: the other arguments of the operator."""
        *_, added, _, _, _, _, activation, bounds = given
        return self._kernel(image, self._packed, added, activation, bounds)


@final
class FrozenMatrices:
    """A call of `braze::pack_weights` some of whose weights are constants, the others not."""

    __slots__ = ("_others", "_panels")

    def __init__(self, panels: list[torch.Tensor | None], others: PackedMatrices | None) -> None:
        self._panels, self._others = panels, others

    def __call__(
        self, weights: Sequence[torch.Tensor], places: Sequence[int]
    ) -> Sequence[torch.Tensor | None]:
        """The panels of each matrix, empty of those that are not packed."""
        if self._others is None:
            return self._panels
        given = [each for each, panels in zip(places_of(places), self._panels) if panels is None]
        found = iter(self._others(weights, [number for each in given for number in each]))
        return [next(found) if panels is None else panels for panels in self._panels]


def matrices_of(
    call: ExternCall, constants: Mapping[Buffer, torch.Tensor], options: Options, unit: SourceUnit
) -> PackedMatrices | FrozenMatrices:
    """What runs a call of `braze::pack_weights`. unit: source that packs as the kernels do."""
    views, places = call.args
    if not options.freeze or not any(view.buffer in constants for view in views):
        return PackedMatrices(options, unit)
    panels: list[torch.Tensor | None] = []
    for number, *place in places_of(places):
        data = constants.get(views[number].buffer)
        made = None
        if data is not None:
            made = packed_panels(tuple(place), data.data_ptr(), options, unit)
            if made is not None:
                FROZEN.add(made, made.nbytes)
            else:
                made = torch.empty(0, dtype=torch.float32, device="cpu")
        panels.append(made)
    has_others = any(each is None for each in panels)
    return FrozenMatrices(panels, PackedMatrices(options, unit) if has_others else None)


# --- private ---------------------------------------------------------------------------------


def _contents(view: BufferView, constants: Mapping[Buffer, torch.Tensor]) -> torch.Tensor:
    data: Any = constants[view.buffer]
    start = data.storage_offset() + view.offset
    contents: torch.Tensor = data.as_strided(view.shape, view.stride, start)
    return contents
