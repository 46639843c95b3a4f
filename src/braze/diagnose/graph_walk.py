"""Walks one graph through the stages, and compares what it computes behind each with eager.

    operators -> each graph pass -> loops -> each pass of statements -> fused -> each pass of steps
              -> kernels with no memory shared -> the memory plan

Graphs run by the operators, loops by the evaluator of `braze.ir`, what is fused as kernels. The
first program that computes something else, or that cannot be made, is named by what made it. Not
judged: graphs that return what memory held before they ran.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.devices import Device, device_of_type
from braze.diagnose.suspect import CRASH, WRONG, Suspect
from braze.errors import BuildFailed, InternalError
from braze.ir.graphs.custom_gradient import without_custom_gradients
from braze.ir.graphs.graph import Graph, devices_of, main_device
from braze.ir.graphs.joint_graph import PLAIN
from braze.ir.graphs.random_ops import drawing_devices
from braze.ir.graphs.region import compile_regions
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.kernels.loops import Buffer, BufferView, LoopProgram
from braze.ir.kernels.run_loops import OutOfBounds, run_loops_in_memory
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Step, origins_of
from braze.ir.origin import Origin
from braze.ir.passes import FAILED_PASS
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.runtime.autograd.rng_state import RandomStates
from braze.runtime.dispatch.shadow_check import copies_of, error_of, largest_of, leaves_memory
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.schedule import FUSION, Arrangement, lay_out, schedule

Run = Callable[[list[Any]], Sequence[Any]]


def find_suspect(
    graph: Graph, options: Options, inputs: Sequence[object], until: str = ""
) -> Suspect | None:
    """The first part that is wrong about the graph, for these inputs; they are left as they are.
    None where all agree, or nothing can be said. until: the last stage to go to."""
    if any(leaves_memory(node.op) for node in graph.nodes) or not graph.nodes:
        return None
    try:
        _GraphWalk(without_custom_gradients(graph), options, inputs).walk(until)
    except _Found as found:
        return found.suspect
    return None


# --- private ---------------------------------------------------------------------------------


class _Found(Exception):
    """The walk is at its end."""

    def __init__(self, suspect: Suspect) -> None:
        super().__init__(str(suspect))
        self.suspect = suspect


@final
class _GraphWalk:
    """The graph, its inputs, and what eager makes of them."""

    def __init__(self, graph: Graph, options: Options, inputs: Sequence[Any]) -> None:
        self.graph, self.inputs = graph, copies_of(inputs)
        self.options = replace(options, verify=True, suppress_errors=False, check=0.0)
        self.states = RandomStates(drawing_devices(graph))
        self.largest = max([largest_of(x) for x in self.inputs], default=0.0)
        self.expected = self.run(compile_graph_runner(graph))
        self.memory: dict[Buffer, torch.Tensor] = {}

    def walk(self, until: str) -> None:
        """Raises _Found."""
        kind = self._device()
        graph = self._rewritten()
        if until == "rewrite" or kind is None:
            return
        program = self._lowered(graph, kind)
        if until == "lower":
            return
        fused, plan = self._scheduled(program, kind)
        if until == "schedule" and not fused:
            return
        self._compiled(program, fused, plan, kind)

    # --- running -----------------------------------------------------------------------------

    def run(self, function: Run) -> list[Any]:
        """What it returns, and what its inputs hold then; random numbers are the same each time."""
        self.states.restore()
        copies = copies_of(self.inputs)
        try:
            with torch.no_grad():
                return [*function([*copies]), *copies]
        finally:
            self.states.restore()

    def difference(self, found: Sequence[object]) -> str:
        """How far the results are from eager's; "" where they are not."""
        results = len(self.graph.outputs)
        for number, (mine, theirs) in enumerate(zip(found, self.expected)):
            if isinstance(theirs, torch.Tensor) and isinstance(mine, torch.Tensor):
                error = error_of(mine, theirs, self.largest)
                if error:
                    place = f"result {number}" if number < results else f"input {number - results}"
                    return f"{place} differs by {error:.1e} of the largest value"
        return ""

    def judge(self, function: Run, stage: str, part: str, origins: tuple[Origin, ...] = ()) -> None:
        """Raises _Found where the function is wrong, or cannot run."""
        try:
            found = self.run(function)
        except OutOfBounds as error:
            raise _Found(Suspect(WRONG, stage, part, str(error), origins)) from error
        except Exception as error:
            raise _Found(Suspect(CRASH, stage, part, _text(error), origins)) from error
        if difference := self.difference(found):
            raise _Found(Suspect(WRONG, stage, part, difference, origins))

    # --- stages ------------------------------------------------------------------------------

    def _device(self) -> Device | None:
        device = main_device(devices_of(self.graph))
        return None if device is None else device_of_type(device.type)

    def _rewritten(self) -> Graph:
        def note(
            stage: str, name: str, seconds: float, changed: bool, program: Any, context: object
        ) -> None:
            if changed:
                self.judge(compile_graph_runner(program), stage, name)

        graph = _made("rewrite", lambda: rewrite(self.graph, self.options, note))
        return compile_regions(graph, compile_graph_runner)

    def _lowered(self, graph: Graph, kind: Device) -> LoopProgram:
        devices = devices_of(graph)
        device = main_device(devices) if len(devices) > 1 else None
        made = _made("lower", lambda: lower(graph, self.options, kind.supports, device))
        program: LoopProgram = made
        self.judge(self._evaluated(program), "lower", "")
        return program

    def _evaluated(self, program: LoopProgram) -> Run:
        def function(inputs: list[object]) -> Sequence[object]:
            results, self.memory = run_loops_in_memory(program, inputs)
            return results

        return function

    def _scheduled(
        self, program: LoopProgram, kind: Device
    ) -> tuple[list[tuple[str, Schedule]], Schedule]:
        """What each of the passes of steps made, fusion first, with no memory shared; the plan."""
        fused: list[tuple[str, Schedule]] = []

        def note(
            stage: str, name: str, seconds: float, changed: bool, made: Any, state: Arrangement
        ) -> None:
            if isinstance(made, list):
                whole = replace(state.program, statements=tuple(made))
                if changed:
                    self._judge_statements(whole, stage, name)
            elif changed:
                if name == FUSION:
                    fused.clear()
                fused.append((name, _unshared(lay_out(state, made))))

        device = main_device(devices_of(self.graph))
        assert device is not None
        target = kind.target(device)
        choose = kind.choose(self.options, target)
        plan = _made("schedule", lambda: schedule(program, self.options, target, choose, note))
        return fused, plan

    def _judge_statements(self, program: LoopProgram, stage: str, name: str) -> None:
        memory = self.memory
        try:
            found = self.run(self._evaluated(program))
        except OutOfBounds as error:  # memory that is next to a buffer may hold the right value
            raise _Found(Suspect(WRONG, stage, name, str(error))) from error
        except Exception:  # the evaluator knows the programs of lowering, not all of these
            self.memory = memory
            return
        if difference := self.difference(found):
            raise _Found(Suspect(WRONG, stage, name, difference))

    def _compiled(
        self,
        program: LoopProgram,
        fused: Sequence[tuple[str, Schedule]],
        plan: Schedule,
        kind: Device,
    ) -> None:
        """Raises _Found. Kernels are looked at one by one only where the whole is wrong."""
        try:
            self.judge(self._linked(plan, kind), "link", "")
            return
        except _Found as found:
            whole = found.suspect
        for number, (name, unshared) in enumerate(fused):
            try:
                self.judge(self._linked(unshared, kind), "schedule", name)
            except _Found as found:
                if number and found.suspect.kind == WRONG:
                    raise
                self._find_kernel(program, unshared, found.suspect, kind)
        if whole.kind == CRASH:
            raise _Found(whole)
        raise _Found(replace(whole, stage="schedule", part="memory plan"))

    def _linked(self, plan: Schedule, kind: Device) -> Run:
        """Its kernels and calls, built. Raises _Found."""
        device = main_device(devices_of(self.graph))
        assert device is not None
        sources = _made("codegen", lambda: kind.generate(plan, self.options))
        try:
            linked = kind.link(plan, sources, self.options, device, PLAIN, lambda _: None)
        except BuildFailed as error:
            kernels = [step for step in plan.steps if isinstance(step, Kernel)]
            raise _Found(_unbuildable(kernels, error, plan, kind, self.options)) from error
        except Exception as error:
            raise _Found(Suspect(CRASH, "link", "", _text(error))) from error
        if isinstance(linked, NoCompiler):
            raise _Found(Suspect(CRASH, "link", "", linked.reason))
        return linked

    def _find_kernel(
        self, program: LoopProgram, plan: Schedule, found: Suspect, kind: Device
    ) -> None:
        """Raises _Found with the first kernel whose values are none of the loops'."""
        if found.kind == CRASH:
            raise _Found(found)
        alone = replace(self.options, max_fusion_size=1)
        steps, values = _with_all_results(plan)
        results = self.run(self._linked(steps, kind))[len(plan.outputs) :]
        made = dict(zip(values, results))
        for step in plan.steps:
            for buffer in _written(step):
                expected = self.memory.get(buffer)
                if buffer not in made or expected is None or buffer in plan.inputs:
                    continue
                if error := error_of(made[buffer], expected, self.largest):
                    detail = f"{buffer} differs by {error:.1e} of the largest value"
                    self._blame(program, step, replace(found, detail=detail), alone, kind)
        raise _Found(replace(found, stage="schedule", part=FUSION))

    def _blame(
        self, program: LoopProgram, step: Step, found: Suspect, alone: Options, kind: Device
    ) -> None:
        """Raises _Found: of a kernel that is right where nothing is fused, fusion is wrong."""
        if isinstance(step, ExternStep):
            origin = step.call.origin
            raise _Found(replace(found, stage="link", part=str(step.call.op), origins=(origin,)))
        origins = origins_of(step)
        device = main_device(devices_of(self.graph))
        assert device is not None
        plan = schedule(program, alone, kind.target(device), None)
        try:
            self.judge(self._linked(_unshared(plan), kind), "codegen", step.name)
        except _Found as unfused:
            suspect = replace(found, stage="codegen", part=step.name, origins=origins)
            raise _Found(suspect) from unfused
        raise _Found(replace(found, stage="schedule", part=FUSION, origins=origins))


