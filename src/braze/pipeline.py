"""The compiler on one page: what happens between `braze.compile` and a kernel.

    capture -> (autograd) -> rewrite -> lower -> schedule -> codegen -> link

This file and the rows of `braze.devices` are the only ones that import the stages;
`braze.targets`, which makes callables of functions and modules, knows only the last, the runtime.
Each stage is a plain function from data to data; what they share is `braze.ir`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from braze.autograd import (
    GraphTransforms,
    NotDifferentiable,
    NotSaved,
    backward_graph,
    differentiate_region,
    divide_backward,
    forward_again,
    keep_for_again,
    partition,
    read_inputs,
    trace_joint,
    with_zeros,
)
from braze.capture import FrameRequest, capture_frame, with_assumptions
from braze.capture import is_answered as is_answered
from braze.capture.exit.self_invalidating import ended_guard
from braze.capture.graph_breaks import CATALOGUE, at_the_end_of_the_stack
from braze.capture.transformable import why_untransformable
from braze.compat.python.bytecode import instructions_text
from braze.compat.torch.autograd_engine import Casts
from braze.compat.torch.thread_state import run_isolated
from braze.compile_records import BreakNote
from braze.devices import Device, device_of_type, prepare_devices
from braze.diagnose.artefacts import DebugFolder
from braze.diagnose.repros import check_first_call, repro_text
from braze.errors import (
    BackendFailed,
    BrazeError,
    CannotBuild,
    GraphBreakError,
    InternalError,
    warn,
)
from braze.interop.aten_compilers import CompiledAtFirstCall
from braze.interop.backends import Backend, Level
from braze.interop.captured_code import code_of, keep_code, log_code
from braze.interop.example_numbers import NeedsConstants, hiding_numbers
from braze.interop.fx_graph import NotExpressible, to_fx
from braze.interop.fx_text import print_module, print_sizes
from braze.interop.repro import write_repro
from braze.interop.torch_compilers import run_by_compiler
from braze.ir.captured.compile_request import (
    CompileAnswer,
    CompileRequest,
    GraphCallable,
    is_left_out,
)
from braze.ir.captured.frame import Break, CapturedFrame, Refused, Return
from braze.ir.captured.frame_sizes import is_symbolic, lacks_symbols
from braze.ir.captured.guard_tree import build_guard_tree, verify_guard_tree
from braze.ir.graphs.custom_gradient import without_custom_gradients
from braze.ir.graphs.graph import Graph, devices_of, main_device, needs_gradients, without_nodes
from braze.ir.graphs.joint_graph import (
    PLAIN,
    Backward,
    ForwardBackward,
    JointGraph,
    Role,
    backward_role,
    print_joint,
    stage_role,
)
from braze.ir.graphs.peak_memory import peak_of_graph
from braze.ir.graphs.print_graph import print_graph
from braze.ir.graphs.random_ops import drawing_devices
from braze.ir.graphs.region import compile_regions
from braze.ir.graphs.run_graph import compile_graph_runner, untracked, with_gradients
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.graphs.verify_joint_graph import verify_pair
from braze.ir.graphs.version_counters import keeping_versions
from braze.ir.kernels.kernel import kernel_texts, print_sources
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.schedule import Schedule
from braze.ir.kernels.verify_loops import verify_loops
from braze.ir.origin import Origin
from braze.lower import lower, split_host_scalars
from braze.options import Options
from braze.report.break_notes import cost_of_break, graph_break, note_of
from braze.report.frame_notes import note_captured
from braze.report.guard_text import format_failures
from braze.report.schedule_notes import note_kernels, note_schedule
from braze.report.warned import Warned
from braze.rewrite import (
    Freezer,
    choose_kernels,
    hoist_constants,
    reroll_blocks,
    rerolls,
    rewrite,
    rewrite_joint,
)
from braze.runtime.autograd.compiled_autograd_function import Groups, Stages, TrainingGraph
from braze.runtime.autograd.output_views import with_views_of_eager
from braze.runtime.autograd.transformed_graph import TransformedGraph
from braze.runtime.dispatch.entry import entry_of
from braze.runtime.dispatch.shadow_check import Difference, ShadowCheck, leaves_memory
from braze.runtime.guards.compile import compile_entry_check
from braze.runtime.guards.evaluate import reader_of
from braze.runtime.guards.filtering import filtered_guards
from braze.runtime.guards.leaf_hooks import WATCH
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.runtime.launch.frozen_weights import FROZEN
from braze.runtime.link.host_scalars import WithHostScalars
from braze.schedule import bind_inputs, schedule, schedule_blocks
from braze.shapes.policy import SizeHistory, SizePolicy
from braze.trace import CompileRecorder, Journal, enabled
from braze.tracing import Tracer

# --- the stages, from a graph to something that runs ---------------------------------------------


_WARNED = Warned()
_Row: TypeAlias = Device | None


def compile_graph(
    graph: Graph, options: Options, recorder: CompileRecorder, role: Role = PLAIN, row: _Row = None
) -> GraphCallable:
    """All stages behind capture: a graph as fused kernels and calls of ATen. Behind lowering
    nothing here holds the graph's nodes. row: of the devices' table, instead of the device's."""
    devices = devices_of(graph)
    device = main_device(devices)
    kind = row or (None if device is None else device_of_type(device.type))
    if device is None or kind is None:
        kinds = " and ".join(sorted(map(str, devices)))
        reason = f"no kernels of our own for {kinds}: the graph runs by eager ones"
        recorder.note_eager_graph(reason)
        return compile_graph_runner(graph, role.takes_inputs)
    apart = split_host_scalars(graph) if len(devices) > 1 and role == PLAIN else None
    if apart is not None:
        recorder.count("host_scalars", len(apart.begin.nodes))
        made = [compile_graph(part, options, recorder) for part in apart.graphs]
        return WithHostScalars(apart.calls, *made)
    outline, needed = without_nodes(graph), None if kind.builds(options) else graph
    given = [graph]
    del graph
    title = recorder.new_graph(lambda: peak_of_graph(given[0]))
    files = DebugFolder(options, title)
    plan = _plan(given.pop(), options, recorder, kind, device, len(devices) > 1, role, files)
    note_schedule(plan, title, recorder)
    recorder.note_paddings(*kind.paddings(plan, options, role))
    with recorder.stage("codegen"):
        sources = kind.generate(plan, options)
        sources = dataclasses.replace(sources, title=title, times=recorder.times_of(title))
        files.kernels(plan, sources, options)
        recorder.emit("output_code", lambda: print_sources(sources))
        recorder.emit("kernel_code", lambda: "\n".join(kernel_texts(sources)))
    with recorder.stage("link"):
        linked = kind.link(plan, sources, options, device, role, recorder.note_fallback_of_calls)
    if isinstance(linked, NoCompiler):
        recorder.note_eager_graph(f"{linked.missing}: the graph runs by eager kernels")
        _WARNED.once(linked.reason)
        assert needed is not None, "what builds kernels went while they were compiled"
        return compile_graph_runner(needed, role.takes_inputs)
    note_kernels(plan, title, recorder)
    if own := getattr(linked, "own_convolutions", 0):
        recorder.count("convolutions of own kernel", own)
    recorder.emit("output_code", lambda: getattr(linked, "text", ""))
    files.launch(plan, sources, options, role.takes_inputs, getattr(linked, "text", ""))
    linked = files.saving(linked, options)
    return with_views_of_eager(keeping_versions(linked, outline), outline, role == PLAIN)


