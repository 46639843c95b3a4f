"""Which nodes fuse_convolutions takes into one, and which graphs it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.compat.torch.registered_ops import convolution


class _Layers(nn.Module):
    """Four convolutions, one with a norm, behind which `end` follows."""

    def __init__(self, end: Any, **arguments: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1, **arguments), nn.BatchNorm2d(8)
        self.stem = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1))
        self.second, self.end = nn.Conv2d(8, 8, 3, padding=1, **arguments), end

    def forward(self, x: torch.Tensor) -> Any:
        first = self.norm(self.first(self.stem(x)))
        return self.end(self.second(first), first)


def _fused(end: Any, image: torch.Tensor | None = None, **arguments: Any) -> tuple[int, int]:
    """Convolutions that are fused, and kernels beside them. Results are eager's."""
    torch.manual_seed(0)
    model = _Layers(end, **arguments).eval()
    image = torch.randn(2, 8, 12, 12) if image is None else image
    fast = {"numerics": "fast"}
    compiled = braze.compile(model, fullgraph=True, options=fast)
    with torch.no_grad():
        report = braze.explain(model, options=fast)(image)
        for _ in range(3):
            made, want = compiled(image), model(image)
            torch.testing.assert_close(made, want, rtol=1e-4, atol=1e-5)
            assert made.stride() == want.stride()
    return report.counters["fused convolutions"], report.counters["kernels"]


_LAYOUTS = 2  # kernels that change the layout before the first convolution and behind the last


@pytest.mark.parametrize(
    ("end", "more"),
    [
        (lambda y, x: y.relu(), 0),
        (lambda y, x: nn.functional.relu6(y), 0),
        (lambda y, x: (y + x).relu(), 0),
        (lambda y, x: x + y, 0),
        (lambda y, x: nn.functional.hardtanh(x + y, -2, 0.5), 0),
        (lambda y, x: torch.add(y, x, alpha=2), 0),  # a kernel, which changes the layout too
        (lambda y, x: y.sigmoid(), 0),  # likewise
    ],
)
def test_what_follows(end: Any, more: int) -> None:
    assert _fused(end) == (4, _LAYOUTS + more)


def test_strided_dilated_and_grouped_windows() -> None:
    def end(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y.relu()

    for arguments in ({"groups": 8}, {"dilation": 2}, {"groups": 2, "bias": False}):
        assert _fused(end, **arguments)[0] == 4
    assert _fused(end, torch.randn(3, 8, 31, 17), stride=2)[0] == 4


def test_images_that_are_channels_last() -> None:
    image = torch.randn(2, 8, 12, 12).contiguous(memory_format=torch.channels_last)
    assert _fused(lambda y, x: y.relu(), image) == (4, 0)


def test_changing_batch() -> None:
    model = _Layers(lambda y, x: y.relu()).eval()
    compiled = braze.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5, 4, 4):
            image = torch.randn(batch, 8, 12, 12)
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
    assert braze.status()[-1].recompiles <= 1


def test_one_small_convolution_stays() -> None:
    layer = nn.Conv2d(8, 8, 3)
    with torch.no_grad():
        report = braze.explain(layer)(torch.randn(2, 8, 12, 12))
    assert report.counters["fused convolutions"] == 0


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("clamp", ["", "relu", "hardtanh"])
def test_operator_by_itself(added: bool, clamp: str) -> None:
    image, weight, bias = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3), torch.randn(4)
    norm = [torch.rand(4), torch.randn(4), torch.randn(4), torch.rand(4)]
    more = torch.randn(2, 4, 4, 4) if added else None
    bounds = [-0.5, 2.0] if clamp == "hardtanh" else []
    window = ([1, 1], [0, 0], [1, 1], 1)
    made = convolution(image, weight, bias, norm, 1e-5, more, *window, clamp, bounds)
    scale, shift, mean, variance = norm
    want = nn.functional.conv2d(image, weight, bias)
    want = nn.functional.batch_norm(want, mean, variance, scale, shift, eps=1e-5)
    want = want if more is None else want + more
    want = want.relu() if clamp == "relu" else want.clamp(*bounds) if bounds else want
    torch.testing.assert_close(made, want)
    assert made.is_contiguous(memory_format=torch.channels_last)
