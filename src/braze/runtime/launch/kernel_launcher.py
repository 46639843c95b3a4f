"""Calling built kernels from Python: a small extension module, or ctypes where it cannot be built.

Both are a function `run(entry, table, sizes, threads, place, tensor, ...) -> int`: addresses as
ints, then pairs that say which tensor's pointer goes where in the table.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.resources
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from braze.compat.torch.tensor_abi import data_of_tensors
from braze.errors import BuildFailed, CannotBuild, IndexRangeError, OperatorRaises
from braze.ir.kernels.kernel import SourceUnit
from braze.options import Options
from braze.runtime.launch.build_cache import build, extension_of
from braze.runtime.launch.cpp_compiler import Toolchain
from braze.runtime.launch.shared_objects import ObjectFile

Run = Callable[..., int]

INDEX_FAULT = 1
DIVISION_FAULT = 2


class IntegerDivisionByZero(OperatorRaises):
    """A kernel divided an integer by zero; running the call eagerly gives PyTorch's words."""


def raise_fault(code: int) -> None:
    """Raise what a nonzero result of `run` means."""
    if code & INDEX_FAULT:
        raise IndexRangeError("an index in a compiled kernel is out of range")
    raise IntegerDivisionByZero("ZeroDivisionError")


def load_launcher(toolchain: Toolchain, options: Options) -> Run:
    """The extension's `run`, or the same in ctypes if Python's headers are not installed."""
    module = load_connected("launcher", toolchain, options)
    run: Run = run_by_ctypes if module is None else module.run
    return run


def load_connected(
    name: str, toolchain: Toolchain, options: Options, before: Sequence[str] = ()
) -> Any:
    """As `build_extension_module`, for one that asks tensors for their addresses."""
    before = ("tensor_addresses", *before)
    module = build_extension_module(name, toolchain, options, before)
    return None if module is None else connected(module)


def connected(module: Any) -> Any:
    """A module that asks tensors for their addresses, once it knows how."""
    where = data_of_tensors()
    if where is not None:
        module.connect_tensors(*where)
    return module


def launcher_object(toolchain: Toolchain, options: Options) -> ObjectFile | None:
    """The shared object of the launcher; None without Python's headers. Raises BuildFailed,
    CannotBuild."""
    found = _described("launcher", toolchain, ("tensor_addresses",))
    return None if found is None else build((found[0],), found[1], options)


def build_extension_module(
    name: str, toolchain: Toolchain, options: Options, before: Sequence[str] = ()
) -> Any:
    """The extension module `braze_NAME` of the source NAME.cpp here, behind those of `before`; None
    where it cannot be built."""
    found = _described(name, toolchain, before)
    if found is None:
        return None
    try:
        return extension_of(f"braze_{name}", *found, options)
    except (BuildFailed, CannotBuild):
        return None


def build_ahead(
    name: str, toolchain: Toolchain, options: Options, before: Sequence[str] = ()
) -> None:
    """Have the module that `load_connected` loads later built, where that can be done."""
    found = _described(name, toolchain, ("tensor_addresses", *before))
    if found is not None:
        unit, plain = found
        with contextlib.suppress(BuildFailed, CannotBuild):
            build((unit,), plain, options)


def run_by_ctypes(entry: int, table: int, sizes: int, threads: int, *bound: Any) -> int:
    """`run` without an extension: some microseconds slower a call."""
    places = (ctypes.c_void_p * 1).from_address
    width = ctypes.sizeof(ctypes.c_void_p)
    for place, tensor in zip(bound[::2], bound[1::2]):
        places(table + width * place)[0] = tensor.data_ptr()
    run_entry = _PROTOTYPE(ctypes.c_size_t.from_address(entry).value)  # how an entry begins
    return int(run_entry(entry, table, sizes, threads))


# --- private ---------------------------------------------------------------------------------

_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)


def _described(
    name: str, toolchain: Toolchain, before: Sequence[str]
) -> tuple[SourceUnit, Toolchain] | None:
    """The source of an extension and how it is compiled; None without Python's headers."""
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        return None
    folder = importlib.resources.files("braze.runtime.native")
    text = "\n".join([folder.joinpath(f"{part}.cpp").read_text() for part in (*before, name)])
    tag = f"// {sysconfig.get_config_var('SOABI')}\n"
    flags = ("-shared", "-fPIC", "-O1", "-x", "c++", f"-I{include}")
    plain = replace(toolchain, flags=flags, libraries=())
    return SourceUnit(name, tag + text), plain
