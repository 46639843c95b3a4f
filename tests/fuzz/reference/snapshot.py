"""Everything that can be reached from a program's globals, as plain data that two processes can
compare. Nothing of the program is kept alive, and none of its code runs."""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import re
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, final

import torch
from torch.utils.hooks import RemovableHandle

Entry: TypeAlias = tuple[str, Any]
MODULE = "fuzz_program"
_TEXTS = (torch.dtype, torch.device, range, slice, complex, torch.layout, torch.memory_format)
_UNSEEN = frozenset(
    {"__builtins__", "__name__", "__doc__", "__loader__", "__spec__", "__package__", "__file__"}
) | {"run", "__warningregistry__", "__annotations__"}
# What `torch.compile` itself puts into a program's globals.
_OF_TORCH_COMPILE = ("__builtins_dict__", "__resume_at", "__compiled_fn", "__import_")
_OF_CLASSES = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__slotnames__"}
)
# Addresses of a process are others in the next one: of such numbers only the kind is compared.
_ADDRESSES = 1 << 40, 1 << 48
# Attributes that the standard library keeps for itself, by the name of the class.
_KEPT_BY_THE_LIBRARY = {"Logger": ("_cache", "manager", "parent")}
_LARGEST = 600  # elements of a tensor that are compared


@final
@dataclasses.dataclass(frozen=True, slots=True)
class TensorState:
    """A tensor as it was: facts by name, and its numbers."""

    facts: dict[str, Any]
    data: list[Any]


@final
class Observer:
    """Observes one program over its life: versions of tensors count as "written to since"."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._entries: list[Entry] = []
        self._left = 0

    def observe(self, roots: dict[str, Any]) -> list[Entry]:
        """Everything reachable from the roots, now."""
        self._numbers, self._storages, self._entries = {}, {}, []
        self._left = 4000
        for name, value in roots.items():
            if name in _UNSEEN or name.startswith(_OF_TORCH_COMPILE):
                continue
            if not _is(value, types.ModuleType):
                self._visit(name, value)
        return self._entries

    def _note(self, path: str, what: Any) -> None:
        self._entries.append((path, what))

    def _visit(self, path: str, value: Any) -> None:
        self._left -= 1
        if self._left < 0 or path.count(".") + path.count("[") > 14:
            return
        if type(value) is int and _ADDRESSES[0] < value < _ADDRESSES[1]:
            self._note(path, ("int", "an address"))
        elif value is None or type(value) in (bool, int, str, bytes):
            self._note(path, (type(value).__name__, without_addresses(repr(value))))
        elif type(value) is float:
            self._note(path, ("float", value))
        elif _is(value, _TEXTS):
            self._note(path, (type(value).__name__, repr(value)))
        elif self._is_new(path, value):
            if _is(value, torch.Tensor):
                self._visit_tensor(path, value)
            else:
                self._visit_object(path, value)

    def _is_new(self, path: str, value: Any) -> bool:
        if type(value) in (tuple, frozenset, torch.Size):  # constants may be one object or several
            return True
        identity = _identity(value)
        known = self._numbers.get(identity)
        if known is None:
            self._numbers[identity] = len(self._numbers)
            return True
        self._note(path, ("object", known))
        return False

    def _visit_tensor(self, path: str, tensor: torch.Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            self._note(path, self._tensor_state(tensor, path.endswith(".grad")))
            grad = tensor.grad if tensor.is_leaf and tensor.requires_grad else None
            hooks = tensor._backward_hooks
        if grad is not None:
            self._visit(f"{path}.grad", grad)
        if hooks:
            self._visit(f"{path}.hooks", hooks)
        for name, item in _attributes(tensor):
            self._visit(f"{path}.{name}", item)

    def _tensor_state(self, tensor: torch.Tensor, is_grad: bool) -> TensorState:
        """is_grad: a leaf's gradient, of which it is not compared how often it was written to."""
        facts: dict[str, Any] = {"class": type(tensor).__name__, "dtype": str(tensor.dtype)}
        facts |= {"shape": tuple(tensor.shape), "layout": str(tensor.layout)}
        facts |= {"device": str(tensor.device), "inference": tensor.is_inference()}
        facts |= {"requires_grad": tensor.requires_grad, "leaf": tensor.is_leaf}
        if tensor.is_meta:
            return TensorState(facts | {"stride": tensor.stride()}, [])
        if tensor.is_sparse:
            return TensorState(facts, [repr(tensor.to_dense().tolist())])
        storage = tensor.untyped_storage()
        number = self._storages.setdefault(storage._cdata, len(self._storages))
        facts |= {"stride": tensor.stride(), "offset": tensor.storage_offset()}
        facts |= {"storage": number, "bytes": storage.nbytes()}
        facts |= {"conj": tensor.is_conj(), "neg": tensor.is_neg()}
        if not tensor.is_inference() and not is_grad:
            known = self._versions.get(id(tensor))
            is_known = known is not None and known[0]() is tensor
            written = is_known and known is not None and known[1] != tensor._version
            facts["written"] = written
            self._versions[id(tensor)] = weakref.ref(tensor), tensor._version
        data = tensor.detach().flatten()[:_LARGEST].tolist()
        return TensorState(facts, data)

    def _visit_object(self, path: str, value: Any) -> None:
        number = self._numbers.get(_identity(value))
        kind = type.__dict__["__qualname__"].__get__(type(value))
        self._note(path, ("new", kind, number))
        for types_, visit in _VISITORS:
            if _is(value, types_):
                for name, part in visit(value):
                    self._visit(path + name, part)
        is_foreign = _is(value, types.FunctionType) and value.__module__ != MODULE
        if not is_foreign and not _is(value, (type, types.ModuleType, RemovableHandle)):
            for name, part in _attributes(value):
                if name not in _KEPT_BY_THE_LIBRARY.get(kind, ()):
                    self._visit(f"{path}.{name}", part)


