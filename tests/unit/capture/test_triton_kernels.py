"""Triton kernels that the program launches: nodes of one graph, beside the program run eagerly."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.compat.triton import launch_operator
from braze.compat.triton.kernels import describe, match_choice, next_power_of_two
from braze.compat.triton.written_parameters import written_parameters
from braze.report.explain import summarise
from tests.recorded import recorded
from tests.unit.codegen.triton_running import MARKS, ON_DEVICE

pytestmark = MARKS
DEVICE = "cuda" if ON_DEVICE else "cpu"


@pytest.fixture(scope="module")
def programs(triton_interpreted: None) -> Iterator[ModuleType]:
    path = Path(__file__).with_name("triton_programs.py")
    spec = importlib.util.spec_from_file_location("braze_triton_programs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def _run(function: Any, arguments: list[Tensor]) -> list[Tensor]:
    """Results, what the arguments hold then, and gradients."""
    given = [x.detach().clone().requires_grad_(x.requires_grad) for x in arguments]
    results = function(*given)
    made = list(results) if isinstance(results, tuple) else [results]
    sources = [x for x in given if x.requires_grad]
    gradients: list[Tensor] = []
    if sources:
        total = sum((x * x).sum() for x in made)
        gradients = list(torch.autograd.grad(total, sources))  # type: ignore[arg-type]
    return [*made, *given, *gradients]


def _check(
    function: Any, *sizes: int, grads: bool = False, launches: int = 1, graphs: int = 1
) -> None:
    """One graph a capture, without a break, with the launches as nodes; eager's results."""
    with recorded() as journal:
        compiled = braze.compile(function, dynamic=not grads)
        for size in sizes:
            arguments = [torch.rand(size, device=DEVICE).requires_grad_(grads) for _ in range(2)]
            for mine, right in zip(
                _run(compiled, arguments), _run(function, arguments), strict=True
            ):
                torch.testing.assert_close(mine, right)
                assert mine.stride() == right.stride()
                assert mine.requires_grad == right.requires_grad
                assert grads or mine._version == right._version
    report = summarise("", journal, None)
    assert report.break_count == 0 and not report.fallbacks, (
        report.break_reasons,
        report.fallbacks,
    )
    assert report.graph_count == graphs
    for operators in report.ops_per_graph:
        assert sum(n for op, n in operators.items() if "_kernel_" in op) == launches


@pytest.mark.parametrize(
    "name", ["add", "add_by_tuple", "add_autotuned", "add_by_heuristics", "call_operator"]
)
def test_one_graph_for_sizes(programs: ModuleType, name: str) -> None:
    _check(getattr(programs, name), 17, 18, 31)


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("scale_in_order", 2),
        ("scale_views_of_inputs", 2),
        ("add_in_one_memory", 3),
        ("softmax_of_columns", 1),
    ],
)
def test_writes_are_in_order(programs: ModuleType, name: str, launches: int) -> None:
    _check(getattr(programs, name), 5, 9, launches=launches)


def test_an_operator_that_writes(programs: ModuleType) -> None:
    _check(programs.call_writing_operator, 5, 9, launches=0)


def test_gradients_by_kernels(programs: ModuleType) -> None:
    _check(programs.train, 7, grads=True)
    _check(programs.call_operator, 7, grads=True)


def test_no_gradient_through_a_launch(programs: ModuleType) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        doubled = x * 2
        return programs.add(doubled, y) + doubled + y  # type: ignore[no-any-return]

    _check(function, 5, grads=True)


