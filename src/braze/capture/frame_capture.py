"""One frame, captured: attempts, restarts at breaks, and what is handed to the next stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import braze.capture.arrays.conversions
import braze.capture.handlers.attention
import braze.capture.handlers.broadcast_losses
import braze.capture.handlers.builtins
import braze.capture.handlers.class_creation
import braze.capture.handlers.code_execution
import braze.capture.handlers.containers
import braze.capture.handlers.control_flow
import braze.capture.handlers.distributed
import braze.capture.handlers.frame_objects
import braze.capture.handlers.interpolate
import braze.capture.handlers.numbers
import braze.capture.handlers.operator_module
import braze.capture.handlers.pooling
import braze.capture.handlers.random
import braze.capture.handlers.stdlib
import braze.capture.handlers.strings
import braze.capture.handlers.symbolic_factories
import braze.capture.handlers.tensor_constructor
import braze.capture.handlers.torch_state
import braze.capture.objects.context_variables
import braze.capture.objects.copying
import braze.capture.objects.function_descriptors
import braze.capture.opcodes.abstract_values
import braze.capture.opcodes.build
import braze.capture.opcodes.calls
import braze.capture.opcodes.exceptions
import braze.capture.opcodes.imports
import braze.capture.opcodes.intrinsics
import braze.capture.opcodes.jumps
import braze.capture.opcodes.variables
import braze.capture.tensors.constraint_checks
import braze.capture.tensors.cumulative_momentum
import braze.capture.tensors.data_dependent_scalars
import braze.capture.tensors.scans
import braze.capture.tensors.symbolic_floats
import braze.capture.training.autograd_functions
import braze.capture.training.averaged_model
import braze.capture.training.backward_calls
import braze.capture.training.fused_optimizers
import braze.capture.training.grad_scaler
import braze.capture.training.gradient_hooks
import braze.capture.training.lazy_modules
import braze.capture.training.lr_schedulers
import braze.capture.training.module_conversion  # noqa: F401
from braze.capture.calls.deferred_calls import final_arguments
from braze.capture.calls.functorch import ForwardLevel
from braze.capture.calls.user_annotations import check_procedures
from braze.capture.exit.effect_emission import write_effects
from braze.capture.exit.reconstruction import Reconstructor
from braze.capture.frames.control_signals import (
    BreakRequested,
    CannotRebuild,
    LazyModuleCalled,
    LeaveFrame,
    LoopTooLong,
    ProgramRaised,
    ReadTooEarly,
    SharedWrite,
    UnrollRequested,
    without_frames,
)
from braze.capture.frames.dispatch_table import steps_of
from braze.capture.frames.frame import COROUTINE_FLAGS, GENERATOR_FLAGS, Frame, Unread
from braze.capture.graph_breaks import CATALOGUE, graph_break
from braze.capture.handlers.random import placed_draws
from braze.capture.interpreter import Interpreter
from braze.capture.objects.runtime_asserts import finished_checks
from braze.capture.request import FrameRequest
from braze.capture.state.aliasing import (
    guard_distinct,
    guard_used_inputs,
    guard_written_inputs,
)
from braze.capture.state.finalizers import entered_with, left_by_callee, noticed_ends
from braze.capture.state.inference_region import check_inference
from braze.capture.tensors.index_modes import IndexMode
from braze.capture.tensors.storage_sharing import check_shared_memory
from braze.capture.tensors.symbolic_call_args import kept_calls
from braze.capture.tensors.symbolic_sizes import passed_sources
from braze.capture.training.autograd_functions import finish_functions
from braze.capture.training.autograd_history import (
    check_hooks,
    check_new_leaves,
    check_written,
    holds_all_gradients,
    without_autograd,
)
from braze.capture.training.data_assignment import with_counts
from braze.capture.training.data_mutation import check_data_writes
from braze.capture.training.leaf_creation import switched_leaves
from braze.capture.training.module_hooks import check_handles
from braze.capture.training.tensor_hooks import check_tensor_hooks
from braze.capture.training.zero_grad import dropped_leaves
from braze.compat.python.code_objects import handler_slots
from braze.compat.torch.ambient_state import (
    AmbientState,
    ambient_state,
    autocast_depth,
    set_ambient_state,
)
from braze.compat.torch.dispatcher import is_python_dispatch_off
from braze.errors import ConstraintViolated
from braze.ir.captured.frame import (
    NULL,
    Break,
    CapturedCall,
    CapturedFrame,
    Effect,
    Exit,
    FrameState,
    FromConstant,
    GraphBreak,
    Recipe,
    Refused,
    Return,
)
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import CellObjectSource, CellSource, LocalSource, StackSource
from braze.ir.graphs.graph import needs_gradients, values_in
from braze.ir.origin import UNKNOWN, Origin
from braze.marks import MARKS, Mark
from braze.shapes.unknowns import SpecialisedError
from braze.tracing import Untraceable
from braze.tracing.finalize import FinishedTrace
from braze.tracing.symbolic.speculative_copies import CopySeen, check_unseen, shares_lazily

MAX_ATTEMPTS = 12
_CAPTURED_AGAIN = (
    *(ReadTooEarly, CopySeen, LoopTooLong, SharedWrite, UnrollRequested),
    LazyModuleCalled,
)


def capture_frame(request: FrameRequest) -> CapturedFrame | Refused:
    """Interpret a frame until it returns, or up to the first instruction that breaks the graph.

    Nothing outside changes, but for lazy modules, which get their sizes. Raises CaptureError for a
    fault of Braze itself.
    """
    try:
        return _capture(request)
    except RecursionError:  # the program has left no room for the capture itself
        kind = graph_break("recursion", request.code.co_qualname, frame_origin(request))
        return _refused("break", kind)


def _capture(request: FrameRequest) -> CapturedFrame | Refused:
    if request.code.co_flags & (GENERATOR_FLAGS | COROUTINE_FLAGS):
        name = request.code.co_qualname
        kind = graph_break("unsupported-function", f"the generator {name}", frame_origin(request))
        return _refused("unsupported", kind)
    modes = ambient_state()
    has_modes = modes.function_modes > (modes.default_device is not None) or modes.dispatch_modes
    if has_modes or is_python_dispatch_off():
        kind = graph_break(
            "unseen-python", "the dispatcher, of an active torch mode", frame_origin(request)
        )
        return _refused("now", kind)
    if modes.forward_level >= 0 and not request.is_transformed:
        tangents = "forward-mode gradients, which are taken outside of the frame"
        kind = graph_break("unsupported-tensor", tangents, frame_origin(request))
        return _refused("now", kind)
    leave_at, natively = -1, False
    reason: GraphBreak | None = None
    because: dict[Any, tuple[Any, ...]] = {}
    for _ in range(MAX_ATTEMPTS):
        outcome = _attempt(request, leave_at, reason, natively, because)
        while isinstance(outcome, LazyModuleCalled):  # each module is called so once
            problem = _initialize(outcome)
            if problem is not None:
                return _refuse_raise(problem)
            outcome = _attempt(request, leave_at, reason, natively, because)
        if isinstance(outcome, ReadTooEarly):
            request = dataclasses.replace(request, puts_off_schedules=False)
            continue
        if isinstance(outcome, CopySeen):
            request = dataclasses.replace(request, copies_freely=False)
            continue
        if isinstance(outcome, LoopTooLong):
            request.long_loops.add(outcome.loop)
            continue
        if isinstance(outcome, SharedWrite):  # which is among `request.shared` now
            continue
        if isinstance(outcome, UnrollRequested):
            request.refusing.add(outcome.place)
            continue
        if not isinstance(outcome, BreakRequested):
            return outcome
        because.update(outcome.because)
        found = dataclasses.replace(
            graph_break(outcome.code, outcome.detail, outcome.origin),
            is_forbidden=outcome.is_forbidden,
        )
        reason = reason if reason is not None and outcome.is_at_the_end else found
        if outcome.step is None or outcome.step < 0 or outcome.step == leave_at:
            return _refused("break", reason)
        leave_at, natively = outcome.step, outcome.natively
    assert reason is not None
    return _refused("break", reason)


def _refused(kind: str, reason: GraphBreak) -> Refused:
    return Refused(
        kind, reason.code, reason.reason, reason.hint, reason.origin, reason.is_forbidden
    )


def _initialize(called: LazyModuleCalled) -> ProgramRaised | None:
    """Give a lazy module its sizes; what the program raised instead."""
    try:
        called.initialize()
    except Exception as error:
        return ProgramRaised(error)
    return None


def _attempt(
    request: FrameRequest,
    leave_at: int,
    reason: GraphBreak | None,
    natively: bool,
    because: Mapping[object, tuple[object, ...]],
) -> (
    CapturedFrame
    | Refused
    | BreakRequested
    | ReadTooEarly
    | CopySeen
    | LoopTooLong
    | SharedWrite
    | UnrollRequested
    | LazyModuleCalled
):
    before = ambient_state()
    tracer = request.make_tracer()
    tracer.is_transformed = request.is_transformed
    tracer.computes_lazy = request.copies_freely
    interpreter = Interpreter(request, tracer, leave_at)
    try:
        with tracer:
            try:
                return _interpret(interpreter, reason, before, natively, because)
            finally:  # before the tracer: inference mode puts back the dispatch keys of its entry
                try:
                    interpreter.leave_managers()
                finally:  # again, where an interrupt ended it
                    interpreter.leave_managers()
    except BreakRequested as end:
        end.is_forbidden = interpreter.break_regions[-1]
        return without_frames(end)
    except _CAPTURED_AGAIN as end:
        return without_frames(end)
    except ProgramRaised as raised:
        return _refuse_raise(without_frames(raised))
    except SpecialisedError as error:
        raise ConstraintViolated(f"{error.origin}: {error}") from None
    finally:
        set_ambient_state(before, interpreter.autocast_depth - autocast_depth())
        interpreter.release()


def _interpret(
    interpreter: Interpreter,
    reason: GraphBreak | None,
    before: AmbientState,
    natively: bool,
    because: Mapping[Any, tuple[Any, ...]],
) -> CapturedFrame | Refused | BreakRequested:
    interpreter.entered_settings, interpreter.entered_state = before.settings(), before
    interpreter.guard_context.guard(None, GuardKind.AMBIENT, before)
    frame = _root_frame(interpreter, interpreter.request)
    try:
        value = interpreter.run_root(frame)
    except LeaveFrame:
        assert reason is not None
        for source, asked in because.items():
            interpreter.guard_context.guard(source, GuardKind.ANSWER, asked)
        return _leave(interpreter, reason, before, natively)
    writer = Reconstructor(interpreter)
    try:
        exit_recipe: Exit = Return(writer.recipe(value))
        return _finish(interpreter, writer, exit_recipe, before)
    except CannotRebuild as problem:
        return _blocked(problem, -1, frame_origin(interpreter.request))


def _root_frame(interpreter: Interpreter, request: FrameRequest) -> Frame:
    code = request.code
    frame = Frame(code, request.globals, steps_of(code), request.function)
    guard_context = interpreter.guard_context
    if request.function is not None:
        guard_context.source_of_function(request.function)
        frame.runs_eagerly = MARKS.of(request.function) is Mark.DISABLE_FRAME
    frame.runs_eagerly |= request.leaves_out
    frame.locals = {
        name: Unread(value, LocalSource(name)) for name, value in request.local_values.items()
    }
    for name, cell in request.cells.items():
        frame.cells[name] = cell
        interpreter.side_effects.cell_sources[id(cell)] = CellSource(name)
        guard_context.known[id(cell)] = (cell, CellObjectSource(name))
    if request.offset:
        program_index = interpreter.index_at(code, request.offset)
        frame.index = program_index
    frame.stack = [
        value if value is NULL else _on_stack(interpreter, frame, value, StackSource(index))
        for index, value in enumerate(request.stack)
    ]
    if request.offset:
        interpreter.entered_with.update(entered_with(frame))
        interpreter.noticed_ends.update(noticed_ends(interpreter.entered_with.values()))
        saved = handler_slots(code, request.offset).saved
        frame.handled = [frame.stack[slot] for slot in sorted(saved)]
    return frame


def _on_stack(interpreter: Interpreter, frame: Frame, value: object, source: StackSource) -> object:
    """What the frame computed before it is entered here, as capture has it."""
    try:
        return interpreter.guard_context.wrap_value(value, source)
    except BreakRequested as problem:
        code, line = frame.code, frame.steps[max(frame.index - 1, 0)][1].line
        problem.origin = Origin(code.co_filename, line, code.co_qualname)
        problem.detail = problem.detail.replace(f"{source}:", f"what line {line} computes:")
        raise


# --- ends ----------------------------------------------------------------------------------------


def _finish(
    interpreter: Interpreter, writer: Reconstructor, exit_recipe: Exit, before: Any
) -> CapturedFrame | Refused:
    in_inference = _check_left(interpreter)
    interpreter.side_effects.unsettled.clear()
    interpreter.number_functions.check_unchanged()
    writes = write_effects(interpreter, writer)
    writes += interpreter.outside_iterators.finish(interpreter.side_effects)
    late = list(_late_effects(interpreter, writer))  # which may add to `fills`
    effects: list[Effect] = [*writer.fills, *writes, *late]
    after = ambient_state().with_modes_of(before)
    deeper = autocast_depth() - interpreter.autocast_depth
    if after != before or deeper:
        effects.append(CapturedCall(set_ambient_state, (FromConstant(after), FromConstant(deeper))))
    checks = finished_checks(interpreter, writer)
    try:
        trace = _finished_trace(interpreter, writer.results)
        switched = switched_leaves(interpreter, trace.inputs, trace.graph)
    except Untraceable as untraceable:
        return _unsupported(interpreter, str(untraceable))
    alone = holds_all_gradients(interpreter, writer.results)
    sources = interpreter.guard_context.input_sources
    given = [interpreter.tracer.inputs[index] for index in trace.inputs]
    if (problem := guard_written_inputs(interpreter.guard_context, trace.graph, given)) is not None:
        return _unsupported(interpreter, problem)
    guard_distinct(interpreter.guard_context)
    interpreter.sizes.check_marks()
    guard_used_inputs(interpreter.guard_context, interpreter.tracer)
    renamed = trace.expressions.value if trace.expressions is not None else _same
    names = interpreter.tensor_names
    return CapturedFrame(
        code=interpreter.request.code,
        guards=interpreter.guard_context.all_guards(),
        inputs=(*[sources[i] for i in trace.inputs], *passed_sources(trace.sizes)),
        graph=without_autograd(trace.graph) if alone else trace.graph,
        calls=kept_calls(interpreter, trace.expressions),
        effects=tuple(effects),
        exit=exit_recipe,
        bytecodes=interpreter.steps_done,
        call_results=tuple(
            [
                renamed(names.of_result(result) or output.value)
                for result, output in zip(writer.results, trace.graph.outputs)
            ]
        ),
        written_names=frozenset(map(renamed, names.written())),
        size_notes=tuple(interpreter.sizes.notes),
        symbols=(
            interpreter.sizes.meanings(trace.expressions.symbols()) if trace.expressions else ()
        ),
        marked=interpreter.sizes.marked(),
        is_known=trace.is_known,
        draws=placed_draws(interpreter, trace.inputs),
        checks=checks,
        dropped=dropped_leaves(interpreter, trace.inputs, writer.made()),
        switched=switched,
        saves=needs_gradients(trace.graph),
        runs_backward=interpreter.runs_backward,
        in_inference=in_inference,
    )


def _late_effects(interpreter: Interpreter, writer: Reconstructor) -> Iterator[Effect]:
    for call, values in with_counts(interpreter.deferred_calls):
        yield CapturedCall(call, writer.recipes(final_arguments(call, values)))


def _check_left(interpreter: Interpreter) -> bool:
    """CannotRebuild where the frame leaves something open that would be closed, or a hook. Whether
    the graph is called in inference mode."""
    interpreter.shared_inputs.check_histories()
    check_handles(interpreter)
    check_tensor_hooks(interpreter)
    check_procedures(interpreter)
    for manager in interpreter.entered:
        if type(manager) is torch.device:
            step = interpreter.entered_at[id(manager)]
            raise CannotRebuild("a default device that is in force", step)
        if type(manager) is IndexMode:
            raise CannotRebuild("a torch mode that is in force", manager.entered_at)
        if type(manager) is ForwardLevel:
            raise CannotRebuild("a level of forward-mode gradients", manager.entered_at)
    for reference in interpreter.generators:
        generator = reference()
        if generator is not None and generator.waits_to_clean_up():
            name = generator.frame.code.co_qualname
            raise CannotRebuild(f"the suspended generator {name}", generator.made_at)
    return check_inference(interpreter)


def _finished_trace(interpreter: Interpreter, results: list[Any]) -> FinishedTrace:
    check_hooks(interpreter, results)
    check_written(interpreter)
    finish_functions(interpreter, results)
    if interpreter.tracer.has_lazy and any(map(shares_lazily, results)):
        raise CopySeen
    facts = interpreter.sizes.facts
    if facts is not None and facts.free_copies:
        check_unseen(interpreter.tracer.recorder, facts.free_copies, results)
    check_data_writes(interpreter, results)
    check_shared_memory(results)
    keeps_sized = interpreter.request.keeps_calls  # torch-level calls may ask for sizes of others
    named = (call.result for call in interpreter.calls) if interpreter.request.keeps_unread else ()
    trace: FinishedTrace = interpreter.tracer.finish(results, keeps_sized, values_in(tuple(named)))
    check_new_leaves(interpreter, results, trace.graph)
    return trace


def _same(value: object) -> Any:
    return value


def _unsupported(interpreter: Interpreter, problem: str) -> Refused:
    return _refused(
        "break", graph_break("unsupported-tensor", problem, frame_origin(interpreter.request))
    )


def _leave(
    interpreter: Interpreter, reason: GraphBreak, before: object, natively: bool
) -> CapturedFrame | Refused | BreakRequested:
    """The frames stand before the instruction that broke: describe them."""
    writer = Reconstructor(interpreter)
    states: list[FrameState] = []
    frames = interpreter.frames
    try:
        check_inference(interpreter)
    except CannotRebuild as in_force:
        return _blocked(in_force, -1, reason.origin)
    for index, frame in enumerate(frames):
        inner = frames[index + 1] if index + 1 < len(frames) else None
        if frame.generator is not None:
            problem = CannotRebuild("a generator's frame")
            return _blocked(problem, frame.call_step, reason.origin)
        try:
            states.append(_frame_state(writer, frame, inner))
        except CannotRebuild as problem:
            return _blocked(problem, frame.call_step, reason.origin)
    try:
        return _finish(interpreter, writer, Break(reason, tuple(states), natively), before)
    except CannotRebuild as problem:
        return _blocked(problem, -1, reason.origin)


def _frame_state(writer: Reconstructor, frame: Frame, inner: Frame | None) -> FrameState:
    """A frame's state; with a callee on top, before the call that made it."""
    stack = frame.stack
    if inner is not None:
        assert inner.call_stack is not None
        stack = left_by_callee(inner.call_stack, len(frame.stack), frame.current[1].name)
    offset = frame.steps[frame.index][1].offset if inner is None else inner.call_offset
    values: list[tuple[str, Recipe]] = [
        (name, writer.recipe(value)) for name, value in frame.locals.items()
    ]
    values += [(name, writer.recipe(cell)) for name, cell in frame.cells.items()]
    return FrameState(
        code=frame.code,
        globals=frame.globals,
        offset=offset,
        local_values=tuple(values),
        stack=writer.recipes(stack),
        function=frame.function,
    )


def _blocked(problem: CannotRebuild, step: int, origin: Origin) -> BreakRequested:
    """Leave earlier: where the object was made, if that is known, else at `step`."""
    blocked = BreakRequested(problem.code, str(problem))
    blocked.is_at_the_end = True
    blocked.step = problem.made_at if problem.made_at >= 0 else step
    blocked.origin = origin
    return blocked


def frame_origin(request: FrameRequest) -> Origin:
    """The place of a frame as a whole."""
    code = request.code
    return Origin(code.co_filename, code.co_firstlineno, code.co_qualname)


def _refuse_raise(raised: ProgramRaised) -> Refused:
    exception = raised.exception
    name = type(exception).__name__
    origin = raised.origin or UNKNOWN
    return Refused(
        "raises", name, f"the program raises {name}: {exception}", "it runs eagerly", origin
    )


def break_codes() -> tuple[str, ...]:
    """Every stable code that a graph break can have."""
    return tuple(CATALOGUE)
