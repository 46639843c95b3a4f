"""Everything that can be reached from a world, as a list that two worlds can be compared by.

Identity is compared too: objects and storages are numbered in the order in which they are met, so
two worlds differ if one has an alias that the other has not.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import struct
import types
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch.utils.hooks import RemovableHandle

Entry = tuple[str, Any]
_ATOMS = (int, str, bytes, complex, torch.dtype, torch.device, torch.Size, range, slice)
_SKIPPED = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__"})
_FORBIDDEN = "a view that autograd forbids to ask"
MODULE = "fuzz_program"
# How the cause of a difference ends that may be one of rounding.
ROUNDED = "tensor data"


@final
@dataclasses.dataclass(eq=False, slots=True)
class TensorState:
    """A tensor as it was. close: gradients, whose sums may be taken in another order."""

    facts: tuple[Any, ...]
    data: torch.Tensor
    close: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorState) or self.facts != other.facts:
            return False
        a, b = self.data, other.data
        if torch.equal(a, b):
            return True
        if self.close and a.is_floating_point():
            return _is_near(a, b)
        return a.is_floating_point() and bool(((a == b) | ((a != a) & (b != b))).all())

    def __repr__(self) -> str:
        return f"{self.facts} {self.data.flatten()[:12].tolist()}"


def _is_near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def is_as_exact(eager: Any, compiled: Any, exact: Any) -> bool:
    """Whether two tensors differ by rounding alone: they are near, and compiled is no further from
    what the program gives in float64 than twice as far as eager, and the one unit in the last place
    that ATen's kernels themselves leave open. (Which of them computes an element, one for vectors
    or one for the rest, is a matter of strides and of the machine.)"""
    states = (eager, compiled, exact)
    if not all(isinstance(state, TensorState) for state in states):
        return False
    if eager.facts != compiled.facts or _without_dtype(eager) != _without_dtype(exact):
        return False
    if not eager.data.is_floating_point() or not exact.data.dtype.is_floating_point:
        return False
    if not _is_near(eager.data, compiled.data):
        return False
    right = exact.data.double()
    eager_error, error = (_error(state.data, right) for state in (eager, compiled))
    unit = torch.finfo(eager.data.dtype).eps * float(right.nan_to_num(0, 0, 0).abs().max())
    return error <= 2 * eager_error + unit


def _without_dtype(state: TensorState) -> tuple[Any, ...]:
    return tuple([fact for name, fact in zip(_FACTS, state.facts) if name not in _OF_A_RUN])


def _error(data: torch.Tensor, right: torch.Tensor) -> float:
    """The greatest distance; infinite where one is no number and the other is."""
    same = (data == right) | (data.isnan() & right.isnan())
    distance = torch.where(same, 0.0, (data.double() - right).abs())
    return float(distance.nan_to_num(math.inf).max())


def _without_histories(text: str) -> str:
    """A compiled graph is one node of autograd's, with a name of its own: names of nodes in what is
    printed, and in the messages of errors, are left out. Eager does not promise them either: they
    are the names of generated C++ classes, and change with PyTorch's versions. Whether there is a
    node, and the gradients that it gives, is compared."""
    text = re.sub(r"Output \d+ of \w+ is a view", "Output of a node is a view", text)
    text = re.sub(r"Function \w+ returned", "A function returned", text)
    return re.sub(r"grad_fn=<\w+>", "grad_fn=<...>", text)


def is_forbidden(what: Any) -> bool:
    """Whether an entry is a view that autograd forbids to ask anything. Its contents are compared
    until then; from there on programs part (`_REFUSALS` in `world.py` says why)."""
    return type(what) is tuple and what[0] == _FORBIDDEN


@final
class Observer:
    """Observes one world over its life. Versions are compared as "written to since last time"."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._entries: list[Entry] = []

    def observe(self, roots: dict[str, Any]) -> list[Entry]:
        """Everything reachable from the roots, now."""
        self._numbers, self._storages, self._entries = {}, {}, []
        for name, value in roots.items():
            self._visit(name, value)
        return self._entries

    def _note(self, path: str, what: Any) -> None:
        self._entries.append((path, what))

    def _visit(self, path: str, value: Any) -> None:
        if value is None or isinstance(value, (bool, *_ATOMS)):
            self._note(path, (type(value).__name__, _without_histories(repr(value))))
        elif type(value) is float:
            text = "nan" if value != value else struct.pack("d", value).hex()
            self._note(path, ("float", text, repr(value)))
        elif self._is_new(path, value):
            self._kept.append(value)
            if isinstance(value, torch.Tensor):
                self._visit_tensor(path, value)
            else:
                self._visit_object(path, value)

    def _is_new(self, path: str, value: Any) -> bool:
        if type(value) is tuple:  # constants may be one object or several
            return True
        known = self._numbers.get(id(value))
        if known is None:
            self._numbers[id(value)] = len(self._numbers)
            return True
        self._note(path, ("object", known))
        return False

    def _visit_tensor(self, path: str, tensor: torch.Tensor) -> None:
        storage = self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))
        try:
            tensor.is_leaf  # noqa: B018
        except RuntimeError as refusal:  # autograd forbids to ask, since its base was written to
            self._note(path, (_FORBIDDEN, str(refusal), tensor.detach().clone().tolist()))
            return
        version = tensor._version
        written = version != self._versions.get(id(tensor), version)
        self._versions[id(tensor)] = version
        facts = (
            type(tensor).__name__,
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            f"offset {tensor.storage_offset()}",
            f"storage {storage}",
            f"requires_grad {tensor.requires_grad}",
            f"leaf {tensor.is_leaf}",
            f"written {written}",
        )
        close = path.endswith(".grad")
        self._note(path, TensorState(facts, tensor.detach().clone(), close))
        if tensor.is_leaf:
            self._visit(f"{path}.grad", tensor.grad)
        for name, value in vars(tensor).items() if hasattr(tensor, "__dict__") else ():
            self._visit(f"{path}.{name}", value)

    def _visit_object(self, path: str, value: Any) -> None:
        number = self._numbers.get(id(value))
        self._note(path, ("new", type(value).__qualname__, number))
        for kind, visit in _VISITORS:
            if isinstance(value, kind):
                for name, part in visit(value):
                    self._visit(path + name, part)
        if not isinstance(value, (type, types.ModuleType, RemovableHandle)):
            for name, part in _attributes(value):
                self._visit(f"{path}.{name}", part)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The instance dict and the slots, without running the program's code."""
    if hasattr(type(value), "__dictoffset__") and type(value).__dictoffset__:
        yield from object.__getattribute__(value, "__dict__").items()
    for base in type(value).__mro__:
        for name in base.__dict__.get("__slots__", ()) if base.__module__ == MODULE else ():
            try:
                yield name, base.__dict__[name].__get__(value)
            except AttributeError:
                continue


