"""Backends by name: what turns a captured graph into something that runs.

A backend takes the graph at one of four levels. Our own stages serve the first three; the last
hands a torch-level `torch.fx.GraphModule` to a function that somebody else wrote, as
`torch.compile` does.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.versions import UNTAGGED_BACKENDS
from braze.errors import InvalidBackend, UserError, unknown_name
from braze.frozen import frozen
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.joint_graph import Role
from braze.locks import make_lock
from braze.trace import CompileRecorder

ENTRY_POINT_GROUP = "torch_dynamo_backends"
HIDDEN_TAGS = ("debug", "experimental")

# (graph, example inputs) -> a callable that takes the inputs one by one and returns a tuple.
GraphCompiler: TypeAlias = Callable[..., Callable[..., Any]]


class Level(enum.Enum):
    """In which form a backend takes a graph."""

    KERNELS = "kernels"  # all our stages: loops, fusion, generated code
    ATEN = "aten"  # the ATen graph as captured, run operator by operator
    REWRITTEN_ATEN = "rewritten aten"  # the same behind the graph passes
    JOINT = "joint"  # forward and backward as ATen GraphModules, for a compiler each
    EXAMINED = "examined"  # the ATen graph as KERNELS has it, for `examine`
    TORCH = "torch"  # a torch.fx.GraphModule of the torch-level calls, for `compiler`


# Takes a graph in the place of the stages behind capture; the role that it has.
Examine: TypeAlias = Callable[[Graph, CompileRecorder, Role], GraphCallable]


@final
@frozen
class Backend:
    """A resolved backend. `compiler` is given at Level.TORCH and Level.JOINT, where it gets
    forward graphs; `backward_compiler` at Level.JOINT alone.

    examine: given at Level.EXAMINED.
    takes_sizes: whether sizes may be other ones at the next call: its graphs compute with them.
    takes_numbers: the same of numbers that are inputs. A user's compiler that asks for their values
        gets them as constants.
    """

    name: str
    level: Level
    compiler: GraphCompiler | None = None
    backward_compiler: GraphCompiler | None = None
    takes_sizes: bool = True
    takes_numbers: bool = False
    examine: Examine | None = None


def aot_backend(fw_compiler: GraphCompiler, bw_compiler: GraphCompiler | None = None) -> Backend:
    """Make a backend of compilers for functional ATen graphs, one for forwards, one for backwards.

    Each graph is compiled when it first runs.

    fw_compiler, bw_compiler: `(torch.fx.GraphModule, example_inputs) -> callable`; the first for
    both where there is one. A forward graph returns its results, then what its backward takes
    first; the backward takes that, then the results' gradients.
    """
    for compiler in (fw_compiler, bw_compiler or fw_compiler):
        if not callable(compiler):
            raise UserError(f"aot_backend takes compilers, not {compiler!r}")
    name = getattr(fw_compiler, "__name__", type(fw_compiler).__name__)
    return Backend(f"aot({name})", Level.JOINT, fw_compiler, bw_compiler or fw_compiler, False)


def run_graph_module(
    graph: torch.fx.GraphModule, example_inputs: Sequence[object]
) -> Callable[..., object]:
    """The backend "eager": the captured torch-level graph, as it is."""
    return graph.forward


OWN: Mapping[str, Backend] = {
    "braze": Backend("braze", Level.KERNELS, takes_numbers=True),
    "eager": Backend("eager", Level.TORCH, run_graph_module, takes_numbers=True),
    "aot_eager": Backend("aot_eager", Level.ATEN, takes_numbers=True),
    "aot_eager_decomp_partition": Backend(
        "aot_eager_decomp_partition", Level.REWRITTEN_ATEN, takes_numbers=True
    ),
}
_DEBUG = frozenset({"eager", "aot_eager", "aot_eager_decomp_partition"})


@final
class Backends:
    """Names that users registered, beside ours and PyTorch's. Safe to use from several threads."""

    __slots__ = ("_lock", "_registered", "_tags")

    def __init__(self) -> None:
        self._lock = make_lock()
        self._registered: dict[str, GraphCompiler] = {}
        self._tags: dict[str, frozenset[str]] = {}

    def register(
        self, compiler: GraphCompiler, name: str | None = None, tags: Iterable[str] = ()
    ) -> GraphCompiler:
        """Let `braze.compile(backend=name)` find a compiler function."""
        if not callable(compiler):
            raise UserError(f"a backend is a callable, not {compiler!r}")
        key = name or getattr(compiler, "__name__", "")
        if not key:
            raise UserError(f"{compiler!r} has no __name__: give register_backend a name")
        with self._lock:
            if key in OWN or key in self._registered:
                raise UserError(f"there is a backend {key!r} already")
            self._registered[key] = compiler
            self._tags[key] = frozenset(tags)
        return compiler

    def find(
        self,
        backend: str | GraphCompiler | Backend,
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
        dynamic: bool | None = None,
    ) -> Backend:
        """The backend of this name, or the callable itself as a backend.

        A name is looked for among ours, those registered here, the installed entry points and
        then PyTorch's registry, which alone imports torch._dynamo. `mode` and `options` go to a
        foreign compiler as `torch.compile` would give them. Raises InvalidBackend.
        """
        if isinstance(backend, Backend):
            return backend
        if callable(backend):
            name = getattr(backend, "__name__", type(backend).__name__)
            made = _with_arguments(backend, mode, options)
            return Backend(name, Level.TORCH, made, takes_numbers=True)
        if not isinstance(backend, str):
            raise InvalidBackend(f"A backend is a name or a callable, not {backend!r}.")
        if backend in OWN:
            return OWN[backend]
        if backend == "inductor":
            made = _inductor_compiler(mode, options, dynamic)
            return Backend(backend, Level.TORCH, made, takes_sizes=False)
        compiler = _with_arguments(self._compiler_of(backend), mode, options)
        with self._lock:
            is_ours = backend in self._registered  # others look at the inputs' sizes
        return Backend(backend, Level.TORCH, compiler, takes_sizes=is_ours, takes_numbers=is_ours)

    def _compiler_of(self, name: str) -> GraphCompiler:
        if (registered := self._registered.get(name)) is not None:
            return registered
        if (entry := _installed().get(name)) is not None:
            loaded: GraphCompiler = entry.load()
            return loaded
        registry = _torch_registry()
        if name in registry.list_backends(exclude_tags=()):
            found: GraphCompiler = registry.lookup_backend(name)
            return found
        raise InvalidBackend(unknown_name("backend", name, self.names(exclude_tags=())))

    def names(self, exclude_tags: Iterable[str] = HIDDEN_TAGS) -> list[str]:
        """What `find` knows, sorted, without those that carry one of the tags. PyTorch's registry,
        which imports torch._dynamo, is only asked for what the table does not say."""
        excluded = frozenset(exclude_tags)
        own = {name for name in OWN if name not in _DEBUG or "debug" not in excluded}
        with self._lock:
            registered = {name for name, tags in self._tags.items() if not tags & excluded}
        torch_names = _torch_names(excluded)
        hidden = set(OWN) - own
        return sorted((own | registered | set(_installed()) | torch_names) - hidden)


