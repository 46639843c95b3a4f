"""Every break is placed at a line of the program, and says what is wrong in the program's words."""

from __future__ import annotations

import re

import pytest
import torch

import braze


def sparse_result(x):
    y = x + 1
    return y.to_sparse()


def sparse_on_the_way(x):
    s = (x + 1).to_sparse()
    print("", end="")
    return s.to_dense() + 1


def sparse_made(x):
    s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2))
    return s @ x


def negated_view(x):
    y = torch._neg_view(x)
    y.add_(1)
    return y, x.cos()


def shown(x):
    return f"{x + 1}", x + 2


def compressed(x):
    return x.sin().to_sparse_csr()


PROGRAMS = [sparse_result, sparse_on_the_way, sparse_made, negated_view, shown, compressed]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_placed_in_the_program(program):
    text = str(braze.explain(program, backend="aot_eager")(torch.rand(2, 2)))
    told = re.findall(r"^(?:Break \d+:|The rest of a call ran eagerly:) (.*)$", text, re.MULTILINE)
    assert told
    code = program.__code__
    for line in told:
        file, _, rest = line.partition(":")
        number = int(re.match(r"\d+", rest).group())
        assert file == code.co_filename, line
        assert code.co_firstlineno < number <= code.co_firstlineno + 4, line
        assert not re.search(r"STACK\[|<unknown>|TracedTensor|fake_tensor", line), line
