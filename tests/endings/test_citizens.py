"""Processes that fork, spawn, pickle what is compiled, or end while they compile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.endings import citizens
from tests.endings.citizens import ENDED, ENDINGS, LOADED, PICKLED, run_script
from tests.shares import due_today

_WARM = "shared.scaled(torch.ones(3)), model(torch.ones(3))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "warm"),
    due_today(
        [
            pytest.param(method, warm, id=f"{method}-{warm}")
            for method in ("fork", "spawn", "forkserver")
            for warm in ("compiled before", "compiled there")
        ],
        2,
    ),
)
def test_workers_of_a_loader_compile(method: str, warm: str, tmp_path: Path) -> None:
    text = LOADED.replace("METHOD", method)
    text = text.replace("WARM", _WARM if warm == "compiled before" else "pass")
    done = run_script(text, tmp_path)
    assert done.status == 0 and done.output == "RIGHT\n", done.errors[-2000:]
    assert not list((tmp_path / "cache").rglob("build-*"))


@pytest.mark.slow
def test_what_is_compiled_is_pickled(tmp_path: Path) -> None:
    done = run_script(PICKLED, tmp_path)
    assert done.status == 0 and done.output == "RIGHT\n", done.errors[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_a_process_ends_while_it_compiles(name: str, tmp_path: Path) -> None:
    """At once, with its status, and what it started ends with it."""
    ends, status = ENDINGS[name]
    compiler, started = tmp_path / "compiler", tmp_path / "started"
    compiler.write_text(citizens.SLEEPING_COMPILER)
    compiler.chmod(0o700)
    variables = {"BRAZE_CXX": str(compiler), "STARTED": str(started)}
    done = run_script(ENDED.replace("ENDS", ends), tmp_path, variables)
    assert done.status == status and done.output == "RIGHT\n", done.errors[-2000:]
    assert done.seconds < 75
    limit = time.monotonic() + 10
    while citizens.is_alive(int(started.read_text())):
        assert time.monotonic() < limit, "the compiler goes on"
        time.sleep(0.1)
