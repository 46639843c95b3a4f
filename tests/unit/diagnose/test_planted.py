"""Of every fault planted in every model the stage is named, and the program shrunk to at most five
operators that fail in the same way: all thirty at night, two on each day."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze import pipeline
from braze.diagnose import Bisection
from braze.ir.captured.guard import GuardKind
from braze.runtime.guards.kinds import GUARD_KINDS, GuardRow
from tests.shares import due_today
from tests.unit.diagnose.planted import MODELS, PLANTED

_PAIRS = [pytest.param(fault, model) for model in MODELS for fault in PLANTED]
_DAYS = 13  # with thirty pairs: two or three on each, of another kind and model


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _found(fault: str, name: str) -> Bisection:
    """What `braze.bisect` says of a call under the fault."""
    model = MODELS[name]
    torch.manual_seed(0)
    module, x = model.make(), model.inputs()
    if PLANTED[fault].stage != "guards":
        options = {"verify": False}
        return braze.bisect(module, dynamic=model.dynamic, options=options)(x)
    compiled = braze.compile(module, dynamic=model.dynamic)
    compiled(x)
    module.scale = 3.0
    return braze.bisect(compiled, dynamic=model.dynamic)(x)


def _way_of_failing(script: Path) -> str:
    """How a script ends: "crash: stage", "wrong value", or "" where it is right."""
    braze.reset()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except braze.exc.InternalError as crash:
        return f"crash: {crash.stage}"
    except SystemExit as end:
        return "wrong value" if end.code else ""
    raise AssertionError("the script does not say how it ends")


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_said_of_models_that_are_right(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]
    found = braze.bisect(model.make(), dynamic=model.dynamic)(model.inputs())
    assert found.suspect is None and not found.scripts, found


@pytest.mark.parametrize(("fault", "name"), due_today(_PAIRS, _DAYS))
def test_a_planted_fault_is_named_and_shrunk(
    fault: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PLANTED[fault]
    with monkeypatch.context() as patch:
        planted.plant(patch)
        found = _found(fault, name)
        suspect = found.suspect
        assert suspect is not None, found
        assert (suspect.kind, suspect.stage) == (planted.kind, planted.stage), found
        assert planted.part in suspect.part, found
        assert 1 <= len(suspect.operators) <= 5, found
        assert any(planted.operator in operator for operator in suspect.operators), found
        assert suspect.origins, found
        (script, *_) = found.scripts
        kind, stage = planted.kind, planted.stage
        assert _way_of_failing(script) == (f"{kind}: {stage}" if kind == "crash" else kind)
    assert _way_of_failing(script) == "", script.read_text()


class _Holder:
    value: object = 0


_GLOBAL: object = 0


def _by_argument(x: Tensor, value: object) -> Tensor:
    return x * 2 if value == "mean" else x * 3


def _by_attribute(x: Tensor, holder: _Holder) -> Tensor:
    return x * len(holder.value)  # type: ignore[arg-type]


def _by_item(x: Tensor, items: dict[str, Any]) -> Tensor:
    return x * 2 if items["value"] else x * 3


def _by_sizes(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() * y.numel()


_WRONG_GUARDS = (
    (_by_argument, ("mean", "max"), GuardKind.EQUALS_MATCH, "value"),
    (_by_attribute, ([0, 0], [0, 0, 0]), GuardKind.LENGTH, "holder.value"),
    (_by_item, (True, False), GuardKind.ID_MATCH, "items"),
    (_by_sizes, (torch.ones(4), torch.ones(6)), GuardKind.TENSOR_MATCH, "y"),
)


def _given(function: Callable[..., Tensor], value: Any) -> Any:
    if function is _by_attribute:
        holder = _Holder()
        holder.value = value
        return holder
    return {"value": value} if function is _by_item else value


@pytest.mark.parametrize("is_lost", (False, True))
@pytest.mark.parametrize(("function", "values", "kind", "place"), _WRONG_GUARDS)
def test_the_guard_that_is_wrong_is_named(
    function: Callable[..., Tensor],
    values: tuple[Any, Any],
    kind: GuardKind,
    place: str,
    is_lost: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the value is; a guard that holds for everything, and one that capture forgot."""
    first, second = (_given(function, value) for value in values)
    right = pipeline.entry_of

    def forgetful(*arguments: Any) -> Any:
        entry = right(*arguments)
        return replace(entry, guards=tuple(g for g in entry.guards if g.kind is not kind))

    with monkeypatch.context() as patch:
        if is_lost:
            patch.setattr(pipeline, "entry_of", forgetful)
        else:
            patch.setitem(GUARD_KINDS, kind, GuardRow(lambda *_: "True", lambda *_: None))
        compiled = braze.compile(function, fullgraph=True, dynamic=False)
        x = torch.arange(3.0)
        compiled(x, first)
        found = braze.bisect(compiled, dynamic=False)(x, second)
        suspect = found.suspect
        assert suspect is not None and suspect.stage == "guards", found
        if is_lost:
            return  # the guard of the fresh compile is lost, too: the function is named
        assert suspect.part == kind.value and place.split(".")[-1] in suspect.detail, found
        assert suspect.origins[0].function == function.__name__, found
        (script,) = found.scripts
        assert _way_of_failing(script) == "wrong value"
    assert _way_of_failing(script) == ""
