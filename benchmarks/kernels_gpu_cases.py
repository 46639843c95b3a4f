"""The kernels that a GPU is measured by: functions, inputs, and the share of a copy's bandwidth
that they are to reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
HALF = torch.bfloat16
FULL = torch.float32
CLASSES = 50304


@dataclass(frozen=True, slots=True)
class Input:
    """below: of an integer input, its values' bound. least: added to the absolute value. layout:
    of an image."""

    shape: tuple[int, ...]
    dtype: torch.dtype = HALF
    below: int = 0
    positive: bool = False
    layout: torch.memory_format = torch.contiguous_format

    def make(self, device: str, empty: bool) -> Tensor:
        """Random values, or none."""
        return self._made(device, empty).to(memory_format=self.layout)

    def _made(self, device: str, empty: bool) -> Tensor:
        if empty:
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        if self.below:
            return torch.randint(self.below, self.shape, dtype=self.dtype, device=device)
        kind = self.dtype if self.dtype.is_complex else None
        made = torch.randn(self.shape, device=device, dtype=kind)
        return (made.abs() + 0.5 if self.positive else made).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """A function of its inputs, and its goal."""

    name: str
    function: Callable[..., Any]
    given: tuple[Input, ...]
    goal: float = 0.88

    def inputs(self, device: str, empty: bool = False) -> list[Tensor]:
        """The inputs, on a device."""
        return [x.make(device, empty) for x in self.given]


def cases() -> list[Case]:
    """Every case."""
    return [*_pointwise(), *_rows(), *_reductions(), *_batch_norms(), *_backwards(), *_others()]


def _pointwise() -> list[Case]:
    rows, vector = Input((16384, 4096)), Input((4096,))
    square = Input((8192, 8192))
    heads, turns = Input((8, 32, 2048, 128)), Input((2048, 128))
    tokens, factors = Input((8, 2048, 32, 128)), Input((2048, 64), torch.complex64)
    return [
        Case("bias + gelu", lambda x, b: F.gelu(x + b), (rows, vector)),
        Case("SwiGLU", lambda x, y: F.silu(x) * y, (rows, rows)),
        Case("transpose + add", lambda x, y: x.t() + y, (square, square)),
        Case("rotary", _rotary, (heads, turns, turns)),
        Case("rotary, complex", _rotary_complex, (tokens, factors)),
    ]


def _rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), -1)
    return q * cos + turned * sin


def _rotary_complex(q: Tensor, turns: Tensor) -> Tensor:
    """As Llama's own code has it: neighbours are a complex number, turned by a factor."""
    pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(q)


