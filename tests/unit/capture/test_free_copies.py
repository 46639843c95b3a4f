"""`reshape` of every second column is a view at even sizes and a copy at odd ones: one program
copies at all of them where nobody can tell, and asks the sizes where somebody can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal

Program = Callable[[torch.Tensor], torch.Tensor]
SIZES = (5, 8, 9, 10, 7)


def _columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, 1::2]


def _row(x: torch.Tensor) -> torch.Tensor:
    return _columns(x).reshape(-1)


def _written(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    _row(x).add_(1)
    return x


def _source_written(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    row = _row(x)
    x.add_(1)
    return row.sum()


def _written_beneath(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    _columns(x).reshape(1, -1).flatten().detach()[2:].mul_(3)
    return x


def _made_contiguous(x: torch.Tensor) -> torch.Tensor:
    row = _row(x)
    row.contiguous().add_(1)
    return row * 1


def _counted(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x.add_(1)
    return _row(x) * _row(x)._version


def _two_rows(x: torch.Tensor) -> torch.Tensor:
    return _columns(x).reshape(2, -1)


UNSEEN: dict[str, Program] = {
    "pointwise": lambda x: _row(x) * 2,
    "reduced": lambda x: _row(x).sum() + _row(x).softmax(0).amax() * len(_row(x)),
    "a view of it": lambda x: _two_rows(x).t()[1:] + 1,
    "convolved": lambda x: functional.conv1d(_two_rows(x)[:, None], torch.ones(1, 1, 1)),
    "joined": lambda x: torch.cat([_row(x), _row(x)]),
    "flattened": lambda x: _columns(x).reshape(1, -1).flatten() * 2,
    "copied": lambda x: _row(x).clone(),
    "converted to what it is": lambda x: _row(x).to(torch.float32) + 1,
}
PRODUCTS: dict[str, Program] = {
    "matmul": lambda x: _two_rows(x) @ torch.ones_like(_two_rows(x)).t(),
    "linear": lambda x: functional.linear(_two_rows(x).t(), torch.ones(3, 2)),
}
SEEN: dict[str, Program] = {
    "it leaves": _row,
    "a view of it leaves": lambda x: _two_rows(x)[1:],
    "it is written to": _written,
    "what it is of is written to": _source_written,
    "a view of a copy of it is written to": _written_beneath,
    "made contiguous": _made_contiguous,
    "contiguous is itself": lambda x: [r := _row(x)] and r * (1 if r.contiguous() is r else 2),
    "strides": lambda x: _row(x) * _row(x).stride(0),
    "contiguity": lambda x: _row(x) * (2 if _row(x).is_contiguous() else 3),
    "offset": lambda x: _row(x) * (_row(x * 1).storage_offset() + 1),
    "is a view": lambda x: _row(x) * (2 if _row(x)._is_view() else 3),
    "base": lambda x: _row(x) * (2 if _row(x)._base is None else 3),
    "version": _counted,
    "under vmap": lambda x: torch.vmap(lambda row: row * 2)(_row(x)),
    "other bytes": lambda x: _row(x).view(torch.int32) * 1,
    "an operator not known": lambda x: _two_rows(x).kthvalue(1)[0],
}


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _compare(program: Program, grad: bool) -> None:
    compiled = braze.compile(lambda x: program(x), dynamic=True, options={"suppress_errors": False})
    for size in SIZES:
        x, y = [torch.arange(6.0 * size).view(6, size).requires_grad_(grad) for _ in "xy"]
        expected, found = program(x), compiled(y)
        assert torch.equal(found, expected)
        assert torch.equal(x, y)
        assert found.stride() == expected.stride()
        assert _share_memory(found, y) == _share_memory(expected, x)
        if grad and expected.requires_grad:
            expected.square().sum().backward()
            found.square().sum().backward()
            assert x.grad is not None
            torch.testing.assert_close(y.grad, x.grad, check_stride=True)


@pytest.mark.parametrize("name", (*UNSEEN, *PRODUCTS))
def test_a_copy_that_nobody_sees_needs_no_second_program(journal: Journal, name: str) -> None:
    with torch.no_grad():
        _compare({**UNSEEN, **PRODUCTS}[name], grad=False)
    assert len(journal.records()) == 1


@pytest.mark.parametrize("name", UNSEEN)
def test_nor_does_it_with_gradients(journal: Journal, name: str) -> None:
    _compare(UNSEEN[name], grad=True)
    assert len(journal.records()) == 2  # forward and backward


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_seen_is_eagers(journal: Journal, name: str, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        _compare(SEEN[name], grad)
    assert len(journal.records()) > 1 + grad


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_products_are_eagers(name: str) -> None:
    _compare(PRODUCTS[name], grad=True)


def test_other_modes_ask_the_sizes(journal: Journal) -> None:
    compiled = braze.compile(lambda x: _row(x) * 2, options={"suppress_errors": False})
    for size in (4, 6, 8):
        x = torch.randn(6, size)
        assert torch.equal(compiled(x), _row(x) * 2)
    assert not any("aten.clone" in op for record in journal.records() for op in record.ops)