def _plan(
    graph: Graph,
    options: Options,
    recorder: CompileRecorder,
    kind: Device,
    device: torch.device,
    has_others: bool,
    role: Role,
    files: DebugFolder,
) -> Schedule:
    """From a graph to a schedule. device: of the kernels; has_others: the graph has others, too."""
    seen = 0 if role.takes_inputs else role.kept_from  # results before that go to the program
    files.graph("01_captured.py", "as captured", graph)
    recorder.keep_program("rewrite", "", graph)
    with recorder.stage("rewrite"):
        graphs = [rewrite(graph, options, recorder.note_pass, role == PLAIN)]
        del graph
        graphs[0], frozen = hoist_constants(graphs[0]) if options.freeze else (graphs[0], ())
        files.graph("02_rewritten.py", "behind the graph passes", graphs[0])
        recorder.emit("aot_graphs", lambda: print_graph(graphs[0]))
    graphs[0] = compile_regions(graphs[0], lambda inner: compile_graph(inner, options, recorder))
    target, main = kind.target(device), device if has_others else None
    if target.packed_products and options.packed_weights and role == PLAIN:
        packs = not needs_gradients(graphs[0])
        least = 1 if options.freeze else target.least_rows
        target = dataclasses.replace(target, packs_weights=packs, least_rows=least)
    prepare = functools.partial(_lowered, options, recorder, kind, main)
    files.loops(lambda: lower(graphs[0], options, kind.supports, main, seen))
    choose, note = kind.choose(options, target), recorder.note_pass
    plan = None
    with recorder.stage("rewrite"):
        repeats = rerolls(options, target.repeats_blocks, target.records)
        rerolled = reroll_blocks(graphs[0], seen) if repeats else None
    if rerolled is not None:
        program = prepare([rerolled.short], rerolled.seen)
        with recorder.stage("schedule"):
            plan = schedule_blocks(program, rerolled, options, target, choose, note)
        if plan is not None:
            recorder.count("repeated_blocks", rerolled.dropped)
    if plan is None:
        made = [prepare(graphs, seen)]
        with recorder.stage("schedule"):  # in which a large program goes: nobody may hold it
            plan = schedule(made.pop(), options, target, choose, note)
    plan = bind_inputs(plan, frozen)
    FROZEN.add_copies(plan.constants, frozen, recorder)
    files.schedule(plan)
    return plan


