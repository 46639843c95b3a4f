"""The extension that compares snapshots: on every Python that is installed, and where it is not."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import braze.runtime.guards.native_extension as guards_native
from braze.errors import BuildFailed, CannotBuild
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import LocalSource
from braze.options import config
from braze.runtime.guards.compile import compile_entry_check, compile_guards
from braze.runtime.guards.native_extension import (
    LOADER,
    NativeLoader,
    build_extension,
    extension_text,
    load_native_guards,
)
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.runtime.launch.shared_objects import ObjectFile
from tests.interpreters import interpreter
from tests.unit.runtime.test_guards import facts

_CHECK = Path(__file__).with_name("snapshot_check.py")


def run_check(python: str, extension: Path) -> None:
    done = subprocess.run([python, _CHECK, extension], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ok\n", done.stderr


def test_snapshots_without_tensors(tmp_path: Path) -> None:
    built = build_extension(config.snapshot())
    assert isinstance(built, ObjectFile), built
    path = tmp_path / "braze_guards.so"
    path.write_bytes(built.image)
    run_check(sys.executable, path)


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


def test_implementations_are_read_where_their_layout_is_known() -> None:
    native = load_native_guards(config.snapshot())
    assert not isinstance(native, str), native
    assert native.reads_tensors


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2, 3)


DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64, torch.bool]
KINDS: list[torch.Tensor] = [
    *[torch.zeros(2, 3, dtype=dtype) for dtype in DTYPES],
    *[torch.zeros(2, 3, dtype=dtype, device="meta") for dtype in DTYPES],
    *[torch.zeros([2] * rank) for rank in range(8)],
    *[torch.zeros([3] + [2] * rank) for rank in range(6)],
    *[torch.zeros([2] * rank).transpose(0, 1) for rank in range(2, 7)],
    torch.zeros(4, 2, 3)[1],
    torch.zeros(2, 6)[:, ::2],
    torch.zeros(2, 3).to_sparse(),
    torch.zeros(2, 3, requires_grad=True),
    torch.zeros(2, 3, requires_grad=True).exp(),
    torch.nn.Parameter(torch.zeros(2, 3)),
    torch.zeros(2, 3, dtype=torch.complex64).conj(),
    torch.zeros(2, 3, dtype=torch.complex64).conj().imag,
    torch.zeros(2, 3, dtype=torch.complex64).imag,
    torch.zeros(2, 3).as_subclass(torch.nn.Parameter),
    torch._efficientzerotensor((2, 3)),
    _inference(),
    torch.empty(0, 3),
    torch.empty_strided((1, 3), (17, 1)),
]


def test_tensors_of_many_kinds_are_told_apart() -> None:
    x = LocalSource("x")
    assert LOADER.wait() is not None
    for sample in KINDS:
        guard = Guard(x, GuardKind.TENSOR_MATCH, facts(sample, is_leaf=sample.is_leaf))
        made = compile_entry_check([guard], [x])
        check = made.check
        for _ in range(3):
            assert check(FrameValues({"x": sample}, (), {})) is not None
        for other in [*KINDS, sample]:
            frame = FrameValues({"x": other}, (), {})
            expected = compile_guards([guard])(frame)
            for known in made.memory.checks:
                assert (known(frame) is not None) is expected, (sample, other)


@pytest.mark.parametrize("lack", ["headers", "compiler", "libtorch", "layout", "keys", "cache"])
def test_without_it_guards_are_python_and_a_hint_says_why(
    lack: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lack == "headers":
        monkeypatch.setattr(guards_native.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    elif lack in ("compiler", "cache"):

        def fail(*_: object) -> Path:
            if lack == "cache":
                raise CannotBuild("it cannot be written")
            raise BuildFailed(["g++"], "it does not work")

        monkeypatch.setattr(guards_native, "build", fail)
    elif lack == "libtorch":
        monkeypatch.setattr(guards_native, "metadata_functions", lambda: None)
    elif lack == "keys":
        monkeypatch.setattr(guards_native, "dispatch_keys", lambda tensor: 1)
    else:
        monkeypatch.setattr(guards_native, "implementation_offset", lambda: None)
    reason = load_native_guards(config.snapshot())
    assert isinstance(reason, str) and reason
    with caplog.at_level(logging.INFO, "braze.perf_hints"):
        assert NativeLoader().wait() is None
    assert reason in caplog.text
