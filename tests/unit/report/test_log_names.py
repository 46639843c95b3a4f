"""Names that BRAZE_LOGS and `set_logs` take, those of PyTorch's guide among them."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.errors import BrazeWarning, InvalidOption
from braze.report.log_names import ALIASES, GROUPS, resolve_name
from braze.report.logs import set_logs, set_logs_of_environment, shown_logs
from braze.trace import ARTEFACTS

# Of the table of options in the guide.
GUIDE = (
    "+all +dynamo +aot +inductor dynamic graph graph_code graph_sizes trace_source trace_call "
    "trace_bytecode graph_breaks guards recompiles recompiles_verbose bytecode aot_graphs "
    "aot_joint_graph output_code kernel_code schedule perf_hints fusion cudagraphs "
    "post_grad_graphs pre_grad_graphs compiled_autograd"
).split()
NOT_HERE = {"compiled_autograd"}  # backward graphs are compiled as forward ones, not by a mode


@pytest.fixture(autouse=True)
def _quiet_afterwards() -> Iterator[None]:
    logger = logging.getLogger("braze")
    before = [*logger.handlers]
    yield
    set_logs()
    for handler in [handler for handler in logger.handlers if handler not in before]:
        logger.removeHandler(handler)
        handler.close()


def _fft(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w) * 2
    return torch.fft.fft(y).real.sin()


def _said(capsys: pytest.CaptureFixture[str], *names: str, **switches: Any) -> str:
    set_logs(*names, **switches)
    capsys.readouterr()
    compiled = braze.compile(_fft)
    compiled(torch.ones(4, 3), torch.ones(3, 3))
    compiled(torch.ones(4, 3), torch.ones(3, 5))
    set_logs()
    return capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in GUIDE if name not in NOT_HERE])
def test_options_of_the_guide_show_something(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_logs_of_environment(name, "")
    assert shown_logs()


def test_groups_and_aliases_name_logs() -> None:
    for name in ALIASES:
        assert resolve_name(name) in {*ARTEFACTS, *GROUPS}, name
    for least, most in GROUPS.values():
        assert set(least) <= set(most) <= set(ARTEFACTS)


def test_signs_and_levels() -> None:
    set_logs("dynamo")
    assert "recompiles" in shown_logs() and "guards" not in shown_logs()
    set_logs("+dynamo,-guards")
    assert "trace_source" in shown_logs() and "guards" not in shown_logs()
    set_logs(dynamo=logging.DEBUG, aot=logging.INFO, inductor=logging.ERROR)
    assert "guards" in shown_logs() and "aot_graphs" in shown_logs()
    assert "output_code" not in shown_logs()
    set_logs(modules={"torch._inductor.scheduler": logging.DEBUG})
    assert "schedule" in shown_logs() and "guards" not in shown_logs()
    set_logs("braze.rewrite.passes")
    assert shown_logs() == ("aot_graphs",)
    with pytest.raises(InvalidOption, match="level of logging"):
        set_logs(dynamo="loud")


def test_a_wrong_option_warns_and_the_others_are_shown() -> None:
    with pytest.warns(BrazeWarning, match="'fussion' is ignored.*Did you mean 'fusion'"):
        set_logs_of_environment("fussion,guards", "")
    assert shown_logs() == ("guards",)


def test_help_lists_every_log(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs("help")
    said = capsys.readouterr().err
    assert all(name in said for name in (*ARTEFACTS, *GROUPS, *ALIASES))
    assert shown_logs() == ()


def test_lines_go_to_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_logs_of_environment("compile_times", str(tmp_path / "log"))
    braze.compile(_fft)(torch.ones(4, 3), torch.ones(3, 3))
    assert "[compile_times] _fft: " in (tmp_path / "log").read_text()
    assert "[compile_times] _fft: " in capsys.readouterr().err
    with pytest.warns(BrazeWarning, match="BRAZE_LOGS_OUT"):
        set_logs_of_environment("compile_times", str(tmp_path / "absent" / "log"))


def test_ranks_begin_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    where = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    try:
        said = _said(capsys, "guards,output_code")
    finally:
        torch.distributed.destroy_process_group()
    lines = said.splitlines()
    assert len(lines) > 9 and all(line.startswith("[rank0]: ") for line in lines), said


def test_source_lines_and_calls_are_traced(capsys: pytest.CaptureFixture[str]) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = inner(x)
        return y * 2

    set_logs("trace_source,trace_call")
    braze.compile(outer)(torch.ones(3))
    said = capsys.readouterr().err
    line = outer.__code__.co_firstlineno + 1
    assert f"TRACE starts_line {__file__}:{line} in {outer.__qualname__}\n    y = inner(x)" in said
    call = f"{__file__}:{inner.__code__.co_firstlineno} {inner.__qualname__}, depth 1"
    assert f"TRACE inlined call {call}" in said
    assert said.index("inlined call") < said.index("return x + 1") < said.index("return y * 2")


def test_instructions_are_traced_with_the_stack(capsys: pytest.CaptureFixture[str]) -> None:
    said = _said(capsys, "trace_bytecode")
    traced = re.findall(r"TRACE (\w+)", said)
    assert "BINARY_OP" in traced and "RETURN_VALUE" in traced
    assert re.search(r"TRACE BINARY_OP \d+ \[Tensor, 2\]", said)


def test_graph_code_has_types_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    said = _said(capsys, "graph_code,graph_sizes")
    place = f"{__file__}:{_fft.__code__.co_firstlineno + 1} in _fft"
    assert (
        f"""class GraphModule(torch.nn.Module):
    def forward(self, l_x_: "f32[4, 3][3, 1]cpu", l_w_: "f32[3, 3][3, 1]cpu"):
        # File: {place}, code: y = (x @ w) * 2
        matmul: "f32[4, 3][3, 1]cpu" = l_x_ @ l_w_
        mul: "f32[4, 3][3, 1]cpu" = matmul * 2
