"""What programs can ask of torch's modules, generated from `dir()` of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

NAMES = (
    "torch",
    "torch.accelerator",
    "torch.amp",
    "torch.autograd",
    "torch.autograd.forward_ad",
    "torch.autograd.graph",
    "torch.autograd.profiler",
    "torch.backends",
    "torch.compiler",
    "torch.cpu",
    "torch.cuda",
    "torch.cuda.amp",
    "torch.distributed",
    "torch.fx",
    "torch.jit",
    "torch.mps",
    "torch.nn.attention",
    "torch.overrides",
    "torch.profiler",
    "torch.random",
    "torch.utils",
    "torch.utils._python_dispatch",
    "torch.utils.deterministic",
    "torch.version",
    "torch.xpu",
    "torch._C",
    "torch._C._autograd",
    "torch._C._functorch",
)
# Words at the beginning of names of functions that act.
_ACTING = re.compile(
    r"_*(abort|accumulate|activate|add|backward|barrier|breakpoint|clear|collect|compile|crash|"
    r"destroy|disable|dump|emit|empty|enable|enter|error|exit|export|finalize|fork|freeze|gds|"
    r"generate|graph_break|import|init|ipc|itt|jit|lazy|list_gpu|load|log|main|make|manual|mark|"
    r"memory|monitored|multiproc|pop|preload|prepare|push|range|record|reg|reinit|remove|reset|restore|"
    r"run|running|save|script|seed|set|start|step|stop|synch|tensorexpr|test|toggle|trace|"
    r"tracer|unregister|unsafe|unset|valgrind|wait|warn|write|kineto_step|cudagraph_mark)|"
    r".*(crement|register|crash)"
)
# torch._C has functions that end the process when they are called without arguments.
_ASKING = re.compile(r"_?(are|check_sparse|current|get|has|is|len|num|show)_")
# They ask for what is another thing each time, or whether a compiler is at work.
_UNSTABLE = frozenset(
    "get_cpp_backtrace _get_cpp_backtrace perf_counter_ns is_compiling is_dynamo_compiling "
    "thread_safe_generator get_overridable_functions _get_sequence_nr _get_operator_version_map "
    "get_stdout_silencer".split()
)


def modules() -> Iterator[types.ModuleType]:
    """The modules that are swept: those of `NAMES` and all of torch.backends."""
    inner = (found.name for found in pkgutil.iter_modules(torch.backends.__path__))
    for name in (*NAMES, *(f"torch.backends.{part}" for part in inner if part[0] != "_")):
        home = torch
        for part in name.split(".")[1:]:
            found = getattr(home, part, None)
            home = importlib.import_module(name) if found is None else found
        yield home


def questions() -> dict[str, Callable[[], Any]]:
    """By name: functions that can be called with nothing, and flags that are read."""
    found: dict[str, Callable[[], Any]] = {}
    seen: set[int] = set()
    for module in modules():
        for name in names_in(module):
            value = inspect.getattr_static(module, name, None)
            if type(value) in _FUNCTIONS and id(value) not in seen:
                seen.add(id(value))
                if _may_be_asked(module, name, value):
                    found[f"{module.__name__}.{name}"] = value
    found |= {full: _reader(owner, name) for full, owner, name in flags()}
    return found


def names_in(module: Any) -> list[str]:
    """The names of a module; those with properties say less by `dir` than they have."""
    inner = getattr(module, "__dict__", {}).get("m")
    return sorted({*dir(module), *dir(type(module)), *(dir(inner) if inner is not None else ())})


def flags() -> Iterator[tuple[str, Any, str]]:
    """What torch.backends has that is read as an attribute: its name, and where it is."""
    for module in modules():
        if not module.__name__.startswith(("torch.backends", "torch.version")):
            continue
        owners = {module.__name__: module}
        for name in names_in(module):
            part = inspect.getattr_static(module, name, None)
            if type(part).__module__.startswith("torch.backends"):
                owners[f"{module.__name__}.{name}"] = getattr(module, name)
        for place, owner in owners.items():
            for name in sorted({*names_in(owner), *_READ_BY_GETATTR}):
                if name[0] != "_" and _is_flag(owner, name):
                    yield f"{place}.{name}", owner, name


# `torch.backends.cuda.matmul` finds its flags by `__getattr__`.
_READ_BY_GETATTR = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_tf32",
    "fp32_precision",
)


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def _may_be_asked(module: types.ModuleType, name: str, function: Any) -> bool:
    if name.startswith("__") or name in _UNSTABLE or _ACTING.match(name):
        return False
    if module.__name__.startswith("torch._C") and not _ASKING.match(name):
        return False
    if not (function.__module__ or "").startswith("torch"):
        return False
    try:
        needed = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _can_be_called(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.default is p.empty and p.kind in kinds for p in needed):
        return False
    return _can_be_called(function)


def _can_be_called(function: Any) -> bool:
    try:
        function()
    except Exception:
        return False
    return True


def _is_flag(owner: Any, name: str) -> bool:
    try:
        return type(getattr(owner, name)) in (bool, int, str, type(None))
    except Exception:
        return False


def _reader(owner: Any, name: str) -> Callable[[], Any]:
    space = {"owner": owner}
    exec(f"def read():\n    return owner.{name}", space)
    reader: Callable[[], Any] = space["read"]  # type: ignore[assignment]
    return reader


def asking(question: Callable[[], Any]) -> Callable[[torch.Tensor], Any]:
    """A program that asks, and computes."""

    def program(x: torch.Tensor) -> Any:
        answer = question()
        return x + 1, answer

    return program


def shown(answer: Any) -> str:
    """An answer as text that two of the same have in common."""
    return f"{type(answer).__name__}: {re.sub(r'0x[0-9a-f]+', '0x', repr(answer))}"
