"""How results lie in memory: every OpInfo, its first input laid out in odd ways, beside eager.

    python -m tests.differential.memory_sweep                  all operators
    python -m tests.differential.memory_sweep --ops add,isin   these
    python -m tests.differential.memory_sweep --shard 0/40     every fortieth

Compared are sizes, strides (of dimensions of more than one element), offsets, lazy bits, whether
autograd takes a result for a view, and which results share a storage with which inputs and results;
then the strides of the inputs' gradients. What differs and is known stands, with what differs, in
memory_sweep_failures.txt.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import braze
from tests.differential.op_sweep import full_name, operators

LISTED = Path(__file__).with_name("memory_sweep_failures.txt")
_SAMPLES = 2
# Eager itself ends the process there.
CRASHES = frozenset({"lu_unpack"})


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.dim() > 1 else x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape) if x.dim() and x.shape[0] > 1 else x


def _stepped(x: torch.Tensor) -> torch.Tensor:
    if not x.dim():
        return x
    wide = torch.empty((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
    piece = wide[..., 1::2][..., : x.shape[-1]]
    return piece.copy_(x)


def _empty(x: torch.Tensor) -> torch.Tensor:
    return x[:0] if x.dim() else x


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": _transposed,
    "channels_last": _channels_last,
    "expanded": _expanded,
    "stepped": _stepped,
    "empty": _empty,
}


def _described(tensors: list[Any], inputs: list[torch.Tensor]) -> list[Any]:
    """What is compared of each result."""
    storages = [x.untyped_storage()._cdata for x in inputs]
    found: list[Any] = []
    for value in tensors:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            found.append(type(value).__name__)
            continue
        storage = value.untyped_storage()._cdata
        shared = storages.index(storage) if storage in storages else -1
        storages.append(storage)
        is_empty = not value.numel()
        strides = [s for n, s in zip(value.shape, value.stride()) if n > 1 and not is_empty]
        bits = value.is_conj(), value.is_neg(), value._is_view()
        found.append((tuple(value.shape), strides, value.storage_offset(), shared, bits))
    return found


def _laid_out(sample: SampleInput, layout: str, gradients: bool) -> tuple[Any, Any, list[Any]]:
    """Arguments made anew, and the tensors among them."""
    change = LAYOUTS[layout]

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        return leaf.detach().clone().requires_grad_(gradients and leaf.is_floating_point())

    first = sample.input
    if isinstance(first, torch.Tensor):
        first = change(first.detach().clone())
        first.requires_grad_(gradients and first.is_floating_point())
    else:
        first = tree_map(fresh, first)
    args, kwargs = tree_map(fresh, (first, *sample.args)), tree_map(fresh, sample.kwargs)
    args = (first, *args[1:])
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    return args, kwargs, tensors


def _memory(
    function: Any, sample: SampleInput, layout: str, gradients: bool
) -> tuple[list[Any], list[Any]]:
    """How results and gradients lie in memory. Raises what the operator raises."""
    args, kwargs, inputs = _laid_out(sample, layout, gradients)
    torch.manual_seed(1)
    results = tree_flatten(function(*args, **kwargs))[0]
    found = _described(results, inputs)
    wanting = [x for x in inputs if x.requires_grad]
    made = [x for x in results if isinstance(x, torch.Tensor) and x.grad_fn and x.numel()]
    if layout == "empty" or not (wanting and made) or any(x.is_complex() for x in made):
        return found, []  # some of eager's backwards read memory that an empty input has not
    given = [torch.ones_like(x) for x in made]
    slopes = torch.autograd.grad(made, wanting, given, allow_unused=True)
    return found, [
        entry[:2] if isinstance(entry, tuple) else entry for entry in _described([*slopes], [])
    ]


def differences(op: OpInfo, layout: str, samples: list[SampleInput]) -> Iterator[str]:
    """What differs, in a word for each kind."""
    names = ("shape", "stride", "offset", "alias", "flags")
    for sample in samples:
        gradients = op.supports_autograd

        def function(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        try:
            expected = _memory(function, sample, layout, gradients)
        except Exception:  # eager refuses such an input
            continue
        try:
            compiled = braze.compile(function, backend="aot_eager")
            ours = _memory(compiled, sample, layout, gradients)
        except Exception as error:
            yield f"raises {type(error).__name__}"
            continue
        finally:
            braze.reset()
        for want, got in zip(expected[0], ours[0], strict=True):
            if want != got and type(want) is type(got) is tuple:
                yield from (n for n, a, b in zip(names, want, got) if a != b)
            elif want != got:
                yield "kind"
        if expected[1] != ours[1]:
            yield "gradient"


def swept(names: list[str]) -> dict[str, set[str]]:
    """Operator and layout -> the kinds of differences."""
    table, found = operators(), {}
    for name in names:
        op = table[name]
        if torch.float32 not in op.supported_dtypes("cpu") or name in CRASHES:
            continue
        torch.manual_seed(0)
        random.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
            chosen = samples[:: max(1, len(samples) // _SAMPLES)][:_SAMPLES]
            for layout in LAYOUTS:
                if kinds := set(differences(op, layout, chosen)):
                    found[f"{name} {layout}"] = kinds
    return found


def listed() -> dict[str, set[str]]:
    """What is known to differ."""
    lines = LISTED.read_text().splitlines() if LISTED.exists() else []
    pairs = [line.split(": ") for line in lines if line and not line.startswith("#")]
    return {key: set(kinds.split(", ")) for key, kinds in pairs}


def main(arguments: list[str]) -> int:
    """Print what differs, and what of it is not listed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="comma-separated full names; all if empty")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator from the k-th")
    options = parser.parse_args(arguments)
    names = options.ops.split(",") if options.ops else [full_name(op) for op in op_db]
    shard, shards = map(int, options.shard.split("/"))
    known, counts, fresh = listed(), Counter[str](), 0
    for name in names[shard::shards]:
        for key, kinds in swept([name]).items():
            counts.update(kinds)
            is_known = kinds <= known.get(key, set())
            fresh += not is_known
            print(f"{key}: {', '.join(sorted(kinds))}{'' if is_known else '  NEW'}", flush=True)
    print(f"# {dict(counts)}, {fresh} not listed")
    return min(fresh, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