def _identity(value: Any) -> int:
    """The address of an object; of a module that of its dict, which its compiled form shares."""
    is_module = _is(value, torch.nn.Module)
    return id(object.__getattribute__(value, "__dict__") if is_module else value)


def _is(value: Any, kinds: Any) -> bool:
    """Whether a value is of these types: `isinstance` asks a value for its `__class__`."""
    return issubclass(type(value), kinds)


def _attributes(value: Any) -> Iterator[Entry]:
    """The instance dict and the slots, without running the program's code."""
    own = None
    if getattr(type(value), "__dictoffset__", 0):
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = None
    if isinstance(own, dict):
        yield from [(str(name), item) for name, item in dict.items(own)]
    for base in type.__dict__["__mro__"].__get__(type(value)):
        if base.__module__ != MODULE:
            continue
        for name in base.__dict__.get("__slots__", ()):
            try:
                yield name, base.__dict__[name].__get__(value)
            except (AttributeError, KeyError):
                continue


def _list(value: Any) -> Iterator[Entry]:
    yield ".len", list.__len__(value)
    yield from [(f"[{index}]", item) for index, item in enumerate(list.__iter__(value))]


def _tuple(value: Any) -> Iterator[Entry]:
    yield from [(f"[{index}]", item) for index, item in enumerate(tuple.__iter__(value))]


def _deque(value: Any) -> Iterator[Entry]:
    yield ".maxlen", value.maxlen
    items = collections.deque.__iter__(value)
    yield from [(f"[{index}]", item) for index, item in enumerate(items)]


def _mapping(value: Any) -> Iterator[Entry]:
    """Hooks are kept under numbers that the process counts up: only their order is compared."""
    is_hooks = type(value) is collections.OrderedDict and all(type(key) is int for key in value)
    base = collections.OrderedDict if _is(value, collections.OrderedDict) else dict
    items = list(base.items(value))  # an ordered one keeps its order apart
    if is_hooks:
        items = list(enumerate(item for _, item in items))
    yield ".len", len(items)
    for number, (key, item) in enumerate(items):
        yield f".key{number}", _item_text(key)
        yield f"[{number}]", item


