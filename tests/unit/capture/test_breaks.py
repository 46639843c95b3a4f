"""Graph breaks: their codes, the state they leave with, and restarts at resumable places."""

from __future__ import annotations

import dis
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.capture import break_codes, capture_frame
from braze.capture.frames.dispatch_table import HANDLERS
from braze.capture.graph_breaks import CATALOGUE
from braze.compat.python.bytecode_versions import bytecode_version
from braze.ir.captured.frame import Break, CapturedCall, CapturedFrame, Refused, Return
from tests.unit.capture.replay import Replay, outcome, request_for

X = torch.ones(3)


def branch(x):
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y


def item(x):
    n = (x * 2).sum().item()
    return x + n


def prints(x):
    y = x * 3
    print("hello")
    return y


def deep(x):
    def inner(a):
        b = a * 2
        if b.sum() > 0:
            b = b + 1
        return b

    y = x + 1
    return inner(y) - 1


def in_generator(x):
    def values():
        yield x.sum().item()

    y = x + 1
    return [v + y for v in values()]


def in_init(x):
    class_ = Asking
    y = x - 1
    return class_(y).value


class Asking:
    def __init__(self, x):
        self.value = x.sum().item()


def in_callback(x):
    y = x + 1
    return sorted([3, 1], key=lambda v: (y * v).sum().item())


def formats(x):
    y = x + 1
    return f"{y.sum()}"


def explicit(x):
    y = x + 1
    input()
    return y


CASES = [
    (branch, "data-dependent-branch"),
    (item, "data-dependent-value"),
    (prints, "input-output"),
    (deep, "data-dependent-branch"),
    (in_generator, "data-dependent-value"),
    (in_init, "data-dependent-value"),
    (in_callback, "data-dependent-value"),
    (formats, "data-dependent-value"),
    (explicit, "input-output"),
]


@pytest.mark.parametrize(("function", "code"), CASES, ids=lambda c: getattr(c, "__name__", c))
def test_code_and_work_before_the_break(function, code):
    captured = outcome(function, X)
    assert isinstance(captured, CapturedFrame), captured
    assert isinstance(captured.exit, Break)
    assert captured.exit.reason.code == code
    assert captured.exit.reason.origin.file == __file__
    assert code in break_codes()
    assert len(captured.graph.nodes) >= 1


def test_frames_of_a_break_in_a_callee():
    request = request_for(deep, (X,))
    captured = capture_frame(request)
    replay = Replay(captured, request)
    exit_ = replay.run()
    outer, inner = exit_.frames
    assert outer.code is deep.__code__ and inner.code.co_name == "inner"
    locals_ = {name: replay.make(recipe) for name, recipe in inner.local_values}
    assert torch.equal(locals_["b"], (X + 1) * 2)
    stack = [replay.make(recipe) for recipe in inner.stack]
    assert len(stack) == 1 and bool(stack[0]) is True


def test_break_inside_an_exception_handler():
    def f(x):
        try:
            raise ValueError
        except ValueError:
            return x.sum().item()

    request = request_for(f, (X,))
    captured = capture_frame(request)
    (state,) = captured.exit.frames
    # Only raising it natively gives the exception its traceback: the frame is left before.
    instruction = next(i for i in dis.get_instructions(f) if i.offset == state.offset)
    assert instruction.opname == "RAISE_VARARGS"


def test_continuation_goes_on_after_the_branch():
    request = request_for(branch, (X,))
    captured = capture_frame(request)
    replay = Replay(captured, request)
    state = replay.run().frames[0]
    stack = tuple(replay.make(recipe) for recipe in state.stack)
    assert stack[0].dim() == 0
    values = {name: replay.make(recipe) for name, recipe in state.local_values}
    import dataclasses

    from braze.compat.python.bytecode import decode

    program = decode(branch.__code__)
    jump = program.index_at[state.offset]
    after = program.instructions[jump + 1].offset
    rest = dataclasses.replace(request, offset=after, stack=(), local_values=values)
    captured = capture_frame(rest)
    assert torch.equal(Replay(captured, rest).run(), branch(X))


def test_must_not_inline():
    def callee(x):
        return x * 2

    def f(x):
        return callee(x + 1)

    request = request_for(f, (X,), must_not_inline=lambda function: function is callee)
    captured = capture_frame(request)
    assert captured.exit.reason.code == "not-inlined"


def test_recursion_ends():
    class Chain:
        def __init__(self, depth):
            self.next = Chain(depth - 1) if depth else None

    def endless(x):
        return endless(x + 1)

    def deep(x):
        Chain(200)
        return x + 1

    for function in (endless, deep):
        captured = outcome(function, X)
        stopped = captured if isinstance(captured, Refused) else captured.exit.reason
        assert stopped.code in ("recursion", "not-inlined")


