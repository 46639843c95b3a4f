"""Convolutions as kernels with what reads them: on a device beside eager and float64, as tuning
chooses, and with that way chosen."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.devices import cuda
from braze.options import config
from tests.gpu.checks import NEEDS_DEVICE, kept_choices

pytestmark = NEEDS_DEVICE
_MODE = "max-autotune-no-cudagraphs"
Shape = tuple[int, ...]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=tmp_path):
        yield tmp_path


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = torch._C._get_cudnn_allow_tf32()
    yield
    torch._C._set_cudnn_allow_tf32(before)


def _biased(x: Any, w: Any, b: Any, y: Any, **how: Any) -> Any:
    return F.relu(F.conv2d(x, w, b, **how) + y)


def _padded(x: Any, w: Any, b: Any, y: Any) -> Any:
    return _biased(x, w, b, y, padding=1)


def _steps(x: Any, w: Any, b: Any, y: Any) -> Any:
    return _biased(x, w, b, y, padding=1, stride=2)


def _apart(x: Any, w: Any, b: Any, y: Any) -> Any:
    return _biased(x, w, b, y, padding=2, dilation=2)


def _leaps(x: Any, w: Any, b: Any, y: Any) -> Any:
    return _biased(x, w, b, y, stride=2)


def _behind_relu(x: Any, w: Any, b: Any, y: Any) -> Any:
    return _biased(F.silu(x), w, b, y)


def _normalised(x: Any, w: Any, b: Any, y: Any) -> Any:
    made = F.batch_norm(F.conv2d(x, w, padding=1), b * 0, b.abs() + 1, b, b)
    return F.relu(made + y)


# What is computed, the shape of the image, that of the weight, and the result's rows and columns.
CASES: tuple[tuple[Callable[..., Any], Shape, Shape, Shape], ...] = (
    (_biased, (4, 64, 28, 28), (256, 64, 1, 1), (28, 28)),
    (_biased, (3, 96, 15, 13), (40, 96, 1, 1), (15, 13)),
    (_padded, (4, 128, 28, 28), (128, 128, 3, 3), (28, 28)),
    (_padded, (3, 48, 15, 13), (40, 48, 3, 3), (15, 13)),
    (_padded, (2, 128, 28, 28), (32, 128, 3, 3), (28, 28)),
    (_steps, (4, 128, 28, 28), (128, 128, 3, 3), (14, 14)),
    (_apart, (2, 64, 20, 20), (64, 64, 3, 3), (20, 20)),
    (_leaps, (4, 256, 28, 28), (512, 256, 1, 1), (14, 14)),
    (_behind_relu, (4, 64, 28, 28), (64, 64, 1, 1), (28, 28)),
    (_normalised, (4, 512, 7, 7), (512, 512, 3, 3), (7, 7)),
)


def _given(number: int, dtype: torch.dtype) -> list[torch.Tensor]:
    _, image, weight, places = CASES[number]
    torch.manual_seed(0)
    shapes = (image, weight, weight[:1], (image[0], weight[0], *places))
    made = [torch.randn(shape, device="cuda").to(dtype) / 2 for shape in shapes]
    return [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in made]


def _errors(found: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor) -> tuple[float, ...]:
    return tuple([float((y.double() - exact).norm() / exact.norm()) for y in (found, wanted)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("is_forced", [True, False])
def test_errors_are_at_most_twice_eagers(
    number: int,
    dtype: torch.dtype,
    is_forced: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not is_forced and number not in (0, 2):
        pytest.skip("two are timed")
    if is_forced:
        monkeypatch.setattr(cuda, "quickest_way", lambda *_: 1)
    function, given = CASES[number][0], _given(number, dtype)
    compiled = braze.compile(function, mode=_MODE)
    with torch.no_grad(), caplog.at_level(logging.INFO, "braze.fusion"):
        found, wanted = compiled(*given), function(*given)
        exact = function(*[x.double() for x in given])
    error, theirs = _errors(found, wanted, exact)
    assert found.stride() == wanted.stride() and found.dtype == wanted.dtype
    assert error <= max(2 * theirs, torch.finfo(dtype).eps / 4), (error, theirs)
    assert not is_forced or "a kernel of ours" in caplog.text


def test_without_tf32_float32_is_multiplied_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the switch is noticed between calls."""
    monkeypatch.setattr(cuda, "quickest_way", lambda *_: 1)
    given = _given(2, torch.float32)
    compiled = braze.compile(_padded, mode=_MODE)
    errors = []
    with torch.no_grad():
        exact = _padded(*[x.double() for x in given])
        for allowed in (True, False, True):
            torch._C._set_cudnn_allow_tf32(allowed)
            errors.append(_errors(compiled(*given), _padded(*given), exact))
    least = 4 * torch.finfo(torch.float32).eps
    assert all(mine <= max(2 * theirs, least) for mine, theirs in errors), errors
    assert errors[1][0] < errors[0][0] / 20 and errors[0][0] == errors[2][0], errors


class Block(nn.Module):
    """Of a ResNet, with a change of size."""

    def __init__(self, channels: int, inner: int, step: int) -> None:
        super().__init__()
        made = channels * step
        self.first = nn.Conv2d(channels, inner, 1, bias=False)
        self.second = nn.Conv2d(inner, inner, 3, step, 1, bias=False)
        self.third = nn.Conv2d(inner, made, 1, bias=False)
        self.down = nn.Conv2d(channels, made, 1, step, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (inner, inner, made, made)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.norms
        y = first(self.first(x)).relu()
        y = second(self.second(y)).relu()
        return (third(self.third(y)) + fourth(self.down(x))).relu()


def _model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(64, 32, 2), Block(128, 64, 1), Block(128, 64, 2)]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), *blocks).to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", ["max-autotune", _MODE])
@pytest.mark.parametrize("is_forced", [True, False])
def test_blocks_of_a_model(
    mode: str, dtype: torch.dtype, is_forced: bool, _own_cache: Path, monkeypatch: Any
) -> None:
    if is_forced:
        monkeypatch.setattr(cuda, "quickest_way", lambda *_: 1)
    model = _model(dtype).eval()
    wide = copy.deepcopy(model).double()
    compiled = braze.compile(model, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(8, 3, 96, 80, device="cuda", dtype=dtype)
            error, theirs = _errors(compiled(x), model(x), wide(x.double()))
            assert error <= 2 * theirs, (error, theirs)
    kept = kept_choices(_own_cache).values()
    assert is_forced or sum("library" in choice["microseconds"] for choice in kept) >= 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_training(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that the backward reads are kept; gradients are as near to float64 as eager's."""
    monkeypatch.setattr(cuda, "quickest_way", lambda *_: 1)
    nets = [_model(dtype) for _ in range(2)]
    for net in nets:
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    nets.append(copy.deepcopy(nets[0]).double())
    calls = [braze.compile(nets[0], mode=_MODE), *nets[1:]]
    x = torch.randn(8, 3, 96, 80, device="cuda", dtype=dtype)
    gradients = []
    for net, call in zip(nets, calls, strict=True):
        call(x.to(next(net.parameters()).dtype)).double().square().mean().backward()
        parts = [p.grad.double().flatten() for p in net.parameters() if p.grad is not None]
        gradients.append(torch.cat(parts))
    error, theirs = _errors(gradients[0], gradients[1], gradients[2])
    assert error <= 2 * theirs + 1e-3, (error, theirs)
