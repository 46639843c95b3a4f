"""From a file to a package that can be called: `braze.load_package`."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from braze.errors import InvalidPackage
from braze.ir.generated_code import define
from braze.packages.archive import Archive, damaged, read_archive
from braze.packages.arguments import TensorCheck, compile_conditions, signature_of
from braze.packages.loaded import MethodPlan, Package
from braze.packages.machine import check_process, python_abi
from braze.packages.program import constants_of_program, read_program, regions_of_program
from braze.packages.results import compile_result
from braze.packages.state import PackageState, read_state
from braze.runtime.launch.kernel_launcher import connected, raise_fault, run_by_ctypes
from braze.runtime.launch.kernel_library import KernelLibrary
from braze.runtime.launch.profiled_program import ProfiledKernel
from braze.runtime.launch.shared_objects import (
    HELD,
    LOADED,
    ObjectFile,
    load_extension,
    load_kernels,
)
from braze.runtime.link.link_cpu import CompiledGraph, Frames, callable_of


def load_package(path: str | os.PathLike[str]) -> Package:
    """Load what `braze.package` wrote: its methods run without the model's source, without
    tracing, and without a compiler.

    A package is code, which loading runs: load only what you would run as a program.

    Raises InvalidPackage where the file is damaged or no package, or was written for other versions
    of PyTorch or Braze or for another kind of machine; OSError where it cannot be read.
    """
    archive = read_archive(Path(path))
    if "surroundings" in archive.head:
        raise InvalidPackage(
            f"{archive.path} holds a function compiled ahead of time: load it by "
            "braze.load_compiled_function."
        )
    return package_of(archive)


def package_of(archive: Archive, *, refuses_gradients: bool = False) -> Package:
    """The package in an archive. refuses_gradients: whether its calls raise for arguments that
    require gradients. Raises InvalidPackage."""
    head = archive.head
    try:
        has_kernels = bool(head["has_kernels"])
        check_process(archive.path, head["process"], has_kernels)
        state = read_state(archive, head["state"])
        run = _launcher(archive, head)
        plans = [_method(archive, name, data, state, run) for name, data in head["methods"].items()]
    except (InvalidPackage, OSError):
        raise
    except (AttributeError, IndexError, KeyError, SyntaxError, TypeError, ValueError) as error:
        raise damaged(archive.path, f"{type(error).__name__}: {error}") from error
    return Package(archive.path, plans, state, refuses_gradients=refuses_gradients)


# --- private ---------------------------------------------------------------------------------


def _object(archive: Archive, member: str) -> ObjectFile:
    image = bytes(archive.member(member))
    key = hashlib.sha256(image).hexdigest()[:32]
    return ObjectFile(Path(archive.path).stem[:32] or "package", key, image)


def _launcher(archive: Archive, head: Mapping[str, Any]) -> Callable[..., int]:
    """What calls kernels: the extension that is in the package, or ctypes where that is another
    Python's."""
    launcher = head["launcher"]
    if launcher is None or launcher["abi"] != python_abi():
        return run_by_ctypes
    built = _object(archive, launcher["member"])
    try:
        key = ("package", "launcher", built.key)
        module = LOADED.get(key, lambda: connected(load_extension("braze_launcher", built)))
    except (ImportError, OSError):
        return run_by_ctypes
    run: Callable[..., int] = module.run
    return run


def _kernels(archive: Archive, member: str) -> KernelLibrary:
    built = _object(archive, member)
    try:
        return HELD.get(("package", "kernels", built.key), lambda: load_kernels(built))
    except OSError as error:
        raise InvalidPackage(
            f"the kernels of {archive.path} cannot be loaded: {error}. They were built on a "
            "machine with other libraries: write the package on one like this."
        ) from error


def _method(
    archive: Archive,
    name: str,
    data: Mapping[str, Any],
    state: PackageState,
    run: Callable[..., int],
) -> MethodPlan:
    signature = signature_of(data["signature"])
    further = [_program(archive, name, signature, one, state, run) for one in data["further"]]
    main = _program(archive, name, signature, data, state, run)
    missing = tuple([(str(sizes), str(reason)) for sizes, reason in data["missing"]])
    return replace(main, further=tuple(further), missing=missing)


def _program(
    archive: Archive,
    name: str,
    signature: inspect.Signature,
    data: Mapping[str, Any],
    state: PackageState,
    run: Callable[..., int],
) -> MethodPlan:
    places = [(str(kind), int(number)) for kind, number in data["inputs"]]
    return MethodPlan(
        name=name,
        signature=signature,
        structure=data["structure"],
        checks=tuple([TensorCheck.of(check) for check in data["checks"]]),
        unmet=compile_conditions(data["conditions"]),
        inputs=tuple(places),
        numbers=_compile_numbers(data["numbers"]),
        sharing=tuple([tuple([(k, n) for k, n in group]) for group in data["sharing"]]),
        distinct=tuple(data["distinct"]),
        same=tuple([(one, other) for one, other in data["same"]]),
        truths=tuple([(n, holds, words) for n, holds, words in data["truths"]]),
        updates=tuple([(place, number) for place, number in data["updates"]]),
        run=_graph(archive, data, state, run),
        build=compile_result(data["result"]),
    )


def _graph(
    archive: Archive, data: Mapping[str, Any], state: PackageState, run: Callable[..., int]
) -> CompiledGraph:
    """The graph, as `braze.compile` links it."""
    program, layout = read_program(data["program"])
    constants = constants_of_program(data["program"], state.tensors)
    regions = regions_of_program(data["program"], lambda inner: _graph(archive, inner, state, run))
    names = {**program.names, **constants, **regions}
    if data["library"] is not None:
        library = _kernels(archive, data["library"])
        names |= {"run": run, "raise_fault": raise_fault, "keep": library}
        names |= {entry: library.address(entry) for entry in data["entries"]}
    numbers = [number for number in layout.constants if number is not None]
    constants_by_number = {n: constants[f"constant{n}"] for n in numbers}
    frames = Frames(layout, constants_by_number)
    kernels = [[ProfiledKernel(name, ()) for name in each] for each in data["kernels"]]
    return callable_of(program, names, frames, data["title"], kernels)


def _compile_numbers(texts: list[str]) -> Callable[[object], tuple[object, ...]]:
    inside = "".join(f"{text}, " for text in texts)
    text = f"def numbers(x):\n    return ({inside})"
    made: Callable[[Any], tuple[Any, ...]] = define([text], "<numbers of a package>", {})
    return made
