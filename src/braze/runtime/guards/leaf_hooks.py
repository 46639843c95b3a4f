"""Whether somebody watches the gradients of leaves: hooks, a reducer of DDP.

Only where nobody does may a compiled step assign `.grad` itself: else each gradient has to go
through its leaf's AccumulateGrad node. Hooks of such nodes cannot be listed in Python; a small C++
function asks libtorch, and reads the lists of hooks in the nodes that are alive. Their offsets are
found by hooks that are put on a node for a trial; where that fails, a live node counts as watched,
and without the function everybody does.
"""

from __future__ import annotations

import ctypes
import importlib.resources
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch.autograd.graph import get_gradient_edge

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

    def addresses(self) -> tuple[int, int] | None:
        """The addresses of the C++ function and of its first argument; None without it."""
        asked = self._ready()
        return None if asked is None else (asked.address, asked.questions)

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
    """The functions of gradient_hooks.cpp.

    questions: the address of their first argument: two functions of libtorch, and the offsets of
        the lists of hooks in a node.
    """

    def __init__(self, library: Any, functions: tuple[int, int]) -> None:
        self._function = library.first_watched
        self._function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
        self._function.restype = ctypes.c_long
        self._read = library.read_node
        self._read.argtypes = (*self._function.argtypes[:2], ctypes.c_void_p, ctypes.c_long)
        self._read.restype = ctypes.c_long
        self._arguments = array("q", (*functions, -1, -1))
        self.address: int = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.questions: int = self._arguments.buffer_info()[0]

    def __call__(self, leaves: Sequence[torch.Tensor]) -> int:
        """The number of the first that is watched, or -1. All need gradients."""
        # Not ctypes' array: each length of them is a class.
        addresses = array("Q", map(implementation_address, leaves))
        return int(self._function(self.questions, addresses.buffer_info()[0], len(leaves)))

    def learn_lists(self) -> None:
        """Finds the lists of hooks in a node: the words that its first hook of each kind makes a
        vector of one element."""
        leaf = torch.empty(1, requires_grad=True, device="cpu")
        node = get_gradient_edge(leaf).node
        places = []
        for register in (node.register_prehook, node.register_hook):
            before = self._words(leaf)
            register(_keep)
            places.append(_new_vectors(before, self._words(leaf)))
        if all(len(found) == 1 for found in places) and places[0] != places[1]:
            for i, (place,) in enumerate(places):
                self._arguments[2 + i] = place * self._arguments.itemsize

    @property
    def knows_lists(self) -> bool:
        """Whether hooks of a live node can be told from the node's being alive."""
        return self._arguments[2] >= 0

    def _words(self, leaf: torch.Tensor) -> list[int]:
        address, words = array("Q", (implementation_address(leaf),)), array("Q", bytes(8 * _READ))
        starts = address.buffer_info()[0], words.buffer_info()[0]
        return words.tolist() if self._read(self.questions, *starts, _READ) else []


# Words of a node that are searched for its lists of hooks; it has more.
_READ = 40


def _new_vectors(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Where an empty vector became one of a single pointer."""
    return [
        i
        for i in range(len(after) - 2)
        if not any(before[i : i + 3]) and after[i] and after[i] + 8 == after[i + 1] <= after[i + 2]
    ]


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
    asked = _Asked(library, functions)
    return asked if call_untraced(_learns_and_answers, (asked,), {}) else None


def _learns_and_answers(asked: _Asked) -> bool:
    """Whether the answers are right, time and again: before, with and after a history, and with
    hooks of each kind."""

    def is_watched(leaf: torch.Tensor) -> bool:
        return asked((leaf,)) == 0

    with torch.enable_grad():
        asked.learn_lists()
        leaf, *hooked = [torch.empty(1, requires_grad=True, device="cpu") for _ in range(4)]
        for _ in range(3):
            if is_watched(leaf):
                return False
            history = leaf * leaf
            if is_watched(leaf) == asked.knows_lists or is_watched(leaf) == asked.knows_lists:
                return False
            del history
        nodes = [get_gradient_edge(other).node for other in hooked[:2]]
        nodes[0].register_hook(_keep)
        nodes[1].register_prehook(_keep)
        hooked[2].register_hook(_keep)
        return all(map(is_watched, hooked))


def _keep(*gradients: object) -> None:
    """A hook that changes nothing."""
