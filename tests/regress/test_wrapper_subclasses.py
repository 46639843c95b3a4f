"""Wrapper subclasses (`__torch_dispatch__`) in compiled code: one graph of plain operators.

The classes are written as PyTorch's and torchao's are: a pair of tensors, and a quantized weight
whose tables of functions answer `__torch_function__` and `__torch_dispatch__`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing

import braze
from braze.errors import GraphBreakError


class Pair(torch.Tensor):
    """Two tensors of one shape; each operator is done to both."""

    @staticmethod
    def __new__(cls, a, b, tag="pair"):
        size, stride = a.size(), a.stride()
        options = {"dtype": a.dtype, "device": a.device, "strides": stride}
        return torch.Tensor._make_wrapper_subclass(cls, size, **options)

    def __init__(self, a, b, tag="pair"):
        super().__init__()
        self.a, self.b, self.tag = a, b, tag

    def __tensor_flatten__(self):
        return ["a", "b"], self.tag

    @staticmethod
    def __tensor_unflatten__(inner, tag, size, stride):
        return Pair(inner["a"], inner["b"], tag)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def side(value, name):
            if isinstance(value, (list, tuple)):
                return type(value)(side(item, name) for item in value)
            return getattr(value, name) if isinstance(value, Pair) else value

        made = [
            func(*side(args, n), **{k: side(v, n) for k, v in (kwargs or {}).items()}) for n in "ab"
        ]
        tag = (
            next(x.tag for x in args if isinstance(x, Pair))
            if isinstance(args[0], Pair)
            else "other"
        )
        if isinstance(made[0], (list, tuple)):
            out = type(made[0])(Pair(a, b, tag) for a, b in zip(*made))
        else:
            out = Pair(*made, tag)
        return return_and_correct_aliasing(func, args, kwargs, out)


class Quantized(torch.Tensor):
    """An int8 weight and a scale a row, as torchao has them: two tables say what is done."""

    functions: dict = {}
    operators: dict = {}
    __slots__ = ("scale", "values")

    def __new__(cls, values, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=dtype)

    def __init__(self, values, scale, dtype):
        self.values, self.scale = values, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls(torch.round(weight / scale).to(torch.int8), scale, weight.dtype)

    def dequantize(self):
        return self.values.to(self.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.functions:
            return cls.functions[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func in cls.operators:
            return cls.operators[func](func, args, kwargs)
        raise NotImplementedError(f"{func}")


def linear(x, weight, bias=None):
    y = (x @ weight.values.to(x.dtype).t()) * weight.scale.t()
    return y if bias is None else y + bias


def detached(func, args, kwargs):
    self = args[0]
    made = Quantized(self.values.detach(), self.scale.detach(), self.dtype)
    return return_and_correct_aliasing(func, args, kwargs, made)


def embedded(func, args, kwargs):
    weight, index = args[:2]
    return weight.values[index].to(weight.dtype) * weight.scale[index]


Quantized.functions = {F.linear: linear}
aten = torch.ops.aten
Quantized.operators = {
    aten.detach.default: detached,
    aten.alias.default: detached,
    aten.embedding.default: embedded,
}


def pair(*shape):
    torch.manual_seed(0)
    return Pair(torch.randn(*shape), torch.randn(*shape))


def parts(value):
    """What there is to compare of a result."""
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in parts(item)]
    if isinstance(value, Pair):
        names = ("tag", "shape", "dtype", "requires_grad", "is_leaf")
        own = {name: str(getattr(value, name)) for name in names}
        return [type(value).__name__, value.stride(), own, *parts([value.a, value.b])]
    return [value]


def equal(found, expected):
    """Tensors within tolerance, all else equal."""
    first, second = parts(found), parts(expected)
    assert [type(part) for part in first] == [type(part) for part in second]
    for one, other in zip(first, second):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def check(function, *args, graphs=1, breaks=0):
    """Equal to eager, twice, in so many graphs and breaks."""
    expected = function(*args)
    found = braze.explain(function)(*args)
    assert (found.graph_count, found.break_count) == (graphs, breaks), str(found)
    compiled = braze.compile(function)
    for _ in range(2):
        equal(compiled(*args), expected)
    return compiled


def split(x):
    return x.split(2, dim=1)


def written(x):
    y = x.clone()
    y.add_(1)
    y.mul_(y)
    return y


def rebuilt(x):
    names, tag = x.__tensor_flatten__()
    inner = {name: getattr(x, name) * 2 for name in names}
    return Pair.__tensor_unflatten__(inner, tag + "!", x.shape, x.stride())


PROGRAMS = {
    "pointwise": lambda x: (x + 1).sin() * x,
    "plain beside": lambda x: x + torch.ones(4),
    "python function": lambda x: F.gelu(F.relu(x)),
    "norm": lambda x: F.layer_norm(x, (4,)),
    "reduction": lambda x: (x.sum(), x.mean(1)),
    "views": lambda x: x.view(2, 6).t(),
    "rows": lambda x: list(x),
    "split": split,
    "cat": lambda x: torch.cat([x, x]),
    "product": lambda x: x @ x.t(),
    "dtype": lambda x: x.to(torch.float64),
    "in place": written,
    "read": lambda x: (x.a + x.b, x.shape, x.dtype, x.tag, type(x), isinstance(x, Pair)),
    "made": lambda x: Pair(x.a + 1, x.b, "made"),
    "flattened": rebuilt,
    "nested": lambda x: Pair(x, x * 2, "outer") + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pairs_are_one_graph(name):
    check(PROGRAMS[name], pair(3, 4))


def test_a_pair_is_a_weight():
    layer = nn.Linear(4, 3).requires_grad_(False)
    layer.weight = nn.Parameter(pair(3, 4), requires_grad=False)
    check(layer, torch.randn(2, 4))
    check(nn.Sequential(layer, nn.ReLU()).requires_grad_(False), torch.randn(5, 2, 4))


def quantized_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Quantized.of(layer.weight.detach()), requires_grad=False)
    return model


def test_quantized_weights_are_one_graph():
    model = quantized_model()
    with torch.no_grad():
        check(model, torch.randn(5, 8))
        check(lambda x: x + model[0].weight.dequantize().sum(), torch.randn(()))
        table = model[2].weight
        check(lambda index: F.embedding(index, table), torch.tensor([0, 3, 1]))


def test_activations_get_gradients_through_quantized_weights():
    model = quantized_model()
    x = torch.randn(5, 8, requires_grad=True)
    inputs = (x, model[0].bias, model[2].bias)
    expected = torch.autograd.grad(model(x).square().sum(), inputs)
    compiled = braze.compile(model, fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), inputs), expected)


class Rounding(torch.Tensor):
    """A weight whose products are rounded: their gradients are those of products all the same."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.values if isinstance(arg, Rounding) else arg for arg in args]
        out = func(*plain, **(kwargs or {}))
        if func in (aten.mm.default, aten.addmm.default):
            return torch.round(out * 4) / 4
        return return_and_correct_aliasing(func, args, kwargs, Rounding(out))


