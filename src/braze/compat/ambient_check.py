"""The ambient state compared question by question: what a guard runs at every call.

`AmbientState.holds` makes a whole vector to compare it; here each question goes to torch's C
function and the first difference ends the check. A field that has no row makes the state be
compared as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from braze.compat.ambient import AmbientState, default_device

# A function, its argument (or None for none), and the answer that is expected.
Question = tuple[Callable[..., Any], str | None, Any]

_AUTOCAST = (("cpu",), ("cuda",))
_SDPA = (
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
)


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
