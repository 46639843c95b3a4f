"""The ambient state compared question by question: what a guard runs at every call.

`AmbientState.holds` makes a whole vector to compare it; here each question goes to torch's C
function and the first difference ends the check. A field that has no row makes the state be
compared as a whole.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, final

import torch
from torch.autograd import forward_ad

from braze.compat import private_names as private
from braze.compat.torch.ambient_state import CONVOLUTIONS, AmbientState, default_device
from braze.compat.torch.tensor_abi import exported_address
from braze.compat.torch.tracers import (
    EXCLUDED_BELOW_AUTOGRAD,
    FX_QUESTION,
    INCLUDED_BY_TRACERS,
    unusual_keys,
)
from braze.frozen import frozen

# A function, its argument (or None for none), and the answer that is expected.
Question = tuple[Callable[..., Any], str | None, Any]

_AUTOCAST = (("cpu",), ("cuda",))
_SDPA = (
    private.sdpa_flash,
    private.sdpa_efficient,
    private.sdpa_math,
    private.sdpa_cudnn,
    private.sdpa_overrideable,
)


# The same of C++: the address of a function, three arguments (of which it may have fewer), the bits
# of its result that it sets, and what they are.
NativeQuestion = tuple[int, int, int, int, int, int]


@final
@frozen
class _NativeQuestion:
    """A function of C++ that answers what the Python function of the field asks it. mask: the bits
    of its result. of_context: it is a method of PyTorch's global context, which comes before its
    own arguments. arguments: of each time that it is asked."""

    library: str
    symbol: str
    arguments: tuple[tuple[int, ...], ...] = ((),)
    mask: int = 0xFF
    of_context: bool = False


def _of_context(method: str, kinds: str = "v", *arguments: int) -> _NativeQuestion:
    """kinds: the mangled types of the method's arguments."""
    name = f"_ZNK2at7Context{method}E{kinds}"
    return _NativeQuestion("libtorch_cpu.so", name, (arguments,), of_context=True)


_DEVICE_TYPES = ((0,), (1,))  # the CPU and CUDA devices
_CUDA, _CONV = 1, 1  # of the enumerations of float32's backends and operators
_NATIVE: dict[str, tuple[_NativeQuestion, ...]] = {
    "grad": (_NativeQuestion("libc10.so", "_ZN3c108GradMode10is_enabledEv"),),
    "inference": (_NativeQuestion("libc10.so", "_ZN3c1013InferenceMode10is_enabledEv"),),
    "autocast": (
        _NativeQuestion(
            "libtorch_cpu.so",
            "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",
            _DEVICE_TYPES,
        ),
        _NativeQuestion(
            "libtorch_cpu.so",
            "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
            _DEVICE_TYPES,
        ),
    ),
    "autocast_cache": (
        _NativeQuestion("libtorch_cpu.so", "_ZN2at8autocast25is_autocast_cache_enabledEv"),
    ),
    "default_dtype": (_NativeQuestion("libc10.so", "_ZN3c1031get_default_dtype_as_scalartypeEv"),),
    "deterministic": (_of_context("23deterministicAlgorithms"),),
    "deterministic_warn_only": (_of_context("31deterministicAlgorithmsWarnOnly"),),
    "sdpa": (
        _of_context("19userEnabledFlashSDP"),
        _of_context("26userEnabledMemEfficientSDP"),
        _of_context("18userEnabledMathSDP"),
        _of_context("19userEnabledCuDNNSDP"),
        _of_context("26userEnabledOverrideableSDP"),
    ),
    "convolutions": (
        _of_context("16userEnabledCuDNN"),
        _of_context("16float32Precision", "NS_14Float32BackendENS_9Float32OpE", _CUDA, _CONV),
    ),
    "function_modes": (
        _NativeQuestion(
            "libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", mask=-1
        ),
    ),
    "dispatch_modes": (
        _NativeQuestion("libc10.so", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", mask=-1),
    ),
    "unusual_keys": (
        _NativeQuestion(
            "libc10.so",
            "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
            tuple([(key,) for key in INCLUDED_BY_TRACERS]),
        ),
        _NativeQuestion(
            "libc10.so",
            "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE",
            ((EXCLUDED_BELOW_AUTOGRAD,),),
        ),
    ),
}
_MOST_ARGUMENTS = 3
_ASK = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * _MOST_ARGUMENTS)


