"""Functions made of generated Python text.

A function holds its globals. Where those hold the function as well, as `exec` leaves them, only the
cycle collector frees it, and with it all that its text refers to: kernels, tensors, the program's
own objects. `tests/architecture/test_generated_code.py` finds any other `exec`.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from braze.compat.python.line_tables import without_columns


def define(
    texts: Sequence[str], file: str, names: dict[str, object], codes: Sequence[types.CodeType] = ()
) -> Any:
    """The function that the last text defines, with `names` as its globals, which do not hold it.

    Each text begins with `def NAME(`. Functions of the other texts are defaults of the last one's
    parameters (`def call(inputs, part0=part0)`); they do not call each other. file: what tracebacks
    call the text. codes: of the texts, where they were compiled before.
    """
    for code in codes or compile_texts(texts, file):
        exec(code, names)
    *_, function = [names.pop(text[len("def ") : text.index("(")]) for text in texts]
    return function


def compile_texts(texts: Sequence[str], file: str) -> tuple[types.CodeType, ...]:
    """The code of each text, which several calls of `define` may run."""
    return tuple([without_columns(compile(text, file, "exec")) for text in texts])
