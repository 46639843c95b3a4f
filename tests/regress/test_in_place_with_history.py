"""In-place operators on tensors with a history: values, gradients, and whether there are any.

Operators of lists wrote nothing; comparisons and `normal_` had no gradient, where eager's is zero.
The methods and functions are those that PyTorch has, with arguments of every kind that one takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.verify_graph import InvalidGraph, verify_graph

Tensor = torch.Tensor
_METHODS = [name for name in dir(Tensor) if name.endswith("_") and not name.startswith("_")]
_LISTS = [name for name in dir(torch) if name.startswith("_foreach_")]
_GIVEN: dict[str, Callable[[Tensor, Tensor], tuple[Any, ...]]] = {
    "nothing": lambda y, w: (),
    "a float": lambda y, w: (0.5,),
    "an integer": lambda y, w: (1,),
    "two floats": lambda y, w: (0.2, 0.7),
    "a tensor": lambda y, w: (w,),
    "two tensors": lambda y, w: (w, w + 1),
    "a mask and a number": lambda y, w: (y.detach() > 0.5, 0.3),
    "a mask and a tensor": lambda y, w: (y.detach() > 0.5, w),
}
_LISTS_GIVEN: dict[str, Callable[[Tensor, Tensor], tuple[Any, ...]]] = {
    "nothing": lambda x, w: (),
    "a float": lambda x, w: (2.0,),
    "floats": lambda x, w: ([2.0, 3.0],),
    "tensors": lambda x, w: ([x + 1, w + 1],),
    "tensors twice": lambda x, w: ([x + 1, w + 1], [x + 2, w + 2]),
}


def _whole(x: Tensor, w: Tensor, name: str, given: Any) -> Sequence[Tensor]:
    y = x * 1
    getattr(y, name)(*given(y, w))
    return y, y * 2


def _part(x: Tensor, w: Tensor, name: str, given: Any) -> Sequence[Tensor]:
    y = x * 1
    getattr(y[1:], name)(*given(y[1:], w[1:]))
    return y, y * 2


def _of_list(x: Tensor, w: Tensor, name: str, given: Any) -> Sequence[Tensor]:
    y = [x * 1, w * 2]
    made = getattr(torch, name)(y, *given(x, w))
    return [tensor * 1 for tensor in (*y, *(made or ())) if isinstance(tensor, Tensor)]


def _outcome(function: Any, name: str, given: Any) -> tuple[list[Any], list[bool]]:
    torch.manual_seed(0)
    x, w = (torch.rand(4, 3, requires_grad=True) for _ in range(2))
    results = function(x, w, name, given)
    tracked = [tensor.requires_grad for tensor in results]
    if any(tracked):
        sum(tensor.sum() for tensor in results if tensor.requires_grad).backward()
    return [*[tensor.detach() for tensor in results], x.grad, w.grad], tracked


def _compare(function: Any, name: str, given: Any) -> None:
    try:
        expected = _outcome(function, name, given)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return  # eager takes no such arguments
    braze.reset()  # a name is a program
    found = _outcome(braze.compile(function), name, given)
    assert found[1] == expected[1]
    torch.testing.assert_close(found[0], expected[0], equal_nan=True)


def _failures(function: Any, names: Sequence[str], given: Any) -> list[str]:
    failed = []
    for name in names:
        try:
            _compare(function, name, given)
        except (AssertionError, RuntimeError) as error:
            failed.append(f"{name}: {error}")
    return failed


@pytest.mark.parametrize("given", _GIVEN)
@pytest.mark.parametrize("function", [_whole, _part])
def test_methods(function: Any, given: str) -> None:
    assert not _failures(function, _METHODS, _GIVEN[given])


@pytest.mark.parametrize("given", _LISTS_GIVEN)
def test_operators_of_lists(given: str) -> None:
    assert not _failures(_of_list, _LISTS, _LISTS_GIVEN[given])


def test_a_list_is_written_in_one_graph() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 1
        torch._foreach_mul_([y], 2.0)
        return y

    x = torch.ones(3, requires_grad=True)
    result = braze.compile(function, fullgraph=True)(x)
    result.sum().backward()
    assert result.tolist() == [2.0] * 3
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3


def test_a_graph_in_which_a_write_has_no_result_is_refused() -> None:
    graph = parse_graph(
        "graph {\n  input %0: f32[3][1]cpu\n  () = aten._foreach_mul_.Scalar([%0], 2.0)\n"
        "  output %0\n}\n"
    )
    with pytest.raises(InvalidGraph, match="is no result of it"):
        verify_graph(graph)
