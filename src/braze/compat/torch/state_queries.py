"""What torch's C functions that take no tensors are believed, and what keeps their answers true.

Three lists; a C function of torch that is in none of them, and is no operator, breaks the graph.
Names that a build or a version of torch has not got are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from braze.compat import private_names as private


def _functions(names: dict[str, str]) -> Iterator[object]:
    for home, found in names.items():
        place: Any = torch._C
        for part in filter(None, home.split(".")):
            place = getattr(place, part, None)
        for name in found.split():
            function = getattr(place, name, None)
            if function is not None:
                yield function


def _methods(owner: str, names: str) -> Iterator[object]:
    """What pybind11 binds: functions, of which each method is one with an instance."""
    cls: Any = torch._C
    for part in owner.split("."):
        cls = getattr(cls, part, None)
    for name in names.split():
        method = vars(cls).get(name) if cls is not None else None
        if method is not None:
            yield getattr(method, "__func__", method)


# Modules of C, by identity, whose functions make calls of ATen's operators.
OPERATOR_HOMES: frozenset[int] = frozenset(
    {
        id(getattr(torch._C, name))
        for name in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested")
        if hasattr(torch._C, name)
    }
)
# Facts of the ambient vector, which every entry compares; the program may have changed them since.
AMBIENT_QUESTIONS: frozenset[Any] = frozenset(
    _functions(
        {
            "": "is_grad_enabled is_inference_mode_enabled is_autocast_cpu_enabled "
            "get_autocast_cpu_dtype get_autocast_gpu_dtype is_autocast_cache_enabled "
            "get_default_dtype _get_deterministic_algorithms is_anomaly_enabled "
            "_get_deterministic_algorithms_warn_only _get_flash_sdp_enabled "
            "_get_mem_efficient_sdp_enabled _get_math_sdp_enabled _get_cudnn_sdp_enabled "
            "_get_overrideable_sdp_enabled _get_cudnn_enabled "
            "_len_torch_function_stack _is_torch_function_mode_enabled "
            "_are_functorch_transforms_active"
        }
    )
)
# What sets such a fact: capture puts it back, and the last state is set again behind the graph.
AMBIENT_SETTERS: frozenset[Any] = frozenset(
    _functions(
        {
            "": "_set_grad_enabled set_autocast_cache_enabled set_autocast_cpu_enabled "
            "set_autocast_cpu_dtype set_autocast_gpu_dtype autocast_increment_nesting "
            "autocast_decrement_nesting clear_autocast_cache set_anomaly_enabled "
            "_set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math _set_sdp_use_cudnn "
            "_set_sdp_use_overrideable"
        }
    )
)
# The same, of the device types of which the vector has something: their first argument.
AUTOCAST_CALLS: frozenset[Any] = frozenset(
    (
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
    )
)
# Whether autocast is on for any device: the vector's, or another one.
ANY_AUTOCAST: Any = private.is_autocast_on
GUARDED_DEVICES = ("cpu", "cuda")
_OTHER_DEVICES = ("xpu", "mps", "mtia", "xla", "ipu", "hpu", "maia", "privateuseone")


def autocast_elsewhere() -> bool:
    """Whether autocast is on for a device type of which the ambient vector has nothing."""
    return any(map(torch.is_autocast_enabled, _OTHER_DEVICES))


# State that a program, or its environment, may change: asked again at each call of an entry whose
# frame asked.
ASKED_AGAIN: frozenset[Any] = frozenset(
    _functions(
        {
            "": "get_num_threads get_num_interop_threads is_anomaly_check_nan_enabled "
            "_get_warnAlways _get_float32_matmul_precision _get_fp32_precision_getter "
            "_get_mkldnn_enabled _get_mkldnn_deterministic _get_onednn_allow_tf32 "
            "_get_nnpack_enabled _get_qengine _get_default_device _get_thread_name "
            "_get_cpu_allow_fp16_reduced_precision_reduction "
            "_get_cublas_allow_bf16_reduced_precision_reduction "
            "_get_cublas_allow_fp16_accumulation "
            "_get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_tf32 "
            "_get_cudnn_allow_tf32 _get_cudnn_benchmark _get_cudnn_depthwise_kernel "
            "_get_cudnn_deterministic _cuda_get_cudnn_benchmark_limit _get_miopen_immediate "
            "_get_deterministic_fill_uninitialized_memory _get_math_sdp_allow_fp16_bf16_reduction "
            "_get_fa3_sdp_enabled _get_sdp_priority_order "
            "_get_sm_carveout_experimental _get_blas_preferred_backend "
            "_get_blas_default_backend _get_linalg_preferred_backend "
            "_get_rocm_fa_preferred_backend _get_backcompat_broadcast_warn "
            "_get_backcompat_keepdim_warn _get_autograd_fallback_mode "
            "_get_graph_executor_optimize _get_privateuse1_backend_name "
            "_get_dtensor_allow_implicit_replication _is_multithreading_enabled "
            "_is_view_replay_enabled _is_grad_layout_enforcement_enabled _is_fwd_grad_enabled "
            "_is_torch_function_enabled _is_torch_function_all_disabled "
            "_check_sparse_tensor_invariants _only_lift_cpu_tensors _parallel_info "
            "_debug_only_are_vmap_fallback_warnings_enabled "
            "_warn_on_accumulate_grad_stream_mismatch "
            "_cuda_getDeviceCount _cuda_getDevice _cuda_isInBadFork _cuda_hasPrimaryContext "
            "_cuda_isCurrentStreamCapturing _cuda_getCurrentRawStream _cuda_getCurrentStream "
            "_cuda_getDefaultStream _cuda_tunableop_is_enabled _cuda_tunableop_tuning_is_enabled "
            "_mps_is_available _mps_is_on_macos_or_newer _mps_is_in_bad_fork "
            "_xpu_getDeviceCount _xpu_getDevice _xpu_isInBadFork "
            "_mtia_getDeviceCount _mtia_isInBadFork "
            "_accelerator_getDeviceIndex _accelerator_hooks_device_count",
            "_autograd": "_profiler_enabled _is_kineto_stopped",
            "_functorch": "_is_vmap_fallback_enabled",
            "_distributed_c10d": "get_debug_level _get_comm_profiling_name",
        }
    )
)
# The same, a Python function that asks the engine, where the thread is in a backward.
IN_WHOLE_BACKWARD: Any = private.in_whole_backward
# Methods of C++ objects of torch's that say the same of an object as long as it lives.
FACTS_OF_OBJECTS: frozenset[Any] = frozenset(
    _methods("_distributed_c10d.ProcessGroup", "rank size")
)
# Facts of the build, the machine, or the arguments alone.
CONSTANT_QUESTIONS: frozenset[Any] = frozenset(
    _functions(
        {
            "": "_get_cpu_capability _show_config _cxx_flags _get_max_operator_version "
            "_is_flash_attention_available _is_ck_sdpa_available _is_xnnpack_enabled "
            "_supported_qengines _autocast_supported_devices _is_autocast_available "
            "_valgrind_supported_platform _llvm_enabled _mtia_isBuilt _infer_size "
            "_has_mkldnn _should_allow_numbers_as_tensors _get_schema _demangle "
            "_get_accelerator _accelerator_getAccelerator _cuda_getCompiledVersion "
            "_cuda_getArchFlags _get_cudnn_batch_norm_reserve_space_size",
            "_cpu": "_get_cpu_capability",
            "_itt": "is_available",
            "_autograd": "kineto_available",
            "_cudnn": "getCompileVersion getRuntimeVersion getVersionInt is_cuda",
            "_nn": "_parse_to",
        }
    )
)
