"""Kernels that differ in static sizes alone share a function, and still compute their own."""

from __future__ import annotations

import torch

from braze.codegen.cpp import generate
from braze.ir.kernels.loops import ExternCall
from braze.ir.kernels.scalars import apply
from braze.options import config
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule
from tests.unit.codegen import programs

relu = torch.ops.aten.relu.default


def channels_program(shapes: list[tuple[int, int, int]]) -> tuple[object, list[torch.Tensor]]:
    """relu after image * channel, each in its own kernel."""
    inputs, statements, outputs = [], [], []
    tensors = []
    for number, shape in enumerate(shapes):
        image = programs.buffer(f"x{number}", shape)
        channel = programs.buffer(f"c{number}", shape[1:2])
        product = programs.buffer(f"m{number}", shape)
        over = programs.axes(shape)
        (a, b, c) = (symbol for symbol, _ in over)
        body = apply("mul", programs.load(image, a, b, c), programs.load(channel, b))
        statements.append(programs.define(product, over, body))
        result = programs.buffer(f"y{number}", shape)
        statements.append(ExternCall(relu, (programs.view(product),), (), (result,)))
        inputs += [image, channel]
        outputs.append(result)
        tensors += [torch.randn(shape), torch.randn(shape[1])]
    return programs.program(inputs, statements, outputs), tensors


def functions_and_results(
    shapes: list[tuple[int, int, int]],
) -> tuple[int, list[torch.Tensor], list[torch.Tensor]]:
    program, tensors = channels_program(shapes)
    plan = schedule(program, config.snapshot())  # type: ignore[arg-type]
    sources = generate(plan, config.snapshot())
    count = sum(unit.text.count("_range(char* const* p, ") for unit in sources.units)
    results = link(plan, sources, config.snapshot())(tensors)  # type: ignore[operator]
    wanted = [torch.relu(x * c[:, None]) for x, c in zip(tensors[::2], tensors[1::2], strict=True)]
    return count, results, wanted


def test_long_loops_of_different_sizes_share_a_function() -> None:
    count, results, wanted = functions_and_results([(2, 24, 900), (3, 10, 4001), (2, 12, 256)])
    assert count == 1
    assert all(map(torch.equal, results, wanted))


def test_short_loops_keep_their_sizes() -> None:
    count, results, wanted = functions_and_results([(200, 24, 49), (300, 24, 16)])
    assert count == 2
    assert all(map(torch.equal, results, wanted))


def test_a_kernel_alone_keeps_its_sizes() -> None:
    program, _ = channels_program([(2, 24, 900)])
    plan = schedule(program, config.snapshot())  # type: ignore[arg-type]
    text = generate(plan, config.snapshot()).units[0].text
    assert "r0 < 900L" in text
