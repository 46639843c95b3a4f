"""The option `guard_filter_fn`: guards that the program's author says need not be asked.

The filter gets the entries that torch.compile's gets (`torch.compiler.skip_guard_on_globals_unsafe`
and its kin are such filters) and returns one bool an entry: whether its guard is kept. A guard on
several globals of one module is an entry a global.

What kernels need to stay within their memory is asked whatever the filter says: the metadata of
tensors and arrays that the graph reads, relations between sizes, and which of them overlap.
Without these guards torch.compile's kernels raise, or read past the end; here such a call has its
own entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

import torch

from braze.errors import InvalidOption
from braze.frozen import frozen
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.guard_tree import compared_sources
from braze.ir.captured.source import (
    FunctionGlobalSource,
    GlobalSource,
    LocalSource,
    ObjectSource,
    Source,
    operands_of,
    root_of,
)
from braze.runtime.guards.codegen import READ_FAILURES
from braze.runtime.guards.evaluate import reader_of

Filter = Callable[[Sequence["GuardFilterEntry"]], Sequence[bool]]

# Kinds that torch.compile has under another name.
_THEIR_NAMES = {
    GuardKind.AMBIENT: "GLOBAL_STATE",
    GuardKind.SIZES: "SHAPE_ENV",
    GuardKind.HAS_ATTRIBUTE: "HASATTR",
    GuardKind.LENGTH: "SEQUENCE_LENGTH",
    GuardKind.SAME_OBJECT: "DUPLICATE_INPUT",
    GuardKind.FUNCTIONS: "CLOSURE_MATCH",
    GuardKind.NAMESPACE: "ID_MATCH",
    GuardKind.STORAGE_OVERLAP: "STORAGE_OVERLAPPING",
}
# Kinds that keep kernels within their memory.
_OF_MEMORY = (
    *(GuardKind.SIZES, GuardKind.STORAGE_OVERLAP, GuardKind.APART),
    *(GuardKind.STORAGE_OFFSET, GuardKind.ARRAY_MATCH),
)
_BUILTIN_MODULES = ("torch.nn.", "torch.ao.")


@final
@frozen
class GuardOrigin:
    """Where the object of a guard was found, by the names of torch.compile's `GuardSource`."""

    in_global: bool
    # The class of the innermost module on the way to the object.
    module_class: type | None

    def is_local(self) -> bool:
        """Whether the object was reached through an argument or a local variable."""
        return not self.in_global

    def is_unspecialized_nn_module(self) -> bool:
        """Whether it is a module, or was reached through one."""
        return self.module_class is not None

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Whether that module's class is one of PyTorch's own."""
        return self.module_class is not None and self.module_class.__module__.startswith(
            _BUILTIN_MODULES
        )

    def is_specialized_nn_module(self) -> bool:
        """False: no guard holds a module by identity for its contents."""
        return False

    def is_fsdp_module(self) -> bool:
        """False: FSDP's modules are guarded as others are."""
        return False


@final
@frozen(eq=False)
class OriginalGuard:
    """What a filter reads of `entry.orig_guard`."""

    name: str
    source: GuardOrigin


@final
@frozen(eq=False)
class GuardFilterEntry:
    """A guard as a filter sees it; the fields are those of torch.compile's entries.

    name: the place of the object: `x`, `self.layer.weight`, `G['FLAG']`; "" of a guard on none.
    """

    name: str
    has_value: bool
    # The object at that place, None where `has_value` is False.
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OriginalGuard


