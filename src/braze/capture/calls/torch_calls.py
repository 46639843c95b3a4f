"""Calls of torch, really made on fake tensors under the tracer, and noted at the torch level."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.calls.torch_arguments import torch_argument
from braze.capture.calls.torch_function import call_overriding, check_overrides
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import CONSTANTS, NUMBERS, TENSORS, raw_lookup
from braze.capture.state.opaque_objects import check_opaque, only_keeps
from braze.capture.state.string_escape import settle_read
from braze.capture.tensors.fake_tensor_queries import check_answer, check_foreign, check_question
from braze.capture.tensors.subclasses import PLAIN_RESULTS, of_class, result_class
from braze.compat import private_names as private
from braze.compat.python.frames import Caller, call_from
from braze.compat.torch.dispatcher import COMPOSES_IN_NUMBERS, symbolic_dispatch
from braze.compat.torch.functorch import TANGENT_FUNCTIONS
from braze.errors import CaptureError
from braze.ir.captured.frame import TorchCall
from braze.ir.captured.guard import ABSENT
from braze.ir.graphs.graph import Value, values_in
from braze.shapes.data_symbols import Undecidable
from braze.shapes.symbolic import SymbolicSize, plain_size, program_value
from braze.tracing import DataDependent, UnknownTensor, Untraceable, reads_data
from braze.tracing.fake_tensor import Place, TracedTensor
from braze.tracing.python_decompositions import IN_PYTHON
from braze.tracing.symbolic.speculative_copies import CopySeen, check_call, check_lazy, note_inner
from braze.tracing.symbolic.symbolic_float import SymbolicFloat
from braze.tracing.wrapper_fake import holds_wrapper

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext
    from braze.tracing.tracer import Tracer


def leaf_call(
    interpreter: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function of torch's on fake tensors; note it, unless a transform has wrapped
    tensors."""
    if interpreter.frames and interpreter.frames[-1].runs_eagerly:
        raise _disabled(interpreter, function)
    if interpreter.guard_context.opaque:
        check_opaque(interpreter, function, args, kwargs)
    if interpreter.guard_context.has_overrides:
        found = call_overriding(interpreter, function, args, kwargs)
        if found is not None:
            return found[0]
    if not _PASSED.issuperset(map(type, args)):
        args = _passed(interpreter, function, args)
    if interpreter.tracer.intercept is not None and holds_wrapper((args, kwargs)):
        return _call_on_wrappers(interpreter, function, args, kwargs)
    if kwargs:
        check_overrides(interpreter, call_name(function), kwargs.values())
        if kwargs.get("requires_grad"):
            rest = {name: value for name, value in kwargs.items() if name != "requires_grad"}
            return begin_leaf(interpreter, leaf_call(interpreter, function, args, rest), True)
        kwargs = {name: torch_argument(interpreter, value) for name, value in kwargs.items()}
    check_question(function, args, kwargs)
    if function in TANGENT_FUNCTIONS and interpreter.request.is_transformed:
        outside = "where tangents may be those of a level around the call"
        raise BreakRequested("unsupported-tensor", f"{call_name(function)}, {outside}")
    if function in _METHODS:
        _check_methods(interpreter.guard_context, _METHODS[function], args)
    if interpreter.shows_text or interpreter.arrays.in_use:
        _check_read(interpreter, function, args, kwargs)
    name = call_name(function)
    origin = interpreter.tracer.origin = interpreter.origin(name)
    facts = interpreter.guard_context.sizes.facts
    if interpreter.tracer.has_lazy:
        check_lazy(name, (*args, *kwargs.values()))
    if interpreter.transforms:
        if facts is not None and facts.free_copies:
            raise CopySeen  # the tensors are wrapped: which one is looked at is not seen
        result = traced(function, args, kwargs, interpreter.callers.seen_by(function))
        check_answer(function, args, kwargs, result, wrapped=True)
        return result
    subclass = (
        result_class(interpreter, args, kwargs)
        if interpreter.guard_context.has_subclasses and function not in PLAIN_RESULTS
        else None
    )
    note = interpreter.tensor_names.noted
    noted_args = note(args)
    noted_kwargs = tuple([(key, note(value)) for key, value in kwargs.items()])
    state = interpreter.state_of_call()
    recorder = interpreter.tracer.recorder
    before = recorder.progress
    callers = interpreter.callers.seen_by(function)
    outs = _outs(kwargs["out"]) if "out" in kwargs else ()
    if facts is None or not COMPOSES_IN_NUMBERS or function in IN_PYTHON:
        result = traced(IN_PYTHON.get(function, function), args, kwargs, callers)
    else:
        with symbolic_dispatch(function):
            result = traced(function, args, kwargs, callers)
    if outs and any(x.place is place and writes == _writes_to(x) for x, place, writes in outs):
        # Composed in C++ that writes to memory without an operator that says so.
        raise BreakRequested("unsupported-tensor", f"{name} writes to out= unseen")
    if interpreter.tracer.new_lazy:
        note_inner(interpreter.tracer.new_lazy, (*args, *kwargs.values()))
    did_nothing = recorder.progress == before
    if type(result) is not TracedTensor:
        check_answer(function, args, kwargs, result, wrapped=False)
    if facts is not None and facts.free_copies:
        check_call(facts.free_copies, name, (*args, *kwargs.values()), result, did_nothing)
    noted_result = note(result, True)
    if not did_nothing or values_in(noted_result):
        target = _target(interpreter.guard_context, function, args)
        if args and type(args[-1]) is torch.Size and not kwargs and _is_legacy(function):
            target, noted_kwargs = _of_size(target, result)
        interpreter.calls.append(
            TorchCall(target, noted_args, noted_kwargs, noted_result, origin, *state)
        )
    return result if subclass is None else of_class(interpreter, result, subclass, args)


