"""Answers of capture to torch's questions about compilers, and to its ambient settings."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint

from braze.capture.calls.deferred_calls import call_later
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_function import ask_overriding, is_overridden
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.attribute_load import load_attribute
from braze.capture.state.guard_context import TENSORS
from braze.capture.state.inference_region import enter_inference, leave_inference
from braze.capture.training.checkpointing import (
    call_checkpointed,
    check_options,
    leave_refusing,
    note_checkpoint,
)
from braze.compat.torch.ambient_state import LIBRARY_SETTERS, SET_DETERMINISTIC, call_untraced
from braze.compat.torch.dynamo_interop import (
    AMBIENT_MANAGERS,
    COMPILING,
    EXPORTING,
    LABELS,
    NO_MODES,
    NOT_TRACING,
    NOTHING,
    is_optimizer,
)
from braze.compat.torch.nn_modules import MODULE_CALL
from braze.labels import OPEN_LABELS, Label
from braze.marks import is_exporting
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.symbolic.speculative_copies import CopySeen, is_free, is_lazy

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _constant(value: object) -> Callable[..., object]:
    def answer(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return value

    return answer


@answers(*COMPILING)
def is_compiling(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Yes; but a module's call asks whether to leave out the hooks that an exception calls, and
    `torch.optim` is taken as eager runs it: it computes bias corrections on numbers of double
    precision, and for a compiler on tensors of single."""
    frame = interpreter.frames[-1]
    if is_optimizer(frame.globals):
        return False
    return frame.function is not MODULE_CALL