def _rows() -> list[Case]:
    rows, vector = Input((16384, 4096)), Input((4096,))
    target, odd = Input((8192,), torch.int64, CLASSES), Input((8192,), torch.int64, 50257)

    def add_norm(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + y
        return h, F.rms_norm(h, (4096,), w, 1e-6)

    return [
        Case("add + RMS norm", add_norm, (rows, rows, vector)),
        Case(
            "layer norm",
            lambda x, w, b: F.layer_norm(x, (4096,), w, b),
            (rows, vector, vector),
        ),
        Case("softmax 16k x 4k", lambda x: F.softmax(x, -1), (rows,)),
        Case("softmax 512 x 131k", lambda x: F.softmax(x, -1), (Input((512, 131072)),), 0.80),
        Case(
            "softmax 512 x 131k f32",
            lambda x: F.softmax(x, -1),
            (Input((512, 131072), FULL),),
            0.80,
        ),
        Case(
            "log-softmax 512 x 131k f32",
            lambda x: F.log_softmax(x, -1),
            (Input((512, 131072), FULL),),
            0.80,
        ),
        Case(
            "layer norm 512 x 131k f32",
            lambda x, w, b: F.layer_norm(x, (131072,), w, b),
            (Input((512, 131072), FULL), Input((131072,), FULL), Input((131072,), FULL)),
            0.80,
        ),
        Case("cross-entropy 8k x 50k", F.cross_entropy, (Input((8192, CLASSES)), target)),
        Case("cross-entropy 8k x 50257", F.cross_entropy, (Input((8192, 50257)), odd)),
    ]


def _reductions() -> list[Case]:
    rows = Input((16384, 4096))
    return [
        Case("column sum", lambda x: x.sum(0), (rows,)),
        Case("full sum", lambda x: x.sum(), (rows,)),
        Case("full sum f32", lambda x: x.sum(), (Input((16384, 4096), FULL),)),
        Case("row sum", lambda x: x.sum(1), (rows,)),
        Case("argmax", lambda x: x.argmax(1), (rows,)),
    ]


def _batch_norms() -> list[Case]:
    image, channel = Input((64, 256, 56, 56), FULL), Input((256,), FULL)
    spread = Input((256,), FULL, positive=True)
    last = Input(image.shape, FULL, layout=torch.channels_last)

    def evaluated(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.batch_norm(x, m, v, w, b)

    def trained(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        legit = torch.ops.aten._native_batch_norm_legit.no_stats
        return tuple(legit(x, w, b, True, 0.1, 1e-5))

    def backward(dy: Tensor, x: Tensor, w: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        norm = torch.ops.aten.native_batch_norm_backward
        return tuple(norm(dy, x, w, None, None, m, s, True, 1e-5, [True, True, True]))

    # Statistics come before what they scale: where programs do not hold a channel until they are
    # known, a training norm reads its image twice, 0.67 at best, its backward both of them, 0.6.
    return [
        Case("batch norm, inference", evaluated, (image, channel, spread, channel, channel)),
        Case("batch norm, training", trained, (image, channel, channel)),
        Case("batch norm, training, channels last", trained, (last, channel, channel)),
        Case("batch norm, backward", backward, (image, image, channel, channel, spread), 0.80),
        Case(
            "batch norm, backward, channels last",
            backward,
            (last, last, channel, channel, spread),
            0.80,
        ),
        Case(
            "batch norm, training, small",
            trained,
            (Input((32, 512, 7, 7), FULL), Input((512,), FULL), Input((512,), FULL)),
            0.0,  # six megabytes: starting a kernel is most of its time
        ),
    ]


def _backwards() -> list[Case]:
    rows, vector = Input((16384, 4096)), Input((4096,))
    stat = Input((16384, 1), FULL, positive=True)
    norm = torch.ops.aten.native_layer_norm_backward.default

    def layer_norm(dy: Tensor, x: Tensor, m: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(norm(dy, x, [4096], m, r, w, w, [True, True, True]))

    def softmax(dy: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)

    def cross_entropy(one: Tensor, y: Tensor, t: Tensor) -> Tensor:
        total = torch.full((), float(len(t)), dtype=y.dtype, device=y.device)
        gradient = torch.ops.aten.nll_loss_backward(one, y, t, None, 1, -100, total)
        return torch.ops.aten._log_softmax_backward_data(gradient, y, 1, y.dtype)

    def rms_norm(dy: Tensor, x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        plain = x.to(r.dtype) * r
        scaled = dy.to(r.dtype) * w.to(r.dtype)
        dx = (scaled - plain * (scaled * plain).mean(1, keepdim=True)) * r
        return dx.to(x.dtype), (dy.to(r.dtype) * plain).sum(0).to(w.dtype)

    target = Input((8192,), torch.int64, CLASSES)
    return [
        Case("layer norm, backward", layer_norm, (rows, rows, stat, stat, vector), 0.80),
        Case("RMS norm, backward", rms_norm, (rows, rows, stat, vector), 0.80),
        Case("softmax, backward", softmax, (rows, rows), 0.80),
        Case(
            "cross-entropy, backward",
            cross_entropy,
            (Input(()), Input((8192, CLASSES)), target),
            0.80,
        ),
    ]


def _others() -> list[Case]:
    weights = Input((2**25,), FULL)

    def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m = m.lerp(g, 0.1)
        v = v * 0.999 + g * g * 0.001
        step = m / ((v.sqrt() / 0.9) + 1e-8)
        return p - 1e-3 * step, m, v

    positive = Input((2**25,), FULL, positive=True)
    return [Case("Adam", adam, (weights, weights, weights, positive))]
