"""What a user sees of a compile: explain, logs, messages, comptime, profiles."""

from __future__ import annotations

import logging

import pytest
import torch

import braze


def toy_example(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    print(end="")
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_explain_counts_as_torch_s() -> None:  # 001-18, 001-19, 003-22, 003-23
    found = braze.explain(toy_example, torch.randn(10), torch.ones(10))
    theirs = torch._dynamo.explain(toy_example)(torch.randn(10), torch.ones(10))
    assert found.graph_count == theirs.graph_count == 3
    assert found.graph_break_count == theirs.graph_break_count == 2
    assert len(found.graphs) == len(theirs.graphs) == len(found.ops_per_graph)
    for mine, other in zip(found.break_reasons, theirs.break_reasons, strict=True):
        assert mine.user_stack[-1].lineno == other.user_stack[-1].lineno
        assert mine.user_stack[-1].filename == other.user_stack[-1].filename
        assert mine.graph_break and other.graph_break
    calls = [sum(n.op.startswith("call") for n in g.graph.nodes) for g in found.graphs]
    torch_calls = [sum(n.op.startswith("call") for n in g.graph.nodes) for g in theirs.graphs]
    assert calls == torch_calls
    assert found.out_guards and "capture" in found.compile_times


def test_messages_of_breaks_and_reasons() -> None:  # D-19, 004-23
    layer = braze.disable(torch.nn.Linear(3, 3), reason="a layer of mine")

    def function(x: torch.Tensor) -> torch.Tensor:
        y = layer(x.sin())
        torch._dynamo.graph_break()
        braze.graph_break(msg="of mine")
        return y + 1

    reasons = [note.reason for note in braze.explain(function, torch.randn(2, 3)).break_reasons]
    assert "a layer of mine" in reasons[0] and "of mine" in reasons[-1]


def test_disable_as_a_block_and_older_names() -> None:  # 002-17, 003-14
    compiled = braze.compile(toy_example)
    a = torch.ones(10)
    with braze.disable():
        torch.testing.assert_close(compiled(a, a), toy_example(a, a))
    assert braze.status()[-1].graphs == 0
    with braze.config.patch(cache_size_limit=1):
        assert braze.config.recompile_limit == 1


def test_levels_of_logs(capsys: pytest.CaptureFixture[str]) -> None:  # 004-19
    braze.set_logs(
        dynamo=logging.DEBUG,
        aot=logging.INFO,
        inductor=logging.ERROR,
        modules={"torch._inductor": logging.ERROR},
    )
    try:
        braze.compile(lambda x: x.sin() + 1)(torch.randn(3))
    finally:
        braze.set_logs()
    said = capsys.readouterr().err
    assert "[trace_source]" in said and "[aot_graphs]" in said and "[output_code]" not in said


def test_comptime_by_torch_s_name(capsys: pytest.CaptureFixture[str]) -> None:  # 004-51, 004-52
    from torch._dynamo.comptime import comptime

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        comptime.print_graph()
        comptime.print_locals()
        return y + 1

    assert braze.explain(function, torch.randn(3)).break_count == 0
    said = capsys.readouterr().out
    assert "torch.sin" in said or "aten.sin" in said or ".sin()" in said


def test_a_triton_op_is_in_the_graph() -> None:  # G-11, D-70
    @torch.library.triton_op("braze_guides::twice", mutates_args={})
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = braze.explain(lambda x: twice(x.sin()) + 1, torch.randn(3))
    assert (found.graph_count, found.break_count) == (1, 0)


def test_listeners_and_recompile_profiles() -> None:  # D-50, 003-15
    seen: list[str] = []
    end = braze.on_event(lambda event: seen.append(event.kind))
    compiled = braze.compile(lambda x: x.cos() * 3, dynamic=False)
    try:
        with braze.profile_recompiles() as profile:
            compiled(torch.randn(3))
            compiled(torch.randn(4))
    finally:
        end()
    assert seen == ["begin", "end"] * 2 and profile.recompiles == 1
    assert "size" in profile.functions[0].causes[0].last


def test_the_code_of_each_kernel_is_logged(capsys: pytest.CaptureFixture[str]) -> None:  # 004-72
    """Built now or found in the cache."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum(0) + x.cos().amax(1)

    for _ in range(2):
        braze.reset()
        braze.set_logs(kernel_code=True)
        try:
            braze.compile(function, fullgraph=True)(torch.randn(40, 40))
        finally:
            braze.set_logs()
        said = capsys.readouterr().err
        kernels = [name for name in said.split() if name.startswith("fused_") or "sin" in name]
        assert kernels and "#pragma omp simd" in said and "test_seeing.py" in said
        assert "x.sin() * 2" in said and said.count("// What generated units begin with") == 0
