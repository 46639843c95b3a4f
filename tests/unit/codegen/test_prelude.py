"""Units hold the parts of the prelude that they use, and these alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from braze.codegen.cpp import generate
from braze.codegen.cpp.prelude import prelude_for, whole_prelude
from braze.ir.kernels.scalars import apply
from braze.options import config
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.schedule import schedule
from tests.unit.codegen import programs

NAMES = sorted(set(re.findall(r"\bbz_[a-z]\w*", whole_prelude())))


def _unit_of(operator: str) -> str:
    program = programs.pointwise(
        (40, 1000), lambda x, z: apply(operator, x, z), torch.float32, torch.float32
    )
    (unit,) = generate(schedule(program, config.snapshot()), config.snapshot()).units
    return unit.text


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("//")]


@pytest.mark.parametrize("name", NAMES)
def test_parts_hold_what_they_use(name: str) -> None:
    """Every line of the prelude that names a used function's definition is there."""
    found = prelude_for(name)
    used = set(re.findall(r"\bbz_\w+", found))
    definition = re.compile(
        r"^(?:BZ_INLINE|template|__attribute__|typedef).*?\b(bz_\w+)(?:<[^>]*>)?[()]"
    )
    for line in whole_prelude().splitlines():
        defines = definition.match(line)
        if defines and defines[1] in used | {name}:
            assert line in found
    assert set(_lines(found)) <= set(_lines(whole_prelude()))


def test_all_parts_together_are_the_prelude() -> None:
    assert _lines(prelude_for(" ".join(NAMES))) == _lines(whole_prelude())


def test_small_units_leave_parts_out() -> None:
    addition, remainder = _unit_of("add"), _unit_of("mod")
    assert "bz_run(" in addition
    assert not {"bz_exp", "bz_truncdiv", "tanhf", "BZ_VECTOR1"} & set(re.findall(r"\w+", addition))
    assert "bz_mod(float x" in remainder and "BZ_SCALAR2(fmod)" in remainder
    assert "bz_tanh" not in remainder
    assert len(addition) < len(whole_prelude()) / 2


def test_each_part_builds_without_the_others(tmp_path: Path) -> None:
    toolchain = find_toolchain(config.snapshot())
    assert isinstance(toolchain, Toolchain)
    for number, text in enumerate({prelude_for(name) for name in NAMES}):
        (tmp_path / f"{number}.cpp").write_text(text)
    files = [str(file) for file in tmp_path.glob("*.cpp")]
    command = [toolchain.compiler, "-fsyntax-only", *toolchain.flags, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
