"""A snapshot of an entry's guards: the guards that held, as addresses that must be the same.

Most guards follow from pins (`guards_pins.py`): if every dict, class and list on the way is as it
was when the guard held, it still holds. Tensors' metadata, which changes without any of those
(`p.data = other`), is compared at every call. Guards that neither covers are the *residual*,
which stays generated Python.
"""

from __future__ import annotations

import abc
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from braze.compat.torch.ambient_guards import NativeQuestion, quick_questions
from braze.compat.torch.nn_modules import GLOBAL_HOOKS, INSTANCE_HOOKS
from braze.compat.torch.tensor_abi import PLAIN_TENSOR_CLASSES
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import ABSENT, Guard, GuardKind, TensorFacts
from braze.ir.captured.guard_tree import compared_sources
from braze.ir.captured.source import AttributeSource, ItemSource, LocalSource, ObjectSource, Source
from braze.runtime.guards.codegen import read_source
from braze.runtime.guards.leaf_hooks import WATCH
from braze.runtime.guards.native_extension import NativeGuards
from braze.runtime.guards.per_call_containers import Brought, is_compared
from braze.runtime.guards.process_state import same_answer
from braze.runtime.guards.snapshot_accessors import Pins, Place, is_constant, is_plain_key
from braze.shapes.memory_overlap import Access

Check = Callable[[FrameValues], "list[Any] | None"]
# Makes generated Python of guards and of the inputs that it gives; what all guards of the entry say
# of types holds where it runs.
CompileCheck = Callable[[Sequence[Guard], Sequence[Source], Sequence[Guard]], Check]
CompileRest = Callable[[Sequence[Guard], Sequence[Source]], Check]

_MOST_APART = 4096


class Taken(NamedTuple):
    """snapshot: its `check(frame)` gives the graph's inputs where all guards hold, and None where
    it does not know; its `proven` counts those that it gave. roots: tells frames apart that one
    snapshot cannot serve. references: to the roots that can be referred to weakly. closures: of
    roots that are cells or functions the code, which those of all calls have in common, and the
    address. found: where its sources led to, as addresses."""

    snapshot: Any
    roots: tuple[Any, ...]
    references: dict[Place, Callable[[], object]]
    closures: dict[Place, tuple[Any, int]]
    found: dict[Source, int]


def take_snapshot(
    native: NativeGuards,
    guards: Sequence[Guard],
    inputs: Sequence[Source],
    frame: FrameValues,
    compile_check: CompileCheck,
    passing: Collection[Place] = (),
    moving: Collection[Source] = (),
) -> Taken | None:
    """A snapshot of guards that hold for the frame; None where it would prove nothing. passing:
    roots that no frame brings again; moving: sources that lead elsewhere at each call."""
    builder = _SnapshotBuilder(native, frame, inputs, Pins(frame, native.absent, passing, moving))
    residual = [guard for guard in guards if not _COVER[guard.kind](builder, guard)]
    snapshot = builder.finish(residual, lambda left, given: compile_check(left, given, guards))
    # What cannot be proven at once will not be proven later.
    if snapshot.check(frame) is None:
        return None
    references, closures = {}, {}
    for place, value in builder.pins.roots.items():
        if type(value) in (types.CellType, types.FunctionType):
            closures[place] = (getattr(value, "__code__", None), id(value))
        with suppress(TypeError, RuntimeError):  # not every class, nor each layout, allows it
            references[place] = _weak_reference(value)
    return Taken(snapshot, builder.pins.root_rows(), references, closures, builder.pins.found())


def _weak_reference(value: Any) -> Callable[[], object]:
    """Gives None once the value is gone. Of a tensor the storage is referred to: a tensor to which
    there are weak references is one that `torch.utils.swap_tensors` refuses."""
    if not issubclass(type(value), torch.Tensor):  # isinstance asks objects for their class
        return weakref.ref(value)
    storage = StorageWeakRef(value.untyped_storage())
    return lambda: None if storage.expired() else storage


