"""Pins: what must not change for a source to lead to the object that it leads to now.

    L['self'].layer.weight   ->   the frame's `self` is that object (a root)
                                  it is of that class and has that `__dict__` (a pinned instance)
                                  the dict has that `_modules` and lacks `layer`  (a pinned dict)
                                  its class has no `layer`, and Module's `__getattr__`  (a class)
                                  ...

Each is one comparison of an address for `guard_native.cpp`. What cannot be pinned (a property, a
container of a user's class, a value that is made anew at each call) is None, and its guards stay
generated Python.
"""

from __future__ import annotations

import io
import types
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.tensor_abi import PLAIN_TENSOR_CLASSES
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import ABSENT
from braze.ir.captured.source import (
    AttributeSource,
    CellObjectSource,
    CellSource,
    ClosureSource,
    DictKeySource,
    DictValueSource,
    FunctionGlobalSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ObjectSource,
    Source,
    StackSource,
    TypeSource,
)
from braze.runtime.guards.codegen import dict_of
from braze.runtime.guards.namespaces import ClassLookups, raw_lookup

# The kinds of steps, and the places of roots, as guard_native.cpp numbers them.
_INSTANCE, _DICT, _SIZE, _SEQUENCE, _CELL, _MEMBERS, _METHOD = range(7)
_LOCAL, _STACK, _GLOBALS, _CONTENT = range(4)
# Added to the place of a bound method: a part of it, whichever method object it is.
_METHOD_PARTS = {"__self__": 8, "__func__": 16}

_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_PLAIN_KEYS = frozenset({str, int, bytes, bool, type, type(None)})
_COMPARING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_FACTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN_DICTS = (dict, OrderedDict)
_CONTAINERS = (dict, list, tuple, set, frozenset, types.CellType)
_FRESH = (*_ATOMS, *_FACTS, *_CONTAINERS, torch.Tensor, slice, range)
# Whose iterators are Python's own.
_ITERATOR_MODULES = ("builtins", "itertools")
_HEAP_TYPE = 1 << 9
# Builtin objects that are borrowed and looked into, as those of heap types are: which of them are
# of one depends on the version of Python.
_BY_CLASS = (types.ModuleType, defaultdict)
_MODULE_GETATTR = torch.nn.Module.__getattr__
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")

Row: TypeAlias = tuple[Any, ...]
# Where a frame brings a root along, and its name or number there.
Place: TypeAlias = tuple[int, Any]


def is_constant(value: Any) -> bool:
    """Whether the object can never change."""
    cls = type(value)
    if cls in (tuple, frozenset):
        return all(map(is_constant, value))
    return cls in _ATOMS or cls in _FACTS


def is_plain_key(key: object) -> bool:
    """Whether finding the key in a dict with such keys runs no Python code."""
    return type(key) in _PLAIN_KEYS


def has_plain_keys(content: dict[object, object]) -> bool:
    """Whether finding a plain key in the dict runs no Python code: the others are compared by
    identity, as classes and functions are."""
    others = {*map(type, content)} - _PLAIN_KEYS
    return all(getattr(cls, name) is getattr(object, name) for cls in others for name in _COMPARING)


@final
class PinnedDict:
    """What is asked of one dict: entries (None for the value: any), its size, its keys in order."""

    __slots__ = ("content", "entries", "keys", "size")

    def __init__(self, content: dict[object, object]) -> None:
        self.content = content
        self.entries: dict[Any, Any] = {}
        self.size: int | None = None
        self.keys: tuple[Any, ...] | None = None


