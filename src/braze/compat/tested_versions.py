"""The versions of PyTorch and Python on which `make test-versions` runs the suite."""

from __future__ import annotations

import sys

from braze.compat.torch.versions import TORCH

# First and last: `pyproject.toml` states the same (tests/architecture/test_versions.py).
TESTED_TORCH = ((2, 11), (2, 15))
TESTED_PYTHON = ((3, 11), (3, 15))


def untested() -> list[str]:
    """What is newer here than what was tested, in words."""
    return beyond("PyTorch", TORCH, TESTED_TORCH) + beyond(
        "Python", sys.version_info[:2], TESTED_PYTHON
    )


def beyond(
    product: str, found: tuple[int, ...], tested: tuple[tuple[int, int], tuple[int, int]]
) -> list[str]:
    """Whether a version is newer than the tested ones, in words; nothing where it is not."""
    first, last = (".".join(map(str, version)) for version in tested)
    if found <= tested[1]:
        return []
    here = ".".join(map(str, found))
    return [
        f"{product} {here} is newer than the versions that Braze is tested on ({first} to {last}): "
        "it runs, untested"
    ]
