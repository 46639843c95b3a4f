"""Convolutions on weights that were laid out, and had a batch norm folded in, once.

    first call with some weights     folded and laid out in the call
    second                           the same, kept
    later, while they stay           what is kept
    changed                          as the first call

Whether they stay is told by storages and versions (`storage_watch.py`). Where that does not tell
(something else holds the memory, or counts no versions), a copy is kept, too, and compared in each
call. Weights that change from call to call are so never kept, or less and less often. What is kept
is counted for the process and limited by the option `packed_weights`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, final

import torch

from braze.compat import private_names as private
from braze.compat.torch.dispatcher import direct_call
from braze.locks import make_lock
from braze.options import Options
from braze.runtime.launch.convolutions.kernel import ConvolutionKernel, PackedKernelWeights
from braze.runtime.launch.storage_watch import WATCH, States, WatchedStorage


class Holder(Protocol):
    """Keeps weights of a call in another layout."""

    def held_bytes(self) -> int:
        """Bytes that are kept."""

    def drop_expired(self) -> None:
        """Let go of what was made of weights that are gone."""


@final
class PackedWeights:
    """What the process keeps of weights, and how much that is."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._held: weakref.WeakSet[Holder] = weakref.WeakSet()

    def bytes(self) -> int:
        """Bytes of all that is kept."""
        with self._lock:
            return sum(each.held_bytes() for each in list(self._held))

    def admits(self, holder: Holder, size: int, limit: int) -> bool:
        """Whether the holder may keep so many bytes. Those of weights that are gone go first."""
        with self._lock:
            others = [each for each in list(self._held) if each is not holder]
            for each in others:
                each.drop_expired()
            self._held.add(holder)
            return sum(each.held_bytes() for each in others) + size <= limit


PACKED = PackedWeights()

_CONVOLUTION: Callable[..., torch.Tensor] = direct_call(private.fused_convolution)
_SUM: Callable[..., torch.Tensor] = direct_call(private.fused_convolution_sum)
_ACTIVATIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu_,
    "hardtanh": torch.nn.functional.hardtanh_,
    "hardswish": partial(torch.nn.functional.hardswish, inplace=True),
    "hardsigmoid": partial(torch.nn.functional.hardsigmoid, inplace=True),
    "sigmoid": torch.sigmoid_,
    "silu": partial(torch.nn.functional.silu, inplace=True),
}

_LONGEST_WAIT = 64  # calls until weights are copied that were changed each time


