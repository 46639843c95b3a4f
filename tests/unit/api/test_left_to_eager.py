"""Each way in which a compiled callable runs the program's own code shows in five places: it is
counted, logged, explained, warned of where it is for good, and an error under `fullgraph=True`."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.compile_records import CallableStatus
from braze.errors import BrazeWarning
from braze.trace import EAGER_CODES
from tests.unit.api.situations_left_to_eager import SITUATIONS, Situation, X, add, asking


def compiled(situation: Situation, fullgraph: bool = False) -> Any:
    options = dict(situation.options)
    dynamic = options.pop("dynamic", None)
    made = braze.compile(
        situation.make(),
        backend=situation.backend,
        fullgraph=fullgraph,
        dynamic=dynamic,
        options=options,
    )
    return situation.after(made)


def call(situation: Situation, made: Any) -> None:
    expected = situation.raises
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        result = situation.call(made)
        if hasattr(result, "__next__"):
            list(result)


def rows_of(*codes: str) -> list[CallableStatus]:
    """The rows that left calls to eager for these reasons."""
    return [row for row in braze.status() if {why.code for why in row.left_to_eager} & {*codes}]


@contextlib.contextmanager
def log_lines() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("braze.eager_calls")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


_SOURCE = str(Path(braze.__file__).parent)


def warned(seen: list[warnings.WarningMessage], code: str) -> list[str]:
    """The warnings of Braze with this reason."""
    texts = [str(w.message) for w in seen if issubclass(w.category, BrazeWarning)]
    return [text for text in texts if f"[{code}]" in text]


each = pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def test_every_reason_has_a_situation() -> None:
    assert set(EAGER_CODES) <= {situation.code for situation in SITUATIONS}


@each
def test_counted_logged_and_warned(situation: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    situation.plant(monkeypatch)
    made = compiled(situation)
    with log_lines() as lines, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call(situation, made)
    (row,) = rows_of(situation.code)
    count = sum(n for why, n in row.left_to_eager.items() if why.code == situation.code)
    assert count >= 1 and (row.rests_left if situation.is_rest else row.calls_left) >= 1
    assert row.calls_left + row.rests_left == sum(row.left_to_eager.values())
    assert sum(f"[{situation.code}]" in line for line in lines) == count
    assert bool(warned(seen, situation.code)) == situation.warns
    assert not any(w.filename.startswith(_SOURCE) for w in seen)  # but a line of the user's
    shown = str(braze.status())
    assert f"[{situation.code}]" in shown and row.name in shown


@each
def test_warned_once(situation: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    situation.plant(monkeypatch)
    made = compiled(situation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(situation, made)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call(situation, made)
    assert not warned(seen, situation.code)


@each
def test_explained(situation: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    if situation.code in ("run-only", "recompile-limit", "refusal-limit", "recomputed"):
        return  # of one call, which compiles: those need several, or none, or a later backward
    situation.plant(monkeypatch)
    options = {name: value for name, value in situation.options.items() if name != "dynamic"}
    explain = braze.explain(situation.make(), backend=situation.backend, options=options)
    if situation.raises:
        with pytest.raises(situation.raises):
            situation.call(explain)
        return
    reports = []

    def explained(*args: Any, **kwargs: Any) -> Any:
        reports.append(explain(*args, **kwargs))
        return reports[-1].result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(situation, explained)
    assert situation.code in {why.code for why in reports[0].left_to_eager}
    assert f"[{situation.code}]" in str(reports[0])


@each
def test_forbidden_under_fullgraph(situation: Situation, monkeypatch: pytest.MonkeyPatch) -> None:
    situation.plant(monkeypatch)
    made = compiled(situation, fullgraph=True)
    for _ in range(2):  # the second call as the first
        if situation.forbidden is None:
            situation.call(made)
            continue
        with pytest.raises(situation.forbidden):
            situation.call(made)


def test_results_stay_under_error_filter() -> None:
    made = braze.compile(asking)
    with warnings.catch_warnings(), log_lines() as lines:
        warnings.simplefilter("error")
        assert torch.equal(made(X), X + 1)
    assert sum("raised-in-capture-only" in line for line in lines) == 2  # one is the warning


def test_errors_that_are_asked_for() -> None:
    made = braze.compile(asking)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BrazeWarning)
        with pytest.raises(BrazeWarning, match="raised-in-capture-only"):
            made(X)


def test_modes_leave_later_calls_compiled() -> None:
    made = braze.compile(add)
    with torch.overrides.BaseTorchFunctionMode():
        for _ in range(20):
            made(X)
    made(X)
    row = braze.status()["add"]
    assert (row.calls, row.calls_left, row.graphs) == (21, 20, 1)


def test_marked_regions_are_compiled() -> None:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor, *, scale: int) -> torch.Tensor:
        return torch.relu(x) * scale

    def function(x: torch.Tensor) -> torch.Tensor:
        return block(x, scale=2) + 1

    made = braze.compile(function, fullgraph=True)
    assert torch.equal(made(X), X * 2 + 1)
    assert braze.status()[function.__qualname__].graphs == 1
