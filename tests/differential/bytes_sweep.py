"""Bytes of pointwise operators under numerics="eager": every one of OpInfo, in every dtype that it
takes, with Python numbers, 0-dim tensors and in place, beside eager; then those of ATen's pointwise
operators that take numbers or more than two tensors (`addcmul`, `lerp`, `where`, `clamp`, `elu`).

    python -m tests.differential.bytes_sweep                 all operators
    python -m tests.differential.bytes_sweep --ops add,exp   these
    python -m tests.differential.bytes_sweep --shard 0/20    every twentieth

All dtypes and numbers of an operator are results of one compiled function. A NaN is any NaN: which
payload eager gives depends on how many elements are left behind its vectors.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo

import braze
from braze.ir.graphs.random_ops import is_random
from tests.aten_names import aten_names
from tests.differential.op_sweep import operators

DTYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64),
    *(torch.complex128, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)
NUMBERS: tuple[Any, ...] = (
    *(3, -2, 0, 300, 2**40, 0.7, -0.1, -0.0, 1e30, float("inf"), float("nan"), True, False),
    *(torch.tensor(0.7), torch.tensor(0.1, dtype=torch.float64), torch.tensor(257)),
)
# Known to differ.
KNOWN: frozenset[str] = frozenset()
_NUMBER_TYPES = frozenset(("number", "float", "Optional[number]", "Optional[float]"))
# Numbers of an operator that takes several: it gets each, and those behind it.
_ROW = (0.5, -1.0, 1.0, 0.0, -0.0, 2.0, -3.5)
_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-3, 3.3, 100.0, 1e-40, 6e4, 1e30, -1e30)


def values(dtype: torch.dtype) -> torch.Tensor:
    """Values of a dtype, the odd ones among them."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(84, generator=generator, dtype=torch.float64) * 3
    if dtype is torch.bool:
        return drawn > 0
    if dtype.is_complex:
        return torch.complex(drawn, drawn.flip(0)).to(dtype)
    if dtype.is_floating_point:
        edges = torch.tensor([*_EDGES, float("inf"), float("-inf"), float("nan")])
        return torch.cat([drawn, edges.double()]).to(dtype)
    ends = torch.iinfo(dtype)
    # Not the least number: eager divides it by -1, which ends the process.
    least = ends.min + (ends.min < 0)
    edges = torch.tensor([least, ends.max, 0, 1, ends.max - 1], dtype=dtype)
    return torch.cat([(drawn * 20).to(torch.int64).clamp(ends.min, ends.max).to(dtype), edges])


def same_bytes(actual: Any, expected: Any) -> bool:
    """Whether two results are equal bit for bit, but for what a NaN carries."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, (tuple, list)):
        return len(actual) == len(expected) and all(map(same_bytes, actual, expected))
    if not isinstance(expected, torch.Tensor):
        return bool(actual == expected or actual != actual)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if expected.is_complex():
        pair = (torch.view_as_real(t.resolve_conj()) for t in (actual, expected))
        actual, expected = pair
    equal = actual == expected
    if expected.dtype.is_floating_point:
        equal &= torch.signbit(actual) == torch.signbit(expected)
        equal |= (actual != actual) & (expected != expected)
    return bool(equal.all())


def calls(info: OpInfo) -> Iterator[tuple[str, Callable[[Any], Any], torch.Tensor]]:
    """(what it is, the call, its tensor) of one operator."""
    op, in_place = info.op, info.inplace_variant
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        x, name = values(dtype), str(dtype).removeprefix("torch.")
        if isinstance(info, UnaryUfuncInfo):
            yield name, lambda x: op(x), x
            if in_place is not None:
                yield f"{name} in place", lambda x: in_place(x.clone()), x
            continue
        yield f"{name} both", lambda x: op(x, x.flip(0)), x
        for number in NUMBERS:
            text = f"{name} {number!r}"
            yield text, lambda x, n=number: op(x, n), x  # type: ignore[misc]
            if in_place is not None:
                yield f"{text} in place", lambda x, n=number: in_place(x.clone(), n), x  # type: ignore[misc]


def calls_by_schema(
    op: torch._ops.OpOverload,
) -> Iterator[tuple[str, Callable[[Any], Any], torch.Tensor]]:
    """The same of an operator of ATen's: tensors of one dtype, and rows of numbers."""
    for dtype in DTYPES[:-1]:
        x, name = values(dtype), str(dtype).removeprefix("torch.")
        for row in range(len(_ROW)):
            given: list[tuple[Any, Any]] = []
            for count, argument in enumerate(op._schema.arguments):
                kind = str(argument.type)
                if kind in _NUMBER_TYPES:
                    given.append((argument, _ROW[(row + count) % len(_ROW)]))
                elif kind in ("Tensor", "Optional[Tensor]"):
                    given.append((argument, x.roll(count) if count else None))
                elif not argument.has_default_value():
                    given.append((argument, bool(row % 2)))
            text = ", ".join(str(value) for _, value in given if isinstance(value, float))
            yield f"{name} ({text})", functools.partial(_call, op, given, dtype), x