"""
        in said
    )
    assert "[graph_sizes]\nl_x_: (4, 3)\nl_w_: (3, 3)\nmatmul: (4, 3)\n" in said
    assert 'l_w_: "f32[3, s0][s0, 1]cpu"' in said  # torch-level calls, of symbolic sizes too


def test_all_failing_guards_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor, scale: float, name: str) -> torch.Tensor:
        return x * (scale if name == "a" else 1)

    set_logs("recompiles_verbose")
    compiled = braze.compile(f)
    compiled(torch.ones(3), 2.0, "a")
    compiled(torch.ones(4, 4), 2.0, "b")
    said = capsys.readouterr().err
    assert "Recompiling function" in said and "L['x']" in said and "L['name']" in said


def test_perf_hints_name_what_could_be_fused(capsys: pytest.CaptureFixture[str]) -> None:
    said = _said(capsys, "perf_hints")
    line = _fft.__code__.co_firstlineno + 2
    assert re.search(rf"{__file__}:{line} \S+ \[perf_hints\] aten\._fft_r2c\.default runs by", said)
    assert "aten.mm" not in said  # a library's, as it is to be


def test_compile_times_by_function_and_stage() -> None:
    def once(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3

    braze.reset()
    compiled = braze.compile(once)
    compiled(torch.ones(3))
    compiled(torch.ones(5))
    rows = [line for line in braze.compile_times().splitlines() if once.__qualname__ in line]
    assert rows[0].split()[-3] == "capture"
    assert re.search(r"total +\d+\.\d{4}, \d+\.\d{4}$", rows[-1])
    together = braze.compile_times(repr="csv", aggregate=True)
    assert together.startswith("Function,Stage,Runtimes (s)\n")
    assert re.search(r",total,\d+\.\d{4}\n$", together)
    with pytest.raises(InvalidOption, match="Unknown repr"):
        braze.compile_times(repr="html")
