"""Values written or added to elements that are looked up: beside eager, in values and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import braze

F32 = torch.float32
DTYPES = [F32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


def _values(shape: list[int] | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, shape).to(dtype)


def _same(function: Callable[..., Any], *given: Tensor) -> None:
    """Results and arguments as eager leaves them, bit for bit; twice."""
    compiled = braze.compile(function)
    for _ in range(2):
        mine, right = [x.clone() for x in given], [x.clone() for x in given]
        found, expected = compiled(*mine), function(*right)
        for a, b in zip([found, *mine], [expected, *right], strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride()
            assert torch.equal(a, b)


def _called(name: str, dim: int) -> Callable[..., Tensor]:
    return lambda x, i, s: getattr(x, name)(dim, i, s * 2) * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_along_a_dimension(dim: int, dtype: torch.dtype) -> None:
    shape, count = [6, 7, 8], 5
    points = list(shape)
    points[dim] = count
    x, source = _values(shape, dtype), _values(points, dtype)
    places = torch.randint(0, shape[dim], (count,))
    everywhere = torch.randint(0, shape[dim], points)
    for index, names in ((places, ("index_add", "index_copy")), (everywhere, ("scatter_add",))):
        for name in names:
            _same(_called(name, dim), x, index, source)
            _same(_called(f"{name}_", dim), x, index, source)
    _same(_called("scatter", dim), x, everywhere, source)
    _same(lambda x, i: x.scatter(dim, i, 3), x, everywhere)
    _same(lambda x, i, s: torch.zeros_like(x).scatter_add(dim, i, s), x, everywhere, source)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_indices_of_several_dimensions(dtype: torch.dtype, accumulate: bool) -> None:
    def put(*indices: Tensor | None) -> Callable[..., Tensor]:
        return lambda x, v: torch.ops.aten.index_put(x, indices, v * 2, accumulate)

    x = _values((6, 7, 8), dtype)
    i, j = torch.tensor([[0], [3]]), torch.tensor([[5, -7, 2]])
    _same(put(i, None, j), x, _values((2, 3, 7), dtype))
    _same(put(i, j), x, _values((2, 3, 8), dtype))
    _same(put(i, j), x, _values((8,), dtype))
    _same(put(torch.tensor(2)), x, _values((), dtype))
    if accumulate:
        _same(put(torch.tensor([1, 1, 1, -5])), x, _values((4, 7, 8), dtype))


def test_indices_that_nobody_checks() -> None:
    def put(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten._unsafe_index_put(x, [None, i], v * 2, accumulate=True)

    _same(put, torch.randn(4, 6), torch.tensor([1, -1, 1]), torch.randn(4, 3))


def test_sums_come_in_the_order_of_eager() -> None:
    x, source = torch.zeros(3), torch.randn(4000) * 10 ** torch.randint(-6, 6, (4000,))
    _same(lambda x, i, s: x.index_add(0, i, s * 3), x, torch.randint(0, 3, (4000,)), source)


def test_the_last_of_several_values_stays() -> None:
    places = torch.randint(0, 4, (3000,))
    _same(lambda x, i, s: x.scatter(0, i, s * 3), torch.zeros(4), places, torch.randn(3000))


@pytest.mark.parametrize("size", [1, 5])
def test_nothing_is_scattered(size: int) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    _same(lambda x, i, s: x.index_add(0, i, s * 3), torch.ones(size, 2), none, torch.ones(0, 2))
    _same(lambda x, i, s: x.scatter(0, i, s * 3), torch.ones(size), none, torch.ones(0))


def test_sizes_that_vary() -> None:
    def step(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
        cache.index_copy_(1, places, new * 2)
        return cache * 2

    compiled = braze.compile(step, dynamic=True)
    for length in (3, 4, 1, 7, 2):
        mine, right = torch.ones(4, 20, 6), torch.ones(4, 20, 6)
        new, places = torch.randn(4, length, 6), torch.randperm(20)[:length]
        assert torch.equal(compiled(mine, new, places), step(right, new, places))
        assert torch.equal(mine, right)


def test_gradients_of_what_is_looked_up() -> None:
    def loss(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (x.gather(1, i) * 2).sum() + (x[j] ** 2).sum() + x.index_select(0, j).exp().sum()

    i, j = torch.randint(0, 6, (5, 9)), torch.randint(0, 5, (11,))
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    braze.compile(loss)(x, i, j).backward()
    loss(y, i, j).backward()
    torch.testing.assert_close(x.grad, y.grad)


# --- memory ----------------------------------------------------------------------------------


def test_a_value_that_reads_what_is_written_to() -> None:
    def swap(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        x[i] = x[j] * 2
        x[j] = x[i] + 1
        return x[j] * 2

    _same(swap, torch.randn(9, 4), torch.tensor([0, 1, 2]), torch.tensor([2, 3, 0]))


def test_what_is_read_before_a_write() -> None:
    def late(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        before = x * 2
        x.index_copy_(0, i, v + 1)
        return before + x

    _same(late, torch.randn(9, 4), torch.tensor([0, 5]), torch.randn(2, 4))


def test_an_input_that_is_changed_again_after_a_scatter() -> None:
    def twice(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x.index_copy_(0, i, v + 1)
        x.mul_(2)
        return v * 2

    _same(twice, torch.randn(9, 4), torch.tensor([0, 5]), torch.randn(2, 4))


def test_what_is_read_of_sums_in_between() -> None:
    def sums(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        first = torch.mm(x, x).index_add(0, i, v * 2)
        second = first.index_add(0, i + 1, v * 3)
        return first * second

    _same(sums, torch.eye(6), torch.tensor([0, 4, 4]), torch.randn(3, 6))


def test_library_calls_that_add_to_one_buffer() -> None:
    """Each writes to what the one before it wrote to."""

    def sums(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        first = torch.mm(x, x).index_add(0, i, v * 2)
        return first.index_add(0, i, v * 3).scatter_reduce(0, i[:, None], v[:, :1], "amax") + 1

    _same(sums, torch.eye(256), torch.randint(0, 256, (700,)), torch.randn(700, 256))


def test_an_optimizer_beside_a_scatter() -> None:
    """What is written in place comes last, and reads what was there before the sums."""

    def step(p: Tensor, g: Tensor, i: Tensor, v: Tensor) -> Tensor:
        h = torch.mm(g, g)
        p.sub_(h * 0.5)
        return h.index_add(0, i, v * 3)

    given = [torch.randn(6, 6), torch.randn(6, 6), torch.tensor([0, 4, 4]), torch.randn(3, 6)]
    _same(step, *given)


def test_a_bad_index_leaves_inputs_as_eager_does() -> None:
    def write(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x.index_copy_(0, i, v * 2)
        return x + 1

    places, values = torch.tensor([1, 9, 2]), torch.ones(3, 4)
    mine, right = torch.zeros(5, 4), torch.zeros(5, 4)
    compiled = braze.compile(write)
    with pytest.raises(IndexError):
        compiled(mine, places, values)
    with pytest.raises(IndexError):
        write(right, places, values)
    assert torch.equal(mine, right)
    _same(write, right, torch.tensor([1, 4, 2]), values)


def test_a_fault_behind_a_scatter() -> None:
    """The frame runs once more from its beginning; what was scattered is written again."""

    def write(x: Tensor, i: Tensor, v: Tensor, j: Tensor) -> Tensor:
        x.index_copy_(0, i, v * 2)
        return torch.mm(x, x)[j] + 1

    given = [torch.randn(5, 5), torch.tensor([1, 3]), torch.ones(2, 5)]
    mine, right = given[0].clone(), given[0].clone()
    compiled = braze.compile(write)
    with pytest.raises(IndexError):
        compiled(mine, *given[1:], torch.tensor([7]))
    with pytest.raises(IndexError):
        write(right, *given[1:], torch.tensor([7]))
    assert torch.equal(mine, right)


# --- deterministic algorithms ----------------------------------------------------------------


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_deterministic_algorithms_are_those_of_aten(_deterministic: None) -> None:
    def add(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        return x.index_add(0, i, s * 2)

    given = (torch.zeros(4), torch.tensor([1, 1, 3]), torch.randn(3))
    assert "index_add" in str(braze.explain(add)(*given))
    _same(add, *given)
