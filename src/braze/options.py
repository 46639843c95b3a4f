"""What a compile was asked for, frozen; and the process configuration that it starts from.

Values of the environment are read once, when Braze is imported. `Options` is passed
to every stage; `config` is only read when a compile begins, by `resolve`.
"""

from __future__ import annotations

import functools
import os
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar, final

from braze.environment import PROCESS, Setting, parse_environment
from braze.errors import InvalidOption, unknown_name, warn
from braze.frozen import frozen
from braze.locks import make_lock

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
NUMERICS = ("eager", "default", "fast")
# What programs stay correct without; `braze.rewrite` has them.
GRAPH_PASSES = (
    "fold_constants",
    "fold_batch_norms",
    "fold_host_values",
    "convert_conditions",
    "decompose_encoder_layers",
    "fuse_attention",
    "recompute_attention",
    "fuse_convolutions",
    "prefer_channels_last",
    "separate_biases",
    "complex_as_pairs",
    "remove_redundant_copies",
    "align_products",
    "merge_common_subexpressions",
    "reroll_blocks",
)


def _default_cache_dir() -> Path:
    """In the user's home; for a user without one (a container under another uid) in the folder of
    temporary files, under a name of the user's own."""
    try:
        return Path("~/.cache/braze").expanduser()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"braze-{os.getuid()}"


CACHE_DIR = _default_cache_dir()

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _setting(
    default: object,
    doc: str,
    *accepts: type,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    environment: str = "",
) -> Any:
    kinds = accepts or (type(default),)
    setting = Setting(kinds, doc, choices, least, most, environment)
    return field(default=default, metadata={"setting": setting})


_NONE = type(None)


