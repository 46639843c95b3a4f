"""Gradients through lowering: forward and backward in one trace, against eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.ir.kernels.loops import ExternCall, LoopProgram
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.tracing import Tracer

Case = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]

_MATRIX, _IMAGE = (4, 6), (3, 4, 6, 6)

CASES: dict[str, Case] = {
    "relu": (F.relu, (_MATRIX,)),
    "gelu": (F.gelu, (_MATRIX,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (_MATRIX,)),
    "silu": (F.silu, (_MATRIX,)),
    "mish": (F.mish, (_MATRIX,)),
    "hardswish": (lambda x: F.hardswish(x * 3), (_MATRIX,)),
    "hardsigmoid": (lambda x: F.hardsigmoid(x * 3), (_MATRIX,)),
    "hardtanh": (F.hardtanh, (_MATRIX,)),
    "tanh": (torch.tanh, (_MATRIX,)),
    "sigmoid": (torch.sigmoid, (_MATRIX,)),
    "leaky_relu": (F.leaky_relu, (_MATRIX,)),
    "elu": (F.elu, (_MATRIX,)),
    "selu": (F.selu, (_MATRIX,)),
    "softplus": (F.softplus, (_MATRIX,)),
    "logsigmoid": (F.logsigmoid, (_MATRIX,)),
    "prelu": (F.prelu, (_IMAGE, (4,))),
    "glu": (F.glu, (_MATRIX,)),
    "softmax": (lambda x: F.softmax(x, 1), (_MATRIX,)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), (_MATRIX,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (_MATRIX, (6,), (6,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), (_MATRIX, (6,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (_IMAGE, (4,), (4,))),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (_IMAGE, (4,), (4,)),
    ),
    "instance_norm": (F.instance_norm, (_IMAGE,)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, -100, 3])), (_MATRIX,)),
    "mse_loss": (F.mse_loss, (_MATRIX, _MATRIX)),
    "smooth_l1_loss": (F.smooth_l1_loss, (_MATRIX, _MATRIX)),
    "huber_loss": (F.huber_loss, (_MATRIX, _MATRIX)),
    "bce_with_logits": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
        (_MATRIX, _MATRIX),
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (_IMAGE,)),
    "max_pool_ceil": (lambda x: F.max_pool2d(x, 3, 2, 0, ceil_mode=True), (_IMAGE,)),
    "max_pool_gaps": (lambda x: F.max_pool2d(x, 2, 3), (_IMAGE,)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), (_IMAGE,)),
    "avg_pool_overlap": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (_IMAGE,),
    ),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, 3), (_IMAGE,)),
    "upsample_nearest": (lambda x: F.interpolate(x, scale_factor=2), (_IMAGE,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (_IMAGE,)),
    "pad": (lambda x: F.pad(x, (1, 2, -1, 0)), (_IMAGE,)),
    "slices": (lambda x: x[:, 1:6:2] * x[1, 0], (_MATRIX,)),
    "cat": (lambda x: torch.cat([x, x.t().reshape(4, 6)], 1), (_MATRIX,)),
    "var": (lambda x: x.var(0), (_MATRIX,)),
    "std": (lambda x: x.std(), (_MATRIX,)),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), (_MATRIX,)),
    "norm": (lambda x: x.norm(dim=1), (_MATRIX,)),
    "amax": (lambda x: x.amax(1), (_MATRIX,)),
    "where": (lambda x: torch.where(x > 0, x * 2, x.exp()), (_MATRIX,)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (_MATRIX,)),
}


def _gradients(function: Callable[..., torch.Tensor], inputs: Any) -> tuple[torch.Tensor, ...]:
    result = function(*inputs)
    direction = torch.cos(torch.arange(result.numel()).reshape(result.shape).to(result.dtype))
    return torch.autograd.grad(result, inputs, direction)


def _lowered(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]
) -> tuple[LoopProgram, list[torch.Tensor]]:
    tracer = Tracer(replayable=False)
    with tracer:
        fakes = [tracer.add_input(tensor) for tensor in inputs]
        finished = tracer.finish(list(_gradients(function, fakes)))
    program = lower(rewrite(finished.graph, Options()), Options())
    verify_loops(program)
    return program, [inputs[n].detach() for n in finished.inputs]


@pytest.mark.parametrize("name", list(CASES))
def test_gradient(name: str) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    expected = _gradients(function, inputs)
    program, given = _lowered(function, inputs)
    # Positions of maxima, and the scatter to them, are ATen's.
    externs = [
        s.op
        for s in program.statements
        if isinstance(s, ExternCall) and "max_pool" not in str(s.op)
    ]
    assert not externs, f"left to ATen: {externs}"
    for actual, wanted in zip(run_loops(program, given), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
        assert actual.stride() == wanted.stride()


def test_gradient_in_bfloat16() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(6, dtype=torch.bfloat16, requires_grad=True)

    def function(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.layer_norm(a, (6,), w))

    expected = _gradients(function, [x, weight])
    program, given = _lowered(function, [x, weight])
    for actual, wanted in zip(run_loops(program, given), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=3e-2, atol=3e-2)
