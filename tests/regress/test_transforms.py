"""torch.func's transforms, torch.cond, scripted functions and autograd functions in programs."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import braze
from tests.regress.layers import Net, linear
from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles, state_after

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


def loss(w, x):
    return ((x @ w).sin() ** 2).sum()


CONDITIONS = {}


def condition(make):
    """Register a program with torch.cond, which in eager goes through torch's compiler."""
    CONDITIONS[make.__name__] = make
    return make


@program
def vjp():
    def f(x):
        out, pull = torch.func.vjp(torch.sin, x)
        return out, pull(torch.ones_like(out))[0]

    return f, (tensor(3),)


@program
def vjp_lambda():
    def f(w, x):
        out, pull = torch.func.vjp(lambda a, b: (a @ b).sin(), x, w)
        g = pull(torch.ones_like(out))
        return out, g

    return f, (tensor(3, 2), tensor(2, 3))


@program
def vjp_aux():
    def f(x):
        out, pull, aux = torch.func.vjp(lambda a: (a.sin(), a.cos()), x, has_aux=True)
        return out, pull(out), aux

    return f, (tensor(3),)


@program
def jvp():
    def f(x, t):
        return torch.func.jvp(lambda a: a.sin() * a, (x,), (t,))

    return f, (tensor(3), tensor(3) + 1)


@program
def grad():
    def f(w, x):
        return torch.func.grad(loss)(w, x)

    return f, (tensor(2, 3), tensor(4, 2))


@program
def grad_and_value():
    def f(w, x):
        return torch.func.grad_and_value(loss, argnums=(0, 1))(w, x)

    return f, (tensor(2, 3), tensor(4, 2))


@program
def vmap():
    def f(w, x):
        return torch.vmap(lambda row: (row @ w).relu())(x)

    return f, (tensor(2, 3), tensor(4, 2))


@program
def vmap_dims():
    def f(a, b):
        return torch.vmap(torch.dot, in_dims=(1, None), out_dims=0)(a, b)

    return f, (tensor(3, 4), tensor(3))


@program
def vmap_nested():
    def f(a, b):
        return torch.vmap(torch.vmap(torch.mul, in_dims=(None, 0)), in_dims=(0, None))(a, b)

    return f, (tensor(3), tensor(4))


@program
def vmap_random():
    def f(a):
        return torch.vmap(lambda r: r + torch.rand(3), randomness="different")(a)

    return f, (tensor(2, 3),)


@program
def vmap_item():
    def f(a):
        return torch.vmap(lambda r: r * 2 if r.sum() > 0 else r)(a)

    return f, (tensor(2, 3),)


@program
def per_sample_grad():
    def f(net, x, y):
        params = {k: v.detach() for k, v in net.named_parameters()}

        def one(params, xi, yi):
            out = torch.func.functional_call(net, params, (xi.unsqueeze(0),))
            return ((out - yi) ** 2).mean()

        return torch.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(params, x, y)

    return f, (Net(), tensor(4, 3), tensor(4, 3))


@program
def hessian():
    def f(x):
        return torch.func.hessian(lambda a: (a**3).sum())(x)

    return f, (tensor(3),)


@program
def jacrev():
    def f(x):
        return torch.func.jacrev(lambda a: a.sin() * a.sum())(x)

    return f, (tensor(3),)


@program
def jacfwd():
    def f(x):
        return torch.func.jacfwd(lambda a: a.sin() * a.sum())(x)

    return f, (tensor(3),)


@program
def linearize():
    def f(x, t):
        out, lin = torch.func.linearize(lambda a: a.sin(), x)
        return out, lin(t)

    return f, (tensor(3), tensor(3))


@program
def grad_closure_write():
    seen = []

    def f(x):
        def g(a):
            seen.append(a.shape)
            return (a**2).sum()

        return torch.func.grad(g)(x)

    return f, (tensor(3),), seen


@program
def ensemble():
    def f(params, x):
        def one(w, b):
            return torch.tanh(x @ w.T + b)

        return torch.vmap(one)(params["w"], params["b"]).mean(0)

    return f, ({"w": tensor(3, 2, 2), "b": tensor(3, 2)}, tensor(4, 2))


@program
def grad_outer_requires():
    def f(w, x):
        return torch.func.grad(loss)(w, x)

    return f, (tensor(2, 3).requires_grad_(), tensor(4, 2))


