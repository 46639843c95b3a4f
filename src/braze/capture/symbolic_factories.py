"""Factories whose C++ takes a size as a number: the operator is recorded as it is.

torch.linspace(0, 1, n)    aten.linspace of a symbolic `n`: one compile for every `n` above one
"""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.handler_table import answers
from braze.capture.leaf_calls import leaf_call
from braze.shapes.symbolic import ProgramInt

_OPTIONS = frozenset({"dtype", "device"})


@answers(torch.linspace)
def linspace(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """From numbers to numbers, in symbolically many steps."""
    named = {**dict(zip(("start", "end", "steps"), args)), **kwargs}
    options = {name: named[name] for name in named.keys() & _OPTIONS if named[name] is not None}
    steps = named.get("steps")
    plain = len(args) <= 3 and named.keys() <= {"start", "end", "steps", *_OPTIONS}
    ends = [type(named.get(name)) in (int, float) for name in ("start", "end")]
    dtype = options.get("dtype", torch.get_default_dtype())
    plain = plain and all(ends) and dtype.is_floating_point
    if type(steps) is not ProgramInt or not plain or interpreter.frames[-1].runs_eagerly:
        return leaf_call(interpreter, torch.linspace, args, kwargs)
    tracer = interpreter.tracer
    tracer.origin = interpreter.origin("torch.linspace")
    numbers = (named["start"], named["end"], steps.node)
    options = {"dtype": dtype, "device": torch.get_default_device(), **options}
    return tracer.call(torch.ops.aten.linspace.default, numbers, options)
