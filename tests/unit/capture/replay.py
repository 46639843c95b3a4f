"""A small interpreter of captured frames: runs the graph, the recipes and the effects.

It does what the runtime does, without guards: enough to compare a captured frame with eager.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from braze.capture import CapturedFrame, FrameRequest, Refused, capture_frame
from braze.ir.captured import frame as fr
from braze.ir.captured import source as src
from braze.ir.graphs.run_graph import run_graph
from braze.tracing import Tracer


def request_for(function: Any, args: tuple, kwargs: dict[str, Any] | None = None, **rest: Any):
    """The request for a plain call of a function."""
    import inspect

    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **(kwargs or {}))
    bound.apply_defaults()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    return FrameRequest(
        code=function.__code__,
        globals=function.__globals__,
        local_values=dict(bound.arguments),
        make_tracer=Tracer,
        cells=cells,
        function=function,
        **rest,
    )


class Replay:
    def __init__(self, captured: CapturedFrame, request: FrameRequest) -> None:
        self.captured = captured
        self.request = request
        self.made: dict[int, Any] = {}
        self.cache: dict[Any, Any] = {}

    def at(self, source: Any) -> Any:
        if source not in self.cache:
            self.cache[source] = self._at(source)
        return self.cache[source]

    def _at(self, source: Any) -> Any:
        request = self.request
        match source:
            case src.LocalSource():
                return request.local_values[source.name]
            case src.StackSource():
                return request.stack[source.index]
            case src.CellSource():
                return request.cells[source.name].cell_contents
            case src.CellObjectSource():
                return request.cells[source.name]
            case src.GlobalSource():
                return request.globals[source.name]
            case src.ObjectSource():
                return source.value
            case src.AttributeSource():
                return getattr(self.at(source.base), source.name)
            case src.InstanceDictSource():
                return self.at(source.base).__dict__
            case src.ItemSource():
                base = self.at(source.base)
                for cls in (dict, list, tuple):
                    if isinstance(base, cls):
                        return cls.__getitem__(base, source.key)
                return base[source.key]
            case src.DictKeySource():
                return list(self.at(source.base))[source.index]
            case src.TypeSource():
                return type(self.at(source.base))
            case src.ClosureSource():
                return self.at(source.base).__closure__[source.index].cell_contents
            case src.FunctionGlobalSource():
                return self.at(source.base).__globals__[source.name]
        raise TypeError(source)

    def run(self) -> Any:
        captured = self.captured
        self.all_sources()
        inputs = [self.at(source) for source in captured.inputs]
        self.results = run_graph(captured.graph, inputs)
        for effect in captured.effects:
            self.effect(effect)
        if isinstance(captured.exit, fr.Return):
            return self.make(captured.exit.value)
        return captured.exit

    def all_sources(self) -> None:
        def walk(value: Any) -> None:
            if isinstance(value, fr.FromSource):
                self.at(value.source)
            elif isinstance(value, (tuple, list)):
                for item in value:
                    walk(item)
            elif type(value).__module__ == "braze.ir.captured.frame" and hasattr(
                value, "__slots__"
            ):
                for name in value.__slots__:
                    walk(getattr(value, name))

        walk(self.captured.effects)
        walk(self.captured.exit)

    def make(self, recipe: Any) -> Any:
        key = id(recipe)
        if key not in self.made:
            self.made[key] = self._make(recipe)
        return self.made[key]

    def _make(self, recipe: Any) -> Any:
        make = self.make
        match recipe:
            case fr.FromConstant():
                return recipe.value
            case fr.FromSource():
                return self.at(recipe.source)
            case fr.FromGraph():
                return self.results[recipe.index]
            case fr.NewSequence():
                items = [make(item) for item in recipe.items]
                if issubclass(recipe.cls, tuple):
                    return tuple.__new__(recipe.cls, items)
                return recipe.cls(items)
            case fr.NewDict():
                made = recipe.cls()
                if recipe.default_factory is not None:
                    made.default_factory = make(recipe.default_factory)
                for key, value in recipe.items:
                    dict.__setitem__(made, make(key), make(value)) if recipe.cls is dict else (
                        made.__setitem__(make(key), make(value))
                    )
                return made
            case fr.NewInstance():
                return recipe.cls.__new__(recipe.cls)
            case fr.NewCall():
                kwargs = {name: make(value) for name, value in recipe.kwargs}
                return recipe.function(*[make(a) for a in recipe.args], **kwargs)
            case fr.NewFunction():
                function = types.FunctionType(
                    recipe.code,
                    recipe.globals,
                    recipe.name,
                    None if recipe.defaults is None else make(recipe.defaults),
                    tuple(make(cell) for cell in recipe.closure),
                )
                if recipe.keyword_defaults is not None:
                    function.__kwdefaults__ = make(recipe.keyword_defaults)
                function.__qualname__ = recipe.qualname
                return function
        raise TypeError(recipe)

    def effect(self, effect: Any) -> None:
        make = self.make
        match effect:
            case fr.FillInstance():
                target = make(effect.target)
                for name, value in effect.attributes:
                    target.__dict__[name] = make(value)
                for slot, value in effect.slots:
                    slot.__set__(target, make(value))
                if effect.list_items is not None:
                    list.extend(target, [make(v) for v in effect.list_items])
                for key, value in effect.dict_items or ():
                    base = next(
                        c
                        for c in type(target).__mro__
                        if c.__module__ in ("builtins", "collections") and "__setitem__" in vars(c)
                    )
                    base.__setitem__(target, make(key), make(value))
            case fr.SetAttribute():
                target = make(effect.target)
                if effect.value is None:
                    if effect.through_dict:
                        del target.__dict__[effect.name]
                    else:
                        delattr(target, effect.name)
                elif effect.through_dict:
                    target.__dict__[effect.name] = make(effect.value)
                else:
                    setattr(target, effect.name, make(effect.value))
            case fr.SetItem():
                if effect.value is None:
                    del make(effect.target)[make(effect.key)]
                else:
                    make(effect.target)[make(effect.key)] = make(effect.value)
            case fr.ReplaceContents():
                target, contents = make(effect.target), make(effect.contents)
                target.clear()
                target.extend(contents) if hasattr(target, "extend") else target.update(contents)
            case fr.SetGlobal():
                if effect.value is None:
                    del effect.globals[effect.name]
                else:
                    effect.globals[effect.name] = make(effect.value)
            case fr.SetCell():
                make(effect.cell).cell_contents = make(effect.value)
            case fr.CapturedCall():
                effect.function(*[make(a) for a in effect.args])
            case _:
                raise TypeError(effect)


def captured_once(function: Any, *args: Any, **kwargs: Any) -> tuple[CapturedFrame, Any]:
    """Capture a call, which must not break, and replay it on the same arguments."""
    request = request_for(function, args, kwargs)
    captured = capture_frame(request)
    assert isinstance(captured, CapturedFrame), captured
    assert isinstance(captured.exit, fr.Return), captured.exit.reason
    return captured, Replay(captured, request).run()


def outcome(function: Any, *args: Any, **kwargs: Any) -> CapturedFrame | Refused:
    """Capture a call, however it ends."""
    return capture_frame(request_for(function, args, kwargs))


def same(left: Any, right: Any) -> bool:
    """Equality of outputs, tensors bit for bit."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return (
            isinstance(left, torch.Tensor)
            and left.shape == right.shape
            and left.dtype == right.dtype
            and torch.equal(left, right)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right))
    if hasattr(left, "__dict__") and not isinstance(left, (type, types.FunctionType, enum.Enum)):
        return same(vars(left), vars(right))
    return left == right


def agree(make: Any) -> CapturedFrame:
    """`make()` gives (function, args) anew; eager and captured runs must agree in outputs and in
    what they do to the arguments, closures and globals of the function."""
    torch.manual_seed(0)
    function, args = make()
    torch.manual_seed(0)
    twin, twin_args = make()
    want = function(*args)
    captured, result = captured_once(twin, *twin_args)
    assert same(result, want), (result, want)
    assert same(tuple(twin_args), tuple(args)), (twin_args, args)
    for mine, other in zip(twin.__closure__ or (), function.__closure__ or ()):
        contents, expected = _contents(mine), _contents(other)
        if not isinstance(expected, (types.FunctionType, type, torch.nn.Module)):
            assert same(contents, expected), (contents, expected)
    return captured


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
