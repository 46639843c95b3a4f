"""What each kind of guard asks: as a condition in generated Python, and in words when it fails.

One row a kind: `write(writer, guard)` gives Python text that is true while the guard holds;
`explain(guard, value, frame)` gives the sentence that says how it does not hold, or None where it
holds. A new kind needs a row here and a row in `tests/unit/runtime/test_guards.py`.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch

from braze.compat.ambient_check import ambient_questions
from braze.compat.modules import INSTANCE_HOOKS, has_global_hooks, instance_hooks
from braze.ir.entry import FrameValues
from braze.ir.guard import ABSENT, Guard, GuardKind, TensorFacts
from braze.runtime.gradient_hooks import WATCH, none_watched
from braze.runtime.guard_abstract_classes import explain_abstract, write_abstract
from braze.runtime.guard_iterators import explain_items_left, write_items_left
from braze.runtime.guard_numbers import explain_comparison, write_comparison
from braze.runtime.guard_sizes import explain_condition, write_condition
from braze.runtime.source_code import READ_FAILURES, SourceWriter, keys_in_order, read_source

_SHARED_BY_VALUE = (int, str, bytes)
_ATOMS = (bool, type(None), type(Ellipsis), type(NotImplemented))
_SIZED = (dict, list, tuple, set, frozenset, deque, str, bytes, bytearray, range)
_PLAIN_DICTS = (dict, OrderedDict)


# --- predicates that generated text calls ------------------------------------------------------


def same_constant(value: Any, expected: Any) -> bool:
    """Same exact type and equal; floats by their bits, containers element by element."""
    cls = type(expected)
    if type(value) is not cls:
        return False
    if value is expected:
        return True
    if cls is float:
        return struct.pack("<d", value) == struct.pack("<d", expected)
    if cls is complex:
        return same_constant(value.real, expected.real) and same_constant(value.imag, expected.imag)
    if issubclass(cls, (tuple, list)):
        return len(value) == len(expected) and all(map(same_constant, value, expected))
    if cls is dict:
        return same_constant(tuple(value), tuple(expected)) and all(
            same_constant(value[key], expected[key]) for key in expected
        )
    if cls is slice:
        return same_constant(
            (value.start, value.stop, value.step), (expected.start, expected.stop, expected.step)
        )
    if cls in (set, frozenset):
        return value == expected and {(type(x), repr(x)) for x in value} == {
            (type(x), repr(x)) for x in expected
        }
    return bool(value == expected)


def base_length(value: Any) -> int:
    """`len` by the builtin container that the object is or extends."""
    for base in _SIZED:
        if isinstance(value, base):
            return int(base.__len__(value))  # type: ignore[arg-type]
    return len(value)


def keys_of(value: Any) -> tuple[Any, ...]:
    """The keys of a dict, in order, by `dict` itself."""
    return keys_in_order(value) if isinstance(value, dict) else tuple(value)


def has_key(value: Any, key: Any) -> bool:
    """Whether a dict (a set, a class's dict) has the key, by the builtin itself."""
    return dict.__contains__(value, key) if isinstance(value, dict) else key in value


def raw_lookup(cls: type, name: str) -> Any:
    """What the classes on the MRO hold under `name`, without descriptors; ABSENT if nothing."""
    for klass in cls.__mro__:
        found = klass.__dict__.get(name, ABSENT)
        if found is not ABSENT:
            return found
    return ABSENT


@final
class ClassLookups:
    """Raw lookups of several names in one class, compared at every call.

    The dicts on the MRO are live views: for each name, the classes before the one that holds it
    must lack it, and that one must hold the very object. A new MRO makes a new plan.
    """

    __slots__ = ("entries", "plan")

    def __init__(self, entries: tuple[tuple[str, Any], ...]) -> None:
        self.entries = entries
        self.plan: tuple[Any, list[tuple[Callable[..., Any], str, Any]]] = (None, [])

    def __call__(self, cls: type) -> bool:
        """Whether each lookup gives the object that is expected."""
        mro, plan = self.plan
        if cls.__mro__ is not mro:
            found = self._plan_for(cls)
            if found is None:
                return False
            plan = found
            self.plan = cls.__mro__, plan
        for get, name, expected in plan:  # noqa: SIM110  (a generator would double the time)
            if get(name, ABSENT) is not expected:
                return False
        return True

    def _plan_for(self, cls: type) -> list[tuple[Callable[..., Any], str, Any]] | None:
        """Only a world in which all lookups hold makes a plan; None in another."""
        plan: list[tuple[Callable[..., Any], str, Any]] = []
        for name, expected in self.entries:
            if raw_lookup(cls, name) is not expected:
                return None
            for klass in cls.__mro__:
                found = klass.__dict__.get(name, ABSENT)
                plan.append((klass.__dict__.get, name, found))
                if found is not ABSENT:
                    break
        return plan


def namespace_of(value: Any) -> Any:
    """The dict itself, or the `__dict__` of a module, class or instance."""
    return value if isinstance(value, dict) else value.__dict__


def storage_key(tensor: torch.Tensor) -> int:
    """Identifies the storage of a tensor while the tensor lives."""
    return int(tensor.untyped_storage()._cdata)


# --- writing conditions --------------------------------------------------------------------------


def _write_tensor(writer: SourceWriter, guard: Guard) -> str:
    return tensor_condition(writer, writer.read(guard.source), guard.expected)


def tensor_condition(writer: SourceWriter, value: str, facts: TensorFacts) -> str:
    """The text of a condition on the tensor that the name `value` holds."""
    terms = [
        f"type({value}) is {writer.constant(facts.tensor_class)}",
        _write_sizes(writer, f"{value}.shape", facts.shape),
        f"{value}.dtype is {writer.constant(facts.dtype)}",
        _write_device(writer, value, facts.device),
        f"{value}.requires_grad" if facts.requires_grad else f"not {value}.requires_grad",
    ]
    if facts.layout is torch.strided:
        terms.append(_write_stride(writer, value, facts))
    if facts.layout is not torch.strided or facts.device.type != "cpu":
        terms.append(f"{value}.layout is {writer.constant(facts.layout)}")
    always_leaf = facts.is_leaf is True and not facts.requires_grad
    if facts.is_leaf is not None and not always_leaf:
        terms.append(f"{value}.is_leaf is {facts.is_leaf}")
    return " and ".join(terms)


def _write_sizes(writer: SourceWriter, sizes: str, expected: tuple[int | None, ...]) -> str:
    if None not in expected:
        return f"{sizes} == {tuple(expected)!r}"
    name = f"sizes{len(writer.lines)}"
    known = [f"{name}[{i}] == {size}" for i, size in enumerate(expected) if size is not None]
    return " and ".join([f"len({name} := {sizes}) == {len(expected)}", *known])


def _write_stride(writer: SourceWriter, value: str, facts: TensorFacts) -> str:
    if not facts.shape:
        return "True"
    if facts.stride == _contiguous_stride(facts.shape) and _stride_is_certain(facts.shape):
        return f"{value}.is_contiguous()"
    return _write_sizes(writer, f"{value}.stride()", facts.stride)


def _contiguous_stride(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    if None in shape:
        return ()
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * (size or 0))
    return tuple(reversed(strides))


def _stride_is_certain(shape: tuple[int | None, ...]) -> bool:
    """A contiguous tensor's stride is free where a dimension has at most one element."""
    return all(size is not None and size > 1 for size in shape)


def _write_device(writer: SourceWriter, value: str, device: torch.device) -> str:
    if device.type == "cpu":
        return f"{value}.is_cpu"
    return f"{value}.device == {writer.constant(device)}"


def _write_equals(writer: SourceWriter, guard: Guard) -> str:
    value, expected = writer.read(guard.source), guard.expected
    cls = type(expected)
    if cls in _ATOMS:
        return f"{value} is {writer.constant(expected)}"
    same_type = f"type({value}) is {writer.constant(cls)}"
    if cls in _SHARED_BY_VALUE:
        return f"{same_type} and {value} == {writer.constant(expected)}"
    if cls is float and expected != 0 and math.isfinite(expected):
        return f"{same_type} and {value} == {writer.constant(expected)}"
    writer.namespace["same_constant"] = same_constant
    return f"same_constant({value}, {writer.constant(expected)})"


def _write_length(writer: SourceWriter, guard: Guard) -> str:
    value = writer.read(guard.source)
    known = writer.type_of(guard.source)
    if known is not None and _has_builtin_length(known):
        return f"len({value}) == {guard.expected}"
    writer.namespace["base_length"] = base_length
    return f"base_length({value}) == {guard.expected}"


def _has_builtin_length(cls: type) -> bool:
    return any(issubclass(cls, base) and cls.__len__ is base.__len__ for base in _SIZED)


def _write_keys(writer: SourceWriter, guard: Guard) -> str:
    value, expected = writer.read(guard.source), writer.constant(tuple(guard.expected))
    keys = f"tuple({value})" if writer.type_of(guard.source) in _PLAIN_DICTS else ""
    if not keys:
        writer.namespace["keys_of"] = keys_of
        keys = f"keys_of({value})"
    if all(type(key) is str for key in guard.expected):
        return f"{keys} == {expected}"
    writer.namespace["same_constant"] = same_constant
    return f"same_constant({keys}, {expected})"


def _write_contains(writer: SourceWriter, guard: Guard) -> str:
    key, present = guard.expected
    writer.namespace["has_key"] = has_key
    call = f"has_key({writer.read(guard.source)}, {writer.constant(key)})"
    return call if present else f"not {call}"


def _write_has_attribute(writer: SourceWriter, guard: Guard) -> str:
    name, present = guard.expected
    writer.namespace["has_attribute"] = has_attribute
    call = f"has_attribute({writer.read(guard.source)}, {name!r})"
    return call if present else f"not {call}"


def has_attribute(value: Any, name: str) -> bool:
    """hasattr() without `__getattr__`, whose answer is the program's own."""
    try:
        type(value).__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _write_distinct(writer: SourceWriter, guard: Guard) -> str:
    # The tuple keeps what a read makes anew: two objects in turn may have one address.
    values = "".join(f"{writer.read(source)}, " for source in guard.expected)
    return f"len({{*map(id, ({values}))}}) == {len(guard.expected)}" if values else "True"


def _write_overlap(writer: SourceWriter, guard: Guard) -> str:
    if not guard.expected:
        return "True"
    writer.namespace["storage_groups_hold"] = storage_groups_hold
    groups = [
        "(" + "".join(f"{writer.read(source)}, " for source in group) + ")"
        for group in guard.expected
    ]
    return f"storage_groups_hold(({', '.join(groups)},))"


def storage_groups_hold(groups: tuple[tuple[torch.Tensor, ...], ...]) -> bool:
    """Whether the tensors of each group share one storage and no two groups do."""
    keys = [{storage_key(tensor) for tensor in group} for group in groups]
    return all(len(key) == 1 for key in keys) and len(set().union(*keys)) == len(groups)


def _write_none_watched(writer: SourceWriter, guard: Guard) -> str:
    writer.namespace["none_watched"] = none_watched
    return f"none_watched(({''.join(f'{writer.read(source)}, ' for source in guard.expected)}))"


def _write_entries(writer: SourceWriter, mapping: str, entries: Any) -> str:
    absent = writer.constant(ABSENT)
    terms = [
        f"{mapping}.get({name!r}, {absent}) is {writer.constant(value)}" for name, value in entries
    ]
    return " and ".join(terms) or "True"


def _write_namespace(writer: SourceWriter, guard: Guard) -> str:
    value = writer.read(guard.source)
    writer.namespace["namespace_of"] = namespace_of
    name = f"entries{len(writer.lines)}"
    writer.lines.append(f"{name} = namespace_of({value})")
    return _write_entries(writer, name, guard.expected)


def _write_lookups(writer: SourceWriter, guard: Guard) -> str:
    lookups = writer.constant(ClassLookups(tuple(guard.expected)))
    return f"{lookups}({writer.read(guard.source)})"


def _write_lacks(writer: SourceWriter, guard: Guard) -> str:
    return f"{writer.constant(frozenset(guard.expected))}.isdisjoint({writer.read(guard.source)})"


def _write_no_hooks(writer: SourceWriter, guard: Guard) -> str:
    if guard.source is None:
        writer.namespace["has_global_hooks"] = has_global_hooks
        return "not has_global_hooks()"
    value = writer.read(guard.source)
    name = f"hooks{len(writer.lines)}"
    writer.lines.append(f"{name} = {value}.__dict__")
    return f"not ({' or '.join(f'{name}[{hooks!r}]' for hooks in INSTANCE_HOOKS)})"


def _write_functions(writer: SourceWriter, guard: Guard) -> str:
    terms: list[str] = []
    for function, code, defaults, keyword_defaults in guard.expected:
        name = writer.constant(function)
        terms.append(f"{name}.__code__ is {writer.constant(code)}")
        terms.append(f"{name}.__defaults__ is {writer.constant(defaults)}")
        terms.append(f"{name}.__kwdefaults__ is {writer.constant(keyword_defaults)}")
    return " and ".join(terms) or "True"


def _write_ambient(writer: SourceWriter, guard: Guard) -> str:
    questions = ambient_questions(guard.expected)
    if questions is None:
        return f"{writer.constant(guard.expected)}.holds()"
    terms = []
    for function, argument, expected in questions:
        call = f"{writer.constant(function)}({'' if argument is None else repr(argument)})"
        compare = "==" if type(expected) is int else "is"
        terms.append(f"{call} {compare} {writer.constant(expected)}")
    return " and ".join(terms)


# --- words for failures --------------------------------------------------------------------------


def _explain_tensor(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    difference = _tensor_difference(guard.expected, value)
    return None if difference is None else f"tensor '{guard.source}' {difference}"


def _tensor_difference(facts: TensorFacts, value: Any) -> str | None:
    tensor_class: Any = facts.tensor_class
    if type(value) is not tensor_class:
        return f"type mismatch. expected {facts.tensor_class}, actual {type(value)}"
    for name in ("dtype", "device", "layout", "requires_grad", "is_leaf"):
        expected, actual = getattr(facts, name), getattr(value, name)
        if expected is not None and expected != actual:
            return f"{name} mismatch. expected {expected}, actual {actual}"
    if len(facts.shape) != value.dim():
        return f"rank mismatch. expected {len(facts.shape)}, actual {value.dim()}"
    pairs = [("size", facts.shape, value.shape)]
    if facts.layout is torch.strided:
        pairs.append(("stride", facts.stride, value.stride()))
    for name, expected_sizes, actual_sizes in pairs:
        for index, (expected, actual) in enumerate(zip(expected_sizes, actual_sizes)):
            if expected is not None and expected != actual:
                return f"{name} mismatch at index {index}. expected {expected}, actual {actual}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _mismatch(guard: Guard, what: str, expected: Any, actual: Any) -> str:
    return f"'{guard.source}' {what} mismatch. expected {expected}, actual {actual}"


def _explain_type(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    if type(value) is guard.expected:
        return None
    return _mismatch(guard, "type", guard.expected, type(value))


def _explain_identity(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    if value is guard.expected:
        return None
    return _mismatch(guard, "identity", _short(guard.expected), _short(value))


def _explain_equals(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    if same_constant(value, guard.expected):
        return None
    if type(value) is not type(guard.expected):
        return _mismatch(guard, "type", type(guard.expected), type(value))
    return _mismatch(guard, "value", _short(guard.expected), _short(value))


def _explain_length(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    actual = base_length(value)
    return None if actual == guard.expected else _mismatch(guard, "length", guard.expected, actual)


def _explain_keys(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    actual, expected = keys_of(value), tuple(guard.expected)
    if same_constant(actual, expected):
        return None
    return _mismatch(guard, "keys", _short(list(expected)), _short(list(actual)))


def _explain_contains(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    key, present = guard.expected
    if has_key(value, key) is present:
        return None
    return f"'{guard.source}' {'no longer has' if present else 'now has'} the key {key!r}"


def _explain_has_attribute(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    name, present = guard.expected
    if has_attribute(value, name) is present:
        return None
    return f"'{guard.source}' {'no longer has' if present else 'now has'} the attribute {name!r}"


def _explain_same(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    if value is read_source(guard.expected, frame):
        return None
    return f"'{guard.source}' and '{guard.expected}' were one object and are two now"


def _explain_different(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    if value is not read_source(guard.expected, frame):
        return None
    return f"'{guard.source}' and '{guard.expected}' were two objects and are one now"


def _explain_distinct(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    seen: dict[int, tuple[Any, Any]] = {}
    for source in guard.expected:
        found = read_source(source, frame)
        other = seen.setdefault(id(found), (source, found))[0]
        if other is not source:
            return f"'{other}' and '{source}' were two objects and are one now"
    return None


def _explain_overlap(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    owner: dict[int, tuple[int, Any]] = {}
    for number, group in enumerate(guard.expected):
        keys: dict[int, Any] = {}
        for source in group:
            key = storage_key(read_source(source, frame))
            keys.setdefault(key, source)
            other = owner.setdefault(key, (number, source))
            if other[0] != number:
                return f"tensors '{other[1]}' and '{source}' share memory now and did not"
        if len(keys) > 1:
            first, second = list(keys.values())[:2]
            return f"tensors '{first}' and '{second}' shared memory and do not now"
    return None


def _explain_none_watched(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    leaves = [read_source(source, frame) for source in guard.expected]
    number = WATCH.first_watched(leaves)
    if number < 0:
        return None
    return f"somebody watches the gradient of '{guard.expected[number]}' now: hooks, or a history"


def _explain_ambient(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    changed: str | None = guard.expected.difference()
    return changed


def _explain_namespace(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    entries = namespace_of(value)
    return _explain_entries(guard, lambda name: entries.get(name, ABSENT))


def _explain_lookups(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    return _explain_entries(guard, lambda name: raw_lookup(value, name))


def _explain_entries(guard: Guard, look_up: Callable[[str], Any]) -> str | None:
    for name, expected in guard.expected:
        actual = look_up(name)
        if actual is not expected:
            return (
                f"'{guard.source}' entry {name!r} mismatch. "
                f"expected {_short(expected)}, actual {_short(actual)}"
            )
    return None


def _explain_offset(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    actual = value.storage_offset()
    if actual == guard.expected:
        return None
    expected = guard.expected
    return f"tensor '{guard.source}' storage offset mismatch. expected {expected}, actual {actual}"


def _explain_lacks(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    found = sorted(map(repr, frozenset(guard.expected).intersection(value)))
    return f"'{guard.source}' now has the key {found[0]}" if found else None


def _explain_no_hooks(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    if guard.source is None:
        return "a hook for all modules was registered" if has_global_hooks() else None
    hooks = instance_hooks(value.__dict__)
    return f"'{guard.source}' now has hooks in {hooks[0]}" if hooks else None


def _explain_functions(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    for function, *expected in guard.expected:
        for name, wanted in zip(("__code__", "__defaults__", "__kwdefaults__"), expected):
            if getattr(function, name) is not wanted:
                return f"function '{function.__qualname__}' has a new {name}"
    return None


class GuardRow(NamedTuple):
    """cost: nanoseconds, roughly, for the order of checks of one depth."""

    cost: int
    write: Callable[[SourceWriter, Guard], str]
    explain: Callable[[Guard, Any, FrameValues], str | None]


def explain_guard(guard: Guard, frame: FrameValues) -> str | None:
    """How the guard fails, or None where it holds."""
    try:
        value = None if guard.source is None else read_source(guard.source, frame)
        return GUARD_KINDS[guard.kind].explain(guard, value, frame)
    except READ_FAILURES as failure:
        where = f"'{guard.source}'" if guard.source is not None else guard.kind.value
        return f"{where} cannot be reached. {type(failure).__name__}: {failure}"


def _identity(w: SourceWriter, g: Guard) -> str:
    return f"{w.read(g.source)} is {w.constant(g.expected)}"


GUARD_KINDS: dict[GuardKind, GuardRow] = {
    GuardKind.AMBIENT: GuardRow(0, _write_ambient, _explain_ambient),
    GuardKind.ID_MATCH: GuardRow(10, _identity, _explain_identity),
    GuardKind.TYPE_MATCH: GuardRow(
        20,
        lambda w, g: f"type({w.read(g.source)}) is {w.constant(g.expected)}",
        _explain_type,
    ),
    GuardKind.EQUALS_MATCH: GuardRow(30, _write_equals, _explain_equals),
    GuardKind.COMPARES: GuardRow(30, write_comparison, explain_comparison),
    GuardKind.LENGTH: GuardRow(40, _write_length, _explain_length),
    GuardKind.SAME_OBJECT: GuardRow(
        50, lambda w, g: f"{w.read(g.source)} is {w.read(g.expected)}", _explain_same
    ),
    GuardKind.DIFFERENT_OBJECT: GuardRow(
        50, lambda w, g: f"{w.read(g.source)} is not {w.read(g.expected)}", _explain_different
    ),
    GuardKind.DICT_CONTAINS: GuardRow(60, _write_contains, _explain_contains),
    GuardKind.DICT_LACKS: GuardRow(60, _write_lacks, _explain_lacks),
    GuardKind.HAS_ATTRIBUTE: GuardRow(70, _write_has_attribute, _explain_has_attribute),
    GuardKind.ITEMS_LEFT: GuardRow(90, write_items_left, explain_items_left),
    GuardKind.DICT_KEYS: GuardRow(100, _write_keys, _explain_keys),
    GuardKind.NAMESPACE: GuardRow(150, _write_namespace, _explain_namespace),
    GuardKind.NO_HOOKS: GuardRow(150, _write_no_hooks, _explain_no_hooks),
    GuardKind.CLASS_LOOKUPS: GuardRow(400, _write_lookups, _explain_lookups),
    GuardKind.TENSOR_MATCH: GuardRow(400, _write_tensor, _explain_tensor),
    GuardKind.STORAGE_OFFSET: GuardRow(
        450,
        lambda w, g: f"{w.read(g.source)}.storage_offset() == {g.expected}",
        _explain_offset,
    ),
    GuardKind.ABSTRACT_CLASSES: GuardRow(500, write_abstract, explain_abstract),
    GuardKind.FUNCTIONS: GuardRow(500, _write_functions, _explain_functions),
    GuardKind.DISTINCT: GuardRow(500, _write_distinct, _explain_distinct),
    GuardKind.NONE_WATCHED: GuardRow(700, _write_none_watched, _explain_none_watched),
    GuardKind.SIZES: GuardRow(300, write_condition, explain_condition),
    GuardKind.STORAGE_OVERLAP: GuardRow(900, _write_overlap, _explain_overlap),
}
