"""`braze.set_stance`: whether compiled callables compile, serve or run eagerly, for a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, final

from braze import targets
from braze.errors import UserError, unknown_name
from braze.interop.backends import BACKENDS, Backend, GraphCompiler
from braze.marks import MARKS, Mark
from braze.runtime.dispatch.stance import STANCES as STANCES
from braze.runtime.dispatch.stance import Stance

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def check_stance(stance: str) -> None:
    """Raise UserError for the name of no stance."""
    if stance not in STANCES:
        raise UserError(unknown_name("stance", stance, STANCES))


@final
class set_stance:
    """Set what calls of compiled callables do: from now on, in a `with` block, or in a function.

        braze.set_stance("force_eager")                     from now on
        with braze.set_stance("eager_on_recompile"): ...    in the block
        @braze.set_stance("fail_on_recompile")              in each call of the function

    "default": calls are compiled. "force_eager": they run eagerly. "eager_on_recompile",
    "fail_on_recompile": what is compiled serves, and a call that needs a compile runs eagerly, or
    raises CompileForbidden. "eager_then_compile": the first call of a function runs eagerly, and
    sizes that differ at the second are dynamic when that is compiled; "aot_eager_then_compile": the
    first is compiled by the backend "aot_eager". It is the process's: calls of all threads follow
    it. `torch.compiler.set_stance` sets both compilers'.
    force_backend: with "default", what compiles instead of each callable's own backend; what
        that one compiled is used again afterwards.
    A compiled function breaks its graph where it sets the stance; one that is decorated runs
    eagerly inside of compiled code.
    Raises UserError for an unknown stance, and for force_backend with another than "default".
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        force_backend: str | GraphCompiler | Backend | None = None,
    ) -> None:
        check_stance(stance)
        if force_backend is not None and stance != "default":
            raise UserError(f"set_stance: force_backend compiles, and {stance!r} does not.")
        found = None
        if stance == "aot_eager_then_compile":
            force_backend = "aot_eager"
        if force_backend is not None:
            found = BACKENDS.find(force_backend, mode=None, options={}, dynamic=None)
        self._stance = Stance(stance, found)
        self._before = targets.set_stance(self._stance)

    def __enter__(self) -> None:
        """Set it, where it is not set since it was made."""
        targets.set_stance(self._stance)

    def __exit__(self, *exception: object) -> None:
        targets.set_stance(self._before)

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """A function in whose calls this stance is set."""
        stance = self._stance
        targets.set_stance(self._before)

        @functools.wraps(function)
        def under_stance(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            before = targets.set_stance(stance)
            try:
                return function(*args, **kwargs)
            finally:
                targets.set_stance(before)

        MARKS.put(under_stance, Mark.DISABLE, "it sets the stance")
        return under_stance


for _changes in (set_stance, set_stance.__enter__, set_stance.__exit__):
    MARKS.put(_changes, Mark.DISABLE, "it sets the stance")
