"""Triton functions are built for sm_90 on any machine that has Triton, and kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from braze.errors import BuildFailed
from braze.ir.kernels.kernel import DeviceFunction
from braze.options import Options
from braze.runtime.cuda import cubin_worker
from braze.runtime.cuda.cubin_cache import CubinBuilder, build_cubins, triton_version

pytestmark = pytest.mark.skipif(triton_version() is None, reason="Triton is not installed")

TEXT = """\
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x * FACTOR


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(i >= 0)
    tl.store(y + i, twice(tl.load(x + i, i < n)), i < n)
"""


def _function(factor: str = "2", **changes: object) -> DeviceFunction:
    fields = {
        "name": "scale",
        "text": TEXT.replace("FACTOR", factor),
        "signature": ("*fp32", "*fp32", "i64", "constexpr"),
        "constants": (256,),
        "aligned": (0, 1),
        "warps": 2,
    }
    return DeviceFunction(**{**fields, **changes})  # type: ignore[arg-type]


def test_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(cache_dir=tmp_path)
    functions = [_function(), _function("3"), _function(), _function(checked=True)]
    built = build_cubins(functions, 90, options)
    assert len(built) == 3
    for cubin in built.values():
        assert cubin.image.startswith(b"\x7fELF")
        assert (cubin.name, cubin.threads) == ("scale", 64)
        assert 3 <= cubin.parameters <= 3 + 4
    assert len({cubin.image for cubin in built.values()}) == 3
    assert len(list((tmp_path / "cubins").iterdir())) == 3

    def refuse(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(CubinBuilder, "build", refuse)
    assert build_cubins(functions, 90, options) == built
    with pytest.raises(AssertionError):
        build_cubins(functions, 80, options)


def test_what_the_compiler_says_is_shown(tmp_path: Path) -> None:
    functions = [_function(), _function("unknown_name")]
    with pytest.raises(BuildFailed, match="unknown_name is not defined"):
        build_cubins(functions, 90, Options(cache_dir=tmp_path))
    build_cubins([_function("4")], 90, Options(cache_dir=tmp_path))  # the process goes on


def test_a_process_that_ends_is_started_again(tmp_path: Path) -> None:
    builder = CubinBuilder()
    builder.start()
    first = builder._process
    assert first is not None
    first.kill()
    first.wait()
    builder.build([], 1)
    assert builder._process is not first
    builder.stop()
    assert builder._process is None


def test_triton_hashes_none_of_its_libraries() -> None:
    """It would at the first compile, for a second. The name is looked up at each call of what makes
    keys, else replacing it does nothing."""
    cache = pytest.importorskip("triton.runtime.cache")
    assert "triton_key" in cache.get_cache_key.__code__.co_names
    replaced = SimpleNamespace(runtime=SimpleNamespace(cache=SimpleNamespace(triton_key=int)))
    cubin_worker.forgo_key(replaced)
    assert replaced.runtime.cache.triton_key() == "in this process"
    gone = SimpleNamespace(runtime=SimpleNamespace(cache=SimpleNamespace()))
    cubin_worker.forgo_key(gone)
    assert not vars(gone.runtime.cache)
