"""Every distribution of `torch.distributions`, whatever `dir()` says there is: each question that
one can be asked, at two batch sizes one after the other, in one graph, beside eager.

Arguments are made from `arg_constraints`, so that a distribution that PyTorch adds is swept, too.
"""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributions as D
from torch.distributions import constraints

import braze
from braze.errors import GraphBreakError, LeftToEagerError
from tests.shares import due_today


def _positive_matrices(batch):
    factor = torch.randn(*batch, 3, 3)
    return factor @ factor.mT + torch.eye(3)


# An argument of a batch for each constraint that names one, first match first.
_ARGUMENTS = [
    (constraints.positive_definite, _positive_matrices),
    (constraints.lower_cholesky, lambda b: torch.linalg.cholesky(_positive_matrices(b))),
    (constraints.simplex, lambda b: torch.rand(*b, 3).softmax(-1)),
    (constraints.unit_interval, lambda b: torch.rand(b) * 0.8 + 0.1),
    (constraints.half_open_interval(0.0, 1.0), lambda b: torch.rand(b) * 0.8 + 0.1),
    (constraints.real_vector, lambda b: torch.randn(*b, 3)),
    (constraints.real, torch.randn),
    (constraints.positive, lambda b: torch.rand(b) + 2.5),
    (constraints.nonnegative, lambda b: torch.rand(b) + 0.5),
    (constraints.nonnegative_integer, lambda b: torch.full(b, 5.0)),
]
# One of each group of arguments is given.
_ONE_OF = [
    ("probs", "logits"),
    ("covariance_matrix", "precision_matrix", "scale_tril"),
]
# Distributions of others, and those whose arguments no constraint describes.
_MADE = {
    "Independent": lambda b: (
        lambda loc, scale: D.Independent(D.Normal(loc, scale), 1),
        {"loc": torch.randn(*b, 3), "scale": torch.rand(*b, 3) + 0.5},
    ),
    "MixtureSameFamily": lambda b: (
        lambda p, loc, scale: D.MixtureSameFamily(D.Categorical(p), D.Normal(loc, scale)),
        {"p": torch.rand(*b, 3), "loc": torch.randn(*b, 3), "scale": torch.rand(*b, 3) + 0.5},
    ),
    "TransformedDistribution": lambda b: (
        lambda loc, scale: D.TransformedDistribution(
            D.Normal(loc, scale), [D.SigmoidTransform(), D.AffineTransform(1.0, 2.0)]
        ),
        {"loc": torch.randn(b), "scale": torch.rand(b) + 0.5},
    ),
    "Uniform": lambda b: (D.Uniform, {"low": torch.zeros(b), "high": torch.rand(b) + 0.5}),
    "LKJCholesky": lambda b: (D.LKJCholesky, {"dim": 3, "concentration": torch.rand(b) + 0.5}),
    "Wishart": lambda b: (
        D.Wishart,
        {"df": torch.rand(b) + 6, "covariance_matrix": _positive_matrices(b)},
    ),
    "LowRankMultivariateNormal": lambda b: (
        D.LowRankMultivariateNormal,
        {
            "loc": torch.randn(*b, 3),
            "cov_factor": torch.randn(*b, 3, 2),
            "cov_diag": torch.rand(*b, 3) + 0.5,
        },
    ),
}
_NOT_ONE = {"Distribution", "ExponentialFamily"}
NAMES = [
    name
    for name in dir(D)
    if inspect.isclass(getattr(D, name))
    and issubclass(getattr(D, name), D.Distribution)
    and name not in _NOT_ONE
]
_OF_ROWS = {"Categorical", "OneHotCategorical", "OneHotCategoricalStraightThrough", "Multinomial"}
_OF_ROWS |= {"RelaxedOneHotCategorical", "Dirichlet", "LogisticNormal"}
QUESTIONS = {
    "sample": lambda d, v: d.sample(),
    "samples": lambda d, v: d.sample((4,)),
    "rsample": lambda d, v: d.rsample(),
    "log_prob": lambda d, v: d.log_prob(v),
    "cdf": lambda d, v: d.cdf(v),
    "icdf": lambda d, v: d.icdf(torch.full(d.batch_shape, 0.3)),
    "entropy": lambda d, v: d.entropy(),
    "mean": lambda d, v: d.mean,
    "variance": lambda d, v: d.variance,
    "mode": lambda d, v: d.mode,
    "expand": lambda d, v: d.expand((2, *d.batch_shape)).log_prob(v),
    "kl": lambda d, v: D.kl_divergence(d, d),
    "support": lambda d, v: d.support.check(v),
    "enumerate_support": lambda d, v: d.enumerate_support(),
}
# What is left to eager, with the reason. May only shrink.
BREAKS = {
    ("VonMises", "sample"): "draws until all are accepted",
    ("VonMises", "samples"): "draws until all are accepted",
    ("Beta", "mode"): "assigns to the rows that a mask takes, and looks for the largest of none",
    ("Dirichlet", "mode"): "the same",
    **{("Wishart", question): "warns of low degrees of freedom" for question in QUESTIONS},
}


