"""The world outside of the frame: what was read of it, and the guards that the reads need.

Objects that existed before the call are *known*: a table from identity to (object, source). What
is not known was made in this frame and may be used freely.
"""

from __future__ import annotations

import builtins
import enum
import functools
import re
import types
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_by_parts import (
    is_numpys_float,
    wrap_by_value,
    wrap_changing,
    wrap_slice,
)
from braze.capture.state.lazy_strings import ShownText
from braze.capture.state.namedtuples import NamedTuple
from braze.capture.state.object_identity import settle_numbers
from braze.capture.state.opaque_objects import WeakProxy, is_enumeration_of_c, keeps_state_in_c
from braze.capture.state.provenance import is_made_often, name_of
from braze.capture.state.reentrant_calls import code_of
from braze.capture.state.refused_tensors import check_strided, refused_tensor
from braze.capture.state.tensor_match import COMPARED, tensor_facts
from braze.capture.state.wrapper_match import WrapperFacts, has_memory, wrapper_facts
from braze.capture.tensors.symbolic_sizes import DynamicSizes
from braze.class_facts import fact_of_class
from braze.compat.numpy.interface import ARRAY, DTYPE_CLASSES, SCALARS
from braze.compat.private_names import OpOverload, OpOverloadPacket
from braze.compat.python.annotations import TYPE_PARAMETERS
from braze.compat.torch.dispatcher import (
    TorchFunction,
    has_custom_dispatch,
    torch_function_of,
)
from braze.ir.captured.frame import NULL
from braze.ir.captured.guard import ABSENT, MRO, Guard, GuardKind, TensorFacts
from braze.ir.captured.source import (
    AttributeSource,
    InstanceDictSource,
    ItemSource,
    NumberSource,
    ObjectSource,
    Source,
)
from braze.ir.origin import UNKNOWN, Origin
from braze.shapes.data_symbols import SymbolicTruth
from braze.shapes.symbolic import ProgramInt
from braze.tracing import Untraceable
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.symbolic.symbolic_float import NUMBER, SymbolicFloat
from braze.tracing.wrapper_fake import WrapperFake, new_wrapper

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

PRIMITIVES: frozenset[type] = frozenset(
    (
        *(int, float, complex, str, bytes, range),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
        *DTYPE_CLASSES,
    )
)
SINGLETONS: frozenset[type] = frozenset({type(None), bool, type(Ellipsis), type(NotImplemented)})
CONSTANTS = PRIMITIVES | SINGLETONS | {ProgramInt, SymbolicFloat, SymbolicTruth}
IDENTITIES: frozenset[type] = frozenset(
    {
        types.FunctionType,
        types.BuiltinFunctionType,
        types.ModuleType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.MethodWrapperType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.ClassMethodDescriptorType,
        types.CodeType,
        types.GenericAlias,
        types.UnionType,
        property,
        classmethod,
        staticmethod,
        functools.cached_property,
        type,
        re.Pattern,
        type(functools.lru_cache(len)),
        OpOverload,
        OpOverloadPacket,
        torch.jit.ScriptFunction,
        type(NULL),
        object,
        ContextVar,
        *TYPE_PARAMETERS,
    }
)
# Fake tensors, and functorch's wrappers of them, which pass for plain tensors; real ones are not
# seen.
TENSORS: frozenset[type] = frozenset({TracedTensor, WrapperFake, torch.Tensor})
NUMBERS: dict[type, type] = {ProgramInt: int, SymbolicFloat: float, SymbolicTruth: bool}
_SEEN_AS: dict[type, type] = {**NUMBERS, ShownText: str}
_NUMBERS_AND_TEXT = (str, int, float, *SCALARS)  # programs may replace the builtins
_HEAP_TYPE = 1 << 9
MAYBE_BOUND = frozenset({types.BuiltinFunctionType, types.MethodWrapperType})


