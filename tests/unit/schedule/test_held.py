"""A large program goes while it is scheduled: what is made of it comes in its place."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from braze.ir.kernels.loops import LoopProgram, Scalar
from braze.ir.kernels.scalars import apply
from braze.schedule import schedule
from tests.unit.codegen.programs import axes, buffer, define, load, program
from tests.unit.codegen.running import OPTIONS

_SHAPE = (64, 64)
_OPERATIONS = 100


def _many(count: int) -> LoopProgram:
    """Long definitions that have nothing in common."""
    sources = [buffer(f"x{number}", _SHAPE) for number in range(count)]
    results = [buffer(f"y{number}", _SHAPE) for number in range(count)]
    made = []
    for source, result in zip(sources, results):
        (i, _), (j, _) = over = axes(_SHAPE, source.name)
        body: Scalar = load(source, i, j)
        for step in range(_OPERATIONS):
            body = apply("add", apply("mul", body, load(source, i, j)), float(step))
        made.append(define(result, over, body))
    return program(sources, made, results)


def _most(given: list[LoopProgram]) -> int:
    """Bytes of Python's that are alive at most while it is scheduled, above what was before."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    schedule(given.pop(), OPTIONS)
    return tracemalloc.get_traced_memory()[1] - before


def test_nobody_holds_what_is_scheduled() -> None:
    schedule(_many(2), OPTIONS)  # what is made once, and stays
    tracemalloc.start()
    try:
        empty, _ = tracemalloc.get_traced_memory()
        given = [_many(20)]
        size = tracemalloc.get_traced_memory()[0] - empty
        assert _most([given[0]]) > size / 2  # the definitions are rewritten, every one
        assert _most(given) < size / 4
    finally:
        tracemalloc.stop()


def test_a_program_is_left_as_it_was() -> None:
    made = _many(3)
    copy = replace(made)
    first, second = schedule(made, OPTIONS), schedule(made, OPTIONS)
    assert made.statements == copy.statements and len(made.statements) == 3
    assert [step.memory for step in first.steps] == [step.memory for step in second.steps]  # type: ignore[union-attr]
