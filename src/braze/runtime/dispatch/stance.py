"""What calls of everything compiled do now, whatever was asked for when it was compiled.

A stance is of the process, as torch.compile's is. It costs a call nothing: dispatchers are told
when it changes, and where compiled code must not serve, caches hide their entries, so that every
way into them finds none and asks `Dispatcher.find`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import final

from braze.compile_records import LeftToEager
from braze.errors import CompileForbidden
from braze.frozen import frozen
from braze.ir.origin import Origin

STANCES: Mapping[str, str] = types.MappingProxyType(
    {
        "default": "calls are compiled",
        "force_eager": "calls run eagerly, compiled or not",
        "eager_on_recompile": "what is compiled serves; a call that needs a compile runs eagerly",
        "fail_on_recompile": "what is compiled serves; a call that needs a compile raises",
        "eager_then_compile": "the first call runs eagerly, later ones are compiled",
        "aot_eager_then_compile": "the first call is compiled by 'aot_eager'",
    }
)


@final
@frozen
class Stance:
    """One of STANCES.

    backend: what compiles instead of each callable's own backend, all calls or the first; None: its
        own does.
    """

    name: str = "default"
    backend: object = None

    @property
    def hides_entries(self) -> bool:
        """Whether what each callable's own backend compiled serves no call."""
        if self.is_of_first_call:
            return False
        return self.name == "force_eager" or self.backend is not None

    @property
    def is_of_first_call(self) -> bool:
        """Whether the first call of a place is another than those after it."""
        return self.name in ("eager_then_compile", "aot_eager_then_compile")


DEFAULT = Stance()
EAGER = Stance("force_eager")


def without_compile(stance: Stance, where: Origin, function: str, is_rest: bool) -> LeftToEager:
    """Why a call is left to eager that would be compiled under the default stance.

    Raises CompileForbidden under "fail_on_recompile"."""
    if stance.name == "fail_on_recompile":
        what = f"{function} would be compiled, which the stance 'fail_on_recompile' forbids"
        hint = "call it with such arguments before the stance is set"
        raise CompileForbidden(what, hint=hint, origin=where)
    what = f"the stance is {stance.name!r}: {STANCES[stance.name]}"
    return LeftToEager("stance", what, "", str(where), function, is_rest, is_asked_for=True)
