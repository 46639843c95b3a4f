"""Frames that end their own guards: what was captured would serve one call.

An optimizer's first step makes its state, and is captured under the guard that there is none; the
second step is another program. To compile the first one takes as long as the one that stays, and is
for nothing: so a large one is left to eager, once, and the next call is compiled.

What the next call gets anew ends nothing: `**kwargs`, and arguments (a cache that is filled) other
than models, optimizers and the `self` of a method.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import nn

from braze.ir.captured.frame import (
    CapturedFrame,
    Effect,
    FromConstant,
    FromSource,
    NewDict,
    NewSequence,
    Recipe,
    ReplaceContents,
    SetAttribute,
    SetItem,
)
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import (
    AttributeSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    Source,
    StackSource,
    root_of,
)


def ended_guard(captured: CapturedFrame) -> tuple[Guard, str] | None:
    """A guard that the frame's own effects end, and how in words; None where none is seen to.

    Only what can be told without running anything: an effect that is not understood ends none.
    """
    guards: dict[Source | None, list[Guard]] = {}
    lasting: set[Source] = {LocalSource(name) for name in _own_names(captured.code)}
    for guard in captured.guards:
        if guard.kind in _KINDS:
            guards.setdefault(guard.source, []).append(guard)
        elif guard.kind is GuardKind.TYPE_MATCH and issubclass(guard.expected, _LASTING):
            assert guard.source is not None
            lasting.add(guard.source)
    # A gradient that was None is seldom what makes the next call another program: asked last.
    for effect in sorted(captured.effects, key=lambda effect: isinstance(effect, SetAttribute)):
        for source in _written(effect, lasting):
            for guard in guards.get(source, ()):
                reason = _ends(effect, guard)
                if reason:
                    return guard, f"'{guard.source}' {reason}"
    return None


# --- private ---------------------------------------------------------------------------------

_KINDS = frozenset(
    {
        GuardKind.LENGTH,
        GuardKind.DICT_KEYS,
        GuardKind.DICT_CONTAINS,
        GuardKind.DICT_LACKS,
        GuardKind.HAS_ATTRIBUTE,
        GuardKind.EQUALS_MATCH,
        GuardKind.ID_MATCH,
    }
)
_LASTING = (nn.Module, torch.optim.Optimizer)
# Whose values are compared: what else a guard holds is known by its identity.
_PLAIN = (bool, int, float, str, bytes, type(None))


def _own_names(code: types.CodeType) -> tuple[str, ...]:
    """The name of what a method is called of."""
    owner = code.co_qualname.rpartition(".")[0]
    is_method = owner and not owner.endswith("<locals>") and code.co_argcount
    return code.co_varnames[:1] if is_method else ()


def _written(effect: Effect, lasting: Collection[Source]) -> Iterator[Source]:
    """Where guards may be found that an effect ends. lasting: locals that the next call has."""
    if not isinstance(effect, (SetAttribute, SetItem, ReplaceContents)):
        return
    if not isinstance(effect.target, FromSource):
        return
    target = effect.target.source
    root = root_of(target)
    if isinstance(root, (LocalSource, StackSource)) and root not in lasting:
        return
    yield target
    if isinstance(effect, SetAttribute):
        yield AttributeSource(target, effect.name)
        yield InstanceDictSource(target)
        yield ItemSource(InstanceDictSource(target), effect.name)
    elif isinstance(effect, SetItem) and (key := _constant(effect.key)) is not None:
        yield ItemSource(target, key)


def _ends(effect: Effect, guard: Guard) -> str:
    """How the effect ends the guard, or ""."""
    kind, expected = guard.kind, guard.expected
    if isinstance(effect, ReplaceContents):
        count = _count(effect.contents)
        before = {GuardKind.LENGTH: expected, GuardKind.DICT_KEYS: _len(expected)}.get(kind)
        changes = count is not None and before is not None and count != before
        return f"has {before} items, and {count} behind the call" if changes else ""
    assert isinstance(effect, (SetAttribute, SetItem))
    key = effect.name if isinstance(effect, SetAttribute) else _constant(effect.key)
    there = effect.value is not None
    if kind in (GuardKind.EQUALS_MATCH, GuardKind.ID_MATCH):
        return _changes(effect.value, expected)
    if kind is GuardKind.DICT_KEYS:
        if there and not expected:
            return "is empty, and gets an item in the call"
        changes = key is not None and any(known == key for known in _names(expected)) != there
        return _came_or_went(key, there) if changes else ""
    if kind is GuardKind.DICT_LACKS:
        return _came_or_went(key, there) if there and key in _names(expected) else ""
    if kind in (GuardKind.DICT_CONTAINS, GuardKind.HAS_ATTRIBUTE):
        name, present = expected
        same = isinstance(name, str) and name == key
        return _came_or_went(key, there) if same and present != there else ""
    return ""


def _came_or_went(key: object, there: bool) -> str:
    return f"{'gets' if there else 'loses'} {key!r} in the call"


def _changes(value: Recipe | None, expected: object) -> str:
    """Of an attribute or item that a guard holds to a number, a text or None."""
    if type(expected) not in _PLAIN:
        return ""
    if isinstance(value, FromConstant):
        now = value.value
        if type(now) is type(expected) and (now is expected or now == expected):
            return ""
        return f"is {expected!r}, and {now!r} behind the call" if type(now) in _PLAIN else ""
    made = expected is None and value is not None and not isinstance(value, FromSource)
    return "is None, and is made in the call" if made else ""


def _count(contents: Recipe) -> int | None:
    """Items of a new container; a set may hold fewer than it was given."""
    if isinstance(contents, NewDict):
        return len(contents.items)
    if isinstance(contents, NewSequence) and issubclass(contents.cls, (list, tuple)):
        return len(contents.items)
    return None


def _len(expected: object) -> int | None:
    return len(expected) if isinstance(expected, (tuple, frozenset)) else None


def _constant(key: Recipe) -> str | None:
    """A key that is compared here: other ones (tensors) have an equality of their own."""
    return key.value if isinstance(key, FromConstant) and isinstance(key.value, str) else None


def _names(keys: Sequence[object]) -> list[str]:
    return [key for key in keys if isinstance(key, str)]