def rounding_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Rounding(layer.weight.detach()), requires_grad=False)
    return model


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)])
def test_gradients_are_those_of_the_operator(shape):
    model = rounding_model()
    x = torch.randn(shape, requires_grad=True)
    inputs = (x, model[0].bias, model[2].bias)
    expected = torch.autograd.grad(model(x).square().sum(), inputs)
    assert all(gradient.abs().sum() > 0 for gradient in expected)
    compiled = braze.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    for _ in range(2):
        found = torch.autograd.grad(compiled(x).square().sum(), inputs)
        torch.testing.assert_close(found, expected)


def test_a_backward_in_the_frame_goes_through_wrappers():
    model = rounding_model()

    def step(x):
        y = x.clone().requires_grad_()
        model(y).square().sum().backward()
        return y.grad

    x = torch.randn(3, 8)
    expected = step(x)
    torch.testing.assert_close(braze.compile(step, fullgraph=True)(x), expected)


def test_gradients_to_wrappers_and_of_them_break():
    layer = nn.Linear(4, 3, bias=False).requires_grad_(False)
    layer.weight = nn.Parameter(pair(3, 4), requires_grad=False)
    x = torch.randn(2, 4, requires_grad=True)

    def loss(x):
        y = layer(x)
        return y.a.sum() + y.b.square().sum() if type(y) is Pair else y.sum()

    with pytest.raises(GraphBreakError, match="gradient of linear"):
        braze.compile(loss, fullgraph=True)(x)
    with torch.no_grad():
        check(loss, x)


