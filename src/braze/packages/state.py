"""The tensors of a package: parameters, buffers and constants, as bytes of their storages.

Tensors that share a storage share it in the process that loads them: tied weights, and caches that
are views of one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.errors import PackageError, UserError
from braze.packages.archive import Archive, damaged
from braze.packages.values import dtype_named, name_of


@final
@dataclass(slots=True)
class _Stored:
    """A tensor to be written. names: in state dicts, or where the program reaches it. is_optional:
    no state dict of the model has it. is_bound_later: its contents are not written."""

    tensor: torch.Tensor
    names: list[str]
    is_optional: bool
    is_bound_later: bool


@final
class StateWriter:
    """Gathers the tensors of a package, by identity. Storages are written once."""

    def __init__(
        self,
        names: Mapping[int, Sequence[str]],
        saved: Iterable[int],
        bound_later: bool,
        external: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        """names: by the identity of a tensor, what its module calls it. saved: identities of those
        that state dicts have; bound_later: their contents are given when the package is loaded.
        external: the key and name of those that are given themselves then."""
        self._names, self._saved, self._bound_later = names, frozenset(saved), bound_later
        self._external = external or {}
        self._stored: dict[int, _Stored] = {}
        self._places: dict[int, int] = {}

    def add(self, tensor: torch.Tensor, called: str) -> int:
        """The number of a tensor. called: what it is called where it is in no state dict."""
        if id(tensor) not in self._places:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                raise UserError(
                    f"braze.package: {called} is {tensor.layout} on {tensor.device}. Packages hold "
                    "dense tensors of the CPU: move the model there."
                )
            given = self._external.get(id(tensor))
            names = list(self._names.get(id(tensor), (called,)))
            self._places[id(tensor)] = len(self._places)
            is_saved = id(tensor) in self._saved
            later = given is not None or (is_saved and self._bound_later)
            self._stored[id(tensor)] = _Stored(tensor, names, not is_saved, later)
        return self._places[id(tensor)]

    def write(self, members: dict[str, object]) -> dict[str, object]:
        """The tensors as JSON; the bytes of their storages are added to members."""
        storages: dict[int, int] = {}
        kept: list[torch.UntypedStorage] = []
        tensors = []
        for stored in self._stored.values():
            storage = stored.tensor.untyped_storage()
            number = storages.setdefault(storage._cdata, len(storages))
            if number == len(kept):
                kept.append(storage)
            tensors.append(_data(stored, number))
        filled = {t["storage"] for t in tensors if not t["later"]}
        for number in sorted(filled):
            members[f"storages/{number}"] = _bytes(kept[number])
        sizes = [storage.nbytes() for storage in kept]
        left_out = self._names.keys() - self._stored.keys()
        unused = [name for i, names in self._names.items() if i in left_out for name in names]
        external = [
            [*self._external[key], number]
            for key, number in self._places.items()
            if key in self._external
        ]
        state = {"storages": sizes, "tensors": tensors, "unused": unused}
        return {**state, "external": external} if external else state


def state_of(
    owned: Iterable[object], external: Mapping[str, object], *, bound_later: bool
) -> StateWriter:
    """What writes the tensors of modules, which it names as their state dicts do.

    owned: objects, of which the modules count; bound_later: the contents of their state dicts are
    given when the package is loaded. external: modules and tensors by the name under which they are
    given then. Raises UserError for another object.
    """
    names: dict[int, list[str]] = {}
    saved: set[int] = set()
    for module in {id(each): each for each in owned}.values():
        if isinstance(module, torch.nn.Module):
            saved |= {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
            for name, tensor in tensors_of(module):
                known = names.setdefault(id(tensor), [])
                known += [name] * (name not in known)
    given: dict[int, tuple[str, str]] = {}
    for key, value in external.items():
        for name, tensor in tensors_of(value):
            given.setdefault(id(tensor), (key, name))
    return StateWriter(names, saved, bound_later, given)


def tensors_of(value: object) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a module, by name; a tensor itself has none. Raises UserError for another
    object."""
    if isinstance(value, torch.Tensor):
        return [("", value)]
    if not isinstance(value, torch.nn.Module):
        raise UserError(
            f"external data are modules and tensors, not a {type(value).__qualname__}: what else a "
            "compiled function reads is part of its program."
        )
    kept = value.state_dict(keep_vars=True)
    found = [*kept.items(), *value.named_buffers(remove_duplicate=False)]
    return [(name, tensor) for name, tensor in found if isinstance(tensor, torch.Tensor)]


