"""`isinstance(tensor, C)`: what each kind of class looks at.

torch.Tensor, a subclass   the tensor's class
torch.FloatTensor          dtype, layout and device: a fake tensor's own dispatch keys differ
nn.Parameter, nn.Buffer    the class, or a mark on the tensor
an abstract class          the tensor's class, which may be registered later
a metaclass in Python      its `__instancecheck__` is interpreted: what it reads is guarded
typing's protocols         the tensor's class, by a tensor of that class
"""

from __future__ import annotations

import abc
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.truth import truth
from braze.compat.python.packages import is_of_package
from braze.compat.python.stdlib import STATE_OF_ABSTRACT
from braze.compat.torch.dispatcher import WithoutMode
from braze.compat.torch.tensor_abi import LEGACY_TYPE
from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import AttributeSource
from braze.tracing.symbolic.speculative_copies import CopySeen, is_lazy
from braze.tracing.wrapper_fake import WrapperFake

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_MARKED = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}


def tensor_is_instance(interpreter: Interpreter, value: object, cls: Any) -> bool:
    """`isinstance(value, cls)` of a fake tensor, as the program sees it."""
    actual = interpreter.guard_context.type_of(value)
    if actual is cls:
        return True
    if type(cls) is LEGACY_TYPE:
        return _is_of_legacy_type(interpreter, value, cls)
    if cls in _MARKED:
        return issubclass(actual, cls) or _is_marked(interpreter, value, _MARKED[cls])
    check = interpreter.guard_context.lookup(type(cls), "__instancecheck__")
    if check is abc.ABCMeta.__instancecheck__:
        note_abstract(interpreter, actual, cls)
    elif type(check) is types.FunctionType and not is_of_package(check.__module__, "torch"):
        if check.__module__ == "typing":
            return _ask_sample(interpreter, value, actual, cls)
        return truth(interpreter, interpreter.call(check, cls, value))
    answer: bool = interpreter.native(issubclass, actual, cls)
    return answer


def note_abstract(interpreter: Interpreter, cls: type, abstract: type) -> None:
    """Guard what an abstract class says of a class that does not derive from it. A question that
    makes CPython call a hook of the program's breaks: what the hook writes would come before what
    the frame wrote earlier."""
    if abstract in type.__dict__["__mro__"].__get__(cls):
        return
    hook = interpreter.guard_context.lookup(abstract, "__subclasshook__")
    is_own = isinstance(hook, classmethod) and not _is_of_python(hook.__func__)
    if is_own and not _is_answer_cached(cls, abstract):
        raise BreakRequested("unseen-python", f"{abstract.__qualname__}.__subclasshook__")
    interpreter.guard_context.guard_abstract(cls, abstract)


def _is_answer_cached(cls: type, abstract: type) -> bool:
    """Whether CPython answers from its caches. It never caches that a class is registered itself,
    and forgets who is no subclass when any class registers another."""
    registered, subclasses, others, version = STATE_OF_ABSTRACT(abstract)
    known = [*subclasses, *(others if version == abc.get_cache_token() else ())]
    is_registered = any(reference() is cls for reference in registered)
    return not is_registered and any(reference() is cls for reference in known)


def _is_of_python(function: object) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module != "__main__" and module.partition(".")[0] in sys.stdlib_module_names


def _is_of_legacy_type(interpreter: Interpreter, value: Any, cls: Any) -> bool:
    if is_lazy(value):  # one with its negative bit set is of none of them
        raise CopySeen
    device = value.device.type
    if device not in ("cpu", "cuda"):
        raise BreakRequested("unsupported-tensor", f"a tensor on {device} and {cls.__name__}")
    same = value.dtype is cls.dtype and value.layout is cls.layout
    return same and cls.is_cuda is (device == "cuda")


def _is_marked(interpreter: Interpreter, value: Any, mark: str) -> bool:
    """Whether a tensor of another class says that it is a parameter, as those of subclasses do."""
    guard_context = interpreter.guard_context
    if guard_context.lookup(guard_context.type_of(value), mark) is not ABSENT:
        raise BreakRequested("unsupported-attribute", f"{mark} of a class of tensors")
    real = interpreter.tracer.real_of(value)
    if type(value) is WrapperFake:
        if mark in value.attributes:
            return bool(value.attributes[mark])
        real = value.real
    if real is None:
        return False
    key = (id(value), mark)
    if key not in guard_context.reads:
        source = guard_context.known[id(value)][1]
        if mark in real.__dict__:
            guard_context.reads[key] = guard_context.wrap_value(
                real.__dict__[mark], AttributeSource(source, mark)
            )
        else:
            guard_context.guard(source, GuardKind.HAS_ATTRIBUTE, (mark, False))
            guard_context.reads[key] = False
    return truth(interpreter, guard_context.reads[key])


def _ask_sample(interpreter: Interpreter, value: Any, actual: type, cls: object) -> bool:
    """Protocols ask the object itself for their members: a tensor that has none of its own."""
    real = interpreter.tracer.real_of(value)
    if actual not in (torch.Tensor, torch.nn.Parameter) or getattr(real, "__dict__", None):
        raise BreakRequested("unsupported-tensor", f"a {actual.__qualname__} and a typing class")
    with WithoutMode(interpreter.tracer):
        sample = actual(torch.empty(0, device="cpu"))
    answer: bool = interpreter.native(isinstance, sample, cls)
    if not answer and real is not None:  # another call's tensor may have the member
        raise BreakRequested("unsupported-tensor", "an input that a protocol asks for a member")
    return answer
