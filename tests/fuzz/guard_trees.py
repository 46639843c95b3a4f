"""Random guard trees over random objects that change at random: all evaluators answer alike.

    python -m tests.fuzz.guard_trees 1000 300     # seeds from 1000 on, 300 of them

The Python evaluator of trees says what is right; generated Python and the snapshots behind an
entry's check are compared with it after each change.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch

from braze.capture.state.guard_context import raw_lookup
from braze.compat.numpy.interface import array_facts
from braze.compat.torch.autograd_engine import view_kind
from braze.compat.torch.tensor_abi import dispatch_keys
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import (
    ABSENT,
    MRO,
    SIZED,
    Guard,
    GuardKind,
    SizeCondition,
    TensorFacts,
    base_length,
)
from braze.ir.captured.guard_tree import build_guard_tree, verify_guard_tree
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
    SizeSource,
    Source,
    StackSource,
    StrideSource,
    TypeSource,
)
from braze.runtime.guards.codegen import READ_FAILURES
from braze.runtime.guards.compile import _generated_check, compile_entry_check
from braze.runtime.guards.evaluate import all_failures, evaluate, first_failure
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.guards.values import has_attribute, keys_of
from braze.shapes.expr import Symbol, as_expr
from braze.shapes.memory_overlap import Access, first_meeting

K = GuardKind
_CHANGES = 24
_DEPTH = 4
Place: TypeAlias = tuple[Source, Any]
# Two tensors alike, which may become one, or share memory.
_TWINS = (LocalSource("p"), LocalSource("q"))


class Point:
    """A class of the program's."""

    kind = "point"
    limit = 3

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def run(self) -> int:
        return 1


class Named(Point):
    __slots__ = ("slot",)


class Text(str):
    """A string that is none."""


class Table(dict):  # type: ignore[type-arg]
    """A dict that is none."""


class Row(list):  # type: ignore[type-arg]
    """A list that is none."""


def _closure(value: Any, other: Any) -> Callable[[], Any]:
    def function(a: Any = 1, *, b: Any = 2) -> Any:
        return value, other, a, b, math

    return function


def _tensor(choose: random.Random) -> Any:
    base = torch.ones(choose.choice(((2, 3), (3, 2), (4,), (), (1, 1), (0, 2))))
    return choose.choice(
        (
            lambda: base,
            lambda: base.double(),
            lambda: base.t().contiguous().t() if base.dim() == 2 else base,
            lambda: torch.nn.Parameter(base),
            lambda: base.requires_grad_(),
            lambda: base.requires_grad_() * 2,
            lambda: base.expand(2, *base.shape),
            lambda: base.to(torch.complex64).conj(),
            lambda: torch.cat([base.reshape(-1), base.reshape(-1)])[base.numel() :],
            lambda: base.to_sparse() if base.dim() else base,
            lambda: base.to("meta"),
            lambda: torch.nn.Buffer(base),
        )
    )()


# Tensors of 2 x 3 elements each.
_PAIRS: tuple[Callable[[], tuple[torch.Tensor, torch.Tensor]], ...] = (
    lambda: (torch.ones(2, 3), torch.ones(2, 3)),
    lambda: tuple(torch.ones(4, 3).chunk(2)),  # type: ignore[return-value]
    lambda: tuple(torch.ones(2, 3, 2).unbind(-1)),  # type: ignore[return-value]
)

_ATOMS: tuple[Any, ...] = (
    0, 1, 2, 300, -1, True, False, None, 0.0, -0.0, 1.0, math.nan, math.inf, 1j, "a", "b", "x" * 40,
    Text("a"), b"a", 2**70, ..., torch.float32, torch.device("cpu"), slice(1, 2), len, math, Point,
)  # fmt: skip


