"""Texts that show changing numbers: real code that reads one is served with the number at hand."""

from __future__ import annotations

import collections
import functools
import io
import itertools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from tests.recorded import recorded

NAMES = ["a", "b"]


class Named:
    """Its texts show a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __str__(self) -> str:
        return f"n{self.number}"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return f"f{self.number}{spec}"

    def __getitem__(self, index: int) -> str:
        if index > 1:
            raise IndexError
        return f"{self.number}{index}"


class Counted:
    """An iterator that gives one text twice."""

    def __init__(self, number: int) -> None:
        self.number, self.left = number, 2

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return f"{self.number}"


def generated(number: int) -> Iterator[str]:
    yield f"{number}"
    yield from (f"{number}a", "b")


def written_lines(number: int) -> str:
    stream = io.StringIO()
    stream.writelines([f"{number}", "a"])
    stream.writelines(f"{number}{i}" for i in range(2))
    stream.writelines(map(str, [number, 1]))
    return stream.getvalue()


def kept_by_a_closure(number: int) -> str:
    text = ""

    def keep() -> None:
        nonlocal text
        text = f"{number}"

    keep()
    return "-".join([text])


def message_of_an_exception(number: int) -> Any:
    try:
        raise KeyError("-".join([f"{number}"]))
    except KeyError as error:
        return repr(error), error.args


def matched(number: int) -> str:
    match [f"{number}"]:
        case ["2"]:
            return "two"
        case [str(text)]:
            return text
    return ""


JOINS = [
    lambda n: "-".join([f"{n}"]),
    lambda n: "-".join((f"{n}", f"a{n}")),
    lambda n: "-".join(f"{i}{n}" for i in range(2)),
    lambda n: "-".join(map(str, [n, 1])),
    lambda n: "-".join({1: f"{n}"}.values()),
    lambda n: "-".join(iter([f"{n}"])),
    lambda n: "-".join(reversed([f"{n}", "a"])),
    lambda n: "-".join(collections.deque([f"{n}"])),
    lambda n: "-".join(itertools.chain([f"{n}"], ["b"])),
    lambda n: "-".join(generated(n)),
    lambda n: "-".join(Counted(n)),
    lambda n: "-".join(Named(n)),
    lambda n: "-".join(["+".join([f"{n}", "a"]), "b"]),
    lambda n: "-".join(["a", *[f"{n}"] * 2]),
    lambda n: f"{n}".join(["a", "b"]),
    lambda n: f"{n}".join(NAMES),
    lambda n: str.join("-", [f"{n}"]),
    lambda n: functools.partial(str.join, "-")([f"{n}"]),
    lambda n: operator.methodcaller("join", [f"{n}"])("-"),
    lambda n: "x".join(str(size) for size in torch.ones(n, 2).shape),
    kept_by_a_closure,
]
FORMATS = [
    lambda n: f"{5:{n}}",
    lambda n: f"{1.5:.{n}f}",
    lambda n: f"{'a':>{n}}",
    lambda n: f"{n:{n}}",
    lambda n: format("a", f"{n}"),
    lambda n: "%s" % Named(n),  # noqa: UP031
    lambda n: "{:>5}".format(Named(n)),  # noqa: UP032
    lambda n: f"{[Named(n)]}",
    lambda n: f"{n}-%s" % NAMES,
    lambda n: "%(a)s" % {"a": f"{n}"},  # noqa: UP031
    lambda n: "{0[0]}".format([f"{n}"]),  # noqa: UP030
]
QUESTIONS = [
    lambda n: f"{n}" in "1234",
    lambda n: operator.contains("1234", f"{n}"),
    lambda n: "234".startswith((f"{n}", "7")),
    lambda n: "1234".translate({ord("1"): f"{n}"}),
    lambda n: re.sub("a", lambda found: f"{n}", "bab"),
    lambda n: str.upper(f"a{n}"),
    lambda n: list(map("1234".find, [f"{n}"])),
    lambda n: torch.device(f"cuda:{n}").index,
    lambda n: list(itertools.accumulate(["a", f"{n}"])),
    lambda n: list(itertools.accumulate(f"{i}{n}" for i in range(3))),
    lambda n: functools.reduce(lambda a, b: f"{a}{n}{b}", ["a", "b"]),
    lambda n: {f"{n}": f"a{n}"}[str(n)],
    lambda n: (hash(f"{n}") == hash("3"), f"{n}" == "3", int(f"{n}"), "x" * n, list(range(n))),
    written_lines,
    message_of_an_exception,
    matched,
]
CLASSES = [
    lambda n: type(f"{n}") is str,
    lambda n: type(f"{n}").__name__,
    lambda n: f"{n}".__class__ is str,
    lambda n: isinstance(f"{n}", str),
]


def _passed(program: Callable[[Any], Any]) -> tuple[Callable[..., Any], Callable[[int], Any]]:
    return lambda x, n: program(n), lambda value: (torch.ones(2), value)


def _size(program: Callable[[Any], Any]) -> tuple[Callable[..., Any], Callable[[int], Any]]:
    return lambda x: (program(x.shape[0]), x * 2), lambda value: (torch.ones(value),)


@pytest.mark.parametrize("values", [(2, 3, 2, 4, 5), (2, 3, 4, 5)], ids=["there-and-back", "on"])
@pytest.mark.parametrize("given", [_passed, _size], ids=["number", "size"])
@pytest.mark.parametrize("program", [*JOINS, *FORMATS, *QUESTIONS, *CLASSES])
def test_what_reads_a_text_is_served_with_the_number_at_hand(program, given, values):
    called, arguments = given(program)
    compiled = braze.compile(called, backend="aot_eager")
    for value in values:
        found, expected = compiled(*arguments(value)), called(*arguments(value))
        assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda n: "".join([f"{n}", 3]),
        lambda n: "".join(3),
        lambda n: f"{n}".join([3]),
        lambda n: f"{n}" + 3,
        lambda n: f"{n}".missing(),
    ],
)
def test_messages_of_misused_texts_are_eagers(wrong):
    def program(x, n):
        try:
            return wrong(n)
        except (TypeError, AttributeError) as error:
            return str(error)

    compiled = braze.compile(program, backend="aot_eager")
    for n in (2, 3, 4):
        assert compiled(torch.ones(2), n) == program(torch.ones(2), n)


@pytest.mark.parametrize(
    "message",
    [
        lambda x: f"got {x.shape[0]}",
        lambda x: f"got {'x'.join([f'{size}' for size in x.shape])}",
        lambda x: "x".join(str(size) for size in x.shape),
        lambda x: "x".join(map(str, x.shape)),
        lambda x: {"shape": ["-".join([f"{x.shape[0]}"])]},
    ],
)
def test_a_message_that_nobody_reads_specialises_nothing(message):
    def program(x):
        text = message(x)
        if x.shape[1] != 3:
            raise ValueError(text)
        return x * 2

    with recorded() as journal:
        compiled = braze.compile(program, dynamic=True, backend="aot_eager", fullgraph=True)
        for size in (4, 5, 7):
            x = torch.ones(size, 3)
            assert torch.equal(compiled(x), program(x))
    assert len(journal.records()) == 1
