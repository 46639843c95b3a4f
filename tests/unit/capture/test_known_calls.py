"""What a capture remembers of callables, attributes and delegating generators: the second time is
as the first was."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import braze
from braze.ir.captured.frame import Break
from tests.unit.capture.replay import agree, captured_once, outcome, same

X = torch.arange(6.0).reshape(2, 3)


def scaled(x, factor=2.0, *, shift=1.0):
    return x * factor + shift


def defaults_and_keywords(x):
    return scaled(x), scaled(x, 3.0), scaled(x, shift=5.0), scaled(x, 4.0, shift=6.0), scaled(x)


def too_many_arguments(x):
    first = scaled(x)
    try:
        scaled(x, 1.0, 2.0)
    except TypeError as error:
        return first, str(error)


def leaf_and_interpreted(x):
    pooled = torch.nn.functional.relu(x)
    return pooled, torch.nn.functional.relu(x - 3, inplace=False), torch.nn.functional.relu(pooled)


def closures(x):
    def add(y):
        return x + y

    def make(n):
        return lambda y: add(y) * n

    return [make(n)(x) for n in range(3)], add(x), add(x)


def tree(depth):
    if depth:
        yield from tree(depth - 1)
        got = yield depth
        if got is not None:
            yield ("got", got)
        yield from tree(depth - 1)
    return depth


def delegation(x):
    return [x * n for n in tree(4)]


def sends_through(x):
    generator = outer_sender()
    found = [next(generator), generator.send(x)]
    try:
        generator.send(x + 1)
    except StopIteration as end:
        found.append(end.value)
    return found


def outer_sender():
    value = yield from inner_sender()
    return ("outer", value)


def inner_sender():
    first = yield "ready"
    second = yield first * 2
    return second * 3


def failing(where):
    yield 1
    if where == "inner":
        raise KeyError("inner")
    yield 2


def guarded(where):
    try:
        yield from failing(where)
    except KeyError as error:
        yield ("caught", str(error), error.__context__ is None)
    finally:
        yield "ended"


def raises_through(x):
    return [x, *guarded("inner")], [x, *guarded("nowhere")]


class Ending(BaseException):
    pass


def ends(log):
    try:
        yield 1
        raise Ending
    finally:
        log.append("inner")


def ends_outside(log):
    try:
        yield from ends(log)
    finally:
        log.append("outer")


def base_exception_through(x):
    log = []
    try:
        for _ in ends_outside(log):
            x = x + 1
    except Ending as end:
        log.append(type(end).__name__)
    return x, log


class SameText:
    def __init__(self, text, tensor):
        self.text, self.tensor = text, tensor

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return isinstance(other, SameText) and self.text == other.text


class Plain:
    pass


def looked_up(x):
    seen = {SameText("a", x)}
    plain = Plain()
    holders = {plain}
    return (
        SameText("a", x) in seen,
        SameText("b", x) in seen,
        plain in holders,
        Plain() in holders,
        SameText("b", x) in holders,
        len(holders | seen),
        x + 1,
    )


@pytest.mark.parametrize(
    "program",
    [
        defaults_and_keywords,
        too_many_arguments,
        leaf_and_interpreted,
        closures,
        delegation,
        sends_through,
        raises_through,
        base_exception_through,
        looked_up,
    ],
    ids=lambda program: program.__name__,
)
def test_program(program):
    agree(lambda: (program, (X.clone(),)))


def test_a_mark_that_the_program_puts_counts_from_then_on():
    def kept(y):
        return y.sin()

    def program(x):
        first = kept(x)
        braze.allow_in_graph(kept)
        return kept(first)

    captured, result = captured_once(program, X)
    assert same(result, X.sin().sin())
    assert [call.target for call in captured.calls][-1] is kept


def test_a_module_with_hooks_behind_one_without():
    plain, hooked = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, args, result: result * 10)
    last = torch.nn.Linear(3, 3)

    def program(x):
        return last(hooked(plain(x)))

    with torch.no_grad():
        _, result = captured_once(program, X)
        assert torch.allclose(result, program(X))


def test_written_attributes_are_read_back():
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 1
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            first = self.seen, hasattr(self, "late")
            self.seen = self.seen + 1
            self.late = 5
            self.linear = torch.nn.Identity()
            return self.linear(x) * self.seen, first, self.late, self.seen

    module, eager = Counts(), Counts()
    compiled = braze.compile(module, backend="eager")
    for _ in range(2):
        made, expected = compiled(X), eager(X)
        assert torch.equal(made[0], expected[0])
        assert made[1:] == expected[1:]
    assert type(module.linear) is torch.nn.Identity


def test_break_in_a_delegated_generator():
    def numbers():
        yield from (1, 2)

    def inner():
        yield from numbers()
        braze.graph_break()
        yield 3

    def program(x):
        return [x * n for n in inner()]

    assert isinstance(outcome(program, X).exit, Break)
    compiled = braze.compile(program, backend="eager")
    for made, expected in zip(compiled(X), program(X), strict=True):
        assert torch.equal(made, expected)


def test_python_calls_of_a_capture():
    """What capture costs, as what does not depend on the machine: calls of Python functions."""
    layers = [torch.nn.Conv2d(3, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU()]
    model = torch.nn.Sequential(*[torch.nn.Sequential(*layers) for _ in range(6)]).eval()
    image = torch.randn(1, 3, 32, 32)
    captured_once(model.forward.__func__, model, image)
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        captured = outcome(model.forward.__func__, model, image)
    finally:
        sys.setprofile(before)
    assert calls < 427 * len(captured.graph.nodes)