@final
class Pins:
    """The pins of one frame's world, collected source by source; parents come before children.

    keep: what a snapshot must hold: everything that it compares the address of and that no later
        step looks into. roots, steps, classes: rows for guard_native.cpp.
    """

    def __init__(
        self,
        frame: FrameValues,
        absent: object,
        passing: Collection[Place] = (),
        moving: Collection[Source] = (),
    ) -> None:
        """passing: roots that are other objects at each call: nothing of theirs is pinned. moving:
        sources that lead to other objects at each call: nor is anything behind them."""
        self.frame = frame
        self.absent = absent
        self.passing = passing
        self.moving = moving
        self.keep: list[Any] = []
        self.roots: dict[Place, Any] = {}
        self._found: dict[Source, tuple[Any] | None] = {}
        # A source hashes its whole chain: most are found by their identity.
        self._seen: dict[int, tuple[Source, tuple[Any] | None]] = {}
        self._nodes: dict[int, PinnedDict | list[Any]] = {}
        self._order: list[PinnedDict | list[Any]] = []
        self._classes: dict[type, dict[str, Any]] = {}

    # --- sources -------------------------------------------------------------------------------

    def pin(self, source: Source | None) -> tuple[Any] | None:
        """(the object,) that the source leads to while the pins hold; None: it is not pinned."""
        if source is None:
            return None
        known = self._seen.get(id(source))
        if known is not None:
            return known[1]
        if source in self._found:
            return self._found[source]
        pins = None if source in self.moving else _PIN.get(type(source))
        found = pins(self, source) if pins is not None else None
        if found is not None and not self._pin_class(found[0]):
            found = None
        self._found[source] = found
        self._seen[id(source)] = (source, found)
        return found

    def found(self) -> dict[Source, int]:
        """Where each pinned source leads to: addresses, while something refers to the objects."""
        return {source: id(found[0]) for source, found in self._found.items() if found is not None}

    def dict_of(self, value: Any) -> PinnedDict | None:
        """The pinned `__dict__` of a pinned object, or the pinned object itself if it is a dict."""
        if type(value) in _PLAIN_DICTS:
            node = self._nodes.get(id(value))
            if node is None:
                if not has_plain_keys(value):
                    return None
                node = PinnedDict(value)
                self._add(value, node)
            assert isinstance(node, PinnedDict)
            return node
        row = self._nodes.get(id(value))
        if not isinstance(row, list) or row[0] != _INSTANCE or not self._has_plain_dict(value):
            return None
        namespace = dict_of(value)
        if type(namespace) is not dict:
            return None
        row[3] = namespace
        return self.dict_of(namespace)

    def entry(self, node: PinnedDict, key: object) -> tuple[object] | None:
        """The value of a key, pinned; (ABSENT,) where the dict lacks it."""
        if not is_plain_key(key):
            return None
        if key not in node.entries:
            self.keep.append(key)
            node.entries[key] = node.content.get(key, ABSENT)
        return (node.entries[key],)

    def is_empty(self, value: object) -> bool:
        """Pin a pinned dict as an empty one; False where it is not empty or no plain dict."""
        node = self.dict_of(value) if type(value) in _PLAIN_DICTS and not value else None
        if node is not None:
            node.size = 0
        return node is not None

    def items(self, value: Any) -> bool:
        """Pin all items of a pinned list or tuple."""
        if type(value) not in (list, tuple):
            return False
        if id(value) not in self._nodes:
            self._add(value, [_SEQUENCE, value, type(value), tuple(value)])
        return True

    def members(self, value: object) -> bool:
        """Pin all keys and values of a pinned dict by tensors: the state of an optimizer."""
        if type(value) is not defaultdict or not value:
            return False
        row = self._nodes.get(id(value))
        if not isinstance(row, list) or row[0] not in (_INSTANCE, _MEMBERS):
            return False
        if row[0] == _INSTANCE:  # of which so far the class is compared only
            if not all(type(key) in PLAIN_TENSOR_CLASSES for key in value):
                return False
            members = tuple([x for pair in value.items() for x in pair])
            row[:] = [_MEMBERS, value, defaultdict, members]
        return True

    def lookup(self, cls: type, name: str) -> Any:
        """What the classes on the MRO hold under the name, pinned."""
        known = self._classes.setdefault(cls, {})
        if name not in known:
            known[name] = raw_lookup(cls, name)
        return known[name]

    # --- rows ------------------------------------------------------------------------------------

    def root_rows(self) -> tuple[Row, ...]:
        """(place, key, address) of each root."""
        return tuple([(place, key, id(value)) for (place, key), value in self.roots.items()])

    def class_rows(self) -> tuple[Row, ...]:
        """(class, recheck, a name) of each class."""
        return tuple(
            [
                (cls, ClassLookups(tuple(known.items())), "__dict__")
                for cls, known in self._classes.items()
            ]
        )

    def step_rows(self) -> tuple[Row, ...]:
        """(kind, object, class, what is compared) in the order of checking."""
        rows: list[Row] = []
        for node in self._order:
            if isinstance(node, list):
                rows.append(tuple(node))
                continue
            cls = type(node.content)
            if node.size is not None and not node.entries and node.keys is None:
                rows.append((_SIZE, node.content, cls, node.size))
                continue
            entries: list[Any] = []
            for key, value in node.entries.items():
                entries += (key, self.absent if value is ABSENT else value)
            if node.keys is not None:
                self.keep.append(node.keys)
            content = (node.size, node.keys, tuple(entries))
            rows.append((_DICT, node.content, cls, content))
        return tuple(rows)

    # --- private ---------------------------------------------------------------------------------

    def root(self, place: int, key: object, value: object) -> tuple[object] | None:
        """An object that frames bring along; only one that is likely to come again is pinned: no
        iterator of Python's own is, and of a bound method its parts."""
        cls = type(value)
        iterates = cls.__module__ in _ITERATOR_MODULES and hasattr(cls, "__next__")
        if iterates or cls is types.MethodType or issubclass(cls, _FRESH):
            return None
        return self.any_root(place, key, value)

    def any_root(self, place: int, key: object, value: object) -> tuple[object] | None:
        """Any object that frames bring along."""
        if (place, key) in self.passing:
            return None
        self.roots[place, key] = value
        self.keep.append(key)
        return (value,)

    def method(self, source: Source) -> bool:
        """Pin the parts of a bound method that each frame makes anew; False where it is none."""
        parts = [AttributeSource(source, name) for name in _METHOD_PARTS]
        return _place_of_method(self.frame, source) is not None and all(map(self.pin, parts))

    def part_of_method(self, source: Source, name: str) -> tuple[object] | None:
        """`source.name`, where a bound method is there that each frame makes anew."""
        found = _place_of_method(self.frame, source) if name in _METHOD_PARTS else None
        if found is None:
            return None
        place, key, method = found
        return self.any_root(place + _METHOD_PARTS[name], key, getattr(method, name))

    def cell(self, value: object) -> tuple[object] | None:
        """The contents of a pinned cell."""
        found = _held(value)
        if found is not None and id(value) not in self._nodes:
            self._add(value, [_CELL, value, types.CellType, found[0]])
        return found

    def attribute(self, value: object, name: str) -> tuple[Any] | None:
        """`value.name`, where it is found without running Python code of the class."""
        if type(value) is types.MethodType:
            return (getattr(value, name),) if name in _METHOD_PARTS else None
        node = self.dict_of(value)
        if node is None:
            return None
        if type(value) is types.ModuleType:
            return _present(self.entry(node, name))
        cls = type(value)
        in_class = self.lookup(cls, name)
        if any(hasattr(type(in_class), name) for name in ("__set__", "__delete__")):
            return None  # a property, a slot
        found = _present(self.entry(node, name))
        if found is not None:
            return found
        if in_class is not ABSENT:
            return None if hasattr(type(in_class), "__get__") else (self._kept(in_class),)
        if self.lookup(cls, "__getattr__") is _MODULE_GETATTR:
            return self._module_attribute(node, name)
        return None

    def _module_attribute(self, node: PinnedDict, name: str) -> tuple[object] | None:
        for kind in _MODULE_DICTS:
            contents = _present(self.entry(node, kind))
            if contents is None or type(contents[0]) not in _PLAIN_DICTS:
                return None
            inner = self.dict_of(contents[0])
            found = None if inner is None else _present(self.entry(inner, name))
            if found is not None:
                return found
        return None

    def _has_plain_dict(self, value: object) -> bool:
        cls = type(value)
        if cls is types.ModuleType:
            return True
        descriptor = self.lookup(cls, "__dict__")
        return (
            not issubclass(type(value), type)
            and type(descriptor) is types.GetSetDescriptorType
            and self.lookup(cls, "__getattribute__") is object.__getattribute__
        )

    def _pin_class(self, value: Any) -> bool:
        """Whether the object's class is pinned: classes of builtin objects never change."""
        if value is ABSENT:
            return False
        cls = type(value)
        if issubclass(cls, _END_NOTICED):
            return False  # a snapshot would keep it alive
        if issubclass(cls, type):
            self._kept(value)
            if id(value) not in self._nodes:
                self._add(value, [_INSTANCE, value, self._kept(cls), self.absent])
        elif is_constant(value):
            self._kept(value)
        elif cls in _BY_CLASS or (cls.__flags__ & _HEAP_TYPE and cls is not OrderedDict):
            if not issubclass(type(value), torch.Tensor) and id(value) not in self._nodes:
                self._add(value, [_INSTANCE, value, cls, self.absent])
                self._kept(cls)
        elif cls in (list, tuple):
            self.items(value)
        elif cls is types.MethodType:
            if id(value) not in self._nodes:
                self._add(value, [_METHOD, value, cls, (value.__func__, value.__self__)])
        elif cls not in (*_PLAIN_DICTS, types.CellType, torch.Tensor):
            self._kept(value)
        return True

    def _kept(self, value: object) -> object:
        self.keep.append(value)
        return value

    def _add(self, value: Any, node: PinnedDict | list[Any]) -> None:
        self._nodes[id(value)] = node
        self._order.append(node)


