"""torch's functions that ask whether a compiler is at work, and those that set ambient state."""

from __future__ import annotations

import functools
import gc
import operator
import sys
import types
import weakref
from typing import Any

import torch
from torch.cpu.amp.autocast_mode import autocast as autocast_of_cpu

from braze.compat import private_names as private
from braze.compat.numpy.wrappers import in_place_of_torch_s

COMPILING: tuple[Any, ...] = (
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
)
# Modules that are told that no compiler is at work.
EAGER_MODULES = ("torch.optim.",)
# Modules whose branches on numbers only compute, and write to tensors: both sides can be made.
BOTH_SIDES = frozenset({"torch.optim.asgd", "torch.optim.radam"})
# An optimizer's step as one kernel of ATen's, and the same step in Python, of the same arguments;
# the second is compiled: it is one kernel, too, and takes a rate that changes.
FUSED_STEPS: dict[Any, Any] = {
    private.fused_adam: private.single_adam,
    private.fused_sgd: private.single_sgd,
    private.fused_adagrad: private.single_adagrad,
}


def _unhooked(step: Any) -> object:
    """An optimizer's step as its class defines it: making one wraps it once, for profiles."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


# Steps of optimizers in which data decides what is done next, all the way.
DATA_DEPENDENT_STEPS: tuple[Any, ...] = (
    _unhooked(torch.optim.LBFGS.step),
    _unhooked(torch.optim.SparseAdam.step),
)
EXPORTING: tuple[Any, ...] = (torch.compiler.is_exporting,)
NOT_TRACING: tuple[Any, ...] = (
    *operator.attrgetter("is_scripting", "is_tracing")(torch.jit),  # which it does not export
    private.is_jit_tracing,
)
# How many dispatch modes are active: the program's own, of which a compiled entry needs none.
NO_MODES: tuple[Any, ...] = (private.dispatch_mode_count,)
NOTHING: tuple[Any, ...] = (
    private.jit_trace,
    private.innermost_dispatch_mode,  # ours is no business of a program's
    private.log_api_usage,
)
# The code that all functions share which `torch._disable_dynamo` wrapped; what it wraps is asked
# for instead, since it is Braze that compiles.
SEE_THROUGH_CODES = frozenset({private.disable_dynamo(lambda: None).__code__})
AMBIENT_MANAGERS: tuple[type, ...] = (
    torch.no_grad,
    torch.enable_grad,
    torch.set_grad_enabled,
    torch.inference_mode,
    torch.amp.autocast,
    autocast_of_cpu,
    torch.cuda.amp.autocast,
    private.disabled_torch_functions,
)

# `setup_context` of an autograd function that has none of its own.
_PLAIN_FUNCTION: Any = private.FUNCTION_BASE
PLAIN_SETUP_CONTEXT: Any = _PLAIN_FUNCTION.setup_context
# What the method of the backward may be called, and what stands there where it has no own.
BACKWARD_NAMES = ("vjp", "backward")
PLAIN_BACKWARD: tuple[Any, ...] = (_PLAIN_FUNCTION.vjp, _PLAIN_FUNCTION.backward)
# What autograd's node, which is the `ctx` of a function, has by itself.
OF_NODES = frozenset(dir(torch.autograd.function.BackwardCFunction)) - frozenset(dir(object))
OF_NODES |= {"_autograd_function_id", "_forward_cls"}  # of each one's own class
# The code of every backward under `once_differentiable`.
ONCE_DIFFERENTIABLE: types.CodeType = torch.autograd.function.once_differentiable(
    lambda ctx: None
).__code__
# Context managers that only label a stretch of a profile.
LABELS: tuple[type, ...] = (torch.profiler.record_function,)

_COMPILER_PACKAGE = "torch._dynamo"
# Its guards in C++ are told so that a module has ended.
_CALLBACK_OF_GUARDS = "_guard_manager_gc_callback"
# Dictionaries with weak keys, and the modules of what keeps some for each trace.
_WEAK_KEYS = "torch.utils.weak"
_OF_TRACES = ("torch._subclasses.", "torch._guards")
# What asks for an export, by module and name: to have it at hand, 2 MiB would have to be imported.
_EXPORT_QUESTIONS = frozenset({("torch.onnx", "is_in_onnx_export")})
# Functions of torch's own compiler, by name, that a program may call: what they answer here.
COMPILER_ANSWERS: dict[str, Any] = {
    "is_compiling": True,
    "is_dynamo_supported": True,
    "is_in_onnx_export": False,
    "mark_dynamic": None,
    "maybe_mark_dynamic": None,
    "mark_static": None,
    "mark_static_address": None,
    "mark_unbacked": None,
    "reset": None,
}
_MAKES_SETTINGS = "wrap_dunder_call_ctx_manager"  # the managers' `__call__`
_UNDER_SETTINGS = f"{_MAKES_SETTINGS}.<locals>.inner"
# Functions that torch's own compiler puts in the place of others once it has been used in the
# process, for its own bookkeeping: the free variable that holds what they stand for.
_WRAPPED_BY_COMPILER: dict[str, str] = {
    "patched_init": "init",
    "patched_setstate": "setstate",
    # A function under settings of that compiler's own (exported programs check their inputs so).
    _UNDER_SETTINGS: "func",
}


# A setting of torch's own compiler, and where it is kept once that is loaded.
_ERROR_ON_BREAK, _ITS_MODULE = "_error_on_graph_break", "torch._dynamo.utils"
_STANCE_MODULE = "torch._dynamo.eval_frame"
# The manager of that setting has what it says under this name.
_SAYS = "error_on_graph_break"
# What torch's nonstrict_trace makes of a function.
_NONSTRICT = "nonstrict_trace.<locals>.wrapped"
# What torch.compiler.assume_constant_result leaves on a function.
_CONSTANT_MARK = "_dynamo_marked_constant"
# What torch.compile's and torch.compiler.disable's wrappers carry.
_WRAPPED = "_torchdynamo_orig_callable"
_DISABLED = "_torchdynamo_disable"


# Where TorchScript keeps the Python function that it compiled; and its operators that fill a tensor
# which they made, and so cannot run where tensors have no data.
_SCRIPTED = "_torchdynamo_inline"
_FILLING = ("aten::tensor", "aten::as_tensor")


def python_of_script(script: Any) -> types.FunctionType | None:
    """The Python function behind a scripted one that TorchScript's interpreter cannot run on
    fake tensors; None where it can."""
    python = getattr(script, _SCRIPTED, None)
    if type(python) is not types.FunctionType:
        return None
    graph = script.inlined_graph
    return python if any(graph.findAllNodes(kind) for kind in _FILLING) else None


def is_optimizer(space: dict[str, Any]) -> bool:
    """Whether a module's globals are those of one of torch's optimizers."""
    return (space.get("__name__") or "").startswith(EAGER_MODULES)


def is_compiler_function(function: Any) -> bool:
    """Whether a function's code belongs to torch's own compiler or exporter (which may be loaded,
    or not); a wrapper's does, whatever it wraps."""
    module = getattr(function, "__globals__", {}).get("__name__") or ""
    if _is_of_compiler(module):
        return True
    return bool(module) and (module, function.__name__) in _EXPORT_QUESTIONS


