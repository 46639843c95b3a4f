"""Programs that CPython's tests found wrong: what leaves a frame, type parameters, generators."""

from __future__ import annotations

import bisect
import collections
import copy
import heapq
import sys
import weakref
from typing import Any

import pytest
import torch

import braze
from tests.unit.capture.test_semantics import raised_by

GENERIC = """
from types import *
def first[T](values: list[T], *, at: int = 0) -> T:
    return values[at]
class Box[T: (int, str), *Ts]:
    def __init__(self, value: T) -> None:
        self.value = value
type Pairs[K] = dict[K, list[K]]
found = [first([3, 4], at=1), Box(5).value, Box.__type_params__, first.__type_params__,
         Pairs.__name__, Pairs.__type_params__, SimpleNamespace(a=1).a, "T" in vars()]
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are new in Python 3.12")
def test_type_parameters() -> None:
    def around(x: torch.Tensor) -> Any:
        space: dict[str, Any] = {"__name__": "generic"}
        y = x + 1
        exec(GENERIC, space)
        return y * 2, str(space["found"])

    report = braze.explain(around)(torch.ones(2))
    assert not report.break_reasons and report.graph_count == 1
    assert report.result[1] == around(torch.ones(2))[1]


def test_names_that_exec_imports() -> None:
    def around(x: torch.Tensor) -> Any:
        space: dict[str, Any] = {}
        exec("from types import *", space)
        return x + 1, "SimpleNamespace" in space, "_calculate_meta" in space

    report = braze.explain(around)(torch.ones(2))
    assert not report.break_reasons
    assert report.result[1:] == (True, False)


def test_exceptions_leave_with_what_c_code_keeps() -> None:
    def make(x: torch.Tensor) -> Any:
        syntax = SyntaxError("bad", ("file.py", 3, 4, "text"))
        return x + 1, syntax, StopIteration(5), OSError(2, "missing", "name"), SystemExit(3)

    _, syntax, stop, system, leave = braze.compile(make)(torch.ones(1))
    assert (syntax.msg, syntax.lineno, stop.value, leave.code) == ("bad", 3, 5, 3)
    assert (type(system), system.errno, system.filename) == (FileNotFoundError, 2, "name")


def test_heaps_from_outside_are_written_to() -> None:
    def push(x: torch.Tensor, heap: list[int], sorted_list: list[int]) -> Any:
        heapq.heappush(heap, 1)
        heapq.heappush(heap, 4)
        bisect.insort(sorted_list, 2)
        return x + 1, heapq.heappop(heap), heap[0]

    heap, sorted_list = [5, 7], [1, 3]
    assert braze.compile(push)(torch.ones(1), heap, sorted_list)[1:] == (1, 4)
    assert (heap, sorted_list) == ([4, 7, 5], [1, 2, 3])


def test_weak_proxies_of_what_the_frame_made() -> None:
    class Link:
        __slots__ = ("__weakref__", "key", "next")

    def follow(x: torch.Tensor) -> Any:
        first, second = Link(), Link()
        first.key, second.key = 1, 2
        first.next, second.next = second, weakref.proxy(first)
        second.next.key = 10
        found = [first.next.next.key, first.key, hasattr(second.next, "missing")]
        back = second.next
        del first
        second.next = None
        return x + 1, found, raised_by(lambda: back.key)

    report = braze.explain(follow)(torch.ones(1))
    assert not report.break_reasons
    assert report.result[1:] == follow(torch.ones(1))[1:]


def test_generators_hand_on_what_delegates_lack() -> None:
    def around(x: torch.Tensor) -> Any:
        def delegate(iterable: Any) -> Any:
            yield from iterable

        def exits() -> Any:
            try:
                yield 1
            except GeneratorExit as error:
                raise ValueError("left") from error

        counting = delegate(range(3))
        next(counting)
        waiting = delegate(exits())
        next(waiting)
        fresh = delegate([])
        found = [
            raised_by(counting.send, 1),
            raised_by(waiting.throw, GeneratorExit("now")),
        ]
        try:
            fresh.throw(GeneratorExit("at once"))
        except GeneratorExit as error:
            found.append(str(error))
        return x + 1, found, type("Made", (), {}).__module__

    report = braze.explain(around)(torch.ones(1))
    assert not report.break_reasons
    assert report.result[1:] == around(torch.ones(1))[1:]


def test_base_exceptions_of_generators_are_the_programs() -> None:
    def around(x: torch.Tensor) -> Any:
        def closed() -> Any:
            try:
                yield
            except GeneratorExit:
                raise BaseException("closed") from None

        found = []
        for act in (lambda g: g.close(), lambda g: g.throw(KeyboardInterrupt("thrown"))):
            generator = closed()
            next(generator)
            try:
                act(generator)
            except BaseException as error:
                found.append(repr(error))
        return x + 1, found

    report = braze.explain(around)(torch.ones(1))
    assert not report.break_reasons
    assert report.result[1:] == around(torch.ones(1))[1:]


def test_copies_of_dicts_keep_attributes() -> None:
    def copy_it(x: torch.Tensor, entries: Any) -> Any:
        made = copy.copy(entries)
        return x + 1, made, made.extra

    entries = collections.OrderedDict(a=1)
    entries.extra = ["kept"]  # type: ignore[attr-defined]
    assert braze.compile(copy_it)(torch.ones(1), entries)[1:] == (entries, ["kept"])


def test_tracebacks_are_left_to_python() -> None:
    def lines(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            raise ValueError
        except ValueError as error:
            has_traceback = error.__traceback__ is not None
        return y * 2, has_traceback

    report = braze.explain(lines)(torch.ones(1))
    assert [note.code for note in report.break_reasons] == ["unsupported-attribute"]
    assert report.result[1]
