"""The bytecode loop: frames, steps, exceptions, and where a graph break may leave.

A call from a CALL instruction to a Python function pushes a frame on the explicit stack: a break
in the callee can be resumed in it. Everything else that runs Python code (properties, special
methods, `__init__`, generators, callbacks from C) runs in a nested loop: a break there leaves the
frame before the instruction of the outermost loop that led to it. Capture is then repeated up to
that instruction, so that nothing of the broken attempt remains.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.arrays.calls import set_up
from braze.capture.calls.c_functions import put_member
from braze.capture.calls.call_cache import KnownCalls
from braze.capture.calls.torch_calls import TensorNames, as_seen, call_name, program_raised
from braze.capture.frames.caller_frames import C_FUNCTIONS, Callers
from braze.capture.frames.control_signals import BreakRequested, LeaveFrame, ProgramRaised, chain
from braze.capture.frames.frame import Frame
from braze.capture.frames.native_execution import UNLIMITED, IdleWork, check_idle
from braze.capture.frames.step_tracing import make_step_tracing
from braze.capture.handlers.dispatch import make_frame, prepare
from braze.capture.handlers.pure_functions import NumberFunctions
from braze.capture.objects.attribute_load import load_attribute
from braze.capture.objects.items import get_item
from braze.capture.objects.runtime_asserts import assume_computable, settle_assumptions
from braze.capture.objects.truth import length
from braze.capture.request import FrameRequest
from braze.capture.state.class_namespaces import guard_class_dicts
from braze.capture.state.external_iterators import OutsideIterators
from braze.capture.state.finalizers import check_ends
from braze.capture.state.guard_context import NUMBERS, GuardContext, refuse_lazy
from braze.capture.state.inference_region import InferenceRegion
from braze.capture.state.object_identity import settle_numbers
from braze.capture.state.opaque_objects import check_opaque, check_proxies, only_keeps
from braze.capture.state.reentrant_calls import special_method_raising
from braze.capture.state.side_effects import SideEffects
from braze.capture.state.string_escape import settle_read
from braze.capture.tensors.lazy_conjugates import wrap_lazy
from braze.capture.tensors.shared_inputs import SharedInputs
from braze.capture.tensors.symbolic_sizes import DynamicSizes
from braze.capture.tensors.wrapper_subclasses import intercept
from braze.capture.training.tensor_hooks import TensorHooks
from braze.capture.training.wrapper_gradients import call_with_gradient
from braze.compat.python.bytecode import decode
from braze.compat.python.frames import call_later_from
from braze.compat.torch.ambient_state import AmbientState, ambient_state, autocast_depth
from braze.compat.torch.dynamo_interop import says_breaks_are_errors
from braze.errors import CaptureError
from braze.ir.captured.frame import Draw, TorchCall
from braze.ir.origin import UNKNOWN, Origin
from braze.regions import REGIONS
from braze.shapes.data_symbols import Undecidable
from braze.tracing import DataDependent, UnknownTensor, Untraceable

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

# Each nested loop takes some ten frames of the real stack, whose limit is 1000.
MAX_NESTED_LOOPS = 60


def _idle_limit(options: Any) -> int:
    return UNLIMITED if options is None else int(options.idle_limit)


@final
class Interpreter:
    """Everything that one attempt to capture a frame knows.

    frames: the explicit stack, nested loops above the frame that led to them. steps_done counts
    interpreted instructions. leave_at: the step before which to stop, or -1.
    generators: weak references to all that the program made.
    over: the program is not run any further. missed: a break or an interrupt that was met where
    no exception can pass, in the end of an object that was dropped.
    transforms: how many of torch.func's transforms are under way; index_modes: how many modes in
    which tensors index tensors.
    reorders: whether the user names functions whose calls may be put off.
    late_calls: (function, args) to be called after the graph ran: warnings, log lines.
    cached_results: what the frame puts into caches of functions, by function and key.
    break_regions: whether graph breaks are errors, in each region entered; innermost last.
    labels: names of the program's `record_function` blocks that are open; innermost last.
    number_functions: those of the program's that such a call runs.
    warned_at: the step of the first warning that was put off.
    draws: what Python's generators of random numbers are asked before it runs, and the fake tensor
    of each number (None: it gives none).
    assumed: conditions on tensors of branches whose other side raises. looks_at_results: results
    of the graph may be looked at before the frame goes on.
    backwards: of each backward in the frame, the nodes it began at, the outermost step that made
    it, the nodes whose tensors it freed, and where it went to all leaves and freed, all nodes.
    hooked: the steps at which tensors of the frame got hooks.
    assigned_gradients: what a backward assigned to `.grad`, by identity.
    new_gradients: `.grad` of leaves that began in the frame; left_leaves: those that leave it.
    dropped_gradients: leaves whose `.grad` the frame dropped before it did anything to tensors.
    retaining: computed tensors that keep their gradients.
    applications: the calls of autograd functions whose gradients are recorded.
    entered: torch's context managers that run for real and have not been left; entered_at:
    the step that entered each, by its id.
    autocast_depth: of the thread, before the frame.
    idle: how much was interpreted since the last operator.
    known_counts: of values of the graph, while a part of the program is interpreted for zero (0)
    or more (1) in them, which.
    callers: in whose name real code is called.
    known_calls: how callables are called that were called before.
    masks: what attention's masks are known to do, by their values.
    numbers_of_objects: of `id` and `hash`, by number: the function and its argument.
    entered_with: the values that a frame goes on with behind a break, by identity; noticed_ends:
    those whose end is noticed.
    handles: of hooks of modules that the frame registered, by identity, each with the step;
    tensor_hooks: those of inputs.
    walked_keys: dicts among whose keys are no opaque objects, by identity, each with how many such
    objects were known then.
    keys_changed_at: the first step at which the `__hash__` or `__eq__` of a key that C code asked
    changed something.
    shows_text: whether a text that shows a size was made; reader: the real code that runs.
    differentiates: how many backwards of calls on wrapper subclasses are under way.
    entered_settings: what changes calls of torch's, as it was at the frame's entry;
    entered_state: all that is ambient then.
    """

    over = shows_text = False
    keys_changed_at: int | None = None
    index_modes = 0
    reader: Any = None
    entered_settings: tuple[Any, ...] = ()
    entered_state: AmbientState
    assumed: list[Any]
    cached_results: dict[tuple[Any, Any], Any]

    def __init__(self, request: FrameRequest, tracer: Tracer, leave_at: int) -> None:
        self.outer_step = self.steps_done = self.loops = self.transforms = 0
        self.request, options = request, request.options
        self.tracer = tracer
        tracer.gives_numbers = request.is_watched is not None
        if tracer.gives_numbers and options is not None:
            tracer.gives_integers = options.capture_scalar_outputs
            tracer.gives_sizes = options.capture_dynamic_output_shape_ops
        if request.is_watched is not None:
            tracer.step_now = lambda: self.outer_step
            tracer.check_number = functools.partial(assume_computable, self)
            tracer.before_effects = functools.partial(settle_assumptions, self)
        self.frames: list[Frame] = []
        self.sizes = DynamicSizes(request.policy, tracer, self.origin, request.copies_freely)
        self.guard_context = GuardContext(tracer, self.sizes)
        self.side_effects, self.arrays = SideEffects(self.guard_context), set_up(self)
        self.outside_iterators = OutsideIterators(self)
        self.guard_context.origin, self.guard_context.wrap_lazy = (
            self.origin,
            functools.partial(wrap_lazy, self),
        )
        self.shared_inputs = SharedInputs(self)
        self.side_effects.put = functools.partial(put_member, self)
        self.guard_context.intercepts = functools.partial(intercept, self)
        self.call_with_gradient = functools.partial(call_with_gradient, self)
        self.differentiates = 0
        self.reorders = options is not None and bool(options.reorderable_logging_functions)
        self.leave_at, self.warned_at, self.idle = leave_at, -1, IdleWork(_idle_limit(options))
        self.runs_backward = False
        self.step_tracing = None if request.leaves_out else make_step_tracing()
        self.returned: Any = None
        self.calls: list[TorchCall] = []
        self.tensor_names, self.known_calls = TensorNames(tracer), KnownCalls()
        # Places by the identity of instructions, which are kept alive beside them.
        self._origins: dict[int, tuple[Origin, Any]] = {}
        self.callers = Callers(self.frames)
        self.generators: list[Any] = []
        self.missed: BaseException | None = None
        self.deferred_calls: list[tuple[Any, tuple[Any, ...]]] = []
        self.break_regions = [says_breaks_are_errors(), *REGIONS]
        self.labels: list[str] = []
        self.number_functions = NumberFunctions(self)
        self.assumed, self.cached_results = [], {}
        self.looks_at_results = tracer.checks_unread = request.is_watched is not None
        self.draws: list[tuple[Draw, Any]] = []
        # Iterators over dicts: identity -> (iterator, the dict or view, its length at the start).
        self.dict_iterators: dict[int, tuple[Any, Any, int]] = {}
        # Exceptions that were raised and caught: identity -> (exception, the step that raised it).
        self.raised: dict[int, tuple[BaseException, int]] = {}
        self.backwards: list[tuple[list[Any], int, list[Any], list[Any]]] = []
        self.applications: list[Any] = []
        self.hooked: list[int] = []
        self.checkpoints: list[tuple[Any, int, tuple[Any, int]]] = []
        self.new_gradients: dict[int, Any] = {}
        self.assigned_gradients: dict[int, Any] = {}
        self.dropped_gradients: dict[int, Any] = {}
        self.left_leaves: set[int] = set()
        self.retaining: dict[int, Any] = {}
        # Views of their inputs that autograd functions returned: id of the place -> (it, the call).
        self.custom_views: dict[int, tuple[Any, Any]] = {}
        self.entered: list[Any] = []
        self.inference: InferenceRegion | None = None
        self.entered_at: dict[int, int] = {}
        self.autocast_depth = autocast_depth()
        self.known_counts: dict[Any, int] = {}
        self.masks: dict[Any, Any] = {}
        self.numbers_of_objects = self.guard_context.numbers_of_objects
        self.entered_with: dict[int, Any] = {}
        self.noticed_ends: dict[int, Any] = {}
        self.handles: dict[int, tuple[Any, int]] = {}
        self.tensor_hooks = TensorHooks()
        self.walked_keys: dict[int, tuple[Any, int]] = {}

    def leave_managers(self) -> None:
        """Leave the context managers that are still entered. A second call does what an
        interrupted first one did not."""
        while self.entered:
            # Interrupted in its `__enter__`, it may have nothing to leave.
            with contextlib.suppress(AttributeError):
                self.entered[-1].__exit__(None, None, None)
            self.entered.pop()

    def release(self) -> None:
        """Let go of every fake tensor: the tables refer to each other in cycles."""
        self.over = True
        self.frames.clear()
        self.returned = None
        self.deferred_calls.clear()
        self.cached_results.clear()
        self.number_functions.release()
        self.draws.clear()
        self.assumed.clear()
        self.generators.clear()
        self.backwards.clear()
        self.checkpoints.clear()
        for application in self.applications:
            application.release()
        self.applications.clear()
        self.custom_views.clear()
        self.new_gradients.clear()
        self.assigned_gradients.clear()
        self.dropped_gradients.clear()
        self.retaining.clear()
        self.tracer.step_now = self.tracer.check_number = self.tracer.before_effects = None
        self.tracer.intercept = self.guard_context.intercepts = None
        self.raised.clear()
        self.numbers_of_objects.clear()
        self.entered_with.clear()
        self.noticed_ends.clear()
        self.dict_iterators.clear()
        self.walked_keys.clear()
        self.tensor_names.release()
        self.known_calls.release()
        self._origins.clear()
        self.callers.release()
        self.guard_context.release()
        self.sizes.release()
        self.side_effects.release()
        self.arrays.release()
        self.guard_context.wrap_lazy = refuse_lazy
        self.shared_inputs.release()
        self.outside_iterators.release()
        # What an attempt knows refers to the interpreter, and it holds what the frame was given:
        # without attributes it ends no cycle, whatever is added above.
        self.__dict__ = {"over": True, "missed": self.missed}

    # --- where -------------------------------------------------------------------------------

    def origin(self, call: str = "") -> Origin:
        """The user's place that is being interpreted."""
        if not self.frames:
            return UNKNOWN
        frame = self.frames[-1]
        instruction = frame.current[1]
        code = frame.code
        if self.labels:
            labels = tuple(self.labels)
            return Origin(code.co_filename, instruction.line, code.co_qualname, call, labels=labels)
        if call:
            return Origin(code.co_filename, instruction.line, code.co_qualname, call)
        found = self._origins.get(id(instruction))
        if found is None:
            origin = Origin(code.co_filename, instruction.line, code.co_qualname)
            found = self._origins[id(instruction)] = origin, instruction
        return found[0]

    def state_of_call(self) -> tuple[Any, ...]:
        """The grad mode in which a torch-level call is made; where it is asked for also autocast,
        and whether all else is as at the frame's entry."""
        if not self.request.keeps_states:
            return (torch.is_grad_enabled(),)
        state = ambient_state()
        return state.grad, state.casts(), state.settings() == self.entered_settings

    def put_off(self, function: Any, values: tuple[object, ...], count: int = 1) -> None:
        """Call `function(*values)` after the graph ran. count: of how many callers it may ask."""
        later = functools.partial(call_later_from, self.callers.captured(count), count, function)
        self.deferred_calls.append((later, values))

    # --- running -----------------------------------------------------------------------------

    def index_at(self, code: types.CodeType, offset: int) -> int:
        """The index of the step at a byte offset."""
        return decode(code).index_at[offset]

    def run_root(self, frame: Frame) -> object:
        """Interpret the frame that is captured; then the program is over."""
        try:
            value = self.run(frame)
            del frame
        finally:
            self.over = True
        if self.missed is not None:
            raise self.missed
        return value

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """At the end of the frame: what is interpreted in here is part of it after all."""
        over, self.over = self.over, False
        self.loops += 1
        try:
            yield
        finally:
            self.loops -= 1
            self.over = over

    def marks(self) -> tuple[Any, ...]:
        """What changes when the program changes something that existed before."""
        return (
            self.side_effects.marks(),
            len(self.deferred_calls),
            len(self.backwards),
            len(self.entered),
        )

    def run(self, frame: Frame) -> Any:
        """Interpret a frame to its end (or a generator's to its next yield); gives the result.

        Raises ProgramRaised for an exception that leaves the frame, BreakRequested for a break.
        """
        base = len(self.frames)
        if base > self.request.max_inline_depth:
            raise self._too_deep(frame)
        if self.loops > MAX_NESTED_LOOPS:
            raise self._too_deep(frame)
        if self.steps_done >= self.idle.due:
            check_idle(self)
        self.frames.append(frame)
        self.loops += 1
        try:
            return self._loop(base, self.loops == 1)
        except LeaveFrame:
            raise
        except BaseException:
            del self.frames[base:]
            raise
        finally:
            self.loops -= 1

    def _loop(self, base: int, outermost: bool) -> object:
        step = 0
        leave_at = self.leave_at
        ends = self.noticed_ends if outermost else None
        while True:
            frame = self.frames[-1]
            traces = self.step_tracing
            steps = frame.steps if traces is None else traces.steps(frame, len(self.frames) - 1)
            try:
                while True:
                    current = steps[frame.index]
                    step = self.steps_done
                    if step == leave_at and outermost:
                        raise LeaveFrame
                    self.steps_done = step + 1
                    if outermost:
                        self.outer_step = step
                    frame.current = current
                    frame.index += 1
                    leaves = current[0](self, frame, current[1])
                    if ends and self.frames:
                        check_ends(self)
                    if leaves:
                        break
            except ProgramRaised as raised:
                self._unwind(base, raised)
            except (BreakRequested, DataDependent, Undecidable, Untraceable) as problem:
                request = _as_break(problem)
                self.over = True
                if request.origin is UNKNOWN:
                    request.origin = self.origin()
                if outermost and request.step is None:
                    request.step = self._resumable_step(step)
                raise request from None
            except (LeaveFrame, CaptureError):
                raise
            except RecursionError:
                raise self._too_deep(frame) from None
            except Exception as fault:
                raise self._fault(fault, step if outermost else None) from fault
            if len(self.frames) == base:
                return self.returned

    def _fault(self, fault: Exception, step: int | None) -> BaseException:
        """A fault of Braze's; or the break where a method of the program's that Braze's own code
        made run, as the `__eq__` of a key in a dict that is read, raised."""
        method = special_method_raising(fault)
        if method is not None:
            detail = f"{method}, of a key in a dict"
        elif id(fault) in self.raised:
            detail = f"a special method of the program's that raises {type(fault).__name__}"
        else:
            return CaptureError(fault, origin=self.origin())
        self.over = True
        problem = BreakRequested("unseen-python", detail)
        problem.origin = self.origin()
        problem.step = None if step is None else self._resumable_step(step)
        return problem

    def _too_deep(self, frame: Frame) -> BreakRequested:
        request = BreakRequested("recursion", frame.code.co_qualname)
        # Captured by pieces, an endless recursion would end thirty times as deep as it does.
        calls_itself = any(other.code is frame.code for other in self.frames)
        request.natively = calls_itself and self.loops == 1
        return request

    def finish_frame(self, value: object) -> bool:
        """Leave the top frame with a result: to the frame below, or out of its loop."""
        frame = self.frames.pop()
        self.returned = value
        if frame.call_stack is not None:
            self.frames[-1].stack.append(value)
        return True

    def _unwind(self, base: int, raised: ProgramRaised) -> None:
        exception = raised.exception
        first = id(exception) not in self.raised  # else it has come through native code
        self.raised.setdefault(id(exception), (exception, self.outer_step))
        while len(self.frames) > base:
            frame = self.frames[-1]
            region = frame.current[1].region
            if raised.origin is None:
                raised.origin = self.origin()
                if first and not raised.again:
                    chain(raised.exception, self.handled())
            if region is not None:
                del frame.stack[region.depth :]
                if region.push_offset:
                    frame.stack.append(frame.current[1].offset)
                frame.stack.append(exception)
                frame.index = region.target
                return
            self.frames.pop()
        try:
            raise raised
        finally:  # its traceback holds this frame
            del raised, exception

    def handled(self) -> BaseException | None:
        """The exception that is being handled, innermost."""
        for frame in reversed(self.frames):
            if frame.handled:
                return frame.handled[-1]
        return None

    def _resumable_step(self, step: int) -> int:
        """The innermost step of the explicit stack before which every frame can be rebuilt."""
        for frame in self.frames:
            if frame.generator is not None:
                return frame.call_step
        return step

    # --- calls -------------------------------------------------------------------------------

    def call(self, function: object, /, *args: object, **kwargs: object) -> Any:
        """Call anything the program can call, to completion, in a nested loop."""
        frame, result = prepare(self, function, args, kwargs)
        return result if frame is None else self.run(frame)

    def call_raising(self, function: object, /, *args: object, **kwargs: object) -> object:
        """`call` for native code: what the program raises is raised itself."""
        try:
            return self.call(function, *args, **kwargs)
        except ProgramRaised as raised:
            problem = raised.exception
        raise problem

    def enter(
        self,
        caller: Frame,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[object],
    ) -> bool:
        """Call from a CALL instruction; `operands` are what the handler took off the stack."""
        frame, result = prepare(self, function, args, kwargs)
        if frame is None:
            caller.stack.append(result)
            return False
        if len(self.frames) > self.request.max_inline_depth:
            raise self._too_deep(frame)
        if self.steps_done >= self.idle.due:
            check_idle(self)
        if self.loops == 1:
            frame.call_offset = caller.current[1].offset
            frame.call_step = self.steps_done - 1
        frame.call_stack = [*caller.stack, *operands]
        self.frames.append(frame)
        return True

    def call_python(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Interpret a Python function even where a table would answer for it."""
        assert isinstance(function, types.FunctionType), function
        frame, result = make_frame(self, function, args, kwargs)
        return result if frame is None else self.run(frame)

    def native(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
        """Run real code on values that it may see; its exceptions are the program's."""
        if self.guard_context.proxies and not only_keeps(function):
            check_proxies(self.guard_context, (args, kwargs))
        if self.guard_context.opaque and not only_keeps(function):
            check_opaque(self, function, args, kwargs)
        if self.guard_context.class_dicts:
            guard_class_dicts(self.guard_context, function, args)
        if self.numbers_of_objects:
            settle_numbers(self.guard_context, args)
        reader = self.reader
        try:
            if self.shows_text:
                settle_read(function, args, kwargs)
            self.reader = function
            if type(function) in C_FUNCTIONS or not self.frames:
                return as_seen(function(*args, **kwargs))
            return as_seen(self.callers.at(self.frames[-1])(function, *args, **kwargs))
        except (CaptureError, RecursionError):
            raise
        except (DataDependent, Undecidable) as problem:
            raise _as_break(problem) from None
        except (Untraceable, UnknownTensor) as problem:  # no exception of the program's
            raise BreakRequested("unsupported-tensor", str(problem)) from None
        except BaseException as exception:
            refused = isinstance(exception, (TypeError, AttributeError))
            if refused and not NUMBERS.keys().isdisjoint(map(type, (*args, *kwargs.values()))):
                known = map(self.at_hand, args)  # C code that looks for an int or a float itself
                named = {name: self.at_hand(value) for name, value in kwargs.items()}
                return self.native(function, *known, **named)
            if isinstance(exception, Exception) or id(exception) in self.raised:
                raise program_raised(exception, call_name(function)) from None
            raise
        finally:
            self.reader = reader

    def at_hand(self, value: object) -> object:
        """The number of this call, for one that stands for several; any other value itself."""
        kind = NUMBERS.get(type(value))
        return value if kind is None else self.native(kind, value)

    # --- what natively written parts ask for ---------------------------------------------------

    def attribute(self, owner: object, name: str) -> Any:
        """`owner.name`."""
        return load_attribute(self, owner, name)

    def item(self, owner: object, key: object) -> Any:
        """`owner[key]`."""
        return get_item(self, owner, key)

    def length(self, value: object) -> int:
        """`len(value)`."""
        return length(self, value)


def _as_break(
    problem: BreakRequested | DataDependent | Undecidable | Untraceable,
) -> BreakRequested:
    """The break where a symbolic number would have to be known, or a tensor to have a memory."""
    if isinstance(problem, BreakRequested):
        return problem
    if isinstance(problem, Untraceable):
        return BreakRequested("unsupported-tensor", str(problem))
    if isinstance(problem, Undecidable):
        return BreakRequested("data-dependent-size", str(problem))
    return BreakRequested("data-dependent-value", str(problem))