def _call(op: Any, given: list[tuple[Any, Any]], dtype: torch.dtype, x: torch.Tensor) -> Any:
    args, kwargs = [], {}
    for argument, value in given:
        value = x if value is None else value
        if argument.name in ("condition", "mask"):
            value = value > 0
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return op(*args, **kwargs)


def differences(info: OpInfo | torch._ops.OpOverload, **options: Any) -> list[str]:
    """The calls whose bytes differ."""
    kept: list[tuple[str, Callable[[Any], Any], torch.Tensor, Any]] = []
    by_schema = isinstance(info, torch._ops.OpOverload)
    for name, call, x in calls_by_schema(info) if by_schema else calls(info):
        try:
            kept.append((name, call, x, call(x)))
        except Exception:  # eager refuses it
            continue
    found: list[str] = []
    parts = [kept[n : n + 24] for n in range(0, len(kept), 24)]
    for part in parts:
        functions = [call for _, call, _, _ in part]

        def program(xs: list[torch.Tensor], functions: Any = functions) -> list[Any]:
            return [function(x) for function, x in zip(functions, xs)]

        compiled = braze.compile(program, options={"numerics": "eager", **options})
        try:
            made = compiled([x for _, _, x, _ in part])
        except Exception as error:
            found.append(f"{part[0][0]} and on: {type(error).__name__}: {str(error)[:100]}")
            continue
        finally:
            braze.reset()
        for (name, _, _, expected), actual in zip(part, made, strict=True):
            if not same_bytes(actual, expected):
                found.append(name)
    return found


def pointwise() -> dict[str, OpInfo]:
    """The operators of one and of two tensors, by their full names."""
    kinds = (UnaryUfuncInfo, BinaryUfuncInfo)
    return {n: i for n, i in operators().items() if isinstance(i, kinds)}


def of_several() -> dict[str, torch._ops.OpOverload]:
    """ATen's pointwise functional operators that take a number, or more than two tensors."""
    found: dict[str, torch._ops.OpOverload] = {}
    for packet_name in aten_names():
        packet = getattr(torch.ops.aten, packet_name)
        for name in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            op = getattr(packet, name)
            kinds = [str(a.type) for a in op._schema.arguments]
            takes = sum("Tensor" in k for k in kinds) > 2 or _NUMBER_TYPES & {*kinds}
            if (
                torch.Tag.pointwise in op.tags
                and takes
                and not (op._schema.is_mutable or is_random(op))
                and kinds[0] == "Tensor"
                and not any("List" in kind for kind in kinds)
            ):
                found[f"aten.{packet_name}.{name}"] = op
    return found


def main(arguments: list[str]) -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="comma-separated full names; all if empty")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator from the k-th")
    options = parser.parse_args(arguments)
    table, total = {**pointwise(), **of_several()}, 0
    names = options.ops.split(",") if options.ops else list(table)
    shard, shards = map(int, options.shard.split("/"))
    for name in names[shard::shards]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differences(table[name])
        total += len(found) if name not in KNOWN else 0
        if found:
            known = " (known)" if name in KNOWN else ""
            print(f"{name}{known}: {'; '.join(found)}", flush=True)
    print(f"# {len(names[shard::shards])} operators, {total} calls differ")
    return min(total, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
