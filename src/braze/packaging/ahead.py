"""`aot_compile`: a function that is compiled at once, for one kind of call, and can be saved.

    compiled = braze.compile(f, fullgraph=True).aot_compile(((x,), {}))
    compiled(y)                                 raises where the guards do not hold
    compiled.save_compiled_function("f.braze")

In the process that compiled it, it is one entry of `braze.compile` with all its guards, gradients
included. A file holds a package of the call (`braze.package`), which is for inference.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from braze.compile_records import LeftToEager
from braze.errors import PackageInputError, UserError
from braze.interop.backends import Backend, Level
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import GuardKind
from braze.options import Options
from braze.packages.archive import write_archive
from braze.packages.saved_function import surroundings_data
from braze.packaging.package import package_as_compiled
from braze.runtime.dispatch.argument_binding import make_binder
from braze.runtime.dispatch.cache_entries import CacheEntry
from braze.runtime.dispatch.compiled_function import Dispatcher
from braze.runtime.guards.evaluate import explain_failure

_NOT_WHOLE = (
    "aot_compile is for functions that one graph holds: give braze.compile fullgraph=True, so that "
    "a graph break is an error."
)


@final
class AotCompiledFunction:
    """A function compiled ahead of its calls, by `braze.compile(f, fullgraph=True).aot_compile`.

    It takes what the function takes. A call that it was not compiled for, by its arguments or by
    what else the function reads, raises `braze.exc.PackageInputError`, a RuntimeError that names
    the guard: nothing is compiled again.
    """

    def __init__(
        self,
        function: types.FunctionType,
        bound: tuple[Any, ...],
        dispatcher: Dispatcher,
        options: Options,
        backend: Backend,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> None:
        """bound: arguments that the function has already. args, kwargs: of the call to compile
        for. Raises GraphBreakError where one graph cannot hold it, UserError where it is not
        compiled."""
        functools.update_wrapper(self, function, updated=())
        self._function, self._bound, self._dispatcher = function, bound, dispatcher
        self._options, self._backend = options, backend
        self._example = tuple(args), dict(kwargs)
        self._bind = make_binder(function)
        values = self._values(*self._example)
        cache = dispatcher.cache((id(function.__code__), 0), function.__code__, 0)
        found = cache.find_or_compile(dispatcher.compile_frame, values, function)
        if isinstance(found, LeftToEager):
            raise UserError(f"aot_compile: {function.__qualname__} is not compiled: {found.reason}")
        self._entry: CacheEntry = found[0]

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """The result of the function. Raises PackageInputError where a guard does not hold."""
        values = self._values(args, kwargs)
        inputs = self._entry.check(values)
        if inputs is None:
            failed = explain_failure(self._entry.memory.tree, values)
            raise PackageInputError(
                f"{self._function.__qualname__} was compiled ahead of time for another call: "
                f"{failed}"
            )
        self._dispatcher.tally.calls.add()
        given = (*self._bound, *args)
        return self._dispatcher.run(self._entry, inputs, values, self._function, given, kwargs)

    def guard_check(self, /, *args: object, **kwargs: object) -> bool:
        """Whether it was compiled for such a call."""
        return self._entry.check(self._values(args, kwargs)) is not None

    def save_compiled_function(
        self, path: str | os.PathLike[str], external_data: Mapping[str, object] | None = None
    ) -> Path:
        """Write the function to a file that `braze.load_compiled_function` loads in another
        process, without its source, tracing or a compiler. Returns the path.

        It is for inference on the CPU, as `braze.package`: tensors that the function reads, the
        parameters of its modules included, are in the file, as they are now. external_data: modules
        and tensors, by name, that are not: `load_compiled_function` is given others. Raises
        UserError for what a file cannot hold, and where what the function reads has changed since.
        """
        args, kwargs = self._example
        values = self._values(args, kwargs)
        if self._entry.check(values) is None:
            raise UserError(
                f"{self._function.__qualname__} cannot be saved: what it was compiled with has "
                f"changed since: {explain_failure(self._entry.memory.tree, values)}"
            )
        if self._backend.level is not Level.KERNELS:
            raise UserError(
                f"{self._function.__qualname__} was compiled by the backend "
                f"{self._backend.name!r}: files hold what Braze's own backend compiled."
            )
        target: Any = self._function
        if self._bound:
            target = types.MethodType(self._function, *self._bound)
        head, members = package_as_compiled(
            target, args, kwargs, self._options, external_data or {}
        )
        (ambient,) = [
            guard.expected
            for guard in self._entry.compiled.guards
            if guard.kind is GuardKind.AMBIENT
        ]
        write_archive(Path(path), {**head, "surroundings": surroundings_data(ambient)}, members)
        return Path(path)

    def __repr__(self) -> str:
        return f"<function {self._function.__qualname__}, compiled ahead of time>"

    def _values(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> FrameValues:
        """What a call's frame begins with. Raises TypeError as the call does."""
        function, given = self._function, (*self._bound, *args)
        try:
            bound = self._bind(*given, **kwargs)
        except TypeError:
            inspect.signature(function).bind(*given, **kwargs)
            raise
        return FrameValues(bound, (), function.__globals__)


def aot_compile(
    example: tuple[tuple[object, ...], Mapping[str, object]],
    *,
    function: types.FunctionType,
    bound: tuple[object, ...],
    options: Options,
    backend: Backend,
    make_dispatcher: Callable[[], Dispatcher],
) -> AotCompiledFunction:
    """Compile a function for calls such as one, and for no others.

    example: the arguments and the keyword arguments of the call, which is not made. Raises
    UserError without `fullgraph=True`, GraphBreakError where one graph cannot hold the function.
    """
    if not options.fullgraph:
        raise UserError(_NOT_WHOLE)
    is_pair = isinstance(example, (tuple, list)) and len(example) == 2
    if not is_pair or not (
        isinstance(example[0], (tuple, list)) and isinstance(example[1], Mapping)
    ):
        raise UserError(f"aot_compile takes (args, kwargs) of a call, not {example!r}.")
    args, kwargs = example
    dispatcher = make_dispatcher()
    return AotCompiledFunction(function, bound, dispatcher, options, backend, tuple(args), kwargs)