def _sequence(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".len", len(value)
    for index, item in enumerate(value):
        yield f"[{index}]", item


def _mapping(value: Any) -> Iterator[tuple[str, Any]]:
    """Hooks are kept under numbers that the process counts up, compiles included: only their order
    is compared."""
    is_hooks = type(value) is collections.OrderedDict and all(type(key) is int for key in value)
    items = list(enumerate(value.values())) if is_hooks else list(value.items())
    yield ".keys", tuple(key for key, _ in items)
    for number, (key, item) in enumerate(items):
        yield f"[{key!r}]" if isinstance(key, (str, int)) else f"[key {number}]", item


def _set(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".items", sorted(map(repr, value))


def _function(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".name", value.__qualname__
    yield ".defaults", value.__defaults__
    yield ".kwdefaults", value.__kwdefaults__
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        yield f".cell({name})", cell


def _cell(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        yield ".contents", value.cell_contents
    except ValueError:
        yield ".contents", "(empty)"


def _class(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".name", value.__qualname__
    if value.__module__ == MODULE:
        for name, item in list(vars(value).items()):
            if name not in _SKIPPED and not name.startswith("_abc"):
                yield f".{name}", item


def _exception(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".args", list(value.args)
    yield ".cause", value.__cause__
    yield ".context", value.__context__
    yield ".suppress", value.__suppress_context__


def _method(value: Any) -> Iterator[tuple[str, Any]]:
    yield ".self", value.__self__
    yield ".func", value.__func__


_VISITORS: tuple[tuple[Any, Callable[[Any], Iterator[tuple[str, Any]]]], ...] = (
    ((list, tuple, collections.deque), _sequence),
    (dict, _mapping),
    ((set, frozenset), _set),
    (types.FunctionType, _function),
    (types.CellType, _cell),
    (type, _class),
    (BaseException, _exception),
    (types.MethodType, _method),
)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Parted:
    """Where two worlds part. path: of what differs; "" where the worlds are not alike in shape.
    cause: what kind of difference it is, without names and numbers."""

    cause: str
    text: str
    path: str = ""


def first_difference(
    left: list[Entry],
    right: list[Entry],
    exact: list[Entry] | None = None,
    is_rough: bool = False,
) -> Parted | None:
    """Where two lists part, left being what is right; None if they do not. exact: what the same
    program leaves in float64, where that is asked. is_rough: what comes near is right."""
    judged = dict(exact or ())
    for (path, expected), (other_path, actual) in zip(left, right):
        if path != other_path:
            text = f"{path} is at the place of {other_path}: {expected} and {actual}"
            return Parted("structure", text)
        if is_rough and _is_roughly(expected, actual):
            continue
        if expected != actual and not is_as_exact(expected, actual, judged.get(path)):
            cause = f"{_root(path)} {_cause(expected, actual)}"
            return Parted(cause, f"{path}: eager {expected}, compiled {actual}", path)
    if len(left) != len(right):
        longer, name = (left, "eager") if len(left) > len(right) else (right, "compiled")
        return Parted("structure", f"only {name} has {longer[min(len(left), len(right))]}")
    return None


def _is_roughly(a: Any, b: Any) -> bool:
    """Whether two tensors or numbers are near each other, whichever were written to."""
    if isinstance(a, TensorState) and isinstance(b, TensorState):
        return a.facts[:-1] == b.facts[:-1] and torch.allclose(
            a.data, b.data, rtol=1e-7, atol=1e-9, equal_nan=True
        )
    if not (isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0] == "float"):
        return False
    return math.isclose(float(a[-1]), float(b[-1]), rel_tol=1e-7, abs_tol=1e-9)


def _root(path: str) -> str:
    word = re.split(r"[.\[]", path)[0]
    return word if word in ("error", "lines", "printed", "random", "torch random") else "state"


def _cause(expected: Any, actual: Any) -> str:
    if isinstance(expected, TensorState) and isinstance(actual, TensorState):
        pairs = zip(_FACTS, expected.facts, actual.facts)
        return next((f"tensor {name}" for name, a, b in pairs if a != b), ROUNDED)
    if isinstance(expected, tuple) and isinstance(actual, tuple):
        return f"{expected[0]} and {actual[0]}" if expected[0] != actual[0] else str(expected[0])
    return "kind"


_OF_A_RUN = frozenset({"dtype", "storage", "written"})  # they say nothing of the numbers
_FACTS = ("class", "dtype", "shape", "stride", "offset", "storage", "grad", "leaf", "written")
