"""What CPython's own tests found: programs that were captured with a meaning of their own."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import pickle
import re
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def raised_by(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    try:
        return repr(function(*args, **kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Logged:
    """Answers NotImplemented, and says that it was asked."""

    log: list[str]

    def __add__(self, other: Any) -> Any:
        self.log.append(f"{type(self).__name__}.__add__")
        return NotImplemented

    def __radd__(self, other: Any) -> Any:
        self.log.append(f"{type(self).__name__}.__radd__")
        return NotImplemented

    def __eq__(self, other: object) -> Any:
        self.log.append(f"{type(self).__name__}.__eq__")
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> Any:
        self.log.append(f"{type(self).__name__}.__lt__")
        return NotImplemented


def who_is_asked_for_an_operator() -> Any:
    log: list[str] = []
    first, second = (type(name, (Logged,), {"log": log}) for name in ("First", "Second"))
    derived = type("Derived", (first,), {})
    overriding = type("Overriding", (first,), {"log": log, "__radd__": lambda self, other: 7})
    operations = (operator.add, operator.iadd, operator.eq, operator.ne, operator.lt)
    classes = (first, second, derived, overriding)
    answers = [
        raised_by(operation, left(), right())
        for operation in operations
        for left, right in itertools.product(classes, repeat=2)
    ]
    return log, answers


def operators_that_are_forbidden() -> Any:
    class Silent:
        __eq__ = None  # type: ignore[assignment]
        __add__ = None
        __contains__ = None

    value = Silent()
    return [
        raised_by(lambda: value == 1),
        raised_by(lambda: value != 1),
        raised_by(lambda: 1 == value),  # noqa: SIM300
        raised_by(lambda: value + 1),
        raised_by(lambda: 1 in value),
    ]


def arguments_that_do_not_fit() -> Any:
    class Plain:
        pass

    class WithInit:
        def __init__(self, a: int) -> None:
            pass

    calls = (
        lambda: {}.get(),
        lambda: {}.get(1, 2, 3),
        lambda: list(sequence=()),
        lambda: tuple(sequence=()),
        lambda: bool(x=1),
        lambda: Plain(1),
        lambda: object(1),
        lambda: object.__new__(Plain, 1),
        lambda: object.__init__(Plain(), 1),
        lambda: object.__new__(WithInit, 1) is None,
        lambda: list.sort((1, 2)),
        lambda: int("10", base="2"),
        lambda: [*1],
        lambda: getattr(),  # type: ignore[call-overload]
        lambda: slice(),  # type: ignore[call-overload]
        lambda: eval(),  # type: ignore[call-arg]
        lambda: next(1, 2, 3),  # type: ignore[call-overload]
    )
    return [raised_by(call) for call in calls]


def unpack_a_number() -> Any:
    def unpack() -> Any:
        a, b = 1
        return a, b

    def unpack_rest() -> Any:
        a, *b = object()
        return a, b

    return raised_by(unpack), raised_by(unpack_rest)[:40]


def numbers_of_objects() -> Any:
    def made(method: str, result: Any) -> Any:
        return type("Number", (), {method: lambda self, *rest: result})()

    return [
        raised_by(float, made("__float__", "x")),
        raised_by(int, made("__int__", 2.5)),
        raised_by(complex, made("__complex__", 1)),
        raised_by(bool, made("__bool__", 1)),
        raised_by(int, made("__index__", 3)),
        raised_by(round, made("__round__", "rounded"), 2),
        raised_by(divmod, 7, made("__rdivmod__", "reflected")),
        raised_by(pow, 7, made("__rpow__", "power")),
        raised_by(pow, made("__pow__", "power"), 2, 5),
    ]


def managers_are_asked_by_class() -> Any:
    class NoExit:
        def __enter__(self) -> None:
            pass

    class NoEnter:
        def __exit__(self, *error: Any) -> None:
            pass

    def enter(manager: Any) -> None:
        manager.__enter__ = manager.__exit__ = lambda *args: None
        with manager:
            pass

    return raised_by(enter, NoExit()), raised_by(enter, NoEnter())


def twice(value: int) -> int:
    return 2 * value


def functions_keep_their_identity() -> Any:
    table = collections.defaultdict(twice)
    space = types.SimpleNamespace(call=twice)
    wrapped = classmethod(twice)
    return [
        table.default_factory is twice,
        dict.fromkeys([1], twice)[1] is twice,
        next(itertools.repeat(twice)) is twice,
        weakref.ref(twice)() is twice,
        space.call is twice,
        wrapped.__func__ is twice,
        copy.copy(twice) is twice,
        "native_calls" in f"{twice} {twice!r}" + "%s" % twice + "{}".format(twice),  # noqa: UP031, UP032
        twice in collections.OrderedDict({twice: 1}),
        functools.partial(twice, 3).func is twice,
        re.sub("a", lambda match: match[0] * 2, "banana", count=2),
        re.subn("a", "o", "banana"),
        list(map(twice, [1, 2])) + list(itertools.accumulate([1, 2], lambda a, b: a - b)),
    ]


def chains_of_exceptions() -> Any:
    def ring() -> Any:
        first, second = ValueError(1), ValueError(2)
        first.__context__, second.__context__ = second, first
        try:
            raise first
        except ValueError:
            raise KeyError(3) from None

    def cleared() -> Any:
        def generator() -> Any:
            try:
                yield
            except ValueError:
                error = KeyError("cleared")
                try:
                    raise error
                finally:
                    error.__context__ = None

        waiting = generator()
        next(waiting)
        try:
            raise ValueError
        except ValueError as error:
            try:
                waiting.throw(error)
            except KeyError as found:
                return found.__context__

    def missing() -> Any:
        try:
            return no_such_name  # type: ignore[name-defined]
        except NameError as error:
            return error.name

    return raised_by(ring), cleared(), missing()


class Counted:
    def __init__(self, at: int) -> None:
        self.at = at

    def __index__(self) -> int:
        return self.at

    def __hash__(self) -> int:
        return self.at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.at == other.at


class Pair:
    def __new__(cls, first: int, *, second: int = 0) -> Any:
        made = super().__new__(cls)
        made.values = (first, second)
        return made

    def __getnewargs_ex__(self) -> Any:
        return (self.values[0],), {"second": 7}


def copies_by_new() -> Any:
    return copy.copy(Pair(1)).values, copy.deepcopy(Pair(2)).values


def names_and_attributes() -> Any:
    class Descriptor:
        def __set__(self, instance: Any, value: Any) -> None:
            instance.__dict__["entry"] = value

    class Owner:
        entry = Descriptor()

    owner = Owner()
    before = type(owner.entry) is Descriptor
    owner.entry = 3
    inside = "a variable"
    return before, owner.entry, sorted(dir()), sorted(vars()), inside


def sorts_that_change_their_list() -> Any:
    items = [3, 1, 2]

    def growing(value: int) -> int:
        items.append(value)
        return value

    def looking(value: int) -> int:
        return value + len(items)

    found = raised_by(items.sort, key=growing), items
    items = [3, 1, 2]
    items.sort(key=looking)
    return found, items, raised_by(items.sort, key=lambda value: 1 // 0), items


def thrown_exceptions_have_contexts() -> Any:
    def waiting() -> Any:
        try:
            raise KeyError("first")
        except KeyError:
            yield

    generator = waiting()
    next(generator)
    try:
        generator.throw(ValueError("second"))
    except ValueError as error:
        return repr(error.__context__), raised_by(lambda: next(iter(generator)))
    return None


def patterns_that_ask_twice() -> Any:
    class Point:
        __match_args__ = ("x",)
        x = 1

    def attribute_twice(value: Any) -> bool:
        match value:
            case Point(1, x=1):
                return True
        return False

    def key_twice(value: Any, space: Any) -> bool:
        match value:
            case {space.key: 1, space.key: 2}:
                return True
        return False

    space = types.SimpleNamespace(key="k")
    return raised_by(attribute_twice, Point()), raised_by(key_twice, {"k": 1}, space)


def classes_of_metaclasses() -> Any:
    class Meta(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            super().__setattr__(name, (name, value))

        def __delattr__(cls, name: str) -> None:
            super().__delattr__(name)

        def __dir__(cls) -> Any:
            return ["b", "a"]

    class Made(metaclass=Meta):
        pass

    class Partial(functools.partial):
        pass

    class Items(list):
        pass

    Made.entry = 3  # type: ignore[attr-defined]
    before = Made.entry  # type: ignore[attr-defined]
    del Made.entry  # type: ignore[attr-defined]
    return before, hasattr(Made, "entry"), dir(Made), Partial(max, 3)(2), [*reversed(Items("ab"))]


def mistakes_of_builtins() -> Any:
    class NoIterator:
        def __iter__(self) -> Any:
            return 3

    class Once:
        def __getitem__(self, index: int) -> int:
            if index:
                raise IndexError
            return index

    ended = iter(Once())  # type: ignore[call-overload]
    once = list(ended), list(ended)
    calls = (
        lambda: iter(NoIterator()),
        lambda: max(()),
        lambda: min([]),
        lambda: sum(["a"], ""),  # type: ignore[list-item]
        lambda: setattr(NoIterator(), 1, 2),  # type: ignore[call-overload]
        lambda: getattr(NoIterator(), 1, 2),  # type: ignore[call-overload]
        lambda: dict((), ()),  # type: ignore[call-overload]
    )
    return once, [raised_by(call) for call in calls], frozenset(space := frozenset("a")) is space


PROGRAMS = (
    sorts_that_change_their_list,
    thrown_exceptions_have_contexts,
    patterns_that_ask_twice,
    classes_of_metaclasses,
    mistakes_of_builtins,
    who_is_asked_for_an_operator,
    operators_that_are_forbidden,
    arguments_that_do_not_fit,
    unpack_a_number,
    numbers_of_objects,
    managers_are_asked_by_class,
    functions_keep_their_identity,
    chains_of_exceptions,
    copies_by_new,
    names_and_attributes,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Callable[[], Any]) -> None:
    def around(x: torch.Tensor) -> Any:
        y = x + 1
        found = program()
        return y * 2, str(found)

    x = torch.ones(2)
    report = braze.explain(around)(x)
    assert not report.break_reasons and report.graph_count == 1
    assert report.result[1] == around(x)[1]


def test_keys_from_outside_are_asked_by_interpreted_code() -> None:
    """`__index__` and `__hash__` read state: it is guarded, and what was written is seen."""

    def look_up(x: torch.Tensor, key: Counted, table: dict[Any, str]) -> Any:
        items = ["a", "b", "c", "d"]
        found = [items[key], items[key:], key in table]
        key.at += 1
        found += [items[key], items[:key], table.get(key)]
        items[key] = "changed"
        del items[key]
        return x + 1, found, items

    compiled = braze.compile(look_up)
    table = {2: "two"}
    for at in (0, 1, 2, 1):
        assert (
            compiled(torch.ones(1), Counted(at), table)[1:]
            == (look_up(torch.ones(1), Counted(at), table)[1:])
        )


def test_an_instance_that_calls_itself_is_a_break() -> None:
    class Called:
        pass

    Called.__call__ = Called()  # type: ignore[method-assign, assignment]

    def call(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            Called()()
        except RecursionError:
            return y * 2
        return None

    assert braze.compile(call)(torch.ones(1)).tolist() == [4.0]


def test_pickle_sees_what_was_written() -> None:
    def dump(x: torch.Tensor) -> Any:
        global Renamed
        Renamed = type("Renamed", (), {"__module__": __name__})
        return x + 1, pickle.loads(pickle.dumps(Renamed)) is Renamed

    assert braze.compile(dump)(torch.ones(1))[1]


Renamed: Any = None
