"""`torch.autograd.Function` in a frame: its methods are interpreted, its node is PyTorch's own.

    y = F.apply(x)     a real Function of ours is applied to the fake tensors; C++ asks it for the
                       forward and the backward, and it interprets those of F

So saved tensors, `mark_dirty`, `needs_input_grad` and a backward in the frame are autograd's own.
For a backward after the frame the graph gets a node with F's backward in it
(`custom_gradient.py`), interpreted at the end of the frame. Refused, by a break before the call:
a backward that writes to what existed before, or reads what the frame wrote to since.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import traced
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.training.autograd_history import holds_all_gradients
from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import FUNCTION_APPLY, quick_apply
from braze.compat.torch.dynamo_interop import (
    BACKWARD_NAMES,
    OF_NODES,
    ONCE_DIFFERENTIABLE,
    PLAIN_BACKWARD,
    PLAIN_SETUP_CONTEXT,
)
from braze.ir.captured.frame import TorchCall
from braze.ir.graphs.custom_gradient import CustomGradient, Formula
from braze.ir.graphs.graph import Node, Value, operands
from braze.ir.graphs.joint_graph import tangent_stride
from braze.ir.types import ScalarType, TensorType
from braze.shapes.symbolic import SymbolicSize
from braze.tracing import DataDependent, UnknownTensor, Untraceable
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.graph_recorder import GraphRecorder, node_of
from braze.tracing.shape_rules.strides import is_dense

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext
    from braze.tracing.tracer import Tracer

# Of so many results each choice of undefined gradients has a formula; a call with more is left to
# eager, where the backward is told which come in.
_FEW = 4


class InlinedContext(torch.autograd.function.FunctionCtx):
    """`ctx` of a custom autograd function whose methods are interpreted. What autograd's node has
    besides is asked for by `__getattr__`, which breaks."""

    def __init__(self, needs_input_grad: tuple[bool, ...], name: str) -> None:
        self._said_name = name
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._said_materialize = True
        self._said_dirty: tuple[Any, ...] = ()
        self._said_non_differentiable: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """What the program has not set."""
        raise AttributeError(name)

    def save_for_backward(self, *tensors: object) -> None:
        """Keep tensors for the backward."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: object) -> None:
        """Keep tensors for forward-mode gradients, which are not taken."""

    def mark_non_differentiable(self, *tensors: object) -> None:
        """Say which outputs have no gradients."""
        self._said_non_differentiable = tensors

    def mark_dirty(self, *tensors: object) -> None:
        """Say which inputs are written to."""
        self._said_dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Say how the backward gets missing gradients."""
        self._said_materialize = value


@answers(InlinedContext.__getattr__)
def ask_node(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """An attribute of `ctx` that the program has not set: autograd's node may have it."""
    context, name = args
    if name in OF_NODES:
        raise BreakRequested("autograd-function", f"ctx.{name}")
    raise ProgramRaised(AttributeError(f"{context._said_name!r} object has no attribute {name!r}"))


@unseen_by_other_compilers
class OperatorFunction(torch.autograd.Function):
    """A function of autograd that stands for an operator (`library_operators.py`)."""

    operator: Any


