"""The per-operator sweep: every OpInfo of PyTorch's own test database, compiled and compared.

One operator at one dtype is *right* when, for each of its sample inputs, the compiled function
runs as one graph without a break and returns what eager returns: same structure, dtypes, shapes
and strides, values within the dtype's tolerance or at most twice eager's own error against
float64. Anything else, an exception included, is a failure with a reason.

    python -m tests.differential.op_sweep --ops add,sum --dtypes float32 --samples 5
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    SampleInput,
    ShapeFuncInfo,
    UnaryUfuncInfo,
)
from torch.utils._pytree import tree_flatten, tree_map

import braze

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)

VIEW_OPS = frozenset(
    "T H mT mH adjoint as_strided broadcast_to chunk diagonal expand expand_as flatten "
    "movedim narrow permute ravel reshape reshape_as select select_scatter slice split "
    "split_with_sizes squeeze swapaxes t tensor_split transpose unbind unflatten unfold "
    "unsqueeze view view_as atleast_1d atleast_2d atleast_3d hsplit vsplit dsplit "
    "slice_scatter diagonal_scatter".split()
)

# float64 values on each side of which eager itself is random or undefined.
UNDEFINED_CONTENTS = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)


@final
@dataclass(slots=True)
class Outcome:
    """What the sweep found for one operator at one dtype."""

    name: str
    dtype: torch.dtype
    family: str
    samples: int = 0
    failure: str = ""
    extern_ops: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}"


def full_name(op: OpInfo) -> str:
    """The operator's name with its variant, as the failure list shows it."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def family_of(op: OpInfo) -> str:
    """pointwise, reduction, view or other: the families that Braze must lower itself."""
    if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)):
        return "pointwise"
    if isinstance(op, ReductionOpInfo):
        return "reduction"
    if op.name in VIEW_OPS or isinstance(op, ShapeFuncInfo):
        return "view"
    return "other"


