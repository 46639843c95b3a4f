"""Names kernels after the operators that they compute.

    layer_norm(x + y), then gelu        ->        fused_add_layer_norm_gelu_3

The number is the kernel's place among those of the graph. Casts, copies and views give a name only
to a kernel that does nothing else. A kernel of statements whose operators nobody knows (of a loop
program that was written by hand) keeps its name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from braze.ir.kernels.schedule import Kernel, Step, origins_of

_LONGEST = 64  # characters of the operators' names
_MOVES = frozenset("cast clone copy view expand permute slice transpose reshape fill full".split())
_SHORT = {"to_copy": "cast", "softmax_backward_data": "softmax_backward"}


def name_kernels(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps with named kernels."""
    named: list[Step] = []
    count = 0
    for step in steps:
        if isinstance(step, Kernel):
            operators = [*_operators(step)]
            if operators:
                step = replace(step, name=f"{_joined(operators)}_{count}")
            count += 1
        named.append(step)
    return tuple(named)


# --- private ---------------------------------------------------------------------------------


def _operators(kernel: Kernel) -> Iterator[str]:
    if kernel.attention is not None:
        yield "attention"
    if kernel.product is not None:
        yield "matmul"
    for origin in origins_of(kernel):
        if origin.op:
            yield _short(origin.op)


@functools.cache
def _short(op: str) -> str:
    """`aten._native_layer_norm.default` -> `layer_norm`."""
    name = op.split(".")[1] if "." in op else op
    name = re.sub(r"\W", "_", name).strip("_").removeprefix("native_")
    return _SHORT.get(name, name)


def _joined(operators: list[str]) -> str:
    names = list(dict.fromkeys(operators))
    names = [name for name in names if name not in _MOVES] or names
    kept: list[str] = []
    for name in names:
        if kept and len("_".join([*kept, name])) > _LONGEST:
            kept.append(f"and_{len(names) - len(kept)}_more")
            break
        kept.append(name)
    return "_".join(["fused", *kept] if len(names) > 1 else kept)
