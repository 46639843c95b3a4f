"""The surface of storages, generators, sizes, dtypes and devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from tests.surface.objects import SUBJECTS, sweep_objects


@pytest.mark.parametrize("subject", SUBJECTS)
def test_questions_to_objects_agree_with_eager(subject: str) -> None:
    tally = sweep_objects(subject)
    assert not tally.differences, "\n".join(map(str, tally.differences))
    assert tally.asked > 80
    assert tally.graphs > 40


def test_overridden_builtin_methods_survive_breaks() -> None:
    def ask(storage: Any, x: Any) -> Any:
        return super(torch.storage._StorageBase, storage).__sizeof__(), x + 1

    storage = torch.arange(3.0).untyped_storage()
    expected, actual = ask(storage, torch.ones(2)), braze.compile(ask)(storage, torch.ones(2))
    assert actual[0] == expected[0] != storage.__sizeof__()
