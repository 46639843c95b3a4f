"""Fake quantization is part of a graph, quantized tensors break it, and neither is a fault."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn import qat

import braze

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated.*")

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "strided": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(4, -1, -1, -1),
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
    "empty": lambda x: x[:0],
}


def _per_tensor(x: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7)


def _by_tensors(x: Tensor) -> Tensor:
    zero = torch.tensor(2, dtype=torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.1), zero, -8, 7)


def _channels(x: Tensor) -> Tensor:
    scales = torch.arange(1, x.shape[1] + 1) * 0.1
    return torch.fake_quantize_per_channel_affine(x, scales, torch.zeros_like(scales), 1, -8, 7)


FAKE = [_per_tensor, _by_tensors, _channels]


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FAKE)
def test_fake_quantization_is_one_graph(function: Any, layout: str, options: Any) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = function(x * 1.5)
        return y, y * 2

    compiled = braze.compile(program, fullgraph=True, **options)
    x = LAYOUTS[layout](torch.linspace(-2, 2, 4 * 6 * 2 * 2).reshape(4, 6, 2, 2))
    for _ in range(2):
        eager, ours = [x.detach().requires_grad_() for _ in range(2)]
        expected, found = program(eager), compiled(ours)
        for a, b in zip(found, expected, strict=True):
            assert a.stride() == b.stride() and a.dtype == b.dtype
            torch.testing.assert_close(a, b)
        for _, result in (expected, found):
            result.square().sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad)
    assert braze.status()[-1].graphs == 1


def _refusals() -> list[Callable[[Tensor], Tensor]]:
    ones, zeros = torch.ones(6), torch.zeros(6, dtype=torch.int32)
    channels = torch.fake_quantize_per_channel_affine
    return [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 20, -8, 7),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 7, -8),
        lambda x: channels(x, ones[:5], zeros, 1, -8, 7),
        lambda x: channels(x, ones, zeros, 5, -8, 7),
        lambda x: channels(x, ones, zeros + 20, 1, -8, 7),
        lambda x: channels(x, ones.double(), zeros, 1, -8, 7),
        lambda x: channels(x, ones, zeros.long(), 1, -8, 7),
    ]


@pytest.mark.parametrize("number", range(len(_refusals())))
def test_refusals_are_eagers(number: int) -> None:
    refused = _refusals()[number]

    def program(x: Tensor) -> tuple[Tensor, str]:
        try:
            refused(x)
        except (RuntimeError, IndexError) as error:
            return x * 2, str(error)
        return x * 3, ""

    x = torch.ones(4, 6, 2, 2)
    expected, found = program(x), braze.compile(program)(x)
    assert found[1] == expected[1] and expected[1]
    torch.testing.assert_close(found[0], expected[0])


QUANTIZED: list[Callable[[Tensor], Any]] = [
    lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.quint8).dequantize(),
    lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.qint8).int_repr(),
    lambda x: torch.quantize_per_tensor(
        x, torch.tensor(0.1), torch.tensor(0), torch.qint32
    ).q_scale(),
    lambda x: torch.quantize_per_channel(
        x, torch.ones(3), torch.zeros(3).long(), 0, torch.qint8
    ).dequantize(),
    lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False).dequantize(),
    lambda x: torch._empty_affine_quantized([3], scale=1.0, zero_point=0, dtype=torch.quint8).shape,
]


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"backend": "eager"}])
@pytest.mark.parametrize("number", range(len(QUANTIZED)))
@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
def test_quantized_tensors_break(number: int, options: Any) -> None:
    function = QUANTIZED[number]

    def program(x: Tensor) -> Any:
        return (x + 1, *[function(x * 2)])

    compiled = braze.compile(program, **options)
    x = torch.linspace(-1, 1, 6).reshape(3, 2)
    for _ in range(2):
        expected, found = program(x), compiled(x)
        assert str(found) == str(expected)
    status = braze.status()[-1]
    assert not status.calls_left
    assert all(why.code == "unsupported-tensor" for why in status.left_to_eager)
    assert "unsupported-tensor" in {note.code for note in status.breaks}


@pytest.mark.parametrize("config", ["fbgemm", "x86", "qnnpack"])
@pytest.mark.parametrize(
    ("cls", "sizes", "shape"),
    [(qat.Linear, (4, 3), (2, 4)), (qat.Conv2d, (2, 3, 3), (1, 2, 5, 5))],
)
def test_quantization_aware_training(cls: Any, sizes: Any, shape: Any, config: str) -> None:
    torch.manual_seed(0)
    eager: nn.Module = cls(*sizes, qconfig=quantization.get_default_qat_qconfig(config)).train()
    ours = copy.deepcopy(eager)
    compiled = braze.compile(ours)
    for number in range(3):
        x = torch.randn(shape) * (number + 1)
        found, expected = compiled(x), eager(x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
    for a, b in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    status = braze.status()[-1]
    assert not status.left_to_eager and status.graphs
    # An observer by rows resizes its state in the first call.
    assert len(status.breaks) <= 1
