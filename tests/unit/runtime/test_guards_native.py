"""The extension that compares snapshots: on every Python that is installed, and where it is not."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import braze.runtime.guards_native as guards_native
from braze.errors import BuildFailed
from braze.options import config
from braze.runtime.guards_native import (
    LOADER,
    NativeLoader,
    build_extension,
    extension_text,
    load_native_guards,
)
from braze.runtime.toolchain import Toolchain, find_toolchain
from tests.unit.runtime.test_continuation import interpreter

_CHECK = Path(__file__).with_name("snapshot_check.py")


def run_check(python: str, extension: Path) -> None:
    done = subprocess.run([python, _CHECK, extension], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ok\n", done.stderr


def test_snapshots_without_tensors() -> None:
    built = build_extension(config.snapshot())
    assert isinstance(built, Path), built
    run_check(sys.executable, built)


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_other_pythons(version: str, tmp_path: Path) -> None:
    python, toolchain = interpreter(version), find_toolchain(config.snapshot())
    if python is None or not isinstance(toolchain, Toolchain):
        pytest.skip(f"no Python {version}, or no compiler")
    where = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"]
    include = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(include, "Python.h").exists():
        pytest.skip(f"no headers of Python {version}")
    target = tmp_path / "braze_guards.so"
    flags = ["-shared", "-fPIC", "-O0", "-x", "c++", f"-I{include}"]
    command = [toolchain.compiler, *flags, "-", "-o", str(target)]
    subprocess.run(command, input=extension_text(), text=True, check=True)
    run_check(python, target)


def test_the_loader_builds_once_and_in_the_background() -> None:
    loader = NativeLoader()
    first = loader.ready()
    assert first is None or first is loader.wait()
    assert loader.wait() is loader.ready() is loader.wait() is not None


def test_codes_of_tensors() -> None:
    native = LOADER.wait()
    assert native is not None
    plain = native.codes_of(torch.empty(2))
    assert plain is not None and plain[1:] == (0, 1)
    assert native.codes_of(torch.empty(3, 4)) == plain
    for other in (torch.empty(2, dtype=torch.int8), torch.empty(2, device="meta")):
        codes = native.codes_of(other)
        assert codes is not None and codes[0] != plain[0]


@pytest.mark.parametrize("lack", ["headers", "compiler", "libtorch", "layout", "cache"])
def test_without_it_guards_are_python_and_a_hint_says_why(
    lack: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lack == "headers":
        monkeypatch.setattr(guards_native.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    elif lack in ("compiler", "cache"):

        def fail(*_: object) -> Path:
            if lack == "cache":
                raise PermissionError("it cannot be written")
            raise BuildFailed(["g++"], "it does not work")

        monkeypatch.setattr(guards_native, "build", fail)
    elif lack == "libtorch":
        monkeypatch.setattr(guards_native, "metadata_functions", lambda: None)
    else:
        monkeypatch.setattr(guards_native, "implementation_address", lambda tensor: 1)
    reason = load_native_guards(config.snapshot())
    assert isinstance(reason, str) and reason
    with caplog.at_level(logging.INFO, "braze.perf_hints"):
        assert NativeLoader().wait() is None
    assert reason in caplog.text