def operators() -> dict[str, OpInfo]:
    """Every OpInfo by its full name."""
    return {full_name(op): op for op in map(_without_seeding, op_db)}


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Convolutions there in full precision; an error there that nobody has noticed is raised: from
    then on eager would refuse each operator.

    Behind it the engine's thread has let go of what the last backward left. PyTorch takes the GIL
    for that, and a process that ends just then aborts, an eager one too.
    """
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    if device != "cpu":
        torch.get_device_module(device).synchronize()
        nothing = torch.empty(0, device=device, requires_grad=True)
        nothing.view(0).backward(torch.empty(0, device=device))  # its queue's next piece of work


def sweep_operator(op: OpInfo, dtype: torch.dtype, limit: int, device: str = "cpu") -> Outcome:
    """Compile `op` on up to `limit` sample inputs of `dtype` and compare with eager."""
    outcome = Outcome(full_name(op), dtype, family_of(op))
    torch.manual_seed(0)
    random.seed(0)
    for sample in _samples(op, dtype, limit, device):
        if not _runs_eagerly(op, sample):
            continue
        outcome.samples += 1
        try:
            outcome.extern_ops |= _check_sample(op, sample)
        except Exception as error:
            outcome.failure = describe(error, sample)
            break
        finally:
            braze.reset()
    return outcome


def _samples(op: OpInfo, dtype: torch.dtype, limit: int, device: str) -> Iterable[SampleInput]:
    """An even choice from the op's samples, so that later (odder) ones are seen too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=False), 200))
    step = max(1, len(samples) // limit)
    return samples[::step][:limit]


def _runs_eagerly(op: OpInfo, sample: SampleInput) -> bool:
    """False for samples that eager itself refuses here (operators that need a GPU)."""
    try:
        _run(op, (sample.input, *sample.args), sample.kwargs)
    except (AssertionError, RuntimeError, NotImplementedError):
        return False
    return True


def _check_sample(op: OpInfo, sample: SampleInput) -> set[str]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    arguments = (sample.input, *sample.args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _run(function, arguments, sample.kwargs)
        compiled = braze.explain(function)
        report = _run(compiled, arguments, sample.kwargs)
        again = _run(compiled, arguments, sample.kwargs)
    if report.break_count:
        note = report.break_reasons[0]
        raise AssertionError(f"graph break [{note.code}]: {note.reason}")
    if report.fallbacks:
        raise AssertionError(f"fell back: {report.fallbacks}")
    if report.graph_count != (1 if report.op_count else 0):
        raise AssertionError(f"{report.graph_count} graphs")
    if again.records:
        raise AssertionError("compiled again for the same input")
    if op.name not in UNDEFINED_CONTENTS:
        for result in (report.result, again.result):
            _compare(function, arguments, sample.kwargs, expected, result)
    return set(report.extern_ops)


def _call_directly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _without_seeding(op: OpInfo) -> OpInfo:
    """The test suite wraps random operators in `wrapper_set_seed`, which saves, seeds and restores
    the generator. That is the suite's, not the operator's: `_run` seeds."""
    namespace = getattr(op.op, "__globals__", {})
    if "wrapper_set_seed" in namespace:
        namespace["wrapper_set_seed"] = _call_directly
    return op


def _run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        return function(*_copied(args), **_copied(kwargs))


def _copied(tree: Any) -> Any:
    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            fresh = torch.empty_strided(
                leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
            )
            return fresh.copy_(leaf) if leaf.numel() else fresh
        return leaf

    return tree_map(copy, tree)


def _compare(
    function: Callable[..., Any], args: Any, kwargs: Any, expected: Any, actual: Any
) -> None:
    expected_leaves, expected_spec = tree_flatten(expected)
    actual_leaves, actual_spec = tree_flatten(actual)
    assert expected_spec == actual_spec, f"structure: {actual_spec} instead of {expected_spec}"
    for index, (want, got) in enumerate(zip(expected_leaves, actual_leaves, strict=True)):
        if not isinstance(want, torch.Tensor):
            assert type(want) is type(got) and (want == got or want != want), f"{got} != {want}"
            continue
        _compare_metadata(want, got)
        try:
            torch.testing.assert_close(got, want, equal_nan=True)
        except AssertionError:
            if not _within_twice_eager(function, args, kwargs, index, want, got):
                raise


def _compare_metadata(want: torch.Tensor, got: torch.Tensor) -> None:
    for what in ("dtype", "shape", "layout", "requires_grad"):
        expected, actual = getattr(want, what), getattr(got, what)
        assert expected == actual, f"{what}: {actual} instead of {expected}"
    if want.layout == torch.strided and want.numel() > 1:
        pairs = zip(want.stride(), got.stride(), want.shape, strict=True)
        assert all(a == b for a, b, n in pairs if n > 1), (
            f"stride: {got.stride()} instead of {want.stride()}"
        )


def _within_twice_eager(
    function: Callable[..., Any], args: Any, kwargs: Any, index: int, want: Any, got: Any
) -> bool:
    """Whether got's error against a float64 run is at most twice eager's, element by element on
    the worst element."""
    if not want.dtype.is_floating_point:
        return False

    def widen(leaf: Any) -> Any:
        is_float = isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point
        return leaf.double() if is_float else leaf

    try:
        exact = tree_flatten(_run(function, tree_map(widen, args), tree_map(widen, kwargs)))[0]
    except (RuntimeError, TypeError):
        return False
    reference = exact[index]
    if not torch.equal(want.isnan(), got.isnan()):
        return False
    eager_error = (want.double() - reference).nan_to_num(0, 0, 0).abs().max()
    braze_error = (got.double() - reference).nan_to_num(0, 0, 0).abs().max()
    return bool(braze_error <= 2 * eager_error)


def describe(error: Exception, sample: SampleInput) -> str:
    first_line = (str(error).strip().splitlines() or [""])[0]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    shape = sample.summary()
    return f"{type(error).__name__}: {first_line} [{frame.name}:{frame.lineno}] on {shape}"[:400]


def summarise(outcomes: list[Outcome]) -> str:
    """A table of the shares that the issue asks for."""
    lines = []
    failed = [o for o in outcomes if o.failure]
    lines.append(f"{len(outcomes)} operator x dtype pairs, {len(failed)} failures")
    for family in ("pointwise", "reduction", "view", "other"):
        members = [o for o in outcomes if o.family == family and not o.failure]
        own = [o for o in members if not o.extern_ops]
        share = len(own) / len(members) if members else 0.0
        lines.append(f"{family}: {len(own)} of {len(members)} by own kernels ({share:.1%})")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="comma-separated full names; all if empty")
    parser.add_argument("--dtypes", default="float32,int64,bool,bfloat16")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator from the k-th")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="show what runs by ATen kernels")
    options = parser.parse_args(arguments)
    table = operators()
    names = options.ops.split(",") if options.ops else list(table)
    shard, shards = map(int, options.shard.split("/"))
    outcomes = []
    for name in names[shard::shards]:
        for dtype in (getattr(torch, d) for d in options.dtypes.split(",")):
            if dtype not in table[name].supported_dtypes(options.device):
                continue
            with on_device(options.device):
                outcome = sweep_operator(table[name], dtype, options.samples, options.device)
            outcomes.append(outcome)
            if outcome.failure:
                print(f"FAIL {outcome.key}: {outcome.failure}", flush=True)
            elif options.verbose and outcome.extern_ops and outcome.family != "other":
                print(f"extern {outcome.key}: {sorted(outcome.extern_ops)}", flush=True)
    print(summarise(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