@final
class _SnapshotBuilder:
    """Sorts guards into the arguments of a snapshot."""

    def __init__(
        self,
        native: NativeGuards,
        frame: FrameValues,
        inputs: Sequence[Source],
        pins: Pins,
    ) -> None:
        self.native = native
        self.frame = frame
        self.inputs = inputs
        self.places: dict[Source, list[int]] = {}
        for place, source in enumerate(inputs):
            self.places.setdefault(source, []).append(place)
        self.pins = pins
        self.brought = Brought(frame.locals)
        self.questions: list[tuple[Any, ...]] = []
        self.native_questions: list[NativeQuestion] = []
        self.functions: list[tuple[Any, ...]] = []
        self.facts: dict[TensorFacts, int] = {}
        self.fact_rows: list[tuple[Any, ...]] = []
        self.local_rows: list[tuple[Any, ...]] = []
        self.item_rows: list[tuple[Any, ...]] = []
        self.tensor_rows: list[tuple[Any, ...]] = []
        self.gradient_rows: list[tuple[Any, ...]] = []
        self.gradients: dict[Source, int] = {}
        self.aparts: list[tuple[Any, ...]] = []
        self.unwatched: list[tuple[Any, ...]] = []
        self.checked: set[int] = set()

    def add_tensor(self, source: Source, facts: int) -> bool:
        """Check the tensor at the source against the facts of that number (-1: none), and give
        it wherever it is an input."""
        local = type(source) is LocalSource
        found = None if local else self.pins.pin(source)
        if found is None and facts >= 0 and self.leaf_of(source) is not None:
            self.add_gradient(source, facts)
            return True
        if found is None and not local and self.brought.find(source) is not None:
            self.add_item(source, facts)
            return True
        if type(source) is LocalSource:
            what: Any = source.name
        elif found is None or not issubclass(type(found[0]), torch.Tensor):
            return False
        else:
            what = found[0]
        rows = self.local_rows if local else self.tensor_rows
        places = self.places.pop(source, [-1])
        rows.append((what, facts, places[0]))
        rows.extend([(what, -1, place) for place in places[1:]])
        return True

    def leaf_of(self, source: Source) -> torch.Tensor | None:
        """The pinned tensor of whose `grad` the source tells: that is another one at each call."""
        if type(source) is not AttributeSource or source.name != "grad":
            return None
        found = self.pins.pin(source.base)
        is_plain = found is not None and type(found[0]) in PLAIN_TENSOR_CLASSES
        return found[0] if is_plain and found is not None else None

    def add_gradient(self, source: Source, facts: int) -> None:
        """Check the `grad` of a leaf against the facts of that number (-1: that it is None), and
        give it wherever it is an input."""
        self.gradients.setdefault(source, len(self.gradient_rows))
        leaf = self.leaf_of(source)
        self.gradient_rows += [(leaf, facts, place) for place in self.places.pop(source, [-1])]

    def add_item(self, source: Source, facts: int, constant: object = ABSENT) -> None:
        """Check what a container of the call's holds against facts or a constant, and give it
        wherever it is an input."""
        found = self.brought.find(source)
        assert found is not None
        expected = self.native.absent if constant is ABSENT else constant
        places = self.places.pop(source, [-1])
        self.item_rows += [(found.where, facts, expected, place) for place in places]

    def number_of(self, facts: TensorFacts, tensor: torch.Tensor) -> int | None:
        """The number of the facts in the snapshot; None where they are compared in Python."""
        if facts.tensor_class not in PLAIN_TENSOR_CLASSES or facts.layout is not torch.strided:
            return None
        number = self.facts.get(facts)
        if number is not None:
            return number
        answers = self.native.codes_of(tensor)
        if answers is None:
            return None
        codes = answers[0]
        if facts.device.type == "cpu":
            codes = (*codes[:2], -1, codes[3])
        always_leaf = facts.is_leaf is True and not facts.requires_grad
        is_leaf = -1 if facts.is_leaf is None or always_leaf else int(facts.is_leaf)
        grad = int(facts.requires_grad)
        row = (facts.tensor_class, codes, facts.keys, grad, is_leaf, facts.shape, facts.stride)
        number = self.facts[facts] = len(self.fact_rows)
        self.fact_rows.append(row)
        return number

    def finish(self, residual: Sequence[Guard], compile_rest: CompileRest) -> Any:
        """The snapshot; inputs that no tensor guard gave are read by pins, else in Python."""
        for source in tuple(self.places):
            self.add_tensor(source, -1)
        left = list(self.places)
        rest: Any = None
        if residual or left:
            places = [place for source in left for place in self.places[source]]
            sources = [self.inputs[place] for place in places]
            rest = (compile_rest(residual, sources), tuple(places))
        pins = self.pins
        steps, classes = pins.step_rows(), pins.class_rows()
        keep = [*pins.keep, *self.questions, *self.functions, *self.fact_rows, *classes]
        keep += [row[0] for row in self.local_rows]
        keep += [row[0] for row in self.aparts]
        containers = self.brought.rows()
        keep += [*self.item_rows, *containers]
        return self.native.snapshot(
            tuple(keep),
            len(self.inputs),
            tuple(self.questions),
            tuple(self.native_questions),
            classes,
            tuple(self.functions),
            pins.root_rows(),
            steps,
            tuple(self.fact_rows),
            tuple(self.local_rows),
            containers,
            tuple(self.item_rows),
            tuple(self.tensor_rows),
            tuple(self.gradient_rows),
            tuple(self.aparts),
            tuple(self.unwatched),
            rest,
        )


