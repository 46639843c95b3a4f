"""The comparison of changes for GPUs, its parts that run anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from benchmarks import gpu_changes
from benchmarks.gpu_changes import (
    MODELS,
    PRODUCTS,
    Row,
    collect,
    product_calls,
    run_convolutions,
    run_gradients,
    run_model,
    run_products,
    variants,
)
from benchmarks.models_gpu_cases import CASES, GpuCase, infer, train

from braze.options import GRAPH_PASSES


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (False, False)])
def test_all_ways_to_multiply_agree(first: bool, second: bool) -> None:
    calls = product_calls((13, 27, 21), first, second, "cpu")
    wanted = calls["as it is"]()
    for call in calls.values():
        torch.testing.assert_close(call(), wanted, rtol=2e-2, atol=2e-2)


def test_names_are_those_of_cases_and_passes() -> None:
    assert {*MODELS} <= {case.name for case in CASES}
    assert {*MODELS.values()} <= {*GRAPH_PASSES, ""}
    assert [v.name for v in variants("")] == ["eager", "braze", "braze, recorded"]


@pytest.fixture
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(calls: dict[str, Any], device: str, rounds: int) -> dict[str, float]:
        for call in calls.values():
            call()
        return dict.fromkeys(calls, 1.0)

    monkeypatch.setattr(gpu_changes, "timed", timed)


@pytest.mark.usefixtures("_once")
def test_products_and_convolutions() -> None:
    torch.manual_seed(0)
    rows = [*run_products("cpu", 512), *run_convolutions("cpu", 32)]
    assert len(rows) == 4 * len(PRODUCTS) + 3 * 2 * len(gpu_changes.CONVOLUTIONS)
    assert not [str(row) for row in rows if "WRONG" in str(row)]


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 5)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.dropout(self.first(x).relu()))


def build_head() -> Any:
    torch.manual_seed(0)
    make = lambda: {"x": torch.randn(4, 8)}  # noqa: E731
    return Head(), make, lambda out, _: out.square().mean()


@pytest.mark.usefixtures("_once")
@pytest.mark.parametrize(("kind", "call"), [("inference", infer), ("training", train)])
def test_a_model(kind: str, call: Any) -> None:
    rows = list(run_model(GpuCase(f"head {kind}", build_head, call), "align_products", "cpu"))
    assert [row.variant for row in rows] == [v.name for v in variants("align_products")]
    assert not [str(row) for row in rows if "WRONG" in str(row)]


def test_gradients_are_judged_by_float64() -> None:
    before = torch.backends.cudnn.allow_tf32
    rows = list(run_gradients(GpuCase("head training", build_head, train)))
    assert [row.variant for row in rows[:2]] == ["eager", "braze"]
    assert 0 < rows[0].error < 1e-5
    assert not [str(row) for row in rows if "WRONG" in str(row)]
    assert torch.backends.cudnn.allow_tf32 is before


def test_a_wrong_result_is_marked_and_a_failure_costs_one_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing() -> Iterator[Row]:
        yield Row("a", "b", "c", 1.0, error=1.0, most=0.1)
        raise RuntimeError("no memory")

    def right() -> Iterator[Row]:
        yield Row("d", "e", "f", 1.0, error=0.0, most=0.1)

    rows = collect({"first": failing, "second": right}, 60)
    assert ["WRONG" in str(row) for row in rows] == [True, False]
    assert "FAILED first" in capsys.readouterr().out
    assert len(collect({"first": right, "second": right}, -1)) == 1
    assert "WRONG" in str(Row("a", "b", "c", 1.0, error=float("nan"), most=0.1))
