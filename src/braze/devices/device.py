"""What differs from device to device behind lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.joint_graph import Role
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Schedule
from braze.options import Options
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.schedule import ChooseProduct, Target

Linked: TypeAlias = GraphCallable | NoCompiler
# Is told what calls of the graph cannot do.
Report: TypeAlias = Callable[[str], None]


@final
@frozen
class Device:
    """A row of the table.

    target: what the schedule decides by. choose: which products are kernels of ours, None where
    none is. supports: whether there is code for a scalar operator. generate: kernels' source.
    link: what calls them. builds: whether kernels can be built here. paddings: which sizes are
    padded, and why others are not. prepare: starts what takes a while; capture goes on meanwhile.
    """

    target: Callable[[torch.device], Target]
    choose: Callable[[Options, Target], ChooseProduct | None]
    supports: Callable[[str, torch.dtype], bool]
    generate: Callable[[Schedule, Options], KernelSources]
    link: Callable[[Schedule, KernelSources, Options, torch.device, Role, Report], Linked]
    builds: Callable[[Options], bool]
    paddings: Callable[[Schedule, Options, Role], tuple[list[str], list[str]]]
    prepare: Callable[[], None]