def _made(stage: str, make: Callable[[], object]) -> Any:
    """What a stage makes. Raises _Found where it fails."""
    try:
        return make()
    except _Found:
        raise
    except Exception as error:
        part = getattr(error, FAILED_PASS, "")
        origin = getattr(error, "origin", None)
        origins = (origin,) if isinstance(origin, Origin) else ()
        raise _Found(Suspect(CRASH, stage, part, _text(error), origins)) from error


def _text(error: Exception) -> str:
    cause = error.cause if isinstance(error, InternalError) else error
    cause = error if isinstance(cause, str) else cause
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}{place}"


def _unbuildable(
    kernels: Sequence[Kernel], error: BuildFailed, plan: Schedule, kind: Device, options: Options
) -> Suspect:
    """The first kernel whose source is refused by itself."""
    device = plan.inputs[0].device if plan.inputs else torch.device("cpu")
    for kernel in kernels:
        one = _only(plan, kernel)
        try:
            kind.link(one, kind.generate(one, options), options, device, PLAIN, lambda _: None)
        except BuildFailed as alone:
            return Suspect(CRASH, "codegen", kernel.name, _text(alone), origins_of(kernel))
    return Suspect(CRASH, "codegen", "", _text(error))


def _only(plan: Schedule, kernel: Kernel) -> Schedule:
    return replace(
        plan, inputs=kernel.memory, constants=(), steps=(kernel,), slots=(), sized=(), arena_size=0,
        fresh=(), last_use=(), outputs=(), mutations=(), in_place=(), settled=-1, refusals=(),
    )  # fmt: skip


def _unshared(plan: Schedule) -> Schedule:
    """The schedule with memory of its own for each buffer."""
    planned = [buffer for buffer, _ in (*plan.slots, *plan.sized)]
    fresh = tuple(dict.fromkeys([*plan.fresh, *planned]))
    return replace(plan, slots=(), sized=(), arena_size=0, fresh=fresh, last_use=())


def _with_all_results(plan: Schedule) -> tuple[Schedule, list[Buffer]]:
    """The schedule that returns what each step writes, too; those buffers."""
    given = {*plan.inputs, *dict(plan.constants)}
    values = [b for step in plan.steps for b in _written(step) if b not in given]
    found = list(dict.fromkeys(values))
    views = [BufferView(b, b.shape, b.stride, 0, b.dtype) for b in found]
    return replace(plan, outputs=(*plan.outputs, *views)), found


def _written(step: Step) -> list[Buffer]:
    if isinstance(step, ExternStep):
        return [buffer for buffer in step.call.outputs if buffer is not None]
    stored = {s.target for phase in step.phases for s in (*phase.body, *phase.row)}
    stored |= {column.target for column in step.columns}
    return [buffer for buffer in step.memory if buffer in stored]
