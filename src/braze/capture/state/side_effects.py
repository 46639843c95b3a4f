"""Writes to what existed before the call, and whole contents of containers from outside.

Nothing outside changes while a frame is captured. A write to one key of a dict, an instance dict,
a module's globals or a cell is kept in an overlay. When a native operation needs a container
whole, or changes it otherwise, a *shadow* takes its place: a copy that the program works on.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import CONSTANTS, GuardContext, is_constant
from braze.capture.state.hashed_members import (
    Put,
    copy_of_objects,
    is_plain_key,
    refuse_put,
)
from braze.capture.state.hidden_members import asks_members, is_key, is_single_key
from braze.capture.state.special_methods import check_given_up
from braze.frozen import frozen
from braze.ir.captured.guard import ABSENT, GuardKind, base_length
from braze.ir.captured.source import (
    DictKeySource,
    DictValueSource,
    ItemSource,
    ObjectSource,
    Source,
)

SEQUENCES = (list, tuple, collections.deque)
MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
SETS = (set, frozenset)
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
EXACT: frozenset[type] = frozenset({*SEQUENCES, *MAPPINGS, *SETS})
# Numbers and texts of a longer list are guarded as a whole, and none is a symbol: a guard an item
# takes 0.1 ms to compile.
_MANY_ITEMS = 1024
_CONSTANT = frozenset({int, str, float, bool})
# What only adds to a container, by class: one item, several items.
_ADDING: dict[type, tuple[Any, Any]] = {
    list: (list.append, list.extend),
    collections.deque: (collections.deque.append, collections.deque.extend),
    set: (set.add, set.update),
}


def ordered_items(value: Any) -> Any:
    """items() of a dict by its builtin base class: an OrderedDict keeps its order apart, and breaks
    where that was passed over."""
    if not issubclass(type(value), collections.OrderedDict):
        return dict.items(value)
    check_lookups(value)
    try:
        items = list(collections.OrderedDict.items(value))
    except KeyError:
        items = []
    if len(items) != dict.__len__(value):
        raise BreakRequested("unsupported-container", "an OrderedDict that was changed as a dict")
    return items


def check_lookups(value: object) -> None:
    """Break before an OrderedDict is iterated whose keys the program's code hashes: its iterators
    look each key up."""
    if type(value) is collections.OrderedDict and asks_members(value):
        raise BreakRequested("unsupported-container", "an OrderedDict whose keys answer by Python")


def check_order(owner: object) -> None:
    """Break before a method of dict changes an OrderedDict past the order that it keeps apart."""
    if issubclass(type(owner), collections.OrderedDict):
        raise BreakRequested("unsupported-container", "an OrderedDict, changed as a dict")


@final
class _Deleted:
    """A key that the program deleted."""

    def __repr__(self) -> str:
        return "DELETED"


DELETED = _Deleted()


@final
class DictWrites:
    """Single writes to one dict; `owner` is the object whose instance dict it is, or None.

    renewed: keys deleted and then written again, which puts them last.
    """

    __slots__ = ("entries", "owner", "renewed", "space")

    def __init__(self, space: dict[Any, Any], owner: Any) -> None:
        self.space = space
        self.owner = owner
        self.entries: dict[Any, Any] = {}
        self.renewed: set[Any] = set()

    def put(self, key: object, value: object) -> None:
        """Write or delete one key."""
        if value is DELETED:
            self.renewed.discard(key)
        elif self.entries.get(key) is DELETED:
            del self.entries[key]
            self.renewed.add(key)
        self.entries[key] = value

    def steps(self) -> list[tuple[Any, Any]]:
        """Writes and deletions (DELETED) of keys, in an order that gives the keys theirs."""
        steps: list[tuple[Any, Any]] = []
        for key, value in self.entries.items():
            if key in self.renewed:
                steps.append((key, DELETED))
            steps.append((key, value))
        return steps


def _is_equal(shadow: Shadow) -> bool:
    """Whether a shadow that was changed holds what it held: of containers of constants."""
    copy, original = shadow.copy, shadow.original
    if issubclass(type(copy), dict) or not all(map(is_constant, (*copy, *original))):
        return not copy and not original
    return type(copy) is type(original) and bool(copy == original)


def _marks_of(value: Any) -> list[Any]:
    if issubclass(type(value), dict):
        return [(id(key), id(item)) for key, item in ordered_items(value)]
    return list(map(id, value))


@final
class Shadow:
    """The copy that stands for a container from outside."""

    __slots__ = ("changed", "copy", "original")

    def __init__(self, original: Any, copy: Any) -> None:
        self.original = original
        self.copy = copy
        self.changed = False


@final
@frozen
class Unsettled:
    """A dict that a call writes to which was put off: `readable` may be asked for, and what is not
    there. problem: makes what is raised else."""

    space: dict[Any, Any]
    readable: dict[Any, Any]
    problem: Callable[[], BaseException]

    def read(self, key: object) -> Any:
        """What a key has, or ABSENT."""
        if key in self.readable:
            return self.readable[key]
        if key in self.space:
            raise self.problem()
        return ABSENT


@final
class SideEffects:
    """All writes to objects from outside, in the order in which they began.

    touched: identities of the dicts of which `written` may know something.
    """

    def __init__(self, guard_context: GuardContext) -> None:
        self.guard_context = guard_context
        self.writes: dict[int, DictWrites] = {}
        self.slots: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.cells: dict[int, tuple[types.CellType, Any]] = {}
        self.added: dict[int, tuple[Any, list[Any]]] = {}
        self.shadows: dict[int, Shadow] = {}
        self.shadow_of: dict[int, Shadow] = {}
        self.unsettled: dict[int, Unsettled] = {}
        self.touched: set[int] = set()
        self.cell_sources: dict[int, Source] = {}
        self.cell_objects: dict[int, Source] = {}
        self.put: Put = refuse_put

    def _marks_of_writes(self, writes: DictWrites) -> list[Any]:
        """Of entries that get another value than they have."""
        found = []
        for key, value in writes.entries.items():
            old = writes.space.get(key, DELETED)
            same = old == value if is_constant(value) and is_constant(old) else old is value
            if not same and self.guard_context.fakes.get(id(old), DELETED) is not value:
                found.append((id(writes.space), id(key), id(value)))
        return found

    def marks(self) -> tuple[Any, ...]:
        """What is written so far, by the identity of what is written."""
        return (
            [mark for writes in self.writes.values() for mark in self._marks_of_writes(writes)],
            {key: id(value) for key, (_, value) in self.slots.items()},
            {key: id(value) for key, (_, value) in self.cells.items()},
            {key: len(items) for key, (_, items) in self.added.items()},
            [_marks_of(s.copy) for s in self.shadows.values() if s.changed and not _is_equal(s)],
        )

    def release(self) -> None:
        """Empty the tables."""
        for table in (self.writes, self.slots, self.cells, self.shadows, self.shadow_of):
            table.clear()
        self.unsettled.clear()
        self.put = refuse_put
        self.added.clear()
        self.touched.clear()

    def has_written_dicts(self) -> bool:
        """Whether a dict from outside was written to: the globals of modules and `sys.modules`
        among them, where C code looks up names."""
        if any(
            shadow.changed and isinstance(shadow.copy, dict) for shadow in self.shadows.values()
        ):
            return True
        return any(writes.owner is None for writes in self.writes.values())

    def unsettle(self, unsettled: Unsettled) -> None:
        """What a dict holds is said by a call that was put off."""
        self.unsettled[id(unsettled.space)] = unsettled
        self.touched.add(id(unsettled.space))

    # --- single entries ----------------------------------------------------------------------

    def write(self, space: dict[Any, Any], key: Any, value: Any, owner: object = None) -> None:
        """Write (DELETED: delete) one key of a dict from outside."""
        self._check_settled(space)
        shadow = self.shadows.get(id(space))
        held = space if shadow is None else shadow.copy
        if dict.get(held, key) is not value:
            check_given_up((dict.get(held, key),))
        if shadow is not None:
            shadow.changed = True
            if value is DELETED:
                del shadow.copy[key]
            else:
                shadow.copy[key] = value
            return
        entry = self.writes.get(id(space))
        if value is DELETED and not dict.__contains__(space, key):
            if entry is not None:
                entry.entries.pop(key, None)
            self._guard_lacks(space, key, owner)
            return
        if value is DELETED and entry is not None and key in entry.entries:
            self._guard_has(space, key, owner)
        if entry is None:
            entry = self.writes[id(space)] = DictWrites(space, owner)
            self.touched.add(id(space))
        entry.put(key, value)

    def _guard_has(self, space: dict[object, object], key: object, owner: object) -> None:
        """What was written here and deleted again was there before: it is to be deleted."""
        source = self.guard_context.source_of(space)
        if owner is not None:
            source = self.guard_context.instance_dict_source(owner)
        source = source or ObjectSource(f"globals of {space.get('__name__', '?')}", space)
        self.guard_context.guard(source, GuardKind.DICT_CONTAINS, (key, True))

    def _guard_lacks(self, space: dict[Any, Any], key: Any, owner: object) -> None:
        """What was written here and deleted again is not there before either."""
        source = self.guard_context.source_of(space)
        if owner is not None:
            self.guard_context.guard_lacks_attribute(space, owner, key)
        elif source is not None:
            self.guard_context.guard(source, GuardKind.DICT_CONTAINS, (key, False))
        else:
            self.guard_context.guard_namespace(space, key, ABSENT)

    def written(self, space: dict[Any, Any], key: Any) -> Any:
        """What was written under a key: a value, DELETED, or ABSENT if the dict is as it was."""
        if id(space) not in self.touched:
            return ABSENT
        if id(space) in self.unsettled:
            return self.unsettled[id(space)].read(key)
        shadow = self.shadows.get(id(space))
        if shadow is not None:
            return shadow.copy.get(key, DELETED)
        entry = self.writes.get(id(space))
        return ABSENT if entry is None else entry.entries.get(key, ABSENT)

    def read(self, space: dict[object, object], key: object, source: Source) -> Any:
        """One entry of a dict from outside (found at `source`), or ABSENT; guards what it saw."""
        found = self.written(space, key)
        if found is not ABSENT:
            return ABSENT if found is DELETED else found
        read_key = (id(space), key)
        reads = self.guard_context.reads
        if read_key in reads:
            return reads[read_key]
        present = dict.__contains__(space, key)
        if not present:
            self.guard_context.guard(source, GuardKind.DICT_CONTAINS, (key, False))
            reads[read_key] = ABSENT
            return ABSENT
        value = self.guard_context.wrap_value(dict.__getitem__(space, key), ItemSource(source, key))
        reads[read_key] = value
        return value

    def contains_key(self, space: dict[object, object], key: object, source: Source) -> bool:
        """Whether a dict from outside, unwritten at this key, has it; guards only that."""
        self._check_settled(space)
        seen = self.guard_context.reads.get((id(space), key), DELETED)
        if seen is not DELETED:
            return seen is not ABSENT
        present = dict.__contains__(space, key)
        asked = (id(space), "in", key)
        if asked not in self.guard_context.reads:
            self.guard_context.reads[asked] = present
            self.guard_context.guard(source, GuardKind.DICT_CONTAINS, (key, present))
        return present

    @staticmethod
    def is_deleted(value: object) -> bool:
        """Whether `written` says that the key is gone."""
        return value is DELETED

    def add(self, value: object, function: object, args: Any) -> bool:
        """Note that a container from outside grows, whatever is in it now. False where the call is
        of another kind, or the program knows the contents already."""
        adding: tuple[Any, ...] = _ADDING.get(type(value), ())
        if function not in adding or len(args) != 1 or id(value) in self.shadows:
            return False
        (items,) = args
        if function is adding[1]:
            if type(items) not in EXACT or items is value:
                return False
            items = list(self.contents(items))
        else:
            items = [items]
        if type(value) is set and not all(map(is_single_key, items)):
            return False
        self.added.setdefault(id(value), (value, []))[1].extend(items)
        return True

    def additions(self) -> list[tuple[object, object, list[object]]]:
        """(container, the method that adds them, the new items)."""
        return [(value, _ADDING[type(value)][1], items) for value, items in self.added.values()]

    def written_objects(self) -> list[tuple[object, object]]:
        """(object, None) of every container from outside that was changed, (instance dict, its
        object) of every object."""
        found = [(shadow.original, None) for shadow in self.shadows.values() if shadow.changed]
        found += [(writes.space, writes.owner) for writes in self.writes.values()]
        return found + [(value, None) for value, _ in self.added.values()]

    def extent(self) -> tuple[int, ...]:
        """How much was written so far."""
        changed = sum(shadow.changed for shadow in self.shadows.values())
        added = sum(len(items) for _, items in self.added.values())
        written = sum(len(writes.entries) for writes in self.writes.values())
        return changed, added, written, len(self.slots), len(self.cells)

    def written_containers(self) -> list[tuple[object, Source]]:
        """The containers from outside that were changed, with their sources."""
        guard_context = self.guard_context
        return [
            (each, source)
            for each, owner in self.written_objects()
            if (
                source := guard_context.source_of(each)
                if owner is None
                else guard_context.instance_dict_source(owner)
            )
        ]

    # --- cells -------------------------------------------------------------------------------

    def read_cell(self, cell: types.CellType) -> object:
        """The contents of a cell, or ABSENT."""
        guard_context = self.guard_context
        if id(cell) in guard_context.fresh:
            try:
                return cell.cell_contents
            except ValueError:
                return ABSENT
        written = self.cells.get(id(cell))
        if written is not None:
            return ABSENT if written[1] is DELETED else written[1]
        key = (id(cell), "cell_contents")
        if id(cell) not in self.cell_sources:
            raise BreakRequested("opaque-object", "a cell that was found in no function")
        if key not in guard_context.reads:
            try:
                value = cell.cell_contents
            except ValueError:
                return ABSENT
            guard_context.reads[key] = guard_context.wrap_value(value, self.cell_sources[id(cell)])
        return guard_context.reads[key]

    def write_cell(self, cell: types.CellType, value: object) -> None:
        """Write (DELETED: empty) a cell."""
        if id(cell) in self.guard_context.fresh:
            if value is DELETED:
                del cell.cell_contents
            else:
                cell.cell_contents = value
            return
        with suppress(ValueError):  # it may be empty
            check_given_up((cell.cell_contents,))
        self.cells[id(cell)] = (cell, value)

    # --- whole containers --------------------------------------------------------------------

    def contents(self, value: object) -> Any:
        """A container to read natively: the value itself if fresh, else its shadow."""
        if id(value) not in self.guard_context.known:
            return value
        return self._shadow(value).copy

    def changed(self, value: Any) -> Any:
        """A container to change natively: the value itself if fresh, else its shadow."""
        if id(value) not in self.guard_context.known:
            return value
        shadow = self._shadow(value)
        if not shadow.changed:
            mapped = issubclass(type(value), dict)
            check_given_up(dict.values(shadow.copy) if mapped else iter(shadow.copy))
        shadow.changed = True
        return shadow.copy

    def original(self, value: object) -> Any:
        """The object that a shadow stands for; any other value itself."""
        shadow = self.shadow_of.get(id(value))
        return value if shadow is None else shadow.original

    def length(self, value: Any) -> int:
        """How many items a container from outside holds, guarded; its class may say otherwise."""
        self._check_settled(value)
        shadow = self.shadows.get(id(value))
        if shadow is not None:
            return len(shadow.copy)
        if id(value) in self.writes or id(value) in self.added:
            return len(self._shadow(value).copy)
        self._guard_length(value)
        return base_length(value)

    def native(self, value: Any) -> Any:
        """A value for a native call: containers from outside by their shadows, at any depth."""
        cls = type(value)
        if cls in CONSTANTS:
            return value
        if cls in EXACT or issubclass(type(value), (tuple, list)):
            if id(value) in self.guard_context.known:
                value = self._shadow(value).copy
                cls = type(value)
            return self._native_items(value, cls)
        if cls is slice:
            return slice(self.native(value.start), self.native(value.stop), self.native(value.step))
        return value

    def _native_items(self, value: Any, cls: type) -> object:
        if cls is tuple or cls is list:
            if CONSTANTS.issuperset(map(type, value)):
                return value
            items = [self.native(item) for item in value]
            if all(new is old for new, old in zip(items, value)):
                return value
            return tuple(items) if cls is tuple else items
        if cls is dict:
            held = list(value.items())  # hashing a key may run the program, which changes the dict
            entries = [(key, self.native(item)) for key, item in held]
            same = all(new is old for (_, new), (_, old) in zip(entries, held))
            return value if same else dict(entries)
        return value

    def _guard_length(self, value: object) -> None:
        key = (id(value), "len()")
        if key not in self.guard_context.reads:
            self.guard_context.reads[key] = held = base_length(value)
            self.guard_context.guard(self.guard_context.known[id(value)][1], GuardKind.LENGTH, held)

    def _check_settled(self, value: object) -> None:
        if id(value) in self.unsettled:
            raise self.unsettled[id(value)].problem()

    def _shadow(self, value: Any) -> Shadow:
        self._check_settled(value)
        shadow = self.shadows.get(id(value))
        if shadow is None:
            copy = self._copy(value, self.guard_context.known[id(value)][1])
            shadow = Shadow(value, copy)
            entry = self.writes.pop(id(value), None)
            if entry is not None:
                shadow.changed = True
                for key, written in entry.steps():
                    if written is DELETED:
                        copy.pop(key, None)
                    else:
                        copy[key] = written
            _, added = self.added.pop(id(value), (value, []))
            if added:
                shadow.changed = True
                _ADDING[type(value)][1](copy, added)
            self.shadows[id(value)] = shadow
            self.touched.add(id(value))
            self.shadow_of[id(copy)] = shadow
        return shadow

    def _copy(self, value: object, source: Source) -> Any:
        if issubclass(type(value), SEQUENCES):
            return self._copy_sequence(value, source)
        if issubclass(type(value), dict):
            return self._copy_dict(value, source)
        if issubclass(type(value), SETS):
            base: Any = set if issubclass(type(value), set) else frozenset
            members = [*base.__iter__(value)]  # not the subclass's
            if not all(map(is_single_key, members)):
                return copy_of_objects(self.guard_context, value, source, self.put)
            expected = base.__new__(type(value), *([members] if base is frozenset else []))
            if base is set:
                set.update(expected, members)
            self.guard_context.guard(source, GuardKind.EQUALS_MATCH, expected)
            return base(members)
        raise BreakRequested("unsupported-container", type(value).__qualname__)

    def _copy_sequence(self, value: Any, source: Source) -> object:
        guard_context = self.guard_context
        if (
            type(value) is list
            and len(value) > _MANY_ITEMS
            and _CONSTANT.issuperset(map(type, value))
        ):
            items = list(value)
            guard_context.guard(source, GuardKind.EQUALS_MATCH, [*items])
            return items
        self._guard_length(value)
        kind = next(base for base in SEQUENCES if issubclass(type(value), base))
        items = []
        for index, item in enumerate(kind.__iter__(value)):  # not the subclass's
            key = (id(value), index)
            if key not in guard_context.reads:
                guard_context.reads[key] = guard_context.wrap_value(item, ItemSource(source, index))
            items.append(guard_context.reads[key])
        if hasattr(type(value), "n_sequence_fields"):
            return _struct_sequence(type(value), items)
        if issubclass(type(value), tuple):
            return tuple.__new__(type(value), items)
        if issubclass(type(value), collections.deque):
            return collections.deque(items, _MAXLEN(value))
        return items

    def _copy_dict(self, value: Any, source: Source) -> object:
        keys = [key for key, _ in ordered_items(value)]
        guard_context = self.guard_context
        if all(is_constant(key) for key in keys):
            guard_context.guard(source, GuardKind.DICT_KEYS, tuple(keys))
        else:
            self._guard_length(value)
            if not all(is_plain_key(guard_context, key) for key in keys):
                return copy_of_objects(guard_context, value, source, self.put)
            for index, key in enumerate(keys):
                if type(key) is tuple:
                    guard_context.guard(DictKeySource(source, index), GuardKind.ID_MATCH, key)
                    guard_context.keep(key)
                else:
                    guard_context.wrap_value(key, DictKeySource(source, index))
        copy: Any = {}
        if issubclass(type(value), collections.OrderedDict):
            if type(value) is collections.OrderedDict and vars(value):
                raise BreakRequested("unsupported-container", "an OrderedDict with attributes")
            copy = collections.OrderedDict()
        elif issubclass(type(value), collections.defaultdict):
            factory = guard_context.read_attribute_value(value, "default_factory", _FACTORY(value))
            copy = collections.defaultdict(factory)
        elif type(value) is collections.Counter:
            copy = collections.Counter()
        for index, key in enumerate(keys):
            read_key = (id(value), key)
            if read_key not in guard_context.reads or guard_context.reads[read_key] is ABSENT:
                changes = type(key) not in CONSTANTS and not is_key(key)
                place = DictValueSource(source, index) if changes else ItemSource(source, key)
                guard_context.reads[read_key] = guard_context.wrap_value(
                    dict.__getitem__(value, key), place
                )
            copy[guard_context.fakes.get(id(key), key)] = guard_context.reads[read_key]
        return copy


_MAXLEN = vars(collections.deque)["maxlen"].__get__
_FACTORY = vars(collections.defaultdict)["default_factory"].__get__


def _struct_sequence(cls: type, items: list[object]) -> object:
    try:
        return cls(items)
    except TypeError:  # `sys.version_info` and its like are made by the interpreter only
        return tuple(items)
