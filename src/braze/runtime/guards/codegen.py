"""Sources to Python: a writer of one function's text in which each sub-source is read once.

    L['self']._modules['a'].weight   ->   t1 = L['self']
                                          t2 = t1._modules
                                          t3 = t2['a']
                                          t4 = t3.weight

The text reads `frame`, a `FrameValues`. `read_source` does the same without generating code, for
messages. Reading fails with one of `READ_FAILURES` where the world has changed its form.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from braze.compat.numpy.interface import tensor_of_array
from braze.compat.python.iterator_state import iterated_containers, peek
from braze.compat.torch.tensor_abi import plain_memory, shared_memory
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import (
    ArrayMemorySource,
    AttributeSource,
    CellObjectSource,
    CellSource,
    ClosureSource,
    DictEntrySource,
    DictKeySource,
    DictValueSource,
    FunctionGlobalSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    IteratedSource,
    LocalSource,
    NumberSource,
    ObjectSource,
    PeekSource,
    PlainMemorySource,
    ReferentSource,
    SharedMemorySource,
    SizeSource,
    Source,
    StackSource,
    StrideSource,
    TypeSource,
    operands_of,
)
from braze.ir.generated_code import define

# TypeError: the container is now something without items; ValueError: the cell is empty.
# RuntimeError: a view of which autograd forbids to ask anything, since its base was written to.
READ_FAILURES = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)

_ABSENT = object()
# Their own `[...]` is the builtin's and makes nothing.
_PLAIN_CONTAINERS = frozenset({list, tuple, dict, OrderedDict, types.MappingProxyType, deque})
_BASES = (dict, list, tuple, deque)


def read_item(container: Any, key: Any) -> object:
    """`container[key]` by the builtin base class: no user code, no `__missing__`."""
    cls = type(container)
    if cls in _PLAIN_CONTAINERS:
        return container[key]
    if issubclass(cls, dict):
        value = dict.get(container, key, _ABSENT)
        if value is _ABSENT:
            raise KeyError(key)
        return value
    for base in _BASES[1:]:
        if issubclass(cls, base):
            return base.__getitem__(container, key)
    return container[key]


class ItemReader:
    """A container of unusual class, read by its builtin base; made once a container."""

    __slots__ = ("container",)

    def __init__(self, container: object) -> None:
        self.container = container

    def __getitem__(self, key: object) -> Any:
        return read_item(self.container, key)


def read_global(namespace: dict[str, object], name: str) -> object:
    """A global as LOAD_GLOBAL finds it: the module's dict, then its builtins."""
    value = namespace.get(name, _ABSENT)
    if value is not _ABSENT:
        return value
    found = namespace.get("__builtins__", builtins)
    return (found if isinstance(found, dict) else vars(found))[name]


def keys_in_order(container: Any) -> tuple[object, ...]:
    """The keys of a dict or the members of a set, by its builtin class: an OrderedDict keeps its
    order apart."""
    if issubclass(type(container), (set, frozenset)):
        members: Any = set if issubclass(type(container), set) else frozenset
        return tuple(members.__iter__(container))
    base = OrderedDict if issubclass(type(container), OrderedDict) else dict
    return tuple(base.keys(container))


def values_in_order(container: dict[object, object]) -> tuple[object, ...]:
    """The values of a dict that is no OrderedDict, by its builtin class."""
    return tuple(dict.values(container))


def dict_of(value: object) -> dict[str, object]:
    """`value.__dict__`, whatever the class's own `__getattribute__` would say."""
    base = type if issubclass(type(value), type) else object
    space: dict[str, Any] = base.__getattribute__(value, "__dict__")
    return space


def is_hooked(cls: type) -> bool:
    """Whether looking for an attribute of an instance runs Python code that is not PyTorch's."""
    return any(
        type(hook) is not types.WrapperDescriptorType
        and not str(getattr(hook, "__module__", "")).startswith("torch.")
        for hook in map(functools.partial(_raw_lookup, cls), ("__getattribute__", "__getattr__"))
        if hook is not _ABSENT
    )


def _raw_lookup(cls: type, name: str) -> object:
    for base in type.__dict__["__mro__"].__get__(cls):
        space = type.__dict__["__dict__"].__get__(base)
        if name in space:
            return space[name]
    return _ABSENT


