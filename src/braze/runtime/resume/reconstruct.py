"""Recipes and effects as one generated function per cache entry.

    def replay(frame, results):
        L = frame.locals
        t0 = L['self']                 # every source is read
        v0 = [results[0], t0.bias]     # every new object is built and filled
        t0.__dict__['cache'] = v0      # only then the effects are applied, in order
        return results[0]

Until the first effect nothing that existed before has changed. A recipe that is used twice is
built once. `CapturedFrame.exit` gives the result: a value, or the open frames as `LiveFrame`s.
"""

from __future__ import annotations

import contextlib
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, final

from braze.compat.python.annotations import set_annotations
from braze.compat.torch.tensor_abi import PLAIN_TENSOR_CLASSES
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.frame import (
    CapturedCall,
    Effect,
    Exit,
    FillInstance,
    FrameState,
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
    ReplaceContents,
    Return,
    SetAttribute,
    SetCell,
    SetGlobal,
    SetItem,
)
from braze.ir.captured.source import Source
from braze.runtime.guards.codegen import SourceWriter, dict_of, is_plain_name
from braze.shapes.binding import python_text

_MAPPINGS = (OrderedDict, dict)


@final
@dataclass(slots=True, eq=False)
class LiveFrame:
    """A frame stopped before an instruction, with real values; the driver moves it on.

    locals, stack: as in `FrameValues`. call: how its calls are made, once it is executed.
    stand_in: what makes them in its name, behind the offset that it is of.
    """

    code: types.CodeType
    globals: dict[str, Any]
    offset: int
    locals: dict[str, Any]
    stack: list[Any]
    function: Any = None
    call: Any = None
    stand_in: tuple[int, Callable[..., Any]] | None = None


Replay = Callable[[FrameValues, Sequence[Any]], Any]


def compile_replay(
    effects: Iterable[Effect], exit: Exit, types: dict[Source, type] | None = None
) -> Replay:
    """A function that applies the effects after the graph ran and gives the frame's result: the
    return value, or for a break the list of LiveFrames, outermost first.

    types: what guards say of objects' exact types."""
    effects = tuple(effects)
    builder = _FunctionBuilder(effects, exit, types)
    late = [effect for effect in effects if not _fills_new_instance(effect)]
    for effect in late:
        for recipe in _EFFECTS[type(effect)].operands(effect):
            builder.build(recipe)
    result = builder.exit(exit)
    lines = builder.writer.lines
    for effect in late:
        lines.extend(_EFFECTS[type(effect)].write(builder, effect))
    body = ["L = frame.locals", *lines, *builder.after_effects, f"return {result}"]
    replay: Replay = builder.writer.function("replay", "frame, results", body, "<braze replay>")
    return replay


def picked_results(effects: Sequence[Effect], exit: Exit) -> int | tuple[int, ...] | None:
    """The number of the graph's result that a frame returns, or those in the tuple that it returns,
    where it does nothing else; None where it takes a `replay`."""
    if effects or not isinstance(exit, Return):
        return None
    value = exit.value
    if isinstance(value, FromGraph):
        return value.index
    if not isinstance(value, NewSequence) or value.cls is not tuple:
        return None
    numbers = [item.index for item in value.items if isinstance(item, FromGraph)]
    return tuple(numbers) if len(numbers) == len(value.items) else None


# --- called by generated text --------------------------------------------------------------------


def make_function(
    code: types.CodeType,
    names: tuple[dict[str, Any], str, str, str | None],
    defaults: Any,
    keyword_defaults: Any,
    closure: tuple[Any, ...],
    annotations: object,
) -> types.FunctionType:
    """A function object; names are its globals, name, qualified name and module."""
    namespace, name, qualname, module = names
    function = types.FunctionType(code, namespace, name, defaults, closure or None)
    function.__qualname__ = qualname
    function.__kwdefaults__ = keyword_defaults
    if module is not None:
        function.__module__ = module
    set_annotations(function, annotations)
    return function


def set_item(target: dict[object, object], key: object, value: object) -> None:
    """`target[key] = value` by the builtin mapping that the object is or extends."""
    for base in _MAPPINGS:
        if issubclass(type(target), base):
            base.__setitem__(target, key, value)
            return
    raise TypeError(f"not a dict: {type(target)}")


