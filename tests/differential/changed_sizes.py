"""Operators called again at other sizes: every OpInfo of PyTorch's test database against eager.

One compiled function meets a sample's own sizes first, then each change of them: every size that
inputs share is changed in all of them, and every dimension of every tensor by itself, which mostly
is an error or broadcasts. It has to do what eager does: the same values, dtypes, shapes, strides
and aliasing, or an error of the same type.

    python -m tests.differential.changed_sizes --ops clamp,ldexp --samples 5

The stages behind lowering are left out: the loop program is run by the evaluator, so that nothing
is built by a C++ compiler. `--kernels` builds and runs kernels instead.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final
from unittest import mock

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import braze
from braze import pipeline
from braze.compat.torch.versions import TORCH
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph
from braze.ir.kernels.run_loops import run_loops
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from tests.differential.op_sweep import UNDEFINED_CONTENTS, full_name, operators

_MOST_CHANGES = 60
# Eager reads or writes outside of its memory where their inputs' sizes do not fit.
_UNCHECKED_IN_EAGER = frozenset(
    "native_batch_norm _native_batch_norm_legit _batch_norm_with_update lu_unpack "
    "_segment_reduce.offsets _segment_reduce.lengths nn.functional.ctc_loss".split()
)
# Of nothing eager gives what its memory held (multi_margin_loss), or its operand (addmv).
_UNDEFINED_OF_NOTHING = frozenset(("addmv", "nn.functional.multi_margin_loss")) | (
    # From PyTorch 2.14 on its kernel divides by the number of heads, and ends the process.
    frozenset(("nn.functional.scaled_dot_product_attention",) if TORCH >= (2, 14) else ())
)
_UNDEFINED = UNDEFINED_CONTENTS | {"resize_", "resize_as_"}
_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
_MODES: dict[str, bool | None] = {"dynamic": True, "default": None}


@final
@frozen
class Change:
    """New sizes: of (leaf, dimension) pairs, and the words for it."""

    sizes: tuple[tuple[tuple[int, int], int], ...]
    text: str


@final
@dataclass(slots=True)
class Outcome:
    """What became of one operator: how often it was called at other sizes, and what was wrong."""

    name: str
    calls: int = 0
    failures: list[str] = field(default_factory=list)


# --- changes of sizes ----------------------------------------------------------------------------


def changes_of(leaves: Sequence[Any]) -> list[Change]:
    """Changes of every size that tensors share, then of every dimension by itself."""
    dims: dict[int, list[tuple[int, int]]] = {}
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            for dim, size in enumerate(leaf.shape):
                dims.setdefault(size, []).append((number, dim))
    found = []
    moved = {size: 2 * size + 1 + number for number, size in enumerate(dims)}
    if dims:
        pairs = [(place, moved[n]) for n, places in dims.items() for place in places]
        found.append(Change(tuple(pairs), f"all: {moved}"))
    for size, places in dims.items():
        for new in _other_sizes(size, dims):
            found.append(Change(tuple((p, new) for p in places), f"every {size} is {new}"))
    for size, places in dims.items():
        for place in places if len(places) > 1 else ():
            for new in _other_sizes(size, dims):
                text = f"dimension {place[1]} of tensor {place[0]}, {size}, is {new}"
                found.append(Change(((place, new),), text))
    return found


def _other_sizes(size: int, others: Iterable[int]) -> list[int]:
    other = next((n for n in others if n not in (size, 0, 1)), 7)
    made = (size + 1, 2 * size + 2, max(size - 1, 0), other, 1, 0)
    return [n for n in dict.fromkeys(made) if n != size]


def _resized(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """The tensor with other sizes: repeated, or cut off; in the same order of memory."""
    made = tensor.detach()
    for dim, size in sizes.items():
        old = made.shape[dim]
        if old == 0:
            shape = [size if d == dim else n for d, n in enumerate(made.shape)]
            made = torch.ones(shape, dtype=made.dtype)
        else:
            # In the same order, since offsets and boundaries have to be sorted.
            made = made.index_select(dim, torch.arange(size) * old // max(size, 1))
    return _like_layout(made, tensor)


def _like_layout(made: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    if order == list(range(tensor.dim())):
        return made.contiguous()
    inverse = sorted(range(tensor.dim()), key=order.__getitem__)
    return made.permute(order).contiguous().permute(inverse)


def changed(leaves: Sequence[Any], change: Change) -> list[Any]:
    """The inputs at other sizes."""
    by_leaf: dict[int, dict[int, int]] = {}
    for (number, dim), size in change.sizes:
        by_leaf.setdefault(number, {})[dim] = size
    return [
        _resized(leaf, by_leaf[number]) if number in by_leaf else leaf
        for number, leaf in enumerate(leaves)
    ]


# --- one call ------------------------------------------------------------------------------------


@final
@frozen(eq=False)
class Result:
    """What a call gave: its leaves and their gradients, with the inputs, or an error.
    is_forward: whether the error is the call's, not the backward's."""

    leaves: tuple[Any, ...] = ()
    structure: Any = None
    inputs: tuple[Any, ...] = ()
    error: Exception | None = None
    is_forward: bool = True


def called(
    function: Callable[..., Any], leaves: Sequence[Any], structure: Any, gradients: bool
) -> Result:
    """The function called on copies of the inputs; gradients: those of its results' sums, too."""
    copies = [_copied(leaf, gradients) for leaf in leaves]
    args, kwargs = tree_unflatten(copies, structure)
    torch.manual_seed(1)
    random.seed(1)
    is_forward = True
    try:
        with torch.set_grad_enabled(gradients):
            results, made = tree_flatten(function(*args, **kwargs))
            is_forward = False
            if gradients:
                results += _gradients(results, copies)
    except Exception as error:
        return Result(error=error, is_forward=is_forward)
    return Result(tuple(results), made, tuple(copies))