def attribute_key(owner: object, name: str) -> tuple[int, object]:
    """The key of an attribute in `GuardContext.reads`: a dict's is apart from its item of that
    name."""
    return id(owner), (ABSENT, name) if issubclass(type(owner), dict) else name


def is_identity(value: Any) -> bool:
    """Whether a value is guarded by what it is: functions, classes, modules, enum members, numbers
    and strings of subclasses."""
    cls = type(value)
    if cls in MAYBE_BOUND:
        owner = value.__self__
        return owner is None or issubclass(type(owner), (types.ModuleType, type))
    return is_identity_class(cls)


def _is_bound(value: Any) -> bool:
    """Whether a value is made anew at each lookup: a builtin method of a class, a slot's method."""
    kinds = (type, types.ModuleType) if type(value) is types.MethodWrapperType else type
    return type(value) in MAYBE_BOUND and isinstance(value.__self__, kinds)


def is_identity_class(cls: type) -> bool:
    """The same of instances of a class, if not of those that may be bound to an object."""
    if cls in IDENTITIES or issubclass(cls, (type, enum.Enum, types.ModuleType)):
        return True
    if type(cls) is not type and is_enumeration_of_c(cls):
        return True
    return issubclass(cls, _NUMBERS_AND_TEXT) and cls not in CONSTANTS


def is_constant(value: Any) -> bool:
    """Whether a value is immutable and compared by value: numbers, strings, dtypes, and tuples
    and frozensets of such."""
    cls = type(value)
    if cls in CONSTANTS:
        return True
    return cls in (tuple, frozenset) and all(map(is_constant, value))


@fact_of_class
def _is_plain_class(cls: type) -> bool:
    """Whether instances are all guarded by their class, and read through Python."""
    special = cls in (slice, tuple, frozenset) or cls in MAYBE_BOUND or is_identity_class(cls)
    return not (special or keeps_state_in_c(cls))


