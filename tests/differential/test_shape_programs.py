"""Random programs about shapes: one compile serves every size, and results are eager's.

    BRAZE_SHAPE_PROGRAMS=10000 python -m pytest -n auto tests/differential/test_shape_programs.py

A program takes a quarter of a second of processor time, two thirds of it in the C++ compiler; each
test is of twenty programs, so that processes share them evenly. The tally is printed at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal
from tests.differential.rounding import rounded
from tests.differential.shape_programs import ShapeProgram, shape_program
from tests.differential.tally import TALLY
from tests.recorded import recorded

PROGRAMS = int(os.environ.get("BRAZE_SHAPE_PROGRAMS", "60"))
_A_TEST = 20


def faults(program: ShapeProgram, journal: Journal) -> str:
    """What differs from eager; "" where nothing does. It compiles into the journal."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return program(x)

    compiled = braze.compile(run, dynamic=True, options={"suppress_errors": False})
    for x in program.calls:
        expected = run(x)
        found = compiled(x)
        if found.shape != expected.shape or found.stride() != expected.stride():
            return f"{found.shape} {found.stride()}, not {expected.shape} {expected.stride()}"
        if not torch.equal(found, expected) and not rounded(run, x).is_met(found, expected):
            return f"off by {(found - expected).abs().max()} at {tuple(x.shape)}"
    if len(journal.records()) > program.kinds():
        return f"{len(journal.records())} compiles for {program.kinds()} kinds of call"
    refused = [record for record in journal.records() if record.outcome != "graph"]
    return f"refused: {refused}" if refused else "; ".join(journal.fallbacks())


# Programs that compiled once more than there are kinds of call, and what was asked of their sizes.
COMPILED_TWICE = {
    524: "whether the rows of every second column lie one behind the other",
    1470: "whether there are three for [-3:]",
    2286: "whether a product joins dimensions by a copy",
    3291: "which of two dimensions of size one has the larger stride",
    6758: "[-3:] of what a split left: it specialised the size at the second compile",
    7683: "a memory format that another dimension rules out",
    7816: "two of these",
    8985: "the order of dimensions of size one, one of them expanded",
    9519: "whether `reshape` of every second column is a view",
}


@pytest.mark.parametrize("seed", COMPILED_TWICE)
def test_programs_that_compiled_once_more(journal: Journal, seed: int) -> None:
    with torch.no_grad():
        fault = faults(shape_program(seed), journal)
    assert not fault, f"{fault}\n{shape_program(seed)}"


# Programs of which more than the first ones were wrong once, and what it was.
FOUND = {
    247: "a mean of pooled values, added up in one chain of float32",
    2164: "a size that is one in a join whose strides follow from it",
    2348: "padding by nothing keeps the strides of a size that is one",
    2880: "the same join of what a sum left",
    4399: "a size that two quotients make up",
    5037: "flip keeps the strides of a size that is one",
    5512: "the same, and a sum that is zero, of 676 large values",
    9019: "tril of a transposed tensor is row-major",
}


@pytest.mark.parametrize("seed", FOUND)
def test_programs_that_were_wrong(journal: Journal, seed: int) -> None:
    with torch.no_grad():
        fault = faults(shape_program(seed), journal)
    assert not fault, f"{fault}\n{shape_program(seed)}"


@pytest.mark.parametrize("start", range(0, PROGRAMS, _A_TEST))
def test_shape_programs(start: int, record_property: Callable[[str, Any], None]) -> None:
    once_more, wrong = 0, []
    seeds = range(start, min(start + _A_TEST, PROGRAMS))
    with torch.no_grad():
        for seed in seeds:
            program = shape_program(seed)
            with recorded() as journal:
                fault = faults(program, journal)
            if fault:
                wrong.append(f"seed {seed}: {fault}\n{program}")
            once_more += len(journal.records()) > program.kinds()
    record_property(TALLY, [len(seeds), len(wrong), once_more])
    assert not wrong, "\n\n".join(wrong)
