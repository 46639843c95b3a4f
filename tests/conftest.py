"""What every test gets: verifiers on, a kernel cache of its own, equal random numbers, a process
that the tests before it left as it was, and the `--bless` flag."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Before Braze is imported, which reads its environment once.
# A run of few tests may end while the guards' extension is built beside them, into the cache.
_CACHE = tempfile.TemporaryDirectory(prefix="braze-test-cache-", ignore_cleanup_errors=True)
os.environ.setdefault("BRAZE_CACHE_DIR", _CACHE.name)
os.environ.setdefault("BRAZE_VERIFY", "1")

from braze import pipeline  # noqa: E402
from braze.runtime.dispatch.recent_dispatchers import RECENT  # noqa: E402
from braze.trace import Journal  # noqa: E402
from tests.deferred_seeds import format_no_stacks  # noqa: E402
from tests.process_state import BEGINNING, put_back  # noqa: E402
from tests.recorded import recorded  # noqa: E402
from tests.shares import VARIABLE, choose_day  # noqa: E402

format_no_stacks()
choose_day()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` rewrites golden files; look at the diff before it is committed."""
    parser.addoption("--bless", action="store_true", help="rewrite golden files and pages")


def pytest_report_header() -> str:
    """Says which shares of long sweeps are run."""
    return f"shares of long sweeps: {VARIABLE}={choose_day()}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `--dist loadgroup` hands out tests; imported where pytest-xdist is."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.scheduling import WithoutFinishedGroups

    return WithoutFinishedGroups(config, log)


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether expectations are to be rewritten."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture
def journal() -> Iterator[Journal]:
    """The records of what this test compiles, and of nothing else."""
    with recorded() as found:
        yield found


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Values that a file draws while it is imported are the same in each process. What earlier
    files hold, millions of objects, is left out of collections: in all a third of the time."""
    if isinstance(collector, pytest.Module):
        _seed()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The import of a file that changes the process's state is an error of that file."""
    report = yield
    changed = put_back(BEGINNING)
    if changed and report.passed:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} leaves the process changed: " + "; ".join(changed)
    return report


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> None:
    """What lives before a file's tests is left out of `gc.collect` and `gc.get_objects`: the tests,
    modules and tables of all files are millions of objects, a second or more each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def triton_interpreted() -> Iterator[None]:
    """Triton's interpreter in place of its compiler, for files that run kernels on a CPU."""
    from tests.unit.codegen.triton_running import interpreting

    with interpreting():
        yield


@pytest.fixture(autouse=True)
def _equal_beginnings() -> Iterator[None]:
    """In whichever order tests run: equal random numbers, and nothing changed by the others."""
    _seed()
    _evaluate_frames_as_python_does()
    RECENT.clear()  # functions of a file are compiled by many tests, each on its own
    pipeline._WARNED._messages.clear()  # what is said once in a process is said in each test
    yield
    changed = put_back(BEGINNING)
    assert not changed, "the test leaves the process changed: " + "; ".join(changed)


def _evaluate_frames_as_python_does() -> None:
    """A backend of torch.compile that raises leaves Dynamo's evaluation of frames behind, for good:
    under it a call holds its arguments longer."""
    python = ctypes.pythonapi
    get, set_ = (
        python._PyInterpreterState_GetEvalFrameFunc,
        python._PyInterpreterState_SetEvalFrameFunc,
    )
    python.PyInterpreterState_Get.restype = get.restype = ctypes.c_void_p
    interpreter = ctypes.c_void_p(python.PyInterpreterState_Get())
    own = ctypes.cast(python._PyEval_EvalFrameDefault, ctypes.c_void_p)
    if get(interpreter) != own.value:
        set_(interpreter, own)


def _seed() -> None:
    random.seed(0)
    torch.manual_seed(0)


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