def _present(found: tuple[object] | None) -> tuple[object] | None:
    return None if found is None or found[0] is ABSENT else found


def _held(cell: object) -> tuple[object] | None:
    """(what a cell holds,); None where it is empty, or none."""
    if type(cell) is not types.CellType:
        return None
    try:
        return (cell.cell_contents,)
    except ValueError:
        return None


def _pin_local(pins: Pins, source: LocalSource) -> tuple[object] | None:
    locals = pins.frame.locals
    return pins.root(_LOCAL, source.name, locals[source.name]) if source.name in locals else None


def _pin_stack(pins: Pins, source: StackSource) -> tuple[object] | None:
    stack = pins.frame.stack
    return (
        pins.root(_STACK, source.index, stack[source.index]) if len(stack) > source.index else None
    )


def _pin_cell_object(pins: Pins, source: CellObjectSource) -> tuple[object] | None:
    """A function's cell is the same at each call, one of a frame is not: `guards_memory.py` finds
    out which it is."""
    cell = pins.frame.locals.get(source.name)
    return pins.any_root(_LOCAL, source.name, cell) if type(cell) is types.CellType else None


def _pin_cell(pins: Pins, source: CellSource) -> tuple[object] | None:
    """What the cell holds, whichever cell it is; where that is nothing that is likely to come
    again, what it holds while it is the same cell."""
    content = _held(pins.frame.locals.get(source.name))
    if content is None:
        return None
    if not issubclass(type(content[0]), _FRESH):
        return pins.root(_CONTENT, source.name, content[0])
    found = pins.pin(CellObjectSource(source.name))
    return None if found is None else pins.cell(found[0])