def _lowered(
    options: Options,
    recorder: CompileRecorder,
    kind: Device,
    main: torch.device | None,
    graphs: list[Graph],
    seen: int,
) -> LoopProgram:
    """The program of the one graph of a list, which goes. main: the kernels' device, where the
    graph has others, too."""
    with recorder.stage("lower"):
        program = lower(graphs.pop(), options, kind.supports, main, seen)
        if options.verify:
            verify_loops(program)
        recorder.emit("loops", lambda: print_loops(program))
    return program


CompileOne: TypeAlias = Callable[[Graph, CompileRecorder, Role], GraphCallable]


def compile_with_backward(
    graph: Graph,
    joint: JointGraph,
    compile_one: CompileOne,
    options: Options,
    recorder: CompileRecorder,
    backward_recorder: Callable[[], CompileRecorder],
) -> GraphCallable:
    """A graph whose inputs need gradients: forward now, backward when it is first asked for.

    joint: the graph with its backward. compile_one: compiles each of the two.
    """
    with recorder.stage("autograd"):
        views = any(o.alias is not None and not o.detached for o in graph.outputs)
        if not (any(joint.is_differentiable) or joint.writes or views):
            return compile_one(without_custom_gradients(graph), recorder, PLAIN)
        pair = partition(joint, options.activation_memory_budget)
        if options.verify:
            verify_pair(joint, pair)
        recorder.emit("aot_joint_graphs", lambda: print_joint(joint))

    def trace_and_compile(
        given: tuple[bool, ...], casts: Casts, groups: Groups, recorder: CompileRecorder
    ) -> tuple[Backward, GraphCallable | Stages]:
        backward, role = pair.backward, backward_role(pair)
        if given != tuple(tangent is not None for tangent in joint.tangents) or casts:
            with recorder.stage("autograd"):
                backward = _backward_for(joint.source, pair, given, casts, recorder)
        stages = divide_backward(backward, pair, groups) if groups else ()
        if not stages:
            return backward, compile_one(backward.graph, recorder, role)
        return backward, [
            (stage, compile_one(stage.graph, recorder, stage_role(stage, role))) for stage in stages
        ]

    def compile_backward(
        given: tuple[bool, ...], casts: Casts, groups: Groups
    ) -> tuple[Backward, GraphCallable | Stages]:
        recorder = backward_recorder()
        with recorder.finishing("backward"):
            return run_isolated(lambda: trace_and_compile(given, casts, groups, recorder))

    written = joint.source if joint.plain is None else joint.plain
    kept = len(written.outputs) - len(graph.outputs)
    again = forward_again(written, pair, kept)
    return TrainingGraph(
        pair,
        compile_one(pair.forward, recorder, Role(kept_from=len(pair.is_differentiable))),
        compile_backward,
        differentiate=None if again is None else compile_graph_runner(again, at_first_call=True),
        reads=() if again is None else read_inputs(again, len(graph.inputs)),
        kept=kept,
        draws_on=drawing_devices(graph),
    )