def hides_descriptor(cls: type, name: str) -> bool:
    """Whether an instance's own `name` hides a descriptor whose `__get__` is Python code: once the
    instance has lost it (`functools.cached_property`), a plain read would run that code."""
    if issubclass(cls, type):
        return False
    getter = _raw_lookup(type(_raw_lookup(cls, name)), "__get__")
    return getter is not _ABSENT and type(getter) is not types.WrapperDescriptorType


def read_attribute(value: Any, name: str) -> object:
    """`value.name` without the hooks of the program: a guard must not run its code."""
    if hides_descriptor(type(value), name):
        return dict_of(value)[name]
    if not is_hooked(type(value)):
        return getattr(value, name)
    try:
        return find_attribute(value, name)
    except AttributeError:
        if not issubclass(type(value), torch.nn.Module):
            raise
        return torch.nn.Module.__getattr__(value, name)


def find_attribute(value: object, name: str) -> object:
    """`value.name` by C code's lookup alone: no `__getattr__`, and no lookup of the program's."""
    cls: Any = type(value)
    if not is_hooked(cls):
        return cls.__getattribute__(value, name)
    base = next(base for base in (type, types.ModuleType, object) if issubclass(cls, base))
    return base.__getattribute__(value, name)


def tensor_of(number: float) -> torch.Tensor:
    """A float as a graph takes it."""
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")


def exact_base(cls: type) -> type | None:
    """`cls` if it is a builtin container or a subclass that reads items as its base does."""
    for base in _BASES:
        if cls is base:
            return base
        if issubclass(cls, base):
            same = cls.__getitem__ is base.__getitem__ and not hasattr(cls, "__missing__")
            return base if same else None
    return cls if cls is types.MappingProxyType else None


def known_types(guards: Iterable[Guard]) -> dict[Source, type]:
    """The exact type that a passed guard implies of the object at its source."""
    known: dict[Source, type] = {}
    for guard in guards:
        if guard.source is None:
            continue
        if guard.kind is GuardKind.TYPE_MATCH:
            known[guard.source] = guard.expected
        elif guard.kind in (GuardKind.ID_MATCH, GuardKind.EQUALS_MATCH):
            known[guard.source] = type(guard.expected)
    return known


