"""Convolutions by kernels of our own: values at all sizes and windows, beside float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.codegen import cpp
from braze.ir.kernels.convolution_sizes import ConvolutionSizes
from braze.options import Options
from braze.runtime.launch.build_cache import library_of
from braze.runtime.launch.convolutions.kernel import ConvolutionKernel
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels

_LAST = torch.channels_last


def _kernel(sizes: ConvolutionSizes, threads: int) -> ConvolutionKernel:
    options = Options()
    toolchain = find_for_kernels(options)
    assert not isinstance(toolchain, NoCompiler)
    library = library_of((cpp.convolution_unit(),), toolchain, options)
    return ConvolutionKernel(sizes, library, lambda: threads)


def _drawn(draw: random.Random) -> ConvolutionSizes:
    """Sizes of a convolution with a result: dense, of groups, or of single channels."""
    while True:
        kind = draw.choice(["dense", "dense", "groups", "single"])
        groups = {"dense": 1, "groups": draw.choice([2, 3, 4])}.get(kind) or draw.randint(16, 130)
        own = 1 if kind == "single" else draw.choice([1, 2, 3, 7, 8, 16, 33, 64, 401])
        wide = 1 if kind == "single" else draw.choice([1, 5, 8, 15, 16, 17, 32, 50])

        def pair(*numbers: int) -> tuple[int, int]:
            return draw.choice(numbers), draw.choice(numbers)

        window = pair(1, 1, 2, 3, 3, 5)
        image = (draw.randint(1, 3), own * groups, draw.randint(1, 17), draw.randint(1, 17))
        weight = (wide * groups, own, *window)
        steps = pair(1, 1, 2, 3), pair(0, 1, 1, 2, 4), pair(1, 1, 2)
        sizes = ConvolutionSizes(image, weight, *steps, groups)
        if sizes.is_supported:
            return sizes


def _check(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    sizes = _drawn(draw)
    image = torch.randn(sizes.image).contiguous(memory_format=_LAST)
    weight = torch.randn(sizes.weight)
    if draw.random() < 0.3:
        weight = weight.contiguous(memory_format=_LAST)
    made = weight.shape[0]
    bias = torch.randn(made) if draw.random() < 0.6 else None
    norm = [torch.randn(made) for _ in range(3)] if draw.random() < 0.5 else []
    norm += [torch.rand(made) + 0.3] if norm else []
    added = draw.random() < 0.4
    activation, bounds = draw.choice(list(_FOLLOWING.items()))
    given = (image, weight, bias, norm, sizes, activation, bounds)
    shape = (sizes.image[0], made, *sizes.result)
    other = torch.randn(shape).contiguous(memory_format=_LAST) if added else None
    want, theirs = _eager(*given, other, torch.float64), _eager(*given, other, torch.float32)
    kernel = _kernel(sizes, draw.choice([1, 1, 3]))
    ours = kernel(image, kernel.packed(weight, bias, norm, 1e-5), other, activation, bounds)
    assert ours.shape == want.shape and ours.is_contiguous(memory_format=_LAST), (seed, sizes)
    error, least = (ours - want).abs().max().item(), (theirs - want).abs().max().item()
    scale = 4 if norm else 1  # of a norm's factors
    bound = 3 * least + 2e-7 * scale * weight[0].numel() + 1e-6 * scale
    assert error <= bound, (seed, sizes, error, least)


_FOLLOWING: dict[str, tuple[float, ...]] = {
    "": (),
    "relu": (),
    "hardtanh": (-0.5, 1.5),
    "hardswish": (),
    "hardsigmoid": (),
    "sigmoid": (),
    "silu": (),
}


def _eager(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: list[torch.Tensor],
    sizes: ConvolutionSizes,
    activation: str,
    bounds: tuple[float, ...],
    added: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """What PyTorch's operators give one after another."""
    window: Any = (sizes.stride, sizes.padding, sizes.dilation, sizes.groups)
    first = None if bias is None else bias.to(dtype)
    made = torch.conv2d(image.to(dtype), weight.to(dtype), first, *window)
    if norm:
        scale, shift, mean, variance = (values.to(dtype) for values in norm)
        made = nn.functional.batch_norm(made, mean, variance, scale, shift)
    made = made if added is None else made + added
    return getattr(nn.functional, activation)(made, *bounds) if activation else made


def test_values_at_drawn_sizes() -> None:
    for seed in range(60):
        _check(seed)


@pytest.mark.nightly
def test_values_at_more_drawn_sizes() -> None:
    for seed in range(2000, 3400):  # at 1938 eager itself ends in a segmentation fault
        _check(seed)


