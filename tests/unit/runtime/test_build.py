"""Building: the cache on disk, failures, several units."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from braze.cache import cache_of
from braze.codegen.cpp import generate
from braze.errors import BuildFailed
from braze.ir.kernels.kernel import SourceUnit
from braze.ir.kernels.scalars import apply
from braze.options import config
from braze.runtime.launch.build_cache import build, load
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule
from tests.unit.codegen import programs

GOOD = SourceUnit("good", 'extern "C" __attribute__((visibility("default"))) int f() { return 7; }')


def _toolchain() -> Toolchain:
    found = find_toolchain(config.snapshot())
    assert isinstance(found, Toolchain)
    return found


def test_an_object_is_built_once(tmp_path: Path) -> None:
    options = replace(config.snapshot(), cache_dir=tmp_path)
    built = build([GOOD], _toolchain(), options)
    assert build([GOOD], _toolchain(), options) == built
    assert cache_of(options).counts == {"built": 1, "hits": 1}
    assert load(built).f() == 7
    assert [p.name for p in (tmp_path / "kernels").iterdir()] == [f"{built.key}.braze"]


def test_what_the_compiler_says_is_in_the_error(tmp_path: Path) -> None:
    options = replace(config.snapshot(), cache_dir=tmp_path)
    with pytest.raises(BuildFailed, match="nonsense"):
        build([SourceUnit("bad", "nonsense")], _toolchain(), options)
    assert not list((tmp_path / "kernels").iterdir())


def test_many_kernels_are_built_in_several_units() -> None:
    size = 24
    x = programs.buffer("x", (size,))
    statements, outputs = [], []
    for number in range(30):
        over = programs.axes((size * 1000 + number,))
        y = programs.buffer(f"y{number}", (size * 1000 + number,))
        body = apply("add", programs.load(x, 0), float(number))
        statements.append(programs.define(y, over, body))
        outputs.append(y)
    plan = schedule(programs.program([x], statements, outputs), config.snapshot())
    sources = generate(plan, config.snapshot())
    assert [unit.name for unit in sources.units] == ["kernels0", "kernels1", "entries"]
    function = link(plan, sources, config.snapshot())
    results = function([torch.ones(size)])  # type: ignore[operator]
    assert [y[0].item() for y in results] == [n + 1.0 for n in range(30)]


def test_equal_kernels_are_emitted_once() -> None:
    over = programs.axes((40000,))
    x = programs.buffer("x", (40000,))
    middle = [programs.buffer(f"m{k}", (40000,)) for k in range(3)]
    call = torch.ops.aten.relu.default
    from braze.ir.kernels.loops import ExternCall

    statements, source = [], x
    for m in middle:
        body = apply("exp", programs.load(source, over[0][0]))
        statements.append(programs.define(m, over, body))
        source = programs.buffer(f"r{m.name}", (40000,))
        statements.append(ExternCall(call, (programs.view(m),), (), (source,)))
    plan = schedule(programs.program([x], statements, [source]), config.snapshot())
    text = generate(plan, config.snapshot()).units[0].text
    assert text.count("static void k_") == 2 and text.count("_range(char* const* p") == 1
    assert ctypes.sizeof(ctypes.c_long) == 8


def test_kernels_need_no_cpp_library(tmp_path: Path) -> None:
    """gcc links one anyhow, which takes half of a build. With a user's flags it is linked: those
    of sanitizers need it."""
    options = replace(config.snapshot(), cache_dir=tmp_path)
    if "-fvect-cost-model=unlimited" not in _toolchain().flags:
        pytest.skip("the compiler is not gcc")
    x, y = programs.buffer("x", (99_999,)), programs.buffer("y", (99_999,))
    body = apply("tanh", programs.load(x, programs.axes((99_999,))[0][0]))
    plan = schedule(
        programs.program([x], [programs.define(y, programs.axes((99_999,)), body)], [y]), options
    )
    units = generate(plan, options).units
    assert any("#pragma omp" in unit.text for unit in units)
    for flags, is_linked in (((), False), (("-DTOLD",), True)):
        toolchain = find_toolchain(replace(options, cpp_flags=flags))
        assert isinstance(toolchain, Toolchain)
        image = build(units, toolchain, options).image
        assert (b"libstdc++" in image) is is_linked
        assert (b"__gxx_personality" in image) <= is_linked
