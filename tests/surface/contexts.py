"""The context managers of torch's modules, found by `dir()`, and how to make each."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

MODULES = """
torch torch.accelerator torch.amp torch.autograd torch.autograd.forward_ad torch.autograd.function
torch.autograd.functional torch.autograd.grad_mode torch.autograd.graph torch.autograd.profiler
torch.backends torch.backends.cuda torch.backends.cudnn torch.backends.mha torch.backends.mkl
torch.backends.mkldnn torch.backends.nnpack torch.backends.openmp torch.backends.opt_einsum
torch.backends.quantized torch.backends.xnnpack torch.compiler torch.cpu torch.cpu.amp torch.cuda
torch.cuda.amp torch.distributed torch.func torch.functional torch.fx torch.fx.traceback torch.jit
torch.library torch.linalg torch.monitor torch.nn torch.nn.attention torch.nn.attention.bias
torch.nn.utils torch.nn.utils.parametrize torch.nn.utils.stateless torch.overrides torch.profiler
torch.random torch.sparse torch.utils torch.utils._device torch.utils._mode_utils
torch.utils._python_dispatch torch.utils.benchmark torch.utils.checkpoint torch.utils.data
torch.utils.deterministic torch.utils.flop_counter torch.utils.hooks
""".split()

log: list[str] = []


def _pack(tensor: torch.Tensor) -> Any:
    log.append(f"pack {tuple(tensor.shape)} {tensor.dtype}")
    return tensor.detach() * 2


def _unpack(packed: Any) -> Any:
    log.append(f"unpack {tuple(packed.shape)}")
    return packed


def _same(value: Any) -> Any:
    return value


class Doubling(TorchFunctionMode):
    """Doubles what `sin` gives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if getattr(func, "__name__", "") == "sin" else made


class Counting(TorchDispatchMode):
    """Notes operators, and triples what `sin` gives."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        log.append(str(func))
        made = func(*args, **(kwargs or {}))
        return made * 3 if func is torch.ops.aten.sin.default else made


class Mine:
    """A program's own manager: notes what goes through it, and swallows ValueError."""

    def __enter__(self) -> None:
        log.append(f"enter {torch.is_grad_enabled()}")

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        log.append(f"exit {kind and kind.__name__} {value}")
        return kind is ValueError


WEIGHTS = torch.nn.Linear(4, 4)
_HALF, _BRAIN = torch.float16, torch.bfloat16

