"""Sources: how to reach, at the next call, an object that existed before the frame ran.

A source prints as the Python expression that a guard message shows: `L['self'].layers[0].weight`.
"""

from __future__ import annotations

import enum
from dataclasses import field
from typing import Any, TypeAlias, final

from braze.frozen import frozen

# Keys that print as their contents; of others that would be a model, or the program's own code.
_SHOWN = (str, int, float, complex, bytes, tuple, frozenset, type, type(None), enum.Enum)


@final
@frozen
class LocalSource:
    """An argument or local variable of the frame at its entry."""

    name: str

    def __str__(self) -> str:
        return f"L[{self.name!r}]"


@final
@frozen
class StackSource:
    """A slot of the value stack at a continuation's entry; 0 is the bottom."""

    index: int

    def __str__(self) -> str:
        return f"STACK[{self.index}]"


@final
@frozen
class CellSource:
    """The contents of a closure cell of the root function."""

    name: str

    def __str__(self) -> str:
        return f"C[{self.name!r}]"


@final
@frozen
class CellObjectSource:
    """The closure cell itself (a `types.CellType`) of the root function or continuation."""

    name: str

    def __str__(self) -> str:
        return f"CELL[{self.name!r}]"


@final
@frozen
class GlobalSource:
    """A global of the root function's module."""

    name: str

    def __str__(self) -> str:
        return f"G[{self.name!r}]"


@final
@frozen
class ObjectSource:
    """A live object held by the entry itself: a module, class or function that lives as long as
    the program and was reached through something already guarded by identity."""

    name: str
    value: Any = field(repr=False)

    def __hash__(self) -> int:
        return hash((self.name, id(self.value)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSource) and other.value is self.value

    def __str__(self) -> str:
        return self.name


@final
@frozen
class AttributeSource:
    """`base.name`, by `getattr`."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@final
@frozen
class InstanceDictSource:
    """`base.__dict__`, read without running any user code."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}.__dict__"


@final
@frozen
class ItemSource:
    """`base[key]` of an exact builtin container (or through its base class's `__getitem__`);
    key is a constant that hashes."""

    base: Source
    key: Any

    def __str__(self) -> str:
        shown = repr if isinstance(self.key, _SHOWN) else object.__repr__
        return f"{self.base}[{shown(self.key)}]"


@final
@frozen
class DictKeySource:
    """The index-th key of a dict, in insertion order: keys that are no constants."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"list({self.base})[{self.index}]"


@final
@frozen
class DictValueSource:
    """What a dict has under its index-th key: a tensor for a key is another one at the next call,
    when an optimizer was made anew or two layers changed places."""

    base: Source
    index: int

    @property
    def key(self) -> DictKeySource:
        """Where the key is."""
        return DictKeySource(self.base, self.index)

    def __str__(self) -> str:
        return f"{self.base}[{self.key}]"


@final
@frozen
class DictEntrySource:
    """What a dict has under its index-th key, found without a lookup: the keys hash or compare by
    code of the program."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"list({self.base}.values())[{self.index}]"


@final
@frozen
class PeekSource:
    """The item that the builtin iterator at `base` gives after `place` others; it stays there."""

    base: Source
    place: int

    def __str__(self) -> str:
        return f"peek({self.base}, {self.place})"


@final
@frozen
class IteratedSource:
    """The index-th container that the builtin iterator at `base` goes over."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"iterated({self.base})[{self.index}]"


@final
@frozen
class ReferentSource:
    """What the weak reference at `base` refers to; None where that is gone."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}()"


@final
@frozen
class TypeSource:
    """`type(base)`."""

    base: Source

    def __str__(self) -> str:
        return f"type({self.base})"


@final
@frozen
class SizeSource:
    """`base.size()[dim]` of a tensor."""

    base: Source
    dim: int

    def __str__(self) -> str:
        return f"{self.base}.size()[{self.dim}]"


@final
@frozen
class NumberSource:
    """The float at `base` as a tensor of no dimension, of float64 and on the CPU."""

    base: Source

    def __str__(self) -> str:
        return f"tensor({self.base})"


@final
@frozen
class ArrayMemorySource:
    """The tensor that shares the memory of NumPy's array at `base`."""

    base: Source

    def __str__(self) -> str:
        return f"from_numpy({self.base})"


@final
@frozen
class PlainMemorySource:
    """The tensor at `base`, which is lazily conjugated or negated, as its memory is: without these
    bits."""

    base: Source

    def __str__(self) -> str:
        return f"memory({self.base})"


@final
@frozen
class SharedMemorySource:
    """The memory that several tensors share, as one tensor of a single dimension.

    base: one of them. others: the others. starts: where each begins in that memory, in elements.
    length: of the memory, in elements.
    """

    base: Source
    others: tuple[Source, ...]
    starts: tuple[int, ...]
    length: int

    def __str__(self) -> str:
        return f"memory({', '.join(map(str, (self.base, *self.others)))})"


@final
@frozen
class StrideSource:
    """`base.stride()[dim]` of a tensor."""

    base: Source
    dim: int

    def __str__(self) -> str:
        return f"{self.base}.stride()[{self.dim}]"


@final
@frozen
class ClosureSource:
    """The contents of a cell in `base.__closure__`, base a Python function."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"{self.base}.__closure__[{self.index}].cell_contents"


@final
@frozen
class FunctionGlobalSource:
    """A global seen by `base`, a Python function, in its own module."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.__globals__[{self.name!r}]"


Source: TypeAlias = (
    LocalSource
    | StackSource
    | CellSource
    | CellObjectSource
    | GlobalSource
    | ObjectSource
    | AttributeSource
    | InstanceDictSource
    | ItemSource
    | DictKeySource
    | DictValueSource
    | DictEntrySource
    | PeekSource
    | IteratedSource
    | ReferentSource
    | TypeSource
    | SizeSource
    | NumberSource
    | ArrayMemorySource
    | PlainMemorySource
    | SharedMemorySource
    | StrideSource
    | ClosureSource
    | FunctionGlobalSource
)


def operands_of(source: Source) -> tuple[Source, ...]:
    """The sources that this one reads, its base first; none of a root."""
    if type(source) is DictValueSource:
        return source.base, source.key
    if type(source) is SharedMemorySource:
        return source.base, *source.others
    base: Source | None = getattr(source, "base", None)
    return () if base is None else (base,)


def root_of(source: Source) -> Source:
    """What the path to it begins with."""
    while operands := operands_of(source):
        source = operands[0]
    return source