def test_a_result_leaves_as_eager_makes_it():
    made = check(lambda x: Pair(x, x + 1, "new"), torch.ones(2, 3))(torch.ones(2, 3))
    assert type(made) is Pair and made.is_leaf and not made.requires_grad
    assert torch.equal((made + 1).b, torch.full((2, 3), 3.0))


def test_what_wrappers_hold_is_guarded():
    def f(x):
        return x.a * (2 if x.tag == "pair" else 3)

    compiled = braze.compile(f, fullgraph=True)
    for tag in ("pair", "other", "pair"):
        for dtype in (torch.float32, torch.float64):
            x = Pair(torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype), tag)
            assert torch.equal(compiled(x), f(x))
    y = Pair(torch.full((3,), 5.0), torch.ones(3), "pair")
    assert torch.equal(compiled(y), f(y))  # by its values, which are no part of the entry
    y.a = torch.ones(7)
    assert torch.equal(compiled(y), f(y))


def test_what_the_class_does_is_guarded(monkeypatch):
    model = quantized_model()[0]
    compiled, x = braze.compile(model, fullgraph=True), torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        monkeypatch.setattr(Quantized, "functions", {F.linear: lambda x, w, b=None: x.sum() + b})
        torch.testing.assert_close(compiled(x), model(x))


def test_another_class_is_another_entry():
    class Derived(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            made = super().__torch_dispatch__(func, types, args, kwargs)
            return Pair(made.a + 100, made.b, made.tag)

    compiled = braze.compile(lambda x: x * 2, fullgraph=True)
    x = pair(3)
    for value in (x, Derived(x.a, x.b), x):
        equal(compiled(value), value * 2)


def test_guards_ask_no_function_of_the_class():
    asked = []

    class Counted(Quantized):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    weight = Counted.of(torch.randn(4, 8))
    asked.clear()
    compiled = braze.compile(lambda x: F.linear(x, weight), fullgraph=True)
    with torch.no_grad():
        for count in range(1, 5):
            compiled(torch.randn(2, 8))
            assert asked.count(F.linear) == count
            assert set(asked) <= {F.linear}


def test_writes_reach_what_wrappers_hold():
    def f(x):
        x.add_(1)
        return x * 2

    first, second = pair(3), pair(3)
    held = first.a
    equal(braze.compile(f, fullgraph=True)(first), f(second))
    equal(first, second)
    assert first.a is held


def test_memory_and_dicts_of_wrappers_break():
    for f in (lambda x: x.data_ptr(), lambda x: x.__dict__, lambda x: x.untyped_storage()):
        assert braze.explain(f)(pair(3)).break_count == 1


library = torch.library.Library("braze_wrapper_subclasses", "FRAGMENT")
library.define("scaled(Tensor x, float by=2) -> Tensor")
FACTOR = 3.0


def _scaled(x, by=2):
    return x * by * FACTOR


library.impl("scaled", _scaled, "CompositeImplicitAutograd")


def test_compositions_in_python_are_interpreted(monkeypatch):
    def f(x):
        return torch.ops.braze_wrapper_subclasses.scaled(x + 1).sin()

    compiled = check(f, torch.randn(3))
    x = torch.randn(3, requires_grad=True)
    (expected,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], expected)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    torch.testing.assert_close(compiled(x), f(x))


def test_wrapped_parameters_are_parameters():
    m = nn.Linear(3, 3, bias=False)
    m.weight = nn.Parameter(Pair(torch.ones(3, 3), torch.zeros(3, 3)), requires_grad=False)

    def f(x, weight, plain):
        kinds = [isinstance(w, nn.Parameter) for w in (m.weight, weight, plain)]
        return x * (1 + 2 * kinds[0] + 4 * kinds[1] + 8 * kinds[2])

    given = torch.ones(2), m.weight, Pair(torch.ones(1), torch.ones(1))
    compiled = braze.compile(f, fullgraph=True)
    assert f(*given)[0] == 7 and torch.equal(compiled(*given), f(*given))
    given = torch.ones(2), given[2], m.weight
    assert f(*given)[0] == 11 and torch.equal(compiled(*given), f(*given))


def test_wrapped_parameters_made_inside_are_registered():
    def f(module, x):
        module.w = nn.Parameter(x, requires_grad=False)
        return module.w + 1

    for run in (f, braze.compile(f)):
        module = nn.Module()
        with torch.no_grad():
            run(module, Pair(torch.ones(2), torch.zeros(2)))
        assert list(module.state_dict()) == ["w"] and "w" not in module.__dict__