def _call_on_wrappers(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Call a function of torch's on wrapper subclasses, whose code the tracer has interpreted."""
    check_question(function, args, kwargs)
    name = call_name(function)
    if interpreter.request.is_foreign or interpreter.transforms:
        where = "a transform" if interpreter.transforms else "a graph for another backend"
        raise BreakRequested("unsupported-tensor", f"{name} of a tensor subclass in {where}")
    kwargs = {key: torch_argument(interpreter, value) for key, value in kwargs.items()}
    interpreter.tracer.origin = interpreter.origin(name)
    if torch.is_grad_enabled() and needs_gradient((args, kwargs)):
        return interpreter.call_with_gradient(function, args, kwargs)
    result = traced(function, args, kwargs, interpreter.callers.seen_by(function))
    check_answer(function, args, kwargs, result, wrapped=False)
    return result


def needs_gradient(value: Any) -> bool:
    """Whether a tensor among call arguments needs a gradient."""
    cls = type(value)
    if cls is list or cls is tuple:
        return any(map(needs_gradient, value))
    if cls is dict:
        return any(map(needs_gradient, value.values()))
    return cls in TENSORS and bool(value.requires_grad)


def _check_read(interpreter: Interpreter, function: object, args: object, kwargs: object) -> None:
    """Settle texts that a function of torch's reads; break before it is given an array."""
    if interpreter.arrays.in_use:
        _check_arrays((args, kwargs))
    if interpreter.shows_text:
        traced(settle_read, (function, args, kwargs), {})


def _check_arrays(value: Any) -> None:
    """Break before a function of torch's is given an array."""
    cls = type(value)
    if cls is FakeArray:
        raise BreakRequested("numpy", "an array among the arguments of a function of torch's")
    if cls is tuple or cls is list:
        for item in value:
            _check_arrays(item)
    elif cls is dict:
        _check_arrays(tuple(value.values()))
    elif cls is slice:
        _check_arrays((value.start, value.stop, value.step))


def _disabled(interpreter: Interpreter, function: object) -> BreakRequested:
    why = "; debug_function names another" if interpreter.request.leaves_out else ""
    place = interpreter.frames[-1].code.co_qualname
    return BreakRequested("disabled", f"{call_name(function)} in {place}{why}")


def _check_methods(
    guard_context: GuardContext, names: tuple[str, ...], args: tuple[object, ...]
) -> None:
    for name in names:
        if name not in guard_context.originals:
            check_original(guard_context, name)
    classes = guard_context.classes_of
    for arg in args:
        cls = classes.get(id(arg), torch.Tensor)
        if cls is not torch.Tensor and (cls, names) not in guard_context.inherited:
            for name in names:
                _check_inherited(guard_context, cls, name)
            guard_context.inherited.add((cls, names))


def check_original(guard_context: GuardContext, name: str, tensor: object = None) -> None:
    """Guard that the program has not replaced what tensors have under a name, nor what the class of
    this one has, and break where it has: what is answered without asking the class is answered as
    PyTorch's own would be."""
    if name not in guard_context.originals:
        if guard_context.lookup(torch.Tensor, name) is not _ORIGINALS.get(name, ABSENT):
            raise BreakRequested("unsupported-tensor", f"Tensor.{name}, which the program replaced")
        guard_context.originals.add(name)
    cls = guard_context.classes_of.get(id(tensor), torch.Tensor)
    if cls is not torch.Tensor:
        _check_inherited(guard_context, cls, name)
    guard_context.inherited.add((cls, name))


def _check_inherited(guard_context: GuardContext, cls: type, name: str) -> None:
    """Guard that a subclass has what tensors have under a name, and break where it has its own."""
    if not has_original(guard_context, cls, name):
        raise BreakRequested("unsupported-tensor", f"{cls.__qualname__}.{name}, which it defines")


def check_protocols(guard_context: GuardContext, values: Iterable[object]) -> None:
    """Break where C code gets a tensor, or a list of some, whose class has special methods of its
    own, which such code asks for items, a length, truth or order."""
    for value in values:
        items = value if type(value) is list or type(value) is tuple else (value,)
        for value in filter(lambda item: type(item) in TENSORS, items):
            cls = guard_context.classes_of.get(id(value), torch.Tensor)
            if cls is not torch.Tensor and (cls, _PROTOCOLS) not in guard_context.inherited:
                for name in _PROTOCOLS:
                    _check_inherited(guard_context, cls, name)
                guard_context.inherited.add((cls, _PROTOCOLS))


def has_original(guard_context: GuardContext, cls: type, name: str) -> bool:
    """Whether a class of tensors has under a name what PyTorch gave it. Guarded."""
    originals = _ORIGINALS_OF.get(cls, _ORIGINALS)
    return guard_context.lookup(cls, name) is originals.get(name, ABSENT)


def _originals(cls: type) -> dict[str, object]:
    return {name: raw_lookup(cls, name) for name in dir(cls)}


_ORIGINALS = _originals(torch.Tensor)
_ORIGINALS_OF: dict[type, dict[str, Any]] = {
    cls: _originals(cls) for cls in (torch.nn.Parameter, torch.nn.Buffer)
}


_PROTOCOLS = (
    *("__iter__", "__reversed__", "__getitem__", "__len__", "__contains__", "unbind"),
    *("__bool__", "__int__", "__index__", "__float__", "__complex__", "__hash__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
_REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _methods() -> Iterator[tuple[object, tuple[str, ...]]]:
    for name in dir(operator):
        plain = name.strip("_")
        methods = [f"__{form}__" for form in (plain, _REFLECTED.get(plain, f"r{plain}"))]
        if methods[0] in _ORIGINALS and callable(function := getattr(operator, name)):
            yield function, tuple([method for method in methods if method in _ORIGINALS])


# What a call looks up on the class of its arguments: the special methods of Python's operators, and
# the one function whose C code hands `__torch_function__` the class's own.
_METHODS: dict[Any, tuple[str, ...]] = {
    **dict(_methods()),
    torch.Tensor.is_contiguous: ("is_contiguous",),
}


def _passed(
    interpreter: Interpreter, function: object, args: tuple[object, ...]
) -> tuple[Any, ...]:
    """The arguments of a torch function as it takes them."""
    check_overrides(interpreter, call_name(function), args)
    return tuple(
        [arg if type(arg) in _PASSED else torch_argument(interpreter, arg) for arg in args]
    )


_PASSED = CONSTANTS | TENSORS  # by leaf_call, as they are
_NOTED = CONSTANTS - {SymbolicFloat}  # as they are


@final
class TensorNames:
    """How TorchCalls name tensor objects: by the value that each held when first named."""

    def __init__(self, tracer: Tracer) -> None:
        self._value_of = tracer.value_of
        self._new_value = tracer.recorder.new_value
        self._taken: set[Value] = set()
        self._names: dict[int, tuple[Any, Value, int]] = {}

    def name(self, fake: Any, is_result: bool = False) -> Value:
        """The name of a fake tensor. is_result: the call that is noted made it."""
        entry = self._names.get(id(fake))
        if entry is None:
            value = self._value_of(fake)
            if value in self._taken:  # a view of all of a tensor is a tensor object of its own
                value = self._new_value(value.type)
            self._taken.add(value)
            # No call made it: where its memory was written to, its value is not that memory.
            version = _writes_to(fake) if is_result else 0
            entry = self._names[id(fake)] = (fake, value, version)
        return entry[1]

    def rename(self, fake: object, other: object) -> None:
        """From now on a fake tensor is named as another one, whose memory it was given."""
        name = self.name(other)
        self._names[id(fake)] = (fake, name, _writes_to(other))

    def written(self) -> frozenset[Value]:
        """The names of fake tensors whose memory was written to after they were named, or before if
        no
        call made them."""
        entries = self._names.values()
        return frozenset([name for s, name, version in entries if _writes_to(s) != version])

    def of_result(self, fake: Any) -> Value | None:
        """The name of a fake tensor that leaves the frame; None where its value says all."""
        if id(fake) in self._names or (fake.place.base is not None and _writes_to(fake)):
            return self.name(fake)
        return None

    def noted(self, value: Any, is_result: bool = False) -> Any:
        """A value as a TorchCall holds it."""
        cls = type(value)
        if cls is TracedTensor:
            return self.name(value, is_result)
        if cls is SymbolicFloat:
            return value.example()
        if cls in CONSTANTS:
            return value
        if cls is tuple or cls is list:
            if _NOTED.issuperset(map(type, value)):
                return cls(value)
            noted = self.noted
            return cls([v if type(v) in _NOTED else noted(v, is_result) for v in value])
        if cls is dict:
            return {key: self.noted(item, is_result) for key, item in value.items()}
        if cls is slice:
            return slice(*[self.noted(v, is_result) for v in (value.start, value.stop, value.step)])
        if issubclass(type(value), tuple):
            return tuple([self.noted(item, is_result) for item in value])
        return value

    def knows(self, fake: object) -> bool:
        """Whether a call was noted that takes the fake tensor or gave it."""
        return id(fake) in self._names

    def release(self) -> None:
        """Let go of the fake tensors."""
        self._names.clear()


def _outs(given: object) -> list[tuple[TracedTensor, Place, int]]:
    """The fake tensors with elements that `out=` names, their places, and how often these have been
    written to."""
    each = given if isinstance(given, (tuple, list)) else (given,)
    fakes = [fake for fake in each if type(fake) is TracedTensor]
    return [(x, x.place, _writes_to(x)) for x in fakes if 0 not in x.place.type.shape]


def _writes_to(fake: Any) -> int:
    """How often the memory of a fake tensor has been written to so far."""
    place = fake.place
    return int((place.base or place).version)


def unnoted_call(
    interpreter: Interpreter,
    function: Any,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    guard: Callable[..., object] | None = None,
) -> Any:
    """Call C code that is not torch's on values among which are fake tensors. guard: what runs it,
    given the function, its arguments and its keywords."""
    check_foreign(function, args)
    if not only_keeps(function):
        if interpreter.guard_context.opaque:
            check_opaque(interpreter, function, args, kwargs)
        check_overrides(interpreter, call_name(function), args)
    if interpreter.shows_text:
        traced(settle_read, (function, args, kwargs), {})
    interpreter.tracer.origin = interpreter.origin(call_name(function))
    if guard is not None:
        return traced(guard, (function, args, kwargs), {})
    return traced(function, args, kwargs)


def traced(
    function: Any,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    callers: Sequence[Caller] = (),
) -> Any:
    """Call real code on fake tensors: what cannot be traced breaks, other errors are the program's.
    callers: in whose name it warns, innermost first."""
    try:
        return as_seen(call_from(callers, function, *args, **kwargs))
    except DataDependent as request:
        raise BreakRequested("data-dependent-value", str(request)) from None
    except Undecidable as request:
        raise BreakRequested("data-dependent-size", str(request)) from None
    except (Untraceable, UnknownTensor) as request:
        raise BreakRequested("unsupported-tensor", f"{call_name(function)}: {request}") from None
    except CaptureError:
        raise
    except Exception as exception:
        if _is_own_fault(exception):
            raise
        _ask_views(args)  # it may be what autograd has against a view
        if reads_data(exception):
            detail = f"{call_name(function)} reads its memory"
            raise BreakRequested("data-dependent-value", detail) from None
        raise program_raised(exception, call_name(function)) from None


# No rule raises these as eager does: out of Braze's own code they are faults of it, and the program
# must not catch them.
_FAULTS = (AttributeError, KeyError, NameError, AssertionError)
_OWN_FILES = str(Path(__file__).parents[2])
# What calls C code is there last where that code raises.
Called = TypeVar("Called", bound=Callable[..., Any])
_CALLING_CODE = {traced.__code__, call_from.__code__}


def calls_the_program(function: Called) -> Called:
    """Mark a function of Braze's that calls C code in the program's place: what comes out of it is
    the program's exception, none of Braze's."""
    assert isinstance(function, types.FunctionType)
    _CALLING_CODE.add(function.__code__)
    return function


def _is_own_fault(exception: Exception) -> bool:
    trace = exception.__traceback__
    if not isinstance(exception, _FAULTS) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return code.co_filename.startswith(_OWN_FILES) and code not in _CALLING_CODE


# What C++ says where it was not written for symbols.
_TAKES_NUMBERS = "on tensor with symbolic sizes/strides"


def ask_view(tensor: Any) -> None:
    """The program depends on what kind of view the tensor is whose memory a fake tensor names."""
    (tensor.place.base or tensor.place).asks_view = True


def _ask_views(args: tuple[Any, ...]) -> None:
    for argument in args:
        for part in argument if type(argument) in (list, tuple) else (argument,):
            if type(part) is TracedTensor:
                ask_view(part)


_NAME = TracedTensor.__name__
# Classes that stand for others -> what errors call those.
_NAMES = {_NAME: "Tensor", **{cls.__name__: seen.__name__ for cls, seen in NUMBERS.items()}}
_SIZES = frozenset({torch.SymInt, SymbolicSize})


def as_seen(result: Any) -> object:
    """What native code gave, as the program sees it: sizes that C++ wrapped are the program's. A
    text that shows a fake tensor breaks."""
    cls = type(result)
    if cls is str and _NAME in result:
        raise BreakRequested("data-dependent-value", "the text of a tensor")
    if cls is torch.SymFloat:
        return result.node
    if cls is torch.SymInt or cls is SymbolicSize:
        return program_value(plain_size(result))
    if (cls is tuple or cls is torch.Size) and not _SIZES.isdisjoint(map(type, result)):
        return cls([as_seen(n) for n in result])
    return result


def program_raised(exception: BaseException, name: str) -> ProgramRaised:
    """An exception that native code raised, its message as eager would have it, and its traceback
    without the frames of capture. One that eager never raises breaks. name: of the code."""
    exception.__traceback__ = None
    if _TAKES_NUMBERS in str(exception):
        raise BreakRequested("unsupported-tensor", f"{name} takes sizes as numbers")
    texts = [arg for arg in exception.args if type(arg) is str]
    if any(f"{_NAME}(" in text for text in texts):
        raise BreakRequested("data-dependent-value", "the text of a tensor in an error")
    if any(name in text for text in texts for name in _NAMES):
        exception.args = tuple(
            [_as_named(arg) if type(arg) is str else arg for arg in exception.args]
        )
    return ProgramRaised(exception)


def _as_named(text: str) -> str:
    for name, seen_as in _NAMES.items():
        text = text.replace(name, seen_as)
    return text


def begin_leaf(interpreter: Interpreter, tensor: Any, requires_grad: bool) -> object:
    """Let a tensor made in this frame need gradients from now on, or not."""
    unnoted_call(interpreter, torch.Tensor.requires_grad_, (tensor, requires_grad), {})
    tensor.place.tracks_gradient = False
    tensor.place.new_leaf = requires_grad
    interpreter.guard_context.new_leaves[id(tensor)] = tensor
    return tensor


def call_name(function: object) -> str:
    """The torch-level name of a callable, as a user writes it."""
    name = getattr(function, "__name__", None) or type(function).__name__
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return f"Tensor.{name}" if issubclass(owner, private.TensorBase) else name
    module = getattr(function, "__module__", None) or ""
    if module in ("torch._C._nn", "torch._C._VariableFunctions"):
        module = "torch"
    return f"{module}.{name}" if module else name


def _target(guard_context: GuardContext, function: Any, args: tuple[object, ...]) -> object:
    """What a graph calls: a method by its name, where the tensor's class finds this one."""
    owner = getattr(function, "__objclass__", None)
    if owner is None or not issubclass(owner, private.TensorBase):
        return function
    if guard_context.has_subclasses and args:
        cls = guard_context.type_of(args[0])
        if not has_original(guard_context, cls, function.__name__):
            return function
    return function.__name__


def _is_legacy(function: object) -> bool:
    """Whether a call makes a tensor of a `torch.Size`, and of the elements that a tuple holds."""
    return function in (torch.Tensor, torch.Tensor.new) or type(function) is _LEGACY


_LEGACY: Any = type(torch.FloatTensor)


def _of_size(target: object, made: torch.Tensor) -> tuple[object, tuple[tuple[str, object], ...]]:
    """The target and keywords that say a legacy call of a size: a graph's text has tuples only."""
    if target == "new":
        return "new_empty", ()
    return torch.empty, (("dtype", made.dtype), ("device", made.device))