@final
@frozen
class Options:
    """One compile's options. Every field may be given in `options={...}` or set on `config`."""

    mode: str | None = _setting(
        None,
        "reduce-overhead: calls are recorded as CUDA graphs; None: where starting the work takes "
        "longer than doing it; default: never; on a CPU all mean the same",
        str,
        _NONE,
        choices=MODES,
    )
    backend: str = _setting("braze", "name of the backend, for messages")
    name: str = _setting("", "what `status` calls what was compiled; empty: by what it was made of")
    fullgraph: bool = _setting(False, "a graph break is an error")
    dynamic: bool | None = _setting(
        None, "sizes are symbols: always, never, or None: after they changed", bool, _NONE
    )
    numerics: str = _setting(
        "default",
        "eager: every rounding of eager; default: at most twice eager's error; fast: free",
        choices=NUMERICS,
        environment="BRAZE_NUMERICS",
    )
    recompile_limit: int = _setting(8, "entries of one function before it runs eagerly", least=1)
    single_use_limit: int = _setting(
        512,
        "operators of a first call that ends its own guards (an optimizer makes its state) up to "
        "which it is compiled; with more it runs eagerly, and the next call is compiled",
        least=0,
    )
    unroll_limit: int = _setting(
        50_000,
        "operators that a loop may add to a graph; the turns of longer ones have their own graphs",
        least=1,
    )
    idle_limit: int = _setting(
        250_000,
        "instructions in a row that a capture interprets without an operator; what takes more (a "
        "loop that waits, a long computation in Python) runs natively",
        least=1,
    )
    suppress_errors: bool = _setting(
        True,
        "a fault of Braze or of a backend: one warning, and the call runs eagerly",
        environment="BRAZE_SUPPRESS_ERRORS",
    )
    check: float = _setting(
        0.0,
        "of a graph's calls, the share that is compared with eager on copies of its inputs (0.01: "
        "one in a hundred); a difference is warned of, with a script that shows it, and the graph "
        "runs eagerly from there",
        float,
        int,
        least=0,
        most=1,
    )
    debug_dir: str = _setting(
        "",
        "a folder: what each stage made of each graph is written there, as programs that run alone "
        "on generated inputs, and a benchmark of its kernels",
        environment="BRAZE_DEBUG",
    )
    debug_inputs: bool = _setting(
        False,
        "beside the programs of `debug_dir`, inputs and results of the first call of each graph "
        "are saved (`inputs.pt`), and the programs run on them; they hold the program's data",
        environment="BRAZE_DEBUG_INPUTS",
    )
    repro_after: str = _setting(
        "",
        "a graph that a stage behind capture fails on is shrunk and written to `braze_repros` as a "
        "script (the two names are PyTorch's, and mean the same here)",
        choices=("", "dynamo", "aot"),
        environment="BRAZE_REPRO_AFTER",
    )
    repro_level: int = _setting(
        2,
        "1: such a graph as it is; 2: shrunk; 4: also graphs whose first call computes something "
        "else than eager",
        least=1,
        most=4,
        environment="BRAZE_REPRO_LEVEL",
    )
    verbose: bool = _setting(
        False, "errors show Braze's own frames, too", environment="BRAZE_VERBOSE"
    )
    debug_function: str = _setting(
        "",
        "functions of this name (`forward`, or `Block.forward`) are compiled and logged, and no "
        "others: what calls them, and what they break at, runs eagerly",
        environment="BRAZE_DEBUG_FUNCTION",
    )
    progress: bool = _setting(
        True,
        "on a terminal, a line says what is compiled while that takes over a second",
        environment="BRAZE_PROGRESS",
    )
    verify: bool = _setting(
        False, "check the program after every stage and pass", environment="BRAZE_VERIFY"
    )
    verify_replays: bool = _setting(
        False,
        "compare a GPU's first replays with the calls that they recorded",
        environment="BRAZE_VERIFY_REPLAYS",
    )
    disable: bool = _setting(False, "compile nothing", environment="BRAZE_DISABLE")
    cache_dir: Path = _setting(
        CACHE_DIR,
        "where built kernels are kept",
        Path,
        environment="BRAZE_CACHE_DIR",
    )
    cache: bool = _setting(
        True,
        "keep built kernels for later processes; False: they go with this one",
        environment="BRAZE_CACHE",
    )
    cache_size: int = _setting(
        2048,
        "MiB that the cache may take; what was used longest ago goes first",
        least=1,
        environment="BRAZE_CACHE_SIZE",
    )
    compiler: str = _setting(
        "", "C++ compiler; empty: the first of g++, clang++, c++", environment="BRAZE_CXX"
    )
    cpp_flags: tuple[str, ...] = _setting(
        (), "further flags for the C++ compiler", tuple, environment="BRAZE_CXXFLAGS"
    )
    build_threads: int = _setting(
        0,
        "C++ compilers that run at once; 0: as many as there are processors",
        least=0,
        environment="BRAZE_BUILD_THREADS",
    )
    build_timeout: int = _setting(
        300,
        "seconds after which a compiler that has not ended is stopped, and its graph runs eagerly",
        least=1,
        environment="BRAZE_BUILD_TIMEOUT",
    )
    activation_memory_budget: float = _setting(
        1.0,
        "of what a forward saves for its backward: 1: all that is not computed again for next to "
        "nothing; 0: only what must be; between: as many bytes as that part of the way",
        float,
        int,
        least=0,
        most=1,
    )
    packed_weights: int = _setting(
        1024,
        "MiB, at most, of weights that the process keeps as the CPU's convolutions and products "
        "take them, for calls that record no gradients; 0: none, and nothing is folded into them",
        least=0,
    )
    freeze: bool = _setting(
        False,
        "parameters and buffers of modules are constants, for inference: folded, packed and not "
        "looked at again, so that later changes of them are not seen until `braze.reset()`; a call "
        "that records gradients raises",
    )
    skip_passes: tuple[str, ...] = _setting(
        (),
        "graph passes that are left out, to find out what one does",
        tuple,
        choices=GRAPH_PASSES,
        environment="BRAZE_SKIP_PASSES",
    )
    max_fusion_size: int = _setting(64, "most definitions that are fused into one kernel", least=1)
    capture_scalar_outputs: bool = _setting(
        False, "`.item()` gives a symbol instead of a graph break; on under fullgraph"
    )
    capture_dynamic_output_shape_ops: bool = _setting(
        False, "operators like nonzero stay in the graph; on under fullgraph"
    )
    trace_numpy: bool = _setting(
        True, "NumPy code is compiled as code on tensors is; False: NumPy itself runs it"
    )
    pad_recordings_to: int = _setting(
        0,
        "calls recorded as CUDA graphs: changing sizes are padded to multiples of this, where rows "
        "are computed each by itself (the last bits of library calls are those of the padded "
        "size); 0: one recording a size",
        least=0,
    )
    reorderable_logging_functions: tuple[Callable[..., Any], ...] = _setting(
        (), "functions like print whose calls may be moved behind the graph", tuple
    )
    guard_filter_fn: Callable[[Any], Any] | None = _setting(
        None,
        "which guards are asked: a function of their entries that returns a bool for each (those "
        "of `torch.compiler`, `skip_guard_on_globals_unsafe` and its kin); those that keep kernels "
        "within their memory are asked all the same",
        Callable,  # type: ignore[arg-type]  # a class as others are, to isinstance
        _NONE,
    )

    def __post_init__(self) -> None:
        for name in SETTINGS:
            SETTINGS[name].check(name, getattr(self, name))