def delete_item(target: dict[object, object], key: object) -> None:
    """`del target[key]`, likewise."""
    for base in _MAPPINGS:
        if issubclass(type(target), base):
            base.__delitem__(target, key)
            return
    raise TypeError(f"not a dict: {type(target)}")


def set_in_dict(target: object, name: str, value: object) -> None:
    """Write an instance's `__dict__`; a class's goes through `type`."""
    if issubclass(type(target), type):
        type.__setattr__(target, name, value)
    else:
        dict_of(target)[name] = value


def delete_from_dict(target: object, name: str) -> None:
    """Delete from an instance's `__dict__`; a class's through `type`."""
    if issubclass(type(target), type):
        type.__delattr__(target, name)
    else:
        del dict_of(target)[name]


def set_slot(target: object, name: str, value: object) -> None:
    """Write what a descriptor of the class keeps, without the class's `__setattr__`."""
    _descriptor(target, name).__set__(target, value)


def set_gradient(target: Any, value: object) -> None:
    """Write a tensor's `.grad`: a training step writes some hundreds."""
    if type(target) in PLAIN_TENSOR_CLASSES:
        target.grad = value
    else:
        set_slot(target, "grad", value)


def empty_slot(target: object, name: str) -> None:
    """Empty it; it may be empty."""
    with contextlib.suppress(AttributeError):
        _descriptor(target, name).__delete__(target)


def _descriptor(target: object, name: str) -> Any:
    return next(vars(base)[name] for base in type(target).__mro__ if name in vars(base))


def replace_contents(target: object, contents: object) -> None:
    """Give an existing container the contents of a new one, in place, by its builtin base."""
    for base, replace in _REPLACERS:
        if issubclass(type(target), base):
            replace(target, contents)
            return
    raise TypeError(f"cannot replace the contents of {type(target)}")


def _replace_mapping(target: Any, contents: Any) -> None:
    base = OrderedDict if issubclass(type(target), OrderedDict) else dict
    items = list(dict.items(contents))
    base.clear(target)
    for key, value in items:
        base.__setitem__(target, key, value)


def _replace_set(target: set[object], contents: Iterable[object]) -> None:
    items = list(contents)
    set.clear(target)
    set.update(target, items)


def _replace_deque(target: deque[object], contents: Iterable[object]) -> None:
    items = list(contents)
    deque.clear(target)
    deque.extend(target, items)


_REPLACERS: tuple[tuple[type, Callable[[Any, Any], None]], ...] = (
    (list, lambda target, contents: list.__setitem__(target, slice(None), contents)),
    (dict, _replace_mapping),
    (set, _replace_set),
    (bytearray, lambda target, contents: bytearray.__setitem__(target, slice(None), contents)),
    (deque, _replace_deque),
)


def make_counter(cls: type, items: Iterable[tuple[object, object]]) -> object:
    """A mapping whose constructor would read the items otherwise."""
    made = cls()
    for key, value in items:
        dict.__setitem__(made, key, value)
    return made


# --- the writer ----------------------------------------------------------------------------------


