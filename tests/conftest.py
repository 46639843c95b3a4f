"""What every test gets: verifiers on, a kernel cache of its own, and the `--bless` flag."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before Braze is imported, which reads its environment once.
_CACHE = tempfile.TemporaryDirectory(prefix="braze-test-cache-")
os.environ.setdefault("BRAZE_CACHE_DIR", _CACHE.name)
os.environ.setdefault("BRAZE_VERIFY", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` rewrites golden files; look at the diff before it is committed."""
    parser.addoption("--bless", action="store_true", help="rewrite golden files and pages")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether expectations are to be rewritten."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture(scope="session", autouse=True)
def _remove_cache() -> Iterator[None]:
    yield
    _CACHE.cleanup()


def check_golden(path: Path, actual: str, bless: bool) -> None:
    """Compare with a golden file, or write it."""
    if bless:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual)
    assert path.exists(), f"{path} is missing: run pytest --bless and look at the result"
    assert actual == path.read_text(), f"{path} differs: run pytest --bless and look at the diff"