def _is_of_compiler(module: str) -> bool:
    return module == _COMPILER_PACKAGE or module.startswith(_COMPILER_PACKAGE + ".")


def replaced_by_compiler(function: Any) -> object:
    """What a function of torch's own compiler stands in for, such as `nn.Module.__init__`; None
    where it stands for nothing."""
    if is_disabled_by_torch(function):
        original = function.__dict__.get(_WRAPPED)
        module = getattr(original, "__module__", None) or ""
        # It leaves out parts of its own optimizers: no wish of the program's.
        return original if module.startswith("torch.optim") else None
    wrapped = in_place_of_torch_s(function)
    if wrapped is not None:
        return wrapped
    qualified = function.__code__.co_qualname
    key = qualified if qualified == _UNDER_SETTINGS else function.__name__
    name = _WRAPPED_BY_COMPILER.get(key)
    if name is None or name not in function.__code__.co_freevars:
        return None
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def original_of(value: object) -> object:
    """The value, or what it stands in for, if torch's own compiler made it: once for a class, and
    once more for one that inherits from it."""
    while type(value) is types.FunctionType and is_compiler_function(value):
        original = replaced_by_compiler(value)
        if original is None:
            break
        value = original
    return value


def is_callback_of_compiler(callback: object) -> bool:
    """Whether torch's own compiler is told by this callback of a weak reference that an object of
    the program's, or a function of torch's, has ended: it drops what it compiled for that."""
    if type(callback) is weakref.finalize:
        alive = callback.peek()
        if alive is None:
            return True  # it was called, and does nothing any more
        callback = alive[1]
    if type(callback) is functools.partial:
        callback = callback.func
    if type(callback) is types.MethodType:
        callback = type(callback.__self__)
    if getattr(callback, "__name__", None) == _CALLBACK_OF_GUARDS:
        return True
    module = getattr(callback, "__module__", None) or ""
    return _is_of_compiler(module) or (module == _WEAK_KEYS and _is_of_trace(callback))