class _FunctionBuilder:
    """Writes the lines that build recipes, dependencies first."""

    def __init__(
        self, effects: Sequence[Effect], exit: Exit, types: dict[Source, type] | None
    ) -> None:
        self._effects, self._exit = effects, exit
        self.writer = SourceWriter(types)
        for function in _CALLED:
            self.writer.namespace[function.__name__] = function
        self._names: dict[int, str] = {}
        self._open: set[int] = set()
        self._fills: dict[int, list[FillInstance]] = {}
        self._pending: list[FillInstance] = []
        self._filled: set[int] = set()
        self.after_effects: list[str] = []
        for effect in effects:
            if _fills_new_instance(effect):
                self._fills.setdefault(id(effect.target), []).append(effect)

    def build(self, recipe: Recipe) -> str:
        """The expression that holds the recipe's object."""
        name = self._names.get(id(recipe))
        if name is None:
            name = self._construct(recipe)
            if not self._open:
                for effect in list(self._pending):
                    self._try_fill(effect)
        return name

    def _construct(self, recipe: Recipe) -> str:
        if type(recipe) is NewCall and recipe.after_effects and not self._is_held(recipe):
            name = self._names[id(recipe)] = f"v{len(self._names)}"
            self.after_effects.append(f"{name} = {_RECIPES[NewCall](self, recipe)}")
            return name
        if id(recipe) in self._open:
            raise ValueError(f"recipe {type(recipe).__name__} contains itself")
        self._open.add(id(recipe))
        try:
            expression = _RECIPES[type(recipe)](self, recipe)
        finally:
            self._open.discard(id(recipe))
        if type(recipe) in _ATOMIC:
            self._names[id(recipe)] = expression
            return expression
        name = f"v{len(self._names)}"
        self._names[id(recipe)] = name
        self.writer.lines.append(f"{name} = {expression}")
        if type(recipe) is NewCall and recipe.place is not None:
            self.after_effects.append(f"{name}.__setstate__({recipe.place})")
        for effect in self._fills.get(id(recipe), ()):
            self._pending.append(effect)
            self._try_fill(effect)
        return name

    def _try_fill(self, effect: FillInstance) -> None:
        """Fill an instance, unless its state has to wait for an object that contains it."""
        if id(effect) in self._filled or self._waits(effect, set()):
            return
        self._filled.add(id(effect))
        self._pending.remove(effect)
        self.writer.lines.extend(_write_fill(self, effect))

    def _waits(self, effect: FillInstance, seen: set[int]) -> bool:
        """Whether the state of an instance needs an object that is being constructed."""
        return any(self._is_blocked(recipe, seen) for recipe in _fill_operands(effect))

    def _is_blocked(self, recipe: Recipe, seen: set[int]) -> bool:
        key = id(recipe)
        if key in self._open:
            return True
        if key in seen or key in self._names:
            return False
        seen.add(key)
        return any(self._is_blocked(part, seen) for part in _parts(recipe))

    def _is_held(self, recipe: Recipe) -> bool:
        """Whether a new object holds what the recipe gives."""
        waiting = [*_roots(self._exit), *(part for e in self._effects for part in _operands(e))]
        fills = {id(e.target): e for e in self._effects if type(e) is FillInstance}
        seen: set[int] = set()
        while waiting:
            holder = waiting.pop()
            if id(holder) in seen:
                continue
            seen.add(id(holder))
            filled = fills.get(id(holder))
            parts = [*_parts(holder), *(_fill_operands(filled) if filled is not None else ())]
            if any(part is recipe for part in parts):
                is_late = type(holder) is NewCall and holder.after_effects
                if not is_late or self._is_held(holder):
                    return True
            waiting += parts
        return False

    def exit(self, exit: Exit) -> str:
        if isinstance(exit, Return):
            return self.build(exit.value)
        return f"[{', '.join([self._frame(state) for state in exit.frames])}]"

    def _frame(self, state: FrameState) -> str:
        self.writer.namespace["LiveFrame"] = LiveFrame
        constant = self.writer.constant
        values = ", ".join(
            [f"{name!r}: {self.build(recipe)}" for name, recipe in state.local_values]
        )
        stack = ", ".join([self.build(recipe) for recipe in state.stack])
        return (
            f"LiveFrame({constant(state.code)}, {constant(state.globals)}, {state.offset}, "
            f"{{{values}}}, [{stack}], {constant(state.function)})"
        )


def _roots(exit: Exit) -> list[Recipe]:
    """The recipes that an exit names."""
    if isinstance(exit, Return):
        return [exit.value]
    frames = exit.frames
    return [r for state in frames for r in (*[v for _, v in state.local_values], *state.stack)]


def _operands(effect: Effect) -> Iterable[Recipe]:
    return _EFFECTS[type(effect)].operands(effect)


def _sequence(builder: _FunctionBuilder, recipe: NewSequence) -> str:
    items = [builder.build(item) for item in recipe.items]
    cls = recipe.cls
    if cls is list:
        return f"[{', '.join(items)}]"
    if cls is tuple:
        return f"({''.join(f'{item}, ' for item in items)})"
    name = builder.writer.constant(cls)
    listed = f"[{', '.join(items)}]"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return f"tuple.__new__({name}, {listed})"
    return f"{name}({listed})"