@program
def vmap_requires():
    def f(w, x):
        return torch.vmap(lambda row: (row @ w).relu())(x)

    return f, (tensor(2, 3).requires_grad_(), tensor(4, 2))


@program
def made_outside():
    g = torch.func.grad(loss)

    def f(w, x):
        return g(w, x) + 1

    return f, (tensor(2, 3), tensor(4, 2))


@program
def vmapped_outside():
    g = torch.vmap(lambda r: r.sin() * 2)

    def f(x):
        return g(x) + 1

    return f, (tensor(4, 2),)


# What a transform gave, compiled itself.
@program
def grad_itself():
    return torch.func.grad(loss), (tensor(2, 3), tensor(4, 2))


@program
def grad_and_value_itself():
    weight = tensor(2, 3).requires_grad_()
    return torch.func.grad_and_value(loss, argnums=(0, 1)), (weight, tensor(4, 2))


@program
def vmap_itself():
    return torch.vmap(lambda row: row.sin() * 2), (tensor(4, 2),)


@program
def hessian_itself():
    return torch.func.hessian(lambda a: (a**3).sum()), (tensor(3),)


@program
def functionalize_itself():
    return torch.func.functionalize(lambda a: a.clone().add_(1)), (tensor(3),)


@program
def level_itself():
    """Code of torch.func's own, interpreted: it enters a level and leaves it."""

    def f(w, x):
        return torch._functorch.eager_transforms.grad_impl(loss, 0, False, (w, x), {})

    return f, (tensor(2, 3), tensor(4, 2))


@program
def vectorised_jacobian():
    def f(x):
        jacobian = torch.autograd.functional.jacobian
        return jacobian(torch.sin, x, vectorize=True, strategy="forward-mode")

    return f, (tensor(3),)


@program
def forward_mode():
    def f(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, x * 2).sin()).tangent

    return f, (tensor(3),)


@program
def forward_mode_broken():
    def f(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, x * 2)
            braze.graph_break()
            return forward_ad.unpack_dual(dual.sin()).tangent

    return f, (tensor(3),)