def test_generator_functions_are_refused():
    def f(x):
        yield x

    captured = outcome(f, X)
    assert isinstance(captured, Refused)
    assert captured.kind == "unsupported"


def test_manager_from_outside_is_left_alone():
    manager = torch.no_grad()

    def f(x):
        with manager:
            y = x * 2
        return y, torch.is_grad_enabled()

    before = dict(vars(manager))
    captured = outcome(f, X)
    assert isinstance(captured, CapturedFrame)
    assert vars(manager) == before


@pytest.mark.parametrize("kind", ["catching", "delegating", "finishing"])
def test_generators_left_in_the_middle(kind):
    """One that is dropped with its frame cleans up there; one that stays must be a real one."""
    log = []

    def catching(items):
        for item in items:
            try:
                yield item
            except IndexError:
                return

    def delegating(items):
        yield from catching(items)

    def finishing(items):
        try:
            yield from catching(items)
        finally:
            log.append("closed")

    def first(x, items):
        for item in items([1, 2]):
            return x + item
        return x

    made = {"catching": catching, "delegating": delegating, "finishing": finishing}[kind]
    captured = outcome(first, X, made)
    assert isinstance(captured.exit, Return)
    written = any(isinstance(effect, CapturedCall) for effect in captured.effects)
    assert written is (kind == "finishing")
    assert log == []

    def keep(x, items):
        generator = items([1, 2])
        return x + next(generator), generator

    kept = outcome(keep, X, finishing)
    assert isinstance(kept.exit, Break) and kept.exit.reason.code == "unbuildable-object"


@pytest.mark.parametrize("code", [code for code, entry in CATALOGUE.items() if entry.example])
def test_examples_of_the_catalogue_meet_what_they_show(code):
    """Each is a program as the page of graph breaks has it."""
    modules = {"braze": braze, "torch": torch, "np": np, "random": random, "time": time}
    modules["threading"] = threading
    space = {**modules, "__name__": "example"}
    exec(CATALOGUE[code].example, space)
    args = [torch.ones(3, 3, requires_grad=code == "backward-hook") for _ in range(2)]
    count = space["f"].__code__.co_argcount
    explained = braze.explain(space["f"], backend="aot_eager")(*args[:count])
    met = [note.code for note in explained.break_reasons]
    assert code in met, met


def test_every_break_has_an_example():
    """But those of an opcode that nobody knows, of a package that need not be there, and of what
    stands around the call."""
    without = {code for code, entry in CATALOGUE.items() if not entry.example}
    assert without == {"unsupported-opcode", "triton-kernel", "transform"}


def test_an_opcode_without_a_handler_breaks(monkeypatch):
    monkeypatch.delitem(HANDLERS, "UNARY_INVERT")
    space = {}
    exec("def f(x):\n    y = x > 0\n    return ~y | y", space)
    explained = braze.explain(space["f"], backend="aot_eager")(X)
    assert [note.code for note in explained.break_reasons] == ["unsupported-opcode"]
    assert "UNARY_INVERT" in explained.break_reasons[0].reason
    assert explained.result.all()


def test_an_unknown_version_of_python_is_named():
    with pytest.raises(RuntimeError, match=r"captures the bytecode of Python .*; this is 3\.99"):
        bytecode_version((3, 99))


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, X)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_one_break(make):
    module = make(torch.nn.Linear(len(X), 2))

    def program(x):
        return module(x * 2).detach() + 1

    explained = braze.explain(program, backend="aot_eager")(X)
    assert [note.code for note in explained.break_reasons] == ["unseen-callable"]
    assert "Linear, a scripted module" in explained.break_reasons[0].reason
    assert torch.equal(explained.result, program(X))


def test_out_that_eager_resizes_is_one_break() -> None:
    """The rest of the frame is compiled: eager warns, and resizes."""

    def program(x: torch.Tensor) -> Any:
        given = torch.tensor(0.0)
        torch.sigmoid(x * 2, out=given)
        values, indices = torch.tensor(0.0), torch.tensor(0)
        torch.sort(given[:, 0], out=(values, indices))
        return given + 1, values * 2, indices, values.stride()

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    x = torch.arange(6.0).reshape(3, 2).flip(0)
    with pytest.warns(UserWarning, match="was resized"):
        expected = program(x)
    compiled = braze.compile(program, backend=backend)
    for _ in range(2):
        with pytest.warns(UserWarning, match="was resized"):
            found = compiled(x)
        torch.testing.assert_close(found, expected)
    assert len(graphs) == 3
