"""Torch-level graphs as user backends get them: views written in place, loops, transforms."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

import braze

X = torch.arange(6.0).reshape(2, 3)


def view_written_base_returned(x):
    y = x.clone()
    y.view(-1)[1:3].add_(1)
    y[0].mul_(2)
    return y


def rows_written(x):
    y = x * 2
    for row in y:
        row.add_(1)
    return y, y.t()


def base_written_view_returned(x):
    y = x + 0
    z = y[1]
    y += 1
    return z, y, z * 2


def argument_written(x):
    x[0].zero_()
    return x + 1


def mapped(x):
    y = x.clone()
    y.add_(1)
    return torch.vmap(lambda row: row * row.sum())(y), y


def operators_on_tuples(x):
    found = []
    found.append(x)
    pairs = dict(zip("ab", (x, x + 1)))
    return found, pairs["b"], (x, 1)[0] * 2, pow(2, x)


def written_without_gradients(x):
    leaf = torch.zeros(3)
    with torch.no_grad():
        leaf.add_(x[0])
        y = leaf * 2
    return y + x, leaf


PROGRAMS = [
    written_without_gradients,
    view_written_base_returned,
    rows_written,
    base_written_view_returned,
    argument_written,
    mapped,
    operators_on_tuples,
]


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in flat(item)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_agrees_with_eager(program, backend):
    expected_argument, argument = X.clone(), X.clone()
    expected = program(expected_argument)
    result = braze.compile(program, backend=backend, fullgraph=True)(argument)
    assert all(torch.equal(a, b) for a, b in zip(flat(result), flat(expected), strict=True))
    assert torch.equal(argument, expected_argument)


def test_a_parameter_is_written_without_gradients():
    def step(parameter, gradient):
        with torch.no_grad():
            parameter.add_(gradient, alpha=-1)

    parameter = torch.nn.Parameter(torch.ones(2))
    compiled = braze.compile(step, backend="eager", fullgraph=True)
    compiled(parameter, torch.ones(2))
    assert torch.equal(parameter.detach(), torch.zeros(2)) and torch.is_grad_enabled()


def test_calls_that_do_nothing_to_tensors_are_not_in_the_graph():
    """Questions are answered while the program is captured: to ask again can only go wrong."""
    modules = []

    def backend(module, example_inputs):
        modules.append(module)
        return module.forward

    def asking(x):
        x[...] = 2 * x
        if x.dim() == 2 and torch.is_floating_point(x) and not torch.overrides.is_tensor_like(1):
            return torch._C._get_tracing_state() is None, x + 1
        return x

    argument, expected = X.clone(), X.clone()
    _, result = braze.compile(asking, backend=backend, fullgraph=True)(argument)
    assert torch.equal(result, asking(expected)[1]) and torch.equal(argument, expected)
    called = [node for node in modules[0].graph.nodes if node.op.startswith("call")]
    assert len(called) == 3, called
    assert all(f'{__file__}", line' in node.stack_trace for node in called), called[0].stack_trace


def test_user_backend_prints_the_graph_as_a_table(capsys):
    pytest.importorskip("tabulate")

    def backend(module, example_inputs):
        module.graph.print_tabular()
        return module.forward

    @braze.compile(backend=backend)
    def toy(a, b):
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    a, b = torch.ones(3), torch.ones(3)
    assert torch.equal(toy(a, b), a / 2)
    printed = capsys.readouterr().out
    assert "placeholder" in printed and "abs_1" in printed and "sum_1" in printed


def test_sources_of_one_name_are_distinct_parameters():
    holder = SimpleNamespace(a_b=X, a=SimpleNamespace(b=X + 1))

    def reading(holder):
        return holder.a_b * 2 - holder.a.b

    def drawing(x):
        return x * random.gauss(0.0, 1.0) + random.gauss(0.0, 1.0)

    compiled = braze.compile(reading, backend="eager", fullgraph=True)
    assert torch.equal(compiled(holder), reading(holder))
    random.seed(0)
    expected = drawing(X)
    random.seed(0)
    assert torch.equal(braze.compile(drawing, backend="eager", fullgraph=True)(X), expected)