def _value(choose: random.Random, depth: int = 0) -> Any:
    """A random object."""

    def inner() -> Any:
        return _value(choose, depth + 1)

    if depth > 2 or choose.random() < 0.3:
        return choose.choice(_ATOMS)
    count = choose.randrange(4)
    makers: tuple[Callable[[], Any], ...] = (
        lambda: [inner() for _ in range(count)],
        lambda: tuple([inner() for _ in range(count)]),
        lambda: {key: inner() for key in choose.sample(["a", "b", "c", 1, None, Point], count)},
        lambda: OrderedDict((key, inner()) for key in choose.sample(["a", "b", "c"], count)),
        lambda: defaultdict(list, a=inner()),
        lambda: Table(a=inner(), b=1),
        lambda: Row([inner(), 1]),
        lambda: deque([inner()]),
        lambda: {1, "a"},
        lambda: Point(a=inner(), b=inner()),
        lambda: Named(a=inner()),
        lambda: torch.nn.Linear(2, 2),
        lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.ReLU()),
        lambda: _closure(inner(), inner()),
        lambda: Point(a=1).run,
        lambda: types.CellType(inner()),
        lambda: np.ones(count + 1, np.float32),
        lambda: {torch.ones(1): inner()},
        lambda: _tensor(choose),
        lambda: _tensor(choose),
        lambda: _tensor(choose),
    )
    return choose.choice(makers)()


