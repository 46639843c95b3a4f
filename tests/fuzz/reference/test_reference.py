"""A short run of the programs of the references; the long one is `make fuzz`."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.reference.check import check
from tests.fuzz.reference.generator import generate
from tests.fuzz.reference.program import IMPORTS, Program, parse
from tests.fuzz.reference.templates import Idiom, Scope, draw, fill, parse_idioms
from tests.fuzz.reference.vocabulary import IDIOMS, OPERATORS

ROOT = Path(__file__).parents[3]
PROGRAMS = 50
# What a program asks that has another answer when it is compiled: the check must notice.
PLANTED = {
    "result": "return [torch.compiler.is_compiling(), x.sin() + 1]",
    "state": "LOG.append(torch.compiler.is_compiling()); return x.sin()",
    "error": "if not torch.compiler.is_compiling(): raise ValueError\n    return x.sin()",
    "crash": "if torch.compiler.is_compiling(): os._exit(3)\n    return x.sin()",
}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it is forked for each program."""
    command = [sys.executable, "-m", "tests.fuzz.reference", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 150, PROGRAMS))
def test_no_difference(first: int) -> None:
    ran = _run("--programs", str(PROGRAMS), "--seed", str(first))
    if ran.returncode:
        pytest.fail("python -m tests.fuzz.reference --show --seed N shows each:\n" + ran.stdout)


@pytest.mark.slow
def test_most_programs_are_compiled() -> None:
    said = _run("--programs", "60", "--seed", "5000").stdout
    shares = re.findall(r"(\d+) % have a graph of three operators, (\d+) are void", said)
    share, void = map(int, shares[-1])
    assert share >= 80
    assert void <= 3


@pytest.mark.parametrize("kind", sorted(PLANTED))
def test_planted_difference_is_found(kind: str) -> None:
    text = f"{IMPORTS}\ndef step(x):\n    {PLANTED[kind]}\n\nENTRY = step"
    way = "braze.compile(entry, backend='eager')"
    outcome = check(Program(text, ("run(torch.ones(2))",), way))
    assert outcome.found is not None
    assert outcome.found.kind == {"result": "value", "state": "value"}.get(kind, kind)


def test_same_seed_gives_same_program() -> None:
    assert generate(11) == generate(11)
    assert generate(11) != generate(12)


@pytest.mark.parametrize("idiom", [*OPERATORS, *IDIOMS], ids=lambda idiom: idiom.name)
def test_idiom_is_python(idiom: Idiom) -> None:
    rng = random.Random(0)
    for number in range(20):
        piece = draw(idiom, number, rng)
        ast.parse(fill(piece.setup, Scope(["W"]), rng))
        for world in piece.worlds:
            ast.parse(fill(world, Scope(["X0"]), rng))


def test_rendered_program_is_read_again() -> None:
    program = generate(11)
    again = parse(program.render())
    assert (again.text.strip(), again.steps) == (program.text.strip(), program.steps)
    assert again.way == program.way


def test_names_of_idioms_differ() -> None:
    names = [idiom.name for idiom in [*OPERATORS, *IDIOMS]]
    assert len(names) == len(set(names))


def test_choice_is_kept_by_name() -> None:
    (idiom,) = parse_idioms("g", "== one\na = «op:=add|sub»; b = «op»\n--\n--\nc = «op»")
    for number in range(10):
        piece = draw(idiom, number, random.Random(number))
        assert len(set(re.findall("add|sub", f"{piece.setup} {piece.worlds}"))) == 1
        assert len(re.findall("add|sub", f"{piece.setup} {piece.worlds}")) == 3
