"""Every load and store of the golden programs is proved to be in its buffer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from braze.codegen.cpp import supports
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import Definition, LoopProgram
from braze.lower import lower
from braze.options import Options, config
from braze.schedule import schedule
from tests.golden.bounds import Prover
from tests.golden.test_codegen import PROGRAMS

GRAPHS = sorted((Path(__file__).parent / "lower").glob("*.txt"))


def _lowered(path: Path) -> LoopProgram:
    return lower(parse_graph(path.read_text().partition("---\n")[0]), Options(), supports)


def _check(program: LoopProgram) -> int:
    prover = Prover()
    prover.program(program)
    prover.schedule(schedule(program, config.snapshot()))
    assert not prover.wrong
    return prover.proved


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_lowered_programs_stay_inside(path: Path) -> None:
    assert _check(_lowered(path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_codegen_programs_stay_inside(name: str) -> None:
    assert _check(PROGRAMS[name])


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_stores_beyond_the_end_are_refuted(path: Path) -> None:
    """Planted: each definition stores one element further along its first dimension."""
    program = _lowered(path)
    moved = [
        dataclasses.replace(s, store=(s.store[0] + 1, *s.store[1:]))
        for s in program.statements
        if isinstance(s, Definition) and s.store
    ]
    prover = Prover()
    prover.program(dataclasses.replace(program, statements=tuple(moved)))
    assert prover.wrong or not moved


def test_loads_without_their_guard_are_refuted() -> None:
    """Planted: what a condition keeps in bounds is loaded without it."""
    (path,) = (path for path in GRAPHS if path.stem == "cat_and_pad")
    program = _lowered(path)
    prover = Prover()
    prover.truth = lambda scalar: True  # type: ignore[method-assign]
    prover.program(program)
    assert prover.wrong
