"""What each kind of guard asks: as a condition in generated Python, and in words when it fails.

One row a kind: `write(writer, guard)` gives Python text that is true while the guard holds;
`explain(guard, value, others)` gives the sentence that says how it does not hold, or None where it
holds: that is what the guard means. value: the object at the guard's source, None without one. A
new kind needs a row here, in `COSTS` of `ir/captured/guard_tree.py`, and in
`tests/unit/runtime/test_guards.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from braze.compat.torch.ambient_guards import ambient_questions
from braze.compat.torch.nn_modules import INSTANCE_HOOKS, has_global_hooks, instance_hooks
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import Source
from braze.runtime.guards.abstract_classes import explain_abstract, write_abstract
from braze.runtime.guards.arrays import (
    explain_apart,
    explain_array,
    write_apart,
    write_array,
)
from braze.runtime.guards.codegen import SourceWriter, dict_of
from braze.runtime.guards.float_comparisons import explain_comparison, write_comparison
from braze.runtime.guards.iterators import explain_items_left, write_items_left
from braze.runtime.guards.messages import Values, mismatch, short_text
from braze.runtime.guards.namespaces import (
    explain_lookups,
    explain_namespace,
    write_lookups,
    write_namespace,
)
from braze.runtime.guards.process_state import explain_answer, write_answer
from braze.runtime.guards.size_conditions import explain_condition, write_condition
from braze.runtime.guards.tensors import (
    explain_none_watched,
    explain_offset,
    explain_overlap,
    explain_tensor,
    explain_view,
    write_none_watched,
    write_overlap,
    write_tensor,
    write_view,
)
from braze.runtime.guards.values import (
    explain_contains,
    explain_equals,
    explain_has_attribute,
    explain_keys,
    explain_lacks,
    explain_length,
    write_contains,
    write_equals,
    write_has_attribute,
    write_keys,
    write_lacks,
    write_length,
)


def _write_distinct(writer: SourceWriter, guard: Guard) -> str:
    # The tuple keeps what a read makes anew: two objects in turn may have one address.
    values = "".join(f"{writer.read(source)}, " for source in guard.expected)
    return f"len({{*map(id, ({values}))}}) == {len(guard.expected)}" if values else "True"


def _write_no_hooks(writer: SourceWriter, guard: Guard) -> str:
    if guard.source is None:
        writer.namespace["has_global_hooks"] = has_global_hooks
        return "not has_global_hooks()"
    name = f"hooks{len(writer.lines)}"
    writer.lines.append(f"{name} = {writer.dict_of(guard.source)}")
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


def _explain_type(guard: Guard, value: object, others: Values) -> str | None:
    if type(value) is guard.expected:
        return None
    return mismatch(guard, "type", guard.expected, type(value))


def _explain_identity(guard: Guard, value: object, others: Values) -> str | None:
    if value is guard.expected:
        return None
    return mismatch(guard, "identity", short_text(guard.expected), short_text(value))


def _explain_same(guard: Guard, value: object, others: Values) -> str | None:
    if value is others[0]:
        return None
    return f"'{guard.source}' and '{guard.expected}' were one object and are two now"


def _explain_different(guard: Guard, value: object, others: Values) -> str | None:
    if value is not others[0]:
        return None
    return f"'{guard.source}' and '{guard.expected}' were two objects and are one now"


def _explain_distinct(guard: Guard, value: object, others: Values) -> str | None:
    seen: dict[int, Source] = {}
    for source, found in zip(guard.expected, others):
        other = seen.setdefault(id(found), source)
        if other is not source:
            return f"'{other}' and '{source}' were two objects and are one now"
    return None


def _explain_ambient(guard: Guard, value: object, others: Values) -> str | None:
    changed: str | None = guard.expected.difference()
    return changed


def _explain_uncached(guard: Guard, value: object, others: Values) -> str | None:
    if guard.expected.of(value):
        return None
    return f"'{guard.source}' is no longer {guard.expected}"


def _explain_no_hooks(guard: Guard, value: object, others: Values) -> str | None:
    if guard.source is None:
        return "a hook for all modules was registered" if has_global_hooks() else None
    space = dict_of(value)
    gone = [name for name in INSTANCE_HOOKS if name not in space]
    if gone:  # the module cannot be called
        return f"'{guard.source}' no longer has {gone[0]}"
    hooks = instance_hooks(space)
    return f"'{guard.source}' now has hooks in {hooks[0]}" if hooks else None


def _explain_functions(guard: Guard, value: object, others: Values) -> str | None:
    for function, *expected in guard.expected:
        for name, wanted in zip(("__code__", "__defaults__", "__kwdefaults__"), expected):
            if getattr(function, name) is not wanted:
                return f"function '{function.__qualname__}' has a new {name}"
    return None


def _explain_question(guard: Guard, value: object, others: Values) -> str | None:
    return None if guard.expected.holds() else f"{guard.expected} has another answer"


class GuardRow(NamedTuple):
    write: Callable[[SourceWriter, Guard], str]
    explain: Callable[[Guard, Any, Values], str | None]


def _identity(w: SourceWriter, g: Guard) -> str:
    return f"{w.read(g.source)} is {w.constant(g.expected)}"


GUARD_KINDS: dict[GuardKind, GuardRow] = {
    GuardKind.AMBIENT: GuardRow(_write_ambient, _explain_ambient),
    GuardKind.ANSWER: GuardRow(write_answer, explain_answer),
    GuardKind.ID_MATCH: GuardRow(_identity, _explain_identity),
    GuardKind.TYPE_MATCH: GuardRow(
        lambda w, g: f"type({w.read(g.source)}) is {w.constant(g.expected)}",
        _explain_type,
    ),
    GuardKind.EQUALS_MATCH: GuardRow(write_equals, explain_equals),
    GuardKind.COMPARES: GuardRow(write_comparison, explain_comparison),
    GuardKind.LENGTH: GuardRow(write_length, explain_length),
    GuardKind.SAME_OBJECT: GuardRow(
        lambda w, g: f"{w.read(g.source)} is {w.read(g.expected)}", _explain_same
    ),
    GuardKind.DIFFERENT_OBJECT: GuardRow(
        lambda w, g: f"{w.read(g.source)} is not {w.read(g.expected)}", _explain_different
    ),
    GuardKind.DICT_CONTAINS: GuardRow(write_contains, explain_contains),
    GuardKind.DICT_LACKS: GuardRow(write_lacks, explain_lacks),
    GuardKind.HAS_ATTRIBUTE: GuardRow(write_has_attribute, explain_has_attribute),
    GuardKind.ITEMS_LEFT: GuardRow(write_items_left, explain_items_left),
    GuardKind.DICT_KEYS: GuardRow(write_keys, explain_keys),
    GuardKind.NAMESPACE: GuardRow(write_namespace, explain_namespace),
    GuardKind.NO_HOOKS: GuardRow(_write_no_hooks, _explain_no_hooks),
    GuardKind.CLASS_LOOKUPS: GuardRow(write_lookups, explain_lookups),
    GuardKind.TENSOR_MATCH: GuardRow(write_tensor, explain_tensor),
    GuardKind.STORAGE_OFFSET: GuardRow(
        lambda w, g: f"{w.read(g.source)}.storage_offset() == {g.expected}",
        explain_offset,
    ),
    GuardKind.VIEW: GuardRow(write_view, explain_view),
    GuardKind.ABSTRACT_CLASSES: GuardRow(write_abstract, explain_abstract),
    GuardKind.FUNCTIONS: GuardRow(_write_functions, _explain_functions),
    GuardKind.HOLDS: GuardRow(lambda w, g: f"{w.constant(g.expected)}.holds()", _explain_question),
    GuardKind.UNCACHED: GuardRow(
        lambda w, g: f"{w.constant(g.expected)}.of({w.read(g.source)})", _explain_uncached
    ),
    GuardKind.DISTINCT: GuardRow(_write_distinct, _explain_distinct),
    GuardKind.NONE_WATCHED: GuardRow(write_none_watched, explain_none_watched),
    GuardKind.SIZES: GuardRow(write_condition, explain_condition),
    GuardKind.ARRAY_MATCH: GuardRow(write_array, explain_array),
    GuardKind.APART: GuardRow(write_apart, explain_apart),
    GuardKind.STORAGE_OVERLAP: GuardRow(write_overlap, explain_overlap),
}