# cond
@condition
def cond():
    def f(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    return f, (tensor(4),)


@condition
def cond_neg():
    def f(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    return f, (-tensor(4),)


@condition
def cond_closure():
    def f(x, w):
        y = x * 2
        return torch.cond(x.sum() > 0, lambda: y + w, lambda: y - w)

    return f, (tensor(4), tensor(4))


@condition
def cond_pred_python():
    def f(x):
        return torch.cond(x.shape[0] > 2, lambda a: a.sin(), lambda a: a.cos(), (x,))

    return f, (tensor(4),)


@condition
def cond_grad():
    """No gradient is -0.0: the zeros of the other branch, which are added to it, make it 0.0."""

    def f(x, w):
        return torch.cond(x.sum() > 0, lambda a, b: (a * b).sin(), lambda a, b: a - 2 * b, (x, w))

    return f, (tensor(4), tensor(4).requires_grad_())


@program
def script():
    @torch.jit.script
    def g(x):
        return x * 2 + 1

    def f(x):
        return g(x).sin()

    return f, (tensor(4),)


@program
def traced():
    g = torch.jit.trace(lambda x: x * 2 + 1, (tensor(4),))

    def f(x):
        return g(x).sin()

    return f, (tensor(4),)


@program
def script_loop():
    @torch.jit.script
    def g(x, n: int):
        for _ in range(n):
            x = x * 2
        return x

    def f(x):
        return g(x, 3).sin()

    return f, (tensor(4),)


@program
def script_makes_a_tensor():
    """TorchScript fills it by its address: a fake tensor has none."""

    @torch.jit.script
    def g(x, n: int):
        return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * n)

    def f(x):
        return g(x, 2).sin()

    return f, (tensor(4),)


@program
def script_module():
    m = torch.jit.script(linear())

    def f(m, x):
        return m(x).sin()

    return f, (m, tensor(2, 3))


@program
def script_grad():
    @torch.jit.script
    def g(x):
        return x * 2 + 1

    def f(x):
        return g(x).sin()

    return f, (tensor(4).requires_grad_(),)


@program
def custom_function():
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * 2

    def f(x):
        return F.apply(x) * 3

    return f, (tensor(4).requires_grad_(),)


@program
def checkpoint():
    import torch.utils.checkpoint as c

    def f(net, x):
        return c.checkpoint(net, x, use_reentrant=False) + 1

    return f, (Net(), tensor(2, 3))


LEVELS = ["unseen-callable", "unseen-python", "unseen-callable"]
USUAL = [(1, []), (0, [])]
# Programs that compile more or less than one graph at the first call and nothing at the second:
# graphs and breaks of both. Within a level that a frame has entered nothing is compiled: its rest
# runs as it is written.
COMPILES = {
    "vmap_item": [(0, []), (0, [])],
    "linearize": [(1, ["unseen-python"]), (1, [])],
    "level_itself": [(0, LEVELS), (0, [])],
    "vectorised_jacobian": [(2, ["unseen-python"]), (0, [])],
    "forward_mode_broken": [(0, ["explicit"]), (0, [])],
    "script_module": [(1, ["unseen-callable"]), (0, [])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, USUAL)


def test_a_transform_leaves_no_level_open_and_is_exported():
    assert torch._C._functorch.maybe_current_level() is None
    x = torch.arange(3.0)
    gradient = torch.func.grad(lambda a: (a**3).sum())
    for compiled in (braze.compile(gradient, fullgraph=True), braze.export(gradient)(x)[0]):
        assert torch.equal(compiled(x), gradient(x))
    level = braze.compile(torch._functorch.eager_transforms.grad_impl)
    assert torch.equal(level(torch.sum, 0, False, (x,), {}), torch.ones(3))
    assert torch._C._functorch.maybe_current_level() is None


def test_tangents_from_outside_are_taken_along():
    def f(x):
        return x.sin() * 2

    compiled = braze.compile(f)
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.allclose(compiled(x), f(x))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones(3))
            for mine, theirs in zip(*[forward_ad.unpack_dual(g(dual)) for g in (compiled, f)]):
                torch.testing.assert_close(mine, theirs)


def choose(pred, true_fn, false_fn, operands=()):
    """What torch.cond means."""
    return (true_fn if pred else false_fn)(*operands)


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(name, monkeypatch):
    function, args = CONDITIONS[name]()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cond", choose)
        expected = state_after(function, args)
    function, args = CONDITIONS[name]()
    assert state_after(braze.compile(function, backend="aot_eager"), args) == expected
    assert compiles(CONDITIONS[name])[0] == (1, [])


def branching(x):
    other = lambda a: (a.clone(), {"k": a.clone()})  # noqa: E731
    return torch.cond(x.sum() > 0, lambda a: (a.sin(), {"k": a * 2}), other, (x,))


def costly(w, x):
    return torch.cond(x.sum() > 0, lambda a: a @ w, lambda a: a - 1, (x,))


def test_condition_in_one_graph():
    compiled = braze.compile(branching, fullgraph=True)
    x = torch.arange(4.0)
    for value, expected in ((x, (x.sin(), x * 2)), (-x, (-x, -x))):
        first, second = compiled(value)
        assert torch.allclose(first, expected[0]) and torch.equal(second["k"], expected[1])


def test_costly_condition_is_in_the_graph():
    w, x = torch.eye(3) * 2, torch.ones(2, 3)
    explained = braze.explain(costly)(w, x)
    assert not explained.break_reasons and explained.graph_count == 1
    assert torch.equal(explained.result, x * 2)
    whole = braze.compile(costly, fullgraph=True)
    assert torch.equal(whole(w, x), x * 2) and torch.equal(whole(w, -x), -x - 1)


def test_condition_that_writes_is_refused():
    def f(seen, x):
        return torch.cond(x.sum() > 0, lambda a: seen.append(1) or a + 1, lambda a: a - 1, (x,))

    seen: list[int] = []
    for x in (-torch.ones(2), torch.ones(2)):
        with pytest.raises(RuntimeError):
            braze.compile(f, backend="aot_eager")(seen, x)
    assert not seen


def test_another_scripted_function():
    @torch.jit.script
    def double(x):
        return x * 2

    @torch.jit.script
    def triple(x):
        return x * 3

    compiled = braze.compile(lambda g, x: g(x) + 1, backend="aot_eager")
    for script, factor in ((double, 2), (triple, 3), (double, 2)):
        assert torch.equal(compiled(script, torch.ones(2)), torch.ones(2) * factor + 1)
