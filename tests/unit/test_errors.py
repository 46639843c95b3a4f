"""Messages say where, what, and the way out."""

from __future__ import annotations

import pickle

import pytest

import braze.exc
from braze import errors
from braze.ir.origin import Origin

PLACE = Origin("model.py", 12, "forward", "torch.relu")


def test_exc_offers_every_exception() -> None:
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert {getattr(braze.exc, name).__name__ for name in braze.exc.__all__} == kinds
    assert all(
        issubclass(getattr(errors, name), errors.BrazeError) or name == "BrazeWarning"
        for name in kinds
    )


def test_unknown_names_come_with_the_nearest() -> None:
    message = errors.unknown_name("backend", "inducter", ["inductor", "eager"])
    assert "Unknown backend 'inducter'." in message
    assert "Did you mean 'inductor'?" in message
    assert "Valid: 'eager', 'inductor'." in message
    assert "Did you mean" not in errors.unknown_name("backend", "zzz", ["inductor"])


def test_graph_break_error() -> None:
    error = errors.GraphBreakError("a branch", hint="use where", origin=PLACE, code="some-code")
    assert str(error) == (
        "model.py:12 torch.relu: graph break under fullgraph=True [some-code]: a branch\n"
        "  Explanation: a branch\n  Hint: use where"
    )
    assert isinstance(error, errors.Unsupported)


def test_internal_errors_name_the_stage_and_how_to_report() -> None:
    error = errors.InternalError("lower", ValueError("no rank"), origin=PLACE)
    assert str(error).startswith(
        "model.py:12 torch.relu: stage 'lower' failed: ValueError: no rank"
    )
    assert "report" in str(error)
    assert "BRAZE_DISABLE=1" in str(error) and "@braze.disable" in str(error)
    assert errors.CaptureError("x").stage == "capture"


def test_backend_and_build_failures() -> None:
    failed = errors.BackendFailed("mine", ValueError("no"), origin=PLACE)
    assert "backend 'mine' raised ValueError: no" in str(failed)
    assert str(failed).endswith(errors.HOW_TO_GO_ON)
    build = errors.BuildFailed(["g++", "-O1"], "error: x\n")
    assert str(build) == "g++ -O1\nerror: x"
    assert str(errors.InternalError("link", build)).count(errors.HOW_TO_REPORT) == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.GraphBreakError("a", hint="b", code="c"),
        errors.InternalError("lower", "x"),
        errors.InvalidOption("x"),
    ],
)
def test_errors_survive_pickling(error: Exception) -> None:
    """Worker processes (a data loader, a test runner) send exceptions home."""
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
