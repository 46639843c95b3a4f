"""Numbers of Python's `random`: eager's for the same seed, and no recompile for another number."""

from __future__ import annotations

import random

import pytest
import torch

import braze
from braze.errors import GraphBreakError

X = torch.arange(4.0)
BACKENDS = pytest.mark.parametrize("backend", ["braze", "aot_eager"])


def agree(program, *args, calls=6, backend="aot_eager", state=random.getstate, reset=lambda: None):
    """The compiled program and the program itself, called in turn from the same seed; gives what
    was compiled."""
    random.seed(3)
    expected = []
    for _ in range(calls):
        result = program(X, *args)
        expected.append((result, state()))
    random.seed(3)
    reset()
    compiled = braze.compile(program, backend=backend)
    for wanted, after in expected:
        torch.testing.assert_close(compiled(X, *args), wanted)
        assert state() == after
    return compiled


@BACKENDS
def test_floats_are_inputs_of_one_graph(backend):
    def program(x):
        first = random.random()
        return x * first + random.uniform(1, 5) * 2, first, -random.expovariate(2.0)

    random.seed(0)
    explained = braze.explain(program)(X)
    assert (explained.graph_count, explained.break_count) == (1, 0)
    agree(program, backend=backend)


def test_floats_alone_and_unread():
    def program(x):
        random.random()
        return x + 1, random.normalvariate(0, 1), random.betavariate(1, 2)

    agree(program)


def test_a_number_does_not_recompile():
    def program(x):
        return x * random.random() + random.uniform(-1, 1)

    random.seed(0)
    compiled = braze.compile(
        program, backend="aot_eager", fullgraph=True, options={"recompile_limit": 1}
    )
    assert len({float(compiled(X)[1]) for _ in range(20)}) == 20


def test_a_branch_on_a_number():
    def program(x):
        y = x * 2
        if random.random() < 0.5:
            return y + random.random()
        return y - random.random()

    agree(program, calls=12)


def test_a_seed_in_the_frame():
    def program(x):
        before = random.random()
        random.seed(7)
        return x * random.random(), before, random.gauss(0, 1), random.random()

    agree(program)


def test_integers_and_choices():
    def program(x):
        many = list(range(5))
        random.shuffle(many)
        picked = random.choice(many) + random.randint(1, 10)
        return x * picked + random.random(), many, random.sample(range(4), 2)

    agree(program)


@BACKENDS
def test_shuffles_and_samples_of_numbers_are_numbers_of_one_graph(backend):
    def program(x):
        rows = [0, 1, 2, 3]
        random.shuffle(rows)
        for row in rows:
            x = x * 0.5 + x[row]
        x = x[rows] + x[[rows[0], 1, 2, 3]]
        first, second = random.sample(range(4), 2)
        scales = random.sample([1.5, 2.5, 3.5], k=2)
        weighed = random.choices((1, 2, 4), weights=(1, 2, 3), k=3)
        return x[first] - x[second] * scales[0], rows, scales, weighed, random.random()

    random.seed(0)
    explained = braze.explain(program)(X)
    assert (explained.graph_count, explained.break_count) == (1, 0)
    agree(program, backend=backend, calls=8)


def test_shuffles_that_draw_nothing_or_break():
    kept = [3, 1, 2]

    def program(x):
        alone, none, words = [7], [], ["a", "b", "c"]
        random.shuffle(alone)
        random.shuffle(none)
        random.shuffle(words)
        random.shuffle(kept)
        many = random.sample(range(100), 70)
        try:
            random.sample(range(2), 3)
        except ValueError as error:
            return x + alone[0] + len(none), words == sorted(words), kept[0], many, len(str(error))

    def reset():
        kept[:] = 3, 1, 2

    reset()
    agree(program, reset=reset)


def test_integers_do_not_recompile_at_each_value():
    def program(x):
        return x * random.randint(2, 10_000)

    random.seed(0)
    compiled = braze.compile(program, backend="aot_eager", options={"recompile_limit": 3})
    for _ in range(12):
        state = random.getstate()
        found = compiled(X)
        random.setstate(state)
        assert torch.equal(found, program(X))


@BACKENDS
def test_integers_are_numbers_of_one_graph(backend):
    def program(x):
        start, row = random.randint(0, 2), random.randrange(4)
        y = x[start : start + 2] * random.getrandbits(3) + x[row]
        return torch.roll(y, random.randint(-3, 3)), start / 2, [row, random.random()]

    random.seed(0)
    explained = braze.explain(program)(X)
    assert (explained.graph_count, explained.break_count) == (1, 0)
    compiled = agree(program, calls=12, backend=backend)
    random.seed(7)
    assert all(len(compiled(X)[0]) == 2 for _ in range(12))