def _set(value: Any) -> Iterator[Entry]:
    items = set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value)
    yield ".items", str(sorted([_item_text(item) for item in items]))


def _item_text(item: Any) -> str:
    if type(item) is int and _ADDRESSES[0] < item < _ADDRESSES[1]:
        return "an address"
    if _is(item, (int, str, float, tuple, bytes)):
        return without_addresses(repr(item))
    return type(item).__name__


def _function(value: Any) -> Iterator[Entry]:
    yield ".name", value.__qualname__
    if value.__module__ != MODULE:
        return
    yield ".defaults", value.__defaults__
    yield ".kwdefaults", value.__kwdefaults__
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        if (
            name == "old"
        ):  # what a world took from `run`, whose compiled form has methods of its own
            continue
        try:
            yield f".cell({name})", cell.cell_contents
        except ValueError:
            yield f".cell({name})", "(empty)"


def _class(value: Any) -> Iterator[Entry]:
    if type.__getattribute__(value, "__module__") == MODULE:
        for name, item in list(type.__dict__["__dict__"].__get__(value).items()):
            if name not in _OF_CLASSES and not name.startswith(("_abc", "__slots")):
                yield f".{name}", item


def _exception(value: Any) -> Iterator[Entry]:
    yield ".args", tuple(value.args)
    yield ".cause", value.__cause__
    yield ".context", value.__context__
    yield ".suppress", value.__suppress_context__
    yield ".notes", list(getattr(value, "__notes__", ()))


def _method(value: Any) -> Iterator[Entry]:
    yield ".self", value.__self__
    yield ".func", value.__func__


def _partial(value: Any) -> Iterator[Entry]:
    yield ".func", value.func
    yield ".args", value.args
    yield ".keywords", value.keywords


def _reference(value: Any) -> Iterator[Entry]:
    yield ".alive", weakref.ref.__call__(value) is not None


def _generator(value: Any) -> Iterator[Entry]:
    yield ".frame", value.gi_frame is not None
    for name, item in value.gi_frame.f_locals.items() if value.gi_frame else ():
        yield f".local({name})", item


def _cached(value: Any) -> Iterator[Entry]:
    yield ".info", tuple(value.cache_info())


def _number(value: Any) -> Iterator[Entry]:
    base = next(kind for kind in (int, float, str, bytes) if isinstance(value, kind))
    yield ".value", base(base.__repr__(value)) if base is int else base.__repr__(value)


_VISITORS: tuple[tuple[Any, Callable[[Any], Iterator[Entry]]], ...] = (
    (list, _list),
    (tuple, _tuple),
    (collections.deque, _deque),
    (dict, _mapping),
    ((set, frozenset), _set),
    (types.FunctionType, _function),
    (type, _class),
    (BaseException, _exception),
    (types.MethodType, _method),
    (functools.partial, _partial),
    (weakref.ref, _reference),
    (types.GeneratorType, _generator),
    (functools._lru_cache_wrapper, _cached),
    ((int, float, str, bytes), _number),
)


def without_addresses(text: str) -> str:
    """Addresses, and names of autograd's nodes (those of compiled graphs are others), left out."""
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"grad_fn=<\w+>", "grad_fn=<...>", text)
    text = re.sub(r"Output \d+ of \w+ is a view", "Output of a node is a view", text)
    return re.sub(r"Function '?\w+'? returned", "A function returned", text)


def ambient() -> dict[str, Any]:
    """The state of torch and of Python that no program's global holds."""
    torch_state = torch.random.get_rng_state()
    return {
        "random": hash(random.getstate()),
        "torch random": int(torch_state.to(torch.int64).dot(torch.arange(len(torch_state)))),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "flush": torch.backends.cpu.get_cpu_capability(),
        "hooks": len(torch.nn.modules.module._global_forward_hooks),
    }