def _pin_global(pins: Pins, source: GlobalSource) -> tuple[object] | None:
    pins.roots[_GLOBALS, None] = pins.frame.globals
    node = pins.dict_of(pins.frame.globals)
    return None if node is None else _present(pins.entry(node, source.name))


def _pin_object(pins: Pins, source: ObjectSource) -> tuple[object] | None:
    pins.keep.append(source.value)
    return (source.value,)


def _pin_attribute(pins: Pins, source: AttributeSource) -> tuple[object] | None:
    base = pins.pin(source.base)
    if base is None:
        return pins.part_of_method(source.base, source.name)
    return pins.attribute(base[0], source.name)


def _place_of_method(frame: FrameValues, source: Source) -> tuple[int, object, object] | None:
    """Where a frame brings a bound method along: the kind of place, its name or number, it."""
    found: tuple[int, Any, Any] | None = None
    if type(source) is LocalSource:
        found = _LOCAL, source.name, frame.locals.get(source.name)
    elif type(source) is StackSource and source.index < len(frame.stack):
        found = _STACK, source.index, frame.stack[source.index]
    elif type(source) is CellSource:
        content = _held(frame.locals.get(source.name))
        found = content and (_CONTENT, source.name, content[0])
    return found if found is not None and type(found[2]) is types.MethodType else None


