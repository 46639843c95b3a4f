"""What is decided for four cards, from the table of their counts; `pytest --bless` rewrites."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from braze.codegen.triton import generate
from braze.codegen.triton.block_shapes import likely_shapes
from braze.codegen.triton.candidates import first_tiling
from braze.codegen.triton.function import programs as programs_of
from braze.codegen.triton.tiling import Tiling
from braze.ir.device_model import H200, KNOWN, DeviceModel, model_of
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.options import config
from braze.rewrite.align_products import rates_of
from braze.runtime.cuda_graphs.policy import device_seconds
from braze.schedule import CUDA, schedule
from braze.schedule.target import gpu_target
from tests.conftest import check_golden
from tests.unit.codegen import programs

FOLDER = Path(__file__).parent / "devices"


def _added(*shape: int) -> LoopProgram:
    types = (torch.float32, torch.float32)
    return programs.pointwise(shape, lambda x, z: apply("add", x, z), *types)


PROGRAMS = {
    "few points": _added(300, 300),
    "many points": _added(4096, 4096),
    "transpose": programs.transposed_add(512, 2048),
    "softmax of few rows": programs.softmax(64, 1000),
    "softmax of 400 short rows": programs.softmax(400, 128),
    "softmax of 480 short rows": programs.softmax(480, 128),
    "softmax of long rows": programs.softmax(512, 131072),
    "norm": programs.add_norm(4096, 1024),
    "norm of long rows": programs.add_norm(100, 32768),
    "sum": programs.reduction("sum", (1 << 24,), ()),
    "sums of rows": programs.reduction("sum", (200, 65536), (0,)),
    "sums of columns": programs.reduction("sum", (65536, 300), (1,)),
    "batch norm": programs.channel_norm((64, 256, 3136)),
}
# Rows, columns, summed, bytes of an item.
PRODUCTS = ((100352, 64, 576, 2), (1568, 512, 2048, 2), (12544, 256, 1152, 4))


@pytest.mark.parametrize("name", KNOWN)
def test_decisions(name: str, bless: bool) -> None:
    text = "".join(f"{line}\n" for line in _decisions(KNOWN[name]))
    check_golden(FOLDER / f"{name}.txt", text, bless)


def _decisions(device: DeviceModel) -> Iterator[str]:
    target = gpu_target(device)
    for field in dataclasses.fields(target):
        value = getattr(target, field.name)
        if field.name != "device" and value != getattr(CUDA, field.name):
            yield f"{field.name} = {value}"
    for name, program in PROGRAMS.items():
        plan = schedule(program, config.snapshot(), target)
        yield f"{name}: {device_seconds(plan) * 1e6:.1f} us"
        for step in plan.steps:
            assert isinstance(step, Kernel)
            yield f"    {_launch(first_tiling(step, device))}"
    for product in PRODUCTS:
        blocks = likely_shapes(*product, device)
        yield f"product {product}: {' '.join(map(str, blocks[:3]))}"
    rates = rates_of(device)
    yield f"padded rows: {rates.aligned / rates.memory:.0f} operations a byte"


def _launch(tiling: Tiling) -> str:
    blocks = " x ".join(f"{d.name}{d.block}{' walked' * d.walked}" for d in tiling.axes)
    count = programs_of(tiling)
    return f"{count} programs of {blocks}, {tiling.warps} warps, {tiling.stages} stages" + (
        f", a row is {tiling.parts} programs" if tiling.parts > 1 else ""
    )


def test_the_cards_differ() -> None:
    texts = {name: "".join(_decisions(model)) for name, model in KNOWN.items()}
    assert len(set(texts.values())) == len(KNOWN)


def test_a_small_card_gets_kernels_that_fit() -> None:
    for model in KNOWN.values():
        for product in PRODUCTS:
            for rows, columns, inner, _, stages in likely_shapes(*product, model):
                blocks = stages * (rows + columns) * inner
                assert max(blocks, rows * columns) * product[-1] <= model.shared_bytes


def test_the_code_of_equal_cards_is_equal() -> None:
    """A card is its counts, not its name."""
    again = dataclasses.replace(H200, name="another")
    for program in PROGRAMS.values():
        first, second = (_plan(program, model) for model in (H200, again))
        options = config.snapshot()
        assert str(generate(first, options)) == str(generate(second, options))


def _plan(program: LoopProgram, device: DeviceModel) -> Schedule:
    return schedule(program, config.snapshot(), gpu_target(device))


def test_a_driver_says_the_counts() -> None:
    said = SimpleNamespace(
        name="NVIDIA A100",
        major=8,
        minor=0,
        multi_processor_count=108,
        clock_rate=1_410_000,
        memory_clock_rate=1_593_000,
        memory_bus_width=5120,
        L2_cache_size=40 << 20,
        shared_memory_per_block_optin=163 << 10,
        shared_memory_per_multiprocessor=164 << 10,
        regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=2048,
    )
    found, known = model_of(said), KNOWN["A100"]
    assert dataclasses.replace(found, name="A100", bandwidth=known.bandwidth) == known
    assert found.bandwidth == pytest.approx(known.bandwidth, rel=0.01)


def test_a_driver_that_says_little_gives_an_h200_s_rates() -> None:
    said = SimpleNamespace(
        name="?", major=9, minor=0, multi_processor_count=50, shared_memory_per_block_optin=99 << 10
    )
    found = model_of(said)
    assert (found.processors, found.shared_bytes, found.memory) == (50, 99 << 10, H200.memory)