SETTINGS: Mapping[str, Setting] = {f.name: f.metadata["setting"] for f in fields(Options)}


def _known(name: str) -> str:
    if name not in SETTINGS:
        raise InvalidOption(unknown_name("option", name, SETTINGS))
    return name


def _normal(name: str, value: object) -> Any:
    """Accept lists, sets and single strings where a tuple is kept, and strings for paths."""
    kinds = SETTINGS[_known(name)].accepts
    if kinds == (tuple,) and isinstance(value, (list, set, frozenset, str)):
        value = (value,) if isinstance(value, str) else tuple(value)
    elif kinds == (Path,) and isinstance(value, (str, Path)):
        value = Path(value).expanduser()
    SETTINGS[name].check(name, value)
    return value


# --- process configuration -------------------------------------------------------------------

# A name that torch.compile's configuration had, or has, for one of `Config`.
_THEIR_NAMES = types.MappingProxyType({"cache_size_limit": "recompile_limit"})
# A setting of torch.compile's -> the option that says it, and its value by that of the setting: the
# usual one, and the other.
_SAID_BY: Mapping[str, tuple[str, Mapping[object, object]]] = types.MappingProxyType(
    {
        "dynamic_shapes": ("dynamic", {True: None, False: False}),
        "automatic_dynamic_shapes": ("dynamic", {True: None, False: False}),
        "assume_static_by_default": ("dynamic", {True: None, False: True}),
        "force_disable_caches": ("cache", {False: True, True: False}),
    }
)
# A setting of torch.compile's -> its value for what Braze does, and what to say instead of another.
_ALWAYS_SO: Mapping[str, tuple[object, str]] = types.MappingProxyType(
    {
        "accumulated_cache_size_limit": (256, "`recompile_limit` is of each function"),
        "accumulated_recompile_limit": (256, "`recompile_limit` is of each function"),
        "allow_unspec_int_on_nn_module": (False, "numbers of modules are constants"),
        "error_on_recompile": (False, "`braze.set_stance('fail_on_recompile')` does it"),
        "fail_on_recompile_limit_hit": (False, "`fullgraph=True` raises at the limit"),
        "force_nn_module_property_static_shapes": (True, "`mark_dynamic` marks their sizes"),
        "force_parameter_static_shapes": (True, "`mark_dynamic` marks their sizes"),
        "guard_nn_modules": (True, "`guard_filter_fn` says which guards are asked"),
        "inline_inbuilt_nn_modules": (True, "modules are captured as the program's own code"),
        "log_file_name": (None, "the variable BRAZE_LOGS_OUT names a file for logs"),
        "optimize_ddp": (True, "gradients of DDP always leave a backward as they are ready"),
        "specialize_float": (False, "numbers that change become symbols"),
        "specialize_int": (False, "numbers that change become symbols"),
    }
)


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Settings with those of torch.compile's own in the words of `Options`. Those that mean what
    Braze does anyway go; a BrazeWarning names others that mean nothing here."""
    made: dict[str, object] = {}
    for name, value in given.items():
        if name in _SAID_BY:
            option, meanings = _SAID_BY[name]
            if type(value) is not bool:
                raise InvalidOption(f"Option {name!r} takes bool, not {value!r}.")
            made[option] = meanings[value]
        elif name in _ALWAYS_SO:
            usual, instead = _ALWAYS_SO[name]
            if value != usual:
                warn(f"{name}={value!r} has no counterpart in Braze, and is left out: {instead}.")
        else:
            made[_THEIR_NAMES.get(name, name)] = value
    return made


@final
class Config:
    """Defaults of every option, for the whole process; safe to use from several threads.

    Reading and writing go by attribute (`config.recompile_limit = 16`). `patch` lays values over
    the others until it ends, for this thread alone; what is assigned to them meanwhile ends with
    it. A compile takes its values when `braze.compile` is called, not when the compiled function
    runs.
    """

    __slots__ = ("_base", "_layers", "_lock")

    def __init__(self, environment: Mapping[str, str]) -> None:
        defaults = {f.name: f.default for f in fields(Options)}
        object.__setattr__(self, "_base", defaults | parse_environment(environment, SETTINGS))
        # In each thread, and in each task of an event loop: innermost last.
        layers: ContextVar[tuple[_Layer, ...]] = ContextVar("braze.config", default=())
        object.__setattr__(self, "_layers", layers)
        object.__setattr__(self, "_lock", make_lock())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        name = _THEIR_NAMES.get(name, name)
        if name in _ALWAYS_SO:
            return _ALWAYS_SO[name][0]
        if name in _SAID_BY:
            option, meanings = _SAID_BY[name]
            usual, other = meanings
            return other if getattr(self, option) is meanings[other] else usual
        with self._lock:
            value = self._layer_of(_known(name))[name]
        return _Functions(self, name, value) if name in _OF_FUNCTIONS else value

    def __setattr__(self, name: str, value: object) -> None:
        for own, each in translated({name: value}).items():
            checked = _normal(own, each)
            with self._lock:
                self._layer_of(own)[own] = checked

    def __dir__(self) -> list[str]:
        return sorted({*SETTINGS, "patch", "snapshot"})

    def _layer_of(self, name: str) -> dict[str, Any]:
        layers: list[dict[str, Any]] = [self._base, *[layer for _, layer in self._layers.get()]]
        return next(layer for layer in reversed(layers) if name in layer)

    def snapshot(self) -> Options:
        """The present values, frozen."""
        with self._lock:
            return Options(**{name: self._layer_of(name)[name] for name in SETTINGS})

    def patch(
        self,
        changes: Mapping[str, object] | str | None = None,
        value: object = None,
        /,
        **named: object,
    ) -> Patch:
        """Other values for a `with` block or a decorated function.

        Call it as `patch(name=value)`, `patch({"name": value})` or `patch("name", value)`.
        """
        given = {changes: value} if isinstance(changes, str) else dict(changes or {})
        own = translated(given | named)
        return Patch(self, {k: _normal(k, v) for k, v in own.items()})

    def _lay(self, patch: Patch, values: Mapping[str, object]) -> None:
        self._layers.set((*self._layers.get(), (patch, dict(values))))

    def _lift(self, patch: Patch) -> None:
        """Take away the innermost layer of a patch; others may have been laid over it."""
        layers = list(self._layers.get())
        place = max(number for number, (owner, _) in enumerate(layers) if owner is patch)
        del layers[place]
        self._layers.set(tuple(layers))


@final
class Patch:
    """What `config.patch` returns: a context manager that may be entered again, and a
    decorator."""

    __slots__ = ("_config", "_values")

    def __init__(self, config: Config, values: Mapping[str, object]) -> None:
        self._config = config
        self._values = values

    def __enter__(self) -> None:
        self._config._lay(self, self._values)

    def __exit__(self, *exception: object) -> None:
        self._config._lift(self)

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def patched(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return patched


_OF_FUNCTIONS = frozenset({"reorderable_logging_functions"})


@final
class _Functions(tuple[Callable[..., Any], ...]):
    """The functions that an option of `config` lists, which can be added to and taken from as a
    set is: `config.reorderable_logging_functions.add(print)`."""

    _owner: tuple[Config, str]

    def __new__(
        cls, config: Config, name: str, functions: tuple[Callable[..., object], ...]
    ) -> Any:
        made = super().__new__(cls, functions)
        made._owner = (config, name)
        return made

    def add(self, function: Callable[..., object]) -> None:
        """List a function, too."""
        config, name = self._owner
        setattr(config, name, [*dict.fromkeys((*getattr(config, name), function))])

    def update(self, functions: Iterable[Callable[..., object]]) -> None:
        """List several, too."""
        for function in functions:
            self.add(function)

    def discard(self, function: Callable[..., object]) -> None:
        """List a function no longer."""
        config, name = self._owner
        setattr(config, name, [other for other in getattr(config, name) if other != function])

    def remove(self, function: Callable[..., object]) -> None:
        """List a function no longer; KeyError where it is not listed."""
        if function not in getattr(*self._owner):
            raise KeyError(function)
        self.discard(function)


# A patch, and what it says now.
_Layer: TypeAlias = tuple[Patch, dict[str, Any]]

config = Config(PROCESS)


# What keeps in one graph calls that otherwise break it.
_KEEP_IN_GRAPH = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")


def resolve(
    base: Options,
    *,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, object] | None = None,
) -> Options:
    """The options of one call of `braze.compile`: its own arguments over `base`.

    As in torch.compile, a mode and options exclude each other; `options` may hold a "mode".
    Raises InvalidOption, which lists what is valid.
    """
    if mode is not None and options is not None:
        raise InvalidOption(
            "Either mode or options can be given, not both: write "
            f"options={{'mode': {mode!r}, ...}}."
        )
    given = {name: _normal(name, value) for name, value in translated(options or {}).items()}
    whole = fullgraph or given.get("fullgraph", base.fullgraph)
    explicit = {
        **{name: given.get(name, getattr(base, name) or whole) for name in _KEEP_IN_GRAPH},
        "mode": mode if mode is not None else given.get("mode", base.mode),
        "fullgraph": whole,
        "dynamic": dynamic if dynamic is not None else given.get("dynamic", base.dynamic),
    }
    return replace(base, **(given | explicit))
