"""Bytes of pointwise operators under numerics="eager": every one of OpInfo, in every dtype that it
takes, with Python numbers, 0-dim tensors and in place, beside eager.

    python -m tests.differential.bytes_sweep                 all operators
    python -m tests.differential.bytes_sweep --ops add,exp   these
    python -m tests.differential.bytes_sweep --shard 0/20    every twentieth

All dtypes and numbers of an operator are results of one compiled function. A NaN is any NaN: which
payload eager gives depends on how many elements are left behind its vectors.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo

import braze
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


def differences(info: OpInfo, **options: Any) -> list[str]:
    """The calls whose bytes differ."""
    kept: list[tuple[str, Callable[[Any], Any], torch.Tensor, Any]] = []
    for name, call, x in calls(info):
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


def main(arguments: list[str]) -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="comma-separated full names; all if empty")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator from the k-th")
    options = parser.parse_args(arguments)
    table, total = pointwise(), 0
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
