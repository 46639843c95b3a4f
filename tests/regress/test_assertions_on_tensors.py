"""Branches on tensors whose other side only raises: they are part of the graph, and what raises in
eager raises the same, with the same state left behind."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.errors import GraphBreakError, LeftToEagerError

GOOD, BAD = torch.ones(4), -torch.ones(4)
D = torch.distributions


@pytest.fixture(autouse=True)
def _validated(monkeypatch):
    """torch.compile turns the validation of distributions off for the process it is used in."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


def same(left, right):
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def positive(x):
    assert (x > 0).all(), f"{x.shape} has a negative number"
    return x * 2


def otherwise(x):
    if (x > 0).all():
        return x * 2
    raise ValueError("negative")


def negated(x):
    if not torch._is_all_true(x > 0):
        message = "no number" if len(x) == 0 else f"{len(x)} numbers"
        raise KeyError(message)
    return x.relu() + 1


def caught(x):
    y = x + 1
    try:
        if (x < 0).any():
            raise ValueError
        return positive(y)
    except ValueError:
        return y - 1


def number(x):
    if x.sum():
        return x + 1
    raise ArithmeticError


def in_a_generator(x):
    def checked():
        for row in x:
            assert row > 0
            yield row * 2

    return sum(checked())


def written_afterwards(x):
    ok = (x > 0).all()
    assert ok
    ok.zero_()
    return x * 2, ok


PROGRAMS = [
    positive,
    otherwise,
    negated,
    caught,
    number,
    in_a_generator,
    written_afterwards,
]


RAISING = [program for program in PROGRAMS if program is not caught]


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.__name__)
def test_one_graph(journal, program, backend):
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for x in (GOOD, BAD, GOOD * 3, BAD, torch.zeros(4), GOOD):
        assert same(outcome(compiled, x), outcome(program, x)), x
    assert not journal.fallbacks()


def test_an_exception_that_is_caught_is_left_to_eager(journal):
    compiled = braze.compile(caught, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert same(compiled(GOOD), caught(GOOD))
        with pytest.raises(LeftToEagerError, match="the program raises"):
            compiled(BAD)
    assert [record.outcome for record in journal.records()] == ["graph"]


@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
def test_what_caught_leaves_to_eager_is_right(journal):
    compiled = braze.compile(caught, backend="aot_eager")
    for x in (GOOD, BAD, GOOD * 3, BAD):
        assert same(compiled(x), caught(x))
    assert [why.code for why in journal.left_to_eager()] == ["check-failed"]
    assert [record.outcome for record in journal.records()] == ["graph"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_first_call_raises(program):
    compiled = braze.compile(program, backend="aot_eager")
    for x in (BAD, GOOD):
        assert same(outcome(compiled, x), outcome(program, x)), x


def test_state_is_as_eager_leaves_it():
    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after, self.seen = 0, 0, []
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, x):
            self.before += 1
            y = self.dropout(x)
            self.seen.append(x.shape)
            if (x < 0).any():
                raise ValueError("negative")
            self.after += 1
            return y

    def run(model, function):
        torch.manual_seed(0)
        results = [outcome(function, x) for x in (GOOD, BAD, GOOD, BAD, BAD, GOOD)]
        return results, model.before, model.after, model.seen, torch.rand(2)

    first, second = Counted(), Counted()
    found = run(first, braze.compile(first, backend="aot_eager", fullgraph=True))
    wanted = run(second, second)
    assert all(map(same, found[0], wanted[0]))
    assert found[1:4] == wanted[1:4] and torch.equal(found[4], wanted[4])


def test_writes_to_inputs_come_in_time():
    def program(x, total):
        total += 1
        assert (x > 0).all()
        total += x.sum()
        return x * 2

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    found, wanted = torch.zeros(()), torch.zeros(())
    for x in (GOOD, BAD, GOOD):
        assert same(outcome(compiled, x, found), outcome(program, x, wanted))
        assert found == wanted


def test_gradients():
    def program(x, w):
        y = x * w
        assert torch.isfinite(y).all()
        return y.sum()

    compiled = braze.compile(program, fullgraph=True)
    w = torch.full((4,), 3.0, requires_grad=True)
    compiled(GOOD, w).backward()
    assert torch.equal(w.grad, GOOD)
    with pytest.raises(AssertionError):
        compiled(GOOD / 0, w)


def test_a_branch_of_two_ways_still_breaks():
    with pytest.raises(GraphBreakError):
        braze.compile(lambda x: x if x.sum() > 0 else -x, backend="aot_eager", fullgraph=True)(GOOD)


def normal(x):
    made = D.Normal(x, torch.ones(4))
    return made.log_prob(x + 1), made.sample(), made.rsample((2,)), made.entropy()


def categorical(x):
    made = D.Categorical(logits=x)
    drawn = made.sample()
    return drawn, made.log_prob(drawn), made.entropy()


def bernoulli(x):
    made = D.Bernoulli(torch.sigmoid(x))
    drawn = made.sample()
    return drawn, made.log_prob(drawn)


def divergence(x):
    return D.kl_divergence(D.Normal(x, torch.ones(4)), D.Normal(0.0, 1.0))


def invalid(x):
    return D.Normal(x, x).log_prob(x)


def outside_of_the_support(x):
    return D.Bernoulli(torch.ones(4) / 2).log_prob(x * 3)


@pytest.mark.parametrize(
    "program", [normal, categorical, bernoulli, divergence, invalid, outside_of_the_support]
)
def test_distributions_are_validated_in_the_graph(program):
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    for x in (torch.zeros(4), GOOD, BAD, torch.full((4,), float("nan")), GOOD / 3):
        torch.manual_seed(0)
        found = outcome(compiled, x)
        torch.manual_seed(0)
        assert same(found, outcome(program, x)), x
