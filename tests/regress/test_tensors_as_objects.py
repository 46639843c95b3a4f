"""Identity, making, gradients and conversions of tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.regress.programs import registry, tensor
from tests.regress.states import break_codes, check

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


def leaf(*shape):
    """A tensor that needs gradients."""
    return tensor(*shape).requires_grad_()


@program
def hash_and_dict():
    def f(x, y):
        d = {x: 1, y: 2}
        s = {x, y}
        return d[x] + d[y] + len(s), x + y

    return f, (tensor(2), tensor(2))


@program
def tensor_in_list():
    def f(x, many):
        return any(x is t for t in many), many[0] + x

    x = tensor(2)
    return f, (x, [tensor(2), x])


@program
def swap_storage():
    def f(x, y):
        t = x.clone()
        x.copy_(y)
        y.copy_(t)
        return x - y

    return f, (tensor(3), tensor(3) * 2)


@program
def resize_input():
    def f(x):
        x.resize_(2)
        return x

    return f, (tensor(4),)


@program
def unsqueeze_inplace():
    def f(x):
        y = x + 1
        y.unsqueeze_(0)
        return y, y.shape

    return f, (tensor(4),)


@program
def unsqueeze_inplace_input():
    def f(x):
        x.unsqueeze_(0)
        return x

    return f, (tensor(4),)


@program
def t_inplace_input():
    def f(x):
        x.t_()
        return x * 1

    return f, (tensor(2, 3),)


@program
def set_():
    def f(x, y):
        x.set_(y)
        return x + 1

    return f, (tensor(3), tensor(4))


@program
def type_checks():
    def f(x, p):
        return (
            isinstance(x, torch.Tensor),
            type(x) is torch.Tensor,
            isinstance(p, nn.Parameter),
            type(p).__name__,
            torch.is_tensor(x),
            x * p,
        )

    return f, (tensor(3), nn.Parameter(tensor(3)))


@program
def new_parameter():
    def f(x):
        return nn.Parameter(x * 2)

    return f, (tensor(3),)


@program
def new_parameter_used():
    def f(x):
        p = nn.Parameter(x * 2)
        return (p * 3).sum(), p

    return f, (tensor(3),)


@program
def new_leaf():
    def f(x):
        p = torch.ones(3, requires_grad=True)
        return p * x

    return f, (tensor(3),)


@program
def grad_inside():
    def f(x):
        y = (x**2).sum()
        (g,) = torch.autograd.grad(y, x)
        return g * 2

    return f, (leaf(3),)


@program
def backward_inside():
    def f(x):
        (x**2).sum().backward()
        return x.grad * 1

    return f, (leaf(3),)


@program
def func_grad():
    def f(x):
        return torch.func.grad(lambda t: (t**3).sum())(x), torch.func.vmap(lambda t: t * 2)(x)

    return f, (tensor(3),)


@program
def func_vjp():
    def f(x):
        _, vj = torch.func.vjp(lambda t: t**2, x)
        return vj(torch.ones(3))[0]

    return f, (tensor(3),)


@program
def func_jvp():
    def f(x):
        return torch.func.jvp(lambda t: t**2, (x,), (torch.ones(3),))

    return f, (tensor(3),)


@program
def functional_call():
    def f(m, x):
        return torch.func.functional_call(
            m, {"weight": torch.ones(3, 3), "bias": torch.zeros(3)}, (x,)
        )

    return f, (nn.Linear(3, 3), tensor(3))


@program
def stacked_functional():
    def f(m, p, x):
        return torch.func.functional_call(m, p, (x,))

    torch.manual_seed(1)
    m = nn.Linear(3, 3)
    return f, (m, {k: v.detach() * 2 for k, v in m.named_parameters()}, tensor(3))


@program
def complex_real():
    def f(x):
        z = torch.complex(x, x)
        z.real.add_(1)
        return z, z.conj() * 2, torch.view_as_real(z)

    return f, (tensor(3),)


@program
def conj_input():
    def f(z):
        return z * 2

    return f, (torch.complex(tensor(3), tensor(3)).conj(),)


@program
def sparse_in():
    def f(s, x):
        return torch.sparse.mm(s, x)

    return f, (torch.eye(3).to_sparse(), tensor(3, 2))


@program
def retain_grad_():
    def f(x):
        y = x * 2
        y.retain_grad()
        return (y * 3).sum()

    return f, (leaf(3),)


@program
def hook_():
    log = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: log.append(float(g.sum())))
        return (y * 3).sum()

    return f, (leaf(3),), log


@program
def dlpack_():
    def f(x):
        y = x * 2
        return torch.utils.dlpack.from_dlpack(y) + 1

    return f, (tensor(3),)


@program
def numpy_():
    def f(x):
        return torch.from_numpy(x.numpy() + 1) * 2

    return f, (tensor(3),)


@program
def tolist_():
    def f(x):
        return sum(x.tolist()), (x + 1).tolist()

    return f, (tensor(3),)


@program
def deepcopy_():
    def f(x):
        y = copy.deepcopy(x)
        y.add_(1)
        return x + y, y

    return f, (tensor(3),)


@program
def copy_copy():
    def f(x):
        y = copy.copy(x)
        return y * 2

    return f, (tensor(3),)


@program
def deepcopy_param():
    def f(x):
        return copy.deepcopy(x)

    return f, (nn.Parameter(tensor(3)),)


@program
def tensor_bool_int():
    def f(x):
        return int(x.sum()), float(x.mean()), bool(x[0] > 0), x * 1

    return f, (tensor(3),)


@program
def iter_tensor():
    def f(x):
        return [r * 2 for r in x], list(zip(x, x.t())), max(x.sum(0).shape)

    return f, (tensor(2, 2),)


@program
def contains():
    def f(x):
        return 1.0 in x

    return f, (torch.ones(3),)


@program
def format_():
    def f(x):
        s = f"{x.shape} {x.dtype}"
        return s, x * 1

    return f, (tensor(3),)


@program
def repr_():
    def f(x):
        return repr(x * 2), str(x)

    return f, (tensor(3),)


@program
def overlapping_expand_write():
    def f(x):
        y = x.expand(2, 3).clone()
        y[0] += 1
        return y

    return f, (tensor(3),)


@program
def expand_write_error():
    def f(x):
        y = x.expand(2, 3)
        y.add_(1)
        return y

    return f, (tensor(3),)


@program
def global_tensor():
    g = {"t": tensor(3)}

    def f(x):
        g["t"].add_(x)
        g["u"] = g["t"] * 2
        return g["u"] + 1

    return f, (tensor(3),), g


@program
def alias_in_out_written():
    def f(x):
        v = x.view(-1)
        x.add_(1)
        return v

    return f, (tensor(2, 2),)


@program
def chunk_split_write():
    def f(x):
        a, b = x.chunk(2)
        a.add_(1)
        b.mul_(2)
        return x, a

    return f, (tensor(4),)


@program
def index_put():
    def f(x, i):
        x[i] = 0
        x.index_add_(0, i, torch.ones(2))
        return x

    return f, (tensor(4), torch.tensor([0, 2]))


@program
def foreach_():
    def f(a, b):
        torch._foreach_add_([a, b], 1.0)
        torch._foreach_mul_([a, b], [b * 1, a * 1])
        return a + b

    return f, (tensor(3), tensor(3))


@program
def requires_grad_setter():
    def f(x):
        y = x.detach()
        y.requires_grad = True
        return y

    return f, (leaf(3),)


@program
def grad_mode_queries():
    def f(x):
        a = torch.is_grad_enabled()
        with torch.no_grad():
            b = torch.is_grad_enabled()
            y = x * 2
        return a, b, y.requires_grad, y

    return f, (leaf(3),)


@program
def inference():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y.is_inference(), y.requires_grad

    return f, (tensor(3),)


@program
def real_imag_T():
    def f(x):
        return x.T, x.mT, x.H, x.real

    return f, (tensor(2, 3),)


@program
def empty_and_zero():
    def f(x):
        return x[:0].sum(), x.new_zeros(2), torch.zeros_like(x), x.new_tensor([1, 2])

    return f, (tensor(3),)


BREAKS = {
    "resize_input": ("unsupported-tensor",),
    "unsqueeze_inplace_input": ("unsupported-tensor",),
    "t_inplace_input": ("unsupported-tensor",),
    "set_": ("unsupported-tensor",),
    "new_parameter_used": ("unbuildable-object",),
    "new_leaf": ("unbuildable-object",),
    "sparse_in": ("unsupported-tensor",),
    "retain_grad_": ("gradient-hook",),
    "hook_": ("gradient-hook",),
    "dlpack_": ("unsupported-tensor", "unseen-callable"),
    "tolist_": ("data-dependent-value",),
    "copy_copy": ("unsupported-tensor", "opaque-object", "unsupported-attribute"),
    "tensor_bool_int": ("data-dependent-value", "data-dependent-branch"),
    "contains": ("data-dependent-value",),
    "repr_": ("data-dependent-value",),
    "expand_write_error": ("raises",),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_breaks_are_those_that_are_known(name):
    assert break_codes(PROGRAMS[name]) == BREAKS.get(name, ())