@answers(*EXPORTING, is_exporting)
def asks_exporting(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Whether the program is exported. PyTorch's own modules are captured as they run."""
    caller = str(interpreter.frames[-1].globals.get("__name__")).partition(".")[0]
    return interpreter.request.is_exporting and caller != "torch"


for _functions, _value in ((NOT_TRACING, False), (NOTHING, None), (NO_MODES, 0)):
    for _function in _functions:
        answers(_function)(_constant(_value))


def _asks_overrides(function: Any) -> Callable[..., object]:
    """Whether one of the arguments is of a class that torch functions ask. PyTorch's own code is
    captured as for plain tensors, whose results capture gives the class."""

    def answer(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if interpreter.guard_context.has_overrides and is_overridden(interpreter, args):
            return True
        if str(interpreter.frames[-1].globals.get("__name__")).partition(".")[0] == "torch":
            return False
        if function is torch.overrides.has_torch_function and type(args[0]) in TENSORS:
            raise BreakRequested("unsupported-tensor", "has_torch_function of a tensor's rows")
        return interpreter.native(function, *[_alike(interpreter, arg) for arg in args])

    return answer


def _alike(interpreter: Interpreter, value: Any) -> object:
    """An argument with an empty tensor of the same class in place of each fake one."""
    if type(value) in TENSORS:
        cls = interpreter.guard_context.type_of(value)
        empty = call_untraced(torch.empty, (0,), {"device": "meta"})
        return call_untraced(torch.Tensor.as_subclass, (empty, cls), {})
    if type(value) in (tuple, list):
        return [_alike(interpreter, item) for item in value]
    interpreter.guard_context.lookup(type(value), "__torch_function__")
    return value


@answers(torch.overrides.handle_torch_function)
def handle_torch_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What the classes of a function's arguments answer."""
    function, _, *values = args
    return ask_overriding(interpreter, function, tuple(values), kwargs)


for _function in (
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
):
    answers(_function)(_asks_overrides(_function))


def _manager(cls: type) -> Callable[..., object]:
    """Context managers of torch's ambient state run for real; capture restores it at the end."""

    def make(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        return interpreter.native(cls, *args, **kwargs)

    return make


def _manager_method(function: Any, enters: bool) -> Callable[..., object]:
    """Methods of a manager made here run for real; one from outside is read and kept back."""

    def run(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        manager, entered = args[0], interpreter.entered
        if interpreter.guard_context.source_of(manager) is not None:
            return interpreter.call_python(function, args, kwargs)
        last = next((n for n in reversed(range(len(entered))) if entered[n] is manager), -1)
        if enters and _changes_inference(manager):
            enter_inference(interpreter, manager)
        if enters:
            entered.append(manager)
            interpreter.entered_at[id(manager)] = interpreter.outer_step
        elif last < 0 and type(manager) is torch.device:
            raise BreakRequested("global-state", "the end of a default device")
        result = interpreter.native(function, *args, **kwargs)
        if not enters and last >= 0:
            del entered[last]
            leave_inference(interpreter, manager)
        return result

    return run


def _changes_inference(manager: Any) -> bool:
    """Whether what is made in a manager is an inference tensor, and outside not, or the reverse: a
    graph runs as a whole in one mode or the other."""
    is_mode = type(manager) is torch.inference_mode
    return is_mode and bool(manager.mode) is not torch.is_inference_mode_enabled()


for _cls in AMBIENT_MANAGERS:
    answers(_cls)(_manager(_cls))
    for _name in ("__enter__", "__exit__"):
        if _name in vars(_cls):
            answers(vars(_cls)[_name])(_manager_method(vars(_cls)[_name], _name == "__enter__"))


for _method in (torch.device.__enter__, torch.device.__exit__):
    answers(_method)(_manager_method(_method, _method is torch.device.__enter__))


def _not_in_a_graph(what: str) -> Callable[..., object]:
    def stop(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        raise BreakRequested("global-state", what)

    return stop


_GLOBAL_STATE: dict[str, tuple[Any, ...]] = {
    "torch.set_default_device()": (torch.set_default_device,),
    "torch.set_default_dtype()": (torch.set_default_dtype,),
    "torch.manual_seed()": (torch.manual_seed, torch.random.manual_seed),
    "torch.seed()": (torch.seed,),
    "how PyTorch's libraries compute": LIBRARY_SETTERS,
    "the state of random numbers": (
        torch.get_rng_state,
        torch.set_rng_state,
        torch.random.fork_rng,
    ),
}
for _what, _functions in _GLOBAL_STATE.items():
    for _function in dict.fromkeys(_functions):
        answers(_function)(_not_in_a_graph(_what))


@answers(torch.use_deterministic_algorithms)
def use_deterministic_algorithms(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Holds from here on; capture puts it back, and the whole call, which also tells a part of
    PyTorch's that eager code may import, is made behind the graph."""
    values = (*args, *kwargs.values())
    if len(args) > 1 or kwargs.keys() - {"mode", "warn_only"} or not _are_flags(values):
        raise BreakRequested("global-state", "torch.use_deterministic_algorithms()")
    interpreter.native(SET_DETERMINISTIC, *args, **kwargs)
    call_later(interpreter, torch.use_deterministic_algorithms, args, kwargs)


def _are_flags(values: tuple[object, ...]) -> bool:
    return all(type(value) is bool for value in values)


@answers(torch.Tensor.storage_offset)
def storage_offset(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> Any:
    """Known of what the frame made; guarded for an input and its views."""
    if args and interpreter.tracer.is_fake(args[0]):
        if is_free(args[0]) or is_lazy(args[0]):
            raise CopySeen
        interpreter.tracer.origin = interpreter.origin("Tensor.storage_offset")
        interpreter.tracer.note_offset(args[0].place)
    return interpreter.native(torch.Tensor.storage_offset, *args, **kwargs)


@answers(*LABELS)
def label(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """What the block computes bears its name. One that is no plain string (a size is in it) would
    be another one at each call: it is not shown."""
    names = [*args[:1], *[value for key, value in kwargs.items() if key == "name"]]
    if [type(name) for name in names] != [str]:
        return contextlib.nullcontext()
    return interpreter.call(Label, *args, **kwargs)


@answers(vars(Label)["__enter__"])
def enter_label(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What is recorded from here on bears the label's name."""
    name = load_attribute(interpreter, args[0], "name")
    interpreter.labels.append(name)
    interpreter.deferred_calls.append((OPEN_LABELS.enter, (name,)))
    return args[0]


@answers(vars(Label)["__exit__"])
def leave_label(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Nothing is left of one that was entered here, where nothing else was put off since."""
    late, labels = interpreter.deferred_calls, interpreter.labels
    entered = (OPEN_LABELS.enter, (labels.pop(),)) if labels else None
    if late and late[-1] == entered:
        late.pop()
    else:
        late.append((OPEN_LABELS.leave, ()))


_CHECKPOINT_OPTIONS = frozenset(
    {
        "use_reentrant",
        "context_fn",
        "determinism_check",
        "debug",
        "preserve_rng_state",
        "early_stop",
    }
)


@answers(torch.utils.checkpoint.checkpoint)
def checkpoint(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What is kept for the backward is decided for the graph as a whole: only the call is made.
    The reentrant kind records no gradients unless an argument needs one, and it has none for
    `torch.autograd.grad`."""
    rest = {name: value for name, value in kwargs.items() if name not in _CHECKPOINT_OPTIONS}
    check_options(kwargs)
    reentrant = kwargs.get("use_reentrant")
    if reentrant is None:
        interpreter.call(warnings.warn, _SAY_WHICH_KIND)
    elif not reentrant:
        return call_checkpointed(interpreter, args, rest, kwargs)
    if rest:
        problem = f"Unexpected keyword arguments: {','.join(rest)}"
        raise ProgramRaised(ValueError(problem))
    if any(type(arg) is TracedTensor and arg.requires_grad for arg in args):
        leave_refusing(interpreter)
        made = call_checkpointed(interpreter, args, {}, kwargs)
        note_checkpoint(interpreter, made)
        return made
    interpreter.call(warnings.warn, _NO_GRADIENTS)
    with torch.no_grad():
        return interpreter.call(*args)


_SAY_WHICH_KIND = (
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. "
    "use_reentrant=False is recommended; without it, it is True."
)
_NO_GRADIENTS = "None of the inputs have requires_grad=True. Gradients will be None"
