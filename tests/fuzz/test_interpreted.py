"""Random programs on the way of a GPU, without one; the long run is `python -m tests.fuzz
--interpreted`."""

from __future__ import annotations

from functools import partial

import pytest

from tests.fuzz.generator import generate
from tests.fuzz.interpreted import install
from tests.fuzz.isolation import check_programs, described
from tests.fuzz.program import Program, on_device, roughly_in_float64
from tests.fuzz.training_loops import generate_loop
from tests.unit.codegen import triton_running
from tests.unit.codegen.triton_running import HAS_TRITON, ON_DEVICE

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON or ON_DEVICE, reason="needs triton, and no device"),
    pytest.mark.slow,
]


def _program(seed: int) -> Program:
    return on_device(generate(seed), "cpu")


def _training(seed: int) -> Program:
    return on_device(roughly_in_float64(generate_loop(seed)), "cpu")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_no_difference(mode: str) -> None:
    if found := described(check_programs(range(20), _program, partial(install, mode))):
        pytest.fail("python -m tests.fuzz --interpreted --seed N shows each:\n" + found)


def test_no_difference_in_training() -> None:
    prepare = partial(install, "reduce-overhead")
    if found := described(check_programs(range(8), _training, prepare)):
        pytest.fail("python -m tests.fuzz --interpreted --loops --seed N shows each:\n" + found)


def test_kernels_are_interpreted() -> None:
    """Not eager's, nor those of the CPU: one that computes something else is found."""

    def install_wrong() -> None:
        install("default")
        library = triton_running._library

        def wrong() -> object:
            made = library()
            made.sin = made.cos
            return made

        triton_running._library = wrong  # in the child alone

    text = "import torch\ndef entry(x):\n    return x.sin() * 2\n"
    program = on_device(Program(text, ("run(torch.ones(3))",)), "cpu")
    (difference,) = [d for _, d in check_programs([0], lambda _: program, install_wrong)]
    assert difference is not None and difference.kind == "state"