BACKENDS = Backends()


def _with_arguments(
    compiler: GraphCompiler, mode: str | None, options: Mapping[str, object] | None
) -> GraphCompiler:
    """As torch.compile does: `mode` and `options` are passed only where they were given."""
    keywords: dict[str, Any] = {}
    if mode is not None:
        keywords["mode"] = mode
    if options:
        keywords["options"] = dict(options)
    if not keywords:
        return compiler
    return lambda graph, example_inputs: compiler(graph, example_inputs, **keywords)


def _inductor_compiler(
    mode: str | None, options: Mapping[str, object] | None, dynamic: bool | None
) -> GraphCompiler:
    """PyTorch's own generator, which takes a mode as settings of its own."""
    inductor = _load("torch._inductor")
    settings = dict(options or {})
    if mode not in (None, "default"):
        settings |= inductor.list_mode_options(mode, dynamic)

    def compile_graph(graph: torch.fx.GraphModule, example_inputs: object) -> Callable[..., object]:
        compile_fx = _load("torch._inductor.compile_fx").compile_fx
        compiled: Callable[..., Any] = compile_fx(graph, example_inputs, config_patches=settings)
        return compiled

    return compile_graph


def _installed() -> dict[str, EntryPoint]:
    """Backends that installed packages offer; ours is among them and answered before."""
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return {name: entry for name, entry in found.items() if name not in OWN}


_REGISTRY = "torch._dynamo.backends.registry"


def _torch_names(excluded: frozenset[str]) -> set[str]:
    """The names of PyTorch's registry without those that carry one of the tags."""
    known = UNTAGGED_BACKENDS
    if known is not None and excluded == frozenset(HIDDEN_TAGS) and _REGISTRY not in sys.modules:
        return set(known)
    return set(_torch_registry().list_backends(exclude_tags=tuple(excluded)))


def _torch_registry() -> Any:
    return _load(_REGISTRY)


def _load(module: str) -> Any:
    """Import late: these cost seconds, and a plain compile must not load them."""
    return importlib.import_module(module)
