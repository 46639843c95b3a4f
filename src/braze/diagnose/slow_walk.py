"""Which stage makes a graph slower than eager: a slow-down, from graph pass to kernel.

    operators as captured  ->  operators behind each graph pass  ->  kernels, fused and not

Times are the least of several runs. A graph is slow where its kernels take SLOWER times what its
operators do. Then the first pass behind which the operators are slow is named, or the kernel that
takes longest beside the operators of its lines: fusion's, where unfused kernels are not slow. Where
no kernel is, starting them is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from braze.devices import Device, device_of_type
from braze.diagnose.shrink import part_of, symbol_values, values_of
from braze.diagnose.suspect import SLOW, Suspect
from braze.ir.graphs.custom_gradient import without_custom_gradients
from braze.ir.graphs.graph import Graph, devices_of, main_device
from braze.ir.graphs.joint_graph import PLAIN
from braze.ir.graphs.random_ops import drawing_devices
from braze.ir.graphs.region import compile_regions
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.kernels.schedule import Kernel, Schedule, origins_of
from braze.ir.origin import Origin
from braze.kernel_times import KernelTimes
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.runtime.autograd.rng_state import RandomStates
from braze.runtime.dispatch.shadow_check import copies_of
from braze.schedule import FUSION, schedule

SLOWER = 1.5
_RUNS = 7

Run = Callable[[list[Any]], object]


def find_slow(graph: Graph, options: Options, inputs: Sequence[object]) -> Suspect | None:
    """The first part that makes the graph slow, for these inputs; they are left as they are. None
    where it is not slow, or is for a device without kernels of Braze."""
    device = main_device(devices_of(graph))
    kind = None if device is None else device_of_type(device.type)
    if device is None or kind is None or not graph.nodes:
        return None
    states = RandomStates(drawing_devices(graph))
    try:
        return _slow_part(without_custom_gradients(graph), options, inputs, kind, device)
    finally:
        states.restore()


def seconds_of(run: Run, inputs: Sequence[object]) -> float:
    """The least wall seconds of several runs, each on copies of the inputs."""
    least = float("inf")
    with torch.no_grad():
        for _ in range(_RUNS):
            given = copies_of(inputs)
            began = time.perf_counter()
            run(given)
            least = min(least, time.perf_counter() - began)
    return least


# --- private ---------------------------------------------------------------------------------


def _slow_part(
    graph: Graph, options: Options, inputs: Sequence[object], kind: Device, device: torch.device
) -> Suspect | None:
    behind: list[tuple[str, Graph]] = []

    def note(
        stage: str, name: str, spent: float, changed: bool, made: Any, context: object
    ) -> None:
        if changed:
            behind.append((name, made))

    rewritten = compile_regions(rewrite(graph, options, note), compile_graph_runner)
    plan, run, times = _linked(rewritten, options, kind, device)
    eager, compiled = seconds_of(compile_graph_runner(graph), inputs), seconds_of(run, inputs)
    if compiled <= SLOWER * eager:
        return None
    said = f"{_us(compiled)} a call, {_us(eager)} by operators"
    least = eager
    for name, program in behind:
        spent = seconds_of(compile_graph_runner(program), inputs)
        if spent > SLOWER * least:
            return Suspect(SLOW, "rewrite", name, f"{said}; {_us(spent)} behind this pass")
        least = min(least, spent)
    found = _slow_kernel(graph, inputs, plan, times)
    if found is None:
        kernels = sum(time.least for _, time in times.items() if _)
        return Suspect(SLOW, "link", "launch", f"{said}; its kernels take {_us(kernels)}")
    kernel, detail = found
    _, unfused, _ = _linked(rewritten, replace(options, max_fusion_size=1), kind, device)
    is_fusion = seconds_of(unfused, inputs) * SLOWER < compiled
    stage, part = ("schedule", FUSION) if is_fusion else ("codegen", kernel.name)
    return Suspect(SLOW, stage, part, f"{said}; {kernel.name}: {detail}", origins_of(kernel))


def _linked(
    graph: Graph, options: Options, kind: Device, device: torch.device
) -> tuple[Schedule, Run, KernelTimes]:
    """The schedule, what runs it, and what times its kernels meanwhile."""
    others = device if len(devices_of(graph)) > 1 else None
    program, target = lower(graph, options, kind.supports, others), kind.target(device)
    plan = schedule(program, options, target, kind.choose(options, target))
    times = KernelTimes()
    sources = replace(kind.generate(plan, options), times=times)
    linked: Any = kind.link(plan, sources, options, device, PLAIN, lambda _: None)
    return plan, linked, times


def _slow_kernel(
    graph: Graph, inputs: Sequence[object], plan: Schedule, times: KernelTimes
) -> tuple[Kernel, str] | None:
    """The kernel that is slowest beside the operators of its lines, if one is slow."""
    kernels = {step.name: step for step in plan.steps if isinstance(step, Kernel)}
    spent = {name: each.least for name, each in times.items() if name in kernels}
    values = values_of(graph, inputs)
    known = symbol_values(graph, inputs, values)
    for name in sorted(spent, key=lambda name: -spent[name]):
        places = {_place(origin) for origin in origins_of(kernels[name])}
        nodes = [node for node in graph.nodes if _place(node.origin) in places]
        if not nodes:
            continue
        part, given = part_of(graph, nodes, values, known)
        eager = seconds_of(compile_graph_runner(part), given)
        if spent[name] > SLOWER * eager:
            return kernels[name], f"{_us(spent[name])}, the operators of its lines {_us(eager)}"
    return None


def _place(origin: Origin) -> tuple[str, int]:
    return origin.file, origin.line


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us"
