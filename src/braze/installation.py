"""`braze.install`: what calls `torch.compile` gets Braze's compile; and what of `torch.compiler`
is said of both compilers, installed or not.

For programs whose libraries call it themselves (`Trainer(torch_compile=True)`, a pipeline's
`unet.compile()`): what asks for PyTorch's own compiler, by name or by naming none, is compiled by
Braze; what names another backend goes where it went.
"""

from __future__ import annotations

import functools
import io
import os
import types
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from braze.api import compile as compile_by_braze
from braze.api import compile_in_place
from braze.api import load_compiled_function as load_by_braze
from braze.api import reset as reset_braze
from braze.compat.python.other_compilers import hide_from_other_compilers
from braze.compat.torch.dynamo_interop import stance_of_compiler
from braze.compat.torch.nn_modules import called_module, compiled_call
from braze.interop.dynamo_config import settings_of_dynamo
from braze.options import config
from braze.packages.archive import is_archive
from braze.stances import STANCES, check_stance, set_stance

_OURS = ("inductor", "braze")
# Arguments of torch.compile that say what is so here anyway: each call has entries of its own.
_ALWAYS_SO = ("isolate_recompiles",)
# And those of which Braze knows nothing, unless they say nothing.
_UNKNOWN = ("shapes_spec",)


@final
class install:
    """Make `torch.compile` compile with Braze: from now on, or in a `with` block.

        braze.install()                     from now on
        with braze.install(): ...           in the block
        installed.uninstall()               as it was before

    It is the process's, all of its threads'. What was compiled meanwhile stays compiled by what
    compiled it. `nn.Module.compile`, which calls it, compiles in place. A call that names another
    backend than "inductor" or "braze", or has an argument that Braze does not know (`shapes_spec`),
    is PyTorch's. What a program set on `torch._dynamo.config` before it calls `torch.compile` and
    means something to Braze (`recompile_limit`, `capture_scalar_outputs`,
    `assume_static_by_default`, ...) is heeded, and what means nothing is warned of.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Callable[..., Any]]] = []
        self._install()

    def _install(self) -> None:
        if not self._before:
            for owner, name, replace in _REPLACED:
                theirs = getattr(owner, name)
                self._before.append((owner, name, theirs))
                setattr(owner, name, replace(theirs))

    def uninstall(self) -> None:
        """Give PyTorch's names what they had."""
        while self._before:
            setattr(*self._before.pop())

    def __enter__(self) -> install:
        self._install()
        return self

    def __exit__(self, *exception: object) -> None:
        self.uninstall()


def _in_place_of(torch_compile: Callable[..., object]) -> Callable[..., Any]:
    """A function with the signature of PyTorch's, and its answer where Braze's is not wanted."""

    @functools.wraps(torch_compile)
    def compile(model: Any = None, **arguments: Any) -> Any:
        if not _is_for_braze(arguments):
            return torch_compile(model, **arguments)
        ours = {n: v for n, v in arguments.items() if n not in (*_ALWAYS_SO, *_UNKNOWN, "backend")}
        module = called_module(model) if type(model) is types.MethodType else None
        with config.patch(settings_of_dynamo()):
            if module is not None:  # `nn.Module.compile`, which puts on the module what it gets
                compile_in_place(module, **ours)
                return compiled_call(module)
            return compile_by_braze(model, **ours)

    hide_from_other_compilers((compile,))
    return compile


def _reset_both(torch_reset: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(torch_reset)
    def reset() -> None:
        reset_braze()
        torch_reset()

    hide_from_other_compilers((reset,))
    return reset


def _stance_of_both(torch_set_stance: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(torch_set_stance)
    def set_both(stance: str = "default", **arguments: Any) -> _Stances:
        check_stance(stance)
        theirs = torch_set_stance(stance, **arguments)
        return _Stances(theirs, set_stance(stance, force_backend=arguments.get("force_backend")))

    hide_from_other_compilers((set_both,))
    return set_both


def _load_of_both(torch_load: Callable[..., object]) -> Callable[..., Any]:
    """A file that Braze's functions wrote is loaded by Braze, any other one by PyTorch."""

    @functools.wraps(torch_load)
    def load_compiled_function(file: Any, **arguments: Any) -> Any:
        if isinstance(file, (str, os.PathLike)):  # which PyTorch does not take
            return load_by_braze(file, **arguments)
        content = file.read()
        is_ours = isinstance(content, bytes) and is_archive(content)
        load = load_by_braze if is_ours else torch_load
        return load(io.BytesIO(content) if isinstance(content, bytes) else file, **arguments)

    hide_from_other_compilers((load_compiled_function,))
    return load_compiled_function


@final
class _Stances:
    """What PyTorch's `set_stance` returns, and Braze's: for a `with` block, or a decorator."""

    def __init__(self, *stances: Any) -> None:
        self._stances = stances

    def __enter__(self) -> None:
        for stance in self._stances:
            stance.__enter__()

    def __exit__(self, *exception: object) -> None:
        for stance in reversed(self._stances):
            stance.__exit__(*exception)

    def __call__(self, function: Any) -> Any:
        for stance in self._stances:
            function = stance(function)
        return function


def follow_torch() -> None:
    """From now on, `torch.compiler.set_stance`, `reset` and `load_compiled_function` are of both
    compilers: where a program says them, it means what it compiled, whatever compiled it. A stance
    that is set already is Braze's, too. (PyTorch tells nobody of its stance,
    and to ask at each call is dear.)
    """
    for owner, name, replace in _FOLLOWED:
        if not hasattr(owner, name):  # of another PyTorch
            continue
        setattr(owner, name, replace(getattr(owner, name)))
    stance, forced = stance_of_compiler()
    if stance in STANCES and stance != "default":
        set_stance(stance)
    elif forced is not None:
        set_stance(force_backend=forced)


# (owner, name, what makes the one that takes the place of PyTorch's)
_Row: TypeAlias = tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]
_REPLACED: tuple[_Row, ...] = ((torch, "compile", _in_place_of),)
_FOLLOWED: tuple[_Row, ...] = (
    (torch.compiler, "reset", _reset_both),
    (torch.compiler, "set_stance", _stance_of_both),
    (torch.compiler, "load_compiled_function", _load_of_both),
)


def _is_for_braze(arguments: dict[str, object]) -> bool:
    backend = arguments.get("backend")
    if backend is None:
        named = getattr(torch.compiler, "get_default_backend", lambda: "inductor")
        backend = named()
    if any(arguments.get(name) is not None for name in _UNKNOWN):
        return False
    return isinstance(backend, str) and backend in _OURS