def _is_of_trace(callback: Any) -> bool:
    """Whether a weak dictionary of torch's is told, from which nobody learns that a tensor ended:
    it has ended itself, or a trace of torch's own compiler keeps its notes in it."""
    reference = next(iter(callback.__defaults__ or ()), None)
    if type(reference) is not weakref.ref:
        return False
    told = reference()
    if told is None:
        return True
    holders = gc.get_referrers(told)
    spaces = [holder for holder in holders if type(holder) is dict]  # of attributes, among others
    holders += gc.get_referrers(*spaces) if spaces else []
    return any(type(holder).__module__.startswith(_OF_TRACES) for holder in holders)


def says_breaks_are_errors() -> bool:
    """Whether the program is in a region of torch's own compiler in which breaks are errors."""
    return bool(getattr(sys.modules.get(_ITS_MODULE), _ERROR_ON_BREAK, False))


def stance_of_compiler() -> tuple[str, Any]:
    """The stance of torch's own compiler, and the backend that it forces: the default, where that
    compiler is not loaded."""
    stance = getattr(sys.modules.get(_STANCE_MODULE), "_stance", None)
    return getattr(stance, "stance", "default"), getattr(stance, "backend", None)


def is_settings_method(function: types.FunctionType, args: tuple[object, ...]) -> bool:
    """Whether a call enters or leaves a manager of settings of torch's own compiler."""
    if function.__name__ not in ("__enter__", "__exit__") or not args:
        return False
    call = getattr(type(args[0]), "__call__", None)  # noqa: B004 - it is not asked if it is one
    return call is not None and getattr(call, "__name__", None) == _MAKES_SETTINGS


def is_region(manager: object) -> bool:
    """Whether a manager of settings says whether breaks are errors."""
    return hasattr(manager, _SAYS)


def region_of_compiler(function: types.FunctionType) -> tuple[bool, object] | None:
    """(whether breaks are errors in it, the program's function) of what the manager of such regions
    made of a function, as its decorator; None for any other function."""
    code = function.__code__
    if code.co_qualname != _UNDER_SETTINGS or "self" not in code.co_freevars:
        return None
    held = {
        name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__ or ())
    }
    flag = getattr(held["self"], _SAYS, None)
    return None if flag is None else (bool(flag), held[_WRAPPED_BY_COMPILER[_UNDER_SETTINGS]])


def traced_whole(function: types.FunctionType) -> Any:
    """The program's function behind what torch's nonstrict_trace made of it; None for another."""
    is_made = function.__code__.co_qualname == _NONSTRICT
    return function.__dict__.get("__wrapped__") if is_made else None


def is_torch_constant(function: object) -> bool:
    """Whether torch.compiler.assume_constant_result marked a Python function."""
    return type(function) is types.FunctionType and _CONSTANT_MARK in function.__dict__


def is_skipped_by_torch(function: object) -> bool:
    """Whether `torch._dynamo.decorators.skip` marked a function of the program: its own operators
    run eagerly, and what it calls is compiled."""
    if type(function) is not types.FunctionType or _DISABLED not in function.__dict__:
        return False
    return not (function.__globals__.get("__name__") or "").startswith("torch.")


def is_disabled_by_torch(function: object) -> bool:
    """Whether a function is what torch.compiler.disable made."""
    return is_compiler_function(function) and _DISABLED in function.__dict__


# Whose functions say `disable()` of what they wrap at each call: the hooks of FSDP2.
_DISABLING_PACKAGE = "torch.distributed."


def disables_what_it_wraps(function: object) -> bool:
    """Whether a function of PyTorch's own has the function that it wraps left out of graphs."""
    if type(function) is not types.FunctionType:
        return False
    code = function.__code__
    module = function.__globals__.get("__name__") or ""
    disables = "disable" in code.co_names and "_dynamo" in code.co_names
    return disables and module.startswith(_DISABLING_PACKAGE)


def compiled_by_torch(function: object) -> object:
    """What torch.compile was given to make this function; None for any other."""
    if not is_compiler_function(function) or _DISABLED in function.__dict__:
        return None
    return function.__dict__.get(_WRAPPED)


def is_data_dependent_step(function: types.FunctionType) -> bool:
    """Whether a function is an optimizer's step in which data decides what is done next, also where
    torch's own compiler, once loaded, put another one in its place."""
    return _unhooked(original_of(function)) in DATA_DEPENDENT_STEPS
