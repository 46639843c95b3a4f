"""Lowering, operator by operator: traced, rewritten, lowered, verified, run by the evaluator.

One operator of PyTorch's own test database at one dtype is *right* when for each chosen sample
the loop program returns what eager returns: shapes, strides, dtypes, and values within the
dtype's tolerance or at most twice eager's own error against float64.

    python -m tests.differential.lower_ops --ops add,sum --dtypes float32 --samples 5 --print
"""

from __future__ import annotations

import argparse
import itertools
import random
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
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

from braze.ir.kernels.loops import ExternCall
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
FAMILIES: dict[type, str] = {
    UnaryUfuncInfo: "pointwise",
    BinaryUfuncInfo: "pointwise",
    ReductionOpInfo: "reduction",
    ShapeFuncInfo: "view",
}
VIEW_OPS = frozenset(
    "T H mT mH adjoint as_strided broadcast_to chunk diagonal expand expand_as flatten movedim "
    "narrow permute ravel reshape reshape_as select split split_with_sizes squeeze swapaxes t "
    "tensor_split transpose unbind unflatten unfold unsqueeze view view_as atleast_1d atleast_2d "
    "atleast_3d hsplit vsplit dsplit".split()
)
UNDEFINED_CONTENTS = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)


@final
@dataclass(slots=True)
class Outcome:
    """What was found for one operator at one dtype. `skipped`: why nothing was compared."""

    name: str
    dtype: torch.dtype
    family: str
    samples: int = 0
    skipped: str = ""
    failure: str = ""
    externs: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}"


def operators() -> dict[str, OpInfo]:
    """Every OpInfo by its name and variant."""
    return {
        f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db
    }


def check_operator(name: str, op: OpInfo, dtype: torch.dtype, limit: int) -> Outcome:
    """Compare up to `limit` samples, evenly chosen."""
    family = "view" if op.name in VIEW_OPS else FAMILIES.get(type(op), "other")
    outcome = Outcome(name, dtype, family)
    torch.manual_seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples(op, dtype, limit):
            try:
                _run_eagerly(op, (sample.input, sample.args, sample.kwargs))
            except Exception as error:
                outcome.skipped = f"eager raises {type(error).__name__}"
                continue
            try:
                outcome.externs |= _check_sample(op, sample)
                outcome.samples += 1
            except (DataDependent, Untraceable, UnknownTensor) as error:
                outcome.skipped = f"{type(error).__name__}: {error}".splitlines()[0]
            except Exception as error:
                outcome.failure = _describe(error)
                break
    return outcome