@final
@dataclass(frozen=True, slots=True, eq=False)
class _KeptWeights:
    """Weights as the library, or our kernel, takes them.

    states: of what they were made of, which is watched; copies: of the same, where that does not
    tell. size: bytes of all."""

    states: States
    watched: tuple[WatchedStorage, ...]
    copies: tuple[torch.Tensor, ...]
    weight: torch.Tensor | PackedKernelWeights
    bias: torch.Tensor | None
    size: int

    def is_made_of(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether these tensors hold what the weights were made of."""
        if not self.copies:
            try:
                return self.states == WATCH.states(tensors)
            except RuntimeError:  # these are of inference mode, and count no versions
                return False
        return all(map(_has_bits, tensors, self.copies))


@final
class PackedConvolution:
    """A call of `braze::convolution` by our kernel or oneDNN's. Calls may come from several
    threads."""

    __slots__ = (
        "__weakref__",
        "_folds",
        "_kept",
        "_kernel",
        "_limit",
        "_options",
        "_seen",
        "_wait",
        "_waited",
    )

    def __init__(self, options: Options, kernel: ConvolutionKernel | None = None) -> None:
        """kernel: ours, where that is quicker than oneDNN's."""
        self._options, self._kernel = options, kernel
        self._folds = options.numerics == "fast"
        self._limit = options.packed_weights << 20
        WATCH.is_ready(options)  # builds what it needs now, not in a call
        self._kept: _KeptWeights | None = None
        self._seen: tuple[States, tuple[WatchedStorage, ...]] | None = None
        self._wait, self._waited = 1, 1  # calls until weights are kept; the same after a change

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
        made_of = (weight, *norm) if bias is None else (weight, bias, *norm)
        window = (padding, stride, dilation, groups)
        kept = self._kept
        if kept is None or not kept.is_made_of(made_of):
            kept = self._renewed(made_of, image, weight, bias, norm, eps, window)
        if self._kernel is not None:
            packed = self._kernel.packed(weight, bias, norm, eps) if kept is None else kept.weight
            return self._kernel(image, packed, added, activation, bounds)  # type: ignore[arg-type]
        left: Sequence[torch.Tensor] = () if self._folds else norm
        if kept is None:
            weight, bias = folded(weight, bias, norm if self._folds else (), eps)
        else:
            weight, bias = kept.weight, kept.bias  # type: ignore[assignment]
        if not left:
            return run_convolution(image, weight, bias, added, window, activation, bounds)
        made = run_convolution(image, weight, bias, None, window, "", ())
        made = torch.batch_norm(made, left[0], left[1], left[2], left[3], False, 0.0, eps, False)
        return activated(made if added is None else made.add_(added), activation, bounds)

    def held_bytes(self) -> int:
        """Bytes that are kept."""
        kept = self._kept
        return 0 if kept is None else kept.size

    def drop_expired(self) -> None:
        """Let go of what was made of weights that are gone."""
        kept = self._kept
        if kept is not None and any(each.is_expired() for each in kept.watched):
            self._kept = None

    def _renewed(
        self,
        made_of: tuple[torch.Tensor, ...],
        image: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        norm: Sequence[torch.Tensor],
        eps: float,
        window: tuple[object, ...],
    ) -> _KeptWeights | None:
        """What is kept from here on, if these weights were those of the call before, too."""
        if self._kept is not None and self._kept.copies:
            self._wait = self._waited = min(2 * self._waited, _LONGEST_WAIT)
        self._kept = None
        size = weight.numel() * weight.element_size()
        if size > self._limit:
            return None
        states, watched = self._watched(made_of)
        if self._wait:
            self._wait -= 1
            return None
        copies = () if states else tuple([tensor.clone() for tensor in made_of])
        size += sum([tensor.numel() * tensor.element_size() for tensor in copies])
        if not PACKED.admits(self, size, self._limit):
            return None
        weight = copies[0] if copies else weight
        if self._kernel is not None:
            panels = self._kernel.packed(weight, bias, norm, eps)
            made = _KeptWeights(states, watched, copies, panels, None, size)
            return self._if_current(made, made_of)
        weight, bias = folded(weight, bias, norm if self._folds else (), eps)
        packed = private.reorder_convolution_weight(weight, *window, list(image.shape))
        bias = None if bias is None else bias.clone()
        made = _KeptWeights(states, watched, copies, packed, bias, size)
        return self._if_current(made, made_of)

    def _if_current(
        self, made: _KeptWeights, made_of: tuple[torch.Tensor, ...]
    ) -> _KeptWeights | None:
        """Keeps weights, unless another thread wrote to what they were made of meanwhile."""
        if not made.is_made_of(made_of):
            return None
        self._kept = made
        return made

    def _watched(
        self, tensors: tuple[torch.Tensor, ...]
    ) -> tuple[States, tuple[WatchedStorage, ...]]:
        """The states of tensors and what watches them; both empty where that does not tell. A call
        waits for the next one with the same states."""
        if not WATCH.is_ready(self._options) or any(each.is_inference() for each in tensors):
            return (), ()
        seen = self._seen
        if seen is None or seen[0] != WATCH.states(tensors):
            watched = WATCH.watch(tensors)
            self._seen = seen = WATCH.states(tensors), watched
            self._wait = max(self._wait, 1)
        return seen if all(map(WATCH.is_sole_owner, tensors)) else ((), ())


def run_convolution(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    window: tuple[object, ...],
    activation: str,
    bounds: Sequence[float],
) -> torch.Tensor:
    """A convolution and what follows it, by the library's kernel. window: padding, stride, dilation
    and groups."""
    if added is None:
        made = _CONVOLUTION(image, weight, bias, *window, "none", [], "")
    else:
        made = _SUM(image, added, weight, bias, *window, "add", 1.0, None, [], "")
    return activated(made, activation, bounds)


def activated(made: torch.Tensor, activation: str, bounds: Sequence[float]) -> torch.Tensor:
    """The activation in place: the library's own clamps make zeros of what is no number."""
    if activation:
        _ACTIVATIONS[activation](made, *bounds)
    return made


def folded(
    weight: torch.Tensor, bias: torch.Tensor | None, norm: Sequence[torch.Tensor], eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight and bias of a convolution that does what a batch norm in eval mode does, too."""
    if not norm:
        return weight, bias
    scale, shift, mean, variance = norm
    factor = scale.double() / (variance.double() + eps).sqrt()
    before = mean.double() if bias is None else mean.double() - bias.double()
    shape = (-1, *[1] * (weight.dim() - 1))
    made = (shift.double() - before * factor).to(weight.dtype)
    return weight * factor.to(weight.dtype).view(shape), made


def _has_bits(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether both hold the same bits; numbers that are none are equal to none."""
    return torch.equal(tensor.detach().view(torch.int32), copy.view(torch.int32))