@final
class GuardContext:
    """Reads of everything that existed before the call.

    known: identity -> (object, its first source). constants: the same of tuples and frozensets
    that are guarded by value. standins: identity of a real tensor -> fake tensor.
    classes_of: the class that a fake tensor has for the program. has_subclasses: whether one of
    them passes itself on to results. has_overrides: whether one has a `__torch_function__` of its
    own.
    originals: names under which tensors have what PyTorch gave them; guarded.
    inherited: classes of tensors that have it, too, by the names that were looked at.
    opaque: identities of objects whose state is C's.
    new_leaves: fake tensors that began to need gradients here; switched: inputs, on or off.
    lifted: floats from outside that are passed to the graph.
    unwatched: sources of the leaves whose gradients nobody may watch, by identity.
    deep_copies: (memo, memory) of tensors that were deep-copied.
    proxies: weak proxies of objects made in the frame, by identity.
    left_out: functions that `disable()` made in the frame, by identity -> it, its arguments, and
    the attributes that they had.
    made_classes: classes that a class statement made, by identity -> the step that made each.
    named_tuples: those that `namedtuple()` made, by identity.
    sizes: the symbols among sizes and numbers.
    reads: (identity, name) -> value that an attribute or item was found to have.
    plain_attributes: names of which a class from outside knows nothing, and whether its instances
    look among a module's parameters, buffers and modules.
    by_code: identities of functions that are guarded by what they do.
    special_functions: of classes from outside, the methods that C code may call.
    intercepts: what runs operators on wrapper subclasses.
    found_by_identity: classes from outside whose instances hash and compare as `object`s do.
    """

    def __init__(self, tracer: Tracer, sizes: Any = None) -> None:
        self.tracer = tracer
        self.sizes = sizes or DynamicSizes(None, tracer, _nowhere)
        self.origin: Callable[[], Origin] = _nowhere
        self.known: dict[int, tuple[Any, Source]] = {}
        self.constants: dict[int, tuple[Any, Source]] = {}
        self.fakes: dict[int, Any] = {}
        self.classes_of: dict[int, type] = {}
        self.has_subclasses = self.has_overrides = False
        self.opaque: set[int] = set()
        self.new_leaves: dict[int, Any] = {}
        self.switched: dict[int, Any] = {}
        self.deep_copies: dict[tuple[int, int], Any] = {}
        self.input_sources: list[Source] = []
        self.reads: dict[tuple[Any, ...], Any] = {}
        self.fresh: dict[int, Any] = {}
        self.left_out: dict[int, tuple[Any, ...]] = {}
        self.made_classes: dict[int, int] = {}
        self.named_tuples: dict[int, NamedTuple] = {}
        self.proxies: dict[int, WeakProxy] = {}
        self.class_dicts: dict[int, type] = {}
        self._guards: list[Guard] = []
        self._facts: dict[tuple[Any, ...], TensorFacts] = {}
        self._namespaces: dict[int, tuple[Source, dict[str, Any]]] = {}
        self.lookups: dict[type, dict[str, Any]] = {}
        self.originals: set[str] = set()
        self.inherited: set[tuple[type, str | tuple[str, ...]]] = set()
        self.plain_attributes: dict[tuple[type, str], bool] = {}
        self._lacks: dict[int, tuple[Source, set[str]]] = {}
        self._functions: dict[int, tuple[Any, ...]] = {}
        self.special_functions: dict[type, list[types.FunctionType]] = {}
        self._hookless: set[int] = set()
        self.with_methods: set[type] = set()
        self.numbers_of_objects: dict[int, tuple[Any, Any]] = {}
        self.found_by_identity: set[type] = set()
        self._abstract: dict[tuple[type, type], bool] = {}
        self.lifted: dict[Source, SymbolicFloat] = {}
        self.by_code: set[int] = set()
        self.unwatched: dict[int, Source] = {}
        self.watched_at = UNKNOWN
        self._keep: list[Any] = []
        self.arrays: Any = None
        self.intercepts: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.wrap_lazy: Callable[[torch.Tensor, Source, Any], Any] = refuse_lazy
        # Whether a tensor is one of several that share memory, and what makes its fake tensor.
        self.is_shared: Callable[[torch.Tensor], bool] = lambda real: False
        self.wrap_shared: Callable[[torch.Tensor], Any] = lambda real: None

    def release(self) -> None:
        """Empty the tables."""
        found = (self.known, self.constants, self.fakes, self.reads, self.lifted, self.proxies)
        for table in (
            *found,
            self._facts,
            self.fresh,
            self.left_out,
            self.new_leaves,
            self.switched,
        ):
            table.clear()
        self._keep.clear()
        self.origin = _nowhere

    # --- guards ------------------------------------------------------------------------------

    def guard(
        self,
        source: Source | None,
        kind: GuardKind,
        expected: object,
        origin: Origin | None = None,
    ) -> None:
        """Note an assumption, made here or at `origin`."""
        self._guards.append(Guard(source, kind, expected, origin or self.origin()))

    def guard_namespace(
        self, space: dict[str, Any] | type, name: str, value: Any, label: str = ""
    ) -> None:
        """A dict's entry is this very object (or ABSENT). label: the dict for messages, where it
        is not a module's."""
        entry = self._namespaces.get(id(space))
        if entry is None:
            self._keep.append(space)
            if not label and isinstance(space, dict):
                label = f"globals of {space.get('__name__', '?')}"
            entry = self._namespaces[id(space)] = (ObjectSource(label, space), {})
        entry[1][name] = value

    def guard_lacks_attribute(self, space: dict[str, object], owner: object, name: str) -> None:
        """The instance dict of a known object has no such key."""
        entry = self._lacks.get(id(space))
        if entry is None:
            self.guard_lacks(space, self.instance_dict_source(owner), name)
        else:
            entry[1].add(name)

    def guard_lacks(self, space: dict[str, object], source: Source, name: str) -> None:
        """The dict at the source has no such key."""
        entry = self._lacks.get(id(space))
        if entry is None:
            self._keep.append(space)
            entry = self._lacks[id(space)] = (source, set())
        entry[1].add(name)

    def is_by_code(self, function: object) -> bool:
        """Whether the entry serves other functions with the same code."""
        return id(function) in self.by_code

    def guard_function(self, function: types.FunctionType) -> None:
        """A function keeps its code and its defaults."""
        if id(function) not in self._functions:
            self._functions[id(function)] = (
                function,
                code_of(function),
                function.__defaults__,
                function.__kwdefaults__,
            )

    def guard_no_hooks(self, module: object, source: Source | None) -> None:
        """A module (or with None, all modules together) has no hooks."""
        if id(module) not in self._hookless:
            self._hookless.add(id(module))
            self.guard(source, GuardKind.NO_HOOKS, None)

    def guard_abstract(self, cls: type, abstract: type) -> None:
        """What an abstract class says of a class: a program may register others later."""
        made = self.made_classes.keys() & {id(cls), id(abstract)}
        if not made and (cls, abstract) not in self._abstract:
            self._abstract[cls, abstract] = issubclass(cls, abstract)

    def guards_so_far(self) -> tuple[Guard, ...]:
        """The guards that single reads needed until now, for who looks on."""
        return tuple(self._guards)

    def all_guards(self) -> tuple[Guard, ...]:
        """Every guard, the gathered ones last."""
        gathered = [
            Guard(source, GuardKind.NAMESPACE, tuple(names.items()))
            for source, names in self._namespaces.values()
        ]
        gathered += [
            Guard(ObjectSource(cls.__qualname__, cls), GuardKind.CLASS_LOOKUPS, tuple(n.items()))
            for cls, n in self.lookups.items()
        ]
        gathered += [
            Guard(source, GuardKind.DICT_LACKS, frozenset(names))
            for source, names in self._lacks.values()
        ]
        if self._functions:
            functions = tuple(self._functions.values())
            gathered.append(Guard(None, GuardKind.FUNCTIONS, functions))
        if self._abstract:
            answers = tuple([(*pair, answer) for pair, answer in self._abstract.items()])
            gathered.append(Guard(None, GuardKind.ABSTRACT_CLASSES, answers))
        if self.unwatched:
            leaves = tuple(self.unwatched.values())
            gathered.append(Guard(None, GuardKind.NONE_WATCHED, leaves, self.watched_at))
        return (*self._guards, *gathered, *self.sizes.guards())

    # --- taking in ---------------------------------------------------------------------------

    def source_of(self, value: object) -> Source | None:
        """Where a known object was found; None for a fresh one."""
        entry = self.known.get(id(value))
        return entry[1] if entry is not None else None

    def source_of_constant(self, value: object) -> Source | None:
        """Where a tuple or frozenset that is guarded by value was found: what leaves the frame is
        the object there, which may be another equal one at each call."""
        entry = self.constants.get(id(value))
        return entry[1] if entry is not None else None

    def wrap_value(self, value: Any, source: Source) -> Any:
        """Take in a value read at `source`: guard it by its kind, and give what stands for it."""
        cls: Any = type(value)
        if issubclass(cls, torch.Tensor):
            return self._wrap_tensor(value, source)
        if cls in PRIMITIVES:
            return self._wrap_primitive(value, source)
        if cls in SINGLETONS:
            self.guard(source, GuardKind.ID_MATCH, value)
            return value
        if cls in weakref.ProxyTypes:
            raise BreakRequested("unsupported-container", "a weak proxy")
        entry = self.known.get(id(value))
        if entry is not None:
            if type(entry[1]) is ObjectSource:
                self._guard_identity(source, value)
            elif entry[1] != source:
                self.guard(source, GuardKind.SAME_OBJECT, entry[1])
            return value
        if not _is_plain_class(cls):
            if cls is slice:
                return wrap_slice(self, value, source)
            if cls is types.FunctionType and is_made_often(value, source):
                return self._wrap_code(value, source)
            if is_numpys_float(cls) or cls in SCALARS:
                return wrap_by_value(self, value, source)
            if is_identity(value):
                self._guard_identity(source, value)
                return self.track(value, ObjectSource(name_of(value, source), value))
            if cls in (tuple, frozenset) and len(value) <= 64 and is_constant(value):
                changing = wrap_changing(self, value, source) if cls is tuple else None
                return wrap_by_value(self, value, source) if changing is None else changing
            if cls is ARRAY:
                array = self.arrays.wrap_value(value, source)
                if array is not None:
                    return array
            if keeps_state_in_c(cls):
                self.opaque.add(id(value))
        self.guard(source, GuardKind.TYPE_MATCH, cls)
        if id(cls) not in self.known:
            self.track(cls, ObjectSource(cls.__qualname__, cls))
        return self.track(value, source)

    def _wrap_primitive(self, value: Any, source: Source) -> object:
        cls: Any = type(value)
        if cls is int:
            number = self.sizes.number(source, value)
            if number is not None:
                self.guard(source, GuardKind.TYPE_MATCH, int)
                return number
        if cls is float or cls is torch.Size:
            take = self._lifted if cls is float else functools.partial(wrap_changing, self)
            changing = take(value, source)
            if changing is not None:
                return changing
        self.guard(source, GuardKind.EQUALS_MATCH, value)
        return value

    def _guard_identity(self, source: Source, value: object) -> None:
        kind = GuardKind.EQUALS_MATCH if _is_bound(value) else GuardKind.ID_MATCH
        self.guard(source, kind, value)

    def track(self, value: Any, source: Source) -> Any:
        """Make an object known without a guard: something already guarded holds it."""
        cls: Any = type(value)
        if issubclass(cls, torch.Tensor):
            return self._wrap_tensor(value, source)
        if id(value) in self.by_code and type(source) is ObjectSource:
            self.guard_identity(value)
        if cls not in CONSTANTS and id(value) not in self.known:
            if not _is_plain_class(cls) and is_identity(value) and type(source) is not ObjectSource:
                source = ObjectSource(name_of(value, source), value)
            self.known[id(value)] = (value, source)
        return value

    def _lifted(self, value: float, source: Source) -> SymbolicFloat | None:
        """What stands for a float from outside that may change; None where its value is guarded."""
        known = self.lifted.get(source) if self.lifted else None
        if known is None and self.sizes.is_lifted(source, value):
            self.guard(source, GuardKind.TYPE_MATCH, float)
            tensor = self.tracer.add_input_of_type(NUMBER)
            self.input_sources.append(NumberSource(source))
            settle = functools.partial(self.guard, source, GuardKind.EQUALS_MATCH, value)
            compared = functools.partial(self._guard_comparison, source)
            known = SymbolicFloat(self.tracer, tensor, value, (settle,), compared)
            self.tracer.has_numbers = True
            self.lifted[source] = known
            self.known[id(known)] = (known, source)
        return known

    def _guard_comparison(self, source: Source, name: str, other: float, answer: bool) -> None:
        """A float from outside may change as long as it compares so."""
        self.guard(source, GuardKind.COMPARES, (name, other, answer))

    def _wrap_code(self, function: types.FunctionType, source: Source) -> types.FunctionType:
        """A function that another one makes at each of its calls: any with the same code will do,
        whose defaults and cells are guarded as they are read."""
        self.guard(source, GuardKind.TYPE_MATCH, types.FunctionType)
        code = AttributeSource(source, "__code__")
        self.guard(code, GuardKind.ID_MATCH, code_of(function))
        module = AttributeSource(source, "__module__")
        self.guard(module, GuardKind.EQUALS_MATCH, function.__module__)
        self.known[id(function)] = (function, source)
        self.by_code.add(id(function))
        return function

    def guard_identity(self, value: object) -> None:
        """The program asks which function it is, not what it does: guard that, too. (That objects
        which were told apart stay apart is guarded of all: `guard_distinct`.)"""
        if self.numbers_of_objects:
            settle_numbers(self, (value,))
        if issubclass(type(value), tuple) and type(value) is not tuple:
            self.guard_items(value)
        if not self.by_code:
            return
        if type(value) is tuple:
            self.guard_identities(value)
        if id(value) in self.by_code:
            self.by_code.discard(id(value))
            self.guard(self.known[id(value)][1], GuardKind.ID_MATCH, value)

    def are_apart_by_code(self, first: Any, second: object) -> bool:
        """Whether a function that is guarded by what it does is never the other object, which is no
        function or has other code: then no identity has to be guarded to say so."""
        if id(first) not in self.by_code:
            if id(second) not in self.by_code:
                return False
            first, second = second, first
        if type(second) is not types.FunctionType:
            return True
        if code_of(second) is code_of(first):
            return False
        if id(second) not in self.by_code and (source := self.source_of(second)) is not None:
            self.guard(AttributeSource(source, "__code__"), GuardKind.ID_MATCH, code_of(second))
        return True

    def guard_items(self, value: Any) -> None:
        """Guard what a tuple of a class of its own holds: by that C code hashes and compares it."""
        source = self.source_of(value)
        if source is None:
            return
        if (id(value), "len()") not in self.reads:
            self.reads[id(value), "len()"] = held = tuple.__len__(value)
            self.guard(source, GuardKind.LENGTH, held)
        for index, item in enumerate(tuple.__iter__(value)):
            key = (id(value), index)
            if key not in self.reads:
                self.reads[key] = self.wrap_value(item, ItemSource(source, index))
            if type(self.reads[key]) in NUMBERS:
                hash(self.reads[key])
            self.guard_identity(item)

    def guard_contents(self, value: Any) -> None:
        """Guard what a tuple holds, at any depth."""
        if not issubclass(type(value), tuple) or is_constant(value):
            return
        self.guard_items(value)
        for item in tuple.__iter__(value):
            self.guard_contents(item)

    def guard_identities(self, values: Iterable[object]) -> None:
        """The same of several."""
        for value in values:
            self.guard_identity(value)

    def _wrap_tensor(self, real: torch.Tensor, source: Source) -> object:
        fake = self.fakes.get(id(real))
        if fake is not None:
            first = self.known[id(fake)][1]
            if first != source:
                self.guard(source, GuardKind.SAME_OBJECT, first)
            return fake
        cls = type(real)
        if cls is TracedTensor or cls is WrapperFake:
            return real
        if has_custom_dispatch(cls) and self.intercepts is not None:
            return self._wrap_wrapper(real, source, cls)
        if torch_function_of(cls) is TorchFunction.OWN:  # even its metadata runs user code
            name = cls.__qualname__
            detail = f"the tensor subclass {name} with a __torch_function__ of its own"
            raise refused_tensor(real, source, detail)
        if cls is not torch.Tensor and cls is not torch.nn.Parameter:
            self._check_metadata(real, source)
        check_strided(real, source)
        is_shared = self.is_shared(real)
        layout = None if is_shared else self.sizes.layout(real, source)
        try:
            facts = tensor_facts(real, layout)
        except RuntimeError as problem:  # a view whose base was written to as autograd forbids
            raise BreakRequested("unsupported-tensor", f"{source}: {problem}") from None
        same = (id(cls), *[getattr(facts, name) for name in COMPARED])
        facts = self._facts.setdefault(same, facts)  # of a parameter and its optimizer's state
        self.guard(source, GuardKind.TENSOR_MATCH, facts)
        self.known[id(real)] = (real, source)
        try:
            if is_shared:
                fake = self.wrap_shared(real)
            elif real.is_conj() or real.is_neg():
                fake = self.wrap_lazy(real, source, layout)
            else:
                fake = self.tracer.add_input(real, layout=layout)
                self.input_sources.append(source)
        except Untraceable as problem:
            raise refused_tensor(real, source, str(problem)) from None
        self.fakes[id(real)] = fake
        self.known[id(fake)] = (fake, source)
        self.give_class(fake, cls)
        return fake

    def _wrap_wrapper(
        self, real: torch.Tensor, source: Source, cls: type[torch.Tensor]
    ) -> WrapperFake:
        """A tensor of a wrapper subclass: its metadata is guarded here, its attributes where they
        are read."""
        assert self.intercepts is not None
        self._check_metadata(real, source)
        try:
            answer = wrapper_facts(real)
        except (RuntimeError, NotImplementedError, TypeError):
            detail = f"{source}: a {cls.__qualname__}, which answers for its sizes or layout"
            raise BreakRequested("unsupported-tensor", detail) from None
        facts = WrapperFacts(*answer[:-1])
        if not facts.is_leaf or facts.layout is not torch.strided or has_memory(real):
            detail = f"{source}: a {cls.__qualname__} with a history, a layout or memory of its own"
            raise BreakRequested("unsupported-tensor", detail)
        self.guard(source, GuardKind.ANSWER, (wrapper_facts, (), answer))
        fake: WrapperFake = new_wrapper(
            *(cls, real, facts.shape, facts.stride, facts.offset),
            dtype=facts.dtype,
            device=facts.device,
            requires_grad=facts.requires_grad,
        )
        if id(cls) not in self.known:
            self.track(cls, ObjectSource(cls.__qualname__, cls))
        self.fakes[id(real)] = fake
        self.known[id(real)] = (real, source)
        self.known[id(fake)] = (fake, source)
        self._keep.append(fake)
        self.tracer.intercept = self.intercepts
        self.has_overrides |= torch_function_of(cls) is TorchFunction.OWN
        return fake

    def _check_metadata(self, real: torch.Tensor, source: Source) -> None:
        """Break where a subclass answers itself what guards ask of every tensor. Guarded."""
        cls = type(real)
        for name in _ASKED_BY_GUARDS:
            if self.lookup(cls, name) is not getattr(torch.Tensor, name):
                detail = f"the tensor subclass {cls.__qualname__} with a {name} of its own"
                raise refused_tensor(real, source, detail)

    def give_class(self, fake: object, cls: type) -> None:
        """The program sees the fake tensor as a tensor of this class."""
        self.classes_of[id(fake)] = cls
        self._keep.append(fake)
        if torch_function_of(cls) is TorchFunction.DEFAULT:
            self.has_subclasses = True

    def type_of(self, value: Any) -> type:
        """`type(value)` as the program sees it: a fake tensor has its tensor's class."""
        cls = type(value)
        if cls is TracedTensor:
            return self.classes_of.get(id(value), torch.Tensor)
        if cls is WrapperFake:
            outer: type = value.outer_class
            return outer
        if cls is FakeArray:
            return type(value.like)
        return _SEEN_AS.get(cls, cls)

    def lookup(self, cls: type, name: str) -> Any:
        """What the MRO of a class holds under a name, without descriptors; ABSENT if nothing."""
        names = self.lookups.get(cls)
        if names is not None and name in names:
            return names[name]
        if type(cls) is not type and hashes_in_python(type(cls)):
            raise BreakRequested("unseen-python", f"{cls.__qualname__} is hashed by its metaclass")
        value = raw_lookup(cls, name)
        if self.by_code:
            self.guard_identity(value)
        if id(cls) in self.made_classes:
            for base in type.__dict__["__bases__"].__get__(cls):
                self.lookup(base, name)
        elif cls.__flags__ & _HEAP_TYPE and cls is not FakeArray:
            self.lookups.setdefault(cls, {})[name] = value
        return value

    def note_class(self, made: type, step: int) -> None:
        """A class that the program made in this frame, at a step of the outermost loop."""
        self.fresh[id(made)] = made
        self.made_classes[id(made)] = step

    def class_value(self, cls: type, name: str, value: object) -> object:
        """What the MRO of a class has under a name: known where an outside class has it."""
        owner = next((b for b in cls.__mro__ if name in type.__dict__["__dict__"].__get__(b)), cls)
        if id(owner) in self.made_classes:
            return value
        return self.track(value, AttributeSource(ObjectSource(owner.__qualname__, owner), name))

    def read_namespace(self, space: dict[str, object], name: str, source: Source | None) -> object:
        """An entry of a module's dict; ABSENT if there is none. Guards it once."""
        key = (id(space), name)
        if key in self.reads:
            return self.reads[key]
        value = space.get(name, ABSENT)
        if value is ABSENT:
            self.guard_namespace(space, name, ABSENT)
        elif type(value) in SINGLETONS or is_identity(value):
            self.guard_namespace(space, name, value)
            self.track(value, ObjectSource(name_of(value, None), value))
        else:
            value = self.wrap_value(value, source or self.namespace_entry(space, name))
        self._keep.append(space)
        self.reads[key] = value
        return value

    def namespace_entry(self, space: dict[str, object], name: str) -> Source:
        """The source of an entry of a module's dict."""
        return ItemSource(ObjectSource(f"globals of {space.get('__name__', '?')}", space), name)

    def source_of_function(self, function: object) -> Source:
        """The source of a function from outside, which may be reached unguarded by itself."""
        entry = self.known.get(id(function))
        if entry is None:
            if id(function) in self.fresh:
                return ObjectSource(name_of(function, None), function)
            source = ObjectSource(name_of(function, None), function)
            self.track(function, source)
            entry = self.known.get(id(function), (function, source))
        return entry[1]

    def read_attribute_value(self, owner: object, name: str, value: Any) -> Any:
        """Adopt what was found as `owner.name`, owner known. A function that an argument carries
        is one that was passed in; what a module holds stays."""
        base = self.known[id(owner)][1]
        source = AttributeSource(base, name)
        is_new = type(value) is types.FunctionType and id(value) not in self.known
        if is_new and not issubclass(type(owner), _KEEPERS) and is_made_often(value, base):
            wrapped = self._wrap_code(value, source)
        else:
            wrapped = self.wrap_value(value, source)
        self.reads[attribute_key(owner, name)] = wrapped
        return wrapped

    def instance_dict_source(self, owner: object) -> Source:
        """The source of the instance dict of a known object."""
        return InstanceDictSource(self.known[id(owner)][1])

    def keep(self, value: object) -> None:
        """Keep an object alive as long as the capture: its identity is in a table."""
        self._keep.append(value)