# --- what each kind of guard follows from; False: it stays generated Python -----------------------


def _cover_tensor(builder: _SnapshotBuilder, guard: Guard) -> bool:
    source = guard.source
    assert source is not None
    tensor = _tensor_at(builder, source)
    if not issubclass(type(tensor), torch.Tensor):
        return False
    number = builder.number_of(guard.expected, tensor)
    if number is None or not builder.add_tensor(source, number):
        return False
    builder.checked.add(id(tensor))
    return True


def _tensor_at(builder: _SnapshotBuilder, source: Source) -> Any:
    """What is there, if it is found without generated Python; else None."""
    found = None if type(source) is LocalSource else builder.pins.pin(source)
    if found is not None:
        return found[0]
    leaf, brought = builder.leaf_of(source), builder.brought.find(source)
    if leaf is not None:
        return leaf.grad
    return None if brought is None else brought.value


def _cover_identity(builder: _SnapshotBuilder, guard: Guard) -> bool:
    source = guard.source
    if builder.pins.pin(source) is not None:
        return True
    if source is None or type(guard.expected) not in (bool, type(None)):
        return False
    if guard.expected is None and builder.leaf_of(source) is not None:
        builder.add_gradient(source, -1)
        return True
    return _cover_constant(builder, source)


def _cover_constant(builder: _SnapshotBuilder, source: Source) -> bool:
    """A constant in a container of the call's; a tuple is such a container, too."""
    found = builder.brought.find(source)
    if type(source) is not ItemSource or found is None:
        return False
    if type(found.value) is tuple:
        items = [ItemSource(source, index) for index in range(len(found.value))]
        known = builder.brought.container(source, is_exact=True)
        return known is not None and all(_cover_constant(builder, s) for s in items)
    if is_compared(found.value):
        builder.add_item(source, -1, found.value)
    return is_compared(found.value)


def _cover_type(builder: _SnapshotBuilder, guard: Guard) -> bool:
    found = builder.pins.pin(guard.source)
    if found is None:
        assert guard.source is not None
        is_container = builder.brought.container(guard.source, is_exact=False) is not None
        return is_container or builder.pins.method(guard.source)
    if issubclass(type(found[0]), torch.Tensor):
        return False
    if type(found[0]) in (dict, OrderedDict):
        return builder.pins.dict_of(found[0]) is not None
    return True


def _cover_equals(builder: _SnapshotBuilder, guard: Guard) -> bool:
    found = builder.pins.pin(guard.source)
    if found is None:
        return guard.source is not None and _cover_constant(builder, guard.source)
    return is_constant(found[0])


def _cover_length(builder: _SnapshotBuilder, guard: Guard) -> bool:
    found = builder.pins.pin(guard.source)
    if found is None:
        return builder.brought.container(guard.source, is_exact=True) is not None
    if type(found[0]) in (dict, OrderedDict):
        node = builder.pins.dict_of(found[0])
        if node is not None:
            node.size = len(found[0])
        return node is not None
    return builder.pins.items(found[0]) or builder.pins.members(found[0])


def _cover_keys(builder: _SnapshotBuilder, guard: Guard) -> bool:
    found = builder.pins.pin(guard.source)
    if found is None:
        return _is_brought_dict(builder, guard)
    if type(found[0]) is not dict or not all(map(is_plain_key, found[0])):
        return False
    node = builder.pins.dict_of(found[0])
    if node is not None:
        node.keys = tuple(found[0])
    return node is not None