@final
@dataclass(slots=True)
class PackageState:
    """The tensors of a loaded package. names: of each tensor in a state dict. missing: those that
    wait for `load_state_dict`. unused: names that state dicts have, and no program needs. optional:
    tensors that state dicts of the model do not have. generation: how often `load` was called."""

    tensors: list[torch.Tensor]
    names: dict[str, int]
    unused: frozenset[str]
    missing: set[int] = field(default_factory=set)
    optional: set[int] = field(default_factory=set)
    generation: int = 0

    def load(self, given: Mapping[str, Any], strict: bool) -> None:
        """Copy tensors of these names into those of the package. Raises PackageError, and changes
        nothing, where names or shapes do not fit."""
        wrong = [f"{name} is missing" for name in self._required(given)] if strict else []
        if strict:
            known = self.names.keys() | self.unused
            wrong += [f"{name} is not in the package" for name in given if name not in known]
        chosen = {name: value for name, value in given.items() if name in self.names}
        for name, value in chosen.items():
            own = self.tensors[self.names[name]]
            if not isinstance(value, torch.Tensor):
                wrong.append(f"{name} is a {type(value).__qualname__}")
            elif value.shape != own.shape:
                wrong.append(f"{name} has the shape {tuple(value.shape)}, not {tuple(own.shape)}")
        if wrong:
            raise PackageError(f"the state does not fit the package: {'; '.join(wrong)}.")
        with torch.no_grad():
            for name, value in chosen.items():
                self.tensors[self.names[name]].copy_(value)
                self.missing.discard(self.names[name])
        self.generation += 1

    def replace(self, number: int, tensor: torch.Tensor) -> str | None:
        """Take another tensor in the place of one. Returns why it does not fit, or None."""
        own = self.tensors[number]
        for what in ("dtype", "device", "layout", "shape"):
            if getattr(tensor, what) != getattr(own, what):
                return f"has the {what} {getattr(tensor, what)}, not {getattr(own, what)}."
        if tensor.stride() != own.stride():
            return f"has the strides {tensor.stride()}, not {own.stride()}."
        if tensor.storage_offset() != own.storage_offset():
            return f"begins at {tensor.storage_offset()} of its storage: clone it."
        self.tensors[number] = tensor.detach()
        self.missing.discard(number)
        return None

    def _required(self, given: Mapping[str, object]) -> list[str]:
        found = {self.names[name] for name in given if name in self.names}
        first = {number: name for name, number in reversed(self.names.items())}
        found |= self.optional
        return [name for number, name in first.items() if number not in found]

    def missing_names(self) -> list[str]:
        """The first name of each tensor that waits for its contents."""
        first = {number: name for name, number in reversed(self.names.items())}
        return sorted(first[number] for number in self.missing)


def read_state(archive: Archive, data: Mapping[str, Any]) -> PackageState:
    """The tensors that a package holds. Raises InvalidPackage."""
    storages: dict[int, torch.Tensor] = {}
    for number, size in enumerate(data["storages"]):
        memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        content = archive.members.get(f"storages/{number}")
        if content is not None:
            if len(content) != size:
                raise damaged(archive.path, f"storage {number} has {len(content)} bytes")
            if size:
                memory.copy_(torch.frombuffer(content, dtype=torch.uint8))
        storages[number] = memory
    state = PackageState([], {}, frozenset(data["unused"]))
    for number, each in enumerate(data["tensors"]):
        if each["later"]:
            state.missing.add(number)
        elif f"storages/{each['storage']}" not in archive.members:
            raise damaged(archive.path, f"it lacks storage {each['storage']}")
        if each["optional"]:
            state.optional.add(number)
        state.names |= dict.fromkeys(each["names"], number)
        state.tensors.append(_tensor(storages[each["storage"]], each))
    return state


# --- private ---------------------------------------------------------------------------------


def _data(stored: _Stored, storage: int) -> dict[str, Any]:
    tensor = stored.tensor
    return {
        "names": stored.names,
        "storage": storage,
        "dtype": name_of(tensor.dtype),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": tensor.storage_offset(),
        "optional": stored.is_optional,
        "later": stored.is_bound_later,
    }


def _bytes(storage: torch.UntypedStorage) -> Any:
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return flat.numpy()


def _tensor(memory: torch.Tensor, data: Mapping[str, Any]) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype_named(data["dtype"]), device="cpu")
    storage = memory.untyped_storage()
    return empty.set_(storage, data["offset"], tuple(data["shape"]), tuple(data["stride"]))