def _one(function: Callable[[], object]) -> Callable[[object], list[Question]]:
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


def _convolutions(expected: Any) -> list[Question]:
    enabled, precision = expected
    asked = partial(_have_precision, precision)  # a text is another object each time
    return [(private.cudnn_enabled, None, enabled), (asked, None, True)]


def _have_precision(expected: str) -> bool:
    return expected == private.precision_of(*CONVOLUTIONS)


def _forward_level(expected: int) -> list[Question]:
    return [(vars(forward_ad).__getitem__, "_current_level", expected)]


def _fx_tracing(expected: bool) -> list[Question]:
    return [(*FX_QUESTION, expected)]


def _has_default_device(expected: torch.device) -> bool:
    return default_device() == expected


_QUESTIONS: dict[str, Callable[[Any], list[Question]]] = {
    "grad": _one(torch.is_grad_enabled),
    "inference": _one(torch.is_inference_mode_enabled),
    "autocast": _autocast,
    "autocast_cache": _one(torch.is_autocast_cache_enabled),
    "default_dtype": _one(torch.get_default_dtype),
    "deterministic": _one(private.is_deterministic),
    "deterministic_warn_only": _one(private.deterministic_only_warns),
    "sdpa": _sdpa,
    "function_modes": _one(private.function_mode_count),
    "dispatch_modes": _one(private.dispatch_mode_count),
    "anomaly": _anomaly,
    "default_device": _device,
    "forward_level": _forward_level,
    "convolutions": _convolutions,
    "unusual_keys": _one(unusual_keys),
    "fx_tracing": _fx_tracing,
}


def ambient_questions(state: object) -> list[Question] | None:
    """The questions that hold together exactly where `state.holds()`; None where some field of
    the state has none."""
    if not isinstance(state, AmbientState):
        return None
    names = [field.name for field in fields(state)]
    if not _QUESTIONS.keys() >= set(names):
        return None
    return [question for name in names for question in _QUESTIONS[name](getattr(state, name))]


def quick_questions(state: Any) -> tuple[list[Question], list[NativeQuestion]] | None:
    """As `ambient_questions`, and those that C++ answers in the place of most of them: of a state
    that holds now."""
    questions = ambient_questions(state)
    if questions is None or not state.holds():
        return None if questions is None else (questions, [])
    slow: list[Question] = []
    quick: list[NativeQuestion] = []
    for field in fields(state):
        native = _native_questions(field.name)
        quick += native
        if not native:
            slow += _QUESTIONS[field.name](getattr(state, field.name))
    return slow, quick


def _native_questions(name: str) -> list[NativeQuestion]:
    """The questions of a field and their answers now; none where PyTorch does not export them."""
    found = []
    for native in _NATIVE.get(name, ()):
        address = exported_address(native.library, native.symbol)
        if not address or (native.of_context and not _context()):
            return []
        ask = _ASK(address)
        for own in native.arguments:
            given = (_context(), *own) if native.of_context else own
            first, second, third = (*given, *[0] * (_MOST_ARGUMENTS - len(given)))
            answer = ask(first, second, third) & native.mask
            found.append((address, first, second, third, native.mask, answer))
    return found


@functools.cache
def _context() -> int:
    """Where PyTorch's global context is; 0 where this build does not say it."""
    address = exported_address("libtorch_cpu.so", "_ZN2at13globalContextEv")
    return ctypes.CFUNCTYPE(ctypes.c_void_p)(address)() or 0 if address else 0
