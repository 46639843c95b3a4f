"""PyTorch's own code that reads values of tensors (whether a matrix is symmetric, whether windows
overlap, how many batches there were) is part of the graph, and raises what it raises."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

import braze
from braze.errors import GraphBreakError
from tests.regress.test_assertions_on_tensors import GOOD, _validated, outcome, same

__all__ = ["_validated"]
D = torch.distributions


def _positive(count):
    factor = torch.randn(count, 3, 3)
    return factor @ factor.mT + torch.eye(3)


def _one_apart(count):
    matrices = _positive(count)
    matrices[1, 0, 1] += 1
    return matrices


def _negative(count):
    matrices = _positive(count)
    matrices[-1] *= -1
    return matrices


def of_covariance(mean, matrices):
    return D.MultivariateNormal(mean, matrices).log_prob(mean + 1)


def of_precision(mean, matrices):
    return D.MultivariateNormal(mean, precision_matrix=matrices).entropy()


def of_two(mean, matrices):
    one, other = D.MultivariateNormal(mean, matrices), D.MultivariateNormal(mean + 1, matrices * 2)
    return D.kl_divergence(one, other)


def semidefinite(mean, matrices):
    return D.constraints.positive_semidefinite.check(matrices)


def definite(mean, matrices):
    return D.constraints.positive_definite.check(matrices)


PROGRAMS = [of_covariance, of_precision, of_two, semidefinite, definite]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_matrices_are_checked_in_the_graph(journal, program):
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    broken = torch.full((4, 3, 3), float("nan"))
    for matrices in (
        _positive(4),
        _positive(7),
        _one_apart(7),
        _negative(4),
        broken,
        _positive(9),
        torch.ones(4, 3, 2),
    ):
        mean = torch.randn(len(matrices), 3)
        found, wanted = outcome(compiled, mean, matrices), outcome(program, mean, matrices)
        assert same(found, wanted), (found, wanted)
    assert not journal.fallbacks()
    assert {record.outcome for record in journal.records()} <= {"graph", "refused"}
    assert [record.outcome for record in journal.records()].count("graph") >= 2


@pytest.mark.parametrize("size", [3, 12, 40])
def test_constant_matrices_of_many_rows(journal, size):
    def program(mean):
        return D.MultivariateNormal(mean, torch.eye(size) * 2).log_prob(mean + 1)

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    for count in (4, 7, 300):
        mean = torch.randn(count, size)
        assert torch.allclose(compiled(mean), program(mean))
    assert [record.outcome for record in journal.records()] == ["graph", "graph"]


def there_and_back(x, window, **options):
    spectrum = torch.stft(x, 16, window=window, return_complex=True)
    return torch.istft(spectrum * 2, 16, window=window, **options)


@pytest.mark.parametrize("options", [{}, {"length": 40}, {"center": False}, {"hop_length": 4}])
@pytest.mark.parametrize("window", [torch.hann_window(16), torch.ones(16)], ids=["hann", "ones"])
def test_windows_are_checked_in_the_graph(journal, window, options):
    compiled = braze.compile(there_and_back, fullgraph=True)
    for x in (torch.randn(2, 64), torch.randn(3, 64), torch.randn(3, 81), torch.randn(64)):
        found, wanted = (
            outcome(partial(run, x, window, **options)) for run in (compiled, there_and_back)
        )
        if isinstance(wanted, torch.Tensor):
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)
        else:
            assert found == wanted
    assert not journal.fallbacks()


@pytest.mark.parametrize("shorter", [12, 15])
def test_windows_of_another_length(shorter):
    def program(x):
        spectrum = torch.stft(x, 16, win_length=shorter, window=window, return_complex=True)
        return torch.istft(spectrum, 16, win_length=shorter, window=window, normalized=True)

    window = torch.hamming_window(shorter)
    compiled = braze.compile(program, fullgraph=True)
    for count in (64, 80, 96):
        x = torch.randn(2, count)
        torch.testing.assert_close(compiled(x), program(x))


def test_windows_that_do_not_overlap_raise(journal):
    compiled = braze.compile(there_and_back, fullgraph=True)
    x = torch.randn(2, 64)
    torch.testing.assert_close(compiled(x, torch.ones(16)), there_and_back(x, torch.ones(16)))
    with pytest.raises(RuntimeError, match="window overlap add min"):
        compiled(x, torch.zeros(16))


def test_gradients_of_frames():
    window = torch.hann_window(16)
    gradients = []
    for run in (there_and_back, braze.compile(there_and_back, fullgraph=True)):
        x = torch.linspace(0, 1, 128).reshape(2, 64).requires_grad_()
        run(x, window).pow(2).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("driver", [None, "gelsy"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 3), (5, 2)),
        ((3, 5), (3, 2)),
        ((4, 5, 3), (4, 5, 2)),
        ((4, 3, 5), (4, 3)),
        ((0, 5, 3), (0, 5, 2)),
        ((2, 4, 5, 3), (2, 4, 5, 1)),
    ],
)
def test_least_squares(journal, shapes, driver):
    def program(matrix, right):
        found = torch.linalg.lstsq(matrix, right, driver=driver)
        return (*found, found.solution.sin())

    compiled = braze.compile(program, fullgraph=True)
    matrix, right = map(torch.randn, shapes)
    for found, wanted in zip(compiled(matrix, right), program(matrix, right), strict=True):
        assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
        torch.testing.assert_close(found, wanted)
    assert not journal.fallbacks()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "kind", [(torch.nn.BatchNorm1d, (5, 3)), (torch.nn.BatchNorm2d, (4, 3, 2, 2))]
)
def test_averages_over_all_batches(journal, kind, gradients):
    norm, shape = kind
    wanted = norm(3, momentum=None)
    found = copy.deepcopy(wanted)
    compiled = braze.compile(found, fullgraph=True)
    for step in range(4):
        x = (torch.randn(7 if step == 3 else shape[0], *shape[1:]) * step).requires_grad_(gradients)
        left, right = compiled(x), wanted(x)
        torch.testing.assert_close(left, right)
        if gradients:
            left.pow(2).sum().backward()
            right.pow(2).sum().backward()
            torch.testing.assert_close(found.weight.grad, wanted.weight.grad)
        for one, other in zip(found.buffers(), wanted.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    assert {record.outcome for record in journal.records()} <= {"graph", "backward"}


def test_samples_without_a_meta_kernel(journal):
    def program(x):
        return (
            D.Dirichlet(x).rsample(),
            D.Beta(x, x + 1).sample(),
            D.Binomial(5, torch.sigmoid(x)).sample(),
        )

    compiled = braze.compile(program, fullgraph=True)
    for count in (4, 7):
        x = torch.rand(count, 3) + 0.5
        results = []
        for run in (program, compiled):
            torch.manual_seed(count)
            results.append((*run(x), torch.rand(1)))
        for wanted, found in zip(*results, strict=True):
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)
    assert not journal.fallbacks()


def test_messages_that_show_tensors():
    def program(x, scale):
        return D.Normal(x, scale).log_prob(x)

    def plain(x, scale):
        raise KeyError("%s and %s" % (x, scale))  # noqa: UP031

    def converted(x, scale):
        raise KeyError(str(x * scale))

    for one in (program, plain, converted):
        compiled = braze.compile(one, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            wanted = outcome(one, GOOD, -1.0)
            assert wanted[0] in (ValueError, KeyError)
            assert outcome(compiled, GOOD, -1.0) == wanted


def test_a_text_that_is_used_breaks_at_its_line():
    def program(x):
        try:
            raise ValueError(f"{x}")
        except ValueError as error:
            return str(error)

    with pytest.raises(
        GraphBreakError, match=r"test_libraries_that_read_values\.py:\d+: graph break"
    ):
        braze.compile(program, backend="aot_eager", fullgraph=True)(GOOD)
    assert braze.compile(program, backend="aot_eager")(GOOD) == program(GOOD)
