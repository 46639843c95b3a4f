"""Attributes of tensors, in-place operators, `out=`, aliasing, views."""

from __future__ import annotations

import pytest
import torch

from tests.regress.programs import registry, tensor
from tests.regress.states import break_codes, check

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


def leaf(*shape):
    """A tensor that needs gradients."""
    return tensor(*shape).requires_grad_()


@program
def shape_attrs():
    def f(x):
        return (
            x * x.shape[0] + x.ndim,
            x.shape,
            x.size(-1),
            x.numel(),
            x.dtype,
            x.device,
            x.stride(),
            x.is_contiguous(),
            x.layout,
            x.element_size(),
            x.nbytes,
            len(x),
        )

    return f, (tensor(2, 3),)


@program
def grad_attr():
    def f(x):
        return x.grad, x * 2, x.is_leaf, (x * 2).is_leaf, x.requires_grad

    x = leaf(3)
    (x * x).sum().backward()
    return f, (x,)


@program
def grad_none_then():
    def f(x):
        if x.grad is None:
            return x + 1
        return x + x.grad

    return f, (leaf(3),)


@program
def set_grad_none():
    def f(x):
        x.grad = None
        return x * 2

    x = leaf(3)
    (x * x).sum().backward()
    return f, (x,)


@program
def set_grad():
    def f(x):
        x.grad = x.detach() * 3
        return x * 2

    return f, (leaf(3),)


@program
def grad_inplace():
    def f(x):
        with torch.no_grad():
            x.grad.mul_(2)
            x.sub_(x.grad, alpha=0.1)
        return x.sum().detach()

    x = leaf(3)
    (x * x).sum().backward()
    return f, (x,)


@program
def data_read():
    def f(x):
        return x.data * 2, x.data.requires_grad

    return f, (leaf(3),)


@program
def data_inplace():
    def f(x):
        x.data.mul_(2)
        return x * 1

    return f, (leaf(3),)


@program
def data_assign():
    def f(x):
        x.data = x.data * 2
        return x + 1

    return f, (tensor(3),)


@program
def data_assign_param():
    def f(x):
        x.data = torch.ones(3)
        return x * 1

    return f, (leaf(3),)


@program
def requires_grad_new():
    def f(x):
        y = x * 2
        y.requires_grad_()
        z = (y * 3).sum()
        z.backward()
        return y.grad

    return f, (tensor(3),)


@program
def requires_grad_input():
    def f(x):
        x.requires_grad_()
        return x * 2

    return f, (tensor(3),)


@program
def requires_grad_off():
    def f(x):
        y = x.detach().requires_grad_(False)
        return y * 2

    return f, (leaf(3),)


@program
def version_read():
    def f(x):
        v = x._version
        x.add_(1)
        return x._version - v, x * 1

    return f, (tensor(3),)


@program
def version_new():
    def f(x):
        y = x + 1
        a = y._version
        y.mul_(2)
        y.add_(1)
        return y, y._version - a

    return f, (tensor(3),)


@program
def inplace_ops():
    def f(x, y):
        x += y
        x *= 2
        x -= 1
        x /= 3
        x[0] = 7
        x[1:] += 1
        x.clamp_(0, 5)
        return x

    return f, (tensor(4), tensor(4))


@program
def inplace_alias_in():
    def f(x, y):
        x.add_(1)
        return y * 2

    def mk():
        b = tensor(6)
        return f, (b[:4], b[2:])

    return mk()


@program
def same_tensor_twice():
    def f(x, y):
        x.add_(1)
        return y * 2, x is y

    x = tensor(4)
    return f, (x, x)


@program
def out_arg():
    def f(x, o):
        torch.add(x, 1, out=o)
        return o * 2

    return f, (tensor(3), torch.zeros(3))


@program
def out_arg_view():
    def f(x, o):
        torch.mul(x, 2, out=o[1:])
        return o

    return f, (tensor(3), torch.zeros(4))


@program
def out_resize():
    def f(x):
        o = torch.empty(0)
        torch.add(x, 1, out=o)
        return o

    return f, (tensor(3),)


@program
def out_resize_input():
    def f(x, o):
        torch.add(x, 1, out=o)
        return o

    return f, (tensor(3), torch.empty(0))


@program
def views_out():
    def f(x):
        return x[1:], x.view(2, 2), x.t() if x.ndim == 2 else x.unsqueeze(0), x

    return f, (tensor(4),)


@program
def views_out_of_new():
    def f(x):
        y = x * 2
        return y, y[1:], y.view(-1), y.detach()

    return f, (tensor(4),)


@program
def view_then_write():
    def f(x):
        v = x[1:]
        x.mul_(3)
        v.add_(1)
        return v, x

    return f, (tensor(4),)


@program
def view_written_of_new():
    def f(x):
        y = x + 0
        v = y[::2]
        v.zero_()
        w = y.view(2, 2)
        w[0] += 5
        return y, v, w

    return f, (tensor(4),)


@program
def identity_out():
    def f(x):
        return x, [x, x], {"a": x}

    return f, (tensor(2),)


@program
def detach_out():
    def f(x):
        d = x.detach()
        d.mul_(2)
        return d, x * 1

    return f, (leaf(3),)


@program
def nested():
    def f(d):
        d["b"][0].add_(1)
        d["new"] = d["a"] * 2
        d["b"].append(d["a"] + 1)
        return d["t"][1][0] * 2

    return f, ({"a": tensor(3), "b": [tensor(3)], "t": (1, (tensor(2),))},)


@program
def contiguous_same():
    def f(x):
        return (
            x.contiguous() is x,
            x.to(torch.float32) is x,
            x.float() is x,
            x.expand(3) is x,
            x.contiguous(),
        )

    return f, (tensor(3),)


@program
def attr_on_tensor():
    def f(x):
        return x * x.scale if hasattr(x, "scale") else x

    x = tensor(3)
    x.scale = 4
    return f, (x,)


@program
def attr_set_on_tensor():
    def f(x):
        x.tag = 3
        return x * 2

    return f, (tensor(3),)


@program
def attr_set_on_new():
    def f(x):
        y = x * 2
        y.tag = 5
        return y

    return f, (tensor(3),)


@program
def no_grad_inplace_leaf():
    def f(x):
        with torch.no_grad():
            x.mul_(2)
        return x * 3

    return f, (leaf(3),)


@program
def leaf_inplace_error():
    def f(x):
        x.mul_(2)
        return x

    return f, (leaf(3),)


@program
def nonleaf_inplace():
    def f(x):
        y = x * 2
        y.mul_(3)
        y[0] = 0
        return y

    return f, (leaf(3),)


@program
def nonleaf_input_inplace():
    def mk():
        x = leaf(3)
        y = x * 2

        def f(y):
            y.mul_(3)
            return y + 1

        return f, (y,), x

    return mk()


@program
def set_item_masks():
    def f(x):
        x[x > 0] = 0
        return x

    return f, (tensor(4),)


@program
def torch_where_inplace():
    def f(x):
        x.masked_fill_(x > 0, 2.0)
        return x

    return f, (tensor(4),)


BREAKS = {
    "data_assign_param": ("unsupported-tensor",),
    "out_resize_input": ("unsupported-tensor",),
    "leaf_inplace_error": ("raises",),
    "version_read": ("unsupported-tensor",),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_breaks_are_those_that_are_known(name):
    assert break_codes(PROGRAMS[name]) == BREAKS.get(name, ())
