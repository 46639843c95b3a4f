"""What other compilers of Python programs see of a compiled callable: its original.

`torch.compile` and `torch.export` (strict) interpret the frames that they meet, `torch.jit.script`
reads their source. Braze's own frames say nothing to them, and are nothing to be compiled.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from braze.compat import private_names as private

# Followed by PyTorch's own compiler from a function to the one that it interprets instead.
_INTERPRETED = "_torchdynamo_inline"
_frames: Any = private.other_frames
_Function = TypeVar("_Function", bound=type[torch.autograd.Function])


def interpreted_as(function: Any, original: object) -> None:
    """Have PyTorch's compiler interpret `original` where it meets a call of `function`, with the
    same arguments. Where `function` runs, neither its frame nor those below it are compiled."""
    setattr(function, _INTERPRETED, original)
    _skip(function.__code__)


def unseen_by_other_compilers(function: _Function) -> _Function:
    """Have PyTorch's compiler run an autograd Function's methods, and what they call, as they are.

    The engine calls them in the thread of `backward()`, where that compiler may be on the watch for
    frames: it would capture Braze's own, which compile the backward (a decorator)."""
    for name in ("forward", "setup_context", "backward", "jvp", "vmap"):
        method = vars(function).get(name)
        if method is not None:
            _skip(inspect.unwrap(method.__func__).__code__)
            _skip(method.__func__.__code__)
    return function


def hide_from_other_compilers(functions: Iterable[object]) -> None:
    """Have PyTorch's compiler run these functions, those of them that are Python's, as they are."""
    for function in functions:
        if type(function) is types.FunctionType:
            _skip(function.__code__)


def _skip(code: types.CodeType) -> None:
    if _frames is None:
        return
    skip = _frames._FrameAction.SKIP
    _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, skip))