@pytest.mark.parametrize("groups", [1, 32])
def test_nan_is_kept(groups: int) -> None:
    image = torch.randn(1, 32, 5, 5).contiguous(memory_format=_LAST)
    image[0, :, 2, 2] = torch.nan
    image[0, :, 4, 4] = torch.inf
    weight = torch.randn(32, 32 // groups, 3, 3)
    sizes = ConvolutionSizes((1, 32, 5, 5), tuple(weight.shape), (1, 1), (1, 1), (1, 1), groups)
    kernel = _kernel(sizes, 1)
    for activation, bounds in _FOLLOWING.items():
        made = kernel(image, kernel.packed(weight, None, [], 0.0), None, activation, bounds)
        want = torch.conv2d(image, weight, None, 1, 1, 1, groups)
        want = getattr(nn.functional, activation)(want, *bounds) if activation else want
        torch.testing.assert_close(made, want, rtol=1e-4, atol=1e-5, equal_nan=True)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 24, 3, 2, 1, groups=24)
        self.third, self.last = nn.Conv2d(24, 24, 3, 1, 1), nn.Conv2d(24, 8, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(24) for _ in range(3)])
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.norms[0](self.first(x)))
        y = nn.functional.silu(self.norms[1](self.second(y)))
        return self.last((self.norms[2](self.third(y)) + y).relu())


@pytest.fixture
def avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of a machine with AVX2: the kernel is right on others, too."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


@pytest.mark.usefixtures("avx2")
@pytest.mark.parametrize("numerics", ["eager", "default", "fast"])
@pytest.mark.parametrize("freeze", [False, True])
def test_norms_sums_and_activations_are_in_the_kernel(freeze: bool, numerics: str) -> None:
    torch.manual_seed(0)
    model, images = _Net().eval(), [torch.randn(2, 8, 9, 9), torch.randn(3, 8, 9, 9)]
    options = {"freeze": freeze, "numerics": numerics}
    with torch.no_grad():
        compiled = braze.compile(model, fullgraph=True, options=options, dynamic=False)
        report = braze.explain(model, options=options)(images[0])
        for image in (*images, *images, *images):
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
        if not freeze:  # a weight or a norm that changes is packed anew
            for changed in (model.first.weight, model.norms[1].running_var, model.norms[2].bias):
                changed.mul_(2)
                for image in (*images, *images, *images):
                    torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
    own = 0 if numerics == "eager" else 4
    assert report.counters.get("convolutions of own kernel", 0) == own
    if own:  # what is left: the layouts of the first image and of the result
        assert report.counters["kernels"] == 2


@pytest.mark.usefixtures("avx2")
def test_batch_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    call = ConvolutionKernel.__call__

    def counted(kernel: ConvolutionKernel, image: torch.Tensor, *given: Any) -> torch.Tensor:
        batches.append(image.shape[0])
        return call(kernel, image, *given)

    monkeypatch.setattr(ConvolutionKernel, "__call__", counted)
    model, drawn = _Net().eval(), (2, 3, 5, 5, 2, 0, 4)
    with torch.no_grad():
        compiled = braze.compile(model, fullgraph=True)
        for batch in drawn:
            image = torch.randn(batch, 8, 9, 9)
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
    assert batches == [batch for batch in drawn for _ in range(4)]


def test_other_machines_keep_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    with torch.no_grad():
        report = braze.explain(_Net().eval())(torch.randn(2, 8, 9, 9))
    assert report.counters.get("convolutions of own kernel", 0) == 0
    assert report.counters["fused convolutions"] == 4


@pytest.mark.usefixtures("avx2")
def test_weights_that_are_not_kept_are_packed_in_each_call() -> None:
    torch.manual_seed(0)
    model, image = _Net().eval(), torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        compiled = braze.compile(model, fullgraph=True)
        for _ in range(5):
            model.first.weight.add_(0.1)
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)


def test_large_weights_stay_with_the_library() -> None:
    def sizes(channels: int, groups: int, side: int) -> ConvolutionSizes:
        image, weight = (1, channels, side, side), (channels, channels // groups, 3, 3)
        return ConvolutionSizes(image, weight, (1, 1), (1, 1), (1, 1), groups)

    small = (sizes(64, 1, 56), sizes(64, 64, 56), sizes(256, 32, 14))
    assert all(each.is_supported for each in (*small, sizes(256, 1, 14), sizes(64, 64, 112)))
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        assert all(each.has_own_kernel for each in small)
    assert not sizes(256, 1, 14).has_own_kernel and not sizes(64, 64, 112).has_own_kernel
