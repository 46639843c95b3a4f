"""NumPy code in a frame: one graph, and what NumPy gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.report.explain import Explanation, summarise
from tests.recorded import recorded

CONSTANT = np.array([[1.0, -2.0], [0.5, 4.0]])


def same(right: Any, found: Any) -> None:
    """The same values, and the types, data types and strides that a program sees."""
    assert type(found) is type(right)
    if isinstance(right, (tuple, list)):
        assert len(found) == len(right)
        for pair in zip(right, found):
            same(*pair)
    elif isinstance(right, (np.ndarray, np.generic)):
        assert (found.dtype, found.shape) == (right.dtype, right.shape)
        if isinstance(right, np.ndarray):
            assert found.strides == right.strides
            assert found.flags.writeable == right.flags.writeable
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
    elif isinstance(right, torch.Tensor):
        torch.testing.assert_close(found, right)
    elif isinstance(right, float):
        assert found == pytest.approx(right, rel=1e-5, abs=1e-5)
    else:
        assert found == right


def judge(function: Any, *args: Any, calls: int = 3, **options: Any) -> Explanation:
    """What became of calls, each as without a compiler: results, and the arguments afterwards."""
    with recorded() as journal:
        compiled = braze.compile(function, options={"suppress_errors": False, **options})
    for _ in range(calls):
        plain, ours = copy.deepcopy(args), copy.deepcopy(args)
        same(function(*plain), compiled(*ours))
        same(plain, ours)
    return summarise("", journal, None)


def fused(x: Any, y: Any) -> Any:
    return np.sum(x[:, :, None] * y[:, None, :], axis=(-2, -1))


def mixed(t: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(t.numpy()) * 2)


def views(a: Any) -> Any:
    return a[::-1], a.T, a[1:, None], np.flip(a), a.reshape(-1), a.ravel(), a


def facts(a: Any) -> Any:
    return a.dtype, a.shape, a.ndim, a.size, a.strides, len(a), a.itemsize, a.nbytes


def in_place(a: Any) -> Any:
    a += 1
    a[0] = 7
    a[a > 1] *= 2 if a.ndim == 1 else 1
    np.multiply(a, 3, out=a)
    return a


def masked(a: Any) -> Any:
    a[a > 0] = 0
    a[:, 1] = a[:, 0] - 5
    return a


def scalars(a: Any) -> Any:
    return a.sum(), a.mean(), a[0, 0], a.max() - a.min(), np.float32(3) * a.sum(), a[0, 0] + 1


def promoted(a: Any) -> Any:
    half = a.astype(np.float16)
    return half + 1.5, half + np.float32(1), half + a, (a > 0) + 1, np.arange(3) / 2


def made(a: Any) -> Any:
    return np.where(a > 0, a, 0), np.zeros((3, 4)) + np.arange(4), np.concatenate([a, a]), np.eye(2)


def iterated(a: Any) -> Any:
    return [row.sum() for row in a], isinstance(a, np.ndarray), type(a.sum()), float(a.sum())


def spread(a: Any) -> Any:
    return a.std(axis=0), np.var(a, ddof=1), np.linalg.norm(a), a.argmax(1), np.cumsum(a, 0)


def of_constants(a: Any) -> Any:
    return a[:2, :2] @ CONSTANT, np.dot(CONSTANT, np.array([1.0, 2.0]))


def gathered(a: Any) -> Any:
    return (
        a[[0, 2]],
        a[:, np.array([1, 0])],
        np.take(a, [1], axis=0),
        a[np.argsort(a[:, 0], kind="stable")],
    )


ARRAY = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (fused, (np.arange(64.0).reshape(16, 4), np.arange(64.0).reshape(16, 4))),
    (mixed, (torch.arange(6.0).reshape(2, 3),)),
    *[(f, (ARRAY,)) for f in (views, facts, masked, scalars, promoted, made, iterated, spread)],
    *[(f, (ARRAY,)) for f in (of_constants, gathered)],
]


@pytest.mark.parametrize(("function", "args"), PROGRAMS)
def test_programs_are_one_graph(function: Any, args: tuple[Any, ...]) -> None:
    found = judge(function, *args)
    assert found.break_count == 0, found.break_reasons
    assert found.graph_count == 1 or function is facts


def test_sums_of_products_are_one_kernel() -> None:
    array = np.ones((1024, 64))
    found = judge(fused, array, array)
    (record,) = found.records
    assert (record.counters["kernels"], record.extern_ops) == (1, ())


def test_writes_go_to_the_caller_s_array() -> None:
    assert judge(in_place, ARRAY).graph_count >= 1
    assert judge(in_place, np.arange(5)).graph_count >= 1


def test_arguments_and_results_are_one_object() -> None:
    compiled = braze.compile(lambda a, b: (a, a is b, a.T, [b, a]))
    array = np.ones((2, 3))
    first, is_one, turned, listed = compiled(array, array)
    assert first is array and is_one and listed[0] is array and turned.base is not None
    assert np.shares_memory(turned, array)
    assert compiled(array, np.ones((2, 3)))[1] is False


def test_memory_is_shared_as_in_numpy() -> None:
    compiled = braze.compile(lambda a, t: (a[::-1], a[1:], t.numpy(), torch.from_numpy(a), a + 0))
    array, tensor = np.arange(4.0), torch.arange(3.0)
    turned, rest, of_tensor, of_array, copied = compiled(array, tensor)
    array[:], tensor[:] = 9, 8
    assert (turned == 9).all() and (rest == 9).all() and (of_array == 9).all()
    assert (of_tensor == 8).all() and (copied == [0, 1, 2, 3]).all()
    assert turned.strides == (-8,)


def test_overlapping_arrays_are_told_from_others() -> None:
    def write(a: Any, b: Any) -> Any:
        a += 1
        return b * 2

    compiled = braze.compile(write)
    for make in (np.zeros, np.zeros, np.ones):
        array = make(6)
        same(write(array[:3].copy(), array[3:].copy()), compiled(array[:3], array[3:]))
    array = np.zeros(4)
    assert (compiled(array[:3], array[1:]) == [2, 2, 0]).all()


@pytest.mark.parametrize(
    "other",
    [ARRAY.T, ARRAY[::2], ARRAY[::-1], ARRAY.astype(np.float64), ARRAY.astype(">f4"), ARRAY[:3],
     ARRAY.view(np.int32), np.ma.masked_array(ARRAY), ARRAY.astype(object), np.matrix(ARRAY),
     ARRAY.astype(np.uint16)],
)  # fmt: skip
def test_other_arrays_have_entries_of_their_own(other: Any) -> None:
    def program(a: Any) -> Any:
        return a * 2 + a.shape[0], a.strides

    compiled = braze.compile(program)
    for array in (ARRAY, other, ARRAY, other):
        right, found = program(array), compiled(array)
        assert type(found[0]) is type(right[0]) and found[0].dtype == right[0].dtype
        assert (found[0] == right[0]).all() and found[1] == right[1]


def test_read_only_arrays() -> None:
    array = np.arange(3.0)
    array.setflags(write=False)
    assert judge(lambda a: (a * 2, a[1:]), array).break_count == 0

    def write(a: Any) -> None:
        a[0] = 1

    compiled = braze.compile(write)
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            compiled(array)
        compiled(np.zeros(3))


def test_numpy_code_may_be_left_to_numpy() -> None:
    found = judge(fused, *PROGRAMS[0][1], trace_numpy=False)
    assert found.graph_count == 0 and found.break_count > 0
    assert judge(mixed, torch.ones(3), trace_numpy=False).graph_count == 0


UNTRACED: list[Callable[[Any], Any]] = [
    lambda a: np.add.reduce(a), lambda a: a[a > 0], lambda a: np.nonzero(a), lambda a: str(a),
    lambda a: np.unique(a), lambda a: a.tobytes(), lambda a: a.tolist(), lambda a: repr(a.sum()),
    lambda a: {1: a.sum() > 0}[1] and 2, lambda a: np.array([a, "text"], dtype=object).shape,
    lambda a: next(iter(np.nditer(a[:1, 0]))) * 2, lambda a: np.vectorize(lambda v: v + 1)(a),
    lambda a: hash(a.sum()) and 1, lambda a: a.view(np.int32),
    lambda a: np.random.default_rng(0).random(2),
    lambda a: torch.ones(4) @ torch.as_tensor(a[0]), lambda a: f"{a.sum():.2f}",
    lambda a: a.flat[1], lambda a: a.flags.writeable, lambda a: a.base is None,
    lambda a: np.sort(a, axis=None)[0], lambda a: np.ma.masked_array(a).sum(),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(UNTRACED)))
def test_other_programs_are_numpy_s(place: int) -> None:
    judge(UNTRACED[place], ARRAY)


@pytest.mark.parametrize("wrap", [braze.wrap_numpy, torch.compiler.wrap_numpy])
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_flow_through_numpy_code(wrap: Any, inside: bool) -> None:
    def program(a: Any, b: Any) -> Any:
        return np.sum(np.sin(a) * b, axis=-1), {"mean": (a * a).mean()}

    wrapped = wrap(program)
    function = (lambda a, b: wrapped(a * 1, b)) if inside else wrapped
    compiled = braze.compile(function, fullgraph=True)
    x = torch.randn(3, 4, requires_grad=True)
    y = torch.randn(4)
    for _ in range(2):
        x.grad = None
        total, rest = compiled(x, y)
        assert type(total) is type(rest["mean"]) is torch.Tensor
        (total.sum() + rest["mean"]).backward()
        expected = torch.cos(x.detach()) * y + 2 * x.detach() / 12
        torch.testing.assert_close(x.grad, expected)
        torch.testing.assert_close(total, (x.sin() * y).sum(-1))


def test_wrapped_code_without_a_graph_gives_tensors() -> None:
    wrapped = braze.wrap_numpy(lambda a: (np.unique(a), a.sum()))
    for function in (wrapped, braze.compile(wrapped)):
        found, total = function(torch.tensor([2.0, 1.0, 2.0]))
        torch.testing.assert_close(found, torch.tensor([1.0, 2.0]))
        torch.testing.assert_close(total, torch.tensor(5.0))
    with pytest.raises(RuntimeError, match="requires grad"):
        braze.compile(wrapped)(torch.ones(2, requires_grad=True))


def test_settings_for_errors_are_asked_again() -> None:
    compiled = braze.compile(lambda a: 1 / a)
    array = np.array([0.0, 1.0])
    assert compiled(array)[0] == np.inf
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        compiled(array)
    assert compiled(array)[0] == np.inf


def test_indices_beyond_the_end_raise() -> None:
    compiled = braze.compile(lambda a, i: a[i] * 2)
    array = np.arange(3.0)
    assert (compiled(array, np.array([0, -1])) == [0, 4]).all()
    for index in (np.array([0, 3]), np.array([-4, 0])):
        with pytest.raises(IndexError):
            compiled(array, index)


def test_writes_to_constant_places() -> None:
    def write(a: Any) -> Any:
        a[0, [0, 1]] = 1
        return a

    assert judge(write, ARRAY).break_count == 0