@answers(FUNCTION_APPLY)
def apply_function(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> object:
    """`Function.apply`."""
    cls, *values = args
    _leave_transformed(interpreter, cls)
    values = _positional(interpreter, cls, values, kwargs)
    application = Application(interpreter, cls, values)
    inputs = list(filter(_needs_gradient, values))
    if not (inputs and torch.is_grad_enabled()):
        return traced(_apply, (application, *values), {})
    before = traced(interpreter.tracer.bind, (inputs,), {})
    noted = interpreter.tensor_names.noted
    given, first = noted(tuple(values)), len(interpreter.calls)
    interpreter.applications.append(application)
    _check_forward(application)
    made = traced(_apply, (application, *values), {})
    _check_forward(application)
    returned = made if type(made) is tuple else (made,)
    if any(map(_needs_gradient, returned)):
        traced(application.note_results, (returned, before), {})
    del interpreter.calls[first:]
    state = interpreter.state_of_call()
    result = noted(made, True)
    call = TorchCall(_applied(cls), given, (), result, application.origin, *state)
    interpreter.calls.append(call)
    return made


def _check_forward(application: Application) -> None:
    """Break where a graph of torch's calls would run the forward once more, beside what it writes
    here, or before what the frame has written."""
    interpreter = application.interpreter
    calls_python = interpreter.request.keeps_unread and not issubclass(
        application.cls, OperatorFunction
    )
    if calls_python and (interpreter.deferred_calls or any(interpreter.side_effects.marks())):
        raise application.refused("its forward would run beside what is written before it or in it")


def finish_functions(interpreter: Interpreter, results: Sequence[Any]) -> None:
    """At the frame's end: the nodes of autograd functions get what their backwards compute. A view
    of its input that one returned has a gradient of its own: it must not leave as a view.

    Raises BreakRequested, for the step before the call."""
    if holds_all_gradients(interpreter, results):
        return
    for application in interpreter.applications:
        if application.call >= 0:
            application.add_backward()
    if not interpreter.custom_views:
        return
    bases = [result.place.base or result.place for result in results]
    for result, base in zip(results, bases, strict=True):
        found = _viewing(interpreter, result.place)
        if found is None:
            continue
        viewed, application = found
        kind = result.place.type
        alone = base.input_index < 0 and bases.count(base) == 1 and viewed.version == base.version
        if not (alone and is_dense(kind.shape, kind.stride)):
            raise application.refused("it returns a view of its input")
        # Nobody sees what it is a view of, by which autograd would go around the function.
        value = interpreter.tracer.value_of(result)
        result.place = Place(kind, value, result.place.offset, result.place.tracks_gradient)


def _viewing(interpreter: Interpreter, place: Place | None) -> tuple[Place, Application] | None:
    """What a program's function returned as a view of its input, if a result is that, or a view of
    it; and the function."""
    while place is not None:
        found: tuple[Place, Application] | None = interpreter.custom_views.get(id(place))
        if found is not None:
            return found
        place = place.parent
    return None


@final
class Application:
    """One call of a program's autograd function `cls`.

    context: the program's `ctx`; node: autograd's own. call: the number of the recorded call that
    gives the results their gradients, or -1. start, end: the values made meanwhile.
    results: what that call gives. returned: of all that the forward returned, the number of such
        a result or -1, and the type of a tensor.
    saved: what the forward saved. saved_results: which of these are results, by their numbers.
    operands: values that the recorded call reads or makes: (kind, number) of `Formula.reads`.
    """

    def __init__(self, interpreter: Interpreter, cls: Any, arguments: list[object]) -> None:
        self.interpreter = interpreter
        self.cls = cls
        self.arguments = arguments
        self.step = interpreter.outer_step
        self.origin = interpreter.origin(f"{cls.__qualname__}.apply")
        self.context: Any = None
        self.node: Any = None
        self.call = -1
        self.start = interpreter.tracer.recorder.next_number
        self.end = 0
        self.operands: dict[Value, tuple[str, int]] = {}
        self.saved: tuple[Any, ...] = ()
        self.saved_results: dict[int, int] = {}
        self.results: tuple[Value, ...] = ()
        self.returned: list[tuple[int, Any]] = []

    def release(self) -> None:
        """Let go of fake tensors: `ctx` may hold what holds `ctx`."""
        if self.context is not None:
            vars(self.context).clear()
        self.context = self.node = None
        self.saved = ()
        self.arguments.clear()

    def refused(self, detail: str) -> BreakRequested:
        """The break before the call."""
        request = BreakRequested("autograd-function", f"{self.cls.__qualname__}: {detail}")
        request.step, request.origin = self.step, self.origin
        return request

    # --- what autograd asks for

    def forward(self, node: Any, values: Sequence[object]) -> Any:
        """The program's forward, and what it says of it, told to autograd's node."""
        interpreter, guard_context = self.interpreter, self.interpreter.guard_context
        given = node.needs_input_grad[1:]
        context = self.context = InlinedContext(given, f"{self.cls.__name__}Backward")
        setup = _found(guard_context, self.cls, "setup_context")
        forward = _found(guard_context, self.cls, "forward")
        if setup is PLAIN_SETUP_CONTEXT:
            result = interpreter.call_raising(forward, context, *values)
        else:
            result = interpreter.call_raising(forward, *values)
            interpreter.call_raising(setup, context, tuple(values), result)
        said = vars(context)
        if (named := said.keys() & OF_NODES - _OWN_NAMES) or (
            said["needs_input_grad"] is not given
        ):
            raise BreakRequested("autograd-function", f"ctx.{', '.join(named)} is set")
        node.mark_dirty(*said["_said_dirty"])  # of these, what is returned is the argument itself
        if not any(node.needs_input_grad):
            return result
        self.node = node
        self.saved = said["saved_tensors"]
        node.save_for_backward(*self.saved)
        node.mark_non_differentiable(*said["_said_non_differentiable"])
        node.set_materialize_grads(said["_said_materialize"])
        return result

    def backward(self, call: Callable[..., object], gradients: Sequence[object]) -> tuple[Any, ...]:
        """The program's backward, by `call`: a gradient for each argument of the forward."""
        creates = torch.is_grad_enabled() and any(_needs_gradient(g) for g in gradients)
        if creates and self._is_differentiable_once():
            raise self.refused("its backward is differentiable once, and create_graph=True")
        # Of a node that saves nothing, eager lets a second backward through.
        self.context.saved_tensors = self.node.saved_tensors if self.saved else ()
        return self._call_backward(call, gradients)

    def _call_backward(
        self, call: Callable[..., object], gradients: Sequence[object]
    ) -> tuple[object, ...]:
        context = self.context
        if getattr(self.cls, "boxed_grads_call", False):
            gradients = (list(gradients),)
        made = call(self._method(), context, *gradients)
        made = self.interpreter.side_effects.native(made)
        return made if type(made) is tuple else tuple(made) if type(made) is list else (made,)

    def _method(self) -> object:
        guard_context = self.interpreter.guard_context
        methods = [_found(guard_context, self.cls, name) for name in BACKWARD_NAMES]
        return next((m for m in methods if m not in PLAIN_BACKWARD), methods[0])

    def _is_differentiable_once(self) -> bool:
        return getattr(self._method(), "__code__", None) is ONCE_DIFFERENTIABLE

    # --- the node of the graph

    def note_results(self, returned: Sequence[Any], before: Sequence[Value]) -> None:
        """Record the call that gives results their gradients: `before` are what the inputs
        held."""
        tracer = self.interpreter.tracer
        recorder = tracer.recorder
        results = list(filter(_needs_gradient, returned))
        numbers = itertools.count()
        self.returned = [
            (
                next(numbers) if _needs_gradient(r) else -1,
                r.place.type if type(r) is TracedTensor else None,
            )
            for r in returned
        ]
        raw = tuple(map(tracer.value_of, results))
        self.call = len(recorder.calls)
        op = CustomGradient(self.cls.__qualname__)
        types = tuple([value.type for value in raw])
        made = recorder.emit_typed(op, (tuple(before), raw, (), ()), {}, types)
        self.results, self.end = made, made[-1].index
        for number, value in enumerate(before):
            self.operands[value] = ("input", number)
        for number, pair in enumerate(zip(raw, made, strict=True)):
            self.operands.update(dict.fromkeys(pair, ("result", number)))
        self.saved_results = {
            place: number
            for place, saved in enumerate(self.saved)
            for number, result in enumerate(results)
            if saved is result
        }
        for result, value in zip(results, made, strict=True):
            self._give_history(result, value)

    def _give_history(self, result: Any, value: Value) -> None:
        place: Place = result.place
        base = place.base
        if any(result is argument for argument in self.arguments):
            self.interpreter.tracer.write(result, value, True)
        elif base is None and (place.input_index >= 0 or place.value.index < self.start):
            raise self.refused("it returns what existed before")
        elif base is None:
            place.value, place.history = value, None
            place.tracks_gradient = place.tracked_write = True
        elif self._existed(base):
            place.value, place.version = value, base.version
            place.tracks_gradient = place.is_custom = True
            self.interpreter.custom_views[id(place)] = (place, self)
        else:
            result.place = Place(place.type, value, place.offset, True)

    def _existed(self, base: Place) -> bool:
        places = [argument.place for argument in self.arguments if type(argument) is TracedTensor]
        is_given = any((place.base or place) is base for place in places)
        return is_given or base.input_index >= 0 or base.value.index < self.start

    # --- the backward of the graph's node

    def add_backward(self) -> None:
        """Put the formulas into the recorded call."""
        calls = self.interpreter.tracer.recorder.calls
        op, args, kwargs, results, origin, grad = calls[self.call]
        outside = _Outside(self.interpreter.tracer.recorder)
        formulas = tuple([self._formula(given, outside) for given in self._choices(len(results))])
        once = self._is_differentiable_once()
        op = CustomGradient(op.name, formulas, self.context._said_materialize, once)
        given = (*args[:2], tuple(outside.captured), tuple(outside.sizes))
        calls[self.call] = (op, given, kwargs, results, origin, grad)

    def _choices(self, count: int) -> list[tuple[bool, ...]]:
        if self.context._said_materialize:
            return [(True,) * count]
        if count > _FEW:
            raise self.refused(f"its backward is told which of {count} gradients come in")
        choices = [tuple([bool(n >> k & 1) for k in range(count)]) for n in range(1, 1 << count)]
        return sorted(choices, reverse=True)

    def _is_freed(self) -> bool:
        """Whether a backward of the frame has used up the history that leads here: what leaves the
        frame with it refuses to be differentiated."""
        return any(
            node is self.node for _, _, freed, _ in self.interpreter.backwards for node in freed
        )

    def _formula(self, given: tuple[bool, ...], outside: _Outside) -> Formula:
        interpreter, context = self.interpreter, self.context
        tracer = interpreter.tracer
        recorder = tracer.recorder
        start, noted = len(recorder.calls), len(interpreter.calls)
        before, kept = interpreter.marks(), dict(vars(context))
        tangents = [_tangent(tracer, v) if yes else None for v, yes in zip(self.results, given)]
        if self._is_freed():
            names = tuple([tracer.value_of(tangent) for tangent in tangents if tangent is not None])
            return Formula(
                given, names, (), (), (None,) * sum(map(_needs_gradient, self.arguments))
            )
        recorder.fence = self.end + 1
        try:
            with interpreter.going_on(), torch.no_grad():
                incoming = [self._incoming(tangents, *result) for result in self.returned]
                context.saved_tensors = self._saved_for_formula()
                made = self._call_backward(interpreter.call, incoming)
                gradients = self._gradients(made)
        except ProgramRaised as problem:
            raise self.refused(f"its backward raises {problem.exception!r}") from None
        except BreakRequested as problem:
            raise self.refused(f"in its backward: {problem.detail}") from None
        except _PROBLEMS as problem:
            raise self.refused(f"in its backward: {problem}") from None
        finally:
            recorder.fence = 0
            vars(context).clear()
            vars(context).update(kept)
        if interpreter.marks() != before:
            raise self.refused("its backward changes what existed before")
        nodes = tuple([outside.without_sizes(node_of(call)) for call in recorder.calls[start:]])
        del recorder.calls[start:], interpreter.calls[noted:]
        names = tuple([tracer.value_of(tangent) for tangent in tangents if tangent is not None])
        reads = self._reads(nodes, names, gradients, outside)
        return Formula(given, names, reads, nodes, gradients)

    def _saved_for_formula(self) -> tuple[object, ...]:
        """The saved tensors. A result has its history for second derivatives: it is read as the
        result, and not as the detached copy that autograd keeps of it and detaches once more."""
        recorded = self.interpreter.tracer.recorder.calls
        start = len(recorded)
        if not self.saved:
            return ()
        saved: tuple[Any, ...] = self.node.saved_tensors  # raises where one was written to
        for place, number in self.saved_results.items():
            saved[place].place = Place(saved[place].place.type, self.results[number])
        if len(recorded) - start == len(self.saved_results):
            del recorded[start:]
        return saved

    def _incoming(self, tangents: Sequence[object], number: int, kind: Any) -> object:
        """What the backward gets for one thing that the forward returned."""
        if number >= 0:
            return tangents[number]
        if kind is None or not self.context._said_materialize:
            return None
        return torch.zeros(kind.shape, dtype=kind.dtype, device=kind.device)

    def _gradients(self, made: Sequence[Any]) -> tuple[Value | None, ...]:
        """Those of the inputs that need one; the program gives one for each argument."""
        count = len(self.arguments)
        if len(made) < count or any(gradient is not None for gradient in made[count:]):
            raise self.refused(f"its backward gives {len(made)} gradients for {count} arguments")
        wanted = [g for g, argument in zip(made, self.arguments) if _needs_gradient(argument)]
        if not all(g is None or type(g) is TracedTensor for g in wanted):
            raise self.refused("its backward gives something else than tensors")
        value_of = self.interpreter.tracer.value_of
        return tuple([None if gradient is None else value_of(gradient) for gradient in wanted])

    def _reads(
        self,
        nodes: Sequence[Node],
        tangents: Sequence[Value],
        gradients: Sequence[Value | None],
        outside: _Outside,
    ) -> tuple[tuple[Value, str, int], ...]:
        """What a formula reads, by where a replay finds it; new ones are added to `outside`."""
        tracer = self.interpreter.tracer
        given = {*tracer.recorder.input_values, *(c.value for c in tracer.constants)}
        known = {*tangents, *(value for node in nodes for value in node.outputs)}
        wanted = [value for node in nodes for value in operands(node)]
        wanted += [gradient for gradient in gradients if gradient is not None]
        found: list[tuple[Value, str, int]] = []
        for value in dict.fromkeys(wanted):
            if value in known:
                continue
            if value in self.operands:
                found.append((value, *self.operands[value]))
                continue
            if value in outside.numbers:
                found.append((value, "number", outside.numbers[value]))
                continue
            if value.index > self.end and value not in given:
                raise self.refused("its backward reads what was written to since")
            found.append((value, "captured", outside.place_of(value)))
        return tuple(found)


@final
class _Outside:
    """What the formulas of one call read beside its inputs and results.

    captured: values of the graph, and which operand each is. sizes: symbolic ones; numbers: the
    values that stand for them in formulas, and which each is: only the operands of the graph's
    nodes are rewritten when the trace ends, and told to a replay.
    """

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self.captured: dict[Value, int] = {}
        self.sizes: dict[SymbolicSize, Value] = {}
        self.numbers: dict[Value, int] = {}

    def place_of(self, value: Value) -> int:
        """Which of the captured operands a value of the graph is."""
        return self.captured.setdefault(value, len(self.captured))

    def without_sizes(self, node: Node) -> Node:
        """The node with values for its symbolic sizes."""
        args = tuple([self._without(argument) for argument in node.args])
        kwargs = tuple([(name, self._without(argument)) for name, argument in node.kwargs])
        return replace(node, args=args, kwargs=kwargs)

    def _without(self, argument: object) -> object:
        if isinstance(argument, (list, tuple)):
            return type(argument)([self._without(item) for item in argument])
        if not isinstance(argument, SymbolicSize):
            return argument
        size: SymbolicSize = argument.node
        found = self.sizes.get(size)
        if found is None:
            found = self.sizes[size] = self._recorder.new_value(ScalarType(int))
            self.numbers[found] = len(self.numbers)
        return found


# --- private -------------------------------------------------------------------------------------

# What the program may set or read of `ctx` by a name that autograd's node has.
_OWN_NAMES = frozenset({"needs_input_grad", "saved_tensors", "name"})
_PROBLEMS = (DataDependent, Untraceable, UnknownTensor, RuntimeError)


@unseen_by_other_compilers
class _Interpreted(torch.autograd.Function):
    """What autograd sees of a program's function."""

    @staticmethod
    def forward(ctx: Any, application: Application, *values: object) -> Any:
        ctx.application = application
        return application.forward(ctx, values)

    @staticmethod
    def backward(ctx: Any, *gradients: object) -> Any:
        application = ctx.application
        return (None, *application.backward(application.interpreter.call_raising, gradients))


_apply = quick_apply(_Interpreted)


def _needs_gradient(argument: object) -> bool:
    return type(argument) is TracedTensor and argument.requires_grad


def _tangent(tracer: Tracer, result: Value) -> TracedTensor:
    """A fake tensor for the gradient of a result."""
    kind = result.type
    assert isinstance(kind, TensorType)
    plain = TensorType(kind.dtype, kind.shape, tangent_stride(kind), kind.device)
    return new_fake(Place(plain, tracer.recorder.new_value(plain)))


def _applied(cls: Any) -> Any:
    """What user backends call."""
    if issubclass(cls, OperatorFunction):
        return cls.operator

    def apply(*args: Any) -> object:
        return cls.apply(*args)

    apply.__name__ = cls.__name__
    return apply


def _positional(
    interpreter: Interpreter, cls: Any, values: list[object], kwargs: dict[str, object]
) -> list[Any]:
    """The arguments of the forward in its order, as `apply` binds them."""
    setup = _found(interpreter.guard_context, cls, "setup_context")
    if setup is PLAIN_SETUP_CONTEXT:
        if kwargs:
            raise BreakRequested("autograd-function", f"{cls.__qualname__}.apply with keywords")
        return values
    forward = _found(interpreter.guard_context, cls, "forward")
    interpreter.guard_context.source_of_function(getattr(forward, "__func__", forward))
    bound = interpreter.native(inspect.signature(forward).bind, *values, **kwargs)
    bound.apply_defaults()
    return list(bound.args)


def _leave_transformed(interpreter: Interpreter, cls: Any) -> None:
    """Break before what PyTorch calls other methods of a function for than its forward and its
    backward: `jvp`, `vmap`, `generate_vmap_rule` and `setup_context` are asked by the levels of
    torch.func's transforms and of forward mode."""
    if interpreter.transforms:
        name = f"{cls.__qualname__} under a transform of torch.func"
        raise BreakRequested("autograd-function", name)


def _found(guard_context: GuardContext, cls: Any, name: str) -> Any:
    """What `cls.name` is: mostly a static method, but a class method, or a function, serves too."""
    method = guard_context.lookup(cls, name)
    if isinstance(method, classmethod):
        return types.MethodType(method.__func__, cls)
    return method.__func__ if isinstance(method, staticmethod) else method
