"""At the exit of a frame: how to rebuild the values that leave it."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import enum
import functools
import operator
import types
import weakref
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.hooks import RemovableHandle

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.arrays.reconstruction import array_recipe
from braze.capture.calls.c_functions import is_plain_key
from braze.capture.calls.callbacks import Callback
from braze.capture.calls.functorch import CompiledHere, Transformed, Whole
from braze.capture.exit.detached_views import detached_view_recipe
from braze.capture.exit.lazy_views import lazy_recipe
from braze.capture.frames.control_signals import CannotRebuild
from braze.capture.frames.frame import Unread
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.handlers.frame_objects import FrameView
from braze.capture.objects.attribute_load import instance_dict
from braze.capture.objects.iteration import FittedIterator, GetitemIterator, ProtocolIterator
from braze.capture.state.guard_context import CONSTANTS, is_identity
from braze.capture.state.lazy_strings import ShownText
from braze.capture.state.mapping_probe import dict_behind
from braze.capture.state.reconstruction_calls import (
    rebuild_call,
    rebuild_dict_iterator,
    rebuild_exception,
    rebuild_getitem_iterator,
    rebuild_gradient,
    rebuild_iterator,
)
from braze.capture.state.reentrant_calls import code_of
from braze.capture.state.side_effects import MAPPINGS, ordered_items
from braze.capture.state.tensor_attributes import computed_attributes
from braze.capture.tensors.super_proxy import SuperOfTensor
from braze.capture.tensors.wrapper_subclasses import rebuilt_wrapper
from braze.capture.training.autograd_history import used_up_recipe
from braze.capture.training.leaf_creation import leaf_recipe
from braze.capture.training.module_hooks import handle_recipe
from braze.capture.training.tensor_hooks import tensor_hook_recipe
from braze.compat.python.annotations import annotations_of
from braze.compat.python.iterator_state import reduced
from braze.compat.python.stdlib import parts_of, union_of
from braze.compat.torch.aten import aten
from braze.ir.captured.frame import (
    NULL,
    CapturedCall,
    Effect,
    FillInstance,
    FromConstant,
    FromGraph,
    FromSizes,
    FromSource,
    NewCall,
    NewDict,
    NewFunction,
    NewInstance,
    NewSequence,
    Recipe,
    SetCell,
)
from braze.ir.captured.source import ObjectSource
from braze.shapes.data_symbols import SymbolicTruth, Undecidable
from braze.shapes.expr import constant_value
from braze.shapes.symbolic import ProgramInt, of_expression, program_value
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.symbolic.symbolic_float import SymbolicFloat
from braze.tracing.wrapper_fake import WrapperFake

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_VIEWS = {
    type({}.keys()): dict.keys,
    type({}.values()): dict.values,
    type({}.items()): dict.items,
}
_COMPARED = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}
_VALUES = (str, int, float, enum.Enum)  # programs may replace the builtins
_SHARED_CLASSES = (torch.finfo, torch.iinfo)


def _is_late(recipe: Recipe) -> bool:
    return type(recipe) is NewCall and recipe.after_effects


# Iterators that notice when what they go over is changed.
_A_DEQUE: collections.deque[Any] = collections.deque()
_OVER_DEQUES = frozenset({type(iter(_A_DEQUE)), type(reversed(_A_DEQUE))})
# Iterators whose place Python cuts to what their list holds.
_OVER_LISTS = frozenset({type(iter([])), type(reversed([])), type(iter(bytearray()))})


_OF_INSTANCES = (types.MethodDescriptorType, types.WrapperDescriptorType)


@final
class Reconstructor:
    """Recipes for values, one a Python object; `results` are the tensors the graph must give.

    fills: effects that give new instances and cells their contents.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._guard_context = interpreter.guard_context
        self._side_effects = interpreter.side_effects
        self._recipes: dict[int, Recipe] = {}
        self._kept: list[Any] = []
        self._result_index: dict[int, int] = {}
        self.results: list[Any] = []
        self.fills: list[Effect] = []
        self._unfilled: list[tuple[Recipe, types.CellType]] = []
        self._depth = 0

    def recipe(self, value: Any) -> Recipe:
        """The recipe of a value; CannotRebuild if there is none."""
        cls = type(value)
        if cls is ProgramInt:
            return self._number(value)
        if cls is SymbolicFloat:
            return self._float(value)
        if cls is SymbolicTruth:
            return NewCall(_COMPARED[value.relation.kind], (self._compared(value), FromConstant(0)))
        if cls is ShownText:
            return FromConstant(_settled(value))
        if cls is torch.Size and any(type(size) is ProgramInt for size in value):
            return NewSequence(torch.Size, self.recipes(tuple(value)))
        if cls is int and value in self._interpreter.numbers_of_objects:
            function, owner = self._interpreter.numbers_of_objects[value]
            return NewCall(function, (self.recipe(owner),))
        if cls in CONSTANTS or value is NULL:
            return FromConstant(value)
        found = self._recipes.get(id(value))
        if found is None:
            self._kept.append(value)
            self._depth += 1
            try:
                found = self._make(value, cls)
            except RecursionError:
                raise CannotRebuild(f"a deeply nested {cls.__qualname__}") from None
            finally:
                self._depth -= 1
            self._recipes[id(value)] = found
            while self._unfilled and not self._depth:
                self._fill_cell(*self._unfilled.pop())
        return found

    def _fill_cell(self, made: Recipe, cell: types.CellType) -> None:
        """Give a new cell its contents: a function's own name among them leads to the recipe of
        that function, which has been written by now."""
        try:
            contents = cell.cell_contents
        except ValueError:
            return
        self.fills.append(SetCell(made, self.recipe(contents)))

    def made(self) -> collections.abc.Iterable[Recipe]:
        """Every recipe so far, of what is no constant."""
        return self._recipes.values()

    def recipes(self, values: Any) -> tuple[Recipe, ...]:
        """Recipes of several values."""
        return tuple([self.recipe(value) for value in values])

    def _make(self, value: Any, cls: type) -> Recipe:
        if cls is Unread:
            return FromSource(value.source)
        if cls is TracedTensor:
            return self._with_attributes(self._tensor(value), value)
        if cls is WrapperFake:
            return self._wrapper(value)
        if cls is FakeArray:
            return array_recipe(self, value)
        shadow = self._side_effects.shadow_of.get(id(value))
        if shadow is not None:
            value = shadow.original
        source = self._guard_context.source_of(value) or self._guard_context.source_of_constant(
            value
        )
        if source is not None and not (is_identity(value) and type(source) is ObjectSource):
            return FromSource(source)
        if cls is types.FunctionType and id(value) in self._guard_context.fresh:
            return self._function(value)
        if id(value) in self._guard_context.made_classes:
            return self._class(value)
        if id(cls) in self._guard_context.made_classes:
            made = self.recipe(cls)
            items = NewSequence(tuple, self.recipes(tuple.__iter__(value)))
            return NewCall(tuple.__new__, (made, items))
        if cls is types.GenericAlias and source is None:
            return self._alias(value)
        if cls is types.UnionType and source is None:
            return NewCall(union_of, (self.recipe(value.__args__),))
        if is_identity(value):
            if source is None and _is_made_here(value, cls):
                raise CannotRebuild(f"a {cls.__qualname__}, with attributes of its own")
            if source is None and any(map(self._is_of_this_call, parts_of(value, cls))):
                raise CannotRebuild(f"a {cls.__qualname__} of an object that this call has")
            return FromConstant(value)
        proxy = self._guard_context.proxies.get(id(value))
        if proxy is not None:
            raise CannotRebuild("a weak proxy", proxy.made_at)
        maker = _MAKERS.get(cls)
        if maker is not None:
            return maker(self, value)
        return self._instance(value, cls)

    def _is_of_this_call(self, part: object) -> bool:
        """Whether a part may be another object at the next call."""
        return id(part) in self._guard_context.fresh or not (
            type(part) in CONSTANTS or is_identity(part)
        )

    def _number(self, value: ProgramInt) -> Recipe:
        facts = value.facts
        if facts.data is not None and facts.data.concerns(facts.current(value.expr)):
            return self._computed(value)
        expr, sources = self._interpreter.sizes.in_inputs(value)
        constant = constant_value(expr)
        return FromSizes(expr, sources) if constant is None else FromConstant(constant)

    def _compared(self, value: SymbolicTruth) -> Recipe:
        number = of_expression(value.facts, value.relation.expr)
        return self.recipe(program_value(number))

    def _computed(self, value: ProgramInt) -> Recipe:
        """A number that the graph computes: read from a result of its own."""
        found = self._recipes.get(id(value))
        if found is None:
            self._kept.append(value)
            options = {"dtype": torch.int64, "device": torch.device("cpu")}
            tensor = self._interpreter.tracer.call(aten.full.default, ((), value.node), options)
            found = NewCall(torch.Tensor.item, (self.result(tensor),))
            self._recipes[id(value)] = found
        return found

    def _float(self, value: SymbolicFloat) -> Recipe:
        found = self._recipes.get(id(value))
        if found is None:
            self._kept.append(value)
            source = self._guard_context.source_of(value)
            if source is not None:
                found = FromSource(source)
            else:
                found = NewCall(torch.Tensor.item, (self.result(value.tensor),))
            self._recipes[id(value)] = found
        return found

    def _tensor(self, value: object) -> Recipe:
        source = self._guard_context.source_of(value)
        if source is not None:
            return FromSource(source)
        lazy = lazy_recipe(self._interpreter, value, self)
        if lazy is not None:
            return lazy
        view = detached_view_recipe(self._interpreter, value, self)
        if view is not None:
            return view
        leaf = leaf_recipe(self._interpreter, value, self)
        if leaf is not None:
            return leaf
        made = used_up_recipe(self._interpreter, value, self.result)
        if id(value) in self._interpreter.assigned_gradients:
            made = NewCall(rebuild_gradient, (made,))
        cls = self._guard_context.classes_of.get(id(value))
        if cls is not None and cls is not torch.Tensor:
            return NewCall(torch.Tensor.as_subclass, (made, FromConstant(cls)))
        return made

    def _with_attributes(self, made: Recipe, value: TracedTensor) -> Recipe:
        """A computed tensor's recipe, with the attributes that the program gave it."""
        held = computed_attributes(value)
        if type(made) is not FromSource and held:
            self._recipes[id(value)] = made  # an attribute may lead to the tensor itself
            attributes = [(name, self.recipe(item)) for name, item in held.items()]
            self.fills.append(FillInstance(made, tuple(attributes)))
        return made

    def _wrapper(self, value: WrapperFake) -> Recipe:
        """A tensor of a wrapper subclass: made as in the frame, then given what it holds."""
        source = self._guard_context.source_of(value)
        if source is not None:
            return FromSource(source)
        cls = value.outer_class
        if not value.is_leaf:
            raise CannotRebuild(f"a {cls.__qualname__} with a history")
        args, kwargs = value.making
        given = (FromConstant(cls), FromConstant(value.requires_grad), *self.recipes(args))
        keywords = tuple([(name, self.recipe(item)) for name, item in kwargs.items()])
        made = NewCall(rebuilt_wrapper, given, keywords)
        self._recipes[id(value)] = made
        slots, attributes = [], []
        for name, item in value.attributes.items():
            meta = self._guard_context.lookup(cls, name)
            if type(meta) is types.MemberDescriptorType:
                slots.append((meta, self.recipe(item)))
            else:
                attributes.append((name, self.recipe(item)))
        self.fills.append(FillInstance(made, tuple(attributes), None, None, tuple(slots)))
        return made

    def result(self, value: object) -> FromGraph:
        """A tensor as a result of the graph."""
        self._kept.append(value)
        self._result_index[id(value)] = len(self.results)
        self.results.append(value)
        return FromGraph(len(self.results) - 1)

    # --- exact builtin classes -------------------------------------------------------------------

    def sequence(self, value: object) -> Recipe:
        """list, tuple, set, frozenset."""
        if type(value) in (set, frozenset):
            self.check_keys(value)
        return NewSequence(type(value), self.recipes(value))

    def entries(self, value: object) -> tuple[tuple[Recipe, Recipe], ...]:
        """Recipes of the keys and values of a dict."""
        self.check_keys(value)
        return tuple([(self.recipe(k), self.recipe(v)) for k, v in ordered_items(value)])

    def check_keys(self, container: Any) -> None:
        """CannotRebuild where keys would be asked once more for a hash that changes something:
        a dict or set that leaves the frame is made of its keys."""
        step = self._interpreter.keys_changed_at
        if step is None:
            return
        # An ordered dict's own iterator asks its keys for their hashes.
        keys = dict.__iter__(container) if issubclass(type(container), dict) else iter(container)
        if not all(map(is_plain_key, keys)):
            raise CannotRebuild("a container of keys whose hash changes something", step)

    def mapping(self, value: object) -> Recipe:
        """dict and the standard dict classes."""
        if instance_dict(value):
            raise CannotRebuild(f"a {type(value).__qualname__} with attributes")
        factory = getattr(value, "default_factory", None)
        return NewDict(
            type(value),
            self.entries(value),
            None if factory is None else self.recipe(factory),
        )

    def slice(self, value: slice) -> Recipe:
        """A slice, possibly of tensors."""
        return NewCall(slice, self.recipes((value.start, value.stop, value.step)))

    def weak_reference(self, value: weakref.ReferenceType[object]) -> Recipe:
        """A weak reference to what is still alive."""
        target, callback = value(), value.__callback__
        if target is None:
            raise CannotRebuild("a dead weak reference")
        told = () if callback is None else (self.recipe(callback),)
        return NewCall(weakref.ref, (self.recipe(target), *told))

    def method(self, value: types.MethodType) -> Recipe:
        """A bound method; a generator's is a builtin one outside of capture."""
        if type(value.__self__) in (InlinedGenerator, FakeArray):
            name = FromConstant(value.__func__.__name__)
            return NewCall(getattr, (self.recipe(value.__self__), name))
        return NewCall(types.MethodType, self.recipes((value.__func__, value.__self__)))

    def bound_builtin(self, value: Any) -> Recipe:
        """A builtin method bound to an object, which its class may override (`super().name`)."""
        owner, name = self.recipe(value.__self__), value.__name__
        found = [vars(base)[name] for base in type(value.__self__).__mro__ if name in vars(base)]
        if found and type(found[0]) is types.FunctionType:
            builtin = [meta for meta in found if type(meta) in _OF_INSTANCES]
            return NewCall(builtin[0].__get__, (owner,))
        return NewCall(getattr, (owner, FromConstant(name)))

    def _class(self, made: type) -> Recipe:
        """A class that the frame made: that of a named tuple, if nothing was written to it."""
        named = self._guard_context.named_tuples.get(id(made))
        if named is None or not named.is_unchanged():
            step = self._guard_context.made_classes[id(made)]
            raise CannotRebuild(f"the class {made.__qualname__}, made in the frame", step)
        return self._made_by(collections.namedtuple, *named.arguments())

    def _alias(self, value: types.GenericAlias) -> Recipe:
        """`list[a, b]` made in the frame, of any objects."""
        made = NewCall(types.GenericAlias, self.recipes((value.__origin__, value.__args__)))
        return NewCall(next, (NewCall(iter, (made,)),)) if value.__unpacked__ else made

    def partial(self, value: Any) -> Recipe:
        """functools.partial."""
        keywords = tuple([(name, self.recipe(v)) for name, v in value.keywords.items()])
        return NewCall(functools.partial, self.recipes((value.func, *value.args)), keywords)

    def cell(self, value: types.CellType) -> Recipe:
        """A cell made in this frame: made empty, filled later, so that cycles can be built."""
        made = NewCall(types.CellType, ())
        self._unfilled.append((made, value))
        return made

    def iterator(self, value: object) -> Recipe:
        """A builtin iterator, by what it says of itself when it is pickled; one over a dict by
        how far it is, so that it still notices when the dict changes its size."""
        over_dict = self._interpreter.dict_iterators.get(id(value))
        if over_dict is not None:
            _, owner, length = over_dict
            left = operator.length_hint(value)
            if left or not self._left_of(value):
                arguments = (self.recipe(owner), FromConstant(length - left))
                return NewCall(rebuild_dict_iterator, arguments, after_effects=True)
        try:
            said = reduced(value)
        except (TypeError, DeprecationWarning):  # the program makes errors of warnings
            raise CannotRebuild(f"a {type(value).__qualname__}") from None
        kind, arguments = said[0], said[1]
        state = said[2] if len(said) > 2 else None
        parts = self.recipes(arguments)
        if type(value) in _OVER_LISTS and type(state) is int:
            unplaced = FromConstant(kind), FromConstant(None)
            return NewCall(rebuild_iterator, (*unplaced, *parts), place=state)
        notices = type(value) in _OVER_DEQUES or any(map(_is_late, parts))
        parts = (FromConstant(kind), self.recipe(state), *parts)
        return NewCall(rebuild_iterator, parts, after_effects=notices)

    @staticmethod
    def _left_of(iterator: object) -> list[object]:
        """What an iterator over a dict has still to give."""
        try:
            return list(iterator.__reduce__()[1][0])
        except RuntimeError:
            raise CannotRebuild("an iterator over a dict that has changed meanwhile") from None

    def view(self, value: Any) -> Recipe:
        """keys(), values(), items() of a dict."""
        return NewCall(_VIEWS[type(value)], (self.recipe(_dict_of_view(value)),))

    def deque(self, value: Any) -> Recipe:
        """collections.deque."""
        return NewCall(collections.deque, (self.recipe(list(value)), FromConstant(value.maxlen)))

    def namespace(self, value: types.SimpleNamespace) -> Recipe:
        """types.SimpleNamespace."""
        entries = tuple([(name, self.recipe(item)) for name, item in vars(value).items()])
        return NewCall(types.SimpleNamespace, (), entries)

    def proxy(self, value: types.MappingProxyType[object, object]) -> Recipe:
        """A read-only view of a dict that is no class's."""
        held = dict_behind(value)
        if id(value) in self._guard_context.class_dicts or "__module__" in held:
            raise CannotRebuild("the dict of a class")
        return NewCall(types.MappingProxyType, (self.recipe(held),))

    def frame_view(self, value: object) -> Recipe:
        """An interpreted frame."""
        raise CannotRebuild("a frame that sys._getframe() gave")

    def hook_handle(self, value: RemovableHandle) -> Recipe:
        """What registering a hook gave."""
        interpreter = self._interpreter
        made = handle_recipe(interpreter, value) or tensor_hook_recipe(interpreter, value, self)
        return made or self._instance(value, RemovableHandle)

    def super(self, value: Any) -> Recipe:
        """A super() object."""
        return NewCall(super, self.recipes((value.__thisclass__, value.__self__)))

    def callback(self, value: Any) -> Recipe:
        """A wrapper that capture made: what it wraps."""
        return self.recipe(value.function)

    def protocol_iterator(self, value: Any) -> Recipe:
        """A wrapper that capture made: what it wraps."""
        return self.recipe(value.iterator)

    def getitem_iterator(self, value: GetitemIterator) -> Recipe:
        """An iterator that capture made: the builtin one at the same place."""
        parts = (FromConstant(value.kind), self.recipe(value.owner), FromConstant(value.index))
        return NewCall(rebuild_getitem_iterator, parts, after_effects=True)

    def transformed(self, value: Transformed) -> Recipe:
        """What a transform of torch.func gave: the transform, called again."""
        if value.made_by is None:
            raise CannotRebuild("the function that torch.func.vjp gave", value.made_at)
        return self._made_by(*value.made_by)

    def _made_by(
        self, function: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Recipe:
        keywords = tuple([(name, self.recipe(v)) for name, v in kwargs.items()])
        return NewCall(function, self.recipes(args), keywords)

    def compiled_here(self, value: CompiledHere) -> Recipe:
        """A function that the frame compiled."""
        return self._made_by(*value._made_by)

    def whole(self, value: Whole) -> Recipe:
        """A callable that the program takes into the graph as it is."""
        return self.recipe(value.function)

    def generator(self, value: Any) -> Recipe:
        """A generator that has not started; a suspended one cannot be rebuilt."""
        if value.started:
            name = value.frame.code.co_qualname
            raise CannotRebuild(f"the suspended generator {name}", value.made_at)
        return NewCall(rebuild_call, self.recipes(value.call))

    def _function(self, value: types.FunctionType) -> Recipe:
        if id(value) in self._guard_context.left_out:
            made_by, attributes = self._guard_context.left_out[id(value)]
            if vars(value) != attributes:
                raise CannotRebuild(f"the disabled function {value.__qualname__}, written to")
            made = self._recipes[id(value)] = self._made_by(*made_by)
            return made
        if getattr(value, "__type_params__", ()):
            raise CannotRebuild(f"the generic function {value.__qualname__}")
        if id(value.__globals__) in self._guard_context.fresh:
            raise CannotRebuild(f"the function {value.__qualname__}, whose globals are made here")
        annotations = annotations_of(value)
        made = self._recipes[id(value)] = NewFunction(
            code=code_of(value),
            globals=value.__globals__,
            name=value.__name__,
            qualname=value.__qualname__,
            module=value.__module__,
            defaults=None if value.__defaults__ is None else self.recipe(value.__defaults__),
            keyword_defaults=(
                None if value.__kwdefaults__ is None else self.recipe(value.__kwdefaults__)
            ),
            closure=self.recipes(value.__closure__ or ()),
            annotations=None if annotations is None else self.recipe(annotations),
        )
        attributes = [(name, self.recipe(held)) for name, held in vars(value).items()]
        if attributes:
            self.fills.append(FillInstance(made, tuple(attributes)))
        if value.__doc__ != types.FunctionType(made.code, {}, closure=value.__closure__).__doc__:
            doc = (made, FromConstant("__doc__"), self.recipe(value.__doc__))
            self.fills.append(CapturedCall(setattr, doc))
        return made

    # --- other instances -------------------------------------------------------------------------

    def _instance(self, value: Any, cls: type) -> Recipe:
        if issubclass(cls, BaseException):
            if id(value) in self._interpreter.raised:
                # Its traceback holds frames, which only raising it natively makes.
                step = self._interpreter.raised[id(value)][1]
                raise CannotRebuild(f"the {cls.__qualname__} that was raised", step)
            arguments, fields = _of_exception(value, cls)
            parts = (arguments, value.args, value.__cause__, fields, instance_dict(value))
            return NewCall(rebuild_exception, (FromConstant(cls), *self.recipes(parts)))
        if issubclass(type(value), tuple):
            return self._tuple_subclass(value, cls)
        if not cls.__flags__ & _HEAP_TYPE or cls.__flags__ & _IMMUTABLE:
            if hasattr(cls, "__next__"):
                return self.iterator(value)
            if cls in _SHARED_CLASSES:
                return FromConstant(value)
            raise CannotRebuild(f"a {cls.__qualname__}")
        if issubclass(type(value), torch.Tensor):
            raise CannotRebuild(f"a tensor of class {cls.__qualname__}")
        if not _is_made_by_new_alone(cls):
            raise CannotRebuild(f"a {cls.__qualname__}, which keeps its state in C")
        made = NewInstance(cls)
        self._recipes[id(value)] = made
        self._fill(made, value, cls)
        return made

    def _tuple_subclass(self, value: Any, cls: type) -> Recipe:
        if hasattr(cls, "n_sequence_fields"):
            return NewCall(cls, (self.recipe(tuple(value)),))
        return NewSequence(cls, self.recipes(tuple.__iter__(value)))

    def _fill(self, made: NewInstance, value: Any, cls: type) -> None:
        space = instance_dict(value) or {}
        attributes = tuple([(name, self.recipe(item)) for name, item in space.items()])
        slots = tuple([(slot, self.recipe(item)) for _, slot, item in _slots(value, cls)])
        if issubclass(type(value), collections.defaultdict):
            slots = (*slots, (_FACTORY, self.recipe(_FACTORY.__get__(value))))
        list_items = self.recipes(list.__iter__(value)) if issubclass(type(value), list) else None
        dict_items = None
        if issubclass(type(value), dict):
            dict_items = self.entries(value)
        if issubclass(type(value), (set, frozenset, collections.deque)):
            raise CannotRebuild(f"a {cls.__qualname__}")
        self.fills.append(FillInstance(made, attributes, list_items, dict_items, slots))


_FACTORY = vars(collections.defaultdict)["default_factory"]


def _is_made_here(value: object, cls: type) -> bool:
    """Whether a number or a string with attributes, not known from outside, was made in the frame.
    Members of enumerations are reached in many ways."""
    if not issubclass(cls, _VALUES):
        return False
    held = (instance_dict(value) or {}).values()
    if issubclass(cls, enum.Enum):
        return any(type(item) in (ProgramInt, SymbolicFloat, TracedTensor) for item in held)
    return bool(held)


def _settled(text: ShownText) -> str:
    try:
        return text.settle()
    except Undecidable as problem:
        raise CannotRebuild(f"a text: {problem}", text.made_at) from None


def _of_exception(value: BaseException, cls: type) -> tuple[object, dict[str, object]]:
    """The arguments of an exception, and what it keeps beside its dict: in slots, and in fields
    that its C code tells to pickle."""
    bases = [base for base in cls.__mro__ if issubclass(base, BaseException)]
    builtin = next(base for base in bases if not base.__flags__ & _HEAP_TYPE)
    reduced: Any = builtin.__reduce__(value)
    space = instance_dict(value) or {}
    told = (reduced[2] if len(reduced) > 2 else None) or {}
    fields = {name: item for name, item in told.items() if name not in space}
    for name, slot, item in _slots(value, cls):
        if next(vars(base)[name] for base in cls.__mro__ if name in vars(base)) is not slot:
            raise CannotRebuild(f"a {cls.__qualname__}, which hides its slot {name!r}")
        fields[name] = item
    return reduced[1], fields


_HEAP_TYPE = 1 << 9
_IMMUTABLE = 1 << 8
_OF_C = 1 << 7 | _IMMUTABLE  # types that cannot be instantiated, or not be changed
_PLAIN_BASES = frozenset({object, list, tuple, *MAPPINGS})


def _is_made_by_new_alone(cls: type) -> bool:
    """Whether instances have no state but attributes, slots and the items of a list or dict."""
    for base in cls.__mro__:
        if base in _PLAIN_BASES:
            continue
        if not base.__flags__ & _HEAP_TYPE or base.__flags__ & _OF_C:
            return False
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            return False
    return True


def _slots(value: object, cls: type) -> list[tuple[str, types.MemberDescriptorType, object]]:
    """The slots of a class and its bases that hold something: the name that instances have it
    under, its descriptor, and what it holds."""
    found: list[tuple[str, types.MemberDescriptorType, Any]] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}"
            slot = vars(base).get(name)
            if type(slot) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # it is empty
                    found.append((name, slot, slot.__get__(value, cls)))
    return found