class Program:
    """A frame of random objects."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        names = ("x", "y", "z", "self")
        values: dict[str, Any] = {name: _value(choose) for name in names}
        values["cell"] = types.CellType(_value(choose))
        values["p"], values["q"] = choose.choice(_PAIRS)()
        if choose.random() < 0.4:
            values["y"] = values["x"]
        globals_: dict[str, Any] = {"g": _value(choose), "math": math, "__builtins__": __builtins__}
        self.frame = FrameValues(values, (_value(choose), values["x"]), globals_)

    def places(self) -> list[Place]:
        """All that a guard may ask about, to some depth."""
        frame = self.frame
        roots: list[Place] = [
            (LocalSource(name), value) for name, value in frame.locals.items() if name != "cell"
        ]
        cell = frame.locals["cell"]
        roots += [(CellObjectSource("cell"), cell), (StackSource(0), frame.stack[0])]
        if _filled(cell):
            roots.append((CellSource("cell"), cell.cell_contents))
        roots += [(GlobalSource(name), frame.globals[name]) for name in ("g", "math")]
        roots += [(GlobalSource("len"), len), (ObjectSource("Point", Point), Point)]
        found: list[Place] = []
        seen: set[int] = set()
        pending = [(place, 0) for place in roots]
        for place, depth in pending:
            found.append(place)
            if depth < _DEPTH and id(place[1]) not in seen:
                seen.add(id(place[1]))
                pending += [(child, depth + 1) for child in _children(*place)]
        return found


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _children(source: Source, value: Any) -> Iterator[Place]:
    """What may be read from an object, as capture reads it."""
    cls = type(value)
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.dim():
            yield SizeSource(source, 0), value.shape[0]
            yield StrideSource(source, 0), value.stride(0)
        if value.is_leaf:
            yield AttributeSource(source, "grad"), value.grad
    elif issubclass(cls, dict):
        for index, (key, held) in enumerate(dict.items(value)):
            if isinstance(key, torch.Tensor):
                yield DictKeySource(source, index), key
                yield DictValueSource(source, index), held
            else:
                yield ItemSource(source, key), held
    elif issubclass(cls, (list, tuple, deque)):
        for index, item in enumerate(list(value)):
            yield ItemSource(source, index), item
    elif cls is types.FunctionType and value.__closure__:
        for index, cell in enumerate(value.__closure__):
            yield ClosureSource(source, index), cell.cell_contents
        yield FunctionGlobalSource(source, "math"), math
    elif cls is types.MethodType:
        yield AttributeSource(source, "__self__"), value.__self__
    elif isinstance(value, (Point, torch.nn.Module)):
        space = value.__dict__
        yield InstanceDictSource(source), space
        yield TypeSource(source), cls
        for name in ("a", "b", "limit", "weight", "running_mean", "0"):
            with contextlib.suppress(*READ_FAILURES):  # a module without its dicts
                yield AttributeSource(source, name), getattr(value, name)


# --- guards that hold ----------------------------------------------------------------------------


def _facts(choose: random.Random, tensor: torch.Tensor) -> TensorFacts:
    strided = tensor.layout is torch.strided
    shape: tuple[int | None, ...] = tuple(tensor.shape)
    stride: tuple[int | None, ...] = tuple(tensor.stride()) if strided else ()
    if shape and choose.random() < 0.3:
        shape = (None, *shape[1:])
        stride = (None, *stride[1:]) if strided else ()
    keys = dispatch_keys(tensor) if choose.random() < 0.8 else 0
    leaf = choose.choice((None, tensor.is_leaf))
    grad = tensor.requires_grad
    return TensorFacts(
        type(tensor), tensor.dtype, tensor.device, grad, shape, stride, tensor.layout, leaf, keys
    )


def _guards_of(choose: random.Random, source: Source, value: Any) -> Iterator[Guard]:
    """Guards that capture makes of such an object."""
    cls = type(value)
    if isinstance(value, torch.Tensor):
        yield Guard(source, K.TENSOR_MATCH, _facts(choose, value))
        if value.layout is torch.strided and choose.random() < 0.2:
            yield Guard(source, K.VIEW, view_kind(value))
            yield Guard(source, K.STORAGE_OFFSET, value.storage_offset())
        return
    if cls is np.ndarray:
        yield Guard(source, K.ARRAY_MATCH, array_facts(value))
        return
    if value is None or cls in (bool, types.FunctionType, types.ModuleType, type):
        yield Guard(source, K.ID_MATCH, value)
        if issubclass(cls, type) and cls is type:
            names = ("kind", "limit", "missing", MRO)
            entries = tuple((name, raw_lookup(value, name)) for name in names)
            yield Guard(source, K.CLASS_LOOKUPS, entries)
        return
    if cls in (int, float, complex, str, bytes, slice, torch.dtype, torch.device):
        yield Guard(source, K.EQUALS_MATCH, value)
        if cls is float:
            yield Guard(source, K.COMPARES, ("gt", 0, value > 0))
        return
    yield Guard(source, K.TYPE_MATCH, cls)
    if issubclass(cls, SIZED) and choose.random() < 0.7:
        yield Guard(source, K.LENGTH, base_length(value))
    if issubclass(cls, dict):
        if choose.random() < 0.5:
            yield Guard(source, K.DICT_KEYS, keys_of(value))
        yield Guard(source, K.DICT_CONTAINS, ("a", dict.__contains__(value, "a")))
        if not dict.__contains__(value, "q"):
            yield Guard(source, K.DICT_LACKS, frozenset({"q", "r"}))
        plain = {key: held for key, held in dict.items(value) if type(key) is str}
        names = (*plain.items(), ("missing", ABSENT))
        if choose.random() < 0.3 and cls is dict:
            yield Guard(source, K.NAMESPACE, names[-2:])
    if isinstance(value, Point):
        yield Guard(source, K.HAS_ATTRIBUTE, ("a", has_attribute(value, "a")))
        yield Guard(InstanceDictSource(source), K.DICT_LACKS, frozenset({"q"}))
        entries = tuple((name, raw_lookup(cls, name)) for name in ("a", "run", "limit"))
        yield Guard(ObjectSource(cls.__name__, cls), K.CLASS_LOOKUPS, entries)
    if isinstance(value, torch.nn.Module):
        yield Guard(source, K.NO_HOOKS, None)
        names_of = ("weight", "running_mean", "0")
        entries = tuple((name, raw_lookup(cls, name)) for name in names_of)
        yield Guard(ObjectSource(cls.__name__, cls), K.CLASS_LOOKUPS, entries)
        yield Guard(InstanceDictSource(source), K.DICT_LACKS, frozenset(names_of))


def _relations(choose: random.Random, places: list[Place]) -> Iterator[Guard]:
    if len(places) < 2:
        return
    (first, value), (second, other) = choose.sample(places, 2)
    kind = K.SAME_OBJECT if value is other else K.DIFFERENT_OBJECT
    yield Guard(first, kind, second)
    objects: dict[int, Source] = {}
    for source, found in places:
        objects.setdefault(id(found), source)
    if len(objects) > 2:
        yield Guard(None, K.DISTINCT, tuple(objects.values()))
    strided = [
        place
        for place in places
        if isinstance(place[1], torch.Tensor) and place[1].layout is torch.strided
    ]
    roles = {source: choose.choice([*Access]) for source, _ in strided}
    kept: list[tuple[Source, Any]] = []
    for each in strided:  # what does not hold now is no guard
        groups = [[t for s, t in (*kept, each) if roles[s] is role] for role in Access]
        if first_meeting(groups) is None:
            kept.append(each)
    if len(kept) > 1 and choose.random() < 0.6:
        expected = tuple([tuple([s for s, _ in kept if roles[s] is role]) for role in Access])
        yield Guard(None, K.STORAGE_OVERLAP, expected)
    sized = [(source, found) for source, found in places if type(source) is SizeSource]
    if sized:
        symbol = Symbol("s0", 2)
        source, size = choose.choice(sized)
        lower = choose.choice((0, 1, size))
        if size >= lower:
            condition = SizeCondition(as_expr(symbol), lower, None, ((symbol, source),))
            yield Guard(None, K.SIZES, condition)


def guarded(program: Program) -> tuple[list[Guard], list[Source]]:
    """Guards that hold for the program, as capture would gather them, and inputs of a graph: what
    leads to a place is guarded, too."""
    choose = program.choose
    places = program.places()
    by_source = dict(places)
    chosen = choose.sample(places, min(len(places), choose.randrange(2, 9)))
    if choose.random() < 0.4:
        chosen += [(source, value) for source, value in places if source in _TWINS]
    wanted: dict[Source, Any] = {}
    for source, _ in chosen:
        path: list[Place] = []
        step: Source | None = source
        while step is not None and step in by_source:
            path.append((step, by_source[step]))
            step = getattr(step, "base", None)
        if step is None:
            wanted.update(reversed(path))
    guards: list[Guard] = []
    for source, value in wanted.items():
        guards += _guards_of(choose, source, value)
        if type(source) is DictValueSource:
            guards.append(
                Guard(source.key, K.TENSOR_MATCH, _facts(choose, _key_at(source, wanted)))
            )
    guards += _relations(choose, list(wanted.items()))
    choose.shuffle(guards)
    tensors = [source for source, value in wanted.items() if isinstance(value, torch.Tensor)]
    return guards, tensors


def _key_at(source: DictValueSource, wanted: dict[Source, Any]) -> Any:
    return list(wanted[source.base])[source.index]


# --- changes -------------------------------------------------------------------------------------


def _change(program: Program) -> str:
    """One change of something reachable; its name."""
    choose = program.choose
    places = program.places()
    twins = [place for place in places if place[0] in _TWINS]
    source, value = choose.choice(twins if twins and choose.random() < 0.2 else places)
    other = choose.choice(places)[1] if choose.random() < 0.5 else _value(choose)
    changes = list(_changes_of(program, source, value, other))
    if not changes:
        return ""
    name, change = choose.choice(changes)
    try:
        change()
    except (TypeError, RuntimeError, ValueError, AttributeError, KeyError, IndexError):
        return ""
    return f"{name} of {source}"


Named_: TypeAlias = tuple[str, Callable[[], Any]]


def _changes_of(program: Program, source: Source, value: Any, other: Any) -> Iterator[Named_]:
    frame, choose = program.frame, program.choose
    cls = type(value)
    if type(source) is LocalSource:
        yield "rebind", lambda: frame.locals.__setitem__(source.name, other)
        yield "delete", lambda: frame.locals.pop(source.name)
    if type(source) is GlobalSource:
        yield "rebind", lambda: frame.globals.__setitem__(source.name, other)
    if type(source) is CellSource:
        yield "fill", lambda: setattr(frame.locals["cell"], "cell_contents", other)
    if isinstance(value, torch.Tensor):
        new = _tensor(choose)
        yield "data", lambda: setattr(value, "data", new.detach())
        yield "requires_grad", lambda: value.requires_grad_(not value.requires_grad)
        yield "resize", lambda: value.resize_(value.numel() + 1)
        yield "set", lambda: value.set_(new.detach())
        yield "transpose", lambda: value.t_()
        yield "gradient", lambda: setattr(value, "grad", torch.ones_like(value))
    elif issubclass(cls, dict):
        key = choose.choice(["a", "b", "q", *dict.keys(value)])
        base = _base(value)
        yield "item", lambda: base.__setitem__(value, key, other)
        yield "item gone", lambda: base.__delitem__(value, key)
        yield "reversed", lambda: _reversed(value)
        yield "cleared", lambda: base.clear(value)
        yield "an equal key", lambda: _set_key(value, Text("a"), other)
    elif issubclass(cls, (list, deque)):
        yield "append", lambda: value.append(other)
        yield "item", lambda: value.__setitem__(0, other)
        yield "pop", lambda: value.pop()
        yield "reversed", lambda: value.reverse()
    elif cls is types.FunctionType:
        code = _closure(1, 2).__code__
        yield "code", lambda: setattr(value, "__code__", code)
        yield "defaults", lambda: setattr(value, "__defaults__", (other,))
        if value.__closure__:
            yield "closure", lambda: setattr(value.__closure__[0], "cell_contents", other)
    elif isinstance(value, Point):
        yield "attribute", lambda: setattr(value, "a", other)
        yield "attribute gone", lambda: delattr(value, "a")
        yield "another attribute", lambda: setattr(value, "q", other)
        yield "class", lambda: setattr(value, "__class__", Named if cls is Point else Point)
        yield "dict", lambda: setattr(value, "__dict__", dict(value.__dict__))
    elif isinstance(value, torch.nn.Linear):
        yield "weight", lambda: setattr(value, "weight", torch.nn.Parameter(torch.ones(2, 2)))
        yield "hook", lambda: value.register_forward_hook(lambda *_: None)
        yield "shadow", lambda: value.__dict__.__setitem__("weight", other)
    elif cls is np.ndarray:
        yield "strides", lambda: frame.locals.__setitem__("x", value[::2])
    if isinstance(value, torch.Tensor) and source in _TWINS:
        values = frame.locals
        yield "one object", lambda: values.__setitem__("q", values["p"])
        yield "one storage", lambda: values.__setitem__("q", values["p"].detach())
        yield "a storage of its own", lambda: values.__setitem__("q", torch.ones(2, 3))
        start = choose.choice((0, 1, 3, 6))
        yield f"from {start}", lambda: values.__setitem__("q", _moved(values["p"], value, start))
    if choose.random() < 0.05:
        yield "class attribute", lambda: setattr(Point, "limit", choose.choice((3, 4)))
        yield "class method", lambda: setattr(Named, "run", choose.choice((Point.run, len)))


def _moved(kept: torch.Tensor, like: torch.Tensor, start: int) -> torch.Tensor:
    """A view of the memory of `kept` that begins there, of the sizes and strides of another."""
    return kept.detach().as_strided(like.shape, like.stride(), start)


def _base(value: Any) -> Any:
    """The builtin class of a dict, whose methods keep its order."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def _reversed(value: Any) -> None:
    base, items = _base(value), list(dict.items(value))
    base.clear(value)
    for key, held in reversed(items):
        base.__setitem__(value, key, held)