def filtered_guards(
    guards: tuple[Guard, ...], inputs: Sequence[Source], frame: FrameValues, keep: Filter | None
) -> tuple[Guard, ...]:
    """The guards that a filter keeps, and those of memory. inputs: what the graph reads.

    Raises InvalidOption where the filter returns other than one bool an entry.
    """
    if keep is None:
        return guards
    single = [each for guard in guards for each in _singles(guard)]
    read = reader_of(frame)
    entries = [_entry(guard, read) for guard in single]
    try:
        answers = list(keep(entries))
    except Exception as error:
        what = f"Option 'guard_filter_fn' raised {type(error).__name__}: {error}"
        raise InvalidOption(
            f"{what}. It gets the entries, and returns one bool for each."
        ) from error
    if len(answers) != len(entries) or not all(type(answer) is bool for answer in answers):
        raise InvalidOption(
            f"Option 'guard_filter_fn' returns one bool a guard: {len(entries)} here, not "
            f"{len(answers)} of {sorted({type(answer).__name__ for answer in answers})}."
        )
    given = set(inputs)
    return tuple(
        _gathered(g for g, kept in zip(single, answers) if kept or _is_of_memory(g, given))
    )


def _is_of_memory(guard: Guard, inputs: set[Source]) -> bool:
    if guard.kind is GuardKind.TENSOR_MATCH:
        return guard.source in inputs
    return guard.kind in _OF_MEMORY


def _singles(guard: Guard) -> Iterator[Guard]:
    """A guard on a namespace as one a name."""
    if guard.kind is not GuardKind.NAMESPACE:
        yield guard
        return
    for entry in guard.expected:
        yield Guard(guard.source, guard.kind, (entry,), guard.origin)


def _gathered(guards: Iterable[Guard]) -> Iterator[Guard]:
    """Those on one namespace as one guard again."""
    gathered: dict[Source | None, Guard] = {}
    for guard in guards:
        if guard.kind is not GuardKind.NAMESPACE:
            yield guard
            continue
        known = gathered.get(guard.source)
        before = () if known is None else known.expected
        together = (*before, *guard.expected)
        gathered[guard.source] = Guard(guard.source, guard.kind, together, guard.origin)
    yield from gathered.values()


def _entry(guard: Guard, read: Callable[[Source], object]) -> GuardFilterEntry:
    places = [*([] if guard.source is None else [guard.source]), *compared_sources(guard)]
    has_value, value = False, None
    name = "" if guard.source is None else _name_of(guard.source)
    if guard.kind is GuardKind.NAMESPACE and isinstance(guard.source, ObjectSource):
        ((key, value),) = guard.expected
        name, has_value = f"G[{key!r}]", True
    elif guard.source is not None:
        try:
            has_value, value = True, read(guard.source)
        except READ_FAILURES:
            has_value = False
    in_global = any(map(_is_global, places))
    owners = [owner for place in places if (owner := _module_class(place, read)) is not None]
    origin = GuardOrigin(in_global, owners[0] if owners else None)
    kind = _THEIR_NAMES.get(guard.kind, guard.kind.value)
    original = OriginalGuard(name, origin)
    return GuardFilterEntry(name, has_value, value, kind, (), in_global, original)


def _name_of(source: Source) -> str:
    """The place as torch.compile writes it: `x.weight` of a local, `G['x'].weight` of a global."""
    text, root = str(source), root_of(source)
    if isinstance(root, LocalSource):
        return root.name + text.removeprefix(str(root))
    if isinstance(root, ObjectSource) and isinstance(root.value, dict):
        return "G" + text.removeprefix(str(root))
    return text


def _is_global(source: Source) -> bool:
    """Whether a place is reached through a global: by its name, in the dict of a Python module,
    or in what the entry holds but for classes, which locals have, too."""
    if isinstance(source, GlobalSource | FunctionGlobalSource):
        return True
    if isinstance(source, ObjectSource):
        return not isinstance(source.value, type)
    operands = operands_of(source)
    return bool(operands) and _is_global(operands[0])


def _module_class(source: Source, read: Callable[[Source], object]) -> type | None:
    """The class of the innermost module that is read on the way to a place."""
    if isinstance(source, ObjectSource) and isinstance(source.value, type):
        return source.value if issubclass(source.value, torch.nn.Module) else None
    at: Source | None = source
    while at is not None:
        try:
            value = read(at)
        except READ_FAILURES:
            value = None
        if issubclass(type(value), torch.nn.Module):
            return type(value)
        operands = operands_of(at)
        at = operands[0] if operands else None
    return None
