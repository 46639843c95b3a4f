"""The row of the CPU: C++ kernels, called from a Python program."""

from __future__ import annotations

import torch

from braze.codegen import cpp
from braze.devices.device import Device, Linked, Report
from braze.ir.graphs.joint_graph import Role
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Schedule
from braze.options import Options
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.runtime.link.link_cpu import link
from braze.schedule import CPU


def _link(
    plan: Schedule,
    sources: KernelSources,
    options: Options,
    _: torch.device,
    role: Role,
    __: Report,
) -> Linked:
    return link(plan, sources, options, role.takes_inputs)


DEVICE = Device(
    target=lambda _: CPU,
    choose=lambda *_: None,
    supports=cpp.supports,
    generate=cpp.generate,
    link=_link,
    builds=lambda options: not isinstance(find_for_kernels(options), NoCompiler),
    paddings=lambda *_: ([], []),
    prepare=lambda: None,
)