def _gradients(results: Sequence[Any], inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    given = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not wanted or not given:
        return []
    weights = [
        torch.arange(1, r.numel() + 1).remainder(7).reshape(r.shape).to(r.dtype) / 4 for r in given
    ]
    torch.autograd.backward(given, weights, inputs=wanted)
    return [x.grad for x in wanted]


def _copied(leaf: Any, gradients: bool) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    fresh = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
    if leaf.numel():
        fresh.copy_(leaf.detach())
    differentiable = leaf.is_floating_point() or leaf.is_complex()
    return fresh.requires_grad_() if gradients and differentiable else fresh


# --- comparison ----------------------------------------------------------------------------------


def difference(want: Result, have: Result, contents: bool) -> str:
    """How two results differ; "" where they do not. contents: whether values are compared."""
    if want.error is not None or have.error is not None:
        if type(want.error) is type(have.error):
            return ""
        if want.error is not None and have.error is not None and not have.is_forward:
            return ""  # nothing runs a backward once more for eager's own words
        return f"eager: {_shown(want)}; compiled: {_shown(have)}"
    if want.structure != have.structure or len(want.leaves) != len(have.leaves):
        return f"structure: {have.structure} instead of {want.structure}"
    for one, other in zip(want.leaves, have.leaves, strict=True):
        found = _leaf_difference(one, other, contents)
        if found:
            return found
    pairs = _aliases(want), _aliases(have)
    return "" if pairs[0] == pairs[1] else f"aliases: {pairs[1]} instead of {pairs[0]}"


def _shown(result: Result) -> str:
    if result.error is not None:
        words = (str(result.error).strip().splitlines() or [""])[0]
        return f"{type(result.error).__name__}: {words[:120]}"
    return str([tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in result.leaves])


def _leaf_difference(want: Any, have: Any, contents: bool) -> str:
    if not isinstance(want, torch.Tensor):
        same = type(want) is type(have) and (want == have or want != want)
        return "" if same else f"{have} instead of {want}"
    for name in ("dtype", "shape", "requires_grad"):
        one, other = getattr(want, name), getattr(have, name, None)
        if one != other:
            return f"{name}: {other} instead of {one}"
    if want.layout is not torch.strided:
        return ""
    steps = zip(want.shape, want.stride(), have.stride(), strict=True)
    if want.numel() > 1 and any(n > 1 and a != b for n, a, b in steps):
        return f"strides: {have.stride()} instead of {want.stride()} of {tuple(want.shape)}"
    if not contents:
        return ""
    try:
        torch.testing.assert_close(have, want, equal_nan=True, rtol=1e-3, atol=1e-4)
    except AssertionError as error:
        return f"values: {' '.join(str(error).split())[:160]}"
    return ""


def _aliases(result: Result) -> list[tuple[int, int]]:
    """Which leaves lie in the same memory."""
    known = [x for x in (*result.inputs, *result.leaves) if isinstance(x, torch.Tensor)]
    starts = [
        x.untyped_storage().data_ptr() if x.layout is torch.strided and _has_memory(x) else 0
        for x in known
    ]
    return [
        (i, j)
        for (i, one), (j, other) in itertools.combinations(enumerate(starts), 2)
        if one == other != 0
    ]


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is any: gradients of zero have none."""
    return tensor.numel() > 0 and not torch._is_zerotensor(tensor)


# --- the sweep -----------------------------------------------------------------------------------


def _evaluated(graph: Graph, options: Options, recorder: Any, role: Any = pipeline.PLAIN) -> Any:
    """A graph lowered, and run by the evaluator: `pipeline.compile_graph` without kernels."""
    program = lower(rewrite(graph, options), options)

    def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
        given = list(inputs)
        if role.takes_inputs:
            inputs.clear()  # type: ignore[attr-defined]
        with torch.no_grad():
            return run_loops(program, given)

    kept = pipeline.keeping_versions(run, graph)
    return pipeline.with_views_of_eager(kept, graph, role == pipeline.PLAIN)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Graphs that are compiled inside are run by the evaluator."""
    with mock.patch.object(pipeline, "compile_graph", _evaluated):
        yield


def sweep_operator(
    op: OpInfo, limit: int, dynamic: bool | None, gradients: bool = False
) -> Outcome:
    """The operator on some samples, each at its own sizes and at others."""
    outcome = Outcome(full_name(op))
    torch.manual_seed(0)
    random.seed(0)
    for sample in _samples(op, limit, gradients):
        try:
            _sweep_sample(op, sample, dynamic, gradients, outcome)
        finally:
            braze.reset()
    return outcome


def _samples(op: OpInfo, limit: int, gradients: bool) -> list[SampleInput]:
    """An even choice from those with something to change."""
    dtype = next((d for d in _DTYPES if d in op.dtypes), None)
    if dtype is None or (gradients and not dtype.is_floating_point):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 100)
        samples = [sample for sample in found if _has_sizes(sample)]
    step = max(1, len(samples) // limit)
    return samples[::step][:limit]


def _has_sizes(sample: SampleInput) -> bool:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    plain = all(x.layout is torch.strided for x in tensors)
    return plain and any(n > 1 for x in tensors for n in x.shape)


def _sweep_sample(
    op: OpInfo, sample: SampleInput, dynamic: bool | None, gradients: bool, outcome: Outcome
) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    given = (sample.input, *sample.args), sample.kwargs
    leaves, structure = tree_flatten(tree_map(_plain, given))
    if called(function, leaves, structure, gradients).error is not None:
        return
    compiled = braze.compile(function, dynamic=dynamic, options={"recompile_limit": 1000})
    contents = op.name not in _UNDEFINED
    most = 1 if full_name(op) in _UNCHECKED_IN_EAGER else _MOST_CHANGES
    for change in [Change((), "as they are"), *changes_of(leaves)[:most]]:
        if full_name(op) in _UNDEFINED_OF_NOTHING and any(n == 0 for _, n in change.sizes):
            continue
        other = changed(leaves, change)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = called(function, other, structure, gradients)
            have = called(compiled, other, structure, gradients)
        outcome.calls += 1
        found = difference(want, have, contents)
        if found:
            shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves]
            outcome.failures.append(f"{shapes}, {change.text}: {found}")
            return


