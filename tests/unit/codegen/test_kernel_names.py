"""Kernels are named after their operators, and no name has one built twice."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.ir.kernels.kernel import DeviceFunction, KernelLabel, SourceUnit, labelled
from braze.ir.origin import Origin
from braze.runtime.launch.build_cache import _key
from braze.runtime.launch.cpp_compiler import Toolchain


def _source(caplog: pytest.LogCaptureFixture, function: Callable[..., Any], *args: Any) -> str:
    with caplog.at_level(logging.INFO, logger="braze.output_code"):
        caplog.clear()
        braze.compile(function, fullgraph=True)(*args)
    return "\n".join(r.getMessage() for r in caplog.records if "bz_entry" in r.getMessage())


def test_a_kernel_is_named_and_shows_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    def block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        added = x + y
        return torch.nn.functional.gelu(torch.layer_norm(added, (64,)))

    text = _source(caplog, block, torch.randn(8, 64), torch.randn(8, 64))
    names = re.findall(r"static void (\w+)\(char\* const\* p, .*int threads", text)
    assert names == ["fused_add_layer_norm_gelu_0"]
    first = block.__code__.co_firstlineno
    for offset, code in ((1, "added = x + y"), (2, "return torch.nn.functional.gelu(")):
        assert f"//     {__file__}:{first + offset} in " in text and code in text
    assert not re.search(r"\bk_[0-9a-f]{12}\b", text)


def test_copies_alone_are_named_and_others_leave_them_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.randn(33, 65)
    copied = _source(caplog, lambda x: x.t().contiguous(), x)
    assert re.search(r"static void clone_0\(", copied)
    summed = _source(caplog, lambda x: (x.t().contiguous().double() + 1).sum(0), x)
    (name,) = re.findall(r"static void (\w+)\(char\* const\* p, .*int threads", summed)
    assert name == "fused_add_sum_0"


def _first(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 3 - 1


def _second(x: torch.Tensor) -> torch.Tensor:
    y = torch.clamp_min(x, 0)
    return torch.mul(y, 3) - 1


def test_equal_kernels_of_other_lines_are_built_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="braze.kernel_code")
    x, options = torch.randn(1000), {"cache_dir": str(tmp_path)}
    kept = []
    for function, builds in ((_first, 1), (_second, 0)):
        caplog.clear()
        compiled = braze.compile(function, fullgraph=True, options=options)
        assert torch.equal(compiled(x), function(x))
        built = [r for r in caplog.records if r.name == "braze.kernel_code"]
        assert len([r for r in built if r.getMessage().startswith("kernels ")]) == builds, function
        kept.append(compiled)
    objects = [p for p in tmp_path.rglob("*") if p.is_file() and "kernels" in p.parts]
    assert len(objects) == len({p.name for p in objects})


def test_a_name_is_the_same_in_every_compile(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(1000)
    one = _source(caplog, _first, x)
    braze.reset()
    assert one == _source(caplog, _first, x) and "fused_relu_mul_sub_0" in one


def test_a_comment_holds_nothing_but_the_line(tmp_path: Path) -> None:
    program = tmp_path / "odd.py"
    program.write_text('x = 1  # ends with \\\ny = "??/"  # \x07\n')
    origins = (Origin(str(program), 1), Origin(str(program), 2))
    label = KernelLabel("k_0123456789ab", "odd_0", (("odd_0", origins),))
    unit = SourceUnit("u", "static void k_0123456789ab_range();\nint k_0123456789ab;\n", (label,))
    *comments, one, two = unit.readable().splitlines()
    assert one == "static void odd_0_range();" and two == "int odd_0;"
    assert all(line.startswith("//") and not line.rstrip().endswith("\\") for line in comments)
    assert "??/" not in unit.readable()
    # Where other units call them, functions keep their names, and their parts do not.
    text = labelled(unit.text, (label,), "//", names_entries=False)
    assert "odd_0_range" in text and "int k_0123456789ab;" in text


def test_triton_source_shows_the_lines(tmp_path: Path) -> None:
    text = "@triton.jit\ndef k_0123456789ab(p0):\n    pass\n"
    label = KernelLabel("k_0123456789ab", "fused_add_gelu_0", (("fused_add_gelu_0", ()),))
    shown = labelled(text, (label,), "#", names_entries=False)
    ast.parse(shown)
    assert "# fused_add_gelu_0\ndef k_0123456789ab(p0)" in shown


def test_a_label_is_no_part_of_what_a_build_depends_on() -> None:
    plain = DeviceFunction("k_0", "text", ("*fp32",), (), (0,), 4)
    label = KernelLabel("k_0", "relu_0", (("relu_0", (Origin("a.py", 3),)),))
    named = replace(plain, label=label)
    assert named == plain and hash(named) == hash(plain) and named.facts() == plain.facts()
    assert "k_0" in plain.facts().values() and "label" not in plain.facts()
    unit = SourceUnit("kernels", "int x;", (label,))
    toolchain = Toolchain("c++", (), (), "identity")
    assert _key((unit,), toolchain) == _key((SourceUnit("kernels", "int x;"),), toolchain)
