"""Whether somebody watches the gradients of leaves: hooks, a reducer of DDP.

Only where nobody does may a compiled step assign `.grad` itself: else each gradient has to go
through its leaf's AccumulateGrad node. Hooks of such nodes cannot be listed in Python; a small C++
function asks libtorch. Without it, everybody counts as watched.
"""

from __future__ import annotations

import ctypes
import importlib.resources
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.torch.ambient_state import call_untraced
from braze.compat.torch.tensor_abi import hook_functions, implementation_address
from braze.errors import BuildFailed, CannotBuild
from braze.ir.kernels.kernel import SourceUnit
from braze.locks import make_lock
from braze.options import config
from braze.runtime.launch.build_cache import library_of
from braze.runtime.launch.cpp_compiler import NoCompiler, find_toolchain


@final
class GradientWatch:
    """Asks libtorch; builds what it needs at the first question."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._asked: _Asked | None = None
        self._tried = False

    def first_watched(self, leaves: Sequence[torch.Tensor]) -> int:
        """The number of the first leaf that somebody watches or that has no gradient, or -1."""
        for number, leaf in enumerate(leaves):
            # Of a tensor without gradients libtorch must not be asked.
            if not leaf.requires_grad or leaf._post_accumulate_grad_hooks:
                return number
        asked = self._asked or self._ready()
        if asked is None:
            return 0 if leaves else -1
        return asked(leaves)

    def is_watched(self, leaf: torch.Tensor) -> bool:
        """Whether somebody watches the gradient of one leaf."""
        return self.first_watched((leaf,)) == 0

    def addresses(self) -> tuple[int, int, int] | None:
        """The C++ function's, and of its first two arguments; None without it."""
        asked = self._ready()
        return None if asked is None else (asked.address, *asked.functions)

    def _ready(self) -> _Asked | None:
        with self._lock:
            if not self._tried:
                self._asked = _load()
                self._tried = True
        return self._asked


WATCH = GradientWatch()


def none_watched(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether nobody watches the gradients of these leaves."""
    return WATCH.first_watched(leaves) < 0


# --- private ---------------------------------------------------------------------------------


@final
class _Asked:
    """The function of gradient_hooks.cpp; functions: what it asks of libtorch."""

    def __init__(self, function: Any, functions: tuple[int, int]) -> None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
        function.restype = ctypes.c_long
        self.address: int = ctypes.cast(function, ctypes.c_void_p).value or 0
        self.functions = functions
        self._function = function

    def __call__(self, leaves: Sequence[torch.Tensor]) -> int:
        """The number of the first that is watched, or -1. All need gradients."""
        # Not ctypes' array: each length of them is a class.
        addresses = array("Q", map(implementation_address, leaves))
        return int(self._function(*self.functions, addresses.buffer_info()[0], len(leaves)))


def _load() -> _Asked | None:
    options = config.snapshot()
    functions = hook_functions()
    toolchain = find_toolchain(options)
    if functions is None or isinstance(toolchain, NoCompiler):
        return None
    text = (
        importlib.resources.files("braze.runtime.native").joinpath("gradient_hooks.cpp").read_text()
    )
    flags = ("-shared", "-fPIC", "-O1", "-x", "c++", "-std=c++17")
    plain = replace(toolchain, flags=flags, libraries=("-lstdc++",))
    try:
        library = library_of((SourceUnit("gradient_hooks", text),), plain, options)
    except (BuildFailed, CannotBuild):
        return None
    asked = _Asked(library.first_watched, functions)
    return asked if call_untraced(_answers_right, (asked,), {}) else None


def _answers_right(asked: _Asked) -> bool:
    """Whether the answers are right, time and again: before, with and after a history, and with
    a hook."""

    def is_watched(leaf: torch.Tensor) -> bool:
        return asked((leaf,)) == 0

    with torch.enable_grad():
        leaf = torch.empty(1, requires_grad=True, device="cpu")
        for _ in range(3):
            if is_watched(leaf):
                return False
            history = leaf * leaf
            if not (is_watched(leaf) and is_watched(leaf)):
                return False
            del history
        leaf.register_hook(_same)
        return is_watched(leaf)


def _same(gradient: torch.Tensor) -> torch.Tensor:
    return gradient