def _dict(builder: _FunctionBuilder, recipe: NewDict) -> str:
    items = [(builder.build(key), builder.build(value)) for key, value in recipe.items]
    if recipe.cls is dict:
        return f"{{{', '.join(f'{key}: {value}' for key, value in items)}}}"
    name = builder.writer.constant(recipe.cls)
    pairs = f"[{', '.join(f'({key}, {value})' for key, value in items)}]"
    if issubclass(recipe.cls, defaultdict):
        factory = (
            "None" if recipe.default_factory is None else builder.build(recipe.default_factory)
        )
        return f"{name}({factory}, {pairs})"
    if issubclass(recipe.cls, Counter):
        return f"make_counter({name}, {pairs})"
    return f"{name}({pairs})"


def _call(builder: _FunctionBuilder, recipe: NewCall) -> str:
    arguments = [builder.build(argument) for argument in recipe.args]
    keywords = [(name, builder.build(value)) for name, value in recipe.kwargs]
    if all(is_plain_name(name) for name, _ in keywords):
        arguments += [f"{name}={value}" for name, value in keywords]
    else:
        arguments.append(f"**{{{', '.join(f'{name!r}: {value}' for name, value in keywords)}}}")
    return f"{builder.writer.constant(recipe.function)}({', '.join(arguments)})"


def _function(builder: _FunctionBuilder, recipe: NewFunction) -> str:
    closure = "".join([f"{builder.build(cell)}, " for cell in recipe.closure])
    names = (recipe.globals, recipe.name, recipe.qualname, recipe.module)
    defaults, keyword_defaults, annotations = (
        "None" if part is None else builder.build(part)
        for part in (recipe.defaults, recipe.keyword_defaults, recipe.annotations)
    )
    constant = builder.writer.constant
    return (
        f"make_function({constant(recipe.code)}, {constant(names)}, {defaults}, "
        f"{keyword_defaults}, ({closure}), {annotations})"
    )


def _instance(builder: _FunctionBuilder, recipe: NewInstance) -> str:
    name = builder.writer.constant(recipe.cls)
    makers = (vars(base).get("__new__") for base in recipe.cls.__mro__)
    make = next(new for new in makers if isinstance(new, types.BuiltinFunctionType))
    return f"{builder.writer.constant(make)}({name})"


def _sizes(builder: _FunctionBuilder, recipe: FromSizes) -> str:
    names = {symbol: builder.writer.read(source) for symbol, source in recipe.sources}
    return f"({python_text(recipe.expr, names)})"


_ATOMIC = (FromConstant, FromSource)
_RECIPES: dict[type, Callable[[_FunctionBuilder, Any], str]] = {
    FromConstant: lambda builder, recipe: builder.writer.constant(recipe.value),
    FromSource: lambda builder, recipe: builder.writer.read(recipe.source),
    FromGraph: lambda builder, recipe: f"results[{recipe.index}]",
    FromSizes: _sizes,
    NewSequence: _sequence,
    NewDict: _dict,
    NewInstance: _instance,
    NewCall: _call,
    NewFunction: _function,
}


def _parts(recipe: Recipe) -> list[Recipe]:
    """The recipes that must be built before this one."""
    if isinstance(recipe, NewSequence):
        return list(recipe.items)
    if isinstance(recipe, NewDict):
        factory = [] if recipe.default_factory is None else [recipe.default_factory]
        return [*factory, *(part for item in recipe.items for part in item)]
    if isinstance(recipe, NewCall):
        return [*recipe.args, *(value for _, value in recipe.kwargs)]
    if isinstance(recipe, NewFunction):
        optional = (recipe.defaults, recipe.keyword_defaults, recipe.annotations)
        return [*recipe.closure, *(part for part in optional if part is not None)]
    return []


# --- effects -------------------------------------------------------------------------------------


def _fills_new_instance(effect: Effect) -> TypeGuard[FillInstance]:
    """Whether the effect is a part of building, done before anything that existed changes."""
    made = (NewInstance, NewCall, FromGraph)
    return isinstance(effect, FillInstance) and isinstance(effect.target, made)


