"""The functions of torch's C modules that set state of the thread or process, found by their names.

Capture calls such a function for real, on fake tensors, only where it keeps and puts back what is
set
(`ambient_state.py`): a graph's operators would run under what is set outside of it, and what the
program set would be lost or stay. PyTorch adds functions; so they are found by what they are
called, not listed.
"""

from __future__ import annotations

import re
import types
from typing import Any

import torch

_MODULES: tuple[Any, ...] = (
    torch._C,
    *[getattr(torch._C, name, None) for name in ("_autograd", "_functorch", "_profiler")],
)
_VERBS = frozenset(
    """
    activate add begin clear deactivate decrement define disable enable end enter exclude exit force
    include increment init leave override pop push register remove reset restore set start stash
    stop swap unregister unset
    """.split()
)
_QUESTIONS = frozenset({"is", "get", "are", "can", "has", "should", "top", "peek", "len"})
# Prefixes that say of which part of torch a function is.
_PARTS = frozenset({"jit", "cuda", "accelerator", "autograd", "dispatch", "tls", "autocast"})
# What belongs to a tensor or to the interpreter is no state of the thread; operators have it, too.
_OF_TENSORS = frozenset(
    {
        "_add_batch_dim",
        "_add_docstr",
        "_increment_version",
        "_remove_batch_dim",
        "_set_conj",
        "_set_creation_meta",
        "_set_neg",
        "_set_tensor_metadata",
        "_swap_tensor_impl",
        "_unsafe_set_version_counter",
    }
)
# What capture keeps and puts back, by way of `AmbientState`.
_KEPT = frozenset(
    {
        "_set_deterministic_algorithms",
        "_set_grad_enabled",
        "_set_sdp_use_cudnn",
        "_set_sdp_use_flash",
        "_set_sdp_use_math",
        "_set_sdp_use_mem_efficient",
        "_set_sdp_use_overrideable",
        "autocast_decrement_nesting",
        "autocast_increment_nesting",
        "clear_autocast_cache",
        "set_anomaly_enabled",
        "set_autocast_cache_enabled",
        "set_autocast_cpu_dtype",
        "set_autocast_cpu_enabled",
        "set_autocast_dtype",
        "set_autocast_enabled",
        "set_autocast_gpu_dtype",
    }
)


def sets_state(name: str) -> bool:
    """Whether a function of C is one that sets state, as far as its name tells."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in spaced.split("_") if word]
    while words and words[0] in _PARTS:
        del words[0]
    if not words or words[0] in _QUESTIONS:
        return False
    asks = words[-1] in ("enabled", "allowed", "supported", "warn") and words[0] not in _VERBS
    return not (asks or _VERBS.isdisjoint(words))


def _found() -> frozenset[object]:
    found = set()
    for module in _MODULES:
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, type) or not callable(value) or name in _OF_TENSORS | _KEPT:
                continue
            if sets_state(name):
                found.add(value)
    return frozenset(found)


STATE_SETTERS: frozenset[Any] = _found()
_NAMES = frozenset({setter.__name__ for setter in STATE_SETTERS})


def names_setter(code: types.CodeType) -> bool:
    """Whether a Python function of torch's calls such a function by its name."""
    return not _NAMES.isdisjoint(code.co_names)
