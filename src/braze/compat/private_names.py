"""The private names of PyTorch and CPython that Braze uses, each looked up once, here.

A row says what depends on the name. Where a version of PyTorch has not got it, importing Braze
gives one warning that says so, and:

    essential(path)             nothing is compiled: every call runs eagerly
    optional(path, serves, x)   x, which is made of public names, stands in
    optional(path, serves)      using it raises PrivateNameGone, so that the frame runs eagerly
    of_build(path, x)           x stands in, and nothing is said: builds of one version differ

`tests/unit/compat/test_private_names.py` takes each name away, one at a time.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, final

import torch

from braze.errors import PrivateNameGone
from braze.frozen import frozen


@final
@frozen
class PrivateName:
    """path: `module:attribute`, both dotted. serves: what depends on the name. is_essential: Braze
    compiles nothing without it. has_substitute: something else stands in for it. is_gone: this
    PyTorch has not got it. is_of_build: whether it has is a matter of the build."""

    path: str
    serves: str
    is_essential: bool
    has_substitute: bool
    is_gone: bool
    is_of_build: bool = False

    @property
    def name(self) -> str:
        """The dotted name."""
        return self.path.replace(":", ".").rstrip(".")

    def __str__(self) -> str:
        if self.is_essential:
            effect = "Braze compiles nothing, and calls run eagerly"
        elif self.has_substitute:
            effect = f"something else stands in ({self.serves})"
        else:
            effect = f"programs that need it run eagerly ({self.serves})"
        return f"PyTorch {torch.__version__} has no {self.name}: {effect}"


_FOUND: dict[str, PrivateName] = {}
# Every name that was looked up, by its path.
PRIVATE_NAMES: Mapping[str, PrivateName] = MappingProxyType(_FOUND)
_NOTHING = object()
# What was found of essential names.
_PRESENT: list[Any] = []


@final
class Missing:
    """Stands for a name that is gone: whatever is done with it raises PrivateNameGone."""

    __slots__ = ("_row",)

    def __init__(self, row: PrivateName) -> None:
        self._row = row

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise PrivateNameGone(str(self._row))

    __call__ = __enter__ = __exit__ = __int__ = __iter__ = __bool__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


@final
class Inert:
    """Stands for a name without which nothing is compiled: modules that make constants of it can be
    imported, and nobody asks for those."""

    def __call__(self, *args: object, **kwargs: object) -> Inert:
        return self

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__") and name != "__get__":
            raise AttributeError(name)
        return self

    def __or__(self, other: object) -> Inert:
        return self

    __and__ = __ror__ = __rand__ = __xor__ = __or__

    def __invert__(self) -> Inert:
        return self

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


def _look_up(
    path: str, serves: str, substitute: object, is_essential: bool, is_of_build: bool = False
) -> object:
    if path in _FOUND:
        raise ValueError(f"{path} is looked up twice")
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        found = _NOTHING
    has_substitute, is_gone = substitute is not _NOTHING, found is _NOTHING
    row = PrivateName(path, serves, is_essential, has_substitute, is_gone, is_of_build)
    _FOUND[path] = row
    if not is_gone:
        if is_essential and not has_substitute:
            _PRESENT.append(found)
        return found
    if has_substitute:
        return substitute
    return Inert() if is_essential else Missing(row)


def essential(path: str, substitute: object = _NOTHING) -> Any:
    """What every capture or call needs. substitute: what lets modules be imported without it."""
    return _look_up(path, "captures and calls", substitute, True)


def optional(path: str, serves: str, substitute: object = _NOTHING) -> Any:
    """What one feature needs."""
    return _look_up(path, serves, substitute, False)


def of_build(path: str, serves: str, substitute: object) -> Any:
    """What some builds have."""
    return _look_up(path, serves, substitute, False, True)


def gone() -> list[PrivateName]:
    """The names that this PyTorch lacks, but for those that depend on the build."""
    return [row for row in _FOUND.values() if row.is_gone and not row.is_of_build]


def gone_essentials() -> list[PrivateName]:
    """The names without which nothing is compiled that this PyTorch lacks."""
    return [row for row in gone() if row.is_essential]


# --- modes and tensor classes below autograd ---------------------------------------------------

if TYPE_CHECKING:
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:

    class _NoMode:
        """A class that nothing is an instance of."""

        def __enter__(self):
            raise PrivateNameGone("PyTorch has no such mode")

    TorchDispatchMode = essential("torch.utils._python_dispatch:TorchDispatchMode", _NoMode)
    DeviceContext = optional(
        "torch.utils._device:DeviceContext",
        "calls under a default device are compiled; without it they run eagerly",
        _NoMode,
    )
function_modes: Callable[[], list[Any]] = essential(
    "torch.overrides:_get_current_function_mode_stack"
)
dispatch_modes: Callable[[], list[Any]] = essential(
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack"
)


def _softmax_without_nan(scores: torch.Tensor, dim: int) -> torch.Tensor:
    """What `torch._safe_softmax` computes: zeros where all is -inf."""
    hidden = torch.all(scores == float("-inf"), dim=dim, keepdim=True)
    return torch.where(hidden, 0.0, torch.softmax(scores, dim=dim))


safe_softmax: Callable[..., torch.Tensor] = optional(
    "torch:_safe_softmax", "attention to nothing as one operator", _softmax_without_nan
)
innermost_dispatch_mode: Any = optional(
    "torch.utils._python_dispatch:_get_current_dispatch_mode", "programs that ask for their mode"
)
push_dispatch_mode: Callable[[Any], None] = essential("torch._C:_push_on_torch_dispatch_stack")
pop_dispatch_mode: Callable[[Any], Any] = essential("torch._C:_pop_torch_dispatch_stack")
dispatch_mode_count: Callable[[], int] = essential("torch._C:_len_torch_dispatch_stack")
function_mode_count: Callable[[], int] = optional(
    "torch._C:_len_torch_function_stack",
    "the quick check of function modes",
    lambda: len(function_modes()),
)
disable_torch_dispatch: Any = essential("torch._C:_DisableTorchDispatch")
no_dispatch: Any = optional(
    "torch.utils._mode_utils:no_dispatch", "real calls in a capture", disable_torch_dispatch
)
disabled_torch_function: Any = essential("torch._C:_disabled_torch_function_impl")
disabled_torch_dispatch: Any = essential("torch._C:_disabled_torch_dispatch_impl")
torch_function_enabled: Callable[[], bool] = essential("torch._C:_is_torch_function_enabled")
disabled_torch_functions: Any = optional(
    "torch._C:DisableTorchFunctionSubclass", "metadata of tensor subclasses", contextlib.nullcontext
)
correct_aliasing: Any = optional(
    "torch.utils._python_dispatch:return_and_correct_aliasing", "views of wrapper subclasses", None
)
make_wrapper: Callable[..., Any] = essential("torch:Tensor._make_wrapper_subclass")
forbid_data_pointer: Callable[[torch.Tensor], None] = optional(
    "torch._C:_set_throw_on_mutable_data_ptr",
    "C++ code that reads memory of a fake tensor",
    lambda tensor: None,
)
pad_packed_sequence: Any = optional(
    "torch:_pad_packed_sequence", "padding of packed sequences", None
)
TensorBase: Any = optional(
    "torch._C:TensorBase", "what all tensors inherit from", torch.Tensor.__mro__[1]
)

# --- profiles ----------------------------------------------------------------------------------


@final
class _NoProfiler:
    """Says that no profiler is at work."""

    _is_profiler_enabled = False


# The module whose attribute says whether a profiler is at work: read at each call.
profiler: Any = torch.autograd.profiler
if (
    optional(
        "torch.autograd.profiler:_is_profiler_enabled",
        "compiled graphs and kernels are regions of a profile; without it their operators are",
        None,
    )
    is None
):
    profiler = _NoProfiler

# --- the dispatcher ----------------------------------------------------------------------------

if TYPE_CHECKING:
    OpOverload = torch._ops.OpOverload
    OpOverloadPacket = torch._ops.OpOverloadPacket
    HigherOrderOperator = torch._ops.HigherOrderOperator
else:
    OpOverload = optional("torch._ops:OpOverload", "operators", type(torch.ops.aten.add.Tensor))
    OpOverloadPacket = optional(
        "torch._ops:OpOverloadPacket", "operators by name", type(torch.ops.aten.add)
    )
    HigherOrderOperator = optional(
        "torch._ops:HigherOrderOperator",
        "operators that take functions",
        type("HigherOrderOperator", (), {}),
    )
OPERATOR_CLASSES: tuple[type, ...] = (OpOverload, OpOverloadPacket)
DispatchKey: Any = essential("torch._C:DispatchKey")
DispatchKeySet: Any = essential("torch._C:DispatchKeySet")
below_autograd: Any = essential("torch._C:_AutoDispatchBelowAutograd")
has_kernel_for_key: Callable[..., bool] = essential(
    "torch._C:_dispatch_has_kernel_for_dispatch_key"
)
dispatch_keys_of: Callable[[torch.Tensor], Any] = essential("torch._C:_dispatch_keys")
parse_dispatch_key: Callable[[str], Any] = essential("torch._C:_dispatch_key_parse")
is_key_excluded: Callable[[Any], bool] = essential(
    "torch._C:_dispatch_tls_is_dispatch_key_excluded"
)
included_keys: Callable[[], Any] = essential("torch._C:_dispatch_tls_local_include_set")
excluded_keys: Callable[[], Any] = essential("torch._C:_dispatch_tls_local_exclude_set")
enable_python_dispatcher: Any = optional(
    "torch._C:_EnablePythonDispatcher", "symbolic sizes before PyTorch 2.13"
)
script_schemas: Callable[[str], list[Any]] = optional(
    "torch._C:_jit_get_schemas_for_operator", "calls by operators' names", lambda _: []
)
library_kernels: Any = optional(
    "torch.library:_impls", "operators that a library gave a Python kernel", frozenset()
)
OPDEFS: Any = optional(
    "torch._library.custom_ops:OPDEFS", "gradients of torch.library.custom_op", {}
)
invoke_subgraph_placeholder: Any = optional(
    "torch._higher_order_ops.invoke_subgraph:invoke_subgraph_placeholder",
    "torch.compiler.nested_compile_region",
)
generic_associative_scan: Any = optional(
    "torch._higher_order_ops.associative_scan:generic_associative_scan",
    "associative scans as loops",
    lambda: None,
)
aten_gelu: Any = optional("torch._C:_nn.gelu", "quick calls", torch.nn.functional.gelu)
aten_silu: Any = optional(
    "torch._C:_nn.silu", "quick calls", lambda x: torch.ops.aten.silu.default(x)
)
C_NN: Any = optional("torch._C:_nn", "functions of torch.nn.functional", torch.nn.functional)

# --- ambient state -----------------------------------------------------------------------------

set_grad_enabled: Callable[[bool], None] = essential("torch._C:_set_grad_enabled")
is_autocast_on: Callable[[], bool] = optional(
    "torch._C:_is_any_autocast_enabled",
    "whether autocast is on",
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
)
without_autocast: Any = essential("torch._C:_DisableAutocast")
enter_autocast: Any = optional(
    "torch.amp.autocast_mode:_enter_autocast", "autocast in graphs of backends of users"
)
exit_autocast: Any = optional(
    "torch.amp.autocast_mode:_exit_autocast", "autocast in graphs of backends of users"
)
forward_level: Any = essential("torch.autograd.forward_ad:_current_level")
set_deterministic: Any = optional(
    "torch._C:_set_deterministic_algorithms", "deterministic algorithms set in a program"
)
is_deterministic: Callable[[], bool] = optional(
    "torch._C:_get_deterministic_algorithms",
    "the quick check of deterministic algorithms",
    torch.are_deterministic_algorithms_enabled,
)
deterministic_only_warns: Callable[[], bool] = optional(
    "torch._C:_get_deterministic_algorithms_warn_only",
    "the quick check of deterministic algorithms",
    torch.is_deterministic_algorithms_warn_only_enabled,
)
_CUDA_BACKENDS = torch.backends.cuda
_OF_ATTENTION = "which attention kernels are allowed"
sdpa_flash: Callable[[], bool] = optional(
    "torch._C:_get_flash_sdp_enabled", _OF_ATTENTION, _CUDA_BACKENDS.flash_sdp_enabled
)
sdpa_efficient: Callable[[], bool] = optional(
    "torch._C:_get_mem_efficient_sdp_enabled",
    _OF_ATTENTION,
    _CUDA_BACKENDS.mem_efficient_sdp_enabled,
)
sdpa_math: Callable[[], bool] = optional(
    "torch._C:_get_math_sdp_enabled", _OF_ATTENTION, _CUDA_BACKENDS.math_sdp_enabled
)
sdpa_cudnn: Callable[[], bool] = optional(
    "torch._C:_get_cudnn_sdp_enabled", _OF_ATTENTION, _CUDA_BACKENDS.cudnn_sdp_enabled
)
sdpa_overrideable: Callable[[], bool] = optional(
    "torch._C:_get_overrideable_sdp_enabled", _OF_ATTENTION, lambda: True
)
set_sdpa_flash: Callable[[bool], None] = optional(
    "torch._C:_set_sdp_use_flash", _OF_ATTENTION, _CUDA_BACKENDS.enable_flash_sdp
)
set_sdpa_efficient: Callable[[bool], None] = optional(
    "torch._C:_set_sdp_use_mem_efficient", _OF_ATTENTION, _CUDA_BACKENDS.enable_mem_efficient_sdp
)
set_sdpa_math: Callable[[bool], None] = optional(
    "torch._C:_set_sdp_use_math", _OF_ATTENTION, _CUDA_BACKENDS.enable_math_sdp
)
set_sdpa_cudnn: Callable[[bool], None] = optional(
    "torch._C:_set_sdp_use_cudnn", _OF_ATTENTION, _CUDA_BACKENDS.enable_cudnn_sdp
)
set_sdpa_overrideable: Callable[[bool], None] = optional(
    "torch._C:_set_sdp_use_overrideable", _OF_ATTENTION
)
_CUDNN: Any = torch.backends.cudnn
cudnn_enabled: Callable[[], bool] = optional(
    "torch._C:_get_cudnn_enabled", "whether cuDNN is used", lambda: _CUDNN.enabled
)
set_cudnn_enabled: Callable[[bool], None] = optional(
    "torch._C:_set_cudnn_enabled",
    "whether cuDNN is used",
    lambda enabled: setattr(_CUDNN, "enabled", enabled),
)
_OF_PRECISION = "in what convolutions multiply float32"
precision_of: Callable[[str, str], str] = optional(
    "torch._C:_get_fp32_precision_getter",
    _OF_PRECISION,
    lambda *_: _CUDNN.conv.fp32_precision,
)
set_precision: Callable[[str, str, str], None] = optional(
    "torch._C:_set_fp32_precision_setter",
    _OF_PRECISION,
    lambda _, __, precision: setattr(_CUDNN.conv, "fp32_precision", precision),
)

# --- autograd ----------------------------------------------------------------------------------

ddp: Any = optional(
    "torch.nn.parallel.distributed:DistributedDataParallel",
    "gradients of a wrapped module handed over one bucket at a time",
    None,
)
FUNCTION_BASE: Any = optional(
    "torch.autograd.function:_SingleLevelFunction", "quick calls", torch.autograd.Function
)
engine: Any = essential("torch.autograd:Variable._execution_engine")
grad_hooks: Any = essential("torch._C:TensorBase._post_accumulate_grad_hooks")
version_getter: Any = essential("torch._C:TensorBase._version")
creation_of: Callable[[torch.Tensor], Any] = essential("torch._C:_autograd._get_creation_meta")
set_creation: Callable[..., None] = essential("torch._C:_autograd._set_creation_meta")
plain_view: Any = essential("torch._C:_autograd.CreationMeta.DEFAULT")
piece_view: Any = essential("torch._C:_autograd.CreationMeta.MULTI_OUTPUT_NODE")
untracked_view: Any = essential("torch._C:_autograd.CreationMeta.NO_GRAD_MODE")
inference_view: Any = essential("torch._C:_autograd.CreationMeta.INFERENCE_MODE")
set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = essential(
    "torch._C:_autograd._unsafe_set_version_counter"
)
note_write: Callable[[tuple[torch.Tensor, ...]], None] = essential("torch._C:_increment_version")
keeps_graph: Callable[[], bool] = essential("torch._C:_autograd._get_current_graph_task_keep_graph")
graph_task: Callable[[], int] = essential("torch._C:_current_graph_task_id")
silence_saved_hooks: Callable[[bool], bool] = essential(
    "torch._C:_autograd._saved_tensors_hooks_set_tracing"
)
top_saved_hooks: Callable[[bool], Any] = essential(
    "torch._C:_autograd._top_saved_tensors_default_hooks"
)
push_saved_hooks: Callable[..., None] = essential(
    "torch._C:_autograd._push_saved_tensors_default_hooks"
)
pop_saved_hooks: Callable[[], None] = essential(
    "torch._C:_autograd._pop_saved_tensors_default_hooks"
)
disable_saved_hooks: Callable[[str], None] = optional(
    "torch._C:_autograd._saved_tensors_hooks_disable", "transforms of torch.func"
)
enable_saved_hooks: Callable[[], None] = optional(
    "torch._C:_autograd._saved_tensors_hooks_enable", "transforms of torch.func"
)
why_no_saved_hooks: Callable[[], str | None] = essential(
    "torch._C:_autograd._saved_tensors_hooks_get_disabled_error_message"
)
in_whole_backward: Any = optional(
    "torch.autograd:_is_checkpoint_valid", "programs that ask whether they are in a backward"
)
checkpoint_hook: Any = optional(
    "torch.utils.checkpoint:_checkpoint_hook", "compiled code in torch.utils.checkpoint", object
)
recomputation_hook: Any = optional(
    "torch.utils.checkpoint:_recomputation_hook", "compiled code in torch.utils.checkpoint", object
)

# --- transforms and tracers --------------------------------------------------------------------

is_functorch_wrapped: Any = essential("torch._C:_functorch.is_functorch_wrapped_tensor")
is_batched: Callable[[torch.Tensor], bool] = essential("torch._C:_functorch.is_batchedtensor")
is_legacy_batched: Callable[[torch.Tensor], bool] = essential(
    "torch._C:_functorch.is_legacy_batchedtensor"
)
unwrapped: Callable[[torch.Tensor], torch.Tensor] = essential("torch._C:_functorch.get_unwrapped")
transform_depth: Callable[[], int] = essential("torch._C:_functorch.get_dynamic_layer_stack_depth")
innermost_transform: Callable[[], Any] = essential("torch._C:_functorch.peek_interpreter_stack")
_OF_TRANSFORMS = "transforms of torch.func in a program"
pop_transform: Any = optional("torch._C:_functorch.pop_dynamic_layer_stack", _OF_TRANSFORMS)
push_transform: Any = optional("torch._C:_functorch.push_dynamic_layer_stack", _OF_TRANSFORMS)
leave_vmap: Any = optional("torch._C:_functorch._vmap_decrement_nesting", _OF_TRANSFORMS)
leave_grad: Any = optional("torch._C:_functorch._grad_decrement_nesting", _OF_TRANSFORMS)
leave_jvp: Any = optional("torch._C:_functorch._jvp_decrement_nesting", _OF_TRANSFORMS)
leave_functionalize: Any = optional("torch._C:_functorch._func_decrement_nesting", _OF_TRANSFORMS)
enter_vmap: Any = optional("torch._C:_functorch._vmap_increment_nesting", _OF_TRANSFORMS)
enter_grad: Any = optional("torch._C:_functorch._grad_increment_nesting", _OF_TRANSFORMS)
enter_jvp: Any = optional("torch._C:_functorch._jvp_increment_nesting", _OF_TRANSFORMS)
enter_functionalize: Any = optional("torch._C:_functorch._func_increment_nesting", _OF_TRANSFORMS)
enter_legacy_vmap: Any = optional("torch._C:_vmapmode_increment_nesting", _OF_TRANSFORMS)
leave_legacy_vmap: Any = optional("torch._C:_vmapmode_decrement_nesting", _OF_TRANSFORMS)
enter_forward: Any = optional("torch._C:_enter_dual_level", "forward-mode gradients")
exit_forward: Any = optional("torch._C:_exit_dual_level", "forward-mode gradients")
takes_forward: Callable[[], bool] = essential("torch._C:_is_fwd_grad_enabled")
set_takes_forward: Callable[[bool], None] = essential("torch._C:_set_fwd_grad_enabled")
is_jit_tracing: Any = optional("torch._C:_is_tracing", "programs that ask whether they are traced")
jit_trace: Callable[[], Any] = essential("torch._C:_get_tracing_state")
log_api_usage: Any = optional("torch._C:_log_api_usage_once", "what PyTorch counts of itself")

# --- other compilers, modules, optimizers, memory ----------------------------------------------

other_frames: Any = optional(
    "torch._C:_dynamo.eval_frame", "torch.compile around what Braze compiled", None
)
disable_dynamo: Any = optional(
    "torch._compile:_disable_dynamo", "functions that torch.compile leaves out", lambda f: f
)
module_call: Any = essential("torch.nn:Module._call_impl")
wrapped_module_call: Any = essential("torch.nn:Module._wrapped_call_impl")
_OF_FUSED = "compiling fused steps of optimizers"
fused_adam: Any = optional("torch.optim.adam:_fused_adam", _OF_FUSED)
fused_sgd: Any = optional("torch.optim.sgd:_fused_sgd", _OF_FUSED)
fused_adagrad: Any = optional("torch.optim.adagrad:_fused_adagrad", _OF_FUSED)
single_adam: Any = optional("torch.optim.adam:_single_tensor_adam", _OF_FUSED)
single_sgd: Any = optional("torch.optim.sgd:_single_tensor_sgd", _OF_FUSED)
single_adagrad: Any = optional("torch.optim.adagrad:_single_tensor_adagrad", _OF_FUSED)
copy_all: Any = optional(
    "torch:_foreach_copy_",
    "copies into recorded calls",
    lambda targets, sources: [target.copy_(value) for target, value in zip(targets, sources)],
)
storage_references: Callable[[int], int] = optional(
    "torch._C:_storage_Use_Count", "reuse of memory that recorded calls lend"
)
tensor_references: Callable[[torch.Tensor], int] = optional(
    "torch._C:TensorBase._use_count", "reuse of memory that recorded calls lend"
)
_OF_PACKED = "weights that are packed once"
to_dlpack: Any = optional("torch._C:_to_dlpack", _OF_PACKED, None)
to_versioned_dlpack: Any = optional("torch._C:_to_dlpack_versioned", _OF_PACKED, None)
# Their kernels count no versions.
FUSED_STEPS: list[Any] = [
    optional(f"torch:_fused_{name}_", _OF_PACKED, None)
    for name in ("adam", "adamw", "sgd", "adagrad")
]
# Builds without oneDNN have none of these.
reorder_convolution_weight: Any = of_build(
    "torch:ops.mkldnn._reorder_convolution_weight.default", _OF_PACKED, None
)
fused_convolution: Any = of_build(
    "torch:ops.mkldnn._convolution_pointwise.default", _OF_PACKED, None
)
fused_convolution_sum: Any = of_build(
    "torch:ops.mkldnn._convolution_pointwise.binary", _OF_PACKED, None
)
negative_view: Any = optional(
    "torch:_neg_view",
    "views of tensors with a negative bit",
)
zeros_by_flag: Any = optional(
    "torch:_efficientzerotensor",
    "zeros without memory",
    lambda size, device: torch.zeros(size, device=device),
)
maybe_opt_step: Any = optional("torch:amp.GradScaler._maybe_opt_step", "steps of a GradScaler")
convert_module: Any = optional("torch:nn.Module._apply", "conversions of modules in a program")
infer_parameters: Any = optional(
    "torch.nn.modules.lazy:LazyModuleMixin._infer_parameters", "lazy modules"
)
getframe: Any = essential("sys:_getframe")
state_of_abstract: Any = optional(
    "_abc:_get_dump", "questions about classes registered with a hooked abstract class"
)
filters_mutated: Callable[[], None] = optional(
    "warnings:_filters_mutated", "warnings' filters changed in a program", lambda: None
)
# Python 3.14 guards the filters by a lock.
filters_changed_under_lock: Any = of_build(
    "_warnings:_filters_mutated_lock_held", "warnings' filters changed in a program", lambda: None
)
take_filters_lock: Any = of_build(
    "_warnings:_acquire_lock", "warnings' filters changed in a program", lambda: None
)
free_filters_lock: Any = of_build(
    "_warnings:_release_lock", "warnings' filters changed in a program", lambda: None
)
# From PyTorch 2.15 on the validation of arguments asks by way of this function.
are_all_true: Any = of_build(
    "torch.distributions.distribution:_all_true_or_runtime_assert",
    "validation of arguments in torch.distributions",
    lambda valid, message: valid.all(),
)
infer_size: Any = optional("torch._C:_infer_size", "batch shapes of two distributions", None)
is_all_true: Any = optional(
    "torch:_is_all_true", "validation of arguments in torch.distributions", torch.all
)
tensor_numpy: Any = optional("torch._numpy:", "NumPy code as code on tensors", None)
if TYPE_CHECKING:
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
    from torch.utils import _pytree

    pytree = _pytree
    TreeCode: TypeAlias = _PyTreeCodeGen
    TreeInfo: TypeAlias = _PyTreeInfo
else:
    TreeCode = optional("torch.fx.graph:_PyTreeCodeGen", "graph modules of export", _NoMode)
    TreeInfo = optional("torch.fx.graph:_PyTreeInfo", "graph modules of export")
    pytree = essential("torch.utils:_pytree")


def _make_inert(space: dict[str, object]) -> None:
    """Where one essential name is gone none is used: modules would mix what is there with what is
    not while they are imported."""
    for name, value in list(space.items()):
        if any(value is found for found in _PRESENT):
            space[name] = Inert()


if gone_essentials():
    _make_inert(globals())
