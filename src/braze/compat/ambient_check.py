"""The ambient state compared question by question: what a guard runs at every call.

`AmbientState.holds` makes a whole vector to compare it; here each question goes to torch's C
function and the first difference ends the check. A field that has no row makes the state be
compared as a whole.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from braze.compat.ambient import AmbientState, default_device
from braze.compat.tensor_interface import exported_address

# A function, its argument (or None for none), and the answer that is expected.
Question = tuple[Callable[..., Any], str | None, Any]

_AUTOCAST = (("cpu",), ("cuda",))
_SDPA = (
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
)


# The same of C++: the address of a function that takes a small number, the number, and the answer.
NativeQuestion = tuple[int, int, int]
_NATIVE: dict[str, tuple[tuple[str, str, tuple[int, ...]], ...]] = {
    "grad": (("libc10.so", "_ZN3c108GradMode10is_enabledEv", (0,)),),
    "inference": (("libc10.so", "_ZN3c1013InferenceMode10is_enabledEv", (0,)),),
    "autocast": (  # of the CPU and of CUDA devices
        ("libtorch_cpu.so", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", (0, 1)),
        ("libtorch_cpu.so", "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", (0, 1)),
    ),
}
_ASK = ctypes.CFUNCTYPE(ctypes.c_byte, ctypes.c_byte)


def _one(function: Callable[[], Any]) -> Callable[[Any], list[Question]]:
    return lambda expected: [(function, None, expected)]


def _autocast(expected: Any) -> list[Question]:
    questions: list[Question] = []
    for (device,), (enabled, dtype) in zip(_AUTOCAST, expected, strict=True):
        questions.append((torch.is_autocast_enabled, device, enabled))
        questions.append((torch.get_autocast_dtype, device, dtype))
    return questions


def _sdpa(expected: Any) -> list[Question]:
    return [(function, None, flag) for function, flag in zip(_SDPA, expected, strict=True)]


def _anomaly(expected: Any) -> list[Question]:
    enabled, checks_nan = expected
    questions: list[Question] = [(torch.is_anomaly_enabled, None, enabled)]
    return questions + [(torch.is_anomaly_check_nan_enabled, None, checks_nan)] * enabled


def _device(expected: Any) -> list[Question]:
    """Without a default device there is no mode, which is asked already."""
    return [] if expected is None else [(partial(_has_default_device, expected), None, True)]


def _has_default_device(expected: torch.device) -> bool:
    return default_device() == expected


_QUESTIONS: dict[str, Callable[[Any], list[Question]]] = {
    "grad": _one(torch.is_grad_enabled),
    "inference": _one(torch.is_inference_mode_enabled),
    "autocast": _autocast,
    "autocast_cache": _one(torch.is_autocast_cache_enabled),
    "default_dtype": _one(torch.get_default_dtype),
    "deterministic": _one(torch._C._get_deterministic_algorithms),
    "deterministic_warn_only": _one(torch._C._get_deterministic_algorithms_warn_only),
    "sdpa": _sdpa,
    "function_modes": _one(torch._C._len_torch_function_stack),
    "dispatch_modes": _one(torch._C._len_torch_dispatch_stack),
    "anomaly": _anomaly,
    "default_device": _device,
}


def ambient_questions(state: Any) -> list[Question] | None:
    """The questions that hold together exactly where `state.holds()`; None where some field of
    the state has none."""
    if not isinstance(state, AmbientState):
        return None
    names = [field.name for field in fields(state)]
    if not _QUESTIONS.keys() >= set(names):
        return None
    return [question for name in names for question in _QUESTIONS[name](getattr(state, name))]


def quick_questions(state: Any) -> list[Question | NativeQuestion] | None:
    """As `ambient_questions`, those that cost most asked of C++: of a state that holds now."""
    questions = ambient_questions(state)
    if questions is None or not state.holds():
        return None if questions is None else [*questions]
    found: list[Question | NativeQuestion] = []
    for field in fields(state):
        native = _native(field.name)
        found.extend(native or _QUESTIONS[field.name](getattr(state, field.name)))
    return found


def _native(name: str) -> list[NativeQuestion]:
    """The questions of a field and their answers now; none where PyTorch does not export them."""
    found = []
    for library, symbol, arguments in _NATIVE.get(name, ()):
        address = exported_address(library, symbol)
        if not address:
            return []
        ask = _ASK(address)
        found += [(address, argument, ask(argument)) for argument in arguments]
    return found
