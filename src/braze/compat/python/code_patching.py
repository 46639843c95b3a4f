"""Code that calls a Python object instead of doing what the function did.

A function whose `__code__` is swapped for it does so wherever it is called from, C code included.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

# target(args, kwargs) -> result
Target = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_PLACE = "target"
_NAME = "<braze: redirected>"


def _make_template() -> types.CodeType:
    space: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a constant is called: it is replaced
        exec(f"def template(*args, **kwargs): return {_PLACE!r}(args, kwargs)", space)
    code: types.CodeType = space["template"].__code__
    return code.replace(co_filename=_NAME)


_TEMPLATE = _make_template()


def redirected_code(code: types.CodeType, target: Target) -> types.CodeType:
    """Code for a function that has `code`: a call calls `target(args, kwargs)`."""
    constants = tuple([target if c == _PLACE else c for c in _TEMPLATE.co_consts])
    return _TEMPLATE.replace(
        co_consts=constants,
        co_freevars=code.co_freevars,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )


def set_code(function: types.FunctionType, code: types.CodeType) -> None:
    """Swap a function's code. Python 3.14 warns where a generator's is swapped for another kind,
    which is meant, and which programs that make errors of warnings would not survive."""
    if (function.__code__.co_flags ^ code.co_flags) & _KINDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            function.__code__ = code
    else:
        function.__code__ = code


_KINDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def target_of(code: types.CodeType) -> Target | None:
    """Where redirected code goes; None for any other code."""
    if code.co_filename != _NAME:
        return None
    target: Target = next(c for c in code.co_consts if callable(c))
    return target