def _set_key(value: Any, key: Any, held: Any) -> None:
    if dict.__contains__(value, key):
        _base(value).__delitem__(value, key)
    _base(value).__setitem__(value, key, held)


# --- comparison ----------------------------------------------------------------------------------


def first_difference(seed: int) -> str:
    """Where evaluators differ, or ""."""
    torch.manual_seed(seed)
    program = Program(random.Random(seed))
    guards, inputs = guarded(program)
    tree = build_guard_tree(guards, inputs)
    verify_guard_tree(tree)
    generated = _generated_check(tree.guards(), inputs, tree.guards())
    check = compile_entry_check(guards, inputs).check
    made: list[str] = []
    for _ in range(_CHANGES):
        for _ in range(2):  # the second call that passes leaves a snapshot
            expected = evaluate(tree, program.frame)
            found = {"generated": generated(program.frame), "entry": check(program.frame)}
            failure = first_failure(tree, program.frame)
            holds = expected is not None
            words = "" if failure is None else failure.message
            for name, answer in found.items():
                if not _is_same(expected, answer):
                    return (
                        f"seed {seed}, {name}: {answer is not None}, walk: {holds} {words} ({made})"
                    )
            all_hold = not all_failures(tree, program.frame)
            if (failure is None) is not holds or (holds and not all_hold):
                return f"seed {seed}: the walk holds: {holds}, and fails: {words}"
        made.append(_change(program))
    return ""


def _is_same(expected: list[Any] | None, answer: list[Any] | None) -> bool:
    if expected is None or answer is None:
        return expected is answer
    return len(expected) == len(answer) and all(a is b for a, b in zip(expected, answer))


def share_that_holds(seed: int) -> float:
    """How often the guards of a seed hold behind a change."""
    program = Program(random.Random(seed))
    tree = build_guard_tree(*guarded(program))
    answers = []
    for _ in range(_CHANGES):
        _change(program)
        answers.append(evaluate(tree, program.frame) is not None)
    return sum(answers) / len(answers)


if __name__ == "__main__":
    LOADER.wait()
    first, count = map(int, sys.argv[1:3])
    differences = [text for text in map(first_difference, range(first, first + count)) if text]
    print("\n".join([*differences, f"{count} seeds from {first}, {len(differences)} differ"]))
