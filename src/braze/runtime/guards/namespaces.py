"""Guards on what names find: in the dicts of modules, classes and instances, and on an MRO."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeAlias, final

from braze.compat.torch.dynamo_interop import original_of
from braze.ir.captured.guard import ABSENT, MRO, Guard
from braze.runtime.guards.codegen import SourceWriter, dict_of
from braze.runtime.guards.messages import Values, short_text


def raw_lookup(cls: type, name: str) -> object:
    """What the classes on the MRO hold under `name`, without descriptors; ABSENT if nothing."""
    if name == MRO:
        return cls.__mro__
    for klass in cls.__mro__:
        found = klass.__dict__.get(name, ABSENT)
        if found is not ABSENT:
            return found
    return ABSENT


def stands_for(found: object, expected: object) -> bool:
    """Whether what a name finds is the expected function, as torch.compile's own compiler replaces
    parts of torch (of its optimizers, for one) when a process uses it first: what Braze made
    before stays right."""
    return type(found) is types.FunctionType and original_of(found) is original_of(expected)


_HEAP_TYPE = 1 << 9
_Held: TypeAlias = list[tuple[Callable[..., Any], str, Any]]
_Lacked: TypeAlias = list[tuple[frozenset[str], Any]]


@final
class ClassLookups:
    """Raw lookups of several names in one class, compared at every call.

    The dicts on the MRO are live views: for each name, the classes before the one that holds it
    must lack it, and that one must hold the very object. A new MRO makes a new plan.
    """

    __slots__ = ("entries", "plan")

    def __init__(self, entries: tuple[tuple[str, object], ...]) -> None:
        self.entries = entries
        self.plan: tuple[Any, _Held, _Lacked] = (None, [], [])

    def __call__(self, cls: type) -> bool:
        """Whether each lookup gives the object that is expected."""
        mro, held, lacked = self.plan
        if cls.__mro__ is not mro:
            return self._holds_anew(cls)
        for get, name, expected in held:
            if get(name, ABSENT) is not expected:
                return self._holds_anew(cls)
        for names, space in lacked:
            if not names.isdisjoint(space):
                return self._holds_anew(cls)
        return True

    def _holds_anew(self, cls: type) -> bool:
        """The same, by a new plan."""
        plan = self._plan_for(cls)
        if plan is None:
            return False
        self.plan = cls.__mro__, *plan
        return True

    def _plan_for(self, cls: type) -> tuple[_Held, _Lacked] | None:
        """Only a world in which all lookups hold makes a plan; None in another. Classes of C code
        never change."""
        held: _Held = []
        lacked: dict[type, set[str]] = {k: set() for k in cls.__mro__ if k.__flags__ & _HEAP_TYPE}
        for name, expected in self.entries:
            found = raw_lookup(cls, name)
            if found is not expected and not stands_for(found, expected):
                return None
            for klass in cls.__mro__:
                found = klass.__dict__.get(name, ABSENT)
                if found is ABSENT and klass in lacked:
                    lacked[klass].add(name)
                elif found is not ABSENT:
                    if klass in lacked:
                        held.append((klass.__dict__.get, name, found))
                    break
        spaces = [(frozenset(names), klass.__dict__) for klass, names in lacked.items() if names]
        return held, spaces


def namespace_of(value: object) -> Any:
    """The dict itself, or the `__dict__` of a module, class or instance."""
    return value if issubclass(type(value), dict) else dict_of(value)


def write_namespace(writer: SourceWriter, guard: Guard) -> str:
    """The text of "these names hold these very objects"."""
    value = writer.read(guard.source)
    writer.namespace["namespace_of"] = namespace_of
    name = f"entries{len(writer.lines)}"
    writer.lines.append(f"{name} = namespace_of({value})")
    return _write_entries(writer, name, guard.expected)


def _write_entries(writer: SourceWriter, mapping: str, entries: Any) -> str:
    absent = writer.constant(ABSENT)
    terms = []
    for name, value in entries:
        found, expected = f"{mapping}.get({name!r}, {absent})", writer.constant(value)
        term = f"{found} is {expected}"
        if _may_be_replaced(value):
            writer.namespace["stands_for"] = stands_for
            term = f"({term} or stands_for({found}, {expected}))"
        terms.append(term)
    return " and ".join(terms) or "True"


def _may_be_replaced(value: object) -> bool:
    """Whether it is a function of torch's."""
    return type(value) is types.FunctionType and (value.__module__ or "").startswith("torch.")


def explain_namespace(guard: Guard, value: object, others: Values) -> str | None:
    """Which name holds what now."""
    entries = namespace_of(value)
    return _explain_entries(guard, lambda name: entries.get(name, ABSENT))


def write_lookups(writer: SourceWriter, guard: Guard) -> str:
    """The text of "the class finds these very objects"."""
    lookups = writer.constant(ClassLookups(tuple(guard.expected)))
    return f"{lookups}({writer.read(guard.source)})"


def explain_lookups(guard: Guard, value: Any, others: Values) -> str | None:
    """Which name finds what now."""
    return _explain_entries(guard, lambda name: raw_lookup(value, name))


def _explain_entries(guard: Guard, look_up: Callable[[str], object]) -> str | None:
    for name, expected in guard.expected:
        actual = look_up(name)
        if actual is not expected and not stands_for(actual, expected):
            return (
                f"'{guard.source}' entry {name!r} mismatch. "
                f"expected {short_text(expected)}, actual {short_text(actual)}"
            )
    return None
