"""nn.Module in compiled programs: hooks, lazy modules, copies, conversions, parametrizations."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.regress.layers import Net, linear
from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


# --- hooks ---------------------------------------------------------------------------------------


@program
def forward_hook_changes_output():
    net = Net()
    net.first.register_forward_hook(lambda module, args, output: output * 2)
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def forward_pre_hook_with_kwargs():
    class Scaled(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    net = Scaled()
    net.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "scale": kwargs["scale"] + 1}),
        with_kwargs=True,
    )
    return (lambda net, x: net(x, scale=3.0)), (net, tensor(2, 3))


@program
def forward_hook_with_kwargs():
    class Scaled(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    net = Scaled()

    def hook(module, args, kwargs, output):
        return output + kwargs["scale"]

    net.register_forward_hook(hook, with_kwargs=True)
    return (lambda net, x: net(x, scale=3.0)), (net, tensor(2, 3))


@program
def forward_hook_always_called():
    seen = []

    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    net = Fails()
    net.register_forward_hook(lambda m, a, o: seen.append("hook"), always_call=True)

    def f(net, x):
        try:
            return net(x)
        except ValueError:
            return x + 1

    return f, (net, tensor(2, 3)), seen


@program
def forward_hook_collects():
    net = Net()
    kept = {}
    for name, child in net.named_children():
        child.register_forward_hook(lambda m, a, o, name=name: kept.__setitem__(name, o.detach()))
    return (lambda net, x: net(x)), (net, tensor(2, 3)), kept


@program
def prepended_hooks_in_order():
    net = Net()
    net.first.register_forward_hook(lambda m, a, o: o * 2)
    net.first.register_forward_hook(lambda m, a, o: o + 1, prepend=True)
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def full_backward_hook_changes_gradient():
    net = Net()
    net.first.register_full_backward_hook(lambda m, gi, go: tuple(g * 2 for g in gi))
    return (lambda net, x: net(x)), (net, tensor(2, 3).requires_grad_())


@program
def full_backward_hook_counts():
    net = Net()
    seen = []
    net.second.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))
    return (lambda net, x: net(x)), (net, tensor(2, 3)), seen


@program
def full_backward_pre_hook():
    net = Net()
    net.second.register_full_backward_pre_hook(lambda m, go: tuple(g * 3 for g in go))
    return (lambda net, x: net(x)), (net, tensor(2, 3).requires_grad_())


@program
def full_backward_hook_without_gradients():
    net = Net().requires_grad_(False)
    net.first.register_full_backward_hook(lambda m, gi, go: None)
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def tensor_hook_on_parameter():
    net = Net()
    net.first.weight.register_hook(lambda g: g * 2)
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def hook_added_inside():
    def f(net, x):
        handle = net.first.register_forward_hook(lambda m, a, o: o * 2)
        y = net(x)
        handle.remove()
        return y, net(x)

    return f, (Net(), tensor(2, 3))


@program
def hook_added_inside_stays():
    def f(net, x):
        net.first.register_forward_hook(lambda m, a, o: o * 2)
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def hook_removed_inside():
    net = Net()
    handle = net.first.register_forward_hook(lambda m, a, o: o * 2)

    def f(net, x):
        y = net(x)
        handle.remove()
        return y, net(x)

    return f, (net, tensor(2, 3))


@program
def hook_removes_itself():
    net = Net()
    box = []

    def hook(module, args, output):
        box.pop().remove()
        return output + 10

    box.append(net.first.register_forward_hook(hook))
    return (lambda net, x: net(x)), (net, tensor(2, 3)), box


@program
def hook_breaks():
    net = Net()

    def hook(module, args, output):
        print("", end="")
        return output * 2

    net.first.register_forward_hook(hook)
    return (lambda net, x: net(x) + 1), (net, tensor(2, 3))


@program
def state_dict_inside():
    def f(net, x):
        return {k: v + x.sum() for k, v in net.state_dict().items()}

    return f, (Net(), tensor(2, 3))


@program
def load_state_dict_inside():
    def f(net, other, x):
        net.load_state_dict(other.state_dict())
        return net(x).detach()

    other = Net()
    with torch.no_grad():
        other.first.weight.add_(1)
    return f, (Net(), other, tensor(2, 3))


# --- lazy modules --------------------------------------------------------------------------------


@program
def lazy_linear():
    net = nn.LazyLinear(2)

    def g(net, x):
        y = net(x)
        return y.shape, y * 0

    return g, (nn.Sequential(net, nn.ReLU()), tensor(2, 3))


@program
def lazy_batch_norm():
    return (lambda net, x: net(x) * 2), (nn.LazyBatchNorm1d(), tensor(4, 3))


@program
def lazy_materialised():
    net = nn.LazyLinear(2)
    net(tensor(2, 3))
    with torch.no_grad():
        net.weight.fill_(0.25)
        net.bias.fill_(1)
    return (lambda net, x: net(x)), (net, tensor(2, 3))


# --- copies and conversions ----------------------------------------------------------------------


@program
def deepcopy_of_module():
    def f(net, x):
        twin = copy.deepcopy(net)
        return twin(x), twin

    return f, (Net(), tensor(2, 3))


@program
def deepcopy_of_module_and_change():
    def f(net, x):
        twin = copy.deepcopy(net)
        with torch.no_grad():
            twin.first.weight.mul_(2)
        return twin(x) - net(x)

    return f, (Net(), tensor(2, 3))


@program
def requires_grad_off_inside():
    def f(net, x):
        net.requires_grad_(False)
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def requires_grad_toggles():
    def f(net, x):
        for p in net.first.parameters():
            p.requires_grad_(not p.requires_grad)
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def frozen_backbone():
    def f(net, x):
        for p in net.first.parameters():
            p.requires_grad = False
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def to_double_inside():
    def f(net, x):
        return net.double()(x.double())

    return f, (Net(), tensor(2, 3))


@program
def to_half_and_back():
    def f(net, x):
        net.half()
        net.float()
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def to_same_device():
    def f(net, x):
        return net.to("cpu")(x.to("cpu"))

    return f, (Net(), tensor(2, 3))


@program
def to_bfloat16():
    def f(net, x):
        net.to(torch.bfloat16)
        return net(x.bfloat16()).float()

    return f, (Net(), tensor(2, 3))


@program
def apply_init():
    def f(net, x):
        def init(m):
            if isinstance(m, nn.Linear):
                nn.init.constant_(m.weight, 0.5)
                nn.init.zeros_(m.bias)

        net.apply(init)
        return net(x).detach()

    return f, (Net(), tensor(2, 3))


@program
def zero_grad_inside():
    net = Net()
    net(tensor(2, 3)).sum().backward()

    def f(net, x):
        net.zero_grad()
        return net(x)

    return f, (net, tensor(2, 3))


@program
def zero_grad_in_place():
    net = Net()
    net(tensor(2, 3)).sum().backward()

    def f(net, x):
        net.zero_grad(set_to_none=False)
        return net(x)

    return f, (net, tensor(2, 3))


# --- parametrizations ----------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)

    def right_inverse(self, w):
        return w.triu()


@program
def parametrized():
    net = linear()
    parametrize.register_parametrization(net, "weight", Symmetric())
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def parametrized_cached():
    net = linear()
    parametrize.register_parametrization(net, "weight", Symmetric())

    def f(net, x):
        with parametrize.cached():
            return net(net(x))

    return f, (net, tensor(2, 3))


@program
def parametrized_inside():
    def f(net, x):
        parametrize.register_parametrization(net, "weight", Symmetric())
        return net(x)

    return f, (linear(), tensor(2, 3))


@program
def parametrized_removed_inside():
    net = linear()
    parametrize.register_parametrization(net, "weight", Symmetric())

    def f(net, x):
        if parametrize.is_parametrized(net):
            parametrize.remove_parametrizations(net, "weight")
        return net(x)

    return f, (net, tensor(2, 3))


@program
def parametrized_assigned():
    net = linear()
    parametrize.register_parametrization(net, "weight", Symmetric())

    def f(net, x):
        net.weight = torch.ones(3, 3)
        return net(x)

    return f, (net, tensor(2, 3))


@program
def weight_norm():
    return (lambda net, x: net(x)), (parametrizations.weight_norm(linear()), tensor(2, 3))


@program
def old_weight_norm():
    return (lambda net, x: net(x)), (nn.utils.weight_norm(linear()), tensor(2, 3))


@program
def spectral_norm_eval():
    torch.manual_seed(0)
    net = parametrizations.spectral_norm(linear()).eval()
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def spectral_norm_train():
    torch.manual_seed(0)
    net = parametrizations.spectral_norm(linear())
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def old_spectral_norm():
    torch.manual_seed(0)
    return (lambda net, x: net(x)), (nn.utils.spectral_norm(linear()), tensor(2, 3))


@program
def pruned():
    from torch.nn.utils import prune

    net = prune.l1_unstructured(linear(), "weight", amount=0.4)
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def orthogonal():
    torch.manual_seed(0)
    net = parametrizations.orthogonal(linear())
    return (lambda net, x: net(x)), (net, tensor(2, 3))


USUAL = [(1, []), (0, [])]
# Programs that compile more or less than one graph at the first call and nothing at the second:
# graphs and breaks of both.
COMPILES = {
    "full_backward_hook_changes_gradient": [(2, ["backward-hook", "backward-hook"]), (0, [])],
    "full_backward_hook_counts": [(2, ["backward-hook", "backward-hook"]), (0, [])],
    "full_backward_pre_hook": [(2, ["backward-hook", "backward-hook"]), (0, [])],
    "hook_added_inside_stays": [(1, ["hook-registration"]), (1, [])],
    "hook_removed_inside": [(1, []), (1, [])],
    "hook_removes_itself": [(1, []), (1, [])],
    "hook_breaks": [(4, ["input-output"]), (0, [])],
    "deepcopy_of_module": [(2, ["unbuildable-object"]), (0, [])],
    "requires_grad_off_inside": [(1, []), (1, [])],
    "requires_grad_toggles": [(1, []), (1, [])],
    "frozen_backbone": [(1, []), (1, [])],
    "to_double_inside": [(1, ["module-change"]), (0, [])],
    "to_half_and_back": [(1, ["module-change", "module-change"]), (0, [])],
    "to_bfloat16": [(1, ["module-change"]), (0, [])],
    "zero_grad_inside": [(1, []), (1, [])],
    "parametrized_inside": [(1, ["module-change"]), (1, ["module-change"])],
    "parametrized_removed_inside": [(1, ["module-change"]), (1, [])],
    "parametrized_assigned": [(2, ["unsupported-tensor"]), (0, [])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, USUAL)
