"""The gradient sweep: every differentiable OpInfo, trained one step compiled and eagerly.

One operator is *right* when, for each of its sample inputs, the compiled function runs as one
graph with a backward of its own, without a break or fallback; its results require grad where
eager's do; and each input gets the gradient that eager gives it: none where eager gives none,
values within float32's tolerance or at most twice eager's own error against float64.

    python -m tests.differential.gradient_sweep --ops add,sum --samples 5 --backend aot_eager
"""

from __future__ import annotations

import argparse
import itertools
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

import braze
from tests.differential.op_sweep import (
    Outcome,
    describe,
    family_of,
    full_name,
    on_device,
    operators,
)

DTYPE = torch.float32


def differentiable_operators(device: str = "cpu") -> dict[str, OpInfo]:
    """Every OpInfo that has gradients in float32, by its full name."""
    return {
        name: op
        for name, op in operators().items()
        if op.supports_autograd and DTYPE in op.supported_backward_dtypes(device)
    }


def sweep_gradients(op: OpInfo, limit: int, backend: str = "braze", device: str = "cpu") -> Outcome:
    """Train through `op` on up to `limit` sample inputs and compare with eager."""
    outcome = Outcome(full_name(op), DTYPE, family_of(op))
    torch.manual_seed(0)
    random.seed(0)
    for sample in _samples(op, limit, device):
        arguments, keywords = (sample.input, *sample.args), sample.kwargs

        def function(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        try:
            expected = _step(function, arguments, keywords)
        except (AssertionError, RuntimeError, NotImplementedError):
            continue
        if not expected[1]:
            continue
        outcome.samples += 1
        try:
            outcome.extern_ops |= _check(function, arguments, keywords, expected, backend)
        except Exception as error:
            outcome.failure = describe(error, sample)
            break
        finally:
            braze.reset()
    return outcome


# --- private ---------------------------------------------------------------------------------

Found = tuple[list[torch.Tensor], list[torch.Tensor | None]]


def _samples(op: OpInfo, limit: int, device: str) -> Iterable[SampleInput]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs(device, DTYPE, requires_grad=True), 100))
    step = max(1, len(samples) // limit)
    return samples[::step][:limit]


def _step(
    function: Callable[..., Any], args: Any, kwargs: Any, dtype: torch.dtype = DTYPE
) -> Found:
    """The results that require grad, and the gradients of the inputs that do."""
    leaves: list[torch.Tensor] = []

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        wide = dtype if leaf.dtype is DTYPE else leaf.dtype
        copy = leaf.detach().to(wide, copy=True)
        if leaf.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    args, kwargs = tree_map(fresh, (args, kwargs))
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = function(*args, **kwargs)
    results = [
        leaf
        for leaf in tree_flatten(made)[0]
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not results:
        return [], []
    tangents = [_tangent(result, number) for number, result in enumerate(results)]
    gradients = torch.autograd.grad(results, leaves, tangents, allow_unused=True)
    return results, list(gradients)


def _tangent(result: torch.Tensor, number: int) -> torch.Tensor:
    """The same for every dtype."""
    generator = torch.Generator().manual_seed(number)
    shape = (*result.shape, 2) if result.is_complex() else tuple(result.shape)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if result.is_complex():
        values = torch.view_as_complex(values)
    return values.to(result)


def _check(
    function: Callable[..., Any], args: Any, kwargs: Any, expected: Found, backend: str
) -> set[str]:
    compiled = braze.explain(function, backend=backend)
    reports = []

    def call(*args: Any, **kwargs: Any) -> Any:
        reports.append(compiled(*args, **kwargs))
        return reports[-1].result

    found = _step(call, args, kwargs)
    report = reports[0]
    if report.break_count:
        note = report.break_reasons[0]
        raise AssertionError(f"graph break [{note.code}]: {note.reason}")
    if report.fallbacks:
        raise AssertionError(f"fell back: {report.fallbacks}")
    for kind, wanted, got in zip(("result", "gradient"), expected, found, strict=True):
        assert len(wanted) == len(got), f"{len(got)} {kind}s instead of {len(wanted)}"
        for index, (want, have) in enumerate(zip(wanted, got, strict=True)):
            _compare(kind, index, want, have, lambda: _step(function, args, kwargs, torch.float64))
    return set(report.extern_ops)


def _compare(kind: str, index: int, want: Any, got: Any, exact: Callable[[], Found]) -> None:
    name = f"{kind} {index}"
    assert (want is None) == (got is None), f"{name}: {_what(got)} instead of {_what(want)}"
    if want is None:
        return
    assert (want.dtype, want.shape) == (got.dtype, got.shape), f"{name}: {_what(got)}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError as error:
        true = exact()[0 if kind == "result" else 1][index]
        assert true is not None
        wide = torch.complex128 if got.is_complex() else torch.float64
        ours, theirs = ((t.to(wide) - true).abs().max().item() for t in (got, want))
        if not ours <= 2 * theirs:
            raise AssertionError(f"{name}: error {ours:.2e}, eager's {theirs:.2e}") from error


def _what(gradient: torch.Tensor | None) -> str:
    return "none" if gradient is None else f"{gradient.dtype} {tuple(gradient.shape)}"


def main() -> None:
    """Sweep from the command line; prints failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--backend", default="braze")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    given = parser.parse_args()
    table = differentiable_operators(given.device)
    names = given.ops.split(",") if given.ops else list(table)[given.part[0] :: given.part[1]]
    failed = 0
    for name in names:
        with on_device(given.device):
            outcome = sweep_gradients(table[name], given.samples, given.backend, given.device)
        failed += bool(outcome.failure)
        if outcome.failure:
            print(f"FAIL {outcome.key}: {outcome.failure}", flush=True)
    print(f"{failed} of {len(names)} operators failed")


if __name__ == "__main__":
    main()
