"""Double gradients of operators of PyTorch's test database, in float64.

One operator is *right* when, for its sample inputs,
- `gradgradcheck` holds for the compiled function: eager differentiates the gradients that come
  out of it, and finite differences judge;
- a compiled function that takes gradients with `create_graph=True`, and the gradients of those,
  gives what eager gives.
A backward that cannot be differentiated may raise; a wrong number is a failure.

    python -m tests.differential.double_gradient_sweep --ops exp,mul
"""

from __future__ import annotations

import argparse
import itertools
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_unflatten

import braze
from tests.differential.op_sweep import Outcome, describe, family_of, full_name, operators

DTYPE = torch.float64
_MOST_ELEMENTS = 300


def twice_differentiable_operators() -> dict[str, OpInfo]:
    """Every OpInfo that has gradients of gradients in float64, by its full name."""
    return {
        name: op
        for name, op in operators().items()
        if op.supports_gradgrad and DTYPE in op.supported_backward_dtypes("cpu")
    }


def sweep_double_gradients(op: OpInfo, limit: int = 1) -> Outcome:
    """Compare the double gradients of `op` on up to `limit` sample inputs."""
    outcome = Outcome(full_name(op), DTYPE, family_of(op))
    for sample in _samples(op, limit):
        function, leaves = _of_leaves(op, sample)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = _attempt(_twice(function), leaves)
            if expected is None:
                continue
            outcome.samples += 1
            try:
                _check(function, leaves, expected)
            except Exception as error:
                outcome.failure = describe(error, sample)
                break
            finally:
                braze.reset()
    return outcome


# --- private ---------------------------------------------------------------------------------


def _samples(op: OpInfo, limit: int) -> Iterable[SampleInput]:
    torch.manual_seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = itertools.islice(op.sample_inputs("cpu", DTYPE, requires_grad=True), 30)
        small = [sample for sample in found if 0 < _elements(sample) <= _MOST_ELEMENTS]
    return small[:: max(1, len(small) // limit)][:limit]


def _elements(sample: SampleInput) -> int:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad)


def _of_leaves(op: OpInfo, sample: SampleInput) -> tuple[Callable[..., Any], list[Tensor]]:
    """The operator as a function of the tensors that need gradients, and those."""
    flat, tree = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    needs = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in flat]

    def function(*leaves: Tensor) -> Any:
        given = iter(leaves)
        args, kwargs = tree_unflatten(
            [next(given) if wanted else leaf for leaf, wanted in zip(flat, needs)], tree
        )
        made = op.gradcheck_wrapper(op, *args, **kwargs)
        if sample.output_process_fn_grad is not None:
            made = sample.output_process_fn_grad(made)
        results = tree_flatten(made)[0]
        return tuple([r for r in results if isinstance(r, Tensor) and r.requires_grad])

    leaves = [leaf.detach().clone() for leaf, wanted in zip(flat, needs) if wanted]
    return function, [leaf.requires_grad_() for leaf in leaves]


def _twice(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The gradients, and the gradients of what is made of them."""

    def gradients(*leaves: Tensor) -> list[Any]:
        loss: Any = 0
        for made in function(*leaves):
            loss = loss + (made * made).sum().real
        first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        total: Any = 0
        for gradient in first:
            if gradient is not None:
                total = total + (gradient * gradient).sum().real
        second = torch.autograd.grad(total, leaves, allow_unused=True)
        return [*[None if g is None else g.detach() for g in first], *second]

    return gradients


def _attempt(function: Callable[..., list[Any]], leaves: list[Tensor]) -> list[Any] | None:
    torch.manual_seed(0)
    try:
        return function(*leaves)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return None  # it is not differentiable twice there


def _check(function: Callable[..., Any], leaves: list[Tensor], expected: list[Any]) -> None:
    def seeded(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            torch.manual_seed(0)
            return f(*args)

        return call

    found = seeded(braze.compile(_twice(function)))(*leaves)
    for actual, wanted in zip(found, expected, strict=True):
        if wanted is None or actual is None:
            assert actual is wanted, "a gradient that eager has, or has not"
        else:
            torch.testing.assert_close(actual, wanted, rtol=1e-7, atol=1e-7, equal_nan=True)
    wide = all(made.dtype in (torch.float64, torch.complex128) for made in function(*leaves))
    if wide and all(g is None or torch.isfinite(g).all() for g in expected):  # else: no judge
        outer = seeded(braze.compile(function))
        assert gradgradcheck(outer, leaves, fast_mode=True, atol=1e-4, rtol=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ops", default="", help="names, separated by commas; all without")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="only each so manieth operator")
    parser.add_argument("--first", type=int, default=0, help="the first of those")
    options = parser.parse_args()
    table = twice_differentiable_operators()
    names = options.ops.split(",") if options.ops else list(table)[options.first :: options.every]
    outcomes = [sweep_double_gradients(table[name], options.samples) for name in names]
    for outcome in outcomes:
        if outcome.failure:
            print(f"{outcome.name}: {outcome.failure}")
    print(f"{sum(o.samples > 0 for o in outcomes)} operators, of {len(outcomes)}")


if __name__ == "__main__":
    main()
