"""Hooks that a program registers on modules, and removes again."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.regress.layers import Net
from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()


@program
def hook_for_a_while():
    def f(net, x):
        seen = []
        with net.first.register_forward_pre_hook(lambda m, a: seen.append(a[0])):
            net(x)
        with net.register_forward_hook(lambda m, a, k, o: o + 1, with_kwargs=True, prepend=True):
            y = net(x)
        return y, net(x), seen

    return f, (Net(), tensor(2, 3))


@program
def hook_for_a_while_and_a_break():
    def f(net, x):
        handle = net.first.register_forward_hook(lambda m, a, o: o * 2)
        y = net(x)
        handle.remove()
        braze.graph_break()
        handle.remove()
        return y, net(x)

    return f, (Net(), tensor(2, 3))


@program
def hook_put_into_the_dict():
    def f(net, x):
        net.first._forward_hooks["mine"] = lambda m, a, o: o * 2
        y = net(x)
        del net.first._forward_hooks["mine"]
        return y, net(x)

    return f, (Net(), tensor(2, 3))


@program
def hook_of_another_call():
    def f(net, x):
        y = net(x)
        net.handle = net.first.register_forward_hook(lambda m, a, o: o * 2)
        return y

    return f, (Net(), tensor(2, 3))


COMPILES = {
    "hook_for_a_while_and_a_break": [(2, ["explicit"]), (0, [])],
    "hook_of_another_call": [(1, ["hook-registration"]), (1, ["hook-registration"])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, [(1, []), (0, [])])


def test_a_hook_for_a_while_compiles_once():
    net, x = Net(), tensor(2, 3)
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module

    @braze.compile(backend=backend, fullgraph=True)
    def features(x):
        seen = []
        with net.first.register_forward_hook(lambda m, a, o: seen.append(o)):
            net(x)
        return seen

    for _ in range(3):
        (found,) = features(x)
        assert torch.equal(found, net.first(x))
        assert not net.first._forward_hooks
    assert len(graphs) == 1