_ASKED_BY_GUARDS = (
    *("dtype", "device", "layout", "shape", "stride", "storage_offset", "untyped_storage"),
    *("requires_grad", "is_leaf", "grad", "_base", "_version", "is_conj", "is_neg", "data_ptr"),
    "__getattribute__",
)
# Whose attributes are functions that stay, whoever made them.
_KEEPERS = (torch.nn.Module, type, types.ModuleType, types.FunctionType)


def refuse_lazy(real: torch.Tensor, source: Source, layout: object) -> object:
    """What a world does with such inputs while no interpreter has it."""
    raise Untraceable("a lazily conjugated or negated tensor")


def _nowhere() -> Origin:
    return UNKNOWN


def raw_lookup(cls: type, name: str) -> object:
    """`_PyType_Lookup`: the first class dict on the MRO that has the name."""
    mro = type.__dict__["__mro__"].__get__(cls)
    if mro is None:  # a class of C code that nothing has asked for an attribute yet
        hasattr(cls, name)
        mro = type.__dict__["__mro__"].__get__(cls)
    if name == MRO:
        return mro
    for base in mro:
        space = type.__dict__["__dict__"].__get__(base)
        if name in space:
            return space[name]
    return ABSENT


BUILTINS: dict[str, Any] = vars(builtins)


def hashes_in_python(metaclass: type) -> bool:
    """Whether dicts of classes ask the program, which may say that two classes are one: nothing
    can be remembered by such a class."""
    return any(
        type(raw_lookup(metaclass, name)) is types.FunctionType for name in ("__hash__", "__eq__")
    )
