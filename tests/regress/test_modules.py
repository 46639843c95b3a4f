"""nn.Module in compiled programs: hooks, lazy modules, conversions, parametrizations, copies,
state written in forward."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.regress.programs import tensor
from tests.regress.states import check, compiles

PROGRAMS = {}
pytestmark = pytest.mark.filterwarnings("ignore")


def program(make):
    """Register a maker of (function, arguments, what else to look at)."""
    PROGRAMS[make.__name__] = make
    return make


def linear(rows=3, columns=3):
    """A layer with the same numbers in every process."""
    made = nn.Linear(columns, rows)
    with torch.no_grad():
        made.weight.copy_(tensor(rows, columns))
        made.bias.copy_(tensor(rows))
    return made


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = linear()
        self.second = linear()

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


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
        child.register_forward_hook(
            lambda m, a, o, name=name: kept.__setitem__(name, o.detach())
        )
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
        return net(x)

    other = Net()
    with torch.no_grad():
        other.first.weight.add_(1)
    return f, (Net(), other, tensor(2, 3))


# --- lazy modules --------------------------------------------------------------------------------


@program
def lazy_linear():
    def f(net, x):
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(0.5)
        return net(x)

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
        return net(x)

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


# --- state written in forward --------------------------------------------------------------------


@program
def buffer_assigned():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.steps += 1
            return x - self.mean

    return (lambda net, x: net(x)), (Mean(), tensor(2, 3))


@program
def buffer_in_place():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return x - self.mean

    return (lambda net, x: net(x)), (Mean(), tensor(2, 3).requires_grad_())


@program
def buffer_registered_inside():
    class Cache(nn.Module):
        def forward(self, x):
            if not hasattr(self, "table"):
                self.register_buffer("table", torch.arange(3.0), persistent=False)
            return x + self.table

    return (lambda net, x: net(x)), (Cache(), tensor(2, 3))


@program
def buffer_set_to_none():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", None)

        def forward(self, x):
            before = self.last
            self.last = x * 2
            return x if before is None else x + before

    return (lambda net, x: net(x)), (Cache(), tensor(2, 3))


@program
def buffer_deleted():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.ones(3))

        def forward(self, x):
            if "last" in self._buffers:
                y = x + self.last
                del self.last
                return y
            return x

    return (lambda net, x: net(x)), (Cache(), tensor(2, 3))


@program
def parameter_registered_inside():
    class Late(nn.Module):
        def forward(self, x):
            if "scale" not in dict(self.named_parameters()):
                self.scale = nn.Parameter(torch.ones(x.shape[-1]))
            return x * self.scale

    return (lambda net, x: net(x)), (Late(), tensor(2, 3))


@program
def parameter_replaced_inside():
    def f(net, x):
        net.first.weight = nn.Parameter(net.first.weight.detach() * 2)
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def parameter_data_written():
    def f(net, x):
        net.first.weight.data = net.first.weight.data * 2
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def parameter_data_in_place():
    def f(net, x):
        net.first.weight.data.mul_(0.5)
        net.first.bias.data[:] = 1
        return net(x)

    return f, (Net(), tensor(2, 3))


@program
def child_added_inside():
    def f(net, x):
        net.third = nn.Identity()
        return net.third(net(x))

    return f, (Net(), tensor(2, 3))


@program
def child_replaced_inside():
    def f(net, spare, x):
        net.second = spare
        return net(x)

    return f, (Net(), linear(), tensor(2, 3))


@program
def child_deleted_inside():
    def f(net, x):
        y = net(x)
        del net.spare
        return y

    net = Net()
    net.spare = linear()
    return f, (net, tensor(2, 3))


@program
def tensor_attribute_plain():
    class Keeps(nn.Module):
        def forward(self, x):
            self.seen = x * 2
            self.count = getattr(self, "count", 0) + 1
            return x + self.seen

    return (lambda net, x: net(x)), (Keeps(), tensor(2, 3))


@program
def python_state():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.history = []
            self.table = {}
            self.stage = "warm"

        def forward(self, x):
            self.history.append(x.shape)
            self.table[self.stage] = x.mean()
            self.stage = "cold"
            return x * len(self.history)

    return (lambda net, x: net(x)), (Keeps(), tensor(2, 3))


@program
def loss_kept_on_module():
    class Aux(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()
            self.losses = []

        def forward(self, x):
            y = self.inner(x)
            self.losses.append(y.pow(2).mean())
            return y

    def f(net, x):
        y = net(x)
        total = sum(net.losses)
        net.losses.clear()
        return y, total

    return f, (Aux(), tensor(2, 3))


# --- sharing, containers, arguments --------------------------------------------------------------


@program
def shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            with torch.no_grad():
                self.embed.weight.copy_(tensor(5, 3))
            self.out.weight = self.embed.weight

        def forward(self, ids):
            return self.out(self.embed(ids))

    return (lambda net, ids: net(ids)), (Tied(), torch.tensor([1, 4, 1]))


@program
def shared_module_twice():
    layer = linear()
    return (lambda net, x: net(x)), (nn.Sequential(layer, nn.ReLU(), layer), tensor(2, 3))


@program
def module_lists():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([linear() for _ in range(3)])
            self.heads = nn.ModuleDict({"a": linear(), "b": linear()})
            self.scales = nn.ParameterList([nn.Parameter(tensor(3)) for _ in range(2)])
            self.named = nn.ParameterDict({"k": nn.Parameter(tensor(3))})

        def forward(self, x):
            for index, layer in enumerate(self.layers):
                x = torch.tanh(layer(x)) + index
            for scale in self.scales:
                x = x * scale
            out = {name: head(x) for name, head in self.heads.items()}
            return out, self.layers[1:](x) if False else self.layers[-1](x) + self.named["k"]

    return (lambda net, x: net(x)), (Many(), tensor(2, 3))


@program
def sequential_slices():
    def f(net, x):
        return net[1:](net[:1](x)), len(net), list(net)[0](x)

    return f, (nn.Sequential(linear(), nn.ReLU(), linear()), tensor(2, 3))


@program
def modules_as_arguments():
    def f(layers, x, norm=None):
        for layer in layers:
            x = layer(x)
        return x if norm is None else norm(x)

    return f, ([linear(), nn.GELU(), linear()], tensor(2, 3), nn.LayerNorm(3))


@program
def train_and_eval_switch():
    def f(net, x):
        net.eval()
        y = net(x)
        net.train()
        return y, net.training

    return f, (nn.Sequential(linear(), nn.Dropout(0.5)), tensor(2, 3))


@program
def switch_by_manager():
    import contextlib

    @contextlib.contextmanager
    def evaluating(net):
        was = net.training
        net.eval()
        try:
            yield net
        finally:
            net.train(was)

    def f(net, x):
        with evaluating(net) as n:
            return n(x)

    return f, (nn.Sequential(linear(), nn.Dropout(0.5)), tensor(2, 3))


@program
def functional_call():
    def f(net, x):
        params = {k: v * 2 for k, v in net.named_parameters()}
        return torch.func.functional_call(net, params, (x,))

    return f, (Net(), tensor(2, 3))


@program
def functional_call_outside_params():
    def f(net, params, x):
        return torch.func.functional_call(net, params, (x,))

    net = Net()
    params = {k: v.detach() + 1 for k, v in net.named_parameters()}
    return f, (net, params, tensor(2, 3))


@program
def functional_call_buffers():
    def f(net, x):
        state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        return torch.func.functional_call(net, state, (x,))

    return f, (nn.BatchNorm1d(3), tensor(4, 3))


@program
def stacked_state():
    def f(nets, x):
        params, buffers = torch.func.stack_module_state(nets)
        return {k: v.sum() for k, v in params.items()}, x + 1

    return f, ([linear(), linear()], tensor(2, 3))


@program
def named_things():
    def f(net, x):
        total = sum(p.sum() for p in net.parameters())
        names = [n for n, _ in net.named_modules()]
        count = sum(p.numel() for p in net.parameters() if p.requires_grad)
        return x + total, names, count

    return f, (Net(), tensor(2, 3))


@program
def get_submodule():
    def f(net, x):
        return net.get_submodule("first")(x) + net.get_parameter("second.bias")

    return f, (Net(), tensor(2, 3))


@program
def made_inside():
    def f(x):
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            layer.weight.fill_(0.5)
            layer.bias.zero_()
        return layer(x)

    return f, (tensor(2, 3),)


@program
def forward_replaced_on_instance():
    net = Net()
    plain = net.first.forward

    @functools.wraps(plain)
    def doubled(x):
        return plain(x) * 2

    net.first.forward = doubled
    return (lambda net, x: net(x)), (net, tensor(2, 3))


@program
def getattr_forwarding():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) + self.bias

    return (lambda net, x: net(x)), (Wrapper(linear()), tensor(2, 3))


@program
def extra_state():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = 2

        def get_extra_state(self):
            return {"factor": self.factor}

        def set_extra_state(self, state):
            self.factor = state["factor"]

        def forward(self, x):
            return x * self.factor

    def f(net, x):
        state = net.state_dict()
        net.factor = 5
        y = net(x)
        net.load_state_dict(state)
        return y, net(x)

    return f, (Extra(), tensor(2, 3))


@program
def rnn_layers():
    torch.manual_seed(0)
    return (lambda net, x: net(x)), (nn.LSTM(3, 4, batch_first=True), tensor(2, 5, 3))


@program
def transformer_layer():
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return (lambda net, x: net(x)), (net, tensor(2, 5, 4))


@program
def transformer_layer_eval():
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()

    def f(net, x):
        with torch.no_grad():
            return net(x)

    return f, (net, tensor(2, 5, 4))
