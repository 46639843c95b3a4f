"""Kernel objects of Triton: a function of `@triton.jit`, and what `@triton.autotune` and
`@triton.heuristics` wrap it in.

Classes are told by the names of their modules, so that nothing of Triton is imported.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from braze.frozen import frozen


class LayerKind(enum.Enum):
    """A wrapper of a kernel. AUTOTUNE: chooses among configurations by their times. HEURISTICS:
    computes parameters from others."""

    AUTOTUNE = "autotune"
    HEURISTICS = "heuristics"


@final
@frozen(eq=False)
class Layer:
    """choices: of AUTOTUNE, the parameters that each configuration sets. functions: of HEURISTICS,
    what computes a parameter from the others, by its name."""

    kind: LayerKind
    choices: tuple[dict[str, Any], ...] = ()
    functions: tuple[tuple[str, Callable[..., Any]], ...] = ()


@final
@frozen(eq=False)
class TritonKernel:
    """What there is to know of a kernel object.

    launched: the object. function: the Python function that `@triton.jit` decorates. text: its
    source where it is another than that of the function. layers: outermost first. constants:
    parameters annotated as `tl.constexpr`. writes_unseen: whether functions of the program run
    around a launch and may write to its arguments (`pre_hook`). written: parameters that an
    autotuner writes to, or writes back.
    """

    launched: Any
    function: Any
    signature: inspect.Signature
    text: str | None
    layers: tuple[Layer, ...]
    constants: frozenset[str]
    writes_unseen: bool
    written: frozenset[str]

    @property
    def name(self) -> str:
        """As the program calls the function."""
        return str(self.function.__name__)


def is_launch(function: types.FunctionType) -> bool:
    """Whether a function is the method by which kernels are launched."""
    return function.__name__ == "run" and function.__qualname__ in _LAUNCHES.get(
        function.__module__, ()
    )


def is_kernel(value: object) -> bool:
    """Whether a value is a kernel object."""
    return _class_name(value) in _KERNELS


def is_device_function(value: object) -> bool:
    """Whether a value is a function of `@triton.jit`, which kernels can call."""
    return _class_name(value) in _FUNCTIONS


def python_of_constexpr(value: Any) -> types.FunctionType | None:
    """The Python function of one that `@triton.constexpr_function` decorates (`triton.cdiv`)."""
    if _class_name(value) != ("triton.runtime.jit", "ConstexprFunction"):
        return None
    function = value.fn
    if not isinstance(function, types.FunctionType):
        return None
    same = _BY_COMPARISONS.get((function.__module__, function.__name__))
    return same if isinstance(same, types.FunctionType) else function


def next_power_of_two(n: int) -> int:
    """As `triton.next_power_of_2`, by comparisons: sizes with one answer share a graph, which bits
    of a size would not let them."""
    power = 1 if n > 0 else 0
    while power < n:
        power *= 2
    return power


def constant_of(value: Any) -> object:
    """The value in a `tl.constexpr`; any other value itself."""
    if _class_name(value) == ("triton.language.core", "constexpr"):
        return value.value
    return value


def describe(kernel: Any) -> TritonKernel | None:
    """What there is to know of a kernel object; None where it is of no known form."""
    layers: list[Layer] = []
    written: set[str] = set()
    unseen, inner = False, kernel
    while _class_name(inner) in _WRAPPERS:
        layers.append(_layer(inner))
        if layers[-1].kind is LayerKind.AUTOTUNE:
            written.update((*inner.reset_to_zero, *inner.restore_value))
            hooks = [config.pre_hook for config in inner.configs]
            hooks += [getattr(inner, f"user_defined_{when}_hook", None) for when in ("pre", "post")]
            unseen = unseen or any(hook is not None and hook is not False for hook in hooks)
        inner = inner.fn
    if not is_device_function(inner) or not isinstance(inner.fn, types.FunctionType):
        return None
    signature = inspect.signature(inner.fn)
    return TritonKernel(
        kernel,
        inner.fn,
        signature,
        getattr(inner, "src", None),
        tuple(layers),
        frozenset(n for n, p in signature.parameters.items() if _is_constexpr(p.annotation)),
        unseen or bool(getattr(inner, "pre_run_hooks", ())),
        frozenset(written),
    )


def match_choice(choices: Sequence[Mapping[str, object]], found: Mapping[str, object]) -> int:
    """Which of several configurations has set the parameters; -1 where none has."""
    for number, choice in enumerate(choices):
        if all(n not in found or constant_of(found[n]) == v for n, v in choice.items()):
            return number
    return -1


# --- private -------------------------------------------------------------------------------------

_BY_COMPARISONS: dict[tuple[str, str], Callable[[int], int]] = {
    ("triton", "next_power_of_2"): next_power_of_two,
}
_LAUNCHES = {
    "triton.runtime.jit": frozenset({"JITFunction.run"}),
    "triton.runtime.interpreter": frozenset({"InterpretedFunction.run"}),
    "triton.runtime.autotuner": frozenset({"Autotuner.run", "Heuristics.run"}),
}
_FUNCTIONS = frozenset(
    {
        ("triton.runtime.jit", "JITFunction"),
        ("triton.runtime.interpreter", "InterpretedFunction"),
        ("triton.experimental.gluon._runtime", "GluonJITFunction"),
    }
)
_WRAPPERS = frozenset(
    {("triton.runtime.autotuner", "Autotuner"), ("triton.runtime.autotuner", "Heuristics")}
)
_KERNELS = _FUNCTIONS | _WRAPPERS


def _class_name(value: object) -> tuple[str, str]:
    cls = type(value)
    return cls.__module__, cls.__name__


def _layer(wrapper: Any) -> Layer:
    if _class_name(wrapper)[1] == "Autotuner":
        return Layer(LayerKind.AUTOTUNE, tuple([dict(c.kwargs) for c in wrapper.configs]))
    return Layer(LayerKind.HEURISTICS, functions=tuple(wrapper.values.items()))


def _is_constexpr(annotation: object) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return "constexpr" in text