def arguments(name, batch):
    """A class or function that makes the distribution, and its arguments by name."""
    made = _MADE.get(name)
    if made is not None:
        return made(batch)
    cls = getattr(D, name)
    left_out = {other for group in _ONE_OF for other in _others(group, cls.arg_constraints)}
    parameters = inspect.signature(cls.__init__).parameters
    given = {}
    for parameter, constraint in cls.arg_constraints.items():
        if parameter in parameters and parameter not in left_out:
            given[parameter] = _argument(name, constraint, batch)
    if "temperature" in parameters:
        given["temperature"] = torch.tensor(0.7)
    if "total_count" in parameters:
        given["total_count"] = 5
    return cls, given


def _others(group, found):
    return [name for name in group if name in found][1:]


def _argument(name, constraint, batch):
    if isinstance(constraint, constraints.independent):
        return _argument(name, constraint.base_constraint, (*batch, 3))
    if name in _OF_ROWS and constraint in (constraints.real, constraints.positive):
        batch = (*batch, 3)
    for known, make in _ARGUMENTS:
        if constraint is known or type(constraint) is type(known):
            return make(batch)
    raise AssertionError(f"no argument for {constraint} of {name}")


def outcome(function, *args):
    torch.manual_seed(1)
    try:
        return function(*args), torch.rand(1)
    except (GraphBreakError, LeftToEagerError):
        raise
    except Exception as error:
        return type(error), None


def check_same(found, wanted, where):
    (left, drawn), (right, also) = found, wanted
    assert drawn == also, where
    if not isinstance(right, torch.Tensor):
        assert left == right, where
        return
    assert (left.shape, left.dtype, left.stride()) == (right.shape, right.dtype, right.stride())
    torch.testing.assert_close(left, right, equal_nan=True, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", due_today(NAMES, 12))
def test_asked_at_two_batch_sizes(monkeypatch, name):
    monkeypatch.setattr(D.Distribution, "_validate_args", True)
    for question, ask in QUESTIONS.items():
        make = arguments(name, (4,))[0]

        def program(value, given, make=make, ask=ask):
            return ask(make(**given), value)

        compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
        breaks = False
        for count in (4, 7):
            torch.manual_seed(count)
            _, given = arguments(name, (count,))
            value = make(**given).sample()
            where = f"{name}.{question} of {count}"
            wanted = outcome(program, value, given)
            try:
                check_same(outcome(compiled, value, given), wanted, where)
            except (GraphBreakError, LeftToEagerError):
                assert (name, question) in BREAKS, where
                breaks = True
        assert breaks is ((name, question) in BREAKS), (name, question)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_asked_with_breaks(monkeypatch, name):
    monkeypatch.setattr(D.Distribution, "_validate_args", True)
    for question, ask in QUESTIONS.items():
        make = arguments(name, (4,))[0]

        def program(value, given, make=make, ask=ask):
            return ask(make(**given), value)

        compiled = braze.compile(program, backend="aot_eager")
        for count in (4, 7):
            torch.manual_seed(count)
            _, given = arguments(name, (count,))
            value = make(**given).sample()
            found, wanted = (outcome(run, value, given) for run in (compiled, program))
            check_same(found, wanted, f"{name}.{question} of {count}")
