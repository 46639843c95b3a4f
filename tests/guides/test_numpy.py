"""NumPy code under the compiler (003-40 to 003-54)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import braze
from tests.guides.graphs import Counter, in_one_graph


def numpy_fn(X: Any, Y: Any) -> Any:
    return np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1))


def test_native_numpy_is_one_graph() -> None:  # 003-40, 003-41
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((1024, 64)), rng.standard_normal((1024, 64))
    Z = in_one_graph(numpy_fn, X, Y)
    assert isinstance(Z, np.ndarray)
    np.testing.assert_allclose(Z, numpy_fn(X, Y))


def test_a_backend_sees_the_graph() -> None:  # 003-40
    backend = Counter()
    X = np.random.default_rng(0).standard_normal((8, 4))
    np.testing.assert_allclose(braze.compile(numpy_fn, backend=backend)(X, X), numpy_fn(X, X))
    assert len(backend.graphs) == 1


def test_mixed_programs() -> None:  # 003-43
    def numpy_and_torch(x: torch.Tensor) -> torch.Tensor:
        a = x.numpy()
        b = np.sin(a) ** 2 + np.cos(a) ** 2
        return torch.from_numpy(b) + x

    x = torch.randn(16)
    torch.testing.assert_close(in_one_graph(numpy_and_torch, x), x + 1)


def test_numpy_scalars() -> None:  # 003-44
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * float(np.float32(3)) + int(np.int64(2))

    torch.testing.assert_close(in_one_graph(scaled, torch.ones(3)), torch.full((3,), 5.0))


def test_negative_strides() -> None:  # 003-45
    def flipped(a: Any) -> Any:
        return a[::-1] + np.flip(a, 0) * 2

    a = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(in_one_graph(flipped, a), flipped(a))


def test_promotion() -> None:  # 003-46
    def promoted(a: Any, b: Any) -> Any:
        return a + b, a + 1, a * 1.5, b + np.float64(3)

    a, b = np.arange(3, dtype=np.int8), np.ones(3, np.float32)
    for found, expected in zip(in_one_graph(promoted, a, b), promoted(a, b)):
        assert found.dtype == expected.dtype


def test_indices_of_triangles() -> None:  # 003-47
    def triangle(a: Any) -> Any:
        return a[np.tril_indices(3)], a[np.triu_indices_from(a)]

    a = np.arange(9.0).reshape(3, 3)
    for found, expected in zip(braze.compile(triangle)(a), triangle(a)):
        np.testing.assert_array_equal(found, expected)


def test_a_break_within() -> None:  # 003-49
    def broken(a: Any) -> Any:
        b = np.sin(a)
        braze.graph_break()
        return np.cos(b)

    a = np.arange(4.0)
    found = braze.compile(broken)(a)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, broken(a))


@pytest.mark.parametrize("wrap", [braze.wrap_numpy, torch.compiler.wrap_numpy])
def test_wrapped_numpy(wrap: Any) -> None:  # 003-50, 003-51, 003-52
    f = braze.compile(wrap(numpy_fn), fullgraph=True)
    X = torch.randn(32, 8, requires_grad=True)
    Y = torch.randn(32, 8)
    Z = f(X, Y)
    assert isinstance(Z, torch.Tensor)
    expected = (X[:, :, None] * Y[:, None, :]).sum((-2, -1))
    torch.testing.assert_close(Z, expected)
    Z.sum().backward()
    torch.testing.assert_close(X.grad, Y.sum(1, keepdim=True).expand(32, 8))


def test_wrapped_numpy_that_breaks() -> None:  # 003-53
    @braze.wrap_numpy
    def broken(a: Any) -> Any:
        braze.graph_break()
        return np.sin(a)

    x = torch.randn(4)
    found = braze.compile(broken)(x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, x.sin())


def test_numpy_left_alone() -> None:  # 003-54
    backend = Counter()
    f = braze.compile(numpy_fn, backend=backend, options={"trace_numpy": False})
    X = np.ones((4, 4))
    np.testing.assert_array_equal(f(X, X), numpy_fn(X, X))
    assert not backend.graphs


def test_where_with_a_number_that_changes() -> None:
    def f(x: Any, n: int) -> Any:
        return np.where(x < 0, n, x)

    compiled = braze.compile(f)
    x = np.array([-1.0, 2.0, -3.0])
    for n in range(6):
        found, expected = compiled(x, n), f(x, n)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_imaginary_part_as_tensor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a = x.numpy()
        return torch.from_numpy(a.imag) + 1

    x = torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(in_one_graph(f, x), x.imag + 1)


def test_tensor_of_numpys_numbers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = np.int64(3)
        return x + torch.LongTensor([n, np.int64(4)])

    x = torch.zeros(2, dtype=torch.int64)
    torch.testing.assert_close(in_one_graph(f, x), torch.tensor([3, 4]))


def test_random_numbers_with_a_seed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(np.random.randn(2))

    compiled = braze.compile(f)
    x = torch.zeros(2, dtype=torch.float64)
    for seed in range(3):
        np.random.seed(seed)
        expected = f(x), np.random.rand()
        np.random.seed(seed)
        found = compiled(x), np.random.rand()
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]