class SourceWriter:
    """Collects the lines and constants of one generated function.

    types: what guards checked earlier in the same text say of objects' exact types.
    module_reads: attributes of modules that are read from the dict named there.
    """

    def __init__(
        self,
        types: dict[Source, type] | None = None,
        module_reads: dict[Source, str] | None = None,
    ) -> None:
        self.module_reads = module_reads or {}
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {
            "tensor_of": tensor_of,
            "ItemReader": ItemReader,
            "PLAIN": _PLAIN_CONTAINERS,
            "read_global": read_global,
            "keys_in_order": keys_in_order,
            "dict_of": dict_of,
            "read_attribute": read_attribute,
        }
        self.types = types or {}
        self._temporaries: dict[Source, str] = {}
        self._readers: dict[Source, str] = {}
        self._keys: dict[Source, str] = {}
        # A source hashes its whole chain: most reads are answered by the object's identity.
        self._by_identity: dict[int, str] = {}
        self._seen: list[Source] = []
        self._constants: dict[int, str] = {}

    def constant(self, value: object) -> str:
        """The name of a global of the text that holds `value`."""
        name = self._constants.get(id(value))
        if name is None:
            name = f"c{len(self._constants)}"
            self._constants[id(value)] = name
            self.namespace[name] = value
        return name

    def read(self, source: Source | None) -> str:
        """The name that holds the object at `source`, after lines that read it if needed."""
        assert source is not None, "a guard of this kind needs a source"
        name = self._by_identity.get(id(source)) or self._temporaries.get(source)
        if name is None:
            expression = _ROWS[type(source)].write(self, source)
            name = f"t{len(self._temporaries)}"
            self._temporaries[source] = name
            self.lines.append(f"{name} = {expression}")
        self._by_identity[id(source)] = name
        self._seen.append(source)
        return name

    def dict_of(self, source: Source) -> str:
        """The expression that gives the instance dict of the object at `source`."""
        base, cls = self.read(source), self.type_of(source)
        return f"dict_of({base})" if cls is not None and is_hooked(cls) else f"{base}.__dict__"

    def read_container(self, source: Source) -> str:
        """The name of what gives the items of the container at `source`."""
        base = self.read(source)
        known = self.types.get(source)
        if isinstance(source, InstanceDictSource) or (known and exact_base(known) is not None):
            return base
        name = self._readers.get(source)
        if name is None:
            name = self._readers[source] = f"r{len(self._readers)}"
            self.lines.append(f"{name} = {base} if type({base}) in PLAIN else ItemReader({base})")
        return name

    def read_keys(self, source: Source) -> str:
        """The name of a tuple of the keys of the dict at `source`."""
        name = self._keys.get(source)
        if name is None:
            base = self.read(source)
            name = self._keys[source] = f"k{len(self._keys)}"
            self.lines.append(f"{name} = keys_in_order({base})")
        return name

    def type_of(self, source: Source | None) -> type | None:
        """The exact type of the object at `source`, where guards tell it."""
        if isinstance(source, ObjectSource):
            return type(source.value)
        return None if source is None else self.types.get(source)

    def function(
        self,
        name: str,
        parameters: str,
        body: list[str],
        filename: str,
        parts: Sequence[str] = (),
    ) -> Any:
        """The function `name(parameters)` whose lines are `body`, already indented once less.
        parts: texts of functions that it calls."""
        called = [text[len("def ") : text.index("(")] for text in parts]
        parameters += "".join(f", {part}={part}" for part in called)
        text = f"def {name}({parameters}):\n" + "\n".join(f"    {line}" for line in body) + "\n"
        function = define([*parts, text], filename, self.namespace)
        function.__braze_source__ = text
        return function


class _Row(NamedTuple):
    """write: the accessor as Python text. read: the object, from the frame and the values of
    `operands_of(source)`."""

    write: Callable[[SourceWriter, Any], str]
    read: Callable[..., Any]


def read_source(source: Source, frame: FrameValues) -> object:
    """The object at `source`; one of READ_FAILURES where it cannot be reached."""
    operands = [read_source(operand, frame) for operand in operands_of(source)]
    return _ROWS[type(source)].read(source, frame, *operands)


def access(source: Source, frame: FrameValues, operands: Iterable[object]) -> object:
    """The object at `source`, from the values of the sources that it reads."""
    return _ROWS[type(source)].read(source, frame, *operands)


def is_plain_name(name: str) -> bool:
    """Whether `name` may stand after a dot in Python text."""
    return name.isidentifier() and not keyword.iskeyword(name)


def _write_attribute(writer: SourceWriter, source: AttributeSource) -> str:
    kind = writer.module_reads.get(source)
    base = writer.read(source.base)
    if kind is not None and is_plain_name(source.name):
        entries = writer.read_container(ItemSource(InstanceDictSource(source.base), kind))
        return (
            f"{entries}[{source.name!r}] if {source.name!r} in {entries} else {base}.{source.name}"
        )
    cls = writer.type_of(source.base)
    if cls is not None and hides_descriptor(cls, source.name):
        return f"{writer.dict_of(source.base)}[{source.name!r}]"
    if cls is not None and is_hooked(cls):
        return f"read_attribute({base}, {source.name!r})"
    if is_plain_name(source.name):
        return f"{base}.{source.name}"
    return f"getattr({base}, {source.name!r})"


def _write_instance_dict(writer: SourceWriter, source: InstanceDictSource) -> str:
    return writer.dict_of(source.base)


def _write_item(writer: SourceWriter, source: ItemSource) -> str:
    base = writer.read_container(source.base)
    key = repr(source.key) if type(source.key) in (str, int) else writer.constant(source.key)
    return f"{base}[{key}]"


def _write_shared_memory(writer: SourceWriter, source: SharedMemorySource) -> str:
    tensors = "".join(f"{writer.read(each)}, " for each in operands_of(source))
    function = writer.constant(shared_memory)
    return f"{function}(({tensors}), {source.starts!r}, {source.length})"


