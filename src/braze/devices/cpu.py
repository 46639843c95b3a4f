"""The row of the CPU: C++ kernels, called from a Python program."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.codegen import cpp
from braze.devices.device import Device, Linked, Report
from braze.ir.graphs.joint_graph import Role
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Kernel, Schedule, Step
from braze.options import Options
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.runtime.launch.product_rates import SHARES
from braze.runtime.link.link_cpu import PROGRAMS, link
from braze.schedule import CPU, ChooseProduct, Target


def _choose(options: Options, _: Target) -> ChooseProduct | None:
    """Those that are measured to be quicker than ATen's."""
    if options.numerics == "eager":
        return None

    def choose(ways: Sequence[tuple[Step, ...]]) -> int:
        for number, steps in enumerate(ways):
            for step in steps:
                if isinstance(step, Kernel) and step.product is not None:
                    unit, threads = cpp.probe_unit(), PROGRAMS.threads()
                    quicker = SHARES.is_quicker(step.product, threads, unit, options)
                    return number if quicker else 0
        return 0

    return choose


def _link(
    plan: Schedule,
    sources: KernelSources,
    options: Options,
    _: torch.device,
    role: Role,
    __: Report,
) -> Linked:
    units = cpp.probe_unit(), cpp.convolution_unit()
    return link(plan, sources, options, role.takes_inputs, *units)


DEVICE = Device(
    target=lambda _: CPU,
    choose=_choose,
    supports=cpp.supports,
    generate=cpp.generate,
    link=_link,
    builds=lambda options: not isinstance(find_for_kernels(options), NoCompiler),
    paddings=lambda *_: ([], []),
    prepare=lambda: None,
)
