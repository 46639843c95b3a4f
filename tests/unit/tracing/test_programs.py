"""Whole programs traced, printed, compiled and compared with eager: transforms, autocast, modes,
recurrent layers, attention, in-place optimizers."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.types import TensorType
from braze.tracing import Tracer, Untraceable, reads_data

X, W, V = torch.randn(4, 5), torch.randn(5, 5), torch.randn(5)
Q, IMAGE = torch.randn(2, 3, 4, 8), torch.randn(2, 4, 5, 5)
LSTM, GRU = torch.nn.LSTM(5, 6, 2, batch_first=True), torch.nn.GRU(5, 6)
ATTENTION = torch.nn.MultiheadAttention(8, 2, batch_first=True)


def check(program: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Trace, verify, print and parse, run compiled; equal to eager in values, strides, writes."""
    given = copy.deepcopy(inputs)
    eager = copy.deepcopy(inputs)
    torch.manual_seed(1)
    expected = program(*eager)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    tracer = Tracer()
    with tracer:
        results = program(*[tracer.add_input(t) for t in given])
    finished = tracer.finish([results] if isinstance(results, torch.Tensor) else list(results))
    verify_graph(finished.graph)
    text = print_graph(finished.graph)
    tensors = {c.value.index: c.tensor for c in finished.graph.constants}
    assert print_graph(parse_graph(text, tensors)) == text
    torch.manual_seed(1)
    got = compile_graph_runner(finished.graph)([given[i] for i in finished.inputs])
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6)
        assert have.stride() == want.stride()
    for want, have in zip(eager, given, strict=True):
        assert torch.equal(want, have)


def autocast(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, w).relu(), (x @ w).float()


def inference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return F.linear(x, w).reshape(-1).contiguous().view(2, -1) * 2