def _backward_for(
    graph: Graph,
    pair: ForwardBackward,
    given: tuple[bool, ...],
    casts: Casts,
    recorder: CompileRecorder,
) -> Backward:
    """The backward for the gradients that come in, from what the forward saved for all."""
    try:
        joint = trace_joint(graph, given, casts)
        if joint.assumed:
            raise NotDifferentiable("it needs a guard on sizes", joint.assumed[0].origin)
        return backward_graph(joint, pair.saved_values, pair.moved)
    except (NotDifferentiable, NotSaved) as reason:
        recorder.note_fallback(f"zeros stand for gradients that are not given: {reason}")
        return with_zeros(pair.backward, given)


# --- one frame -----------------------------------------------------------------------------------


@final
class _Faulted(Exception):
    """A fault of ours behind capture."""

    def __init__(self, failure: BrazeError) -> None:
        super().__init__(str(failure))
        self.failure = failure


# Those whose backwards are traced through what graph passes choose.
_REWRITTEN = (Level.KERNELS, Level.REWRITTEN_ATEN, Level.EXAMINED)

# A graph's backward: none is needed, it cannot be traced, or both in one.
_Joint: TypeAlias = JointGraph | NotDifferentiable | None
_Transforms: TypeAlias = tuple[str, ...]  # of torch.func, around a call, outermost first


