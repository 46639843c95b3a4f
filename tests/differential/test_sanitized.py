"""A few random programs under the sanitizers; more: `python -m tests.differential.sanitized`."""

from __future__ import annotations

import os
import signal

import pytest

from tests.differential.sanitized import libraries, run_sanitized

COUNT = os.environ.get("BRAZE_SANITIZED_PROGRAMS", "4")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not libraries(), reason="GCC has no sanitizers here"),
]


def test_kernels_stay_in_their_memory() -> None:
    found = run_sanitized(("--programs", COUNT, "--bounds"), 600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"# {COUNT} programs, 0 differ" in found.stdout


def test_a_load_one_further_is_found() -> None:
    """Planted: each load of a kernel is of the next element."""
    found = run_sanitized(("--programs", "3", "--planted"), 600)
    assert found.returncode
    assert "AddressSanitizer" in found.stderr


def test_a_load_beyond_its_buffer_is_found() -> None:
    """Planted: the same, where each buffer has ends of its own."""
    found = run_sanitized(("--programs", "3", "--planted", "--bounds"), 600)
    assert found.returncode == -signal.SIGILL
