"""The fuzz itself: programs follow from seeds, differences are seen, failures shrink."""

from __future__ import annotations

import ast
import contextlib
import time
from typing import Any

import pytest
import torch

from tests.fuzz.generator import generate
from tests.fuzz.hosts import with_hosts
from tests.fuzz.isolation import Checker
from tests.fuzz.program import Program, in_float64, on_device, parse
from tests.fuzz.runner import TimedOut, check, time_limit
from tests.fuzz.shrink import shrink
from tests.fuzz.state import first_difference
from tests.fuzz.world import run_world

HEAD = "import torch\nfrom tests.fuzz.prelude import P, T, backward\n"


def test_programs_follow_from_their_seeds() -> None:
    for seed in range(50):
        program = generate(seed)
        assert generate(seed) == program
        ast.parse(program.text)
        for step in program.steps:
            ast.parse(step)


def test_a_program_survives_being_written_down() -> None:
    program = generate(7)
    again = parse(program.render(), seed=7)
    assert (again.steps, again.backend) == (program.steps, program.backend)
    assert ast.unparse(ast.parse(program.text)) == again.text


def test_a_program_on_a_device() -> None:
    """Its tensors are there, its mode is written down, and the next program is where it was."""
    program = on_device(
        Program("import torch\na = torch.ones(3)", ("b = a * 2",)), "meta", "default"
    )
    again = parse(program.render())
    assert (again.backend, again.mode) == ("braze", "default")
    space: dict[str, Any] = {}
    exec(again.text, space)
    assert space["a"].device.type == "meta"
    run_world(on_device(generate(7), "cpu"), None)
    assert torch.get_default_device().type == "cpu" and torch.ones(1).device.type == "cpu"


def test_a_program_with_tensors_on_the_host() -> None:
    program = with_hosts(generate(7), "meta")
    again = with_hosts(generate(7), "meta")
    assert program == again != generate(7)
    assert "H(" in program.text and ".cpu().to('meta')" in program.text + "".join(program.steps)


# Left: one world; right: another, which differs in one thing that the fuzz must see.
DIFFERENT = {
    "value": ("a = T(3)", "a = T(3) + 1"),
    "sign of zero": ("a = 0.0", "a = -0.0"),
    "type": ("a = 1", "a = True"),
    "stride": ("a = T(3, 3)", "a = T(3, 3).t().contiguous().t()"),
    "alias of tensors": ("a = T(3); b = a[:]", "a = T(3); b = T(3)"),
    "alias of lists": ("a = []; b = a", "a = []; b = []"),
    "order of keys": ("a = dict(u=1, v=2)", "a = dict(v=2, u=1)"),
    "gradient": ("a = P(3); a.grad = T(3)", "a = P(3)"),
    "cell": ("def f(c):\n  return lambda: c\na = f(1)", "def f(c):\n  return lambda: c\na = f(2)"),
    "printed": ("print(1)", "print(2)"),
    "random numbers": ("torch.rand(1)", "pass"),
    "ambient state": ("torch.set_grad_enabled(False)", "pass"),
    "exception": ("raise ValueError(1)", "raise ValueError(2)"),
    "line": ("raise ValueError(1)", "\nraise ValueError(1)"),
    "attribute": ("class C: pass\na = C(); a.x = 1", "class C: pass\na = C()"),
    "version": ("a = t\nt.add_(0)", "a = t"),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_worlds_differ(kind: str) -> None:
    worlds = []
    for text in DIFFERENT[kind]:
        body = "".join(f"    {line}\n" for line in text.splitlines())
        entry = f"t = T(3)\ndef entry():\n    global a, b\n{body}    return None\n"
        worlds.append(run_world(Program(HEAD + entry, ("run()",)), None))
    ((left,), (right,)) = worlds
    assert first_difference(left.state, left.state) is None
    assert first_difference(left.state, right.state) is not None


# How compiled makes `t / 3` -> whether float64 says that it is as right as eager.
QUOTIENTS = {
    "a = t * (1 / 3)": True,
    "a = torch.nextafter(t / 3, t)": True,
    "a = t / 3 * (1 + 1e-6)": False,
    "a = t / 3; a[0] = 0": False,
    "a = (t / 3).clone().t().t()[:, :2]": False,
    "a = (t / 3).requires_grad_()": False,
    "a = (t / 3).tolist()": False,
}


@pytest.mark.parametrize("text", QUOTIENTS)
def test_float64_judges_rounding(text: str) -> None:
    programs = [
        Program(f"{HEAD}t = T(2, 3)\ndef entry():\n  global a\n  {body}\n", ("run()",))
        for body in ("a = t / 3", text)
    ]
    (left,), (right,) = (run_world(program, None) for program in programs)
    (exact,) = run_world(in_float64(programs[0]), None)
    assert first_difference(left.state, right.state) is not None
    assert (first_difference(left.state, right.state, exact.state) is None) is QUOTIENTS[text]
    assert torch.get_default_dtype() is torch.float32


def test_a_failing_program_shrinks() -> None:
    text = "def entry(x, d):\n    y = x + 1\n    if y.dim():\n        d['key'] = 2\n    return y\n"
    program = Program(f"{HEAD}\nd = {{}}\nz = 3\n{text}", ("z = 4", "run(T(3), d)", "run(T(2), d)"))

    def writes_to_the_dict(candidate: Program) -> bool:
        return "('int', '2')" in str(run_world(candidate, None)[-1].state)

    small = shrink(program, writes_to_the_dict, seconds=300)
    assert writes_to_the_dict(small)
    assert len(small.steps) == 1
    assert "x + 1" not in small.text and "z = 3" not in small.text


def test_a_program_that_kills_its_process_is_a_difference() -> None:
    deadly = Program(f"{HEAD}\nimport os\ndef entry():\n    os._exit(3)\n", ("run()",))
    checker = Checker()
    found = checker(deadly)
    assert found is not None and found.kind == "crash"
    assert checker(0) is None or checker(1) is None
    checker.close()


def test_a_time_limit_that_a_callback_swallowed_comes_again() -> None:
    with pytest.raises(TimedOut, match=r"after 0\.1 s of computing"), time_limit(0.1):
        with contextlib.suppress(TimedOut):  # as Python does in a weak reference's callback
            while True:
                pass
        deadline = time.process_time() + 30
        while time.process_time() < deadline:
            pass


def test_a_program_without_a_difference() -> None:
    text = "def entry(x):\n    return x.sin() + 1\n"
    assert check(Program(HEAD + text, ("run(T(3))", "run(T(4))", "run(P(3))"))) is None


# The backward in the frame uses up the history that `x` had, which only the one after it needs.
USED_UP = """
p, t = P(3), 2
x = T(3)
def entry():
    global t, x
    t -= p
    x += p[1]
    t.sum().backward()
    return x
"""


def test_a_history_above_a_graph_is_used_up_as_in_eager() -> None:
    steps = ("run()", "run()", "backward(R)")
    assert check(Program(HEAD + USED_UP, steps)) is None
