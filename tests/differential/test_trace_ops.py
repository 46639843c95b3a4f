"""Every operator of torch.testing's database: traced on fake tensors and replayed, against eager.

`trace_ops_failures.txt` lists the operators that are refused or differ; the list may only shrink.
Run as a script, it prints the pass rate and every failure with its reason.
"""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from braze.ir.graphs.run_graph import run_graph
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable
from tests.differential.listed import outdated
from tests.shares import due_today

KNOWN_FAILURES = Path(__file__).with_name("trace_ops_failures.txt")
SAMPLES = 4
PARTS = 4
SEED = 42  # the database's random operators set it themselves
# Results are uninitialised memory, or depend on the process's threads and generators.
NO_ORACLE = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def map_tensors(function: Any, value: Any) -> Any:
    """The same nested value with each tensor replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(function, item) for item in value)
    if type(value) is dict:
        return {key: map_tensors(function, item) for key, item in value.items()}
    return value


def difference(want: torch.Tensor, have: torch.Tensor) -> str | None:
    """What differs, or None."""
    if have.dtype != want.dtype or have.shape != want.shape:
        return f"{have.dtype}{list(have.shape)} instead of {want.dtype}{list(want.shape)}"
    if have.stride() != want.stride() and want.numel():
        return f"strides {have.stride()} instead of {want.stride()} of {list(want.shape)}"
    try:
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    except AssertionError as error:
        return f"values: {str(error).splitlines()[0]}"
    return None


def check_sample(op: Any, value: Any, args: Any, kwargs: Any) -> str | None:
    """Trace one call and compare; None where all is equal, a reason otherwise."""
    given = (value, args, kwargs)
    torch.manual_seed(SEED)
    try:
        eager = map_tensors(copy.deepcopy, given)
        expected = list(tensors_in(op(eager[0], *eager[1], **eager[2])))
    except Exception:
        return None
    inputs = list(tensors_in(given))
    tracer = Tracer()
    try:
        with tracer:
            traced = map_tensors(lambda t: tracer.add_input(t), given)
            results = list(tensors_in(op(traced[0], *traced[1], **traced[2])))
        finished = tracer.finish(results)
    except (DataDependent, Untraceable, UnknownTensor) as error:
        return f"{type(error).__name__}: {error}"
    kept = [tracer.inputs[i][1] for i in finished.inputs]
    torch.manual_seed(SEED)
    with torch.no_grad():
        got = run_graph(finished.graph, kept)[: len(expected)]
    if len(got) != len(expected):
        return f"{len(got)} results instead of {len(expected)}"
    for want, have, fake in zip(expected, got, results):
        reason = difference(want, have)
        if reason is None and fake.stride() != want.stride() and want.numel():
            reason = f"fake tensor strides {fake.stride()} instead of {want.stride()}"
        if reason:
            return reason
    for before, after in zip(inputs, tensors_in(eager)):
        if not torch.equal(after.nan_to_num(), before.nan_to_num()):
            return "a written input differs"
    return None


def check_operator(info: Any) -> str | None:
    """The first reason why samples of an operator fail, or None."""
    if info.name in NO_ORACLE or torch.float32 not in info.dtypes:
        return None
    try:
        samples = list(itertools.islice(info.sample_inputs("cpu", torch.float32), SAMPLES))
    except Exception:
        return None
    for sample in samples:
        try:
            reason = check_sample(info.op, sample.input, sample.args, sample.kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if reason:
            return reason
    return None


def label(info: Any) -> str:
    """The operator's name with its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def failures(infos: Sequence[Any]) -> dict[str, str]:
    """Reasons by operator."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in infos:
            reason = check_operator(info)
            if reason:
                found[label(info)] = reason
    return found


@pytest.mark.parametrize("part", due_today(range(PARTS), 2))
def test_operators_replay_as_eager(part: int) -> None:
    asked = op_db[part::PARTS]
    known = set(KNOWN_FAILURES.read_text().split()) & set(map(label, asked))
    found = failures(asked)
    new = {name: reason for name, reason in found.items() if name not in known}
    assert not new, new
    mended = outdated(known - set(found))
    if mended:
        pytest.fail(f"these pass now: take them off {KNOWN_FAILURES.name}: {mended}")


def test_the_listed_operators_are_in_the_database() -> None:
    assert set(KNOWN_FAILURES.read_text().split()) <= set(map(label, op_db))


if __name__ == "__main__":
    reasons = failures(op_db)
    for name, reason in sorted(reasons.items(), key=lambda item: item[1]):
        print(f"{name:45} {reason[:200]}")
    print(f"{len(op_db) - len(reasons)} of {len(op_db)} operators pass")
    if "--bless" in sys.argv:
        KNOWN_FAILURES.write_text("".join(f"{name}\n" for name in sorted(reasons)))