def _is_brought_dict(builder: _SnapshotBuilder, guard: Guard) -> bool:
    """Whether it is a dict of the call's, of which all keys are compared."""
    return type(builder.brought.container(guard.source, is_exact=True)) is dict


def _cover_entries(builder: _SnapshotBuilder, guard: Guard, keys: Sequence[object]) -> bool:
    """Entries of the dict at the source, or of the `__dict__` of the object there."""
    found = builder.pins.pin(guard.source)
    node = None if found is None else builder.pins.dict_of(found[0])
    if node is None or not all(map(is_plain_key, keys)):
        return False
    for key in keys:
        entry = builder.pins.entry(node, key)
        builder.pins.keep.append(entry)
    return True


def _cover_contains(builder: _SnapshotBuilder, guard: Guard) -> bool:
    key, present = guard.expected
    found = builder.pins.pin(guard.source)
    if found is None and present and guard.source is not None:
        return builder.brought.find(ItemSource(guard.source, key)) is not None
    if found is None:
        return _is_brought_dict(builder, guard)
    if present or type(found[0]) not in (dict, OrderedDict):
        return False  # a key may stay while its value is another at each call
    return _cover_entries(builder, guard, [key])


def _cover_lacks(builder: _SnapshotBuilder, guard: Guard) -> bool:
    found = builder.pins.pin(guard.source)
    if found is None:
        return _is_brought_dict(builder, guard)
    if type(found[0]) not in (dict, OrderedDict):
        return False
    return _cover_entries(builder, guard, sorted(guard.expected, key=repr))


def _cover_namespace(builder: _SnapshotBuilder, guard: Guard) -> bool:
    return _cover_entries(builder, guard, [name for name, _ in guard.expected])


def _cover_lookups(builder: _SnapshotBuilder, guard: Guard) -> bool:
    found = builder.pins.pin(guard.source)
    if found is None or not issubclass(type(found[0]), type):
        return False
    lookup = builder.pins.lookup
    return all(lookup(found[0], name) is expected for name, expected in guard.expected)


def _cover_no_hooks(builder: _SnapshotBuilder, guard: Guard) -> bool:
    pins = builder.pins
    names: tuple[str, ...] = INSTANCE_HOOKS
    source = guard.source
    if source is None:
        names, source = GLOBAL_HOOKS, ObjectSource("nn.modules.module", torch.nn.modules.module)
    found = pins.pin(source)
    node = None if found is None else pins.dict_of(found[0])
    if node is None:
        return False
    for name in names:
        hooks = pins.entry(node, name)
        if hooks is None or hooks[0] is ABSENT or not pins.is_empty(hooks[0]):
            return False
    return True


def _cover_functions(builder: _SnapshotBuilder, guard: Guard) -> bool:
    builder.functions.extend(map(tuple, guard.expected))
    return True


def _cover_abstract(builder: _SnapshotBuilder, guard: Guard) -> bool:
    """Abstract classes keep their answers until one registers a class."""
    builder.questions.append((abc.get_cache_token, None, abc.get_cache_token()))
    return True


def _cover_question(builder: _SnapshotBuilder, guard: Guard) -> bool:
    builder.questions.append((guard.expected.holds, None, True))
    return True


def _cover_ambient(builder: _SnapshotBuilder, guard: Guard) -> bool:
    questions = quick_questions(guard.expected)
    if questions is None:
        return False
    builder.questions += questions[0]
    builder.native_questions += questions[1]
    return True


def _cover_answer(builder: _SnapshotBuilder, guard: Guard) -> bool:
    if guard.source is not None:
        return False
    builder.questions.append((same_answer, guard.expected, True))
    return True


def _cover_pair(builder: _SnapshotBuilder, guard: Guard) -> bool:
    return all(builder.pins.pin(source) is not None for source in (guard.source, guard.expected))


def _cover_distinct(builder: _SnapshotBuilder, guard: Guard) -> bool:
    return _add_apart(builder, guard.expected, ())


def _cover_overlap(builder: _SnapshotBuilder, guard: Guard) -> bool:
    """Tensors that are written to have no elements in common with others."""
    roles = [role for role, group in zip(Access, guard.expected) for _ in group]
    return _add_apart(builder, compared_sources(guard), roles)


