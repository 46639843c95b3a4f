"""`braze.profile_recompiles`: who is compiled again in a run, how often, at what cost, and why."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

import braze
from braze.compile_records import LISTENERS


def _model(x: torch.Tensor, scale: str | float) -> torch.Tensor:
    return x * len(scale) if isinstance(scale, str) else x + scale


def test_it_says_who_how_often_and_what_changed() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    compiled = braze.compile(_model, dynamic=False)
    calm = braze.compile(other)
    with braze.profile_recompiles() as profile:
        for size in (3, 4, 5):
            compiled(torch.ones(size), 2.0)
            calm(torch.ones(3))
        compiled(torch.ones(5).double(), 2.0)
        compiled(torch.ones(5), "ab")
    compiled(torch.ones(6), 2.0)  # no longer in the profile
    assert (profile.compiles, profile.recompiles) == (6, 4)
    (row,) = profile.functions
    assert row.function == "_model" and (row.compiles, row.recompiles) == (5, 4)
    assert 0 < row.seconds < profile.seconds
    causes = {(cause.subject, cause.kind): cause for cause in row.causes}
    sizes = causes["L['x']", "tensor 'L['x']' size mismatch at index 0"]
    assert sizes.count == 2 and sizes.last.endswith("expected 4, actual 5")
    assert "dynamic" in sizes.fix or "pad sizes" in sizes.fix
    assert sizes.place.startswith(__file__)
    assert causes["L['x']", "tensor 'L['x']' dtype mismatch"].count == 1
    assert sum(cause.count for cause in row.causes) == 4
    text = str(profile)
    assert text.startswith("Recompiles: 4 of 6 compiles, ") and "expected 4, actual 5" in text
    assert text == profile.report() and "other" not in text


def test_a_limit_that_was_met_is_named() -> None:
    def limited(x: torch.Tensor, word: str) -> torch.Tensor:
        return x + len(word)

    compiled = braze.compile(limited, recompile_limit=2)
    with braze.profile_recompiles() as profile, pytest.warns(braze.exc.BrazeWarning):
        for word in ("a", "bb", "ccc"):
            compiled(torch.ones(3), word)
    (row,) = profile.functions
    assert (row.compiles, row.recompiles) == (2, 1)
    assert len(row.limits) == 1 and "compiled 2 times and none of them fits" in row.limits[0]


def test_a_run_without_recompiles_says_so_and_leaves_no_listener() -> None:
    before = LISTENERS._each
    with braze.profile_recompiles() as profile:
        braze.compile(torch.sin)(torch.ones(3))
    assert LISTENERS._each == before
    assert profile.functions == () and str(profile).startswith("Recompiles: 0 of ")


_SCRIPT = """
import torch, braze
def grows(x): return x.sin()
f = braze.compile(grows, dynamic=False)
for n in (1, 2, 3): f(torch.ones(n))
"""


def test_the_log_shows_the_profile_of_a_whole_process_at_its_end() -> None:
    environment = {**os.environ, "BRAZE_LOGS": "recompile_profile"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr.count("[recompile_profile] Recompiles: 2 of 3 compiles") == 1
    assert "expected 2, actual 3" in done.stderr and done.stdout == ""


def test_the_log_is_quiet_until_it_is_asked_for() -> None:
    assert not logging.getLogger("braze.recompile_profile").isEnabledFor(logging.INFO)
