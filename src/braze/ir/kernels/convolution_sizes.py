"""The sizes of a convolution of images, and whether a kernel of our own computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch

from braze.frozen import frozen

_LARGEST_WINDOW = 128  # elements of a channel: as BZ_SPANS of codegen/cpp/convolution.cpp
# Of images whose channels are by themselves: a vector of AVX-512, and pixels of a row (BZ_STRIP).
_LEAST_CHANNELS, _LEAST_PIXELS = 16, 4
_ANY_BATCH = 8  # of images, where that is a symbol
# Above it weights do not stay in the second-level cache, and the library's kernel is as quick: on
# an AMD EPYC (Zen 3), of 13 networks' convolutions, 1.00 to 1.12 of its time; below, 0.4 to 1.1.
_LARGEST_WEIGHT = 1 << 19
# Likewise elements of an image whose channels are by themselves: above, up to 1.4 of its time.
_LARGEST_IMAGE = 1 << 19


@final
@frozen
class ConvolutionSizes:
    """Sizes of one convolution. image: batch, channels, height, width. weight: as PyTorch's."""

    image: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the result."""
        high, wide = (
            (size + 2 * pad - step * (window - 1) - 1) // stride + 1
            for size, pad, step, window, stride in zip(
                self.image[2:], self.padding, self.dilation, self.weight[2:], self.stride
            )
        )
        return high, wide

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is by itself."""
        made, own, *_ = self.weight
        return self.groups > 1 and own == 1 and made == self.groups

    @property
    def is_supported(self) -> bool:
        """Whether our kernel computes it, at whatever speed."""
        made, _, *window = self.weight
        return (
            min(self.result) > 0
            and math.prod(window) <= _LARGEST_WINDOW
            and (
                not self.is_depthwise
                or (made >= _LEAST_CHANNELS and self.result[1] >= _LEAST_PIXELS)
            )
        )

    @property
    def has_own_kernel(self) -> bool:
        """Whether our kernel computes it, as quick as the library's or quicker. That is measured on
        machines with AVX2 and without AVX-512."""
        return (
            torch.backends.cpu.get_cpu_capability() == "AVX2"
            and self.is_supported
            and math.prod(self.weight) < _LARGEST_WEIGHT
            and (not self.is_depthwise or math.prod(self.image[1:]) < _LARGEST_IMAGE)
        )

    def numbers(self) -> Sequence[int]:
        """The fields of `bz_window` in the generated source."""
        batch, channels, high, wide = self.image
        made, _, *window = self.weight
        steps = (*self.stride, *self.padding, *self.dilation)
        return (batch, high, wide, channels, made, *window, *steps, self.groups, *self.result)


def convolution_sizes(
    image: Sequence[object], weight: Sequence[object], window: Sequence[Any]
) -> ConvolutionSizes | None:
    """The sizes of a convolution; None where it is not of images of known height and width.
    window: stride, padding, dilation, groups, as the operator takes them."""
    batch, *shape = image
    if len(shape) != 3 or not all(type(size) is int and size > 0 for size in (*shape, *weight)):
        return None
    *lists, groups = window
    pairs: Any = [tuple(numbers) * (2 // len(numbers)) for numbers in lists]
    if type(groups) is not int or any(type(each) is not int for pair in pairs for each in pair):
        return None
    stride, padding, dilation = pairs
    sizes: Any = (batch if type(batch) is int else _ANY_BATCH, *shape), tuple(weight)
    return ConvolutionSizes(sizes[0], sizes[1], stride, padding, dilation, groups)