def _write_dict_value(writer: SourceWriter, source: DictValueSource) -> str:
    return f"{writer.read_container(source.base)}[{writer.read(source.key)}]"


def _write_global(writer: SourceWriter, namespace: str, name: str) -> str:
    if hasattr(builtins, name):
        return f"read_global({namespace}, {name!r})"
    return f"{namespace}[{name!r}]"


_ROWS: dict[type, _Row] = {
    LocalSource: _Row(lambda w, s: f"L[{s.name!r}]", lambda s, f: f.locals[s.name]),
    StackSource: _Row(lambda w, s: f"frame.stack[{s.index}]", lambda s, f: f.stack[s.index]),
    CellSource: _Row(
        lambda w, s: f"L[{s.name!r}].cell_contents",
        lambda s, f: f.locals[s.name].cell_contents,
    ),
    CellObjectSource: _Row(lambda w, s: f"L[{s.name!r}]", lambda s, f: f.locals[s.name]),
    GlobalSource: _Row(
        lambda w, s: _write_global(w, "frame.globals", s.name),
        lambda s, f: read_global(f.globals, s.name),
    ),
    ObjectSource: _Row(lambda w, s: w.constant(s.value), lambda s, f: s.value),
    AttributeSource: _Row(_write_attribute, lambda s, f, b: read_attribute(b, s.name)),
    InstanceDictSource: _Row(_write_instance_dict, lambda s, f, b: dict_of(b)),
    ItemSource: _Row(_write_item, lambda s, f, b: read_item(b, s.key)),
    DictKeySource: _Row(
        lambda w, s: f"{w.read_keys(s.base)}[{s.index}]",
        lambda s, f, b: keys_in_order(b)[s.index],
    ),
    DictValueSource: _Row(
        _write_dict_value,
        lambda s, f, b, k: read_item(b, k),
    ),
    DictEntrySource: _Row(
        lambda w, s: f"{w.constant(values_in_order)}({w.read(s.base)})[{s.index}]",
        lambda s, f, b: values_in_order(b)[s.index],
    ),
    PeekSource: _Row(
        lambda w, s: f"{w.constant(peek)}({w.read(s.base)}, {s.place})",
        lambda s, f, b: peek(b, s.place),
    ),
    IteratedSource: _Row(
        lambda w, s: f"{w.constant(iterated_containers)}({w.read(s.base)})[{s.index}]",
        lambda s, f, b: iterated_containers(b)[s.index],
    ),
    ReferentSource: _Row(lambda w, s: f"{w.read(s.base)}()", lambda s, f, b: b()),
    TypeSource: _Row(lambda w, s: f"type({w.read(s.base)})", lambda s, f, b: type(b)),
    SizeSource: _Row(
        lambda w, s: f"{w.read(s.base)}.shape[{s.dim}]",
        lambda s, f, b: b.shape[s.dim],
    ),
    NumberSource: _Row(
        lambda w, s: f"tensor_of({w.read(s.base)})",
        lambda s, f, b: tensor_of(b),
    ),
    ArrayMemorySource: _Row(
        lambda w, s: f"{w.constant(tensor_of_array)}({w.read(s.base)})",
        lambda s, f, b: tensor_of_array(b),
    ),
    PlainMemorySource: _Row(
        lambda w, s: f"{w.constant(plain_memory)}({w.read(s.base)})",
        lambda s, f, b: plain_memory(b),
    ),
    SharedMemorySource: _Row(
        _write_shared_memory,
        lambda s, f, *tensors: shared_memory(tensors, s.starts, s.length),
    ),
    StrideSource: _Row(
        lambda w, s: f"{w.read(s.base)}.stride()[{s.dim}]",
        lambda s, f, b: b.stride()[s.dim],
    ),
    ClosureSource: _Row(
        lambda w, s: f"{w.read(s.base)}.__closure__[{s.index}].cell_contents",
        lambda s, f, b: b.__closure__[s.index].cell_contents,
    ),
    FunctionGlobalSource: _Row(
        lambda w, s: _write_global(w, f"{w.read(s.base)}.__globals__", s.name),
        lambda s, f, b: read_global(b.__globals__, s.name),
    ),
}