@final
class FrameCompiler:
    """Compiles frames for one `braze.compile` call: a `CompileFrame` for the dispatcher."""

    def __init__(
        self, options: Options, backend: Backend, journal: Journal, transforms: _Transforms = ()
    ) -> None:
        self.options, self.backend, self.journal = options, backend, journal
        self.transforms = transforms
        self.takes_numbers = backend.takes_numbers and not transforms
        self.loops: set[tuple[types.CodeType, int]] = set()  # that are not unrolled
        self.refusing: set[tuple[types.CodeType, int]] = set()  # checkpoints, left to eager
        self.freezer = Freezer() if options.freeze else None

    def __call__(self, request: CompileRequest) -> CompileAnswer:
        code = request.code
        origin = Origin(code.co_filename, code.co_firstlineno, code.co_qualname)
        left_out = is_left_out(self.options.debug_function, code)
        recorder = CompileRecorder(self.journal, code.co_qualname, origin, is_silent=left_out)
        if request.failures:
            text = functools.partial(format_failures, code.co_qualname, request.failures)
            recorder.note_failures(request.failures, text)
        recorder.emit("bytecode", lambda: instructions_text(code, request.offset))
        outcome = "failed"
        try:
            answer = run_isolated(lambda: self._compile(request, recorder), keeps_interrupts=True)
            outcome = "refused" if isinstance(answer, Refused) else "graph"
            return answer
        except InternalError as failure:
            return self._give_up(failure)
        except (BrazeError, UserWarning):
            raise
        except RecursionError:
            return self._refused(at_the_end_of_the_stack(origin), recorder)
        except Exception as error:
            return self._give_up(InternalError(recorder.failed_stage, error, origin=origin))
        finally:
            recorder.finish(outcome)

    def _compile(self, request: CompileRequest, recorder: CompileRecorder) -> CompileAnswer:
        policy = self._policy(request)
        if self.backend.level is Level.KERNELS:
            prepare_devices()
        try:
            return self._compiled(request, policy, recorder, self.backend.level)
        except _Faulted as fault:  # which has let the graph go: the frame is captured again
            self._note_fault(fault.failure, recorder)
            return self._compiled(request, policy, recorder, Level.ATEN)
        except NeedsConstants as reason:
            recorder.emit("dynamic", f"numbers are compiled as they are, for the backend: {reason}")
            self.takes_numbers = False
            constant = dataclasses.replace(policy, numbers=False)
            return self._compiled(request, constant, recorder, self.backend.level)

    def _compiled(
        self, request: CompileRequest, policy: SizePolicy, recorder: CompileRecorder, level: Level
    ) -> CompileAnswer:
        captured, joint = self._traced(request, policy, recorder)
        if isinstance(joint, NotDifferentiable) and is_symbolic(captured):
            recorder.emit("dynamic", f"sizes are compiled as they are, for the backward: {joint}")
            static = dataclasses.replace(policy, dynamic=False)
            captured, joint = self._traced(request, static, recorder)
        if isinstance(captured, Refused):
            return self._refused(captured, recorder)
        if isinstance(captured.exit, Break):
            self._note_break(captured.exit, captured, recorder)
        keep_code(captured, recorder)
        if self.backend.level is not Level.TORCH:
            log_code(captured, recorder)
            captured = dataclasses.replace(captured, calls=())  # many, and nobody asks for them
        keep = self.options.guard_filter_fn
        guards = filtered_guards(captured.guards, captured.inputs, request.values, keep)
        captured = dataclasses.replace(captured, guards=guards)
        self._note_captured(captured, recorder)
        draws_on, given = drawing_devices(captured.graph), [captured]
        kept = dataclasses.replace(captured, graph=without_nodes(captured.graph))
        del captured  # nor does anybody else hold the graph's nodes
        made = self._graph_callable(given.pop(), joint, request, recorder, level)
        return dataclasses.replace(entry_of(kept, made, draws_on), **recorder.of_entry())

    def _note_captured(self, captured: CapturedFrame, recorder: CompileRecorder) -> None:
        note_captured(captured, recorder)
        if self.options.verify:
            verify_graph(captured.graph)
            verify_guard_tree(build_guard_tree(captured.guards, captured.inputs))

    def _traced(
        self, request: CompileRequest, policy: SizePolicy, recorder: CompileRecorder
    ) -> tuple[CapturedFrame | Refused, _Joint]:
        """The frame, and its graph with the backward where gradients are needed."""
        with recorder.stage("capture"):
            captured = self._captured(request, policy)
            if lacks_symbols(captured) or self._is_refused(captured):
                recorder.emit("dynamic", "sizes are compiled as they are: one cannot be had")
                captured = self._captured(request, dataclasses.replace(policy, dynamic=False))
        if isinstance(captured, CapturedFrame):
            captured = self._left_once(captured, request, recorder) or captured
        foreign = self.backend.level is Level.TORCH
        if self.freezer is not None and isinstance(captured, CapturedFrame):
            captured = self.freezer.frozen(captured, reader_of(request.values), recorder)
        if isinstance(captured, CapturedFrame) and self.transforms:
            return why_untransformable(captured, self.transforms) or captured, None
        if isinstance(captured, Refused) or foreign or not needs_gradients(captured.graph):
            return captured, None
        try:
            with recorder.stage("autograd"):
                plain = keep_for_again(captured.graph)
                chosen = self._with_kernels(plain)
                joint = trace_joint(chosen, plain=None if chosen is plain else plain)
        except NotDifferentiable as reason:
            return captured, reason
        return with_assumptions(captured, joint.assumed), joint

    def _left_once(
        self, captured: CapturedFrame, request: CompileRequest, recorder: CompileRecorder
    ) -> Refused | None:
        """A large graph of a first call that would serve no other is not compiled."""
        size = len(captured.graph.nodes)
        is_whole = request.offset == 0 and isinstance(captured.exit, Return)
        if self.backend.level is not Level.KERNELS or not (request.is_first and is_whole):
            return None
        if size <= self.options.single_use_limit or (ended := ended_guard(captured)) is None:
            return None
        guard, reason = ended
        self._note_captured(captured, recorder)
        text = f"{reason}; a graph of {size} operators would serve no other, the next is compiled"
        return Refused("once", "single-use", text, "", guard.origin)

    def _with_kernels(self, graph: Graph) -> Graph:
        """The graph as its backward is to be traced."""
        if self.backend.level not in _REWRITTEN:
            return graph
        return choose_kernels(graph, self.options)

    def _captured(self, request: CompileRequest, policy: SizePolicy) -> CapturedFrame | Refused:
        foreign = self.backend.level in (Level.TORCH, Level.JOINT)
        asked = frame_request(request, self.options, policy, WATCH.is_watched)
        asked = dataclasses.replace(asked, long_loops=self.loops, refusing=self.refusing)
        # As torch.compile hands them over: what nobody reads is a user backend's to drop.
        unread = self.backend.level is Level.TORCH
        kept = foreign or enabled("graph_code")
        asked = dataclasses.replace(
            asked,
            is_foreign=foreign,
            is_transformed=bool(self.transforms),
            keeps_calls=kept,
            keeps_states=kept or self.journal.is_explained,
            keeps_unread=unread,
        )
        return capture_frame(asked)

    def _is_refused(self, captured: CapturedFrame | Refused) -> bool:
        """Whether the backend takes numbers for constants, and the graph needs one from outside."""
        if self.takes_numbers or not is_symbolic(captured):
            return False
        return bool(captured.graph.sizes.numbers) and not captured.marked

    def _policy(self, request: CompileRequest) -> SizePolicy:
        """Which sizes and numbers are symbols."""
        request.history.begin()
        takes_sizes = self.backend.takes_sizes and not self.transforms
        dynamic = self.options.dynamic if takes_sizes else False
        return SizePolicy(dynamic, request.history, self.takes_numbers)

    def _graph_callable(
        self,
        captured: CapturedFrame,
        joint: _Joint,
        request: CompileRequest,
        recorder: CompileRecorder,
        level: Level,
    ) -> GraphCallable:
        """The graph in the form that the backend asks for, compiled. Raises _Faulted."""
        compile_one: CompileOne
        match level:
            case Level.TORCH:
                return self._foreign(captured, request, recorder)
            case Level.ATEN:
                compile_one = self._eager_kernels
            case Level.REWRITTEN_ATEN:
                compile_one = self._rewritten
            case Level.JOINT:
                compile_one = self._by_user_compilers
            case Level.EXAMINED:
                assert self.backend.examine is not None, self.backend
                compile_one = self.backend.examine
            case Level.KERNELS:
                compile_one = self._kernels
        graph = captured.graph
        if not graph.nodes:
            return compile_graph_runner(graph)
        if self.transforms:
            again = functools.partial(self._apart, compile_one, recorder)
            budget, note = self.options.activation_memory_budget, self.journal.note_fallback
            return TransformedGraph(graph, GraphTransforms(again, note, budget))
        if joint is None:
            one = self._consumed if level is Level.KERNELS else compile_one
            only = [without_custom_gradients(graph)]
            del graph, captured
            return one(only.pop(), recorder, PLAIN)
        made = self._differentiable(graph, joint, compile_one, recorder)
        return made if captured.grad_enabled else with_gradients(made)

    def _apart(self, compile_one: CompileOne, of: CompileRecorder, graph: Graph) -> GraphCallable:
        """A graph that transforms made, when it is first called."""
        recorder = CompileRecorder(self.journal, of.function, of.origin)
        plain = without_custom_gradients(graph)
        with recorder.finishing("graph"):
            return run_isolated(lambda: compile_one(plain, recorder, PLAIN))

    def _differentiable(
        self,
        graph: Graph,
        joint: JointGraph | NotDifferentiable,
        compile_one: CompileOne,
        recorder: CompileRecorder,
    ) -> GraphCallable:
        """With its backward."""
        if isinstance(joint, NotDifferentiable):
            recorder.note_eager_graph(
                f"the backward cannot be traced, so the graph runs by eager kernels: {joint}"
            )
            return compile_graph_runner(graph)
        if self.backend.level in _REWRITTEN:
            with recorder.stage("rewrite"):
                joint = rewrite_joint(joint, self.options)
        again = functools.partial(
            CompileRecorder, self.journal, f"{recorder.function} (backward)", recorder.origin
        )
        return compile_with_backward(graph, joint, compile_one, self.options, recorder, again)

    def _eager_kernels(self, graph: Graph, recorder: CompileRecorder, role: Role) -> GraphCallable:
        recorder.emit("aot_graphs", lambda: print_graph(graph))
        return compile_graph_runner(graph, role.takes_inputs)

    def _rewritten(self, graph: Graph, recorder: CompileRecorder, role: Role) -> GraphCallable:
        with recorder.stage("rewrite"):
            graph = rewrite(graph, self.options, recorder.note_pass)
        return untracked(self._eager_kernels(graph, recorder, role))

    def _by_user_compilers(
        self, graph: Graph, recorder: CompileRecorder, role: Role
    ) -> GraphCallable:
        """The ATen graph by one of the compilers of an `aot_backend`, when it first runs."""
        compiler = self.backend.backward_compiler if role.takes_inputs else self.backend.compiler
        assert compiler is not None, self.backend

        def instead(error: Exception) -> GraphCallable:
            failure = BackendFailed(self.backend.name, error)
            if not self.options.suppress_errors or self.options.fullgraph:
                raise failure from error
            self.journal.note_fallback(f"a graph runs by eager kernels: {failure}")
            warn(str(failure))
            return compile_graph_runner(graph)

        recorder.emit("aot_graphs", lambda: print_graph(graph))
        return keeping_versions(CompiledAtFirstCall(graph, compiler, instead), graph)

    def _kernels(self, graph: Graph, recorder: CompileRecorder, role: Role) -> GraphCallable:
        try:
            return self._consumed(graph, recorder, role)
        except _Faulted as fault:
            return self._eager_instead(graph, fault.failure, recorder)

    def _consumed(self, graph: Graph, recorder: CompileRecorder, role: Role) -> GraphCallable:
        """A graph that nobody else holds goes when it is lowered. Raises _Faulted."""
        given, first = [graph], graph.nodes[0].origin if graph.nodes else None
        kept = graph if self.options.check or self.options.repro_after else None
        del graph
        try:
            made = compile_graph(given.pop(), self.options, recorder, role)
            return made if kept is None else self._looked_at(made, kept, recorder, role)
        except CannotBuild as lack:  # of the machine, no fault of ours
            if not self.options.suppress_errors:
                raise
            raise _Faulted(lack) from lack
        except Exception as error:
            stage, found = recorder.failed_stage or "link", getattr(error, "origin", None)
            origin = found if isinstance(found, Origin) else first
            failure = error if isinstance(error, InternalError) else None
            said = "" if kept is None else repro_text(kept, self.options)
            failure = failure or InternalError(stage, error, origin=origin, note=said)
            if not self.options.suppress_errors or self.options.fullgraph:
                raise failure from error
            raise _Faulted(failure) from error

    def _looked_at(
        self, made: GraphCallable, graph: Graph, recorder: CompileRecorder, role: Role
    ) -> GraphCallable:
        """With its first call, or a share of all, compared with eager, as options ask."""
        if self.options.repro_after and self.options.repro_level >= 4:
            made = check_first_call(made, graph, self.options)
        return self._checked(made, graph, recorder, role) if self.options.check else made

    def _checked(
        self, made: GraphCallable, graph: Graph, recorder: CompileRecorder, role: Role
    ) -> GraphCallable:
        """With some calls compared with eager."""
        if any(leaves_memory(node.op) for node in graph.nodes):
            recorder.emit("perf_hints", "calls are not checked: results hold what memory held")
            return made
        function, place = recorder.function, recorder.origin

        def report(difference: Difference) -> None:
            reason = (
                f"{place}: {difference.place} of a graph of {function} differs from eager's by "
                f"{difference.largest:.1e} of the largest value"
            )
            try:
                said = f"This script shows it: {write_repro(graph, difference.inputs, reason)}"
            except (NotExpressible, OSError) as problem:
                said = f"No script that shows it could be written: {problem}"
            self.journal.note_fallback(f"a graph runs by eager kernels: {reason}")
            warn(f"{reason}. It runs eagerly from here. {said}")

        eager = compile_graph_runner(graph, role.takes_inputs)
        every = max(round(1 / self.options.check), 1)
        return ShadowCheck(made, eager, every, drawing_devices(graph), report)

    def _foreign(
        self, captured: CapturedFrame, request: CompileRequest, recorder: CompileRecorder
    ) -> GraphCallable:
        """A user's backend gets the torch-level graph and the inputs of this call."""
        compiler = self.backend.compiler
        assert compiler is not None, self.backend
        if not captured.graph.nodes:
            return compile_graph_runner(captured.graph)
        with recorder.stage("backend"):
            module = to_fx(captured)
            recorder.emit("graph_code", lambda: print_module(module))
            recorder.emit("graph_sizes", lambda: print_sizes(module))
            example_inputs = compile_entry_check((), captured.inputs).check(request.values) or []
            try:
                most = self.options.recompile_limit if is_symbolic(captured) else 0
                compiler = hiding_numbers(compiler, captured.inputs, example_inputs)
                made = run_by_compiler(captured.graph, module, compiler, example_inputs, most)
            except NeedsConstants:
                raise
            except Exception as error:
                failure = BackendFailed(self.backend.name, error)
                if not self.options.suppress_errors or self.options.fullgraph:
                    raise failure from error
                instead = self._eager_instead(captured.graph, failure, recorder)
                return instead if captured.grad_enabled else with_gradients(instead)
        return made

    def _eager_instead(
        self, graph: Graph, failure: BrazeError, recorder: CompileRecorder
    ) -> GraphCallable:
        """The graph by eager kernels, after one loud warning; of each thing that the machine lacks,
        one in the process."""
        self._note_fault(failure, recorder)
        return compile_graph_runner(graph)

    def _note_fault(self, failure: BrazeError, recorder: CompileRecorder) -> None:
        recorder.note_eager_graph(f"the graph runs by eager kernels: {failure}")
        if isinstance(failure, CannotBuild):
            _WARNED.once(str(failure), failure.lack)
        else:
            warn(str(failure))

    def _refused(self, refused: Refused, recorder: CompileRecorder) -> Refused:
        if refused.kind == "once":
            recorder.note_once(refused.reason, refused.origin)
        elif refused.kind == "raises":
            recorder.note_raise(refused.reason, refused.origin)
        else:
            note = note_of(refused, CATALOGUE.get(refused.code))
            if self.options.fullgraph or refused.is_forbidden:
                raise self._forbidden(note)
            recorder.note_break(note)
        return refused

    def _note_break(self, stop: Break, captured: CapturedFrame, recorder: CompileRecorder) -> None:
        cost = cost_of_break(captured.graph)
        note = note_of(stop.reason, CATALOGUE.get(stop.reason.code), stop.frames, cost)
        if (self.options.fullgraph and not recorder.is_silent) or stop.reason.is_forbidden:
            raise self._forbidden(note, code_of(captured))
        recorder.note_break(note)

    def _forbidden(self, note: BreakNote, graph: str = "") -> GraphBreakError:
        fullgraph, verbose = self.options.fullgraph, self.options.verbose
        return graph_break(note, graph, fullgraph=fullgraph, verbose=verbose)

    def _give_up(self, failure: InternalError) -> Refused:
        """A fault of ours while capturing: eager, and the driver warns; or an error where asked."""
        if not self.options.suppress_errors or self.options.fullgraph:
            raise failure
        origin = failure.origin if isinstance(failure.origin, Origin) else Origin("", 0)
        return Refused("unsupported", "internal-error", str(failure), "", origin)