def _plain(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def in_child(op: OpInfo, limit: int, dynamic: bool | None, gradients: bool) -> Outcome:
    """The same in a process of its own: kernels of PyTorch crash at some sizes."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            outcome = sweep_operator(op, limit, dynamic, gradients)
        except Exception as error:
            outcome = Outcome(full_name(op), 0, [f"the sweep itself: {error!r}"])
        with open(write, "wb") as file:
            pickle.dump(outcome, file)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    if told:
        return pickle.loads(told)  # type: ignore[no-any-return]
    return Outcome(
        full_name(op), 0, [f"the process ended with {os.waitstatus_to_exitcode(status)}"]
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="comma-separated full names; all if empty")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--modes", default="dynamic,default")
    parser.add_argument("--gradients", action="store_true", help="with those of the inputs")
    parser.add_argument("--kernels", action="store_true", help="build and run kernels")
    parser.add_argument("--all", action="store_true", help="forward and gradients, more samples")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator from the k-th")
    options = parser.parse_args(arguments)
    table = operators()
    names = options.ops.split(",") if options.ops else list(table)
    shard, shards = map(int, options.shard.split("/"))
    samples = 12 if options.all else options.samples
    ways = (False, True) if options.all else (options.gradients,)
    wrong: set[str] = set()
    calls = 0
    names = names[shard::shards]
    for name, mode, gradients in itertools.product(names, options.modes.split(","), ways):
        with contextlib.nullcontext() if options.kernels else without_kernels():
            outcome = in_child(table[name], samples, _MODES[mode], gradients)
        calls += outcome.calls
        for failure in outcome.failures:
            wrong.add(name)
            print(f"WRONG {name} ({mode}{', gradients' * gradients}): {failure}", flush=True)
    print(f"{len(names)} operators, {calls} calls at other sizes: {len(wrong)} operators wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