def _fill_operands(effect: FillInstance) -> list[Recipe]:
    return [
        *(value for _, value in effect.attributes),
        *(value for _, value in effect.slots),
        *(effect.list_items or ()),
        *(part for item in effect.dict_items or () for part in item),
    ]


def _write_fill(builder: _FunctionBuilder, effect: FillInstance) -> list[str]:
    target = builder.build(effect.target)
    lines = [
        f"set_in_dict({target}, {name!r}, {builder.build(value)})"
        for name, value in effect.attributes
    ]
    lines += [
        f"{builder.writer.constant(slot)}.__set__({target}, {builder.build(value)})"
        for slot, value in effect.slots
    ]
    if effect.list_items is not None:
        items = ", ".join([builder.build(item) for item in effect.list_items])
        lines.append(f"replace_contents({target}, [{items}])")
    if effect.dict_items is not None:
        pairs = ", ".join(
            [f"{builder.build(key)}: {builder.build(value)}" for key, value in effect.dict_items]
        )
        lines.append(f"replace_contents({target}, {{{pairs}}})")
    return lines


def _set_attribute(builder: _FunctionBuilder, effect: SetAttribute) -> list[str]:
    target, name = builder.build(effect.target), repr(effect.name)
    if effect.value is None:
        function = "delete_from_dict" if effect.through_dict else "empty_slot"
        return [f"{function}({target}, {name})"]
    value = builder.build(effect.value)
    if effect.name == "grad" and not effect.through_dict:
        return [f"set_gradient({target}, {value})"]
    function = "set_in_dict" if effect.through_dict else "set_slot"
    return [f"{function}({target}, {name}, {value})"]


def _set_item(builder: _FunctionBuilder, effect: SetItem) -> list[str]:
    target, key = builder.build(effect.target), builder.build(effect.key)
    if effect.value is None:
        return [f"delete_item({target}, {key})"]
    return [f"set_item({target}, {key}, {builder.build(effect.value)})"]


def _set_global(builder: _FunctionBuilder, effect: SetGlobal) -> list[str]:
    place = f"{builder.writer.constant(effect.globals)}[{effect.name!r}]"
    if effect.value is None:
        return [f"del {place}"]
    return [f"{place} = {builder.build(effect.value)}"]


def _set_cell(builder: _FunctionBuilder, effect: SetCell) -> list[str]:
    place = f"{builder.build(effect.cell)}.cell_contents"
    if effect.value is None:
        return [f"del {place}"]
    return [f"{place} = {builder.build(effect.value)}"]


def _effect_call(builder: _FunctionBuilder, effect: CapturedCall) -> list[str]:
    arguments = ", ".join([builder.build(argument) for argument in effect.args])
    return [f"{builder.writer.constant(effect.function)}({arguments})"]


class _EffectRow(NamedTuple):
    operands: Callable[[Any], list[Recipe]]
    write: Callable[[_FunctionBuilder, Any], list[str]]


def _present(*recipes: Recipe | None) -> list[Recipe]:
    return [recipe for recipe in recipes if recipe is not None]


_EFFECTS: dict[type, _EffectRow] = {
    FillInstance: _EffectRow(lambda e: [e.target, *_fill_operands(e)], _write_fill),
    SetAttribute: _EffectRow(lambda e: _present(e.target, e.value), _set_attribute),
    SetItem: _EffectRow(lambda e: _present(e.target, e.key, e.value), _set_item),
    ReplaceContents: _EffectRow(
        lambda e: [e.target, e.contents],
        lambda b, e: [f"replace_contents({b.build(e.target)}, {b.build(e.contents)})"],
    ),
    SetGlobal: _EffectRow(lambda e: _present(e.value), _set_global),
    SetCell: _EffectRow(lambda e: _present(e.cell, e.value), _set_cell),
    CapturedCall: _EffectRow(lambda e: list(e.args), _effect_call),
}
_CALLED = (
    make_function,
    set_item,
    delete_item,
    set_in_dict,
    delete_from_dict,
    set_slot,
    set_gradient,
    empty_slot,
    replace_contents,
    make_counter,
)