@BACKENDS
def test_a_choice_of_numbers_is_a_number(backend):
    def program(x):
        y = x * random.choice([0.5, 1.5, 2.5]) + random.choice(steps)
        return y + random.choice(range(4)), random.choice((3, 1)), x[random.choice([0, 2])]

    steps = [1, 5, 9]
    random.seed(0)
    explained = braze.explain(program)(X)
    assert (explained.graph_count, explained.break_count) == (1, 0)
    compiled = agree(program, calls=8, backend=backend)
    steps.append(1000)
    random.seed(3)
    expected = [program(X) for _ in range(8)]
    random.seed(3)
    torch.testing.assert_close([compiled(X) for _ in range(8)], expected)


def test_a_choice_of_other_things():
    def program(x):
        y = random.choice([torch.sin, torch.cos])(x)
        return y, ord(random.choice("abc")), random.choice([1, 2.5]), random.choice([4])

    agree(program)


@BACKENDS
def test_a_number_that_is_kept_for_the_next_call(backend):
    def program(x):
        y = x * random.gauss(0, 1) + random.triangular(1, 4)
        return y, random.gauss(1, 2), random.gauss(0, 3)

    random.seed(0)
    explained = braze.explain(program)(X)
    assert (explained.graph_count, explained.break_count) == (1, 0)
    agree(program, calls=5, backend=backend)


@pytest.mark.parametrize("first", [True, False])
def test_a_seed_beside_a_number_that_is_kept(first):
    def program(x):
        if first:
            random.seed(5)
        y = x * random.gauss(0, 1)
        if not first:
            random.seed(5)
        return y + random.random()

    agree(program)


def test_what_python_does_with_integers():
    def program(x):
        items, n = ["a", "b", "c"], random.randint(0, 2)
        y = x * 2
        if random.randint(0, 1):
            y = y + 1
        for _ in range(random.randrange(1, 4)):
            y = y * 3
        texts.append((items[n], f"{n} of {random.randint(5, 9)}", str(n)))
        return y, {n: y}, min(n, 1), len(texts)

    texts = []
    agree(program, calls=10, state=lambda: (random.getstate(), texts[-1]), reset=texts.clear)


def test_an_integer_in_a_branch_of_gradients():
    def program(x):
        w = x.clone().requires_grad_()
        (w * random.randint(1, 9) + w[random.randint(0, 3)]).sum().backward()
        return w.grad

    agree(program, calls=5)


def test_wrong_bounds_raise_as_in_eager():
    compiled = braze.compile(lambda x: x * random.randint(5, 2), backend="aot_eager")
    with pytest.raises(ValueError, match="empty range"):
        compiled(X)


def test_a_generator_of_a_model():
    class Noise(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rng = random.Random(5)

        def forward(self, x):
            return x + self.rng.uniform(0, 1) * self.rng.random()

    first, second = Noise(), Noise()
    compiled = braze.compile(first, backend="aot_eager", fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(X), second(X))
        assert first.rng.getstate() == second.rng.getstate()
    first.rng, second.rng = random.Random(9), random.Random(9)
    assert torch.equal(compiled(X), second(X))


def test_a_generator_with_a_method_of_its_own():
    def program(x, rng):
        return x * rng.uniform(0, 4)

    class Half(random.Random):
        def random(self):
            return 0.5

    own = random.Random(1)
    own.random = lambda: 0.25
    compiled = braze.compile(program, backend="aot_eager")
    for rng in (Half(), own, random.Random(2)):
        state = rng.getstate()
        found = compiled(X, rng)
        rng.setstate(state)
        assert torch.equal(found, program(X, rng))


def test_gradients_flow_past_a_number():
    def program(x, w):
        return (x * w * random.random()).sum()

    w = torch.ones(4, requires_grad=True)
    compiled = braze.compile(program, fullgraph=True)
    for seed in range(3):
        random.seed(seed)
        (found,) = torch.autograd.grad(compiled(X, w), w)
        random.seed(seed)
        (wanted,) = torch.autograd.grad(program(X, w), w)
        torch.testing.assert_close(found, wanted)


def test_both_branches_of_cond_do_not_draw():
    def program(x):
        return torch.cond(x.sum() > 100, lambda: x * random.random(), lambda: x)

    with pytest.raises(GraphBreakError, match="a branch logs, raises or draws"):
        braze.compile(program, backend="aot_eager", fullgraph=True)(X)


def test_wrong_arguments_raise_as_in_eager():
    compiled = braze.compile(lambda x: x * random.uniform("a", 2), backend="aot_eager")
    with pytest.raises(TypeError):
        compiled(X)


def test_a_fault_leaves_the_generator_as_eager_would():
    def program(x, index):
        return x[index] * random.random()

    compiled = braze.compile(program)
    random.seed(0)
    compiled(X, torch.tensor([1]))
    state = random.getstate()
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([9]))
    with pytest.raises(IndexError):
        random.setstate(state)
        program(X, torch.tensor([9]))
    found = random.getstate()
    random.setstate(state)
    assert found == random.getstate()