def _dict_of_view(view: Any) -> object:
    """The dict behind a view; a view shows it only through a read-only proxy."""
    return dict_behind(view.mapping)


_MAKERS: dict[type, Any] = {
    list: Reconstructor.sequence,
    tuple: Reconstructor.sequence,
    set: Reconstructor.sequence,
    frozenset: Reconstructor.sequence,
    **dict.fromkeys(MAPPINGS, Reconstructor.mapping),
    slice: Reconstructor.slice,
    types.MethodType: Reconstructor.method,
    types.BuiltinFunctionType: Reconstructor.bound_builtin,
    types.MethodWrapperType: Reconstructor.bound_builtin,
    functools.partial: Reconstructor.partial,
    types.CellType: Reconstructor.cell,
    collections.deque: Reconstructor.deque,
    super: Reconstructor.super,
    SuperOfTensor: Reconstructor.super,
    RemovableHandle: Reconstructor.hook_handle,
    types.SimpleNamespace: Reconstructor.namespace,
    types.MappingProxyType: Reconstructor.proxy,
    Callback: Reconstructor.callback,
    weakref.ReferenceType: Reconstructor.weak_reference,
    FrameView: Reconstructor.frame_view,
    ProtocolIterator: Reconstructor.protocol_iterator,
    FittedIterator: Reconstructor.protocol_iterator,
    GetitemIterator: Reconstructor.getitem_iterator,
    InlinedGenerator: Reconstructor.generator,
    Transformed: Reconstructor.transformed,
    Whole: Reconstructor.whole,
    CompiledHere: Reconstructor.compiled_here,
    **dict.fromkeys(_VIEWS, Reconstructor.view),
}