def _samples(op: OpInfo, dtype: torch.dtype, limit: int) -> Iterable[SampleInput]:
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 100))
    small = [s for s in samples if _elements(s) <= 100_000] or samples
    return small[:: max(1, len(small) // limit)][:limit]


def _elements(sample: SampleInput) -> int:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _check_sample(op: OpInfo, sample: SampleInput) -> set[str]:
    arguments = (sample.input, sample.args, sample.kwargs)
    expected = _run_eagerly(op, arguments)
    program, inputs = lower_call(op, arguments)
    verify_loops(program)
    torch.manual_seed(42)
    actual = run_loops(program, inputs)
    if op.name not in UNDEFINED_CONTENTS:
        _compare(op, arguments, expected, actual)
    return {str(s.op) for s in program.statements if isinstance(s, ExternCall)}


def _run_eagerly(op: Callable[..., Any], arguments: Any) -> list[torch.Tensor]:
    torch.manual_seed(42)
    first, rest, keywords = tree_map(_copied, arguments)
    with torch.no_grad():
        return _tensors(op(first, *rest, **keywords))


def lower_call(op: Callable[..., Any], arguments: Any) -> tuple[Any, list[torch.Tensor]]:
    """(loop program, its inputs) of one call."""
    leaves, structure = tree_flatten(tree_map(_copied, arguments))
    torch.manual_seed(42)
    tracer = Tracer()
    with torch.no_grad(), tracer:
        fakes = [
            tracer.add_input(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        first, rest, keywords = structure.unflatten(fakes)
        results = _tensors(op(first, *rest, **keywords))
        finished = tracer.finish(results)
    reals = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())
    options = Options()
    program = lower(rewrite(finished.graph, options), options)
    return program, [reals[n] for n in finished.inputs]


def fails_in_trace(op: Callable[..., Any], arguments: Any) -> bool:
    """Whether the tracer, rightly or not, gives no graph for the call."""
    try:
        lower_call(op, arguments)
    except (DataDependent, Untraceable, UnknownTensor):
        return True
    return False


def _tensors(results: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(results)[0] if isinstance(leaf, torch.Tensor)]


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
        return leaf
    fresh = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    return fresh.copy_(leaf.detach())


def _compare(
    op: Callable[..., Any],
    arguments: Any,
    expected: Sequence[torch.Tensor],
    actual: Sequence[torch.Tensor],
) -> None:
    assert len(actual) == len(expected), f"{len(actual)} results, not {len(expected)}"
    precise: list[torch.Tensor] | None = None
    for n, (mine, eager) in enumerate(zip(actual, expected, strict=True)):
        assert mine.dtype == eager.dtype, f"result {n}: {mine.dtype}, not {eager.dtype}"
        assert mine.shape == eager.shape, f"result {n}: {mine.shape}, not {eager.shape}"
        if eager.numel():
            strides = [
                (a, b)
                for a, b, size in zip(mine.stride(), eager.stride(), eager.shape, strict=True)
                if size > 1
            ]
            assert all(a == b for a, b in strides), f"{mine.stride()}, not {eager.stride()}"
        try:
            torch.testing.assert_close(mine, eager, equal_nan=True)
        except AssertionError:
            if not eager.dtype.is_floating_point:
                raise
            if precise is None:
                precise = _run_eagerly(op, tree_map(_widened, arguments))
            if not _is_within_twice(mine, eager, precise[n]):
                raise


def _widened(leaf: Any) -> Any:
    is_float = isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point
    return leaf.detach().double() if is_float else leaf


def _is_within_twice(mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    tiny = torch.finfo(eager.dtype).eps
    mine_error = (mine.double() - exact).nan_to_num().abs().max()
    eager_error = (eager.double() - exact).nan_to_num().abs().max()
    same_nans = torch.equal(mine.isnan(), eager.isnan())
    size = exact.nan_to_num(0, 0, 0).abs().max()
    return same_nans and bool(mine_error <= 2 * eager_error + tiny * size)


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())[:160]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({frame.filename.split('/')[-1]}:{frame.lineno})"


def main() -> None:
    """Print failures, and what each family still leaves to ATen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtypes", default="float32,int64,bool,bfloat16")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    wanted = set(filter(None, options.ops.split(",")))
    outcomes = []
    for name, op in operators().items():
        if wanted and name not in wanted and op.name not in wanted:
            continue
        for dtype in (getattr(torch, d) for d in options.dtypes.split(",")):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            if options.print:
                for sample in _samples(op, dtype, options.samples):
                    arguments = (sample.input, sample.args, sample.kwargs)
                    print(print_loops(lower_call(op, arguments)[0]))
            outcomes.append(check_operator(name, op, dtype, options.samples))
    report(outcomes)


def report(outcomes: Sequence[Outcome]) -> None:
    """Print every failure, then counts."""
    for outcome in outcomes:
        if outcome.failure:
            print(f"FAIL {outcome.key}: {outcome.failure}")
    for family in ("pointwise", "reduction", "view", "other"):
        ran = [o for o in outcomes if o.family == family and o.samples and not o.failure]
        whole = [o for o in ran if not o.externs]
        for outcome in ran:
            if outcome.externs:
                print(f"EXTERN {family} {outcome.key}: {', '.join(sorted(outcome.externs))}")
        print(f"{family}: {len(whole)} of {len(ran)} without ATen calls")
    failed = sum(1 for o in outcomes if o.failure)
    skipped = [o for o in outcomes if o.skipped and not o.samples and not o.failure]
    print(f"{failed} of {len(outcomes)} fail, {len(skipped)} cannot be traced")


if __name__ == "__main__":
    main()
