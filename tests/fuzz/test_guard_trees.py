"""The evaluators of guard trees answer alike, whatever is guarded and whatever changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from braze.ir.captured.guard import GuardKind
from braze.runtime.guards import compile, kinds, snapshot
from braze.runtime.guards.native_extension import LOADER
from tests.fuzz.guard_trees import first_difference, share_that_holds

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_evaluators_answer_alike(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [text for text in map(first_difference, range(first, first + 10)) if text] == []


def test_changes_leave_some_guards_holding() -> None:
    shares = [share_that_holds(seed) for seed in range(20)]
    assert 0.1 < sum(shares) / len(shares) < 0.9


def _term_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Generated Python does not compare whether a tensor needs gradients."""
    write = compile.tensor_condition

    def without(*args: Any) -> str:
        return " and ".join(t for t in write(*args).split(" and ") if "requires_grad" not in t)

    patch.setattr(compile, "tensor_condition", without)


def _kind_forgotten(kind: GuardKind) -> Callable[[pytest.MonkeyPatch], None]:
    """Generated Python does not ask a kind of guard."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        row = kinds.GUARD_KINDS[kind]
        patch.setitem(kinds.GUARD_KINDS, kind, row._replace(write=lambda writer, guard: "True"))

    return plant


def _kind_taken_as_covered(kind: GuardKind) -> Callable[[pytest.MonkeyPatch], None]:
    """A snapshot takes a kind of guard for proven."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(snapshot._COVER, kind, lambda builder, guard: True)

    return plant


PLANTS = {
    "a term of tensors": _term_forgotten,
    "lengths": _kind_forgotten(GuardKind.LENGTH),
    "keys": _kind_forgotten(GuardKind.DICT_KEYS),
    "distinct places": _kind_forgotten(GuardKind.DISTINCT),
    "storages in a snapshot": _kind_taken_as_covered(GuardKind.STORAGE_OVERLAP),
    "types in a snapshot": _kind_taken_as_covered(GuardKind.TYPE_MATCH),
    "tensors in a snapshot": _kind_taken_as_covered(GuardKind.TENSOR_MATCH),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_forgotten_fact_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert any(map(first_difference, range(400)))