@pytest.mark.parametrize(
    "name", ["add", "add_by_heuristics", "scale_in_order", "softmax_of_columns", "call_operator"]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_run_on_memory_alone(
    programs: ModuleType, name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiled program launches, while it is compiled and then, is what eager launches."""
    start, given = launch_operator._start, []

    def counted(launch: Any, tensor: Any, *rest: Any) -> None:
        def noted(argument: Any) -> Tensor:
            given.append(tensor(argument))
            return given[-1]  # type: ignore[no-any-return]

        start(launch, noted, *rest)

    monkeypatch.setattr(launch_operator, "_start", counted)
    compiled = braze.compile(getattr(programs, name), dynamic=dynamic)
    x, y = torch.rand(6, device=DEVICE), torch.rand(6, device=DEVICE)
    counts = []
    for _ in range(2):
        given.clear()
        compiled(x.clone(), y.clone())
        counts.append(len(given))
        assert all(t.device.type == DEVICE and t.data_ptr() for t in given)
    assert counts[0] == counts[1] > 0


def test_powers_of_two_share_a_graph(programs: ModuleType) -> None:
    def function(x: Tensor) -> Tensor:
        return programs.softmax(x.sin()[:, 1:]) * 2  # type: ignore[no-any-return]

    with recorded() as journal:
        compiled = braze.compile(function, dynamic=True)
        for columns in (10, 11, 14, 17):
            x = torch.rand(3, columns, device=DEVICE)
            torch.testing.assert_close(compiled(x), function(x))
    report = summarise("", journal, None)
    assert report.graph_count == 1 and report.break_count == 0


def test_another_kernel_is_seen(programs: ModuleType) -> None:
    def function(x: Tensor, y: Tensor, kernel: Any) -> Tensor:
        out = torch.empty_like(x)
        kernel[(1,)](x, y, out, x.numel(), BLOCK=16)
        return out

    compiled = braze.compile(function)
    x, y = torch.rand(2, 9, device=DEVICE)
    for kernel in (programs.add_kernel, programs.subtract_kernel, programs.add_kernel):
        assert torch.equal(compiled(x, y, kernel), function(x, y, kernel))


def test_constants_are_guarded(programs: ModuleType) -> None:
    def function(x: Tensor, y: Tensor, block: int, by: float, n: int) -> Tensor:
        out = x + y
        programs.scale_kernel[(1,)](out, n, by, BLOCK=block)
        return out

    compiled = braze.compile(function)
    x, y = torch.rand(2, 9, device=DEVICE)
    for given in ((8, 2.0, 3), (4, 2.0, 3), (4, 3.0, 3), (4, 3.0, 2), (16, 5.0, 9)):
        assert torch.equal(compiled(x, y, *given), function(x, y, *given))


def test_backends_get_the_launch(programs: ModuleType) -> None:
    targets = []

    def backend(module: Any, inputs: Any) -> Any:
        targets.extend(getattr(node.target, "__name__", "") for node in module.graph.nodes)
        return module

    x, y = torch.rand(2, 9, device=DEVICE)
    compiled = braze.compile(programs.scale_in_order, backend=backend)
    for mine, right in zip(compiled(x, y), programs.scale_in_order(x, y), strict=True):
        assert torch.equal(mine, right)
    assert targets.count("launch_scale_kernel") == 2


@pytest.mark.parametrize(
    "launch",
    [
        lambda kernel, x: kernel[(1,)](x),
        lambda kernel, x: kernel[(1.5,)](x, x.numel(), 2.0, BLOCK=16),
        lambda kernel, x: kernel[(1,)](x, x.numel(), 2.0, 16, 16),
        lambda kernel, x: kernel[None](x, x.numel(), 2.0, BLOCK=16),
    ],
)
def test_refused_launches_raise_as_eager(programs: ModuleType, launch: Any) -> None:
    def function(x: Tensor) -> Tensor:
        launch(programs.scale_kernel, x)
        return x

    def problem(function: Any) -> tuple[type, str]:
        with pytest.raises(Exception) as raised:
            function(torch.rand(9, device=DEVICE))
        return raised.type, str(raised.value)

    assert problem(braze.compile(function)) == problem(function)


def test_a_break_runs_the_launch_whole(programs: ModuleType) -> None:
    def function(x: Tensor) -> Tensor:
        out = x + 1
        bits = out.view(torch.int32)
        programs.add_kernel[(1,)](bits, bits, out, out.numel(), 16)  # one memory, two dtypes
        return out * 2

    x = torch.rand(4, device=DEVICE)
    with recorded() as journal:
        torch.testing.assert_close(braze.compile(function)(x), function(x))
    report = summarise("", journal, None)
    assert [reason.code for reason in report.break_reasons] == ["triton-kernel"]
    assert not report.fallbacks


def test_what_kernels_write_to(programs: ModuleType) -> None:
    expected = {
        "add_kernel": {"out_ptr"},
        "add_tuned": {"out_ptr"},
        "scale_kernel": {"x_ptr"},
        "softmax_kernel": {"out_ptr"},
        "by_blocks": {"out_ptr"},
        "by_descriptors": {"out_ptr"},
        "by_atomics": {"out_ptr"},
        "by_turns": {"x_ptr", "out_ptr"},
        "by_another": {"x_ptr", "out_ptr"},
    }
    for name, written in expected.items():
        kernel = describe(getattr(programs, name))
        assert kernel is not None
        found = written_parameters(kernel)
        assert found is not None
        assert {parameter for parameter in found if parameter.endswith("_ptr")} == written, name


def test_kernels_without_source_may_write_to_all(programs: ModuleType) -> None:
    import triton

    names: dict[str, Any] = {"tl": triton.language}
    exec("def kernel(x_ptr, out_ptr):\n    tl.store(out_ptr, tl.load(x_ptr))", names)
    kernel = describe(triton.jit(names["kernel"])) if not ON_DEVICE else None
    assert kernel is None or written_parameters(kernel) is None


def test_powers_of_two() -> None:
    assert [next_power_of_two(n) for n in (-3, 0, 1, 2, 3, 4, 5, 64, 65)] == [
        *(0, 0, 1, 2, 4, 4, 8, 64, 128)
    ]


def test_choices_are_told_by_what_they_set() -> None:
    choices = [{"BLOCK": 4, "WIDE": True}, {"BLOCK": 16}]
    assert match_choice(choices, {"BLOCK": 16, "n": 3}) == 1
    assert match_choice(choices, {"BLOCK": 4, "WIDE": True}) == 0
    assert match_choice(choices, {"BLOCK": 8, "WIDE": True}) == -1
