"""Whether tensors hold what they held: their storages, versions, and who else got at their memory.

A version counts writes through a tensor and its views. Through `.data`, a NumPy array, DLPack or
the storage itself a program writes without that. The C functions behind those are replaced, once in
the process, by ones that count accesses to storages that are watched; what they hand out is found
by the number of references to the storage while it is alive. What is written to an address that a
program kept from `data_ptr()` is not seen.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat import private_names as private
from braze.compat.torch.tensor_abi import DATA, memory_functions
from braze.locks import make_lock
from braze.options import Options
from braze.runtime.launch.cpp_compiler import NoCompiler, find_toolchain
from braze.runtime.launch.kernel_launcher import build_extension_module

# Of each tensor: its storage, its address, its version, and how often its memory was handed out.
States: TypeAlias = tuple[object, ...]


@final
class WatchedStorage:
    """A storage whose accesses are counted while this object is alive. Its address is given to no
    other storage meanwhile; its memory may go."""

    __slots__ = ("__weakref__", "_address", "_counts", "_reference")

    def __init__(self, storage: Any, counts: dict[int, int]) -> None:
        self._reference: int = storage._weak_ref()
        self._address: int = storage._cdata
        self._counts = counts
        counts.setdefault(self._address, 0)

    def is_expired(self) -> bool:
        """Whether the memory is gone."""
        return bool(torch.UntypedStorage._expired(self._reference))

    def __del__(self) -> None:
        self._counts.pop(self._address, None)
        torch.UntypedStorage._free_weak_ref(self._reference)


@final
class StorageWatch:
    """Watches storages of the process. Where the functions cannot be replaced, none is watched."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._counts: dict[int, int] = {}
        self._watched: weakref.WeakValueDictionary[int, WatchedStorage] = (
            weakref.WeakValueDictionary()
        )
        self._module: Any = None
        self._tried = False

    def is_ready(self, options: Options) -> bool:
        """Whether storages can be watched; the first question replaces the functions."""
        with self._lock:
            if not self._tried:
                self._module = _connected(self._counts, options)
                self._tried = True
                if self._module is None:
                    message = "weights are packed at each call: writes to them cannot be watched"
                    extra = {"origin": "", "artefact": "perf_hints"}
                    logging.getLogger("braze.perf_hints").info(message, extra=extra)
        return self._module is not None

    def states(self, tensors: tuple[torch.Tensor, ...]) -> States:
        """What stays as it is while nobody can have written to the tensors, once they are watched.
        Raises RuntimeError for tensors that count no versions."""
        states: States = self._module.states(tensors)
        return states

    def watch(self, tensors: Sequence[torch.Tensor]) -> tuple[WatchedStorage, ...]:
        """Count accesses to the tensors' memory while the result is alive."""
        with self._lock:
            return tuple([self._watch(tensor) for tensor in tensors])

    def is_sole_owner(self, tensor: torch.Tensor) -> bool:
        """Whether nothing but the tensor, and Python's object of its storage, holds its memory,
        which PyTorch allocated."""
        storage = self._module.storage(tensor)
        if not storage.resizable() or storage.is_shared():
            return False
        return private.storage_references(storage._cdata) <= _OWN_REFERENCES

    def _watch(self, tensor: torch.Tensor) -> WatchedStorage:
        storage = self._module.storage(tensor)
        found = self._watched.get(storage._cdata)
        if found is None:
            found = self._watched[storage._cdata] = WatchedStorage(storage, self._counts)
        return found


WATCH = StorageWatch()

# --- private ---------------------------------------------------------------------------------

_OWN_REFERENCES = 2  # of the tensor and of the Python object


def _connected(counts: dict[int, int], options: Options) -> object:
    """The extension module; None where it cannot be built or answers otherwise."""
    functions, toolchain = memory_functions(), find_toolchain(options)
    if functions is None or isinstance(toolchain, NoCompiler):
        return None
    module = build_extension_module("storage_watch", toolchain, options)
    if module is None or not module.connect(private.TensorBase, counts, DATA, functions):
        return None
    return module if _answers_right(module, counts) else None


_ACCESSES: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda tensor: tensor.data,
    lambda tensor: setattr(tensor, "data", tensor),
    lambda tensor: tensor.untyped_storage(),
    lambda tensor: tensor.data_ptr(),
    private.to_dlpack,
)


def _answers_right(module: Any, counts: dict[int, int]) -> bool:
    """Whether each access is counted, and a write changes the state."""
    with torch.inference_mode(False):  # whose tensors count versions
        sample = torch.zeros(2, device="cpu")
    address = module.storage(sample)._cdata
    counts[address] = 0
    try:
        for access in _ACCESSES:
            before = counts[address]
            access(sample)
            if counts[address] <= before:
                return False
        before = module.states((sample,))
        if before != module.states((sample,)):
            return False
        sample.add_(1)
        return bool(before != module.states((sample,)))
    finally:
        del counts[address]
