"""Classes made in a frame, and special methods that C code calls: interpreted, without a break."""

from __future__ import annotations

import contextlib
import functools
import io
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def class_with_a_body() -> Any:
    class Sizes:
        first = 2
        total = sum([first, 3])
        scratch = "gone"
        del scratch
        names: list[str] = []
        if total > 4:
            names.append("large")

    return Sizes.total, Sizes.names, hasattr(Sizes, "scratch"), Sizes.__annotations__


def metaclasses_and_hooks() -> Any:
    log: list[Any] = []

    class Meta(type):
        @classmethod
        def __prepare__(mcls, name: str, bases: Any, **keywords: Any) -> dict[str, Any]:
            log.append(("prepare", name, keywords))
            return {"prepared": True}

        def __new__(mcls, name: str, bases: Any, space: Any, **keywords: Any) -> Any:
            return super().__new__(mcls, name, bases, space)

    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            log.append(("named", owner.__name__, name))

    class Base:
        def __init_subclass__(cls, **keywords: Any) -> None:
            log.append(("subclass", cls.__name__, keywords, cls.__bases__ == (Base,)))

    class Derived(Base, flavour="sweet"):
        field = Named()

    class Made(metaclass=Meta, level=3):
        pass

    return log, Derived.__mro__ == (Derived, Base, object), Made.prepared  # type: ignore[attr-defined]


class Key:
    """A class from outside whose methods C code calls."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number % 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.number == self.number

    def __lt__(self, other: Key) -> bool:
        return self.number < other.number

    def __repr__(self) -> str:
        return f"Key({self.number})"


def keys_of_dicts_and_sets() -> Any:
    keys = [Key(n) for n in (5, 3, 1, 3)]
    counted = {key: keys.count(key) for key in keys}
    position = keys.index(Key(1))
    keys.remove(Key(5))
    return (
        str(counted),
        position,
        Key(3) in counted,
        repr({Key(2)}),
        repr(sorted(keys)),
        len(set(keys)),
    )


def keys_of_a_class_made_inside() -> Any:
    asked: list[str] = []

    class Word(str):
        def __hash__(self) -> int:
            asked.append("hash")
            return 7

        def __eq__(self, other: object) -> bool:
            asked.append("eq")
            return str.__eq__(self, other)

    found = {Word("a"): 1, Word("b"): 2}
    return found[Word("b")], len(asked), max([Word("x"), Word("y")])


def errors_of_special_methods() -> Any:
    class Bad:
        def __eq__(self, other: object) -> bool:
            raise LookupError("compared")

        __hash__ = None  # type: ignore[assignment]

    caught = []
    for attempt in (lambda: [1].index(Bad()), lambda: {Bad()}, lambda: Bad() in [2]):
        try:
            attempt()
        except (LookupError, TypeError) as error:
            caught.append((type(error), str(error), error.__context__, error.__cause__))
    return caught


def contexts_of_exceptions() -> Any:
    try:
        try:
            {}["missing"]
        except KeyError:
            [].pop()
    except IndexError as error:
        context = error.__context__
        return type(context), error.__suppress_context__, type(error.__cause__)


def evaluated_code() -> Any:
    space: dict[str, Any] = {}
    exec("def double(n):\n    return n * 2\nvalue = double(21)", space)
    local = 4  # noqa: F841
    return space["value"], eval("local + 1"), eval("x * 2", {"x": 8}), sorted(space)[1:]


def dropped_generators() -> Any:
    log = []

    def counting() -> Any:
        try:
            yield from (1, 2, 3)
        finally:
            log.append("closed")

    for number in counting():
        log.append(number)
        break
    log.append("after")
    return log


def thrown_into_delegates() -> Any:
    def inner() -> Any:
        try:
            yield 1
        except ValueError:
            yield 2
        return 3

    def outer() -> Any:
        result = yield from inner()
        yield result

    generator = outer()
    return next(generator), generator.throw(ValueError), next(generator)


def cached_with_a_key() -> Any:
    calls = []

    @functools.lru_cache(maxsize=2)
    def square(n: int) -> int:
        calls.append(n)
        return n * n

    return (
        [square(n) for n in (2, 2, 3)],
        calls,
        sorted((1, 3), key=functools.cmp_to_key(lambda a, b: b - a)),
    )


PROGRAMS = (
    class_with_a_body,
    metaclasses_and_hooks,
    keys_of_dicts_and_sets,
    keys_of_a_class_made_inside,
    errors_of_special_methods,
    contexts_of_exceptions,
    evaluated_code,
    dropped_generators,
    thrown_into_delegates,
    cached_with_a_key,
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


def test_functions_get_their_code_back() -> None:
    before = Key.__eq__.__code__
    braze.compile(lambda x: (x + 1, Key(1) in {Key(1)}))(torch.ones(2))
    assert Key.__eq__.__code__ is before and Key(4) == Key(4)


def test_exceptions_of_managers_have_tracebacks() -> None:
    """A lock's `__exit__` is C code that is called natively, with the exception's traceback."""
    lock = threading.RLock()
    seen = io.StringIO()

    def locked(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with contextlib.suppress(ZeroDivisionError), lock:
            print("locked", file=seen)
            1 / 0  # noqa: B018
        return y * 2

    assert braze.compile(locked)(torch.ones(2)).tolist() == [4.0, 4.0]
    assert seen.getvalue() == "locked\n"


def test_raising_under_a_manager_from_outside() -> None:
    class Manager:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: Any, value: Any, entries: Any) -> bool:
            lines.append(traceback.extract_tb(entries)[-1].name)
            return True

    lines: list[str] = []
    manager = Manager()

    def managed(x: torch.Tensor) -> torch.Tensor:
        with manager:
            torch.add(x, x).tolist().index(7)
        return x + 1

    assert braze.compile(managed)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert lines == ["managed"]