def _pin_instance_dict(pins: Pins, source: InstanceDictSource) -> tuple[object] | None:
    base = pins.pin(source.base)
    if base is None or type(base[0]) in _PLAIN_DICTS:
        return None
    node = pins.dict_of(base[0])
    return None if node is None else (node.content,)


def _pin_item(pins: Pins, source: ItemSource) -> tuple[Any] | None:
    base = pins.pin(source.base)
    if base is None:
        return None
    container, key = base[0], source.key
    if type(container) in _PLAIN_DICTS:
        node = pins.dict_of(container)
        return None if node is None else _present(pins.entry(node, key))
    if pins.items(container) and type(key) is int and -len(container) <= key < len(container):
        return (container[key],)
    return None


def _pin_key(pins: Pins, source: DictKeySource) -> tuple[Any] | None:
    base = pins.pin(source.base)
    if base is None or not pins.members(base[0]) or source.index >= len(base[0]):
        return None
    return (list(base[0])[source.index],)


def _pin_dict_value(pins: Pins, source: DictValueSource) -> tuple[Any] | None:
    base, key = pins.pin(source.base), pins.pin(source.key)
    return None if base is None or key is None else (base[0][key[0]],)


def _pin_type(pins: Pins, source: TypeSource) -> tuple[object] | None:
    base = pins.pin(source.base)
    return None if base is None or issubclass(type(base[0]), torch.Tensor) else (type(base[0]),)


def _pin_closure(pins: Pins, source: ClosureSource) -> tuple[object] | None:
    base = pins.pin(source.base)
    if base is None or type(base[0]) is not types.FunctionType:
        return None
    cells = base[0].__closure__ or ()
    return pins.cell(cells[source.index]) if source.index < len(cells) else None


def _pin_function_global(pins: Pins, source: FunctionGlobalSource) -> tuple[object] | None:
    base = pins.pin(source.base)
    if base is None or type(base[0]) is not types.FunctionType:
        return None
    node = pins.dict_of(base[0].__globals__)
    return None if node is None else _present(pins.entry(node, source.name))


# Builtin objects that do something when they end: clean up, close a file, free memory.
_END_NOTICED = (
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
    *(io.IOBase, memoryview),
)

_PIN: dict[type, Any] = {
    LocalSource: _pin_local,
    CellObjectSource: _pin_cell_object,
    StackSource: _pin_stack,
    CellSource: _pin_cell,
    GlobalSource: _pin_global,
    ObjectSource: _pin_object,
    AttributeSource: _pin_attribute,
    InstanceDictSource: _pin_instance_dict,
    ItemSource: _pin_item,
    DictKeySource: _pin_key,
    DictValueSource: _pin_dict_value,
    TypeSource: _pin_type,
    ClosureSource: _pin_closure,
    FunctionGlobalSource: _pin_function_global,
}