def fused_adam(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    m, v, step = torch.zeros_like(p), torch.zeros_like(p), torch.tensor(1.0)
    options = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adam_(
        [p], [g], [m], [v], [], [step], lr=0.1, amsgrad=False, maximize=False, **options
    )
    return p * 1


def foreach(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch._foreach_mul_([a, b], 2.0)
    torch._foreach_addcdiv_([a, b], [a, b], [a, b], value=0.5)
    return (*torch._foreach_add([a, b], 1.5), a + 1)


def module(m: torch.nn.Module, *args: int, **kwargs: Any) -> Callable[..., Any]:
    def program(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(dict(m.named_parameters()), parameters))
        given = (x, x, x) if isinstance(m, torch.nn.MultiheadAttention) else (x,)
        return functional_call(m, named, given, kwargs)[0]  # type: ignore[no-any-return]

    return program


def masked(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y > 0] = 0.0
    return y


def random(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    drawn = torch.multinomial(torch.ones(4), 2)
    return torch.rand_like(x), torch.randperm(5), torch.randint(0, 5, (3,)), drawn, F.dropout(x)


def batch_norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, variance, training=True) + F.batch_norm(x, mean, variance)


def promotions(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * i, i / 2, i + 1.5, i // 2, i**2, 2**i, i > 1, -(i.bool().float())


INTS = torch.arange(4).view(4, 1)
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "vmap": (lambda x, w: vmap(lambda r: (r @ w).relu().sum())(x), X, W),
    "grad": (grad(lambda v: (v.sin() ** 2).sum()), V),
    "vmap of grad": (lambda x, w: vmap(grad(lambda r: (r @ w).tanh().sum()))(x), X, W),
    "jvp": (lambda v: jvp(torch.sin, (v,), (v * 2,))[1], V),
    "jacrev": (jacrev(lambda v: v.sin() * v.sum()), V),
    "jacfwd": (jacfwd(lambda v: v.sin() * v.sum()), V),
    "hessian": (hessian(lambda v: (v**3).sum()), V),
    "autocast": (autocast, X, W),
    "inference": (inference, X, W),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), Q),
    "attention dropout": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), Q),
    "lstm": (module(LSTM), torch.randn(2, 3, 5), *LSTM.parameters()),
    "gru": (module(GRU), torch.randn(2, 3, 5), *GRU.parameters()),
    "multihead": (module(ATTENTION), torch.randn(2, 3, 8), *ATTENTION.parameters()),
    "checkpoint": (
        lambda x: checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False),
        torch.randn(3, requires_grad=True),
    ),
    "fused adam": (fused_adam, X, X * 2),
    "foreach": (foreach, X, W),
    "mask": (masked, X),
    "random": (random, X),
    "batch norm": (batch_norm, IMAGE, torch.zeros(4), torch.ones(4)),
    "promotion": (promotions, torch.randn(4, 1), INTS),
    "0-dim float64": (lambda x, s: (x * s, s + 1), X, torch.tensor(2.0, dtype=torch.float64)),
    "counter": (lambda n: n.add_(1), torch.tensor(0)),
    "channels last": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w).relu(), 2),
        IMAGE.contiguous(memory_format=torch.channels_last),
        torch.randn(3, 4, 2, 2),
    ),
    "solve": (lambda w: torch.linalg.solve(w, w), W),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        X,
        torch.tensor([0, 1, 2, 3]),
    ),
    "empty": (lambda x: x[:0].sum(0) + x.new_zeros(0).sum(), X),
    "squeeze in place": (lambda x: (x * 1).unsqueeze(0).squeeze_(0).transpose_(0, 1) + 1, X),
    "complex": (lambda x: torch.fft.fft(x).conj() * 2, X),
    "conjugate of an input": (
        lambda x: (x.conj(), torch.view_as_real(x.conj().resolve_conj()), x.imag + 0),
        torch.randn(3, dtype=torch.complex64),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    check(*PROGRAMS[name])


def test_under_inference_mode() -> None:
    with torch.inference_mode():
        check(lambda x, w: F.linear(x, w).view(-1)[2:].add_(1).reshape(3, 6).t(), X, W)


def test_autocast_outside_leaves_no_standin_in_its_cache() -> None:
    weight = W.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(F.linear, X, weight)
        assert type(F.linear(X, weight)) is torch.Tensor


def test_devices_are_checked() -> None:
    tracer = Tracer()
    one = TensorType(torch.float32, (3,), (1,), torch.device("cpu"))
    other = TensorType(torch.float32, (3,), (1,), torch.device("meta"))
    scalar = TensorType(torch.float32, (), (), torch.device("cpu"))
    with tracer:
        x, y, s = map(tracer.add_input_of_type, (one, other, scalar))
        assert (y + s).device == y.device
        for call in (torch.add, torch.dot, lambda a, b: torch.cat([a, b]), torch.outer):
            with pytest.raises(RuntimeError, match="two devices"):
                call(x, y)


def test_code_that_reads_memory_directly_is_recognised() -> None:
    tracer, places = Tracer(), torch.tensor([2])
    with tracer:
        x, where = tracer.add_input(V), tracer.add_input(places)
        with pytest.raises(RuntimeError) as caught:
            torch.tensor_split(x, where)
    assert reads_data(caught.value)


def test_printing_needs_data() -> None:
    tracer = Tracer()
    with tracer, pytest.raises(Exception, match="reads the memory"):
        str(tracer.add_input(V))


def test_reentrant_checkpoint_is_refused() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(Untraceable):
        check(lambda x: checkpoint(torch.sin, x, use_reentrant=True), x)


_NO_HEAVY_IMPORTS = """
import sys, torch
from torch.nn import functional as F
from braze.tracing import Tracer
x, w, i, c = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.tensor([1, 2]), torch.ones(4)
tracer = Tracer()
with tracer:
    x, w, i, c = map(tracer.add_input, (x, w.requires_grad_(), i, c))
    y = F.max_pool2d(F.batch_norm(F.conv2d(x, w), c, c * 2, training=True).relu_(), 2).mean((2, 3))
    y = F.layer_norm(F.gelu(F.dropout(y)), (4,), c, c) + F.embedding(i, w[:, :, 0, 0].t())
    q = y.view(2, 1, 1, 4)
    y = F.scaled_dot_product_attention(q, q, q).reshape(2, 4)
    loss = F.cross_entropy(y, i)
    torch.autograd.grad(loss, [w])
loaded = {"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules)
assert not loaded, loaded
"""


def test_a_plain_trace_imports_no_other_compiler() -> None:
    subprocess.run([sys.executable, "-c", _NO_HEAVY_IMPORTS], check=True)
