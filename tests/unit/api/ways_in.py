"""Ways into Braze, and kinds of callables to be compiled: `test_ways_in.py` puts every way to every
kind."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import braze

X = torch.linspace(-1, 1, 12).reshape(3, 4)


# --- kinds of callables, each made afresh ---------------------------------------------------------


def plain(x: Any) -> Any:
    return torch.relu(x) * 2 + x.sin()


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return torch.relu(self.linear(x)) + x

    def other(self, x: Any) -> Any:
        return self.linear(x) * 3


class Derived(Affine):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class OwnCall(Affine):
    def __call__(self, x: Any) -> Any:
        return super().__call__(x) - 1


class OwnCallImplementation(Affine):
    def _call_impl(self, x: Any) -> Any:  # type: ignore[override]
        return super()._call_impl(x) - 1


class Square(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * weight


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2).eval()

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)


class Scaling:
    scale = 3.0

    def __call__(self, x: Any) -> Any:
        return torch.relu(x) * self.scale

    def method(self, x: Any) -> Any:
        return torch.relu(x) * self.scale + 1

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return torch.relu(x) * cls.scale + 2

    @staticmethod
    def of_nobody(x: Any) -> Any:
        return torch.relu(x) * 4


async def coroutine(x: Any) -> Any:
    return torch.relu(x) * 2


def generator(x: Any) -> Iterator[Any]:
    yield torch.relu(x)
    yield x * 2


@functools.lru_cache
def cached(scale: float) -> Any:
    return scale * 2


@functools.wraps(plain)
def wrapping(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs) * cached(2.0)


def with_hooks() -> nn.Module:
    made = Affine()
    made.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    made.register_forward_hook(lambda module, args, result: result * 2)
    return made


def with_own_forward() -> nn.Module:
    made = Affine()
    old = made.forward
    made.forward = lambda x: old(x) * 2  # type: ignore[method-assign]
    return made


def of_blocks(block: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(block(), nn.Tanh())


def parametrized() -> nn.Module:
    made = Affine()
    parametrize.register_parametrization(made.linear, "weight", Square())
    return made


def normalised() -> nn.Module:
    made = Affine()
    parametrizations.weight_norm(made.linear)
    return made


def lazy() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    made(X)
    return made


def exported() -> nn.Module:
    return torch.export.export(Affine(), (X,)).module()


def saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "function": lambda: plain,
    "lambda": lambda: lambda x: torch.relu(x) * 2,
    "closure": lambda: (lambda scale: lambda x: torch.relu(x) * scale)(2.0),
    "partial": lambda: functools.partial(lambda scale, x: torch.relu(x) * scale, 2.0),
    "partial of a partial": lambda: functools.partial(functools.partial(torch.add, X), alpha=2),
    "wrapper": lambda: wrapping,
    "bound method": lambda: Scaling().method,
    "method of a module": lambda: Affine().other,
    "class method": lambda: Scaling.of_class,
    "static method": lambda: Scaling.of_nobody,
    "callable object": Scaling,
    "builtin": lambda: torch.relu,
    "method of a C class": lambda: torch.Tensor.relu,
    "operator": lambda: torch.ops.aten.relu.default,
    "function of torch's": lambda: torch.nn.functional.gelu,
    "scripted function": lambda: torch.jit.script(_to_script),
    "compiled function": lambda: braze.compile(plain),
    "coroutine function": lambda: coroutine,
    "generator function": lambda: generator,
    "gradient": lambda: torch.func.grad(lambda x: plain(x).sum()),
    "vectorised": lambda: torch.vmap(plain),
}


def _to_script(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


MODULES: dict[str, Callable[[], nn.Module]] = {
    "module": Affine,
    "derived module": Derived,
    "module with __call__": OwnCall,
    "module with _call_impl": OwnCallImplementation,
    "sequential": lambda: of_blocks(Affine),
    "modules of torch's": Attention,
    "bare module of torch's": lambda: nn.LayerNorm(4),  # `nn.Module.compile` gives no backend any
    "module list": lambda: nn.ModuleList([Affine()]),
    "hooks": with_hooks,
    "forward of its own": with_own_forward,
    "data parallel": lambda: nn.DataParallel(Affine()),
    "parametrized": parametrized,
    "weight norm": normalised,
    "lazy": lazy,
    "exported": exported,
    "traced by fx": lambda: torch.fx.symbolic_trace(Affine()),
    "scripted": lambda: _scripted(),
    "traced by jit": lambda: torch.jit.trace(Square(), X),
    "scripted block": lambda: of_blocks(_scripted),
    "block traced by jit": lambda: of_blocks(lambda: torch.jit.trace(Square(), X)),
    "compiled block": lambda: of_blocks(lambda: braze.compile(Affine())),
    "block compiled in place": lambda: of_blocks(lambda: braze.compile_in_place(Affine())),
    "compiled module": lambda: braze.compile(Affine()),
    "copied": lambda: copy.deepcopy(braze.compile(Affine())),
    "pickled": lambda: pickle.loads(pickle.dumps(braze.compile(Affine()))),
    "saved": lambda: saved_and_loaded(braze.compile(Affine())),
    "disabled block": lambda: of_blocks(lambda: braze.disable(Affine())),
}


@functools.cache
def _scripted() -> Any:
    return torch.jit.script(Square())


# --- ways in --------------------------------------------------------------------------------------


def by_default_backend(target: Any, backend: Any = "braze", **options: Any) -> Any:
    torch.compiler.set_default_backend(backend)
    try:
        return torch.compile(target, **options)
    finally:
        torch.compiler.set_default_backend(None)


def by_method(target: nn.Module, backend: Any = "braze", **options: Any) -> nn.Module:
    target.compile(backend=backend, **options)
    return target


WAYS: dict[str, Callable[[Any], Any]] = {
    "compile": braze.compile,
    "twice": lambda target: braze.compile(braze.compile(target)),
    "decorator": lambda target: braze.compile(dynamic=True, mode="default")(target),
    "fullgraph": lambda target: braze.compile(target, fullgraph=True),
}
WAYS_OF_MODULES: dict[str, Callable[[Any], Any]] = {
    **WAYS,
    "in place": braze.compile_in_place,
    "in place, and around": lambda target: braze.compile(braze.compile_in_place(target)),
}


def _by_torch(target: Any, backend: Any = "braze", **options: Any) -> Any:
    return torch.compile(target, backend=backend, **options)


# Through PyTorch's capture: of the callable and a backend.
TORCH_WAYS: dict[str, Callable[..., Any]] = {"torch.compile": _by_torch}
if hasattr(torch.compiler, "set_default_backend"):
    TORCH_WAYS["default backend"] = by_default_backend
TORCH_WAYS_OF_MODULES = {**TORCH_WAYS, "Module.compile": by_method}
# Arguments of `torch.compile`, as any of these ways takes them.
TORCH_OPTIONS: dict[str, dict[str, Any]] = {
    "dynamic": {"dynamic": True},
    "static": {"dynamic": False},
    "fullgraph": {"fullgraph": True},
    "mode": {"mode": "reduce-overhead"},
    "options": {"options": {"numerics": "default"}},
}