def _add_apart(
    builder: _SnapshotBuilder, sources: Sequence[Source], roles: Sequence[Access]
) -> bool:
    """Objects that are no two the same; roles: of tensors, whose memory is compared too."""
    role_of = dict(zip(sources, roles))
    gradients = [s for s in sources if builder.leaf_of(s) is not None]
    if not builder.gradients.keys() >= {*gradients} or len(sources) > _MOST_APART:
        return False
    pinned, brought = {}, {}
    for source in sources:
        if builder.leaf_of(source) is not None:
            continue
        pin = None if type(source) is LocalSource else builder.pins.pin(source)
        found = builder.brought.find(source) if pin is None else None
        if pin is not None:
            pinned[source] = pin[0]
        elif found is not None:
            brought[source] = found
        else:
            return False
    if not brought and not gradients and not roles:  # pinned objects stay as many as they were
        return True
    sizes: list[int] = []
    if roles:
        tensors = [*[found.value for found in brought.values()], *pinned.values()]
        tensors += [read_source(source, builder.frame) for source in gradients]
        # Only of tensors whose facts are compared is the item size certain.
        if not builder.checked.issuperset(map(id, tensors)):
            return False
        sizes = [tensor.element_size() for tensor in tensors]
    numbers = tuple([builder.gradients[source] for source in gradients])
    places = tuple([found.where for found in brought.values()])
    given = [int(role_of[s]) for s in (*brought, *pinned, *gradients)] if roles else []
    row = (places, tuple(pinned.values()), numbers, tuple(sizes), tuple(given))
    builder.aparts.append(row)
    return True


def _cover_unwatched(builder: _SnapshotBuilder, guard: Guard) -> bool:
    """Nobody watches the gradients of pinned leaves."""
    leaves = [builder.pins.pin(source) for source in guard.expected]
    found = [leaf[0] for leaf in leaves if leaf is not None]
    addresses = WATCH.addresses()
    if addresses is None or len(found) < len(leaves):
        return False
    if not all(type(leaf) in PLAIN_TENSOR_CLASSES for leaf in found):
        return False
    builder.unwatched.append((tuple(found), *addresses))
    return True


def _cover_nothing(builder: _SnapshotBuilder, guard: Guard) -> bool:
    return False


_COVER: dict[GuardKind, Callable[[_SnapshotBuilder, Guard], bool]] = {
    GuardKind.TENSOR_MATCH: _cover_tensor,
    GuardKind.STORAGE_OFFSET: _cover_nothing,
    GuardKind.VIEW: _cover_nothing,
    GuardKind.TYPE_MATCH: _cover_type,
    GuardKind.ID_MATCH: _cover_identity,
    GuardKind.EQUALS_MATCH: _cover_equals,
    GuardKind.COMPARES: _cover_equals,
    GuardKind.LENGTH: _cover_length,
    GuardKind.DICT_KEYS: _cover_keys,
    GuardKind.DICT_CONTAINS: _cover_contains,
    # `hasattr` may be answered by the class, and its "no" by `__getattr__`.
    GuardKind.HAS_ATTRIBUTE: _cover_nothing,
    GuardKind.SAME_OBJECT: _cover_pair,
    GuardKind.DIFFERENT_OBJECT: _cover_pair,
    GuardKind.DISTINCT: _cover_distinct,
    GuardKind.STORAGE_OVERLAP: _cover_overlap,
    GuardKind.NONE_WATCHED: _cover_unwatched,
    GuardKind.SIZES: _cover_nothing,
    GuardKind.ARRAY_MATCH: _cover_nothing,
    GuardKind.APART: _cover_nothing,
    GuardKind.UNCACHED: _cover_nothing,
    GuardKind.ITEMS_LEFT: _cover_nothing,
    GuardKind.AMBIENT: _cover_ambient,
    GuardKind.ANSWER: _cover_answer,
    GuardKind.NAMESPACE: _cover_namespace,
    GuardKind.CLASS_LOOKUPS: _cover_lookups,
    GuardKind.DICT_LACKS: _cover_lacks,
    GuardKind.NO_HOOKS: _cover_no_hooks,
    GuardKind.HOLDS: _cover_question,
    GuardKind.ABSTRACT_CLASSES: _cover_abstract,
    GuardKind.FUNCTIONS: _cover_functions,
}