# How managers are made that take arguments: by module and name, each way by a label.
ARGUMENTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "torch.autocast": {
        "bfloat16": ("cpu", _BRAIN),
        "half": ("cpu", _HALF),
        "off": ("cpu", _BRAIN, False),
        "uncached": ("cpu", _BRAIN, True, False),
        "cuda": ("cuda", _HALF),
    },
    "torch.cpu.amp.autocast": {"on": (), "off": (False,)},
    "torch.cuda.amp.autocast": {"on": (), "off": (False,)},
    "torch.device": {"cpu": ("cpu",), "meta": ("meta",)},
    "torch.utils._device.DeviceContext": {"meta": (torch.device("meta"),)},
    "torch.set_grad_enabled": {"on": (True,), "off": (False,)},
    "torch.inference_mode": {"on": (), "off": (False,)},
    "torch.autograd._force_original_view_tracking": {"on": (True,), "off": (False,)},
    "torch.autograd._unsafe_preserve_version_counter": {"weights": (WEIGHTS.weight,)},
    "torch.autograd.set_detect_anomaly": {"on": (True,), "blind": (True, False)},
    "torch.autograd.set_multithreading_enabled": {"on": (True,), "off": (False,)},
    "torch.autograd.graph.disable_saved_tensors_hooks": {"": ("no hooks here",)},
    "torch.autograd.graph.save_on_cpu": {"": ()},
    "torch.autograd.graph.saved_tensors_hooks": {"": (_pack, _unpack), "same": (_same, _same)},
    "torch.autograd.forward_ad._set_fwd_grad_enabled": {"on": (True,), "off": (False,)},
    "torch.autograd.profiler.record_function": {"": ("a stretch",)},
    "torch.nn.attention._sdpa_kernel_variadic": {"math": (SDPBackend.MATH,)},
    "torch.nn.attention.sdpa_kernel": {"math": (SDPBackend.MATH,), "two": ([SDPBackend.MATH],)},
    "torch.random.fork_rng": {"": ([],), "off": ([], False)},
    "torch.utils.benchmark.set_torch_threads": {"one": (1,)},
    "torch.utils.checkpoint.set_checkpoint_debug_enabled": {"on": (True,), "none": (None,)},
    "torch.utils.checkpoint.set_checkpoint_early_stop": {"on": (True,), "off": (False,)},
    "torch.fx.traceback.annotate": {"": ({"a": 1},)},
    "torch.jit.optimized_execution": {"on": (True,), "off": (False,)},
    "torch.cpu.StreamContext": {"": (torch.cpu.Stream(),)},
    "torch.backends.mkl.verbose": {"off": (0,)},
    "torch.backends.mkldnn.verbose": {"off": (0,)},
    "torch.sparse.check_sparse_tensor_invariants": {"on": (True,), "off": (False,)},
    "torch.autograd.enforce_grad_layout_policy": {"on": (True,), "off": (False,)},
}
_COMPILERS = "a compiler's, an exporter's or a scripter's own"
_DEVICE = "needs an accelerator"
# What is not tried, and why.
LEFT_OUT: dict[str, str] = {
    "torch.ExcludeDispatchKeyGuard": "takes away parts of the dispatcher",
    "torch.Stream": _DEVICE,
    "torch.autograd.graph.RemovableHandle": "no state of its own: ends a hook",
    "torch.autograd.graph.TorchDispatchMode": "abstract",
    "torch.autograd.graph._CloneArgBeforeMutateMode": "a part of allow_mutation_on_saved_tensors",
    "torch.autograd.graph._MultiHandle": "no state of its own: ends hooks",
    "torch.autograd.graph._swap_with_cloned": "a part of allow_mutation_on_saved_tensors",
    "torch.autograd.grad_mode._DecoratorContextManager": "abstract",
    "torch.autograd.grad_mode._NoParamDecoratorContextManager": "abstract",
    "torch.autograd.graph.node_creation_hook": "PyTorch tells nobody that one is active",
    "torch.autograd.profiler.emit_itt": _DEVICE,
    "torch.autograd.profiler.emit_nvtx": _DEVICE,
    "torch.compiler._compile_session_context": _COMPILERS,
    "torch.compiler._non_strict_tracing_context": _COMPILERS,
    "torch.compiler._patch_autograd_grad": _COMPILERS,
    "torch.compiler._patch_engine_backward": _COMPILERS,
    "torch.distributed.DeviceMesh": "needs a process group",
    "torch.distributed._coalescing_manager": "needs a process group",
    "torch.distributed._time_estimator": "needs a process group",
    "torch.distributed.record_comm": "needs a process group",
    "torch.fx.traceback._dynamo_region_activation_memory_budget": _COMPILERS,
    "torch.fx.traceback._preserve_node_seq_nr": _COMPILERS,
    "torch.fx.traceback._set_autograd_backward": _COMPILERS,
    "torch.fx.traceback._set_regional_inductor_subgraph_name": _COMPILERS,
    "torch.fx.traceback.preserve_node_meta": _COMPILERS,
    "torch.fx.traceback.set_current_meta": _COMPILERS,
    "torch.fx.traceback.set_current_replay_node": _COMPILERS,
    "torch.jit.RecursiveScriptClass": _COMPILERS,
    "torch.jit._IgnoreContextManager": _COMPILERS,
    "torch.jit._InsertPoint": _COMPILERS,
    "torch.jit._hide_source_ranges": _COMPILERS,
    "torch.jit.fuser": _COMPILERS,
    "torch.jit.strict_fusion": _COMPILERS,
    "torch.library._scoped_library": "defines operators",
    "torch.monitor._WaitCounterTracker": "made by another object only",
    "torch.nn.utils.stateless._reparametrize_module": "not a user's: torch.func.functional_call",
    "torch.overrides._pop_mode_temporarily": "needs a mode",
    "torch.overrides._enable_torch_function": "undoes another manager",
    "torch.utils._python_dispatch._pop_mode_temporarily": "needs a mode",
    "torch.utils.checkpoint._CachedTorchDispatchMode": "a part of selective checkpoint",
    "torch.utils.checkpoint._CachingTorchDispatchMode": "a part of selective checkpoint",
    "torch.utils.checkpoint._checkpoint_hook": "a part of checkpoint",
    "torch.utils.checkpoint._checkpoint_internal_hook": "a part of checkpoint",
    "torch.utils.checkpoint._recomputation_hook": "a part of checkpoint",
    "torch.utils.checkpoint.GraphExecGroup": "a handle that checkpoint is given",
    "torch.utils.flop_counter._FlopCounterMode": "a part of FlopCounterMode",
    "torch.utils.flop_counter.ModuleTracker": "has hooks on all modules: tried with modules",
    "torch.accelerator.Graph": _DEVICE,
    "torch.accelerator.device_index": _DEVICE,
}
# Not torch's own, or of devices that the machine may not have.
_OTHER_MODULES = ("typing", "contextlib", "urllib", "pathlib", "torch.cuda", "torch.hub")
_OWN = {"own modes": Doubling, "own dispatch": Counting, "own manager": Mine}


def found_managers() -> dict[str, Any]:
    """Every class with `__enter__` and `__exit__`, and every function under `contextmanager`, that
    torch's modules show, by the first name under which it is met."""
    found: dict[int, tuple[str, Any]] = {}
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        module = sys.modules[name]
        for owner in (module, getattr(module, "m", None)):
            for attribute in dir(owner) if owner is not None else ():
                value = getattr(owner, attribute, None)
                if _is_manager(value) and _is_tried(value.__module__):
                    found.setdefault(id(value), (f"{name}.{attribute}", value))
    return dict(found.values())


def _is_tried(module: str) -> bool:
    return module.startswith("torch.cuda.amp") or not module.startswith(_OTHER_MODULES)


def _is_manager(value: Any) -> bool:
    if inspect.isclass(value):
        return hasattr(value, "__enter__") and hasattr(value, "__exit__")
    if type(value) is not types.FunctionType or not hasattr(value, "__wrapped__"):
        return False
    return inspect.isgeneratorfunction(inspect.unwrap(value))


def ways() -> Iterator[tuple[str, Callable[[], Any]]]:
    """(label, maker) of every manager that is tried. Raises where one has no arguments here and
    cannot be made without: whoever adds it says how it is made, or why it is left out."""
    for name, manager in found_managers().items():
        if name in LEFT_OUT:
            continue
        if name in ARGUMENTS:
            for label, arguments in ARGUMENTS[name].items():
                yield f"{name} {label}".strip(), _maker(manager, arguments)
            continue
        try:
            manager()
        except Exception as error:
            raise AssertionError(f"{name} has neither arguments nor a reason here") from error
        yield name, _maker(manager, ())
    for name, manager in _OWN.items():
        yield name, manager


def _maker(manager: Any, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: manager(*arguments)
