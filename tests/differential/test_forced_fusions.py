"""A part of the random programs whose groups are split and joined at random; more of them:
`python -m tests.differential.forced_fusions` or BRAZE_FUZZ_PROGRAMS set."""

from __future__ import annotations

import os
from typing import Any

import pytest

from braze.schedule.fusion import fuse
from tests.differential.forced_fusions import difference

COUNT = int(os.environ.get("BRAZE_FUZZ_PROGRAMS", "12"))
FIRST = int(os.environ.get("BRAZE_FUZZ_SEED", "0"))


def test_other_fusions_give_the_same_bytes() -> None:
    several = 0
    for seed in range(FIRST, FIRST + COUNT):
        found, counts = difference(seed, 2)
        assert not found
        several += len(counts) > 1
    assert several >= COUNT // 3  # else nothing was split or joined


def test_a_wrong_reason_to_join_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a definition that reads another point of what its group makes joins it."""

    def phase_after(maker: Any, member: Any, load: Any, outer: Any) -> int:
        return int(maker.phase)

    monkeypatch.setattr(fuse, "_phase_after", phase_after)
    assert any(_found(seed) for seed in range(FIRST, FIRST + COUNT))


def _found(seed: int) -> bool:
    try:
        return bool(difference(seed, 2)[0])
    except Exception:  # a kernel that cannot be written, or compiled
        return True
