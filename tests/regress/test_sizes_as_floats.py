"""PyTorch's C++ makes floats of sizes: the number of classes under label smoothing, for one. It got
an error that eager does not raise, and the call was left to eager."""

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal


def smoothed(x, goal, reduction="mean", weight=None):
    return functional.cross_entropy(
        x, goal, weight, label_smoothing=0.1, reduction=reduction, ignore_index=2
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_label_smoothing_at_changing_sizes(
    journal: Journal, reduction: str, is_weighted: bool
) -> None:
    compiled = braze.compile(smoothed, dynamic=True, fullgraph=True)
    for rows, classes in ((4, 7), (5, 7), (6, 7), (6, 9)):
        x = torch.randn(rows, classes, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        goal = torch.randint(0, classes, (rows,))
        weight = torch.rand(classes) if is_weighted else None
        found, expected = compiled(x, goal, reduction, weight), smoothed(y, goal, reduction, weight)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    graphs = [r for r in journal.records() if r.outcome == "graph" and "backward" not in r.function]
    assert len(graphs) == 2, "one a number of classes"
    assert not journal.fallbacks()
