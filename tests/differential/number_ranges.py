"""Every operator with every number that a dtype may not hold: eager against the tracer."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from braze.ir.graphs.random_ops import is_random
from braze.tracing import Tracer, reads_data

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
)
NUMBERS: tuple[Any, ...] = (
    *(-1, -129, -256, 300, 70_000, -70_000, 1 << 40, (1 << 63) - 1, 1 << 63),
    *(-0.5, 300.0, 65_504.0, 65_519.0, 1e5, 3.4028236e38, 1e51, -1e51),
    *(math.inf, -math.inf, math.nan, 1j, 1e51j),
)
_SHAPES = ((2, 2), (2, 3), (2,), (2, 2, 2), (2, 2, 2, 2), ())
# Their numbers say how long they run, or how large they are.
_UNBOUNDED = ("polynomial", "arange", "range", "quantize")
_SEVERAL_TENSORS = ("_foreach", "_fused", "_amp", "_sparse", "sparse", "_nested", "_cslt")
_NUMBER_TYPES = ("number", "Optional[number]")


def operators() -> Iterator[torch._ops.OpOverload]:
    """Those of ATen that take numbers and take or make tensors, less what draws random numbers, and
    less those with `out=`."""
    aten = torch.ops.aten
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        if name.startswith(_SEVERAL_TENSORS) or any(part in name for part in _UNBOUNDED):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            types = [str(argument.type) for argument in op._schema.arguments]
            tensors = "Tensor" in types or any(n == "dtype" for n in _names(op))
            writes_out = any(argument.is_out for argument in op._schema.arguments)
            if not tensors or writes_out or is_random(op):
                continue
            if not {*types}.isdisjoint(_NUMBER_TYPES):
                yield op


def _names(op: torch._ops.OpOverload) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def number_names(op: torch._ops.OpOverload) -> list[str]:
    """The arguments that are numbers."""
    numbers = [a.name for a in op._schema.arguments if str(a.type) in _NUMBER_TYPES]
    return [name for name in numbers if name != "correction"]


def arguments(
    op: torch._ops.OpOverload, dtype: torch.dtype, shape: tuple[int, ...]
) -> dict[str, Any] | None:
    """What the operator may take, by name; None where an argument is of no known kind."""
    made: dict[str, Any] = {}
    for argument in op._schema.arguments:
        kind, name = str(argument.type), argument.name
        if kind == "Tensor":
            made[name] = _tensor(name, dtype, shape)
        elif argument.has_default_value():
            continue
        elif kind in _VALUES:
            made[name] = _VALUES[kind]
        elif kind == "List[int]":
            made[name] = [1, 1] if name == "pad" else [2] * max(len(shape), 1)
        elif kind.startswith("Optional"):
            made[name] = None
        else:
            return None
    if "Tensor" not in [str(argument.type) for argument in op._schema.arguments]:
        made["dtype"] = dtype
    return made


_VALUES = {"number": 1, "int": 0, "float": 0.5, "bool": False, "str": "add"}


def _tensor(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if name in ("index", "indices"):
        return torch.zeros(shape or (2,), dtype=torch.int64)
    if name in ("mask", "condition"):
        return torch.ones(shape, dtype=torch.bool)
    return torch.ones(shape, dtype=dtype)


Outcome = tuple[str, str] | None


def eager(op: Any, given: dict[str, Any]) -> Outcome:
    """What the operator raises, if it does."""
    copies = {n: a.clone() if isinstance(a, torch.Tensor) else a for n, a in given.items()}
    try:
        op(**copies)
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]
    return None


def traced(op: Any, given: dict[str, Any]) -> Outcome:
    """What it raises on fake tensors."""
    tracer = Tracer()
    fakes = {n: tracer.add_input(a) if isinstance(a, torch.Tensor) else a for n, a in given.items()}
    try:
        with tracer:
            op(**fakes)
    except Exception as error:
        if reads_data(error):  # which breaks the graph, as what is untraceable does
            return "Untraceable", ""
        return type(error).__name__, str(error).split("\n")[0]
    return None


def cases(op: Any) -> Iterator[tuple[torch.dtype, dict[str, Any]]]:
    """Arguments with one number that a dtype may not hold, for each dtype of which the operator
    takes tensors, where it takes ones."""
    for dtype in DTYPES:
        for shape in _SHAPES:
            plain = arguments(op, dtype, shape)
            if plain is not None and eager(op, plain) is None:
                break
        else:
            continue
        for name, number in itertools.product(number_names(op), NUMBERS):
            if eager(op, {**plain, name: 1}) is None:
                yield dtype, {**plain, name: number}


def _is_known(op: Any, numbers: dict[str, Any]) -> bool:
    """Where something else differs than what a dtype holds: meta kernels in Python refuse a float
    as the factor of integers, and promotion takes integers beyond 64 bits with a sign."""
    if op.__name__.startswith("index_add"):
        return type(numbers["alpha"]) is float
    return op.__name__.startswith("remainder") and 1 << 63 in numbers.values()


def differences(op: Any) -> tuple[int, int, list[str]]:
    """How many cases there are, how many of them eager refuses, and where the tracer differs."""
    found, refused, count = [], 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype, given in cases(op):
            count += 1
            expected, made = eager(op, given), traced(op, given)
            refused += expected is not None
            numbers = {name: given[name] for name in number_names(op) if name in given}
            if (
                expected != made
                and not (made and made[0] == "Untraceable")
                and not _is_known(op, numbers)
            ):
                found.append(f"{op} {dtype} {numbers}: eager {expected}, traced {made}")
    return count, refused, found