def frame_request(
    request: CompileRequest,
    options: Options,
    policy: SizePolicy | None = None,
    is_watched: Callable[[Any], bool] | None = None,
) -> FrameRequest:
    """What capture is asked for, from what the dispatcher wants compiled."""
    code, values, name = request.code, request.values, options.debug_function
    left_out = is_left_out(name, code)
    cell_names = {n for n, v in values.locals.items() if type(v) is types.CellType}
    owned = set(code.co_freevars) | (set(code.co_cellvars) if request.offset else set())
    cells = {name: values.locals[name] for name in cell_names & owned}
    return FrameRequest(
        code=code,
        globals=values.globals,
        local_values={n: v for n, v in values.locals.items() if n not in cells},
        cells=cells,
        make_tracer=Tracer,
        differentiate_region=differentiate_region,
        function=request.function,  # type: ignore[arg-type]
        offset=request.offset,
        stack=tuple(values.stack),
        options=options,
        policy=policy,
        is_watched=is_watched,
        leaves_out=left_out,
        must_not_inline=(lambda f: not is_left_out(name, f.__code__)) if left_out else None,
    )


def capture_whole(
    request: CompileRequest,
    options: Options,
    run_eagerly: Callable[[], object],
    is_exporting: bool = True,
) -> CapturedFrame:
    """A frame that one graph holds. Raises GraphBreakError, with the graph so far, for another.

    run_eagerly: runs the frame where it raises, for the user's own exception.
    """
    policy = SizePolicy(options.dynamic, SizeHistory())
    asked = options.capture_scalar_outputs or options.capture_dynamic_output_shape_ops
    is_watched = (lambda leaf: False) if asked else None
    whole = frame_request(request, options, policy, is_watched)
    asked_for = dataclasses.replace(
        whole, is_foreign=True, keeps_calls=True, keeps_states=True, is_exporting=is_exporting
    )
    captured = run_isolated(lambda: capture_frame(asked_for))
    if isinstance(captured, Refused):
        if captured.kind == "raises":
            run_eagerly()
        raise graph_break(note_of(captured, CATALOGUE.get(captured.code)), verbose=options.verbose)
    if isinstance(captured.exit, Break):
        stop = captured.exit
        note = note_of(stop.reason, CATALOGUE.get(stop.reason.code), stop.frames)
        raise graph_break(note, code_of(captured), verbose=options.verbose)
    return captured
