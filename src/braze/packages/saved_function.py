"""A function that `aot_compile` compiled, in the process that loads it from a file."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, final

from braze.compat.torch.ambient_state import AmbientState
from braze.errors import InvalidPackage, PackageError, PackageInputError, UserError
from braze.packages.archive import Archive, damaged, read_archive
from braze.packages.loaded import Method, Package
from braze.packages.loading import package_of
from braze.packages.state import tensors_of
from braze.packages.values import decode, encode

# Of the head of an archive: the state of PyTorch in which the function was compiled.
SURROUNDINGS = "surroundings"


def surroundings_data(ambient: AmbientState) -> dict[str, object]:
    """The state of PyTorch that a function was compiled in, as JSON."""
    return {field.name: encode(getattr(ambient, field.name)) for field in fields(ambient)}


@final
class SavedFunction:
    """A function that was compiled ahead of time, loaded from its file.

    It takes what the function took. A call that it was not compiled for raises
    `braze.exc.PackageInputError`, a RuntimeError that says why, before anything is computed: other
    metadata of tensors, another number or structure, another grad mode, autocast or default dtype.
    """

    def __init__(self, method: Method, ambient: AmbientState) -> None:
        self._method, self._ambient = method, ambient
        self.__signature__ = method.__signature__

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """The result of the function. Raises PackageInputError for a call that it is not for."""
        self._check_surroundings()
        return self._method(*args, **kwargs)

    def guard_check(self, /, *args: object, **kwargs: object) -> bool:
        """Whether it was compiled for such a call."""
        try:
            self._check_surroundings()
            self._method.check(*args, **kwargs)
        except PackageInputError:
            return False
        return True

    def _check_surroundings(self) -> None:
        difference = self._ambient.difference()
        if difference is not None:
            raise PackageInputError(f"the function was compiled ahead of time: {difference}.")

    def __repr__(self) -> str:
        return f"<function {self.__signature__}, compiled ahead of time>"


def load_compiled_function(
    file: str | os.PathLike[str] | BinaryIO,
    *,
    f_globals: Mapping[str, object] | None = None,
    external_data: Mapping[str, object] | None = None,
) -> SavedFunction:
    """Load what `save_compiled_function` wrote: a function that runs without its source, without
    tracing, and without a compiler.

    The file is code, which loading runs: load only what you would run as a program. file: a path,
    or a file opened for reading bytes. external_data: the modules and tensors that were left out,
    by name; the function reads their tensors, not copies. f_globals: None: the globals that the
    function read are part of its program.

    Raises InvalidPackage where the file is damaged or another one, or was written for other
    versions of PyTorch or Braze or for another kind of machine; PackageError where external data do
    not fit; OSError where it cannot be read.
    """
    if f_globals:
        raise UserError(
            "load_compiled_function: the globals that the function read are part of its program, "
            "and f_globals cannot replace them: pass what changes as arguments."
        )
    archive = _archive(file)
    data = archive.head.get(SURROUNDINGS)
    if data is None:
        raise InvalidPackage(f"{archive.path} is a package: load it by braze.load_package.")
    try:
        state: dict[str, Any] = {name: decode(value) for name, value in data.items()}
        ambient = AmbientState(**state)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(archive.path, f"{type(error).__name__}: {error}") from error
    package = package_of(archive, refuses_gradients=ambient.grad)
    _give(package, archive, external_data or {}, ambient.grad)
    (name,) = package.methods
    return SavedFunction(package[name], ambient)


# --- private -------------------------------------------------------------------------------------


def _archive(file: str | os.PathLike[str] | BinaryIO) -> Archive:
    if isinstance(file, (str, os.PathLike)):
        return read_archive(Path(file))
    content = file.read()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise UserError("load_compiled_function takes a path, or a file opened for bytes.")
    name = getattr(file, "name", "the file")
    return read_archive(Path(str(name)), io.BytesIO(content))


def _give(package: Package, archive: Archive, given: Mapping[str, object], grad: bool) -> None:
    """Have a package read the tensors of external data. Raises PackageError where they do not
    fit. grad: the grad mode that its function was compiled in."""
    wanted = archive.head["state"].get("external", [])
    found = {key: dict(tensors_of(value)) for key, value in given.items()}
    for key, name, number in wanted:
        called = f"{key}.{name}" if name else key
        if key not in found:
            raise PackageError(
                f"external_data lacks {key!r}, which the function was saved without: give "
                f"{', '.join(sorted({repr(each) for each, _, _ in wanted}))}."
            )
        tensor = found[key].get(name)
        if tensor is None:
            raise PackageError(f"external_data: {key!r} has no {name!r}.")
        if grad and tensor.requires_grad:
            raise PackageError(
                f"external_data: {called} requires gradients, and the function is for inference: "
                "compile and call it under torch.no_grad()."
            )
        reason = package.replace_tensor(number, tensor)
        if reason is not None:
            raise PackageError(f"external_data: {called} {reason}")
