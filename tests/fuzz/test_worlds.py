"""A compiled step does what eager does, whatever is changed around it between calls."""

from __future__ import annotations

import pytest

from braze.runtime.guards.native_extension import LOADER
from tests.fuzz.worlds import first_difference

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")


@pytest.mark.parametrize("seed", range(10))
def test_a_step_follows_its_world(seed: int) -> None:
    assert not first_difference(seed)
